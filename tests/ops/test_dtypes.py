"""Every dtype and every odd value through every op that sends, along split dims.

A row is an op and the same in plain jnp. The whole equals jnp, and each layout equals the whole: in dtype, in NaN and
infinities, in the sign of zeros, and to the bit wherever no quotient or exponential is rounded. Columns are cases; the
ops go along the other dim, which is split. Sums are of small whole numbers, so that they are exact in every dtype.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

pytestmark = pytest.mark.filterwarnings("ignore::weft.WeftWarning")

n, c, q, few, top = wf.dims(n=8, c=8, q=8, few=4, top=3)
wide = n.resized(16)

LAYOUTS = [("x=4", "n:x"), ("a=2,b=2", "n:b+a,few:a"), ("a=2,b=2", "n:a,c:b"), ("x=2", "n:x,few:x")]
NARROW = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "bfloat16", "float16", "float32", "complex64"]
X64 = ["int64", "uint64", "float64", "complex128", "float32", "bool", "int32"]
FLOATS, INTEGERS, COMPLEX, BOOLEANS = "f", "i", "c", "b"
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float64": 2.0**-52, "complex128": 2.0**-52}


def kind(dtype: Any) -> str:
    if jnp.issubdtype(dtype, jnp.bool_):
        return BOOLEANS
    if jnp.issubdtype(dtype, jnp.integer):
        return INTEGERS
    return FLOATS if jnp.issubdtype(dtype, jnp.floating) else COMPLEX


def small(dtype: str, seed: int = 0) -> np.ndarray:
    """Small whole numbers with ties; the first columns all zeros, of either sign, and of both."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype.startswith("u") or dtype == "bool" else -3
    found = rng.integers(low, 4, (8, 8)).astype("float64")
    if kind(jnp.dtype(dtype)) in (FLOATS, COMPLEX):
        found[:, 0], found[:, 1], found[::3, 2] = -0.0, 0.0, -0.0
    if kind(jnp.dtype(dtype)) == COMPLEX:
        both = np.empty((8, 8), "complex128")
        both.real, both.imag = found, np.roll(found, 1, axis=1)
        return both.astype(dtype)
    return found.astype(jnp.dtype(dtype))


def odd(dtype: str) -> np.ndarray:
    """As `small`, with the extremes of the dtype, NaN and infinities in the other columns."""
    found = small(dtype, 1)
    if kind(found.dtype) == INTEGERS:
        limits = jnp.iinfo(dtype)
        found[1::3, 3], found[2::3, 3], found[6, 4] = limits.max, limits.min, limits.max
    if kind(found.dtype) in (FLOATS, COMPLEX):
        limits = jnp.finfo(dtype)
        found[5, 3], found[2, 4], found[6, 4], found[:, 5] = np.nan, np.inf, -np.inf, -np.inf
        found[:, 6], found[1, 6], found[6, 6] = 0, limits.max, limits.smallest_normal
    return found


ids = np.array([3, -0, 7, 5, -1, 8, 3, 2], "int32")
some = np.array([6, 1, 6, 9], "int32")
many = np.random.default_rng(3).integers(-1, 9, (16, 8)).astype("int32")


@dataclass(frozen=True)
class Row:
    """An op of tensors (by the names `x`, `y`, `odd`), the same of arrays, and which kinds of dtype it takes."""

    weft: Callable[..., Any]
    plain: Callable[..., Any]
    kinds: str = "bifc"
    given: str = "odd"
    rounds: float = 0
    """By how many units in the last place a result may be off."""
    zeros_alike: bool = False
    """Whether jnp says nothing of which of two zeros it gives."""


def took(array: Any, ids: Any) -> Any:
    found = jnp.take(array, jnp.clip(ids, 0, 7), axis=0)
    inside = ((ids >= 0) & (ids < 8)).reshape(-1, *[1] * (array.ndim - 1))
    return jnp.where(inside, found, jnp.zeros_like(found))


