"""The contract table: every op with its inputs and what plain jnp makes of the global arrays.

A row is one way to use one op; its first word is the op's public name. Rows are grouped in families, each of which
compiles as one region. All dims share few names, so that one layout places every row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

import weft as wf

DIMS = {
    dim.name: dim
    for dim in (
        *wf.dims(batch=16, length=8, d_model=8, heads=8, vocab=24, layers=8),
        # Never split by a rule of their own: `stream` has the placement of the dim it follows, the others none.
        wf.Dim("stream", 8, follows="length"),
        *wf.dims(length_whole=8, heads_whole=8, batch_whole=16),
    )
}
batch, length, d_model, heads, vocab, layers, stream, length_whole, heads_whole, batch_whole = DIMS.values()

_random = np.random.default_rng(20)


def floats(dims: str, low: float = -2.0, high: float = 2.0, dtype: Any = "float32") -> wf.Tensor:
    """A tensor of uniform samples."""
    shape = [DIMS[name] for name in dims.split()]
    return wf.tensor(jnp_free(_random.uniform(low, high, [dim.size for dim in shape]), dtype), shape)


def weights(dims: str) -> wf.Tensor:
    """A parameter: stored by the `params.` rules of the layout."""
    return wf.parameter(floats(dims, -1, 1).array, floats(dims).dims)


def integers(dims: str, low: int = -4, high: int = 5, dtype: Any = "int32") -> wf.Tensor:
    shape = [DIMS[name] for name in dims.split()]
    return wf.tensor(_random.integers(low, high, [dim.size for dim in shape]).astype(dtype), shape)


def booleans(dims: str) -> wf.Tensor:
    return integers(dims, 0, 2, "bool")


def complexes(dims: str) -> wf.Tensor:
    return wf.tensor((floats(dims).array + 1j * floats(dims).array).astype("complex64"), floats(dims).dims)


def jnp_free(array: np.ndarray, dtype: Any) -> np.ndarray:
    """A NumPy array in any of JAX's dtypes, made without starting JAX."""
    return array.astype(jnp.dtype(dtype))


@dataclass(frozen=True)
class Row:
    """One use of one op: `weft` of the tensors `inputs` equals `plain` of their global arrays."""

    name: str
    inputs: tuple[wf.Tensor, ...]
    weft: Callable[..., Any]
    plain: Callable[..., Any]
    is_differentiable: bool = True
    sums: str = ""
    """Dims that are added up on the way although inputs and outputs have them (a softmax, a loop)."""
    whole: str = ""
    """Dims that must not be split: where a layout splits one, the row raises."""
    meetings: tuple[str, ...] = ()
    """The dims that stand in one tensor; those of all inputs and outputs, if not given."""
    precision: str = "float32"
    """The least exact dtype on the way, where neither inputs nor outputs show it."""

    @property
    def op(self) -> str:
        return self.name.split()[0]


FAMILIES: dict[str, list[Row]] = {}


def row(family: str, name: str, inputs: Any, weft: Callable[..., Any], plain: Callable[..., Any], **rest: Any) -> None:
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    FAMILIES.setdefault(family, []).append(Row(name, inputs, weft, plain, **rest))


# ---- elementwise functions: name, the plain function, and where it is smooth

_UNARY: dict[str, tuple[Callable[..., Any], float, float]] = {
    **{name: (getattr(jnp, name), -2.0, 2.0) for name in "exp exp2 expm1 square sin cos sinh cosh tanh arctan".split()},
    **{name: (getattr(jnp, name), 0.5, 3.0) for name in "log log1p log2 log10 sqrt cbrt reciprocal".split()},
    **{name: (getattr(jnp, name), -0.9, 0.9) for name in "tan arcsin arccos arctanh".split()},
    **{name: (getattr(jnp, name), -3.0, 3.0) for name in "abs sign floor ceil trunc rint round".split()},
    **{name: (getattr(jnp, name), -3.0, 3.0) for name in "negative positive arcsinh".split()},
    **{name: (getattr(jax.nn, name), -4.0, 4.0) for name in "relu silu sigmoid softplus soft_sign log_sigmoid".split()},
    **{name: (getattr(jax.nn, name), -4.0, 8.0) for name in "relu6 elu celu selu mish hard_tanh squareplus".split()},
    **{name: (getattr(jax.nn, name), -4.0, 4.0) for name in "gelu leaky_relu hard_sigmoid hard_silu swish".split()},
    **{name: (getattr(special, name), 0.2, 0.8) for name in "erf erfc erfinv gammaln digamma".split()},
    "arccosh": (jnp.arccosh, 1.5, 4.0),
    "rsqrt": (lax.rsqrt, 0.5, 3.0),
}
for _name, (_plain, _low, _high) in _UNARY.items():
    row("elementwise", _name, floats("batch length", _low, _high), getattr(wf, _name), _plain)
for _name in "isnan isinf isfinite".split():
    _special = floats("batch length")
    _special.array[::3, ::2] = np.nan
    _special.array[1::3, 1::2] = -np.inf
    row("elementwise", _name, _special, getattr(wf, _name), getattr(jnp, _name), is_differentiable=False)
