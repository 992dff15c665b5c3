"""The contract's rows for order along a dim, scattered access, and what is sampled with them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import weft as wf
from tests.ops.table import (
    _LD,
    DIMS,
    _fresh,
    _key,
    _random,
    _x,
    batch,
    booleans,
    floats,
    integers,
    layers,
    row,
    weights,
)

# ---- order along a dim

_top = wf.Dim("top", 3)
for _over, _axis in (("batch", 0), ("length", 1), ("d_model", 2)):
    for _name in ("argmax", "argmin"):
        row("order", f"{_name} over {_over}", floats(_x), partial(getattr(wf, _name), over=_over),
            partial(getattr(jnp, _name), axis=_axis), is_differentiable=False)  # fmt: skip
        row("order", f"{_name} ties over {_over}", integers(_x, 0, 3), partial(getattr(wf, _name), over=_over),
            partial(getattr(jnp, _name), axis=_axis), is_differentiable=False)  # fmt: skip
    row("order", f"top_k over {_over}", floats(_x), partial(wf.top_k, over=_over, k=_top),
        lambda x, axis=_axis: tuple(lax.top_k(x, 3, axis=axis)))  # fmt: skip
    for _reverse in (False, True):
        _how = f"{' reverse' if _reverse else ''} over {_over}"
        row("order", f"cumsum{_how}", floats(_x), partial(wf.cumsum, over=_over, reverse=_reverse),
            lambda x, axis=_axis, r=_reverse: lax.cumsum(x, axis, reverse=r), sums=_over)  # fmt: skip
        row("order", f"cumprod{_how}", floats(_x, 0.8, 1.25), partial(wf.cumprod, over=_over, reverse=_reverse),
            lambda x, axis=_axis, r=_reverse: lax.cumprod(x, axis, reverse=r), sums=_over)  # fmt: skip
        row("order", f"cummax{_how}", floats(_x), partial(wf.cummax, over=_over, reverse=_reverse),
            lambda x, axis=_axis, r=_reverse: lax.cummax(x, axis, reverse=r), sums=_over)  # fmt: skip
    row("order", f"sort over {_over}", floats(_x), partial(wf.sort, over=_over), partial(jnp.sort, axis=_axis))
for _name in ("argmax", "argmin"):
    row("order", f"{_name} bool", booleans(_x), partial(getattr(wf, _name), over="length"),
        partial(getattr(jnp, _name), axis=1), is_differentiable=False)  # fmt: skip
    row("order", f"{_name} alone", floats("vocab"), partial(getattr(wf, _name), over="vocab"), getattr(jnp, _name),
        is_differentiable=False)  # fmt: skip
row("order", "argmax parameter", weights("d_model vocab"), partial(wf.argmax, over="vocab"),
    partial(jnp.argmax, axis=1), is_differentiable=False)  # fmt: skip
row("order", "argmax bf16", floats(_x, dtype="bfloat16"), partial(wf.argmax, over="length"),
    partial(jnp.argmax, axis=1), is_differentiable=False)  # fmt: skip
row("order", "top_k parameter", weights("d_model vocab"), partial(wf.top_k, over="vocab", k=_top),
    lambda w: tuple(lax.top_k(w, 3)))  # fmt: skip
row("order", "top_k all", floats("batch vocab"), partial(wf.top_k, over="vocab", k=wf.Dim("top", 24)),
    lambda x: tuple(lax.top_k(x, 24)))  # fmt: skip
row("order", "top_k same name", floats("batch vocab"),
    lambda x: wf.top_k(x, over="vocab", k=wf.Dim("vocab", 8))[0] * wf.arange(wf.Dim("vocab", 8)),
    lambda x: lax.top_k(x, 8)[0] * jnp.arange(8), meetings=("batch vocab",))  # fmt: skip
row("order", "top_k to a split dim", floats("batch vocab"), partial(wf.top_k, over="vocab", k=wf.Dim("heads", 8)),
    lambda x: tuple(lax.top_k(x, 8)), meetings=("batch vocab", "batch heads"))  # fmt: skip
row("order", "top_k ties", integers(_x, 0, 3, "int8"), partial(wf.top_k, over="length", k=_top),
    lambda x: tuple(lax.top_k(x, 3, axis=1)), is_differentiable=False)  # fmt: skip
row("order", "cumsum int", integers(_x, dtype="int8"), partial(wf.cumsum, over="length"), partial(jnp.cumsum, axis=1),
    is_differentiable=False)  # fmt: skip
row("order", "cumsum bool", booleans(_x), lambda x: (wf.cumsum(x, over="length"), wf.cumprod(x, over="length")),
    lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 1)), is_differentiable=False)  # fmt: skip
row("order", "cumsum bf16", floats(_x, dtype="bfloat16"), partial(wf.cumsum, over="length"),
    partial(jnp.cumsum, axis=1), sums="length")  # fmt: skip
row("order", "cumsum parameter", weights("length d_model"), partial(wf.cumsum, over="d_model"),
    partial(jnp.cumsum, axis=1), sums="d_model")  # fmt: skip
row("order", "cummax int", integers(_x), partial(wf.cummax, over="length"), partial(lax.cummax, axis=1),
    is_differentiable=False)  # fmt: skip
row("order", "cummax bool", booleans(_x), partial(wf.cummax, over="length"),
    lambda x: lax.cummax(x.astype("int32"), axis=1).astype(bool), is_differentiable=False)  # fmt: skip
row("order", "sort alone", floats("vocab"), partial(wf.sort, over="vocab"), jnp.sort)
row("order", "sort ties", integers("batch d_model", 0, 3), partial(wf.sort, over="d_model"), partial(jnp.sort, axis=1),
    is_differentiable=False)  # fmt: skip
row("order", "sort parameter", weights("d_model vocab"),
    lambda w: (wf.sort(w, over="d_model"), wf.sort(w, over="vocab")),
    lambda w: (jnp.sort(w, 0), jnp.sort(w, 1)))  # fmt: skip
row("order", "sort bool", booleans(_x), partial(wf.sort, over="length"), partial(jnp.sort, axis=1),
    is_differentiable=False)  # fmt: skip
row("order", "sort in scan", floats("layers batch d_model"),
    lambda xs: wf.scan(lambda c, x: (c + wf.cumsum(wf.sort(x, over="batch"), over="batch"), wf.argmax(x, over="batch")),
                       wf.zeros(xs.dims.without(["layers"])), xs, over="layers"),
    lambda xs: (jnp.sum(jnp.cumsum(jnp.sort(xs, 1), 1), 0), jnp.argmax(xs, 1)), whole="layers",
    sums="layers batch", meetings=("batch d_model", "layers batch d_model"))  # fmt: skip
row("order", "top_k in vmap", floats(_x),
    lambda x: wf.vmap(lambda x: (wf.top_k(x, over="d_model", k=_top), wf.cummax(x, over="d_model")), over="batch")(x),
    lambda x: (tuple(lax.top_k(x, 3)), lax.cummax(x, axis=2)), sums="d_model")  # fmt: skip

# ---- prefixes under a function of one's own


def _linear(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]


def _recurrence(decay: Any, inputs: Any, axis: int) -> Any:
    return tuple(lax.associative_scan(_linear, (decay, inputs), axis=axis))


for _over, _axis in (("batch", 0), ("length", 1), ("d_model", 2)):
    row("prefixes", f"associative_scan over {_over}", (floats(_x, 0.5, 1), floats(_x)),
        lambda a, x, over=_over: wf.associative_scan(_linear, (a, x), over=over), partial(_recurrence, axis=_axis),
        sums=_over)  # fmt: skip
row("prefixes", "associative_scan parameter", weights("length d_model"),
    lambda w: wf.associative_scan(lambda a, b: {"w": wf.sin(a["w"]) * 0 + a["w"] + b["w"]}, {"w": w}, over="d_model"),
    lambda w: {"w": jnp.cumsum(w, 1)}, sums="d_model")  # fmt: skip
row("prefixes", "associative_scan order", (floats("length batch d_model"), integers("batch length")),
    lambda x, n: wf.associative_scan(lambda a, b: (b[0], a[1] + b[1]), (x, n), over="length"),
    lambda x, n: (x, jnp.cumsum(n, 1)))  # fmt: skip
row("prefixes", "associative_scan matrices", floats("length heads heads_whole", -0.5, 0.5),
    lambda x: wf.associative_scan(
        lambda a, b: wf.einsum(a.rename(heads_whole="middle"), b.rename(heads="middle"), over="middle",
                               ), x, over="length"),
    lambda x: lax.associative_scan(lambda a, b: jnp.einsum("nij,njk->nik", a, b), x), sums="length heads")  # fmt: skip
row("prefixes", "associative_scan closed over", (floats("length d_model"), weights("d_model")),
    lambda x, w: wf.associative_scan(lambda a, b: a + b + w * a * b, x, over="length"),
    lambda x, w: lax.associative_scan(lambda a, b: a + b + w * a * b, x), sums="length")  # fmt: skip
row("prefixes", "associative_scan in vmap", (floats(_x, 0.5, 1), floats(_x)),
    lambda a, x: wf.vmap(lambda a, x: wf.associative_scan(_linear, (a, x), over="length")[1], over="batch")(a, x),
    lambda a, x: _recurrence(a, x, 1)[1], sums="length")  # fmt: skip

# ---- reading and adding at indices along the dim itself


def _along(x: Any, ids: Any, axis: int) -> Any:
    size = x.shape[axis]
    picked = jnp.take_along_axis(x, jnp.clip(ids, 0, size - 1), axis=axis)
    return jnp.where((ids >= 0) & (ids < size), picked, 0)


def _ids(dims: str, low: int, high: int, **sizes: int) -> wf.Tensor:
    """Ids whose dims have some other sizes than in the table."""
    shape = [DIMS[name].resized(sizes.get(name, DIMS[name].size)) for name in dims.split()]
    return wf.tensor(_random.integers(low, high, [dim.size for dim in shape]).astype("int32"), shape)


def _values(dims: str, **sizes: int) -> wf.Tensor:
    ids = _ids(dims, 0, 2, **sizes)
    return wf.tensor(_random.normal(size=ids.array.shape).astype("float32"), ids.dims)


row("scatter", "gather", (floats("batch vocab"), integers("batch vocab", 0, 24)), partial(wf.gather, over="vocab"),
    partial(_along, axis=1))  # fmt: skip
row("scatter", "gather few", (floats("batch vocab"), _ids("batch vocab", -5, 30, vocab=8)),
    partial(wf.gather, over="vocab"), partial(_along, axis=1))  # fmt: skip
row("scatter", "gather many outside", (floats("d_model vocab"), _ids("d_model vocab", -9, 33, vocab=48)),
    partial(wf.gather, over="vocab"), partial(_along, axis=1))  # fmt: skip
row("scatter", "gather over batch", (floats(_x), _ids("d_model batch length", -2, 18, batch=8)),
    partial(wf.gather, over="batch"), lambda x, ids: _along(x, jnp.transpose(ids, (1, 2, 0)), 0))  # fmt: skip
row("scatter", "gather the same for all", (floats(_x), _ids("length", -2, 10, length=16)),
    partial(wf.gather, over="length"), lambda x, ids: _along(x, ids[None, :, None], 1))  # fmt: skip
row("scatter", "gather more dims", (floats("batch d_model"), _ids("batch length", 0, 16, batch=8)),
    partial(wf.gather, over="batch"), lambda x, ids: x[ids])  # fmt: skip
row("scatter", "gather parameter", (weights("vocab d_model"), _ids("vocab d_model", 0, 24, vocab=8)),
    partial(wf.gather, over="vocab"), partial(_along, axis=0))  # fmt: skip
row("scatter", "gather ints", (integers("batch vocab"), _ids("batch vocab", -5, 30, vocab=8)),
    partial(wf.gather, over="vocab"), partial(_along, axis=1), is_differentiable=False)  # fmt: skip
row("scatter", "gather in vmap", (floats("batch vocab"), integers("batch vocab", -5, 30)),
    wf.vmap(partial(wf.gather, over="vocab"), over="batch"), partial(_along, axis=1))  # fmt: skip


def _add_at(x: Any, ids: Any, updates: Any) -> Any:
    return x.at[jnp.where(ids < 0, x.shape[0], ids)].add(updates, mode="drop")


row("scatter", "scatter_add", (weights("vocab d_model"), integers("batch", -3, 30), floats("batch d_model")),
    partial(wf.scatter_add, over="vocab"), _add_at, sums="batch",
    meetings=("vocab d_model", "batch d_model"))  # fmt: skip
row("scatter", "scatter_add two dims",
    (floats("vocab d_model"), integers("batch length", -3, 30), floats("d_model length batch")),
    partial(wf.scatter_add, over="vocab"),
    lambda x, ids, u: _add_at(x, ids, jnp.transpose(u, (2, 1, 0))), sums="batch length",
    meetings=("vocab d_model", "batch length d_model"))  # fmt: skip
row("scatter", "scatter_add along itself",
    (floats("vocab d_model"), _ids("vocab", -3, 30, vocab=8), _values("vocab d_model", vocab=8)),
    partial(wf.scatter_add, over="vocab"), _add_at, sums="vocab")  # fmt: skip
row("scatter", "scatter_add many along itself",
    (floats("vocab d_model"), _ids("vocab", -3, 30, vocab=48), _values("vocab d_model", vocab=48)),
    partial(wf.scatter_add, over="vocab"), _add_at, sums="vocab batch")  # fmt: skip
row("scatter", "scatter_add shared dim",
    (floats("d_model batch vocab"), _ids("batch vocab", -3, 30, vocab=8), _values("batch d_model vocab", vocab=8)),
    partial(wf.scatter_add, over="vocab"),
    lambda x, ids, u: jnp.transpose(
        jax.vmap(_add_at)(jnp.transpose(x, (1, 2, 0)), ids, jnp.transpose(u, (0, 2, 1))), (2, 0, 1)),
    sums="vocab")  # fmt: skip
row("scatter", "scatter_add numbers", (integers("vocab"), integers("batch length", -3, 30), integers("batch length")),
    partial(wf.scatter_add, over="vocab"), _add_at, is_differentiable=False,
    meetings=("vocab", "batch length"))  # fmt: skip
row("scatter", "scatter_add bf16",
    (floats("vocab d_model", dtype="bfloat16"), integers("batch", -3, 30), floats("batch d_model", dtype="bfloat16")),
    partial(wf.scatter_add, over="vocab"), _add_at, sums="batch",
    meetings=("vocab d_model", "batch d_model"))  # fmt: skip

# ---- samples

_SAMPLERS: dict[str, tuple[Any, Any]] = {
    "random.gumbel": (lambda like: wf.random.gumbel(_key(), _LD, like=like),
                      lambda: jax.random.gumbel(_key(), (8, 8))),
    "random.gumbel bf16": (lambda like: wf.random.gumbel(_key(), _LD, like=like, dtype="bfloat16"),
                           lambda: jax.random.gumbel(_key(), (8, 8), "bfloat16")),
    "random.randint": (lambda like: wf.random.randint(_key(), _LD, like=like, minval=-3, maxval=11),
                       lambda: jax.random.randint(_key(), (8, 8), -3, 11)),
    "random.randint uint8": (
        lambda like: wf.random.randint(_key(), _LD, like=like, minval=0, maxval=256, dtype="uint8"),
        lambda: jax.random.randint(_key(), (8, 8), 0, 256, "uint8")),
}  # fmt: skip
for _name, (_make, _plain) in _SAMPLERS.items():
    row("samples", _name, floats(_x), *_fresh(_make, _plain))
for _over, _axis in (("batch", 0), ("length", 1), ("d_model", 2)):
    row("samples", f"random.categorical over {_over}", floats(_x, -1, 1),
        lambda x, over=_over: wf.random.categorical(_key(), x, over=over),
        lambda x, axis=_axis: jax.random.categorical(_key(), x, axis), is_differentiable=False)  # fmt: skip
row("samples", "random.categorical vocab", weights("d_model vocab"),
    lambda x: wf.random.categorical(_key(), x, over="vocab"), lambda x: jax.random.categorical(_key(), x),
    is_differentiable=False)  # fmt: skip


def _noisy(keys: Any, x: Any) -> Any:
    return jax.vmap(lambda k, x: x * jax.random.normal(k, x.shape))(keys, x)


row("samples", "random.split scanned", floats("layers batch d_model"),
    lambda x: wf.scan(lambda c, t: (c, t[1] * wf.random.normal(t[0], t[1].dims, like=t[1])), 0,
                      (wf.random.split(_key(), layers), x), over="layers")[1],
    lambda x: _noisy(jax.random.split(_key(), 8), x), whole="layers",
    meetings=("batch d_model", "layers batch d_model"))  # fmt: skip
row("samples", "random.split mapped", floats("batch length d_model"),
    lambda x: wf.vmap(lambda k, x: x * wf.random.normal(k, x.dims, like=x), over="batch")(
        wf.random.split(_key(), batch), x),
    lambda x: _noisy(jax.random.split(_key(), 16), x))  # fmt: skip