def gathered(array: Any, ids: Any) -> Any:
    found = jnp.take_along_axis(array, jnp.clip(ids, 0, 7), axis=0)
    return jnp.where((ids >= 0) & (ids < 8), found, jnp.zeros_like(found))


def scattered(array: Any, ids: Any, updates: Any) -> Any:
    added = jnp.zeros_like(array).at[jnp.where(ids < 0, 8, ids)].add(updates, mode="drop")
    return jnp.where(added == 0, array, array + added)


def ids_of(array: Any, *dims: wf.Dim) -> wf.Tensor:
    return wf.tensor(array, dims)


INDEX = {
    "take": Row(lambda x: wf.take(x, ids_of(ids, q), over="n"), lambda x: took(x, ids)),
    "one place": Row(lambda x: x["n", 5], lambda x: x[5]),
    "a traced place": Row(lambda x, at: x["n", at], lambda x, at: x[at], given="odd at"),
    "one value": Row(lambda x: x["n", 3, "c", 0], lambda x: x[3, 0]),
    "gather few": Row(
        lambda x: wf.gather(x, ids_of(many[:4], n.resized(4), c), over="n"), lambda x: gathered(x, many[:4])
    ),
    "gather many": Row(lambda x: wf.gather(x, ids_of(many, wide, c), over="n"), lambda x: gathered(x, many)),
    "scatter_add": Row(
        lambda x, y: wf.scatter_add(x, ids_of(ids, n), y, over="n"),
        lambda x, y: scattered(x, ids, y),
        kinds="ifc",
        given="x y",
    ),
    "scatter_add by other ids": Row(
        lambda x, y: wf.scatter_add(x, ids_of(some, q.resized(4)), y.rename(n=q)["q", :4], over="n"),
        lambda x, y: scattered(x, some, y[:4]),
        kinds="ifc",
        given="x y",
    ),
    "slice from a traced place": Row(
        lambda x, at: wf.slice(x, over="n", start=at, size=4), lambda x, at: x[3:7], given="odd at"
    ),
    "arange": Row(
        lambda x: wf.arange(wf.Dim("n", 512), like=x, dtype=x.dtype),
        lambda x: jnp.arange(512).astype(x.dtype),
        "fc",
    ),
    "one_hot": Row(
        lambda x: wf.one_hot(ids_of(ids, q), n, dtype=x.dtype),
        lambda x: (ids[:, None] == np.arange(8)).astype(x.dtype),
    ),
}


def alike(name: str, **how: Any) -> Row:
    plain = getattr(jnp, name, None) or getattr(jax.nn, name)
    return Row(lambda x: getattr(wf, name)(x, over="n"), lambda x: plain(x, axis=0), **how)


