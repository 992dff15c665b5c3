"""The table of JAX's primitives: the kind of each, its work and its FLOPs.

The one file that knows primitives by name. Everyone else asks for the kind of an equation, so that a primitive JAX
renames or adds is one row here. Imports compat alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain
from typing import Any

from .compat import is_on_host


class Role(Enum):
    """What a primitive does, as far as any reader of a program tells them apart."""

    __hash__ = object.__hash__  # asked for each step of a program; Enum's own is ten times slower

    MATH = auto()
    """Each number of the result from the numbers at its place."""
    ADD = auto()
    ADD_GRADIENTS = auto()
    """The sum of the gradients of one value's uses, which JAX adds."""
    COMPARE = auto()
    CAST = auto()
    VIEW = auto()
    """The same numbers in the same bytes, under another shape, name or type."""
    RESHAPE = auto()
    BITCAST = auto()
    VARY = auto()
    """The same value, typed as different on each processor."""
    RESHARD = auto()
    """A global array split otherwise."""
    TRANSFER = auto()
    """From the memory of the host to that of the processors, or back."""
    TRANSPOSE = auto()
    BROADCAST = auto()
    SLICE = auto()
    SPLIT = auto()
    """Several slices at once."""
    CONCATENATE = auto()
    PAD = auto()
    IOTA = auto()
    AXIS_INDEX = auto()
    RANDOM = auto()
    KEY = auto()
    """One random key of another."""
    GATHER = auto()
    SCATTER = auto()
    WRITE = auto()
    """A slice written into an array."""
    REDUCTION = auto()
    PRODUCT = auto()
    ATTENTION = auto()
    """Scores, softmax and weighted sum in one."""
    KERNEL = auto()
    """What looks along dims and runs by itself: a sort, a cumulative sum, a window, linear algebra."""
    CALLBACK = auto()
    COLLECTIVE = auto()
    CALL = auto()
    """A body that runs once, where it stands."""
    CUSTOM_GRADIENT = auto()
    """A call with a backward pass of its own."""
    REMAT = auto()
    """A call that is computed again for its gradients."""
    REGION = auto()
    """The border between global arrays and slices: a shard_map."""
    SCAN = auto()
    WHILE = auto()
    COND = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive."""

    name: str
    kind: Role
    work: int = 1
    """Operations for each element."""
    does: str = ""
    """Of a reduction, or of a collective that sums nothing: what it does, as a verb."""
    collective: str | None = None
    """Of a collective: its name in a ledger."""
    products: int = 0
    """Of an attention: how many products as large as its scores."""


def _rows(kind: Role, names: str, **columns: Any) -> Iterator[Primitive]:
    return (Primitive(name, kind, **columns) for name in names.split())


_TABLE = {
    row.name: row
    for row in chain(
        _rows(
            Role.MATH,
            """abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
            cosh digamma eq eq_to erf_inv erfc expm1 floor igamma igamma_grad_a igammac imag is_finite le_to lgamma
            lt_to max min mul mulhi ne neg nextafter not or polygamma population_count random_gamma_grad real
            reduce_precision regularized_incomplete_beta round shift_left shift_right_arithmetic shift_right_logical
            sign sinh square sub tan xor zeta""",
        ),
        _rows(Role.MATH, "select_n", work=0),
        _rows(Role.MATH, "integer_pow", work=2),
        _rows(Role.MATH, "div rsqrt sqrt", work=4),
        _rows(Role.MATH, "exp exp2 log rem", work=8),
        _rows(Role.MATH, "log1p", work=10),
        _rows(Role.MATH, "erf logistic tanh", work=12),
        _rows(Role.MATH, "cos pow sin", work=16),
        _rows(Role.ADD, "add"),
        _rows(Role.ADD_GRADIENTS, "add_any"),
        _rows(Role.COMPARE, "ge gt le lt"),
        _rows(Role.CAST, "convert_element_type", work=0),
        _rows(
            Role.VIEW,
            """copy copy_p device_put expand_dims layout_constraint name optimization_barrier random_unwrap random_wrap
            squeeze stop_gradient""",
            work=0,
        ),
        _rows(Role.RESHAPE, "reshape", work=0),
        _rows(Role.BITCAST, "bitcast_convert_type"),
        _rows(Role.VARY, "pvary vary_by_levels", work=0),
        _rows(Role.RESHARD, "reshard sharding_constraint", work=0),
        _rows(Role.TRANSPOSE, "transpose", work=0),
        _rows(Role.BROADCAST, "broadcast_in_dim", work=0),
        _rows(Role.SLICE, "dynamic_slice slice", work=0),
        _rows(Role.SPLIT, "split", work=0),
        _rows(Role.CONCATENATE, "concatenate", work=0),
        _rows(Role.PAD, "pad", work=0),
        _rows(Role.PAD, "rev"),
        _rows(Role.IOTA, "iota", work=0),
        _rows(Role.AXIS_INDEX, "axis_index"),
        _rows(Role.RANDOM, "random_bits threefry2x32", work=60),
        _rows(Role.RANDOM, "random_split"),
        _rows(Role.KEY, "random_fold_in random_seed"),
        _rows(Role.GATHER, "gather"),
        _rows(Role.SCATTER, "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"),
        _rows(Role.WRITE, "dynamic_update_slice"),
        _rows(Role.REDUCTION, "reduce_sum", does="sums"),
        _rows(Role.REDUCTION, "reduce_max", does="takes the largest"),
        _rows(Role.REDUCTION, "reduce_min", does="takes the smallest"),
        _rows(Role.REDUCTION, "reduce_prod", does="multiplies"),
        _rows(Role.REDUCTION, "reduce_and", does="asks whether all hold"),
        _rows(Role.REDUCTION, "reduce_or", does="asks whether any holds"),
        _rows(Role.REDUCTION, "argmax argmin reduce_xor"),
        _rows(Role.PRODUCT, "conv_general_dilated dot_general ragged_dot_general"),
        _rows(
            Role.ATTENTION,
            """dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd
            dot_product_attention_fwd_wrapper""",
            products=2,
        ),
        _rows(
            Role.ATTENTION,
            """dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
            dot_product_attention_fp8_bwd_wrapper""",
            products=5,
        ),
        _rows(Role.KERNEL, "sort", work=100),
        _rows(
            Role.KERNEL,
            """approx_top_k cholesky cumlogsumexp cummax cummin cumprod cumsum eig eigh fft lu qr
            random_gamma reduce reduce_window reduce_window_max reduce_window_min reduce_window_sum
            select_and_gather_add select_and_scatter select_and_scatter_add svd top_k triangular_solve""",
        ),
        _rows(Role.KERNEL, "pallas_call"),
        _rows(Role.CALLBACK, "debug_callback debug_print io_callback pure_callback"),
        _rows(Role.COLLECTIVE, "pmax", does="takes the largest", collective="all_reduce"),
        _rows(Role.COLLECTIVE, "pmin psum psum_invariant", collective="all_reduce"),
        _rows(Role.COLLECTIVE, "all_gather all_gather_invariant", collective="all_gather"),
        _rows(Role.COLLECTIVE, "reduce_scatter", collective="reduce_scatter"),
        _rows(Role.COLLECTIVE, "all_to_all", collective="all_to_all"),
        _rows(Role.COLLECTIVE, "ppermute", collective="permute"),
        _rows(Role.CALL, "closed_call core_call custom_jvp_call jit local_call pjit"),
        _rows(Role.CUSTOM_GRADIENT, "custom_vjp_call"),
        _rows(Role.REMAT, "checkpoint remat remat2"),
        _rows(Role.REGION, "shard_map"),
        _rows(Role.SCAN, "scan"),
        _rows(Role.WHILE, "while"),
        _rows(Role.COND, "cond"),
    )
}
_UNKNOWN: dict[str, Primitive] = {}
_TRANSFER = Primitive("device_put", Role.TRANSFER, work=0)

# Sets of kinds that several readers go by.
VIEWS = frozenset({Role.VIEW, Role.RESHAPE, Role.VARY, Role.RESHARD})
"""What leaves numbers and bytes what and where they are."""
ELEMENTWISE = frozenset({Role.MATH, Role.ADD, Role.ADD_GRADIENTS, Role.COMPARE, Role.CAST})
LOOPS = frozenset({Role.SCAN, Role.WHILE, Role.COND})
CALLS = frozenset({Role.CALL, Role.CUSTOM_GRADIENT, Role.REMAT, Role.REGION})
_BY_PLACE = frozenset(
    {Role.TRANSPOSE, Role.SLICE, Role.SPLIT, Role.CONCATENATE, Role.PAD, Role.IOTA, Role.AXIS_INDEX, Role.RANDOM,
     Role.KEY, Role.GATHER}
)  # fmt: skip
FUSED = ELEMENTWISE | _BY_PLACE | {Role.BROADCAST}
"""What a compiler can fold into the kernel that uses it."""
_OF_EACH_VALUE = ELEMENTWISE | VIEWS | CALLS | LOOPS | {Role.BROADCAST, Role.BITCAST, Role.TRANSFER}


def row_of(eqn: Any) -> Primitive:
    """The row of an equation's primitive."""
    name = eqn.primitive.name
    if name == _TRANSFER.name and is_on_host(eqn.invars[0].aval) != is_on_host(eqn.outvars[0].aval):
        return _TRANSFER
    return row_named(name)


