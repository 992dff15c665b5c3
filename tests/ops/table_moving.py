"""Rows of the contract table for what moves stretches of a dim, and cuts and joins dims."""

import jax.numpy as jnp
import numpy as np
from jax import lax

import weft as wf
from tests.ops.table import batch, floats, heads, integers, row, weights

_x = "batch length d_model"

row("moving", "slice", floats(_x), lambda x: wf.slice(x, over="batch", start=5, size=8), lambda x: x[5:13])
row("moving", "slice all", floats(_x), lambda x: wf.slice(x, over=batch, start=0, size=16), lambda x: x)
row("moving", "slice ids", integers(_x), lambda x: wf.slice(x, over="batch", start=8, size=8), lambda x: x[8:],
    is_differentiable=False)  # fmt: skip
row("moving", "slice stored", weights("vocab d_model"), lambda w: wf.slice(w, over="vocab", start=7, size=16),
    lambda w: w[7:23])  # fmt: skip


def _traced_start() -> wf.Tensor:
    return wf.tensor(np.asarray(3, "int32"), [])


row("moving", "slice traced", (floats(_x), _traced_start()),
    lambda x, at: wf.slice(x, over="batch", start=at, size=8),
    lambda x, at: lax.dynamic_slice_in_dim(x, at, 8, 0))  # fmt: skip
row("moving", "pad", floats(_x), lambda x: wf.pad(x, over="length", before=3, after=5),
    lambda x: jnp.pad(x, ((0, 0), (3, 5), (0, 0))))  # fmt: skip
row("moving", "pad value", floats(_x), lambda x: wf.pad(x, over="batch", before=8, value=1.5),
    lambda x: jnp.pad(x, ((8, 0), (0, 0), (0, 0)), constant_values=1.5))  # fmt: skip
row("moving", "shift", floats(_x), lambda x: wf.shift(x, over="length", by=1),
    lambda x: jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :8])  # fmt: skip
row("moving", "shift back", floats(_x), lambda x: wf.shift(x, over="batch", by=-3, fill=2.0),
    lambda x: jnp.pad(x, ((0, 3), (0, 0), (0, 0)), constant_values=2.0)[3:])  # fmt: skip
row("moving", "shift far", floats(_x), lambda x: wf.shift(x, over="length", by=11), lambda x: jnp.zeros_like(x))
row("moving", "roll", floats(_x), lambda x: wf.roll(x, over="length", by=3), lambda x: jnp.roll(x, 3, 1))
row("moving", "roll back", floats(_x), lambda x: wf.roll(x, over="batch", by=-5), lambda x: jnp.roll(x, -5, 0))
row("moving", "flip", floats(_x), lambda x: wf.flip(x, over="length"), lambda x: jnp.flip(x, 1))
row("moving", "concat", (floats(_x), floats("batch d_model length")),
    lambda x, y: wf.concat([x, y], over="length"),
    lambda x, y: jnp.concatenate([x, jnp.transpose(y, (0, 2, 1))], 1))  # fmt: skip
row("moving", "concat uneven", (floats(_x), floats(_x)),
    lambda x, y: wf.concat([wf.slice(x, over="batch", start=3, size=8), y], over="batch"),
    lambda x, y: jnp.concatenate([x[3:11], y], 0))  # fmt: skip
row("moving", "update", (floats(_x), floats("batch d_model"), _traced_start()),
    lambda x, new, at: wf.update(x, new, over="length", at=at),
    lambda x, new, at: x.at[:, 3].set(new))  # fmt: skip
row("moving", "update stretch", (floats("batch d_model"), floats("length d_model")),
    lambda x, y: wf.update(x, y.rename(length="batch"), over="batch", at=5),
    lambda x, y: x.at[5:13].set(y))  # fmt: skip
row("moving", "slice by index", floats(_x), lambda x: x["batch", 4:12], lambda x: x[4:12])
row("moving", "slice every other", floats(_x), lambda x: x["batch", ::2], lambda x: x[::2])
row("moving", "slice backwards by steps", floats(_x), lambda x: x["batch", 14:-17:-2], lambda x: x[14::-2])
row("moving", "take by index", floats(_x), lambda x: x["length", -2, "batch", :8], lambda x: x[:8, -2])

pair, rest, both = wf.dims(pair=2, rest=8, both=64)
row("moving", "split", floats(_x), lambda x: wf.split(x, batch=[wf.Dim("outer", 2), rest]),
    lambda x: x.reshape(2, 8, 8, 8))  # fmt: skip
row("moving", "split to its own", floats(_x), lambda x: wf.split(x, batch=[heads, pair]),
    lambda x: x.reshape(8, 2, 8, 8), meetings=(_x, "heads length d_model"))  # fmt: skip
row("moving", "split back", floats(_x), lambda x: wf.split(x, batch=[pair, heads]),
    lambda x: x.reshape(2, 8, 8, 8), meetings=(_x, "heads length d_model"))  # fmt: skip
row("moving", "merge", floats(_x), lambda x: wf.merge(x, ["length", "d_model"], into=both),
    lambda x: x.reshape(16, 64))  # fmt: skip
row("moving", "merge swapped", floats(_x), lambda x: wf.merge(x, ["d_model", "batch"], into=wf.Dim("both", 128)),
    lambda x: jnp.transpose(x, (2, 0, 1)).reshape(128, 8))  # fmt: skip
row("moving", "merge into a split dim", floats("heads length"),
    lambda x: wf.merge(x, ["heads", "length"], into=wf.Dim("batch", 64)),
    lambda x: x.reshape(64), meetings=("heads length", "batch"))  # fmt: skip
row("moving", "stack", (floats("batch length"), floats("length batch")),
    lambda x, y: wf.stack([x, y], pair), lambda x, y: jnp.stack([x, y.T]))  # fmt: skip
row("moving", "stack split", tuple(floats("batch d_model") for _ in range(8)),
    lambda *xs: wf.stack(list(xs), heads), lambda *xs: jnp.stack(xs),
    meetings=("batch d_model", "heads batch d_model"))  # fmt: skip
row("moving", "unstack", floats(_x), lambda x: wf.unstack(x, over="length"),
    lambda x: tuple(x[:, i] for i in range(8)))  # fmt: skip
row("moving", "unstack stored", weights("vocab d_model"), lambda w: wf.unstack(w, over="d_model")[3], lambda w: w[:, 3])
