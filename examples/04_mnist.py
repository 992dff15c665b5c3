"""A classifier of digits, the first example of Mesh-TensorFlow: image -> hidden -> classes.

It draws digits of its own; `--data DIR` reads the four MNIST files, train-images-idx3-ubyte[.gz] and so on.
Try `--mesh all=8 --layout batch:all`, or `--layout "batch:rows, hidden:cols, params.height:rows"`.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
import optax

import weft as wf

batch, height, width, hidden, classes = wf.dims(batch=256, height=28, width=28, hidden=1024, classes=10)
DIMS = {"images": [batch, height, width], "labels": [batch]}
BARS = [(0, 2, 2, 9), (1, 9, 8, 10), (9, 17, 8, 10), (16, 18, 2, 9), (9, 17, 0, 2), (1, 9, 0, 2), (8, 10, 2, 9)]
DIGITS = "012345 12 01643 01623 5612 05623 056432 012 0123456 012356".split()


def draw(count, seed):
    """Digits, each made of some of seven bars (top, bottom, left, right), moved about, dimmed, covered with noise."""
    random = np.random.default_rng(seed)
    images, labels = random.normal(0, 0.3, [count, 28, 28]), random.integers(0, 10, count)
    for image, label in zip(images, labels, strict=True):
        down, right, light = random.integers(3, 8), random.integers(7, 12), random.uniform(0.5, 1)
        for top, bottom, left, end in (BARS[int(bar)] for bar in DIGITS[label]):
            image[down + top : down + bottom, right + left : right + end] += light
    return np.clip(images * 255, 0, 255).astype("uint8"), labels


def datasets(folder):
    """Images to learn from, and images to judge by."""
    if folder is None:
        return wf.data.Images(*draw(8192, 0)), wf.data.Images(*draw(2048, 1))
    try:
        source = wf.data.open_source({"path": folder, "format": "images"})
        return wf.data.image_dataset(source), wf.data.image_dataset(source, part="evaluation")
    except wf.WeftError as error:
        sys.exit(f"{error}\n--data takes the directory of the MNIST files")


def net(params, images):
    return wf.einsum(wf.relu(wf.einsum(images, params["w1"], over=[height, width])), params["w2"], over=hidden)


def loss(params, data, key):
    correct = wf.one_hot(data["labels"], classes) * wf.log_softmax(net(params, data["images"]), over=classes)
    return -wf.mean(wf.sum(correct, over=classes), over=batch)


def main(mesh, layout, steps, data):
    mesh, (train, test) = wf.Mesh(mesh), datasets(data)
    batches = wf.data.Batches(train, batch=batch.size, seed=2)
    w1, w2 = map(wf.random.normal, jax.random.split(jax.random.key(0)), ([height, width, hidden], [hidden, classes]))
    step = wf.train_step(loss, optax.adam(1e-3), mesh=mesh, layout=layout)
    state = step.init({"w1": wf.parameter(w1 / 28), "w2": wf.parameter(w2 / 32)})
    for i in range(1, steps + 1):
        arrays = next(batches)
        state, metrics = step(state, {name: wf.tensor(arrays[name], dims) for name, dims in DIMS.items()})
        if i == 1 or i % max(1, steps // 10) == 0:
            print(f"step {i:5}  loss {metrics['loss']:.4f}", flush=True)
    arrays = test.take(np.arange(len(test)))
    images = wf.tensor(arrays["images"], [batch.resized(len(test)), height, width])
    guesses = wf.get(wf.spmd(net, mesh=mesh, layout=layout)(state.params, images)).argmax(-1)
    print(f"test accuracy {np.mean(guesses == arrays['labels']):.2%} of {len(test)} images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", default="rows=4, cols=2", help="axes and sizes (default: %(default)s)")
    parser.add_argument("--layout", default="batch:rows, hidden:cols", help="rules, dim:axis (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="steps of training (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="directory of the MNIST files (default: draw digits)")
    main(**vars(parser.parse_args()))