row("elementwise", "gelu exact", floats("batch length"), partial(wf.gelu, approximate=False),
    partial(jax.nn.gelu, approximate=False))  # fmt: skip
row("elementwise", "leaky_relu slope", floats("batch length"), lambda x: wf.leaky_relu(x, negative_slope=0.3),
    lambda x: jax.nn.leaky_relu(x, 0.3))  # fmt: skip
for _name in "real imag conj abs exp".split():
    row("elementwise", f"{_name} complex", complexes("batch length"), getattr(wf, _name), getattr(jnp, _name))
row("elementwise", "exp int", integers("batch length"), wf.exp, jnp.exp, is_differentiable=False)
row("elementwise", "rsqrt int", integers("batch length", 1, 9), wf.rsqrt, lambda x: lax.rsqrt(x.astype("float32")),
    is_differentiable=False)  # fmt: skip
row("elementwise", "invert", integers("batch length"), wf.invert, jnp.invert, is_differentiable=False)
row("elementwise", "invert bool", booleans("batch length"), lambda x: ~x, jnp.invert, is_differentiable=False)
row("elementwise", "logical_not", booleans("batch length"), wf.logical_not, jnp.logical_not, is_differentiable=False)

# ---- two operands, whose dims overlap in one: [batch length] and [length d_model] give [batch length d_model]


def _by_name(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: fn(x[:, :, None], y[None])


def _two(make: Callable[..., wf.Tensor], *limits: Any) -> tuple[wf.Tensor, wf.Tensor]:
    return make("batch length", *limits), make("length d_model", *limits)


for _name in "add subtract multiply maximum minimum logaddexp".split():
    row("binary", _name, _two(floats), getattr(wf, _name), _by_name(getattr(jnp, _name)))
for _name in "divide power arctan2 hypot floor_divide remainder".split():
    row("binary", _name, _two(floats, 0.5, 3.0), getattr(wf, _name), _by_name(getattr(jnp, _name)))
for _name in "equal not_equal less less_equal greater greater_equal".split():
    row("binary", _name, _two(integers), getattr(wf, _name), _by_name(getattr(jnp, _name)), is_differentiable=False)
for _name in "logical_and logical_or logical_xor".split():
    row("binary", _name, _two(booleans), getattr(wf, _name), _by_name(getattr(jnp, _name)), is_differentiable=False)
for _name in "bitwise_and bitwise_or bitwise_xor left_shift right_shift".split():
    row("binary", _name, _two(integers, 0, 8), getattr(wf, _name), _by_name(getattr(jnp, _name)),
        is_differentiable=False)  # fmt: skip
row("binary", "nextafter", _two(floats), wf.nextafter, _by_name(jnp.nextafter), is_differentiable=False)

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
    "//": lambda x, y: x // y, "%": lambda x, y: x % y, "**": lambda x, y: x**y,
    "1+": lambda x, y: 1 + x * y, "1-": lambda x, y: 1 - x * y, "2*": lambda x, y: 2 * (x * y),
    "2/": lambda x, y: 2 / (x * y), "7//": lambda x, y: 7 // (x * y), "7%": lambda x, y: 7 % (x * y),
    "2**": lambda x, y: 2 ** (x * y), "+1": lambda x, y: x * y + 1, "/2": lambda x, y: (x * y) / 2,
    "**2": lambda x, y: (x * y) ** 2, "neg": lambda x, y: -(x * y), "pos": lambda x, y: +(x * y),
    "abs": lambda x, y: abs(x - y),
}  # fmt: skip
for _name, _fn in _OPERATORS.items():
    row("binary", f"operator {_name}", _two(floats, 0.5, 3.0), _fn, _by_name(_fn))
_INTEGER_OPERATORS: dict[str, Callable[..., Any]] = {
    "<": lambda x, y: x < y, "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "&": lambda x, y: x & y, "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y, "<<": lambda x, y: x << y, ">>": lambda x, y: x >> y, "~": lambda x, y: ~(x + y),
    "int //": lambda x, y: x // (y + 1), "int %": lambda x, y: x % (y + 1), "int /": lambda x, y: x / (y + 1),
    "3&": lambda x, y: 3 & (x + y), "3|": lambda x, y: 3 | (x + y), "3^": lambda x, y: 3 ^ (x + y),
    "3<": lambda x, y: 3 < (x + y), "3==": lambda x, y: 3 == (x + y),  # noqa: SIM300
}  # fmt: skip
for _name, _fn in _INTEGER_OPERATORS.items():
    row("binary", f"operator {_name}", _two(integers, 0, 6), _fn, _by_name(_fn), is_differentiable=False)

row("binary", "where", (booleans("batch"), *_two(floats)), wf.where,
    lambda c, x, y: jnp.where(c[:, None, None], x[:, :, None], y[None]))  # fmt: skip
row("binary", "where number", (booleans("batch length"), floats("length d_model")), lambda c, y: wf.where(c, y, -1e9),
    lambda c, y: jnp.where(c[:, :, None], y[None], -1e9))  # fmt: skip
row("binary", "clip", floats("batch length"), lambda x: wf.clip(x, -0.5, 1), lambda x: jnp.clip(x, -0.5, 1))
row("binary", "clip one side", floats("batch length"), lambda x: (wf.clip(x, min=0.25), wf.clip(x, max=0.25)),
    lambda x: (jnp.clip(x, min=0.25), jnp.clip(x, max=0.25)))  # fmt: skip
