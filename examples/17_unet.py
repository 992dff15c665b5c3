"""A U-Net that finds grey and white matter in a brain, the volume split in depth and height.

It draws a volume of its own; `--data DIR` reads t1.nii.gz, gm.nii.gz and wm.nii.gz, maps of one brain such as MNI152,
of which `--every 2` takes every second place along each dim. Each level halves the volume and doubles the channels.
A fifth of the volume, at its back, is held out, and so much before it that no convolution looks from one to the other.
"""

import argparse
import gzip
from pathlib import Path

import jax
import numpy as np
import optax

import weft as wf
from weft import models


def draw(size=(28, 44, 14)):
    """A wavy rod in a shell in noise, and which is which."""
    at = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in size), indexing="ij"))
    far = np.hypot(at[0], at[2]) + 0.1 * np.sin(9 * at[1])
    labels = 1 * (far < 0.95) + 1 * (far < 0.6)
    return 80 * labels + np.random.default_rng(0).normal(0, 30, size), labels


def read(folder, every):
    """The picture, and of each place whether grey or white matter is at least half of it."""

    def volume(name):  # NIfTI: 348 bytes of header, numbers with the first dim fastest
        data = gzip.decompress((folder / f"{name}.nii.gz").read_bytes())
        size, start = np.frombuffer(data, "<i2", 3, 42), int(np.frombuffer(data, "<f4", 1, 108)[0])
        return np.frombuffer(data, "u1", size.prod(), start).reshape(size, order="F")[::every, ::every, ::every]

    grey, white = (volume(name) >= 128 for name in ("gm", "wm"))
    return volume("t1").astype("float32"), np.where(white, 2, np.where(grey, 1, 0))


def batches(picture, labels, gap):
    """What is learned from, and what is held out; sizes are padded to multiples of 16, and padding has no weight."""
    end, pads = picture.shape[1] // 5, [(0, -n % 16) for n in picture.shape]
    place, one = np.arange(picture.shape[1])[:, None], np.ones(picture.shape, "float32")
    picture = (picture - picture.mean()) / picture.std()
    for counted in (place >= end + gap, place < end):
        arrays = {"images": picture.astype("float32"), "labels": labels.astype("int32"), "weights": one * counted}
        padded = {name: np.pad(a, pads, constant_values=a.min())[None] for name, a in arrays.items()}
        named = {name: wf.tensor(a, "batch depth height width") for name, a in padded.items()}
        yield named | {"images": wf.stack([named["images"]], wf.Dim("in_channels", 1))}


def main(mesh, layout, steps, channels, levels, data, every):
    mesh, (picture, labels) = wf.Mesh(mesh), draw() if data is None else read(data, every)
    sizes = [n + -n % 16 for n in picture.shape]
    how = dict(zip(("depth", "height", "width"), sizes, strict=True), classes=3, batch=1, groups=4, dtype="float32")
    config = models.UNetConfig(name="brain", **how, channels=channels, levels=levels)
    learned, held = batches(picture, labels, gap=config.receptive_field)
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(1e-2), mesh=mesh, layout=layout)
    state = step.init(models.init(config, jax.random.key(0), mesh, layout))
    program = wf.trace(step, state, learned, jax.random.key(0))
    halos = sum(row.bytes * row.count for row in program.ledger if row.collective == "permute")
    print(f"{config.param_count:,} parameters; {picture.shape} padded to {sizes}; {layout} on {mesh}")
    print(f"a step: {halos:,} bytes of halos; peak {program.memory.peak / 2**20:.0f} MiB a processor")
    for i in range(1, steps + 1):
        state, metrics = step(state, learned, jax.random.key(i))
        if i == 1 or i % max(1, steps // 10) == 0:
            print(f"step {i:5}  loss {metrics['loss']:.4f}", flush=True)
    _, told = state.params.loss_and_metrics(held)
    print("held out, Dice: other {:.3f}  grey {:.3f}  white {:.3f}".format(*wf.get(told["dice"])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", default="x=2, y=2", help="axes and sizes (default: %(default)s)")
    parser.add_argument("--layout", default="depth:x, height:y", help="rules, dim:axis (default: %(default)s)")
    for name, value in {"steps": 20, "channels": 8, "levels": 2, "every": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="(default: %(default)s)")
    parser.add_argument("--data", type=Path, help="directory of the maps (default: draw a volume)")
    main(**vars(parser.parse_args()))
