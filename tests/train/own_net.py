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


class Flow:
    """Points one after the other, without end, drawn from a generator whose state is kept."""

    def __init__(self, seed=0):
        self.dims = {"points": "features"}
        self.draw = np.random.default_rng(seed)

    def __iter__(self):
        while True:
            label = int(self.draw.integers(4))
            yield {"points": self.draw.normal(size=8) + 2 * np.eye(4, 8)[label], "label": label}

    def state(self):
        return self.draw.bit_generator.state

    def restore(self, state):
        self.draw.bit_generator.state = state


class Stateless:
    """The same, which cannot be gone on with; of ten rows."""

    def __init__(self):
        self.dims = {"points": "features"}

    def __iter__(self):
        return (row for row, _ in zip(Flow(1), range(10), strict=False))


class Late(Flow):
    """One that counts a row only after it was given: a row comes twice."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.at = 0

    def __iter__(self):
        while True:
            yield {"points": np.full(8, float(self.at)), "label": 0}
            self.at += 1

    def state(self):
        return self.at

    def restore(self, state):
        self.at = state


class Numbered(Late):
    """One whose state JSON does not take."""

    def state(self):
        return np.int64(self.at)


def flow(part):
    return Flow() if part == "train" else Stateless()


def stateless(part):
    return Stateless()


def late(part):
    return Late()


def numbered(part):
    return Numbered()


def tokens(part, count=12):
    """Rows that a language model of the library reads."""
    draw = np.random.default_rng(len(part))
    rows = [draw.integers(1, 16, 9) for _ in range(count if part == "train" else 5)]
    return [{"inputs": row[:-1], "targets": row[1:]} for row in rows]