row("binary", "clip tensors", (floats("batch length"), floats("length", -1, 0)), lambda x, low: wf.clip(x, low, -low),
    lambda x, low: jnp.clip(x, low, -low))  # fmt: skip
row("binary", "cast", floats("batch length"),
    lambda x: (wf.cast(wf.cast(x, "bfloat16"), "float32"), wf.cast(x, "int32"), wf.cast(x, bool)),
    lambda x: (x.astype("bfloat16").astype("float32"), x.astype("int32"), x.astype(bool)),
    precision="bfloat16")  # fmt: skip
row("binary", "cast parameter", (weights("length d_model"), floats("batch length")),
    lambda w, x: wf.einsum(wf.cast(w, "bfloat16"), wf.cast(x, "bfloat16"), over=[], dtype="float32"),
    lambda w, x: jnp.einsum("ld,bl->ldb", w.astype("bfloat16"), x.astype("bfloat16"),
                            preferred_element_type="float32"), precision="bfloat16")  # fmt: skip
row("binary", "elementwise", _two(floats), lambda x, y: wf.elementwise(lambda a, b: jnp.deg2rad(a) * b, x, y),
    _by_name(lambda a, b: jnp.deg2rad(a) * b))  # fmt: skip
row("binary", "stop_gradient", _two(floats), lambda x, y: x * wf.stop_gradient(x * y),
    _by_name(lambda x, y: x * lax.stop_gradient(x * y)))  # fmt: skip
row("binary", "stop_gradient tree", _two(floats), lambda x, y: wf.stop_gradient({"x": x})["x"] * y,
    _by_name(lambda x, y: lax.stop_gradient(x) * y))  # fmt: skip
row("binary", "parameter", (weights("length d_model"), weights("d_model"), floats("batch length")),
    lambda w, b, x: wf.tanh(x * w + b) + w, lambda w, b, x: jnp.tanh(x[:, :, None] * w + b) + w)  # fmt: skip
row("binary", "parameter alone", weights("length d_model"), lambda w: (wf.tanh(w) * w, wf.sum(w * w, over=w.dims)),
    lambda w: (jnp.tanh(w) * w, jnp.sum(w * w)), sums="length d_model")  # fmt: skip

# ---- einsum

_x, _w = "batch length d_model", "d_model vocab"
row("einsum", "einsum out", (floats(_x), weights(_w)), lambda x, w: wf.einsum(x, w, out="vocab batch length"),
    lambda x, w: jnp.einsum("bld,dv->vbl", x, w))  # fmt: skip
row("einsum", "einsum over", (floats(_x), weights(_w)), lambda x, w: wf.einsum(x, w, over=d_model),
    lambda x, w: jnp.einsum("bld,dv->blv", x, w))  # fmt: skip
row("einsum", "einsum over several", (floats(_x), weights(_w)),
    lambda x, w: wf.einsum(x, w, over=["batch", d_model]), lambda x, w: jnp.einsum("bld,dv->lv", x, w))  # fmt: skip
row("einsum", "einsum n-ary", (floats("batch length"), weights("length heads"), weights("heads d_model"),
    weights("d_model")), lambda x, w, v, b: wf.einsum(x, w, v, b, out=["batch", "d_model"]),
    lambda x, w, v, b: jnp.einsum("bl,lh,hd,d->bd", x, w, v, b))  # fmt: skip
row("einsum", "einsum to a number", (floats("batch length"), floats("batch length")),
    lambda x, y: wf.einsum(x, y, out=[]), lambda x, y: jnp.sum(x * y))  # fmt: skip
row("einsum", "einsum outer", (floats("batch length"), floats("d_model")), lambda x, y: wf.einsum(x, y, over=[]),
    lambda x, y: jnp.einsum("bl,d->bld", x, y))  # fmt: skip
row("einsum", "einsum one operand", floats(_x), lambda x: (wf.einsum(x, out="d_model batch length"),
    wf.einsum(x, over="length")), lambda x: (jnp.transpose(x, (2, 0, 1)), jnp.sum(x, 1)))  # fmt: skip
row("einsum", "einsum twice the same", floats(_x), lambda x: wf.einsum(x, x, over="d_model"),
    lambda x: jnp.sum(x * x, -1))  # fmt: skip
row("einsum", "einsum attention", (floats("batch length heads"), floats("batch length heads")),
    lambda q, k: wf.einsum(q, k.rename(length=length_whole), over=heads),
    lambda q, k: jnp.einsum("blh,bmh->blm", q, k), meetings=("batch length heads",))  # fmt: skip
row("einsum", "einsum rename", (floats("batch length_whole heads"), weights("heads d_model")),
    lambda x, w: wf.einsum(x, w, over=heads, rename={"length_whole": stream}),
    lambda x, w: jnp.einsum("blh,hd->bld", x, w),
    meetings=("batch length_whole heads d_model", "batch stream d_model"))  # fmt: skip