def row_named(name: str) -> Primitive:
    """The row of the primitive of that name; of no kind where the table has none."""
    return _TABLE.get(name) or _UNKNOWN.setdefault(name, Primitive(name, Role.OTHER))


def kind_of(eqn: Any) -> Role:
    """What kind an equation's primitive is."""
    return row_of(eqn).kind


def is_elementwise(eqn: Any) -> bool:
    """Whether an equation works on each value alone, and does not know its place.

    One the table does not know, and a callback, may look along dims: it does not.
    """
    return kind_of(eqn) in _OF_EACH_VALUE or not eqn.outvars


def given_name(eqn: Any) -> str | None:
    """The name an equation gives to a value (`jax.ad_checkpoint.checkpoint_name`)."""
    return eqn.params["name"] if eqn.primitive.name == "name" else None


def shape_of_product(eqn: Any) -> tuple[int, int, int, int]:
    """How many products, their rows and columns, and how many numbers each sums."""
    if is_ragged(eqn):
        return _shape_of_ragged(eqn)
    left, right = (var.aval.shape for var in eqn.invars[:2])
    results, (numbers, dilation) = math.prod(eqn.outvars[0].aval.shape), _count_summed(eqn)
    if "lhs_dilation" in eqn.params:
        many, rows = 1, results // right[eqn.params["dimension_numbers"].rhs_spec[0]]
    else:
        many = math.prod(left[i] for i in eqn.params["dimension_numbers"][1][0])
        rows = math.prod(left) // max(numbers * many, 1)
    return many, rows, results // max(rows * many, 1), numbers // dilation


