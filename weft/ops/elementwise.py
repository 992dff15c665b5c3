"""Elementwise functions and operators: nothing is sent.

Operands are broadcast by name; the result has the dims of the operand that has them all, else all in first-seen order.
With `names="subset"` one operand must have them all: a name that does not fit is an error, and no outer product.
Functions carry the names they have in jnp and jax.nn; `elementwise(fn, ...)` takes any other.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from ..checks import need_function
from ..compat import is_on_host
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


@recorded(arguments_before=1)
def elementwise(fn: Callable[..., Any], *xs: Any, names: str = "any") -> Tensor:
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
    return meeting.guarded(jnp.broadcast_to(array, padded), meeting.dims)


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
        if "argument" in str(error) and "dtype" not in str(error):
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


def _function(fn: Callable[..., Any], name: str | None = None, sign: str = "") -> Callable[..., Tensor]:
    name = name or fn.__name__

    def apply(x: Any, *more: Any) -> Tensor:
        return _elementwise(fn, name, [x, *more])

    return _register(apply, name, sign)


def _binary(fn: Callable[..., Any], name: str | None = None, sign: str = "") -> Callable[..., Tensor]:
    name = name or fn.__name__

    def apply(x: Any, y: Any, *, names: str = "any") -> Tensor:
        return _elementwise(fn, name, [x, y], names)

    return _register(apply, name, sign)


def _register(apply: Callable[..., Tensor], name: str, sign: str) -> Callable[..., Tensor]:
    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`{name}`, elementwise, with dims matched by name."
    return operation(name)(recorded(name=name, sign=sign, numbers_are_data=name != "power")(apply))


abs = _function(jnp.abs, "abs")
exp, exp2, expm1 = _function(jnp.exp), _function(jnp.exp2), _function(jnp.expm1)
log, log1p, log2, log10 = _function(jnp.log), _function(jnp.log1p), _function(jnp.log2), _function(jnp.log10)
sqrt, cbrt, square = _function(jnp.sqrt), _function(jnp.cbrt), _function(jnp.square)
rsqrt = _function(lambda x: lax.rsqrt(x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)), "rsqrt")
sin, cos, tan = _function(jnp.sin), _function(jnp.cos), _function(jnp.tan)
arcsin, arccos, arctan = _function(jnp.arcsin), _function(jnp.arccos), _function(jnp.arctan)
sinh, cosh, tanh = _function(jnp.sinh), _function(jnp.cosh), _function(jnp.tanh)
arcsinh, arccosh, arctanh = _function(jnp.arcsinh), _function(jnp.arccosh), _function(jnp.arctanh)


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

erf, erfc, erfinv = _function(_erf, "erf"), _function(_erfc, "erfc"), _function(special.erfinv, "erfinv")
gammaln, digamma = _function(special.gammaln, "gammaln"), _function(special.digamma, "digamma")
sign, floor, ceil, trunc, rint = map(_function, (jnp.sign, jnp.floor, jnp.ceil, jnp.trunc, jnp.rint))
round = _function(jnp.round, "round")
negative, positive = _function(jnp.negative, sign="-"), _function(jnp.positive)
reciprocal = _function(jnp.reciprocal)
isnan, isinf, isfinite = _function(jnp.isnan), _function(jnp.isinf), _function(jnp.isfinite)
logical_not, invert = _function(jnp.logical_not), _function(jnp.invert, "invert", sign="~")
real, imag, conj = _function(jnp.real), _function(jnp.imag), _function(jnp.conj, "conj")


# Its slope is told by its result, where jax.nn.relu asks its argument: that need not be kept, and a compiler can make
# the result with the product before it. (XLA reads `result > 0` as a question about the argument.)
@jax.custom_jvp
def relu_of_array(x: Any) -> Any:
    """max(x, 0), elementwise."""
    return jnp.maximum(x, 0)


relu_of_array.defjvps(lambda t, result, _: lax.select(result != 0, t, jnp.zeros_like(t)))

relu = _function(relu_of_array, "relu")
relu6, silu, sigmoid = map(_function, (jax.nn.relu6, jax.nn.silu, jax.nn.sigmoid))
swish = _function(jax.nn.silu, "swish")
softplus, soft_sign, log_sigmoid = map(_function, (jax.nn.softplus, jax.nn.soft_sign, jax.nn.log_sigmoid))
elu, celu, selu, mish = map(_function, (jax.nn.elu, jax.nn.celu, jax.nn.selu, jax.nn.mish))
hard_tanh, hard_sigmoid = _function(jax.nn.hard_tanh), _function(jax.nn.hard_sigmoid)
hard_silu, squareplus = _function(jax.nn.hard_silu, "hard_silu"), _function(jax.nn.squareplus)


@recorded
def gelu(x: Any, *, approximate: bool = True) -> Tensor:
    """`jax.nn.gelu`, elementwise."""
    if approximate:
        return _elementwise(lambda a: jax.nn.gelu(a, approximate=True), "gelu", [x])
    return _elementwise(lambda a: 0.5 * a * _erfc(-a * math.sqrt(0.5)), "gelu", [x])


@recorded
def leaky_relu(x: Any, *, negative_slope: float = 0.01) -> Tensor:
    """`jax.nn.leaky_relu`, elementwise."""
    return _elementwise(lambda a: jax.nn.leaky_relu(a, negative_slope), "leaky_relu", [x])


add, subtract = _binary(jnp.add, sign="+"), _binary(jnp.subtract, sign="-")
multiply, divide = _binary(jnp.multiply, sign="*"), _binary(jnp.divide, "divide", sign="/")
floor_divide, remainder = _binary(jnp.floor_divide, sign="//"), _binary(jnp.remainder, "remainder", sign="%")
power = _binary(jnp.power, "power", sign="**")
maximum, minimum = _binary(jnp.maximum), _binary(jnp.minimum)
arctan2, hypot, logaddexp = _binary(jnp.arctan2), _binary(jnp.hypot), _binary(jnp.logaddexp)
equal, not_equal = _binary(jnp.equal, sign="=="), _binary(jnp.not_equal, sign="!=")
less, less_equal = _binary(jnp.less, sign="<"), _binary(jnp.less_equal, sign="<=")
greater, greater_equal = _binary(jnp.greater, sign=">"), _binary(jnp.greater_equal, sign=">=")
logical_and, logical_or, logical_xor = map(_binary, (jnp.logical_and, jnp.logical_or, jnp.logical_xor))
bitwise_and, bitwise_or = _binary(jnp.bitwise_and, sign="&"), _binary(jnp.bitwise_or, sign="|")
bitwise_xor = _binary(jnp.bitwise_xor, sign="^")
left_shift, right_shift = _binary(jnp.left_shift, sign="<<"), _binary(jnp.right_shift, sign=">>")
nextafter = _binary(jnp.nextafter)


@recorded(numbers_are_data=True)
def clip(x: Any, min: Any = None, max: Any = None, *, names: str = "any") -> Tensor:
    """`x` held between `min` and `max`, each of which may be None or a tensor."""
    if min is not None:
        x = maximum(x, min, names=names)
    return minimum(x, max, names=names) if max is not None else x


@recorded(numbers_are_data=True)
def where(condition: Any, a: Any, b: Any, *, names: str = "any") -> Tensor:
    """`a` where the condition holds, `b` elsewhere; `names` as in `elementwise`."""
    return _elementwise(jnp.where, "where", [condition, a, b], names)


@recorded(is_cast=True)
def cast(x: Any, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype, once for each value, so its gradient is summed once."""
    dtype = as_dtype(dtype)
    if not is_tensor(operand(x, "cast")):
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
