"""The contract: every op, under every placement, equals plain jnp in value and in gradient.

The rows of a family compile as one region per placement. A row that a layout makes illegal (two dims of a tensor on
one axis, a loop over a split dim) must raise there; every other must agree.
"""

import functools
import inspect
import math
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.ops import table_conv, table_moving, table_order, table_uneven  # noqa: F401  their rows
from tests.ops.table import DIMS, FAMILIES, Row, sizes

# Names of weft.ops that need no row: they show or check a value and give none.
NO_OPS = {"print", "check"}


@dataclass(frozen=True)
class Placement:
    mesh: str
    layout: str

    def __str__(self) -> str:
        return f"{self.mesh} {self.layout}"


QUICK = [
    Placement("x=8", "batch:x,params.d_model:x"),
    Placement("rows=2,cols=4", "length:rows,d_model:cols,heads:rows"),
    Placement("a=2,b=2,c=2", "batch:a+b,heads:c,vocab:c,params.d_model:a,params.vocab:b"),
]
SLOW = [
    Placement("x=8", "length:x"),
    Placement("x=8", "d_model:x"),
    Placement("x=8", "vocab:x,heads:x"),
    Placement("x=2", "batch:x"),
    Placement("x=2", "length:x,vocab:x,heads:x"),
    Placement("x=2", "layers:x"),
    Placement("rows=2,cols=4", "batch:rows,length:cols"),
    Placement("rows=2,cols=4", "batch:cols,d_model:rows,heads:rows"),
    Placement("rows=2,cols=4", "batch:rows,heads:cols,vocab:cols"),
    Placement("rows=2,cols=4", "length:cols,stream:rows"),
    Placement("rows=2,cols=4", "batch:cols+rows"),
    Placement("rows=2,cols=4", "heads:rows+cols,length:cols+rows"),
    Placement("a=2,b=2,c=2", "batch:a,length:b,d_model:c"),
    Placement("a=2,b=2,c=2", "batch:b,length:c+a"),
    Placement("a=2,b=2,c=2", "batch:c,length:a,heads:b,d_model:b,vocab:c"),
    Placement("a=2,b=2,c=2", "length:a+b,d_model:b+c,heads:a"),
    Placement("a=2,b=2,c=2", "stream:b,heads:b+a,vocab:c"),
    Placement("one=1,x=4", "batch:one,length:x"),
    Placement("one=1,x=4", "d_model:one+x,batch:one"),
    Placement("one=1", "batch:one,params.d_model:one"),
    Placement("x=8", "batch:x,params.layers:x,params.heads:x,params.vocab:x"),
    Placement("rows=2,cols=4", "batch:rows,d_model:cols,params.length:rows,params.heads_whole:rows"),
    Placement("a=2,b=2,c=2", "batch:a+b,d_model:c,params.heads:a+b,params.heads_whole:b,params.vocab:a"),
    Placement("a=2,b=2,c=2", "length:c,params.d_model:a+b,params.vocab:c,params.layers:c"),
]
OUTSIDE = [QUICK[1], QUICK[0], QUICK[2], SLOW[6], SLOW[13], SLOW[22]]


def cases(quick: dict[str, list[Placement]], placements: list[Placement]) -> list[Any]:
    """Every family under every placement; all but the quick ones are left to the slow run."""
    return [
        pytest.param(family, placement, id=f"{family} {placement}", marks=() if is_quick else pytest.mark.slow)
        for family in FAMILIES
        for placement in placements
        for is_quick in [placement in quick.get(family, ())]
    ]


# The default run: one placement splits every dim there is; the families that all others build on have a second one.
# Gradients taken outside a region differ from those inside only by what the border does, so one family stands for all.
WHOLE = ("einsum", "index", "move")  # all others build on these
INSIDE_QUICK = {family: QUICK[1:] if family in WHOLE else QUICK[1:2] for family in FAMILIES}
# Without a mesh an op does what it does under one, less what it sends.
ALONE_QUICK = WHOLE
OUTSIDE_QUICK = {"einsum": OUTSIDE[:1]}


