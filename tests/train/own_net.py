"""A net of somebody's own and its data, as a run's file calls them."""

import equinox as eqx
import numpy as np

import weft as wf
from weft import nn

FEATURES, CLASSES = wf.dims(features=8, classes=4)


class Net(eqx.Module):
    first: nn.Linear
    second: nn.Linear
    rate: float = eqx.field(static=True)

    def __init__(self, width, rate):
        hidden = wf.Dim("hidden", width)
        self.first, self.second = nn.Linear(FEATURES, hidden, bias=True), nn.Linear(hidden, CLASSES)
        self.rate = rate

    def loss(self, batch, key):
        h = wf.relu(self.first(batch["points"]))
        logits = self.second(h if key is None else wf.dropout(h, self.rate, key))
        right = wf.argmax(logits, over="classes") == batch["label"]
        losses = -wf.gather(wf.log_softmax(logits, over="classes"), spread(batch["label"]), over="classes")
        return wf.mean(losses, over=losses.dims), {"accuracy": wf.mean(wf.cast(right, "float32"), over="batch")}


def spread(label):
    return wf.broadcast(label, [*label.dims, wf.Dim("classes", 1)])


def make(width=16, rate=0.1):
    return Net(width, rate)


class Points:
    def __init__(self, seed, count):
        self.dims = {"points": "features"}
        draw = np.random.default_rng(seed)
        self.label = draw.integers(0, 4, count)
        self.points = draw.normal(size=(count, 8)) + 2 * np.eye(4, 8)[self.label]

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return {"points": self.points[i], "label": self.label[i]}


def dataset(part, count=60):
    return Points(0, count) if part == "train" else Points(1, 21)