REDUCE = {
    "sum": alike("sum", given="x"),
    "sum of odd": alike("sum", zeros_alike=True, rounds=8),
    "sum in int32": Row(
        lambda x: wf.sum(x, over="n", dtype="int32"), lambda x: jnp.sum(x, axis=0, dtype="int32"), "bif", "x"
    ),
    "sum in bool": Row(
        lambda x: wf.sum(x, over="n", dtype="bool"), lambda x: jnp.sum(x, axis=0, dtype="bool"), "bif", "x"
    ),
    "sum into a split dim": Row(
        lambda x: wf.sum(x, over="n", rename={"c": wf.Dim("few", 8)}), lambda x: jnp.sum(x, axis=0), given="x"
    ),
    "mean": alike("mean", given="x", rounds=2),
    "mean in int32": Row(
        lambda x: wf.mean(x, over="n", dtype="int32"),
        lambda x: jnp.trunc(jnp.mean(x.astype("float32"), axis=0)).astype("int32"),
        "bif",
        "x",
    ),
    "mean in int8": Row(
        lambda x: wf.mean(x, over="n", dtype="int8"),
        lambda x: jnp.trunc(jnp.mean(x.astype("float32"), axis=0)).astype("int8"),
        "bif",
        "x",
    ),
    "max": alike("max", kinds="bif", zeros_alike=True),
    "min": alike("min", kinds="bif", zeros_alike=True),
    "max of complex": Row(
        lambda x: wf.max(x, over="n"), lambda x: np.max(np.asarray(x), axis=0), "c", "x", zeros_alike=True
    ),
    "min of complex": Row(
        lambda x: wf.min(x, over="n"), lambda x: np.min(np.asarray(x), axis=0), "c", "x", zeros_alike=True
    ),
    "max of odd complex": Row(lambda x: wf.isnan(wf.max(x, over="n")), lambda x: jnp.isnan(x).any(axis=0), "c"),
    "min of odd complex": Row(lambda x: wf.isnan(wf.min(x, over="n")), lambda x: jnp.isnan(x).any(axis=0), "c"),
    "prod": alike("prod", kinds="bif", given="x"),
    "prod of complex": alike("prod", kinds="c", given="x", zeros_alike=True),
    "any": alike("any"),
    "all": alike("all"),
    "var": alike("var", kinds="bif", given="x", rounds=4),
    "var of complex": alike("var", kinds="c", given="x", rounds=4),
    "logsumexp": Row(
        lambda x: wf.logsumexp(x, over="n"), lambda x: jax.nn.logsumexp(x.astype(float_of(x)), axis=0), "bif", rounds=16
    ),
    "logsumexp of complex": alike("logsumexp", kinds="c", given="x", rounds=16),
    "softmax": Row(
        lambda x: wf.softmax(x, over="n"), lambda x: jax.nn.softmax(x.astype(float_of(x)), axis=0), "bif", rounds=16
    ),
    "softmax of complex": alike("softmax", kinds="c", given="x", rounds=32),
    "log_softmax": Row(
        lambda x: wf.log_softmax(x, over="n"),
        lambda x: jax.nn.log_softmax(x.astype(float_of(x)), axis=0),
        "bif",
        rounds=16,
    ),
    "log_softmax of complex": alike("log_softmax", kinds="c", given="x", rounds=32),
    "einsum": Row(lambda x, y: wf.einsum(x, y, over="n"), lambda x, y: jnp.einsum("nc,nc->c", x, y), "ifc", "x y"),
    "einsum in int32": Row(
        lambda x, y: wf.einsum(x * 0.5, y, over="n", dtype="int32"),
        lambda x, y: jnp.trunc(jnp.einsum("nc,nc->c", x.astype("float32") * 0.5, y.astype("float32"))).astype("int32"),
        "f",
        "x y",
    ),
    "einsum in bool": Row(
        lambda x, y: wf.einsum(x, y, over="n", dtype="bool"),
        lambda x, y: jnp.einsum("nc,nc->c", x, y).astype("bool"),
        "if",
        "x y",
    ),
    "einsum in int8": Row(
        lambda x, y: wf.einsum(x, y, over="n", dtype="int8"),
        lambda x, y: jnp.einsum("nc,nc->c", x, y).astype("int8"),
        "if",
        "x y",
    ),
    "einsum into a split dim": Row(
        lambda x, y: wf.einsum(x, y, over="n", rename={"c": wf.Dim("few", 8)}),
        lambda x, y: jnp.einsum("nc,nc->c", x, y),
        "ifc",
        "x y",
    ),
    "local, summed": Row(
        lambda x: wf.local(lambda a: jnp.sum(a, axis=0, dtype=a.dtype), x, out="c", summed="n"),
        lambda x: jnp.sum(x, axis=0, dtype=x.dtype),
        given="x",
    ),
}


def running(name: str, **how: Any) -> Row:
    def plain(x: Any) -> Any:
        return getattr(jnp, name)(x, axis=0) if hasattr(jnp, name) else jax.lax.cummax(x, axis=0)

    return Row(
        lambda x: (getattr(wf, name)(x, over="n"), getattr(wf, name)(x, over="n", reverse=True)),
        lambda x: (plain(x), plain(x[::-1])[::-1]),
        **how,
    )