def test_every_public_op_has_a_row():
    public = {
        name for name, value in vars(wf.ops).items() if not name.startswith("_") and not inspect.ismodule(value)
    } | {f"random.{name}" for name in wf.random.__all__}
    public.discard("random.dropout")  # listed as `dropout`
    rows = {row.op for rows in FAMILIES.values() for row in rows}
    assert public - rows - NO_OPS == set()
    assert rows - public == {"operator", "parameter"}


def test_row_names_are_unique():
    names = [row.name for rows in FAMILIES.values() for row in rows]
    assert sorted(names) == sorted(set(names))


# ---- what is expected


@dataclass
class Expected:
    """What a row gives without a mesh: values and gradients of plain jnp, the dims Weft names them by."""

    values: Any
    gradients: Any
    cotangents: list[wf.Tensor]
    dims: list[Any]
    terms: int


@functools.cache
def expected(family: str) -> dict[str, Expected]:
    """The family's rows by plain jnp, compiled as one program."""
    rows = FAMILIES[family]
    outputs = {row.name: _outputs(row) for row in rows}
    cotangents = {row.name: _cotangents(row, outputs[row.name]) for row in rows}

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for row in rows:
            arrays = inputs[row.name]

            def total(given: Any, row: Row = row, arrays: Any = arrays) -> Any:
                filled = [given.get(i, array) for i, array in enumerate(arrays)]
                values = row.plain(*filled)
                leaves = [leaf for leaf in jax.tree.leaves(values) if _is_float(leaf)]
                parts = [
                    jnp.sum(jnp.real(leaf * jnp.asarray(c.array)).astype("float32"))
                    for leaf, c in zip(leaves, cotangents[row.name], strict=True)
                ]
                return sum(parts, jnp.zeros(())), values

            floats = {i: array for i, array in enumerate(arrays) if _is_float(array)}
            if row.is_differentiable:
                (_, values), gradients = jax.value_and_grad(total, has_aux=True)(floats)
            else:
                values, gradients = row.plain(*arrays), {}
            found[row.name] = (values, gradients)
        return found

    arrays = {row.name: [jnp.asarray(x.array) for x in row.inputs] for row in rows}
    found = jax.jit(run)(arrays)
    return {
        row.name: Expected(
            *found[row.name], cotangents[row.name], [x.dims for x in outputs[row.name]], _terms(row, outputs[row.name])
        )
        for row in rows
    }


def _outputs(row: Row) -> list[Any]:
    return jax.tree.leaves(jax.eval_shape(row.weft, *row.inputs), is_leaf=_is_tensor)


def _cotangents(row: Row, outputs: list[Any]) -> list[wf.Tensor]:
    """A random weight for every float a row gives; what is differentiated is the weighted sum."""
    generator = np.random.default_rng(zlib.crc32(row.name.encode()))
    floats = [x.dims for x in outputs if _is_float(x)]
    return [wf.tensor(generator.normal(size=dims.sizes).astype("float32"), dims) for dims in floats]


def _is_tensor(x: Any) -> bool:
    return isinstance(x, wf.Tensor)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def shapes(row: Row) -> list[tuple[wf.Dim, ...]]:
    """The dims of the row's inputs, and of its results."""
    want = expected_row(row)
    return [*(x.dims for x in row.inputs), *want.dims]