row("einsum", "einsum rename from split", (floats("batch length heads"), weights("heads d_model")),
    lambda x, w: wf.einsum(x, w, out=["batch", "length", "d_model"], rename={length: stream}),
    lambda x, w: jnp.einsum("blh,hd->bld", x, w),
    meetings=("batch length heads d_model", "batch stream d_model"))  # fmt: skip
row("einsum", "einsum rename several", (floats("batch_whole length_whole d_model"), weights("d_model heads_whole")),
    lambda x, w: wf.einsum(x, w, over=d_model,
                           rename=dict(batch_whole="batch", heads_whole=heads, length_whole=length)),
    lambda x, w: jnp.einsum("bld,dh->blh", x, w),
    meetings=("batch_whole length_whole d_model heads_whole", "batch length heads"))  # fmt: skip
row("einsum", "einsum bf16 to f32", (floats(_x, dtype="bfloat16"), floats(_w, dtype="bfloat16")),
    lambda x, w: wf.einsum(x, w, over=d_model, dtype="float32"),
    lambda x, w: jnp.einsum("bld,dv->blv", x, w, preferred_element_type="float32"))  # fmt: skip
row("einsum", "einsum f32 to bf16", (floats(_x), floats(_w)),
    lambda x, w: wf.einsum(x, w, over=d_model, dtype="bfloat16"),
    lambda x, w: jnp.einsum("bld,dv->blv", x, w).astype("bfloat16"))  # fmt: skip
row("einsum", "einsum bf16", (floats(_x, dtype="bfloat16"), floats(_w, dtype="bfloat16")),
    lambda x, w: wf.einsum(x, w, over=d_model), lambda x, w: jnp.einsum("bld,dv->blv", x, w))  # fmt: skip
row("einsum", "einsum int", (integers(_x), integers(_w)), lambda x, w: wf.einsum(x, w, over=d_model),
    lambda x, w: jnp.einsum("bld,dv->blv", x, w), is_differentiable=False)  # fmt: skip
row("einsum", "einsum mask", (floats(_x), booleans("batch length")), lambda x, m: wf.einsum(x, m, over="length"),
    lambda x, m: jnp.einsum("bld,bl->bd", x, m))  # fmt: skip
row("einsum", "einsum two layers", (floats("batch d_model"), weights("d_model heads"), weights("heads d_model")),
    lambda x, w, v: wf.einsum(wf.relu(wf.einsum(x, w, over="d_model")), v, over="heads"),
    lambda x, w, v: jax.nn.relu(x @ w) @ v)  # fmt: skip

# ---- reductions and the softmax family

_OVER: dict[str, tuple[str, tuple[int, ...]]] = {
    "one": ("length", (1,)), "two": ("d_model batch", (0, 2)), "all": ("batch length d_model", (0, 1, 2))
}  # fmt: skip
for _name in "sum mean max min prod var logsumexp softmax log_softmax any all".split():
    _plain = getattr(jnp, _name, None) or getattr(jax.nn, _name)
    for _how, (_over, _axes) in _OVER.items():
        _input = booleans(_x) if _name in ("any", "all") else floats(_x, 0.8, 1.25) if _name == "prod" else floats(_x)
        row("reduce", f"{_name} over {_how}", _input, partial(getattr(wf, _name), over=_over),
            partial(_plain, axis=_axes), is_differentiable=_name not in ("any", "all"), sums=_over)  # fmt: skip
for _name in "sum mean max min prod var".split():
    row("reduce", f"{_name} int", integers(_x), partial(getattr(wf, _name), over="length batch"),
        partial(getattr(jnp, _name), axis=(0, 1)), is_differentiable=False, sums="length batch")  # fmt: skip
for _name in "sum mean max min any all".split():
    row("reduce", f"{_name} bool", booleans(_x), partial(getattr(wf, _name), over="length"),
        partial(getattr(jnp, _name), axis=1), is_differentiable=False)  # fmt: skip
for _name in "sum mean max var logsumexp softmax log_softmax".split():
    _plain = getattr(jnp, _name, None) or getattr(jax.nn, _name)
    row("reduce", f"{_name} bf16", floats(_x, dtype="bfloat16"), partial(getattr(wf, _name), over="length"),
        partial(_plain, axis=1), sums="length")  # fmt: skip
row("reduce", "any numbers", floats(_x), lambda x: (wf.any(x, over="length"), wf.all(x, over="length")),
    lambda x: (jnp.any(x, 1), jnp.all(x, 1)), is_differentiable=False)  # fmt: skip
row("reduce", "max parameter", weights("length d_model"),
    lambda w: (wf.max(w, over="length"), wf.mean(w, over="d_model")),
    lambda w: (jnp.max(w, 0), jnp.mean(w, 1)), sums="length d_model")  # fmt: skip

# ---- indices, new tensors, random numbers

row("index", "take", (weights("vocab d_model"), integers("batch length", 0, 24)), partial(wf.take, over=vocab),
    lambda table, ids: table[ids], meetings=("vocab d_model", "batch length d_model"))  # fmt: skip
row("index", "take last dim", (weights("d_model vocab"), integers("batch", 0, 24)), partial(wf.take, over="vocab"),
    lambda table, ids: table[:, ids], meetings=("d_model vocab", "d_model batch"))  # fmt: skip
