"""The tensor: an array, the names of its dims, and its layout.

Imports what stands below it; the operations register the operators here (`operation`). The invariant, always:
the array's shape is the local sizes of the dims under the tensor's region; outside a region the array is global.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from .cells import preformat, read_placement, tensor_cell
from .compat import is_check_of_scalar, is_operator_of_array, to_device, varying
from .dims import Dim, DimLike, Dims, Shape, new_dims
from .dtypes import as_dtype as as_dtype  # which is asked for together with tensors
from .dtypes import as_jax_holds, has_values, short_dtype, value_text
from .elsewhere import OF_A_TENSOR, unknown_method, wrong_rename
from .errors import DimError, RegionError, TensorError, UnknownNameError, fold_frames, public
from .layout import Layout, Placement, Region, axes_in, type_text
from .operators import Operators, operations


@dataclass(frozen=True)
class Kind:
    """How a tensor entered its region, and how its gradient is summed."""

    store: str | None = None
    """`"params"` for a parameter; its array is the stored slice until an op uses it."""
    sums: Any = None
    """The dtype in which gradient sums travel, where one was asked for."""
    cast_to: Any = None
    """A cast put off until the tensor meets data, so that sums travel in `sums` (only with `sums`)."""
    equal: frozenset[str] = frozenset()
    """Axes over which JAX types the array as varying although every processor holds the same (after a gather)."""
    frozen: bool = False
    """Whether a parameter gets no gradient and no update."""

    @property
    def is_plain(self) -> bool:
        return self.store is None and self.sums is None

    @property
    def is_parameter(self) -> bool:
        return self.store == "params"


SLICE = "local_array"
"""What JAX calls a slice that someone asked for by `.local_array`, in a traced program."""
PLAIN = Kind()
PARAMETER = Kind(store="params")


class Tensor(Operators):
    """An array whose dims have names; inside a region, this processor's slice of it."""

    # For lowering and operations, and out of `dir`; what is private is reached here, in leaves.py and in lower/ alone.
    raw: Any
    """The array as it is held: inside a region this processor's slice, before a cast that is put off."""
    region: Region | None
    """The layout on a mesh that the tensor is traced under; None outside a region."""
    kind: Kind
    """How it entered, and how its gradient is summed."""
    _dims: Shape
    _memo: dict[Any, Any]  # what was made of it once (`lower.meet`), and what the record says of it (`marks_of`)
    __slots__ = ("_dims", "_memo", "kind", "raw", "region")
    __hash__ = None  # type: ignore[assignment]

    @public(form="wf.tensor(array, 'batch d_model')")
    def __init__(self, array: Any, dims: Dims):
        made = tensor(array, dims)
        self._fill(made.raw, made._dims, None, PLAIN)

    def _fill(self, array: Any, dims: Shape, region: Region | None, kind: Kind) -> "Tensor":
        self.raw, self._dims, self.region, self.kind, self._memo = array, dims, region, kind, {}
        return self

    @property
    def dims(self) -> Shape:
        """The dims, with names and global sizes."""
        return self._dims

    @property
    def dtype(self) -> Any:
        """The dtype of NumPy, as of an array."""
        return np.dtype(self.kind.cast_to) if self.kind.cast_to is not None else self.raw.dtype

    @property
    def layout(self) -> Layout:
        """The layout this tensor is under; empty outside a region."""
        return Layout("") if self.region is None else self.region.layout

    @property
    @fold_frames
    def array(self) -> jax.Array:
        """The global array as it is, padding and all; there is none in a region.

        `wf.get(x)` and `np.asarray(x)` give the values alone.
        """
        if self.region is not None:
            raise TensorError(
                f"`.array` of {self!r} was asked for inside a region, where it would be one processor's slice",
                state=self.region.state,
                fix="use wf operations, return the tensor from the region, or take the slice: `.local_array`",
            )
        return self.raw

    @property
    def local_array(self) -> jax.Array:
        """This processor's slice; outside a region, the whole array."""
        array = to_device(self.raw)
        array = array if self.kind.cast_to is None else array.astype(self.kind.cast_to)
        if self.region is None or sys._getframe(1).f_globals.get("__name__", "").startswith("weft."):
            return array
        return checkpoint_name(array, SLICE)  # asked for by name, it may be treated as the slice it is

    @public
    def dim(self, name: DimLike) -> Dim:
        """The dim of that name."""
        return self._dims.find(name)

    @public
    def size(self, name: DimLike) -> int:
        """The global size of the dim of that name."""
        return self.dim(name).size

    @public
    def ways(self, dim: DimLike) -> int:
        """Into how many slices a dim is split; 1 outside a region. For schedules only."""
        self._dims.find(dim)
        return 1 if self.region is None else self.region.ways(placement(self)[self._dims.position(dim)])

    @fold_frames
    def rename(self, *wrong: Any, **names: DimLike) -> "Tensor":
        """This tensor with some dims renamed, moved if the new ones are split otherwise."""
        if wrong:
            raise wrong_rename(wrong)
        return operations["rename"](self, **names)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or name in OF_A_TENSOR]

    def __repr__(self) -> str:
        if not hasattr(self.raw, "dtype"):
            return f"Tensor[{self._dims}]({self.raw!r})"
        text = f"{'param ' * self.kind.is_parameter}{type_text(short_dtype(self.dtype), self._dims, placement(self))}"
        return text if self._dims or self.region is not None else text + value_text(self.raw)

    def __str__(self) -> str:
        if not self._dims or self.region is not None or not has_values(self.raw):
            return repr(self)
        return f"{self!r}\n{np.asarray(self)}"

    def _repr_html_(self) -> str:
        if not hasattr(self.raw, "dtype"):
            return preformat(repr(self))
        inside, rank = self.region, len(self._dims)
        over, axes = (placement(self), inside.mesh.axes) if inside else read_placement(self.raw, rank)
        values = self.raw if not inside and has_values(self.raw) else None
        kind = "a frozen parameter" if self.kind.frozen else "a parameter" if self.kind.is_parameter else "a tensor"
        return tensor_cell(kind, short_dtype(self.dtype), self._dims, over, axes, values)

    @fold_frames
    def __format__(self, form: str) -> str:
        return format(np.asarray(self._one_value("format()")).item(), form) if form else str(self)

    # What would silently use one slice as if it were the whole, or lose the names, raises.
    @fold_frames
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.asarray(self._whole_value("np.asarray()"), dtype)
        return whole[self._dims.values] if self._dims.is_padded else whole

    @fold_frames
    def __float__(self) -> float:
        return float(self._one_value("float()"))

    @fold_frames
    def __int__(self) -> int:
        return int(self._one_value("int()"))

    @fold_frames
    def __bool__(self) -> bool:
        return bool(self._one_value("bool()"))

    @property
    def __jax_array__(self) -> Any:
        # JAX looks for this wherever it wants an array. In `0-d jax array * tensor` the tensor's operator has to run.
        caller = sys._getframe(1)
        if is_operator_of_array(caller):
            raise AttributeError("__jax_array__")
        if not self._dims and self.region is None:
            if is_check_of_scalar(caller) or is_check_of_scalar(caller.f_back):
                raise TensorError(
                    f"jax.grad got a function that gives the tensor {self!r}",
                    fix="use wf.grad or wf.value_and_grad, or return `loss.array`",
                )
            return lambda: self.raw
        raise self._no_plain_function("a plain JAX function")

    @fold_frames
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # `np.float32(2) * tensor` and its like
        if method == "__call__" and len(inputs) == 2 and ufunc.__name__ in operations and not kwargs:
            return operations[ufunc.__name__](*inputs)
        raise self._no_plain_function(f"NumPy's `{ufunc.__name__}`")

    def _no_plain_function(self, what: str) -> TensorError:
        return TensorError(
            f"{what} was called on {self!r}; it would not see the names",
            fix="use the wf function of that name, `wf.elementwise(fn, x)` or `wf.local(fn, x, out=...)`; "
            "outside a region `x.array` is the plain array",
        )

    @fold_frames
    def __matmul__(self, other: Any) -> Any:
        shared = [dim.name for dim in self._dims if isinstance(other, Tensor) and other.dims.has(dim)]
        over = shared[-1] if shared else self._dims[-1].name if self._dims else "d_model"
        raise TensorError(
            f"{self!r} @ ... does not say which dim is summed", fix=f"use `wf.einsum(x, w, over='{over}')`"
        )

    __rmatmul__ = __matmul__

    @fold_frames
    def __getitem__(self, index: Any) -> Any:
        return operations["getitem"](self, index)

    @fold_frames
    def __len__(self) -> int:
        raise TensorError(f"len() of {self!r} does not say of which dim", fix=f"use `x.size('{self._example}')`")

    @property
    @fold_frames
    def __index__(self) -> Any:
        # A property, so that `hasattr(x, "__index__")` is False: a tensor is no whole number.
        raise UnknownNameError(
            f"{self!r} was used as a whole number: in range(), as an index or as a size",
            fix=f"sizes are known: `range(x.size('{self._example}'))`; for values, use `wf.fori_loop` or "
            "`wf.take(x, ids, over=...)`, or outside a region `int(x)`",
        )

    @property
    def _example(self) -> str:
        return self._dims[0].name if self._dims else "batch"

    @fold_frames
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by Python and by libraries, to see what is there
            raise AttributeError(name)
        raise unknown_method(self, name)

    @fold_frames
    def __iter__(self) -> Any:
        raise TensorError(f"{self!r} was iterated over", fix="use `wf.scan(fn, carry, x, over=...)`")

    def _number_hint(self) -> str:
        return "" if self._dims else "; for a JAX function that takes one number, give it `x.local_array`"

    def _one_value(self, what: str) -> Any:
        value = self._whole_value(what)
        if self._dims:
            raise TensorError(
                f"{what} of {self!r}, which holds many values", fix="reduce it first, e.g. wf.sum or wf.any"
            )
        return value

    def _whole_value(self, what: str) -> Any:
        if self.region is not None:
            raise TensorError(
                f"{what} of {self!r} inside a region, where values are not known and each processor has a slice",
                state=self.region.state,
                fix=f"return the tensor from the region, or use wf.print, wf.where or wf.cond{self._number_hint()}",
            )
        check_not_donated(self.raw)
        if isinstance(self.raw, jax.ShapeDtypeStruct):
            raise TensorError(f"{what} of {self!r}, which holds no values", fix="give it values, or use wf.trace")
        if isinstance(self.raw, jax.core.Tracer):
            raise TensorError(
                f"{what} of {self!r} while it is being traced, where values are not known",
                fix=f"return the tensor from the traced function, or use wf.print or wf.cond{self._number_hint()}",
            )
        return self.raw


