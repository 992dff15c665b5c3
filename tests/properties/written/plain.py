"""The language a second time: named arrays on whole jnp arrays, with no mesh, no storage and no padding.

A written program runs under the name `wf` on weft or on this module. Nothing here is shared with weft but `Dim`; a
padded dim has the size of what it holds.
"""

import builtins
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import weft


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["dims"])
@dataclass(frozen=True, eq=False)
class Named:
    """An array and the names of its axes."""

    array: Any
    dims: tuple[weft.Dim, ...]

    @property
    def names(self) -> list[str]:
        return [dim.name for dim in self.dims]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def axis(self, name: Any) -> int:
        return self.names.index(_name(name))

    def along(self, dims: Sequence[weft.Dim]) -> Any:
        """The array with its axes in the order of `dims`, of size 1 for those it lacks."""
        names = [dim.name for dim in dims]
        order = [self.axis(name) for name in names if name in self.names]
        assert len(order) == len(self.dims), (self.dims, dims)
        array = jnp.transpose(self.array, order)
        return array.reshape([self.array.shape[self.axis(n)] if n in self.names else 1 for n in names])

    def replaced(self, array: Any, name: Any, *new: weft.Dim) -> "Named":
        """An array in which one dim became others, or has gone."""
        at = self.axis(name)
        return Named(array, (*self.dims[:at], *new, *self.dims[at + 1 :]))

    def like(self, array: Any) -> "Named":
        """An array of the same names at its own sizes."""
        return Named(array, tuple(d.resized(n) for d, n in zip(self.dims, array.shape, strict=True)))

    def rename(self, **new: Any) -> "Named":
        dims = [new.get(d.name, d) for d in self.dims]
        return Named(self.array, tuple(d.renamed(n) if isinstance(n, str) else n for d, n in zip(self.dims, dims)))  # noqa: B905

    def __getitem__(self, place: tuple[Any, ...]) -> "Named":
        x = self
        for name, at in zip(place[::2], place[1::2], strict=True):
            array = x.array[tuple(at if n == name else builtins.slice(None) for n in x.names)]
            x = x.replaced(array, name) if isinstance(at, int) else x.like(array)
        return x


def _operator(fn: Callable[..., Any], is_reversed: bool = False) -> Any:
    def run(*xs: Any) -> Named:
        return elementwise(fn, *(xs[::-1] if is_reversed else xs))

    return run


for _word, _fn in {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "truediv": jnp.divide, "mod": jnp.remainder,
    "and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor, "floordiv": jnp.floor_divide,
}.items():  # fmt: skip
    setattr(Named, f"__{_word}__", _operator(_fn))
    setattr(Named, f"__r{_word}__", _operator(_fn, is_reversed=True))
for _word, _fn in {
    "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal, "eq": jnp.equal,
    "ne": jnp.not_equal, "neg": jnp.negative, "invert": jnp.invert,
}.items():  # fmt: skip
    setattr(Named, f"__{_word}__", _operator(_fn))


def _name(dim: Any) -> str:
    return dim if isinstance(dim, str) else dim.name


def _names(over: Any) -> list[str]:
    if isinstance(over, str):
        return over.split()
    return [_name(dim) for dim in (over if isinstance(over, list | tuple) else [over])]


def _is_named(x: Any) -> bool:
    return isinstance(x, Named)


def _map(fn: Callable[[Named], Any], tree: Any) -> Any:
    return jax.tree.map(lambda x: fn(x) if _is_named(x) else x, tree, is_leaf=_is_named)


def _joined(*shapes: Sequence[weft.Dim]) -> tuple[weft.Dim, ...]:
    return tuple({dim.name: dim for dims in shapes for dim in dims}.values())


# ---- dims and new arrays


def Dim(name: str, size: int, follows: str | None = None, valid: int | None = None) -> weft.Dim:
    return weft.Dim(name, size if valid is None else valid, follows)


def dims(**sizes: int) -> tuple[weft.Dim, ...]:
    return tuple(Dim(name, size) for name, size in sizes.items())


def _made(dims: Any, make: Callable[[Any], Any]) -> Named:
    return Named(make([d.size for d in dims]), tuple(dims))


def zeros(dims: Any, *, like: Any = None, dtype: Any = "float32") -> Named:
    return _made(dims, lambda sizes: jnp.zeros(sizes, dtype))


def ones(dims: Any, *, like: Any = None, dtype: Any = "float32") -> Named:
    return _made(dims, lambda sizes: jnp.ones(sizes, dtype))


def full(dims: Any, value: Any, *, like: Any = None, dtype: Any = None) -> Named:
    return _made(dims, lambda sizes: jnp.full(sizes, value, dtype))


def arange(dim: Any, *, like: Any = None, dtype: Any = "int32") -> Named:
    return Named(jnp.arange(dim.size, dtype=dtype), (dim,))


# ---- elementwise


def elementwise(fn: Callable[..., Any], *xs: Any) -> Named:
    dims = _joined(*(x.dims for x in xs if _is_named(x)))
    array = fn(*(x.along(dims) if _is_named(x) else x for x in xs))
    return Named(jnp.broadcast_to(array, [d.size for d in dims]), dims)