row("index", "take middle dim", (floats("length vocab d_model"), integers("batch", 0, 24, "uint8")),
    partial(wf.take, over="vocab"), lambda table, ids: table[:, ids],
    meetings=("length vocab d_model", "length batch d_model"))  # fmt: skip
row("index", "take shared dim", (floats("batch vocab d_model"), integers("batch length", 0, 24)),
    partial(wf.take, over="vocab"), lambda table, ids: jax.vmap(lambda t, i: t[i])(table, ids),
    meetings=("batch vocab d_model", "batch length d_model"))  # fmt: skip
row("index", "take shared dims", (floats("d_model batch vocab"), integers("length d_model batch", 0, 24)),
    partial(wf.take, over="vocab"),
    lambda table, ids: jax.vmap(jax.vmap(lambda t, i: t[i]))(table, jnp.transpose(ids, (1, 2, 0))),
    meetings=("d_model batch vocab", "d_model batch length"))  # fmt: skip
row("index", "take one number each", (floats("batch vocab"), integers("batch", 0, 24)), partial(wf.take, over="vocab"),
    lambda table, ids: jax.vmap(lambda t, i: t[i])(table, ids))  # fmt: skip
row("index", "take int table", (integers("vocab"), integers("batch length", 0, 24, "int8")),
    partial(wf.take, over=vocab), lambda table, ids: table[ids], is_differentiable=False,
    meetings=("vocab", "batch length"))  # fmt: skip
row("index", "take outside", (weights("vocab d_model"), integers("batch length", -30, 50)),
    partial(wf.take, over=vocab),
    lambda table, ids: jnp.where(((ids >= 0) & (ids < 24))[..., None], table[jnp.clip(ids, 0, 23)], 0),
    meetings=("vocab d_model", "batch length d_model"))  # fmt: skip
row("index", "take rename", (weights("vocab d_model"), integers("batch length", 0, 24)),
    partial(wf.take, over=vocab, rename={"length": stream}), lambda table, ids: table[ids],
    meetings=("vocab d_model", "batch length d_model", "batch stream d_model"))  # fmt: skip
row("index", "one_hot", integers("batch length", -3, 30), lambda ids: wf.one_hot(ids, vocab),
    lambda ids: jax.nn.one_hot(ids, 24), is_differentiable=False)  # fmt: skip
row("index", "one_hot dtype", integers("batch", 0, 24, "uint8"), lambda ids: wf.one_hot(ids, vocab, dtype="int32"),
    lambda ids: jax.nn.one_hot(ids, 24, dtype="int32"), is_differentiable=False)  # fmt: skip