@public(form="wf.tensor(array, 'batch d_model')")
def tensor(array: Any, dims: Dims) -> Tensor:
    """A tensor of an array (NumPy's, JAX's, a ShapeDtypeStruct) with these dims."""
    return _name_dims(array, dims, PLAIN)


@public(form="wf.parameter(array, 'd_model d_ff')")
def parameter(array: Any, dims: Dims | None = None) -> Tensor:
    """An array or tensor stored by the `params.` rules, gathered where used (FSDP)."""
    if isinstance(array, Tensor) and (
        dims is None or Shape(new_dims(dims, what="dims", known=array.dims)) == array.dims
    ):
        return make(array.array, array.dims, None, PARAMETER)
    return _name_dims(array, dims, PARAMETER)


def _name_dims(array: Any, dims: Any, kind: Kind) -> Tensor:
    if isinstance(array, Tensor):
        raise TensorError(
            f"{array!r} is a tensor already", fix="pass its `.array`, or rename its dims: `x.rename(old='new')`"
        )
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        try:
            array = jax.numpy.asarray(array)
        except (TypeError, ValueError, OverflowError) as error:
            raise TensorError(
                f"a tensor cannot be made of {type(array).__name__}: {str(error).splitlines()[0]}",
                fix="give a NumPy or JAX array, a number or a `jax.ShapeDtypeStruct`",
            ) from None
    if isinstance(array, np.ndarray | np.generic) and array.dtype.kind not in "biufcV":
        raise TensorError(f"a tensor cannot hold {array.dtype} values", fix="give an array of numbers or booleans")
    array = as_jax_holds(array)
    if isinstance(array, jax.core.Tracer) and (differing := varying(array)):
        raise TensorError(
            f"a tensor cannot be made of one processor's slice (it differs over {', '.join(sorted(differing))})",
            fix="use `wf.local(fn, x, out=..., summed=...)`, which says how the slices make up the whole",
        )
    shape = _shape_for(array, dims)
    if shape.sizes != tuple(array.shape) and tuple(dim.count for dim in shape) == tuple(array.shape):
        dim = next(dim for dim in shape if dim.is_padded)
        raise DimError(
            f"an array of shape {tuple(array.shape)} has no room for the padding of [{shape}]",
            fix=f"name it without and pad it: `wf.pad_to(wf.tensor(array, dims), '{dim.name}', {dim.size})`",
        )
    if shape.sizes != tuple(array.shape):
        raise DimError(
            f"an array of shape {tuple(array.shape)} does not fit dims [{shape}]",
            fix=f"give dims of sizes {tuple(array.shape)} in that order, or transpose the array",
        )
    return make(array, shape, None, kind)