def groups_of_product(eqn: Any) -> int:
    """How many matrices share the rows of a ragged product; 0 of any other."""
    return int(eqn.invars[2].aval.shape[-1]) if is_ragged(eqn) else 0


def is_leading_slice(eqn: Any) -> bool:
    """Whether a slice, or a split, is along the first dim: in one piece."""
    params, shape = eqn.params, eqn.invars[0].aval.shape
    if eqn.primitive.name == "split":
        return bool(params["axis"] == 0)
    whole = eqn.primitive.name == "slice" and params["strides"] is None
    return whole and all(
        (start, end) == (0, size)
        for start, end, size in zip(params["start_indices"][1:], params["limit_indices"][1:], shape[1:], strict=True)
    )


def is_rounding(eqn: Any) -> bool:
    """Whether an equation rounds to fewer bits, which no compiler may leave out."""
    return bool(eqn.primitive.name == "reduce_precision")


def reduced_dims(eqn: Any) -> tuple[int, ...]:
    """The dims a reduction goes over."""
    return tuple(eqn.params["axes"])


def axes_sent_over(eqn: Any) -> tuple[str, ...]:
    """The axes of the mesh that a collective goes over."""
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    return tuple(map(str, axes if isinstance(axes, tuple) else (axes,)))


def batch_dims_of(eqn: Any, operand: int) -> tuple[int, ...]:
    """The dims of a product's operand that it has one product for each of."""
    if is_ragged(eqn) or "lhs_dilation" in eqn.params or operand > 1:
        return ()
    return tuple(eqn.params["dimension_numbers"][1][operand])


