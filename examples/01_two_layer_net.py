"""A two-layer net on 8 processors: written once, placed by one line.

Run it: `python examples/01_two_layer_net.py`. With no accelerator the 8 processors are virtual ones of your CPU.
"""

import jax
import numpy as np

import weft as wf

batch, d_io, hidden = wf.dims(batch=512, d_io=1024, hidden=4096)
mesh = wf.Mesh("rows=4, cols=2")  # make it before the first array: JAX counts its processors when it starts
layout = wf.Layout("batch:rows, hidden:cols")  # the only line that changes


def net(x, w, v):  # says nothing about processors
    h = wf.relu(wf.einsum(x, w, out=[batch, hidden]))
    y = wf.einsum(h, v, out=[batch, d_io])
    return h, y


def show_types(x, w, v):
    """Runs the net and prints what each processor holds; `batch/rows` reads: batch, split over rows."""
    h, y = net(x, w, v)
    for name, tensor in dict(x=x, w=w, v=v, h=h, y=y).items():
        print(f"  {name}  {tensor!r:30}  local shape {tensor.local_array.shape}")


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    x = wf.random.normal(keys[0], [batch, d_io])
    w = wf.random.normal(keys[1], [d_io, hidden]) / d_io.size**0.5
    v = wf.random.normal(keys[2], [hidden, d_io]) / hidden.size**0.5

    print(f"mesh    {mesh}\nlayout  {layout}\n\nThe placed type of every tensor:")
    wf.trace(show_types, x, w, v, mesh=mesh, layout=layout)

    program = wf.trace(net, x, w, v, mesh=mesh, layout=layout)  # needs no devices: the mesh may have any size
    print(f"\nThe program, an op a line; `>>` is what it sends:\n\n{program}")

    _, y = wf.spmd(net, mesh=mesh, layout=layout)(x, w, v)  # global tensors in, global tensors out
    _, expected = net(x, w, v)  # the same function with no mesh at all
    difference = np.abs(wf.get(y) - wf.get(expected)).max()
    print(f"\nThe result is {y!r}, whole again; its mean square is {wf.mean(y * y, over=[batch, d_io]):.4f}")
    print(f"Largest difference from one processor: {difference:.1e}")


if __name__ == "__main__":
    main()