def _shape_for(array: Any, dims: Any) -> Shape:
    from_names = isinstance(dims, str) or (
        isinstance(dims, Sequence) and not isinstance(dims, Shape) and any(isinstance(dim, str) for dim in dims)
    )
    if not from_names:
        return new_dims(dims, what="dims")
    items = [dims] if isinstance(dims, str) else dims
    names = [word for item in items for word in (item.replace(",", " ").split() if isinstance(item, str) else [item])]
    if len(names) != len(array.shape):
        raise DimError(
            f"an array of shape {tuple(array.shape)} does not fit {len(names)} names: {' '.join(map(str, names))}",
            fix=f"give {len(array.shape)} names, e.g. '{' '.join('abcdefgh'[: len(array.shape)])}'",
        )
    return Shape(
        name if isinstance(name, Dim) else Dim(name, size) for name, size in zip(names, array.shape, strict=True)
    )


def make(array: Any, dims: Sequence[Dim], region: Region | None, kind: Kind = PLAIN) -> Tensor:
    """A tensor from parts already known to fit."""
    shape = dims if isinstance(dims, Shape) else Shape(dims)
    return object.__new__(Tensor)._fill(array, shape, region, kind)


def with_kind(x: Tensor, **changes: Any) -> Tensor:
    """The same array as a tensor of another kind."""
    return make(x.raw, x.dims, x.region, replace(x.kind, **changes))