def _fresh(make: Callable[..., Any], plain: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A new tensor as it is, made like another and whole, and where each meets a split tensor."""

    def weft_form(x: wf.Tensor) -> Any:
        whole, alike = make(None), make(x)
        return whole, alike, x * whole, x * alike

    def plain_form(x: Any) -> Any:
        made = plain()
        return made, made, x * made[None], x * made[None]

    return weft_form, plain_form


_LD = [length, d_model]
row("create", "zeros", floats(_x), *_fresh(lambda like: wf.zeros(_LD, like=like), lambda: jnp.zeros((8, 8))))
row("create", "ones", floats(_x), *_fresh(lambda like: wf.ones(_LD, like=like), lambda: jnp.ones((8, 8))))
row("create", "full", floats(_x), *_fresh(lambda like: wf.full(_LD, 2.5, like=like), lambda: jnp.full((8, 8), 2.5)))
row("create", "full int", floats(_x), *_fresh(lambda like: wf.full(_LD, 3, like=like, dtype="int32"),
    lambda: jnp.full((8, 8), 3)))  # fmt: skip
row("create", "full traced", floats("batch length"), lambda x: wf.full(_LD, wf.mean(x, over=x.dims), like=x),
    lambda x: jnp.full((8, 8), jnp.mean(x)), sums="batch length",
    meetings=("batch length", "length d_model"))  # fmt: skip
row(
    "create",
    "arange",
    floats("batch length"),
    *_fresh(lambda like: wf.arange(length, like=like), lambda: jnp.arange(8)),
)
row("create", "arange name", floats("batch length"), lambda x: x * wf.arange("length", like=x, dtype="float32"),
    lambda x: x * jnp.arange(8, dtype="float32"))  # fmt: skip


def _key() -> Any:
    return jax.random.key(7)


_SAMPLERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "random.normal": (lambda like: wf.random.normal(_key(), _LD, like=like),
                      lambda: jax.random.normal(_key(), (8, 8))),
    "random.normal bf16": (lambda like: wf.random.normal(_key(), _LD, like=like, dtype="bfloat16"),
                           lambda: jax.random.normal(_key(), (8, 8), "bfloat16")),
    "random.uniform": (lambda like: wf.random.uniform(_key(), _LD, like=like),
                       lambda: jax.random.uniform(_key(), (8, 8))),
    "random.uniform limits": (lambda like: wf.random.uniform(_key(), _LD, like=like, minval=-3, maxval=4),
                              lambda: jax.random.uniform(_key(), (8, 8), minval=-3, maxval=4)),
    "random.truncated_normal": (lambda like: wf.random.truncated_normal(_key(), _LD, like=like, lower=-1, upper=1.5),
                                lambda: jax.random.truncated_normal(_key(), -1, 1.5, (8, 8))),
    "random.bernoulli": (lambda like: wf.random.bernoulli(_key(), _LD, like=like),
                         lambda: jax.random.bernoulli(_key(), shape=(8, 8))),
    "random.bernoulli p": (lambda like: wf.random.bernoulli(_key(), _LD, like=like, p=0.2),
                           lambda: jax.random.bernoulli(_key(), 0.2, (8, 8))),
}  # fmt: skip
for _name, (_make, _plain) in _SAMPLERS.items():
    row("create", _name, floats(_x), *_fresh(_make, _plain))
row("create", "dropout", floats(_x), lambda x: wf.dropout(x, 0.3, _key()),
    lambda x: jnp.where(jax.random.bernoulli(_key(), 0.7, x.shape), x / 0.7, 0))  # fmt: skip
row("create", "dropout none", floats(_x), lambda x: wf.dropout(x, 0, _key()), lambda x: x)

# ---- names and movements

row("move", "rename to whole", floats(_x), lambda x: x.rename(length="length_whole"), lambda x: x,
    meetings=(_x, "batch length_whole d_model"))  # fmt: skip
row("move", "rename to split", floats("batch length_whole d_model"), lambda x: wf.rename(x, length_whole="length"),
    lambda x: x, meetings=(_x, "batch length_whole d_model"))  # fmt: skip
row("move", "rename to follower", floats(_x), lambda x: x.rename(length=stream), lambda x: x,
    meetings=(_x, "batch stream d_model"))  # fmt: skip
row("move", "rename from follower", floats("batch stream d_model"), lambda x: x.rename(stream=length), lambda x: x,
    meetings=(_x, "batch stream d_model"))  # fmt: skip
row("move", "rename one for another", floats("batch length heads_whole"),
    lambda x: x.rename(length="length_whole", heads_whole=heads), lambda x: x,
    meetings=("batch length heads_whole", "batch length_whole heads"))  # fmt: skip
row("move", "rename back again", floats("batch length_whole heads"),
    lambda x: x.rename(length_whole=length, heads="heads_whole"), lambda x: x,
    meetings=("batch length heads_whole", "batch length_whole heads"))  # fmt: skip
row("move", "rename exchange", floats(_x), lambda x: x.rename(length="d_model", d_model="length"), lambda x: x)
row("move", "rename round", floats("length d_model heads"),
    lambda x: x.rename(length="d_model", d_model="heads", heads="length"), lambda x: x)  # fmt: skip
row("move", "rename all to whole", floats("batch length heads"),
    lambda x: x.rename(batch="batch_whole", length="length_whole", heads="heads_whole"), lambda x: x,
    meetings=("batch length heads",))  # fmt: skip
row("move", "rename there and back", floats(_x),
    lambda x: wf.square(x.rename(batch="batch_whole", length="length_whole")).rename(
        length_whole="length", batch_whole="batch"), jnp.square,
    meetings=(_x,))  # fmt: skip
row("move", "rename parameter", weights("length d_model"), lambda w: w.rename(length="length_whole") * 2,
    lambda w: w * 2, meetings=("length d_model",))  # fmt: skip
row("move", "rename int", integers(_x), lambda x: x.rename(length="length_whole"), lambda x: x,
    is_differentiable=False, meetings=(_x,))  # fmt: skip
row("move", "rename bool", booleans(_x), lambda x: x.rename(length="length_whole", d_model="heads"), lambda x: x,
    is_differentiable=False, meetings=(_x, "batch length_whole heads"))  # fmt: skip
row("move", "broadcast", floats("length d_model"), lambda x: wf.broadcast(x, [batch, d_model, length]),
    lambda x: jnp.broadcast_to(x.T, (16, 8, 8)))  # fmt: skip
row("move", "broadcast transposes", floats(_x), lambda x: wf.broadcast(x, "d_model batch length"),
    lambda x: jnp.transpose(x, (2, 0, 1)))  # fmt: skip
row("move", "broadcast number", floats("batch"), lambda x: wf.broadcast(wf.sum(x, over="batch"), [length, batch]),
    lambda x: jnp.broadcast_to(jnp.sum(x), (8, 16)))  # fmt: skip

# ---- loops, branches, maps, recomputation, microbatches, local functions


def _layer(c: Any, w: Any) -> Any:
    return wf.tanh(wf.einsum(c, w, over="d_model", rename={"heads_whole": "d_model"}))


_LAYER = ("batch d_model heads_whole", "layers batch d_model heads_whole")


def _scan(fn: Any, start: Any, xs: Any, **rest: Any) -> Any:
    return lax.scan(fn, start, xs, **rest)


for _reverse in (False, True):
    row("control", "scan reverse" if _reverse else "scan",
        (weights("layers d_model heads_whole"), floats("batch d_model")),
        lambda w, x, r=_reverse: wf.scan(lambda c, w: (_layer(c, w), wf.sum(c, over="batch")), x, w, over=layers,
                                         reverse=r),
        lambda w, x, r=_reverse: _scan(lambda c, w: (jnp.tanh(c @ w), jnp.sum(c, 0)), x, w, reverse=r),
        whole="layers", sums="layers batch", meetings=_LAYER)  # fmt: skip
row("control", "scan fresh carry", (weights("d_model heads_whole"), floats("batch layers d_model")),
    lambda w, xs: wf.scan(lambda c, x: (_layer(c + x, w), None), wf.zeros([batch, d_model]), xs, over=layers)[0],
    lambda w, xs: _scan(lambda c, x: (jnp.tanh((c + x) @ w), None), jnp.zeros((16, 8)), jnp.moveaxis(xs, 1, 0))[0],
    whole="layers", sums="layers batch", meetings=_LAYER)  # fmt: skip
row("control", "scan tree", (weights("layers d_model heads_whole"), weights("layers d_model"), floats("batch d_model")),
    lambda w, b, x: wf.scan(lambda c, p: ({"x": _layer(c["x"], p["w"]) + p["b"], "n": c["n"] + 1}, c["n"] * 1.0),
                            {"x": x, "n": 0}, {"w": w, "b": b}, over="layers", unroll=2)[0]["x"],
    lambda w, b, x: _scan(lambda c, p: (jnp.tanh(c @ p[0]) + p[1], None), x, (w, b))[0],
    whole="layers", sums="layers batch", meetings=_LAYER)  # fmt: skip
row("control", "scan without inputs", (weights("d_model heads_whole"), floats("batch d_model")),
    lambda w, x: wf.scan(lambda c, _: (_layer(c, w), wf.max(c, over="d_model")), x, over=wf.Dim("turn", 3)),
    lambda w, x: _scan(lambda c, _: (jnp.tanh(c @ w), jnp.max(c, 1)), x, None, length=3),
    sums="layers batch", meetings=_LAYER[:1])  # fmt: skip
row("control", "scan in scan", (weights("d_model heads_whole"), floats("layers batch d_model")),
    lambda w, xs: wf.scan(
        lambda c, x: (wf.scan(lambda d, _: (_layer(d, w) + x, None), c, over=wf.Dim("turn", 2))[0], None),
        wf.zeros([batch, d_model]), xs, over=layers)[0],
    lambda w, xs: _scan(lambda c, x: (_scan(lambda d, _: (jnp.tanh(d @ w) + x, None), c, None, length=2)[0], None),
                        jnp.zeros((16, 8)), xs)[0],
    whole="layers", sums="layers batch", meetings=_LAYER)  # fmt: skip
row("control", "vmap", (floats("batch length"), weights("length d_model")),
    lambda x, w: wf.vmap(lambda x, w: wf.softmax(wf.einsum(x, w, over="length"), over="d_model"), over="batch")(x, w),
    lambda x, w: jax.nn.softmax(x @ w, axis=-1), sums="d_model")  # fmt: skip
row("control", "vmap two mapped", (floats("batch length"), floats("d_model batch")),
    lambda x, y: wf.vmap(lambda x, y: {"outer": x * y, "sum": wf.sum(x, over="length")}, over=batch)(x, y),
    lambda x, y: {"outer": jnp.einsum("bl,db->bld", x, y), "sum": jnp.sum(x, 1)}, sums="length")  # fmt: skip
row("control", "vmap never split", (floats("batch_whole d_model"), weights("d_model heads")),
    lambda x, w: wf.vmap(lambda x, w: wf.einsum(x, w, over="d_model"), over="batch_whole")(x, w),
    lambda x, w: x @ w)  # fmt: skip
row("control", "vmap closed over", (floats("batch d_model"), weights("d_model heads")),
    lambda x, w: wf.vmap(lambda x: wf.einsum(x, w, over="d_model"), over="batch")(x), lambda x, w: x @ w)  # fmt: skip


def _square_loss(w: Any, x: Any) -> Any:
    return wf.mean(wf.square(wf.einsum(x, w, over="d_model")), over="heads")


row("control", "vmap of grad", (floats("batch d_model"), weights("d_model heads")),
    lambda x, w: wf.vmap(wf.grad(_square_loss), over="batch")(w, x),
    lambda x, w: jax.vmap(jax.grad(lambda w, x: jnp.mean(jnp.square(x @ w))), in_axes=(None, 0))(w, x),
    sums="heads d_model", is_differentiable=False)  # fmt: skip
row("control", "vmap of grad summed", (floats("batch d_model"), weights("d_model heads")),
    lambda x, w: wf.sum(wf.vmap(wf.grad(_square_loss), over="batch")(w, x), over="batch"),
    lambda x, w: jax.grad(lambda w: jnp.sum(jnp.mean(jnp.square(x @ w), -1)))(w),
    sums="heads d_model batch", is_differentiable=False)  # fmt: skip


def _mlp(x: Any, w: Any, v: Any) -> Any:
    h = wf.name(wf.tanh(wf.einsum(x, w, over="d_model")), "hidden")
    return wf.einsum(wf.sin(h), v, over="heads")


_MLP_INPUTS = (floats("batch d_model"), weights("d_model heads"), weights("heads d_model"))
for _save in ((), ("hidden",)):
    row("control", f"remat save {_save}", _MLP_INPUTS, wf.remat(_mlp, save=_save),
        lambda x, w, v: jnp.sin(jnp.tanh(x @ w)) @ v)  # fmt: skip
row("control", "remat in scan", (weights("layers d_model heads_whole"), floats("batch d_model")),
    lambda w, x: wf.scan(wf.remat(lambda c, w: (wf.name(_layer(c, w), "out"), None), save="out"), x, w, over=layers)[0],
    lambda w, x: _scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0],
    whole="layers", sums="layers batch", meetings=_LAYER)  # fmt: skip
row("control", "name", floats("batch d_model"), lambda x: wf.name(x * 2, "twice"), lambda x: x * 2)
for _sign in (1, -1):
    row("control", f"cond {_sign}", _MLP_INPUTS,
        lambda x, w, v, s=_sign: wf.cond(s * wf.sum(wf.square(x), over=x.dims) > 0, lambda x: _mlp(x, w, v),
                                         lambda x: wf.ones([batch, d_model]) * 3, x),
        lambda x, w, v, s=_sign: jnp.sin(jnp.tanh(x @ w)) @ v if s > 0 else jnp.full((16, 8), 3.0))  # fmt: skip
row("control", "while_loop", floats("batch d_model"),
    lambda x: wf.while_loop(lambda c: wf.max(wf.abs(c[0]), over=x.dims) > 0.1, lambda c: (c[0] * 0.5, c[1] + 1),
                            (x, wf.zeros([], dtype="int32"))),
    lambda x: lax.while_loop(lambda c: jnp.max(jnp.abs(c[0])) > 0.1, lambda c: (c[0] * 0.5, c[1] + 1),
                             (x, jnp.int32(0))),
    is_differentiable=False)  # fmt: skip
row("control", "fori_loop", (weights("d_model heads_whole"), floats("batch d_model")),
    lambda w, x: wf.fori_loop(2, 5, lambda i, c: _layer(c * i, w), x),
    lambda w, x: lax.fori_loop(2, 5, lambda i, c: jnp.tanh((c * i) @ w), x),
    sums="layers batch", meetings=_LAYER[:1])  # fmt: skip
row("control", "fori_loop traced limits", (floats("batch d_model"), integers("batch", 0, 5)),
    lambda x, n: wf.fori_loop(0, wf.max(n, over="batch"), lambda i, c: wf.sin(c) + wf.sum(x, over="batch"), x),
    lambda x, n: lax.fori_loop(0, jnp.max(n), lambda i, c: jnp.sin(c) + jnp.sum(x, 0), x),
    sums="batch", is_differentiable=False)  # fmt: skip


def _masked_loss(params: Any, data: Any) -> Any:
    predicted = _mlp(data["x"], *params)
    return wf.sum(wf.square(predicted) * data["weight"], over=predicted.dims), wf.sum(data["weight"], over="batch")


row("control", "accumulate", (*_MLP_INPUTS, floats("batch", 0.5, 1.5)),
    lambda x, w, v, m: wf.accumulate(_masked_loss, (w, v), {"x": x, "weight": m}, over="batch", count=2),
    lambda x, w, v, m: jnp.sum(jnp.square(jnp.sin(jnp.tanh(x @ w)) @ v) * m[:, None]) / jnp.sum(m),
    sums="batch d_model")  # fmt: skip

row("control", "pipeline", (weights("layers d_model heads_whole"), floats("batch d_model")),
    lambda w, x: wf.pipeline(lambda c, w, _: (_layer(c, w), {}), x, w, over=layers, micro=2)[0],
    lambda w, x: _scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0],
    sums="layers batch", meetings=_LAYER)  # fmt: skip

row("control", "local", _two(floats), lambda x, y: wf.local(lambda a, b: jnp.sin(a)[:, :, None] * b, x, y,
    out="batch length d_model"), _by_name(lambda a, b: jnp.sin(a) * b))  # fmt: skip
row("control", "local summed", (floats(_x), weights(_w)),
    lambda x, w: wf.local(lambda a, b: jnp.einsum("bld,dv->lv", a, b), x, w, out=[length, vocab],
                          summed=["batch", "d_model"]),
    lambda x, w: jnp.einsum("bld,dv->lv", x, w))  # fmt: skip
row("control", "local whole", floats(_x), lambda x: wf.local(lambda a: jnp.cumsum(a, 2), x, out=x.dims, whole=d_model),
    lambda x: jnp.cumsum(x, 2), whole="d_model", sums="d_model")  # fmt: skip


def _position(a: Any, here: Any) -> Any:
    assert here.size("length") == a.shape[1]
    return a * (here.start("length") + jnp.arange(here.size(length)))[None, :, None]


row("control", "local here", floats(_x), lambda x: wf.local(_position, x, out=x.dims),
    lambda x: x * jnp.arange(8)[None, :, None])  # fmt: skip
row("control", "local several", floats(_x),
    lambda x: wf.local(lambda a: (a * 2, jnp.transpose(a, (2, 0, 1))), x, out=[x.dims, ["d_model", "batch", "length"]]),
    lambda x: (x * 2, jnp.transpose(x, (2, 0, 1))))  # fmt: skip


def sizes(names: str) -> int:
    """The number of elements of a tensor with these dims."""
    return math.prod(DIMS[name].size for name in names.split())
