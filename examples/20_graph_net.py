"""A graph network: nodes and edges split over processors, messages by `take` and `scatter_add`.

Run it: `python examples/20_graph_net.py`. It tells apart four communities by whom their members are linked to.
"""

import sys

import equinox as eqx
import jax
import numpy as np
import optax

import weft as wf
from weft import nn

EIGHT = wf.Mesh("x=8")
LAYOUTS = {"one processor": ("all=1", "node:all"), "nodes and edges": (EIGHT, "node:x,edge:x"),
           "edges alone": (EIGHT, "edge:x"), "features": (EIGHT, "hidden:x")}  # fmt: skip
node, edge, features, hidden, classes = wf.dims(node=256, edge=2048, features=8, hidden=32, classes=4)


class Messages(eqx.Module):
    message: nn.Linear
    norm: nn.RMSNorm

    def __init__(self):
        self.message, self.norm = nn.Linear(hidden, hidden), nn.RMSNorm(hidden)

    def __call__(self, h, graph):
        sent = wf.take(self.message(self.norm(h)), graph["source"], over="node")
        received = wf.scatter_add(wf.zeros(h.dims, like=h), graph["target"], sent, over="node")
        return h + wf.relu(received / graph["degree"])  # the mean of what its neighbours send


class GraphNet(eqx.Module):
    first: nn.Linear
    layers: nn.Stacked
    last: nn.Linear

    def __init__(self, layers):
        self.first, self.last = nn.Linear(features, hidden, bias=True), nn.Linear(hidden, classes)
        self.layers = nn.Stacked(Messages(), wf.Dim("layers", layers))

    def loss(self, graph, key):
        logits = self.last(self.layers(wf.relu(self.first(graph["features"])), graph))
        losses = nn.cross_entropy(logits, graph["label"], over="classes")[0]
        return wf.sum(losses * graph["known"], over="node") / wf.sum(graph["known"], over="node")


def draw():
    """A random graph: nine of ten edges stay within a community; one label in four is known."""
    random = np.random.default_rng(0)
    label, target = random.integers(0, 4, node.size), random.integers(0, node.size, edge.size)
    within = [random.choice(np.flatnonzero(label == label[i])) for i in target]
    source = np.where(random.random(edge.size) < 0.9, within, random.integers(0, node.size, edge.size))
    degree = np.maximum(np.bincount(target, minlength=node.size), 1)
    seen = random.normal(size=[node.size, features.size]) + 0.5 * np.eye(4, features.size)[label]
    arrays = {"features": seen, "degree": degree, "known": random.random(node.size) < 0.25}
    graph = {name: wf.tensor(np.float32(x), "node features".split()[: x.ndim]) for name, x in arrays.items()}
    ids = {"source": (source, edge), "target": (target, edge), "label": (label, node)}
    return graph | {name: wf.tensor(np.int32(x), [dim]) for name, (x, dim) in ids.items()}


def main(steps=30):
    graph, wanted = draw(), None
    for name, (mesh, layout) in LAYOUTS.items():
        step = wf.train_step(GraphNet.loss, optax.adam(1e-2), mesh=mesh, layout=layout)
        state = step.init(nn.init(GraphNet(2), jax.random.key(0), mesh, layout, dims="node edge"))
        sent, losses = wf.trace(step, state, graph, None).ledger.bytes(), []
        while len(losses) < steps:
            state, metrics = step(state, graph)
            losses.append(float(metrics["loss"]))
        print(f"{name:16} {layout:15} loss", *(f"{loss:.4f}" for loss in losses[9::10]), f"  {sent:9,} bytes a step")
        if not np.allclose(losses, wanted := wanted or losses, rtol=5e-4):  # float32 sums in another order
            sys.exit(f"FAILED: the loss differs under {name}")


if __name__ == "__main__":
    main()
