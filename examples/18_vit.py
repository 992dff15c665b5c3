"""A vision Transformer of one's own: patches, attention, and one loss under all layouts.

Run it: `python examples/18_vit.py`; `--data DIR` reads the four MNIST files. It fails if a loss differs.
"""

import sys

import equinox as eqx
import jax
import numpy as np
import optax

import weft as wf
from weft import data, nn

EIGHT = wf.Mesh("x=4,y=2")
LAYOUTS = {"one processor": ("all=1", "batch:all"), "data + model parallel": (EIGHT, "batch:x,heads:y,hidden:y"),
           "image in strips": (EIGHT, "batch:y,height:x")}  # fmt: skip
grey, width, heads, depth, hidden, classes = wf.dims(grey=1, width=32, heads=4, depth=8, hidden=64, classes=10)


class Block(eqx.Module):
    parts: list

    def __init__(self):
        mlp = nn.MLP([width, hidden, width], activation="gelu")
        self.parts = [nn.LayerNorm(width), nn.Attention(width, heads, depth), nn.LayerNorm(width), mlp]

    def __call__(self, x):
        x = x + self.parts[1](self.parts[0](x))
        return x + self.parts[3](self.parts[2](x))


class ViT(eqx.Module):
    patches: nn.Patches
    positions: nn.Weight
    blocks: nn.Stacked
    head: nn.Linear

    def __init__(self, size, layers, side=4):
        self.patches = nn.Patches(grey, width, {"height": size // side, "across": size // side})
        self.positions = nn.Weight([wf.Dim("length", side * side), width], stddev=0.02)
        self.blocks, self.head = nn.Stacked(Block(), wf.Dim("layers", layers)), nn.Linear(width, classes)

    def loss(self, batch, key):
        x = self.blocks(self.patches(batch["images"]) + self.positions)
        logits = self.head(wf.mean(x, over="length"))
        return wf.mean(nn.cross_entropy(logits, batch["labels"], over="classes")[0], over="batch")


def draw(count=256, size=16):
    """Bars at one of ten angles, with noise, and which angle it is."""
    random, (y, x) = np.random.default_rng(0), np.mgrid[:size, :size] - (size - 1) / 2
    labels = random.integers(0, 10, count)
    bars = np.abs([np.cos(n * np.pi / 10) * x - np.sin(n * np.pi / 10) * y for n in labels]) < 1.5
    return data.Images(np.float32(bars + random.normal(0, 0.3, bars.shape)), labels)


def train(model, images, steps, mesh, layout):
    step = wf.train_step(ViT.loss, optax.adam(3e-3), mesh=mesh, layout=layout)
    state = step.init(nn.init(model, jax.random.key(0), mesh, layout, dims="batch height"))
    for _, rows in zip(range(steps), data.Batches(images, batch=32), strict=False):
        pictures = wf.tensor(rows["images"][..., None], "batch height across grey")
        state, metrics = step(state, {"images": pictures, "labels": wf.tensor(rows["labels"], "batch")})
        yield float(metrics["loss"])


def main(folder, steps=15):
    images = data.image_dataset(data.open_source({"path": folder, "format": "images"})) if folder else draw()
    model, wanted = ViT(images.take(np.arange(1))["images"].shape[1], layers=2), None
    for name, (mesh, layout) in LAYOUTS.items():
        losses = list(train(model, images, steps, mesh, layout))
        print(f"{name:22} {layout:26} loss", *(f"{loss:.4f}" for loss in losses[4::5]))
        if not np.allclose(losses, wanted := wanted or losses, rtol=2e-4):  # float32 sums in another order
            sys.exit(f"FAILED: the loss differs under {name}")


if __name__ == "__main__":
    main(sys.argv[2] if sys.argv[1:2] == ["--data"] else None)
