"""Elementwise functions and operators: nothing is sent.

Operands are broadcast by name; the result has the dims of the operand that has them all, else all in first-seen order.
With `names="subset"` one operand must have them all: a name that does not fit is an error, and no outer product.
Functions carry the names they have in jnp and jax.nn; `elementwise(fn, ...)` takes any other.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from ..checks import need_function
from ..compat import is_on_host, is_wrong_call
from ..dims import Dim, union
from ..dtypes import DTypeLike
from ..errors import DimError, RegionError, TensorError
from ..graph import visits
from ..lower.meet import Meeting, common_region, hoist, meet, operand
from ..lower.move import align, result
from ..lower.recorded import recorded
from ..lower.stored import cast_on_host, fetch_whole
from ..lower.trees import map_tensors
from ..operators import operation
from ..primitives import is_elementwise, row_of
from ..tensor import Kind, Tensor, as_dtype, is_tensor, make, placement, with_kind, with_marks

Operand: TypeAlias = "Tensor | ArrayLike"
"""What elementwise functions take: a tensor, or a number, which may be an array of no dims."""


@recorded(arguments_before=1)
def elementwise(fn: Callable[..., Any], *xs: Operand, names: str = "any") -> Tensor:
    """`fn`, an elementwise function of arrays, on tensors matched by name.

    With `names="subset"` one of the tensors must have the dims of all.
    """
    need_function(fn, "elementwise", of="arrays")
    name = getattr(fn, "__name__", "elementwise")
    return _elementwise(lambda *arrays: _check_and_call(fn, name, arrays), name, xs, names)


def _elementwise(fn: Callable[..., Any], name: str, xs: Sequence[Any], names: str = "any") -> Tensor:
    xs = tuple(operand(x, name) for x in xs)
    tensors = [x for x in xs if is_tensor(x)]
    if not tensors:
        raise TensorError(f"{name} got no tensor", fix="give at least one, e.g. `wf.tensor(2.0, [])`")
    _check_names(tensors, name, names)
    meeting = meet(xs, first=_dims_of_widest(tensors))
    if (kind := _kind_if_stored(tensors)) is not None:
        return _stored_elementwise(fn, name, xs, kind)

    def compute(*arrays: Any) -> Any:
        pairs = zip(arrays, xs, strict=True)
        aligned_arrays = [align(a, x.dims, meeting.dims) if is_tensor(x) else a for a, x in pairs]
        if meeting.dims.is_padded:
            aligned_arrays = [
                _repeat_along_padding(a, meeting) if is_tensor(x) else a
                for a, x in zip(aligned_arrays, xs, strict=True)
            ]
        return _call(fn, name, xs, aligned_arrays)

    array = meeting.run(compute, xs)
    _check_elementwise(array, name, meeting.local_sizes(meeting.dims))
    return result(array, meeting.dims, meeting.region)


def _repeat_along_padding(array: Any, meeting: Meeting) -> Any:
    """An aligned array repeated along padded dims: its gradient leaves padding out."""
    sizes = meeting.local_sizes(meeting.dims)
    padded = [size if dim.is_padded else own for dim, size, own in zip(meeting.dims, sizes, array.shape, strict=True)]
    return meeting.guard(jnp.broadcast_to(array, padded), meeting.dims)


def _check_and_call(fn: Callable[..., Any], name: str, arrays: Sequence[Any]) -> Any:
    """`fn` of the arrays, if it looks at one place at a time, whatever the slices."""
    closed = jax.make_jaxpr(fn)(*arrays)
    rows = (row_of(visit.eqn) for visit in visits(closed.jaxpr) if not is_elementwise(visit.eqn))
    if row := next(rows, None):
        raise TensorError(
            f"{name} is not elementwise: it uses `{row.name}`, so its result would depend on how the tensor is split",
            fix="use wf operations, or `wf.local(fn, x, out=..., whole=...)`, which says what must be whole",
        )
    return fn(*arrays)


def _dims_of_widest(tensors: Sequence[Tensor]) -> Sequence[Dim]:
    """The dims of the first operand that has all, not of a mask named before it."""
    names = {dim.name for x in tensors for dim in x.dims}
    return next((x.dims for x in tensors if len(x.dims) == len(names)), ())


def _check_names(tensors: Sequence[Tensor], name: str, names: str) -> None:
    """Raises where under `names="subset"` no tensor has the dims of all."""
    if names == "any":
        return
    if names != "subset":
        raise TensorError(f"{name} got names={names!r}", fix='say `names="subset"` or `names="any"`')
    most = max(tensors, key=lambda x: len(x.dims))
    for x in tensors:
        if stray := next((dim for dim in x.dims if not most.dims.has(dim)), None):
            missing = [dim.name for dim in most.dims if not x.dims.has(dim)]
            nearest = difflib.get_close_matches(stray.name, missing, n=1, cutoff=0)[0]
            raise DimError(
                f"{name} of [{most.dims}] and [{x.dims}]: the first has no `{stray.name}`, and the result would have "
                f"[{union(most.dims, x.dims)}]",
                fix=f"rename it: `x.rename({stray.name}='{nearest}')`; if all these dims are meant, "
                "`wf.broadcast` one operand to them first",
            )


def _call(fn: Callable[..., Any], name: str, xs: Sequence[Any], arrays: Sequence[Any]) -> Any:
    try:
        return fn(*arrays)
    except jax.errors.UnexpectedTracerError:
        raise RegionError(
            f"{name} got a tensor that left its region, or a traced function, other than as its result",
            fix="return it from there, and use what the call gives",
        ) from None
    except (TypeError, ValueError, OverflowError) as error:
        floats = any(jnp.issubdtype(x.dtype, jnp.inexact) for x in xs if is_tensor(x))
        other = "int32" if floats else "float32"
        cure = f"cast the operands to dtypes the function takes, e.g. `wf.cast(x, '{other}')`, or use another function"
        if is_wrong_call(error):
            cure = "give it as many operands as it takes"
        raise TensorError(
            f"{name}({', '.join(map(repr, xs))}) failed: {str(error).splitlines()[0]}", fix=cure
        ) from error


def _kind_if_stored(tensors: Sequence[Tensor]) -> Kind | None:
    """The kind of a result of stored parameters of one shape: stored, not gathered."""
    named = [x for x in tensors if x.dims]
    region = common_region(tensors)
    # Inside a mapped dim even a number differs between processors, and a parameter from outside no longer fits.
    if not named or region is None or any(x.kind.store is None or x.region is not region for x in named):
        return None
    together = all(set(x.dims) == set(named[0].dims) and x.kind.cast_to is None for x in named)
    together = together and not named[0].dims.is_padded
    return Kind(store=named[0].kind.store, sums=named[0].kind.sums) if together else None


def _stored_elementwise(fn: Callable[..., Any], name: str, xs: Sequence[Any], kind: Kind) -> Tensor:
    xs = [fetch_whole(x) if is_tensor(x) else x for x in xs]
    first = next(x for x in xs if is_tensor(x) and x.dims)
    array = _call(fn, name, xs, [align(x.raw, x.dims, first.dims) if is_tensor(x) else x for x in xs])
    _check_elementwise(array, name, first.region.local_sizes(first.dims, placement(first)))
    return result(array, first.dims, first.region, kind)


def _check_elementwise(array: Any, name: str, sizes: tuple[int, ...]) -> None:
    if getattr(array, "shape", None) != sizes:
        got = getattr(array, "shape", type(array).__name__)
        raise TensorError(
            f"{name} is not elementwise: on slices of shape {sizes} it gave {got}",
            fix="use `wf.local(fn, x, out=...)`, which says what comes out",
        )


class _OfOne(Protocol):
    def __call__(self, x: Operand) -> Tensor: ...


class _OfTwo(Protocol):
    def __call__(self, x: Operand, y: Operand, *, names: str = "any") -> Tensor: ...


def _of_one(fn: Callable[..., Any], name: str, says: str, sign: str = "") -> _OfOne:
    def apply(x: Operand) -> Tensor:
        return _elementwise(fn, name, [x])

    apply.__doc__ = says
    return _register(apply, name, sign)


def _of_two(fn: Callable[..., Any], name: str, says: str, sign: str = "") -> _OfTwo:
    def apply(x: Operand, y: Operand, *, names: str = "any") -> Tensor:
        return _elementwise(fn, name, [x, y], names)

    apply.__doc__ = f'{says}\n\nDims are matched by name; with `names="subset"` one operand must have those of both.'
    return _register(apply, name, sign)


def _register(apply: Callable[..., Tensor], name: str, sign: str) -> Any:
    apply.__name__ = apply.__qualname__ = name
    return operation(name)(recorded(name=name, sign=sign, numbers_are_data=name != "power")(apply))


abs = _of_one(jnp.abs, "abs", "The absolute value of `x`.")
exp = _of_one(jnp.exp, "exp", "e to the power of `x`.")
exp2 = _of_one(jnp.exp2, "exp2", "2 to the power of `x`.")
expm1 = _of_one(jnp.expm1, "expm1", "`exp(x) - 1`, accurate where `x` is near 0.")
log = _of_one(jnp.log, "log", "The natural logarithm of `x`.")
log1p = _of_one(jnp.log1p, "log1p", "`log(1 + x)`, accurate where `x` is near 0.")
log2 = _of_one(jnp.log2, "log2", "The logarithm of `x` to base 2.")
log10 = _of_one(jnp.log10, "log10", "The logarithm of `x` to base 10.")
sqrt = _of_one(jnp.sqrt, "sqrt", "The square root of `x`.")
cbrt = _of_one(jnp.cbrt, "cbrt", "The cube root of `x`.")
square = _of_one(jnp.square, "square", "`x * x`.")
rsqrt = _of_one(
    lambda x: lax.rsqrt(x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)),
    "rsqrt",
    "`1 / sqrt(x)`, in floats; of integers too.",
)
sin = _of_one(jnp.sin, "sin", "The sine of `x`, in radians.")
cos = _of_one(jnp.cos, "cos", "The cosine of `x`, in radians.")
tan = _of_one(jnp.tan, "tan", "The tangent of `x`, in radians.")
arcsin = _of_one(jnp.arcsin, "arcsin", "The angle, in radians, whose sine is `x`.")
arccos = _of_one(jnp.arccos, "arccos", "The angle, in radians, whose cosine is `x`.")
arctan = _of_one(jnp.arctan, "arctan", "The angle, in radians, whose tangent is `x`.")
sinh = _of_one(jnp.sinh, "sinh", "The hyperbolic sine of `x`.")
cosh = _of_one(jnp.cosh, "cosh", "The hyperbolic cosine of `x`.")
tanh = _of_one(jnp.tanh, "tanh", "The hyperbolic tangent of `x`.")
arcsinh = _of_one(jnp.arcsinh, "arcsinh", "The number whose hyperbolic sine is `x`.")
arccosh = _of_one(jnp.arccosh, "arccosh", "The number, not negative, whose hyperbolic cosine is `x`.")
arctanh = _of_one(jnp.arctanh, "arctanh", "The number whose hyperbolic tangent is `x`.")


# JAX 0.12's own derivative of erf cannot be traced inside a region, so it is given here.
@jax.custom_jvp
def _erf(x: Any) -> Any:
    return special.erf(x)


@jax.custom_jvp
def _erfc(x: Any) -> Any:
    return special.erfc(x)


def _erf_slope(x: Any) -> Any:
    return (2 / math.sqrt(math.pi)) * jnp.exp(-jnp.square(x))


_erf.defjvps(lambda t, _, x: t * _erf_slope(x))
_erfc.defjvps(lambda t, _, x: -t * _erf_slope(x))

erf = _of_one(_erf, "erf", "The error function of `x`.")
erfc = _of_one(_erfc, "erfc", "`1 - erf(x)`, accurate where that is near 0.")
erfinv = _of_one(special.erfinv, "erfinv", "The number whose error function is `x`.")
gammaln = _of_one(special.gammaln, "gammaln", "The logarithm of the absolute value of the gamma function of `x`.")
digamma = _of_one(special.digamma, "digamma", "The derivative of `gammaln` at `x`.")
sign = _of_one(jnp.sign, "sign", "-1, 0 or 1, as `x` is negative, zero or positive.")
floor = _of_one(jnp.floor, "floor", "The largest whole number that is not above `x`.")
ceil = _of_one(jnp.ceil, "ceil", "The smallest whole number that is not below `x`.")
trunc = _of_one(jnp.trunc, "trunc", "`x` rounded towards 0 to a whole number.")
rint = _of_one(jnp.rint, "rint", "`x` rounded to the nearest whole number, halves to the even one.")


@recorded(numbers_are_data=True)
def round(x: Operand, decimals: int = 0) -> Tensor:
    """`x` rounded to so many decimals, halves to the even digit."""
    return _elementwise(jnp.round, "round", [x, decimals])


negative = _of_one(jnp.negative, "negative", "`-x`.", sign="-")
positive = _of_one(jnp.positive, "positive", "`x` as it is.")
reciprocal = _of_one(jnp.reciprocal, "reciprocal", "`1 / x`.")
isnan = _of_one(jnp.isnan, "isnan", "Whether `x` is NaN, which is no number.")
isinf = _of_one(jnp.isinf, "isinf", "Whether `x` is infinite, of either sign.")
isfinite = _of_one(jnp.isfinite, "isfinite", "Whether `x` is neither infinite nor NaN.")
logical_not = _of_one(jnp.logical_not, "logical_not", "Whether `x` is false or zero.")
invert = _of_one(jnp.invert, "invert", "`~x`: each bit the other way; of a boolean its opposite.", sign="~")
real = _of_one(jnp.real, "real", "The real part of `x`.")
imag = _of_one(jnp.imag, "imag", "The imaginary part of `x`.")
conj = _of_one(jnp.conj, "conj", "The complex conjugate of `x`.")


# Its slope is told by its result, where jax.nn.relu asks its argument: that need not be kept, and a compiler can make
# the result with the product before it. (XLA reads `result > 0` as a question about the argument.)
@jax.custom_jvp
def relu_of_array(x: Any) -> Any:
    """max(x, 0), elementwise."""
    return jnp.maximum(x, 0)


relu_of_array.defjvps(lambda t, result, _: lax.select(result != 0, t, jnp.zeros_like(t)))

relu = _of_one(relu_of_array, "relu", "`max(x, 0)`.")
relu6 = _of_one(jax.nn.relu6, "relu6", "`min(max(x, 0), 6)`.")
silu = _of_one(jax.nn.silu, "silu", "`x * sigmoid(x)`, which is also called swish.")
swish = _of_one(jax.nn.silu, "swish", "`x * sigmoid(x)`: `silu` by its other name.")
sigmoid = _of_one(jax.nn.sigmoid, "sigmoid", "`1 / (1 + exp(-x))`.")
softplus = _of_one(jax.nn.softplus, "softplus", "`log(1 + exp(x))`, a smooth `relu`.")
soft_sign = _of_one(jax.nn.soft_sign, "soft_sign", "`x / (1 + abs(x))`.")
log_sigmoid = _of_one(jax.nn.log_sigmoid, "log_sigmoid", "`log(sigmoid(x))`, which is `-softplus(-x)`.")
selu = _of_one(jax.nn.selu, "selu", "A scaled `elu` that keeps mean and variance from layer to layer.")
mish = _of_one(jax.nn.mish, "mish", "`x * tanh(softplus(x))`.")
hard_tanh = _of_one(jax.nn.hard_tanh, "hard_tanh", "`x` held between -1 and 1.")
hard_sigmoid = _of_one(jax.nn.hard_sigmoid, "hard_sigmoid", "`relu6(x + 3) / 6`.")
hard_silu = _of_one(jax.nn.hard_silu, "hard_silu", "`x * hard_sigmoid(x)`.")


@recorded(numbers_are_data=True)
def elu(x: Operand, alpha: Operand = 1.0) -> Tensor:
    """`x` where it is positive, `alpha * (exp(x) - 1)` elsewhere."""
    return _elementwise(jax.nn.elu, "elu", [x, alpha])


@recorded(numbers_are_data=True)
def celu(x: Operand, alpha: Operand = 1.0) -> Tensor:
    """`x` where it is positive, `alpha * (exp(x / alpha) - 1)` elsewhere."""
    return _elementwise(jax.nn.celu, "celu", [x, alpha])


@recorded(numbers_are_data=True)
def squareplus(x: Operand, b: Operand = 4.0) -> Tensor:
    """`(x + sqrt(x**2 + b)) / 2`, a smooth `relu`."""
    return _elementwise(jax.nn.squareplus, "squareplus", [x, b])


@recorded
def gelu(x: Operand, *, approximate: bool = True) -> Tensor:
    """`x` times the share of a normal distribution below it, or near that by a tanh."""
    if approximate:
        return _elementwise(lambda a: jax.nn.gelu(a, approximate=True), "gelu", [x])
    return _elementwise(lambda a: 0.5 * a * _erfc(-a * math.sqrt(0.5)), "gelu", [x])


@recorded
def leaky_relu(x: Operand, *, negative_slope: float = 0.01) -> Tensor:
    """`x` where it is positive, `negative_slope * x` elsewhere."""
    return _elementwise(lambda a: jax.nn.leaky_relu(a, negative_slope), "leaky_relu", [x])


add = _of_two(jnp.add, "add", "`x + y`.", sign="+")
subtract = _of_two(jnp.subtract, "subtract", "`x - y`.", sign="-")
multiply = _of_two(jnp.multiply, "multiply", "`x * y`.", sign="*")
divide = _of_two(jnp.divide, "divide", "`x / y`, in floats.", sign="/")
floor_divide = _of_two(jnp.floor_divide, "floor_divide", "`x // y`: the quotient rounded down.", sign="//")
remainder = _of_two(jnp.remainder, "remainder", "`x % y`, which has the sign of `y`.", sign="%")
power = _of_two(jnp.power, "power", "`x ** y`.", sign="**")
maximum = _of_two(jnp.maximum, "maximum", "The larger of `x` and `y`; NaN where one of them is.")
minimum = _of_two(jnp.minimum, "minimum", "The smaller of `x` and `y`; NaN where one of them is.")
arctan2 = _of_two(jnp.arctan2, "arctan2", "The angle, in radians, of the point that lies `x` up and `y` to the right.")
hypot = _of_two(jnp.hypot, "hypot", "`sqrt(x**2 + y**2)`, without overflow on the way.")
logaddexp = _of_two(jnp.logaddexp, "logaddexp", "`log(exp(x) + exp(y))`, without overflow on the way.")
equal = _of_two(jnp.equal, "equal", "Whether `x == y`.", sign="==")
not_equal = _of_two(jnp.not_equal, "not_equal", "Whether `x != y`.", sign="!=")
less = _of_two(jnp.less, "less", "Whether `x < y`.", sign="<")
less_equal = _of_two(jnp.less_equal, "less_equal", "Whether `x <= y`.", sign="<=")
greater = _of_two(jnp.greater, "greater", "Whether `x > y`.", sign=">")
greater_equal = _of_two(jnp.greater_equal, "greater_equal", "Whether `x >= y`.", sign=">=")
logical_and = _of_two(jnp.logical_and, "logical_and", "Whether both `x` and `y` are true, or not zero.")
logical_or = _of_two(jnp.logical_or, "logical_or", "Whether `x` or `y`, or both, are true, or not zero.")
logical_xor = _of_two(jnp.logical_xor, "logical_xor", "Whether `x` or `y`, and not both, are true, or not zero.")
bitwise_and = _of_two(jnp.bitwise_and, "bitwise_and", "`x & y`, bit by bit.", sign="&")
bitwise_or = _of_two(jnp.bitwise_or, "bitwise_or", "`x | y`, bit by bit.", sign="|")
bitwise_xor = _of_two(jnp.bitwise_xor, "bitwise_xor", "`x ^ y`, bit by bit.", sign="^")
left_shift = _of_two(jnp.left_shift, "left_shift", "`x << y`: the bits of `x` moved up by `y` places.", sign="<<")
right_shift = _of_two(jnp.right_shift, "right_shift", "`x >> y`: the bits of `x` moved down by `y` places.", sign=">>")
nextafter = _of_two(jnp.nextafter, "nextafter", "The float next to `x` on the way to `y`.")


@recorded(numbers_are_data=True)
def clip(x: Operand, min: "Operand | None" = None, max: "Operand | None" = None, *, names: str = "any") -> Tensor:
    """`x` held between `min` and `max`, each of which may be None or a tensor."""
    held: Any = x if min is None else maximum(x, min, names=names)
    return held if max is None else minimum(held, max, names=names)


@recorded(numbers_are_data=True)
def where(condition: Operand, a: Operand, b: Operand, *, names: str = "any") -> Tensor:
    """`a` where the condition holds, `b` elsewhere; `names` as in `elementwise`."""
    return _elementwise(jnp.where, "where", [condition, a, b], names)


@recorded(is_cast=True)
def cast(x: Operand, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype, once for each value, so its gradient is summed once."""
    dtype = as_dtype(dtype)
    operand(x, "cast")
    if not isinstance(x, Tensor):
        return make(jnp.asarray(x, dtype), (), None)
    if x.dtype == dtype:
        return x
    if x.kind.sums is not None and jnp.issubdtype(dtype, jnp.inexact):
        return hoist(x, ("cast to", dtype), lambda: with_kind(x, cast_to=dtype))
    if x.region is not None and is_on_host(x.raw):
        return hoist(x, ("cast to", dtype), lambda: cast_on_host(x, dtype))
    kind = Kind(store=x.kind.store, frozen=x.kind.frozen)
    if x.region is None or not isinstance(x.raw, jax.core.Tracer):
        made = _elementwise(lambda a: a.astype(dtype), "cast", [x])
        return make(made.raw, made.dims, None, kind) if x.region is None else made
    return hoist(x, ("cast", dtype), lambda: result(x.raw.astype(dtype), meet([x]).dims, x.region, kind))


@recorded
def stop_gradient(x: Any) -> Any:
    """`x`, through which no gradient flows; takes a tree of tensors too."""
    for leaf in jax.tree.leaves(x, is_leaf=is_tensor):
        operand(leaf, "stop_gradient")
    return map_tensors(lambda y: with_marks(y, {"has_gradient": False}), lax.stop_gradient(x))