_MARKS = ("entry", "has_gradient")


def marks_of(x: Tensor) -> dict[str, Any]:
    """What the record says of a tensor: its entry, and whether it has a gradient."""
    return {name: x._memo[name] for name in _MARKS if name in x._memo}


def with_marks(x: Tensor, marks: Mapping[str, Any]) -> Tensor:
    """`x` with what the record says of it."""
    x._memo.update(marks)
    return x


def excess(x: Tensor) -> frozenset[str]:
    """The axes that the array varies over and no dim is split over."""
    assert x.region is not None
    split = set(axes_in(placement(x)))
    return varying(x.raw) - split - set(x.region.taken)


def placement(x: Tensor) -> Placement:
    """Over which axes each dim of `x` is split."""
    if x.region is None:
        return ((),) * len(x._dims)
    return x.region.placement(x._dims, x.kind.store)


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def is_donated(array: Any) -> bool:
    """Whether an array was overwritten by a call that it was donated to."""
    return not isinstance(array, jax.core.Tracer) and isinstance(array, jax.Array) and array.is_deleted()


def check_not_donated(array: Any) -> None:
    """Raises where an array was overwritten by a call that it was donated to."""
    if is_donated(array):
        raise RegionError(
            f"an array of shape {array.shape} was given up to an earlier call (`donate`)",
            fix="use what that call returned, or leave `donate` out",
        )


def check_tensor(x: Tensor) -> Tensor:
    """`x`, if its array is still what its dims say, untouched behind the names."""
    if x.region is None:
        check_not_donated(x.raw)
    shape = getattr(x.raw, "shape", None)
    sizes = x._dims.sizes if x.region is None else x.region.local_sizes(x._dims, placement(x))
    if shape is not None and tuple(shape) != sizes:
        raise TensorError(
            f"a tensor says [{x._dims}] and its array has shape {tuple(shape)} where {sizes} is due: "
            "an axis was stripped, added or resized behind the names",
            state="" if x.region is None else x.region.state,
            fix="use the named form: `wf.scan` for lax.scan or lax.map, `wf.vmap` for jax.vmap",
        )
    if x.region is not None and (differing := excess(x) - x.kind.equal):
        raise TensorError(
            f"the slices of {x!r} differ over {', '.join(f'`{axis}`' for axis in sorted(differing))}, "
            "which splits none of its dims: a plain JAX function was applied to slices behind the names",
            state=x.region.state,
            fix="use wf operations, `wf.local(fn, x, out=..., summed=...)`, or for an optimizer `wf.train_step`",
        )
    return x


def _flatten(x: Tensor) -> tuple[tuple[Any], Any]:
    return (x.raw,), (x._dims, x.region, x.kind)


def _flatten_with_keys(x: Tensor) -> tuple[tuple[Any], Any]:
    return ((jax.tree_util.GetAttrKey("array"), x.raw),), (x._dims, x.region, x.kind)


def _unflatten(aux: Any, children: Any) -> Tensor:
    return object.__new__(Tensor)._fill(children[0], *aux)


jax.tree_util.register_pytree_with_keys(Tensor, _flatten_with_keys, _unflatten, _flatten)