def is_ragged(eqn: Any) -> bool:
    """Whether a product has rows of groups, each with a matrix of its own."""
    return "ragged_dot_dimension_numbers" in eqn.params


def _shape_of_ragged(eqn: Any) -> tuple[int, int, int, int]:
    """As `shape_of_product`, of rows each of which has one group's matrix.

    How many rows a group has differs as values do: all there are, shared out alike.
    """
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    left, groups = eqn.invars[0].aval.shape, eqn.invars[2].aval.shape[-1]
    summed = math.prod(left[i] for i in contracted)
    rows, results = math.prod(left) // summed, math.prod(eqn.outvars[0].aval.shape)
    if set(numbers.lhs_ragged_dimensions) <= set(contracted):  # the gradient of the matrices: sums over a group's rows
        return groups, rows, results // (groups * rows), max(summed // groups, 1)
    return groups, max(rows // groups, 1), results // rows, summed


def _count_summed(eqn: Any) -> tuple[int, int]:
    """How many numbers each result sums; one in how many is not of a dilation."""
    if "lhs_dilation" not in eqn.params:
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return math.prod(eqn.invars[0].aval.shape[i] for i in contracted), 1
    kernel = eqn.params["dimension_numbers"].rhs_spec
    sizes = (size for i, size in enumerate(eqn.invars[1].aval.shape) if i != kernel[0])
    return math.prod(sizes), math.prod(eqn.params["lhs_dilation"])


_HEADS_FIRST = 1  # the layout BNTH of cuDNN's attention; BTNH is 0


def flops_of(eqn: Any) -> int:
    """The FLOPs of a product, an attention or a kernel that says them; else 0."""
    row = row_of(eqn)
    if row.kind is Role.PRODUCT and is_ragged(eqn):
        return 2 * math.prod(eqn.invars[0].aval.shape) * _shape_of_ragged(eqn)[2]
    if row.kind is Role.PRODUCT:
        numbers, dilation = _count_summed(eqn)
        return 2 * math.prod(eqn.outvars[0].aval.shape) * numbers // dilation
    if row.kind is Role.ATTENTION:
        return row.products * 2 * math.prod(sizes_of_attention(eqn))
    estimate = eqn.params.get("cost_estimate") if row.kind is Role.KERNEL else None  # of a Pallas kernel that gives one
    return 0 if estimate is None else int(estimate.flops)


def sizes_of_attention(eqn: Any) -> tuple[int, int, int, int, int]:
    """Batch, heads, queries, keys and channels of a fused attention."""
    (batch, length, heads, width), memory = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape[1]
    if eqn.params.get("layout") == _HEADS_FIRST:
        length, heads, memory = heads, length, eqn.invars[1].aval.shape[2]
    return batch, heads, length, memory, width


def is_causal(eqn: Any) -> bool:
    """Whether a fused attention leaves out the keys after each query."""
    return "CAUSAL" in str(eqn.params.get("mask_type"))
