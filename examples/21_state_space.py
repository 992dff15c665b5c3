"""A state-space model: a linear recurrence by `wf.associative_scan`, its sequence split over processors.

Run it: `python examples/21_state_space.py`. It learns the sum of two memories of a signal that fade, one fast, one
slow. Each processor scans its own stretch, and small exchanges join them. It fails if a loss differs.
"""

import sys

import equinox as eqx
import jax
import numpy as np
import optax

import weft as wf
from weft import nn

EIGHT = wf.Mesh("x=4,y=2")
LAYOUTS = {"one processor": ("all=1", "batch:all"), "sequence": (EIGHT, "batch:y,length:x"),
           "sequence and state": (EIGHT, "length:x,state:y,hidden:y")}  # fmt: skip
signal, width, hidden, state = wf.dims(signal=1, width=16, hidden=32, state=64)


def decays(key, dims, like=None):
    """First values of a weight: half-lives between 3 and 300 places."""
    return np.log(np.log(2)) - wf.random.uniform(key, dims, like=like, minval=np.log(3), maxval=np.log(300))


class Recurrence(eqx.Module):  # s[t] = a s[t-1] + B x[t]; y[t] = C s[t]
    rate: nn.Weight
    into: nn.Linear
    out: nn.Linear

    def __init__(self):
        self.rate, self.into = nn.Weight([state], init=decays), nn.Linear(width, state)
        self.out = nn.Linear(state, width, stddev=0.02)

    def __call__(self, x):
        enters = self.into(x)
        keep = wf.broadcast(wf.exp(-wf.exp(self.rate)), enters.dims)
        _, states = wf.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (keep, enters), over="length")
        return self.out(states)


class Model(eqx.Module):
    parts: nn.Sequential

    def __init__(self):
        self.parts = nn.Sequential([nn.Linear(signal, width), Recurrence(), nn.MLP([width, hidden, signal])])

    def loss(self, batch, key):
        return wf.mean((self.parts(batch["x"]) - batch["y"]) ** 2, over="batch length signal")


def draw():
    x = np.random.default_rng(0).choice([-1.0, 1.0], (8, 64, 1))
    fast, slow = np.zeros_like(x), np.zeros_like(x)
    for t in range(64):
        fast[:, t], slow[:, t] = 0.7 * fast[:, t - 1] + 0.3 * x[:, t], 0.97 * slow[:, t - 1] + 0.1 * x[:, t]
    return {name: wf.tensor(np.float32(a), "batch length signal") for name, a in {"x": x, "y": fast + slow}.items()}


def main(steps=40):
    batch = draw()
    wanted = None
    for name, (mesh, layout) in LAYOUTS.items():
        step = wf.train_step(Model.loss, optax.adam(1e-2), mesh=mesh, layout=layout)
        given = step.init(nn.init(Model(), jax.random.key(0), mesh, layout, dims="batch length"))
        losses = []
        for _ in range(steps):
            given, metrics = step(given, batch)
            losses.append(float(metrics["loss"]))
        print(f"{name:19} {layout:26} loss", *(f"{loss:.4f}" for loss in losses[9::10]))
        if not np.allclose(losses, wanted := wanted or losses, rtol=1e-3):
            sys.exit(f"FAILED: the loss differs under {name}")


if __name__ == "__main__":
    main()