def run_max(a: Any) -> Any:
    """The largest so far, of equal ones the first: what `lax.cummax` means where zeros have signs."""
    rows, best = [], a[0]
    for row in a:
        best = row if row is a[0] else jnp.where((row > best) | (row != row) & (best == best), row, best)
        rows.append(best)
    return jnp.stack(rows)


ORDER = {
    "argmax": alike("argmax", kinds="bif"),
    "argmin": alike("argmin", kinds="bif"),
    "top_k": Row(
        lambda x: wf.top_k(x, over="n", k=top),
        lambda x: [a.T for a in jax.lax.top_k(x.T, 3)],
        "if",
    ),
    "sort": alike("sort", kinds="bif"),
    "sort of a row": Row(lambda x: wf.sort(x["c", 2], over="n"), lambda x: jnp.sort(x[:, 2]), "bif"),
    "sort of an odd row": Row(lambda x: wf.sort(x["c", 4], over="n"), lambda x: jnp.sort(x[:, 4]), "bif"),
    "cumsum": running("cumsum", given="x"),
    "cumprod": running("cumprod", kinds="bif", given="x"),
    "cumprod of complex": running("cumprod", kinds="c", given="x", zeros_alike=True),
    "cummax": Row(
        lambda x: (wf.cummax(x, over="n"), wf.cummax(x, over="n", reverse=True)),
        lambda x: (run_max(x), run_max(x[::-1])[::-1]),
        "bif",
    ),
    "associative_scan": Row(
        lambda x: wf.associative_scan(lambda a, b: a + b, x, over="n"),
        lambda x: jax.lax.associative_scan(jnp.add, x, axis=0),
        "ifc",
        "x",
    ),
}

MOVE = {
    "slice": Row(lambda x: x["n", 2:6], lambda x: x[2:6]),
    "every other": Row(lambda x: x["n", ::2], lambda x: x[::2]),
    "backwards": Row(lambda x: x["n", ::-1], lambda x: x[::-1]),
    "pad": Row(lambda x: wf.pad(x, over="n", before=3, after=5), lambda x: jnp.pad(x, [(3, 5), (0, 0)])),
    "pad with -0": Row(
        lambda x: wf.pad(x, over="n", before=3, after=5, value=-0.0),
        lambda x: jnp.pad(x, [(3, 5), (0, 0)], constant_values=-0.0),
        "f",
    ),
    "shift": Row(lambda x: wf.shift(x, over="n", by=3), lambda x: jnp.pad(x, [(3, 0), (0, 0)])[:8]),
    "shift, -0 coming in": Row(
        lambda x: wf.shift(x, over="n", by=-3, fill=-0.0),
        lambda x: jnp.pad(x, [(0, 3), (0, 0)], constant_values=-0.0)[3:],
        "f",
    ),
    "roll": Row(lambda x: wf.roll(x, over="n", by=3), lambda x: jnp.roll(x, 3, axis=0)),
    "flip": Row(lambda x: wf.flip(x, over="n"), lambda x: x[::-1]),
    "concat": Row(lambda x, y: wf.concat([x, y], over="n"), lambda x, y: jnp.concatenate([x, y]), given="odd y"),
    "update": Row(
        lambda x, y: wf.update(x, y["n", 2:6], over="n", at=3), lambda x, y: x.at[3:7].set(y[2:6]), given="odd y"
    ),
    "update at a traced place": Row(
        lambda x, y, at: wf.update(x, y["n", 1], over="n", at=at), lambda x, y, at: x.at[3].set(y[1]), given="odd y at"
    ),
    "gathered": Row(lambda x: x.rename(n="whole"), lambda x: x),
    "moved": Row(lambda x: x.rename(n="whole", c="n"), lambda x: x),
    "split": Row(lambda x: wf.split(x, n=[wf.Dim("h", 2), few]), lambda x: x.reshape(2, 4, 8)),
    "merge": Row(lambda x: wf.merge(x, "c n", into=wf.Dim("few", 64)), lambda x: x.T.reshape(64)),
    "stack": Row(lambda x, y: wf.stack([x, y], wf.Dim("h", 2)), lambda x, y: jnp.stack([x, y]), given="odd y"),
    "unstack": Row(lambda x: wf.unstack(x, over="n"), lambda x: tuple(x)),
    "max_pool": Row(
        lambda x: wf.max_pool(x, window={"n": 3}, stride=1, padding="SAME"),
        lambda x: jnp.max(jnp.stack([x, padded_lowest(x)[:-2], padded_lowest(x)[2:]]), axis=0),
        "if",
        zeros_alike=True,
    ),
    "avg_pool": Row(
        lambda x: wf.avg_pool(x, window={"n": 2}),
        lambda x: ((x[::2].astype(wide_float(x)) + x[1::2].astype(wide_float(x))) / 2).astype(float_of(x)),
        "if",
        "x",
        zeros_alike=True,
    ),
    "conv": Row(
        lambda x, y: wf.conv(x, y.rename(n="kn")["kn", :3], over={"n": "kn"}, channels=("c", "c"), groups=8),
        lambda x, y: sum(jnp.pad(x, [(1, 1), (0, 0)])[i : i + 8] * y[i] for i in range(3)).astype(x.dtype),
        "f",
        "x y",
        zeros_alike=True,
    ),
}