def _terms(row: Row, outputs: list[Any]) -> int:
    """How many numbers the longest sum of a row adds up: the dims that some input or output lacks, and `row.sums`."""
    dims = [x.dims for x in (*row.inputs, *outputs)]
    everything = math.prod({dim.name: dim.size for shape in dims for dim in shape}.values())
    return max(everything // math.prod(shape.sizes) for shape in dims) * sizes(row.sums)


def tolerance(want: np.ndarray, terms: int, dtype: Any) -> float:
    """How far two orders of one sum may lie apart.

    Each of n additions rounds by at most eps/2 of a partial sum, and a partial sum is at most the largest result in
    size or, where results cancel, of the order of the inputs, which is 1: n * eps * max(1, |want|). The 16 more are
    the roundings of the functions themselves (an exp, a division, a chain of a few ops, their derivatives).
    """
    finite = np.abs(want[np.isfinite(want)])
    return (16 + terms) * float(jnp.finfo(dtype).eps) * max(1.0, float(finite.max(initial=0.0)))


def difference(got: Any, want: Any, terms: int, lowest: Any) -> str:
    """What is wrong with `got`, in words; nothing if it is as exact as its dtype (or the row's lowest) allows."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} where {want.dtype}{list(want.shape)} is due"
    if not jnp.issubdtype(want.dtype, jnp.inexact):
        wrong = got != want
    else:
        kind = "complex64" if np.iscomplexobj(want) else "float32"
        got, want = got.astype(kind), want.astype(kind)
        allowed = tolerance(want, terms, lowest)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(invalid="ignore"):
            wrong = ~(same | (np.abs(got - want) <= allowed))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    shown = f"{int(wrong.sum())} of {wrong.size} values, the first at {list(at)}: {got[at]} where {want[at]} is due"
    return shown if want.dtype.kind not in "fc" else f"{shown} (allowed: {allowed:.2g})"


# ---- what a layout makes legal


def is_legal(row: Row, layout: wf.Layout) -> bool:
    """Whether no tensor of the row has two dims on one axis, and no dim that must be whole is split."""
    together = " ".join(dim.name for dims in shapes(row) for dim in dims)
    if any(name in layout.rules for name in row.whole.split()):
        return False
    return not any(_clashes(set(names.split()), layout) for names in row.meetings or (together,))


def _clashes(names: set[str], layout: wf.Layout) -> bool:
    explicit = [axis for name in names for axis in layout.rules.get(name, ())]
    followers = [DIMS[name].follows for name in names if name in DIMS and name not in layout.rules]
    inherited = [axis for name in followers for axis in layout.rules.get(name, ()) if axis not in explicit]
    return len(explicit) + len(inherited) > len({*explicit, *inherited})


# ---- running a family


def weighted_sum(values: Any, cotangents: list[wf.Tensor]) -> wf.Tensor:
    total = wf.zeros([])
    outputs = [leaf for leaf in jax.tree.leaves(values, is_leaf=_is_tensor) if _is_float(leaf)]
    for x, cotangent in zip(outputs, cotangents, strict=True):
        product = x * cotangent
        product = wf.real(product) if jnp.issubdtype(product.dtype, jnp.complexfloating) else product
        total = total + wf.sum(wf.cast(product, "float32"), over=product.dims)
    return total


def run_row(row: Row, inputs: Any, cotangents: list[wf.Tensor]) -> tuple[Any, Any]:
    """The row's values and the gradients of their weighted sum."""
    if not row.is_differentiable:
        return row.weft(*inputs), {}

    def total(inputs: Any) -> Any:
        values = row.weft(*inputs)
        return weighted_sum(values, cotangents), values

    (_, values), gradients = wf.value_and_grad(total, has_aux=True)(inputs)
    return values, {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}


def anchors() -> dict[str, wf.Tensor]:
    """A parameter of each dim, so that every rule of a layout names a dim of the region."""
    return {name: wf.parameter(np.ones(dim.size, "float32"), [dim]) for name, dim in DIMS.items()}


def compare(row: Row, values: Any, gradients: Any) -> list[str]:
    """The sentences that say where a row differs from plain jnp."""
    want = expected_row(row)
    dtypes = [row.precision, *(x.dtype for x in (*row.inputs, *jax.tree.leaves(want.values)) if _is_float(x))]
    lowest = max(dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps))
    got_leaves, structure = jax.tree.flatten(values, is_leaf=_is_tensor)
    want_leaves, want_structure = jax.tree.flatten(want.values)
    if structure != want_structure:
        return [f"{row.name}: gives the tree {structure} where {want_structure} is due"]
    pairs = [(f"value {i}", *pair) for i, pair in enumerate(zip(got_leaves, want_leaves, strict=True))]
    if row.is_differentiable and set(gradients) != set(want.gradients):
        return [f"{row.name}: has gradients of {sorted(gradients)} where {sorted(want.gradients)} are due"]
    pairs += [(f"gradient of input {i}", gradients[i], want.gradients[i]) for i in gradients]
    found = [(what, difference(got.array, expect, want.terms, lowest)) for what, got, expect in pairs]
    return [f"{row.name}: {what}: {wrong}" for what, wrong in found if wrong]