def __getattr__(name: str) -> Any:
    """Elementwise functions have the names they have in jnp or jax.nn."""
    if name.startswith("__"):
        raise AttributeError(name)
    fn = getattr(jnp, name, None) or getattr(jax.nn, name)
    return lambda *xs: elementwise(fn, *xs)


def where(c: Any, a: Any, b: Any) -> Named:
    return elementwise(jnp.where, c, a, b)


def cast(x: Named, dtype: Any) -> Named:
    return Named(x.array.astype(dtype), x.dims)


def stop_gradient(x: Named) -> Named:
    return Named(lax.stop_gradient(x.array), x.dims)


def name(x: Any, label: str) -> Any:
    return x


def unpad(x: Named, dim: Any) -> Named:
    return x


def pad_to(x: Named, dim: Any, multiple: int) -> Named:
    return x


# ---- reductions and running ones


def _reducing(fn: Callable[..., Any]) -> Any:
    def run(x: Named, *, over: Any, dtype: Any = None) -> Named:
        gone = _names(over)
        asked = {} if dtype is None else {"dtype": dtype}
        array = fn(x.array, axis=tuple(x.axis(n) for n in gone), **asked)
        return Named(array, tuple(d for d in x.dims if d.name not in gone))

    return run


def _average(a: Any, axis: Any, dtype: Any = None) -> Any:
    """The mean of all values, and then its dtype."""
    wide = jnp.promote_types(dtype or a.dtype, "float32")
    return jnp.mean(a.astype(wide), axis=axis).astype(dtype or (jnp.mean(jnp.zeros(1, a.dtype)).dtype))


sum, mean, prod = _reducing(jnp.sum), _reducing(_average), _reducing(jnp.prod)
max, min, any, all = _reducing(jnp.max), _reducing(jnp.min), _reducing(jnp.any), _reducing(jnp.all)
var, logsumexp = _reducing(jnp.var), _reducing(jax.nn.logsumexp)


def softmax(x: Named, *, over: Any) -> Named:
    return Named(jax.nn.softmax(x.array, axis=tuple(x.axis(n) for n in _names(over))), x.dims)


def log_softmax(x: Named, *, over: Any) -> Named:
    return Named(jax.nn.log_softmax(x.array, axis=tuple(x.axis(n) for n in _names(over))), x.dims)


def _running(fn: Callable[..., Any]) -> Any:
    def run(x: Named, *, over: Any, reverse: bool = False) -> Named:
        at = x.axis(over)
        array = fn(jnp.flip(x.array, at) if reverse else x.array, at)
        return Named(jnp.flip(array, at) if reverse else array, x.dims)

    return run


def _largest_so_far(a: Any, at: int) -> Any:
    """The running maximum, of equal ones the first; a NaN wins from where it stands."""
    moved = jnp.moveaxis(a, at, 0)
    n = moved.shape[0]
    found = [moved[jnp.argmax(moved[: i + 1], axis=0), *jnp.indices(moved.shape[1:])] for i in range(n)]
    return jnp.moveaxis(jnp.stack(found), 0, at)


cumsum, cumprod, cummax = _running(jnp.cumsum), _running(jnp.cumprod), _running(_largest_so_far)


def argmax(x: Named, *, over: Any) -> Named:
    return x.replaced(jnp.argmax(x.array, x.axis(over)).astype("int32"), over)


def argmin(x: Named, *, over: Any) -> Named:
    return x.replaced(jnp.argmin(x.array, x.axis(over)).astype("int32"), over)


def sort(x: Named, *, over: Any) -> Named:
    at = x.axis(over)
    places = jnp.argsort(lax.stop_gradient(x.array), axis=at, stable=True)
    return Named(jnp.take_along_axis(x.array, places, at), x.dims)


def top_k(x: Named, *, over: Any, k: weft.Dim) -> tuple[Named, Named]:
    at = x.axis(over)
    backwards = jnp.flip(
        lax.stop_gradient(x.array), at
    )  # so that of equal ones the last of these is the first of those
    order = jnp.flip(jnp.argsort(backwards, axis=at, stable=True), at)
    places = lax.slice_in_dim(x.array.shape[at] - 1 - order, 0, k.size, axis=at)
    values = jnp.take_along_axis(x.array, places, at)
    return x.replaced(values, over, k), x.replaced(places.astype("int32"), over, k)


def einsum(*xs: Named, out: Any = None, over: Any = None, dtype: Any = None) -> Named:
    met = _joined(*(x.dims for x in xs))
    names = _names(out) if out is not None else [d.name for d in met if d.name not in _names(over)]
    letters = {d.name: chr(ord("a") + i) for i, d in enumerate(met)}
    text = ",".join("".join(letters[n] for n in x.names) for x in xs) + "->" + "".join(letters[n] for n in names)
    # As is promised: products of narrow floats are added up in float32.
    array = jnp.einsum(text, *(x.array for x in xs), preferred_element_type=_wide(xs))
    into = dtype or functools.reduce(jnp.promote_types, [x.dtype for x in xs])
    return Named(array.astype(into), tuple(next(d for d in met if d.name == n) for n in names))


def _wide(xs: Sequence[Named]) -> Any:
    dtype = functools.reduce(jnp.promote_types, [x.dtype for x in xs])
    return jnp.promote_types(dtype, "float32") if jnp.issubdtype(dtype, jnp.floating) else None