def float_of(x: Any) -> Any:
    return jax.eval_shape(jnp.mean, x).dtype


def wide_float(x: Any) -> Any:
    return jnp.promote_types(float_of(x), jnp.float32)


def padded_lowest(x: Any) -> Any:
    low = jnp.iinfo(x.dtype).min if kind(x.dtype) == INTEGERS else -jnp.inf
    return jnp.pad(x, [(1, 1), (0, 0)], constant_values=low)


FAMILIES = {"index": INDEX, "reduce": REDUCE, "order": ORDER, "move": MOVE}


def given(dtype: str) -> dict[str, np.ndarray]:
    return {"x": small(dtype), "y": small(dtype, 2), "odd": odd(dtype), "at": np.array(3, "int32")}


def rows_of(family: str, dtype: str) -> dict[str, Row]:
    return {name: row for name, row in FAMILIES[family].items() if kind(jnp.dtype(dtype)) in row.kinds}


def by_weft(rows: dict[str, Row], tensors: dict[str, wf.Tensor]) -> dict[str, Any]:
    return {name: row.weft(*(tensors[word] for word in row.given.split())) for name, row in rows.items()}


def tensors_of(dtype: str) -> dict[str, wf.Tensor]:
    return {name: wf.tensor(a, [n, c] if a.ndim else []) for name, a in given(dtype).items()}


@functools.cache
def whole(family: str, dtype: str) -> Any:
    """The family without a mesh, and in plain jnp."""
    rows, arrays = rows_of(family, dtype), given(dtype)
    mine = jax.jit(lambda tensors: by_weft(rows, tensors))(tensors_of(dtype))
    plain = {name: row.plain(*(jnp.asarray(arrays[word]) for word in row.given.split())) for name, row in rows.items()}
    return mine, plain


def differing(row: Row, got: Any, want: Any) -> str:
    """What tells two results of a row apart; nothing if they are alike."""
    is_tensor = lambda x: isinstance(x, wf.Tensor)  # noqa: E731
    mine, due = (
        [np.asarray(a.array if is_tensor(a) else a) for a in jax.tree.leaves(tree, is_leaf=is_tensor)]
        for tree in (got, want)
    )
    for a, b in zip(mine, due, strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.dtype}{a.shape} for {b.dtype}{b.shape}"
        for part, other in zip(parts(a), parts(b), strict=True):
            eps = EPS.get(str(a.dtype), 2.0**-23)
            finite = np.isfinite(other)
            scale = np.abs(other[finite]).max(initial=1.0) if row.rounds else 0
            near = np.isclose(part, other, rtol=0, atol=row.rounds * eps * scale, equal_nan=True)
            alike = (
                near
                if row.rounds or row.zeros_alike
                else near & ((np.signbit(part) == np.signbit(other)) | np.isnan(other))
            )
            if not alike.all():
                return f"at {np.argwhere(~alike)[0].tolist()}: {part[~alike][0]!r} for {other[~alike][0]!r}"
    return ""


