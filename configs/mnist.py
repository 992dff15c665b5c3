"""A convnet for MNIST and its images, which `mnist.toml` calls: two convolutions, two dense maps, dropout."""

import equinox as eqx
import numpy as np

import weft as wf
from weft import nn

HEIGHT, WIDTH, CLASSES = wf.dims(height=32, width=32, classes=10)
POOLED = {"height": 2, "width": 2}


class Net(eqx.Module):
    """Digits from images of 32 x 32, halved twice."""

    first: nn.Conv
    second: nn.Conv
    hidden: nn.Linear
    classes: nn.Linear
    dropout: float = eqx.field(static=True)

    def __init__(self, channels, features, hidden, dropout):
        grey, few, many = wf.Dim("grey", 1), wf.Dim("channels", channels), wf.Dim("features", features)
        small = [HEIGHT.resized(HEIGHT.size // 4), WIDTH.resized(WIDTH.size // 4), many]
        self.first = nn.Conv(grey, few, {"height": 5, "width": 5}, bias=True)
        self.second = nn.Conv(few, many, {"height": 3, "width": 3}, bias=True)
        self.hidden = nn.Linear(small, wf.Dim("hidden", hidden), bias=True)
        self.classes = nn.Linear(wf.Dim("hidden", hidden), CLASSES, bias=True)
        self.dropout = dropout

    def logits(self, images, key):
        x = wf.broadcast(images, [*images.dims, self.first.ins])
        for conv in (self.first, self.second):
            x = wf.max_pool(wf.relu(conv(x)), window=POOLED)
        h = wf.relu(self.hidden(x))
        return self.classes(h if key is None else wf.dropout(h, self.dropout, key))

    def loss(self, batch, key):
        logits = self.logits(batch["images"], key)
        losses = nn.cross_entropy(logits, batch["labels"], over="classes")[1]
        hits = wf.cast(wf.argmax(logits, over="classes") == batch["labels"], "float32")
        return wf.mean(losses, over="batch"), {"accuracy": wf.mean(hits, over="batch")}


def make(channels=12, features=32, hidden=128, dropout=0.4):
    return Net(channels, features, hidden, dropout)


class Digits:
    """MNIST's images with a border, and their labels."""

    def __init__(self, path, part):
        self.dims = {"images": "height width", "labels": ""}
        source = {"path": path, "format": "images"}
        drawn = path == "drawn"
        self.images = draw(part) if drawn else wf.data.image_dataset(wf.data.open_source(source), part=part)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        row = self.images.take(np.array([number]))
        return {"images": np.pad(row["images"][0], 2), "labels": row["labels"][0]}


def draw(part):
    """A few images to try it all with: a bright bar for each class, in noise."""
    random = np.random.default_rng(len(part))
    labels = random.integers(0, 10, 64)
    images = random.uniform(0, 0.3, (64, 28, 28))
    images[np.arange(64), 4 + 2 * labels] += 0.6
    return wf.data.Images((255 * images).astype("uint8"), labels)


def dataset(part, path="../shared/data/mnist"):
    """The 60,000 images to learn from, or the 10,000 to judge by."""
    return Digits(path, part)
