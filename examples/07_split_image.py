"""A convolutional net on an image split in height and width: each processor sends its neighbours a halo, no more.

Run it: `python examples/07_split_image.py`. It fails if an answer differs from that of one processor.
"""

import sys

import jax
import numpy as np

import weft as wf

height, width, channels, filters, classes = wf.dims(height=32, width=64, channels=3, filters=8, classes=10)
MESH = wf.Mesh("rows=4, cols=2")
TOLERANCE = 1e-5  # sums in another order, float32
KERNEL = {"height": "kh", "width": "kw"}


def net(params, image):  # says nothing about processors; pads are those of the whole image
    x = wf.relu(wf.conv(image, params["first"], over=KERNEL, channels=(channels, filters)))
    x = wf.conv(x.rename(filters="channels"), params["second"], over=KERNEL, channels=("channels", "filters"), stride=2)
    x = wf.max_pool(wf.relu(x), window={"height": 2, "width": 2})  # windows that cross no border send nothing
    return wf.einsum(wf.mean(x, over="height width"), params["out"], over=filters)


def loss(params, image):
    return wf.mean(wf.square(net(params, image)), over=classes)


def make_inputs(height, width):
    kh, kw = wf.dims(kh=3, kw=3)
    shapes = {
        "first": [kh, kw, channels, filters],
        "second": [kh, kw, channels.resized(filters.size), filters],
        "out": [filters, classes],
    }
    keys = jax.random.split(jax.random.key(0), 4)
    weights = map(wf.random.normal, keys, shapes.values())
    params = {name: wf.parameter(weight / 4) for name, weight in zip(shapes, weights, strict=True)}
    return params, wf.random.normal(keys[3], [height, width, channels])


def halo(program):
    """Bytes of halos that one processor sends, forward and backward."""
    return sum(row.bytes * row.count for row in program.ledger if row.collective == "permute")


def main():
    inputs = make_inputs(height, width)
    print(wf.trace(net, *inputs, mesh=MESH, layout="height:rows, width:cols"))

    print("\nIts gradient under two layouts, and how far it is from that of one processor:")
    step = wf.value_and_grad(loss)
    expected = jax.tree.leaves(wf.get(step(*inputs)))
    for layout in ["height:rows, width:cols", "width:rows, filters:cols"]:
        found = jax.tree.leaves(wf.get(wf.spmd(step, mesh=MESH, layout=layout)(*inputs)))
        difference = max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, expected, strict=True))
        program = wf.trace(step, *inputs, mesh=MESH, layout=layout)
        print(f"  {layout:24} halos {halo(program):6,} bytes   difference {difference:.0e}")
        if not difference <= TOLERANCE:
            sys.exit(f"FAILED: the answer differs under {layout}")

    print("\nAn image of 2048 x 2048 on 256 processors, which need not be there, in strips and in tiles:")
    large = jax.eval_shape(lambda: make_inputs(height.resized(2048), width.resized(2048)))
    for layout in ["height:rows+cols", "height:rows, width:cols"]:
        program = wf.trace(step, *large, mesh="rows=16, cols=16", layout=layout)
        print(f"  {layout:24} halos {halo(program):9,} bytes")


if __name__ == "__main__":
    main()