def parts(a: np.ndarray) -> list[np.ndarray]:
    if a.dtype.kind == "c":
        return [a.real, a.imag]
    return [a.astype("float64") if a.dtype.kind in "fVb" else a]


def compare(family: str, dtype: str, got: Any, want: Any, whose: str) -> None:
    wrong = {name: differing(row, got[name], want[name]) for name, row in rows_of(family, dtype).items()}
    told = "\n".join(f"  {name}: {what}" for name, what in wrong.items() if what)
    assert not told, f"{dtype}, {whose}:\n{told}"


def split(family: str, dtype: str, mesh: str, layout: str) -> Any:
    """The family under a layout."""
    rows = rows_of(family, dtype)
    rules = wf.Layout(layout)
    if "few" in rules.rules and family not in ("reduce", "move"):  # no other has it
        rules = rules.drop("few")
    return wf.spmd(lambda tensors: by_weft(rows, tensors), mesh=mesh, layout=rules)(tensors_of(dtype))


def table(dtypes: list[str], quick: dict[str, list[str]]) -> list[Any]:
    """Every dtype, family and layout; all but the quick ones, which lie over two axes, are left to the slow run."""
    return [
        pytest.param(family, dtype, *at, id=f"{family} {dtype} {at[1]}", marks=() if is_quick else pytest.mark.slow)
        for family in FAMILIES
        for dtype in dtypes
        for at in LAYOUTS
        for is_quick in [dtype in quick.get(family, ()) and at == LAYOUTS[1]]
    ]


QUICK = {
    "index": ["float32", "bool", "bfloat16"],
    "reduce": ["float32", "complex64"],
    "order": ["float32"],
    "move": ["float32"],
}


@pytest.mark.quick(
    "index bfloat16 n:b+a,few:a", "reduce float32 n:b+a,few:a", "order float32 n:b+a,few:a", "move float32 n:b+a,few:a"
)
@pytest.mark.parametrize("family, dtype, mesh, layout", table(NARROW, QUICK))
def test_every_dtype_and_odd_value_is_sent_as_it_is(family, dtype, mesh, layout):
    mine, plain = whole(family, dtype)
    compare(family, dtype, mine, plain, "the whole against jnp")
    compare(family, dtype, split(family, dtype, mesh, layout), mine, f"{layout} against the whole")


@pytest.mark.slow
@pytest.mark.parametrize("family, dtype, mesh, layout", table(X64, {}))
def test_so_it_is_in_64_bits(family, dtype, mesh, layout):
    with jax.enable_x64(True):
        rows, arrays = rows_of(family, dtype), given(dtype)
        mine = jax.jit(lambda tensors: by_weft(rows, tensors))(tensors_of(dtype))
        plain = {n: row.plain(*(jnp.asarray(arrays[word]) for word in row.given.split())) for n, row in rows.items()}
        compare(family, dtype, mine, plain, "the whole against jnp")
        compare(family, dtype, split(family, dtype, mesh, layout), mine, f"{layout} against the whole")


def test_gradients_of_a_product_summed_in_f32_are_products_of_narrow_floats_again():
    x, w = (
        wf.tensor(np.ones((8, 8), jnp.bfloat16), [wf.Dim("length", 8), wf.Dim(name, 8)]) for name in ("rows", "columns")
    )

    def loss(x, w):
        return wf.sum(wf.square(wf.einsum(x, w, over="length", dtype="float32")), over="rows columns")

    text = str(jax.make_jaxpr(lambda x, w: jax.tree.leaves(wf.grad(loss, argnums=(0, 1))(x, w)))(x, w))
    products = re.findall(r":(\w+)\[[^\n]*\] = dot_general\[", text)
    assert products.count("f32") == 1 and products.count("bf16") >= 2