def expected_row(row: Row) -> Expected:
    return next(expected(family)[row.name] for family, rows in FAMILIES.items() if row in rows)


def run_legal(rows: list[Row], placement: Placement) -> list[str]:
    """What is wrong with the rows, run in one region."""
    want = {row.name: expected_row(row) for row in rows}
    raised: dict[str, Exception] = {}

    def region(inputs: dict[str, Any], _: Any) -> dict[str, Any]:
        found = {}
        for row in rows:
            try:
                found[row.name] = run_row(row, inputs[row.name], want[row.name].cotangents)
            except Exception as error:  # a row that raises does not hide the others
                raised[row.name] = error
        return found

    run = wf.spmd(region, mesh=placement.mesh, layout=placement.layout)
    found = run({row.name: row.inputs for row in rows}, anchors())
    wrong = [f"{name}: raises {type(error).__name__}: {error}" for name, error in raised.items()]
    return wrong + [line for row in rows if row.name in found for line in compare(row, *found[row.name])]


def run_illegal(row: Row, placement: Placement) -> list[str]:
    """What is wrong with a row that the layout cannot place: it must say so."""
    try:
        region = lambda inputs, _: row.weft(*inputs)  # noqa: E731
        wf.trace(region, row.inputs, anchors(), mesh=placement.mesh, layout=placement.layout)
    except wf.LayoutError:
        return []
    except Exception as error:
        return [f"{row.name}: raises {type(error).__name__} where a LayoutError is due: {error}"]
    return [f"{row.name}: runs, although the layout cannot place it"]


def listed(wrong: list[str], placement: Placement) -> str:
    return "\n".join(f"[{placement}] {line}" for line in wrong)


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in ALONE_QUICK else pytest.mark.slow) for f in FAMILIES]
)
def test_without_a_mesh_every_op_equals_jnp(family: str):
    want = expected(family)

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        return {row.name: run_row(row, inputs[row.name], want[row.name].cotangents) for row in FAMILIES[family]}

    found = jax.jit(run)({row.name: row.inputs for row in FAMILIES[family]})
    wrong = [line for row in FAMILIES[family] for line in compare(row, *found[row.name])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("family", "placement"), cases(INSIDE_QUICK, [*QUICK, *SLOW]))
def test_under_every_placement_every_op_equals_jnp(family: str, placement: Placement):
    rows = {row.name: is_legal(row, wf.Layout(placement.layout)) for row in FAMILIES[family]}
    wrong = run_legal([row for row in FAMILIES[family] if rows[row.name]], placement)
    wrong += [line for row in FAMILIES[family] if not rows[row.name] for line in run_illegal(row, placement)]
    assert not wrong, listed(wrong, placement)


@pytest.mark.parametrize(("family", "placement"), cases(OUTSIDE_QUICK, OUTSIDE))
def test_gradients_taken_outside_the_region_are_the_same(family: str, placement: Placement):
    layout = wf.Layout(placement.layout)
    rows = [row for row in FAMILIES[family] if row.is_differentiable and is_legal(row, layout)]
    want = expected(family)

    def region(inputs: dict[str, Any], _: Any) -> tuple[wf.Tensor, dict[str, Any]]:
        values = {row.name: row.weft(*inputs[row.name]) for row in rows}
        totals = [weighted_sum(values[row.name], want[row.name].cotangents) for row in rows]
        return sum(totals, wf.zeros([])), values

    run = wf.spmd(region, mesh=placement.mesh, layout=placement.layout)
    inputs = {row.name: row.inputs for row in rows}
    (_, values), gradients = jax.jit(wf.value_and_grad(run, has_aux=True))(inputs, anchors())
    wrong = []
    for row in rows:
        found = {i: gradient for i, gradient in enumerate(gradients[row.name]) if gradient is not None}
        wrong.extend(compare(row, values[row.name], found))
    assert not wrong, listed(wrong, placement)
