"""The border between global and local: a function of global tensors run as one SPMD program.

`spmd` wraps `jax.shard_map` with every mesh axis manual; what goes in and out follows from the dims. One trace
decides the placement of the results too.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..errors import LayoutError, RegionError, TensorError, WeftWarning
from ..layout import Layout, Region, as_layout, open_region, opened, spec
from ..mesh import Mesh, as_mesh
from ..ops import collectives
from ..ops.collectives import varying
from ..ops.debug import failures
from ..ops.move import relocate
from ..tensor import Kind, Tensor, checked, is_tensor, make, placement
from .place import put_array


def spmd(
    fn: Callable[..., Any],
    *,
    mesh: Any,
    layout: Any,
    static: int | str | Sequence[int | str] = (),
    donate: int | Sequence[int] = (),
    strict: bool = False,
) -> Callable[..., Any]:
    """`fn` as one SPMD program on a mesh: global tensors in, global tensors out.

    `static` arguments are compiled in, `donate`d ones may be overwritten; `strict` makes an axis that splits nothing
    an error instead of a warning.
    """
    mesh, layout = as_mesh(mesh), as_layout(layout)
    if hasattr(fn, "on_mesh"):  # a train step has a part in global view
        return fn.on_mesh(mesh, layout, strict=strict, donate=_arguments(fn, donate, "donate"))
    if not callable(fn):
        raise TensorError(
            f"spmd got {fn!r}, which is no function", fix="give the function: `wf.spmd(net, mesh=..., layout=...)`"
        )
    return Spmd(fn, mesh, layout, _arguments(fn, static, "static"), _arguments(fn, donate, "donate"), strict)


def _arguments(fn: Callable[..., Any], given: Any, what: str) -> tuple[int, ...]:
    """The positions of the arguments named; each must be there."""
    several = (given,) if isinstance(given, int | str) else tuple(given) if isinstance(given, Sequence) else (given,)
    try:
        parameters = list(inspect.signature(fn).parameters.values()) if several else []
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    is_open = not parameters or len(names) < len(parameters)
    found = []
    for item in several:
        position = names.index(item) if item in names else item
        if (
            not isinstance(position, int)
            or isinstance(position, bool)
            or not (is_open or -len(names) <= position < len(names))
        ):
            known = ", ".join(f"{i} `{name}`" for i, name in enumerate(names))
            raise TensorError(f"`{what}` names argument {item!r}, which is not there", fix=f"use one of: {known}")
        found.append(position % len(names) if names and not is_open else position)
    return tuple(found)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """A value that is part of the program, not of its data."""

    value: Any


@dataclass(frozen=True)
class _Call:
    """What one way of calling compiles for: the tree of arguments, and what each array in it stands for."""

    structure: Any
    slots: tuple[Any, ...]
    donated: tuple[bool, ...]


class Spmd:
    """A function bound to a mesh and a layout."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Mesh,
        layout: Layout,
        static: tuple[Any, ...] = (),
        donate: tuple[int, ...] = (),
        strict: bool = False,
        quiet: bool = False,
    ):
        self.fn, self.mesh, self.layout = fn, mesh, layout
        self.static, self.donate = static, donate
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = fn.__doc__
        Region(mesh, layout)  # every axis named is there
        if not quiet:
            check_axes_used(mesh, layout, strict)
        self._compiled: dict[_Call, Callable[..., Any]] = {}
        self._shardings: dict[_Call, list[NamedSharding]] = {}
        self._checks: dict[_Call, bool] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (outer := _region_around(args, kwargs)) is not None:
            return self._inline(outer, args, kwargs)
        call, arrays = self._read(args, kwargs)
        if call not in self._compiled:
            self._compiled[call] = jax.jit(
                lambda gone, kept: self.run(call, gone, kept, self.mesh.jax_mesh()), donate_argnums=0
            )
        traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
        if not traced:
            arrays = self._placed(call, arrays)
        before = failures.checks_traced
        found = self._compiled[call](*_parted(arrays, call.donated))
        self._checks[call] = self._checks.get(call, False) or failures.checks_traced > before
        if self._checks[call] and not traced:
            jax.effects_barrier()
            failures.raise_first()
        return without_statics(found)

    def on(self, mesh: Any, *args: Any, **kwargs: Any) -> Any:
        """The program as part of a larger one that is being traced, on a mesh of devices or an abstract one."""
        call, arrays = self._read(args, kwargs)
        return without_statics(self.run(call, *_parted(arrays, call.donated), mesh))

    def abstract(self, *args: Any, **kwargs: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The program as a function to trace without devices, and its arguments."""
        call, arrays = self._read(args, kwargs)
        mesh = self.mesh.abstract()
        return lambda gone, kept: self.run(call, gone, kept, mesh), _parted(arrays, call.donated)

    def _read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[_Call, list[Any]]:
        args, kwargs = self._with_statics(args, kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_tensor)
        slots, arrays, donated = [], [], []
        owners = [i for i, arg in enumerate(args) for _ in jax.tree.leaves(arg, is_leaf=is_tensor)]
        for i, leaf in enumerate(leaves):
            slot, array = _read_leaf(leaf)
            if slot is None:
                raise _unnamed(args, kwargs, i)
            slots.append(slot)
            if array is not None:
                arrays.append(array)
                donated.append(i < len(owners) and owners[i] in self.donate)
        _check_donated_once([a for a, gone in zip(arrays, donated, strict=True) if gone])
        return _Call(structure, tuple(slots), tuple(donated)), arrays

    def _with_statics(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self.static:
            return tuple(args), kwargs
        names = list(inspect.signature(self.fn).parameters)
        args = tuple(Static(arg) if i in self.static else arg for i, arg in enumerate(args))
        named = {names[i] for i in self.static if i < len(names)}
        return args, {name: Static(value) if name in named else value for name, value in kwargs.items()}

    def _placed(self, call: _Call, arrays: Sequence[Any]) -> list[Any]:
        """The arrays where the program wants them, so that nothing is copied inside and donation works."""
        if call not in self._shardings:
            region, mesh = Region(self.mesh, self.layout), self.mesh.jax_mesh()
            self._shardings[call] = [NamedSharding(mesh, placed) for placed in _specs(call, region)]
        return [put_array(array, wanted) for array, wanted in zip(arrays, self._shardings[call], strict=True)]

    def run(self, call: _Call, gone: Sequence[Any], kept: Sequence[Any], mesh: Any) -> Any:
        """The program itself, on a mesh of devices or an abstract one; gives tensors, with statics wrapped."""
        arrays: Sequence[Any] = _joined(gone, kept, call.donated)
        region = Region(self.mesh, self.layout)
        in_specs = tuple(_specs(call, region))
        mesh, arrays = _on_callers_mesh(mesh, arrays, in_specs)
        out_specs: list[PartitionSpec] = []
        outputs: list[Any] = []

        def body(*arrays: Any) -> list[Any]:
            found = iter(arrays)
            leaves = [
                slot.value if isinstance(slot, Static) else slot.local(next(found), region) for slot in call.slots
            ]
            args, kwargs = without_statics(jax.tree.unflatten(call.structure, leaves))
            with opened(region):
                result = self.fn(*args, **kwargs)
                leaving = _Leaving(result, region)
            region.check_all_rules_matched()
            out_specs[:] = leaving.specs  # shard_map reads the specs after it has called the body
            outputs[:] = [leaving]
            return leaving.arrays

        found = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)(*arrays)
        return outputs[0].joined(found)

    def _inline(self, outer: Region, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if outer.mesh != self.mesh:
            raise RegionError(
                f"a region of mesh {self.mesh} was called inside a region of mesh {outer.mesh}",
                state=outer.state,
                fix=f"use one mesh for both: `mesh={str(outer.mesh)!r}`",
            )
        if outer.layout == self.layout:
            return self.fn(*args, **kwargs)
        inner = Region(self.mesh, self.layout)
        args, kwargs = _moved((args, kwargs), outer, inner)
        with opened(inner):
            result = self.fn(*args, **kwargs)
        inner.check_all_rules_matched()
        return _moved(result, inner, outer)


def check_axes_used(mesh: Mesh, layout: Layout, strict: bool) -> None:
    """Warns of an axis over which nothing is split: its processors all do the same."""
    unused = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in layout.axes]
    if not unused:
        return
    ways = math.prod(mesh.axes[axis] for axis in unused)
    named = "axis " + f"`{unused[0]}`" if len(unused) == 1 else "axes " + ", ".join(f"`{axis}`" for axis in unused)
    error = LayoutError(
        f"no rule of the layout uses mesh {named}: each piece of work is done {ways} times",
        state=f"layout: {layout}   mesh: {mesh}",
        fix=f"split a dim over it, e.g. `{_with_axis(layout, unused[0])}`, or leave `{unused[0]}` out of the mesh",
    )
    if strict:
        raise error
    warnings.warn(str(error), WeftWarning, stacklevel=4)


def _with_axis(layout: Layout, axis: str) -> str:
    name, axes = next(iter(layout.rules.items()), ("batch", ()))
    return f"{name}:{'+'.join((*axes, axis))}"


@dataclass(frozen=True)
class _TensorSlot:
    """A tensor among the arguments."""

    dims: Any
    kind: Kind
    fits: bool

    def local(self, array: Any, region: Region) -> Any:
        if not self.fits:
            return make(array, self.dims, None, self.kind)
        return make(array, self.dims, region, self.kind)


@dataclass(frozen=True)
class _ValueSlot:
    """A key or a number among the arguments, the same on all processors."""

    def local(self, array: Any, region: Region) -> Any:
        return array


def _specs(call: _Call, region: Region) -> list[PartitionSpec]:
    """How each array among the arguments is split."""
    found = []
    for slot in call.slots:
        if isinstance(slot, _TensorSlot) and slot.fits:
            found.append(spec(region.placement(slot.dims, slot.kind.store)))
        elif not isinstance(slot, Static):
            found.append(PartitionSpec())
    return found


def _on_callers_mesh(mesh: Any, arrays: Sequence[Any], specs: Sequence[PartitionSpec]) -> tuple[Any, Sequence[Any]]:
    """The mesh and the arrays to use where the caller's own program has typed shardings (an Explicit mesh).

    Such a program needs results and gradients typed on its own mesh, and says where a sharding changes.
    """
    for array in arrays:
        theirs = getattr(getattr(jax.typeof(array), "sharding", None), "mesh", None)
        if theirs is not None and dict(theirs.shape) == dict(mesh.shape) and AxisType.Explicit in theirs.axis_types:
            pairs = zip(arrays, specs, strict=True)
            return theirs, [jax.sharding.reshard(a, NamedSharding(theirs, placed)) for a, placed in pairs]
    return mesh, arrays


def _read_leaf(leaf: Any) -> tuple[Any, Any]:
    """What a leaf of the arguments stands for, and its array if it has one; (None, None) if it cannot go in."""
    if is_tensor(leaf):
        shape = getattr(leaf._array, "shape", None)
        if shape is None:
            return Static(leaf), None
        # An optimizer's state may hold an array of another shape in a tensor's place: it goes to every processor.
        kind = replace(leaf._kind, equal=frozenset()) if leaf._kind.equal else leaf._kind
        return _TensorSlot(leaf.dims, kind, tuple(shape) == leaf.dims.sizes), leaf._array
    if isinstance(leaf, int | float | complex) and not isinstance(leaf, bool):
        return _ValueSlot(), leaf
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type):
        return (_ValueSlot(), leaf) if leaf.shape == () else (None, None)
    try:
        hash(leaf)
    except TypeError:
        return None, None
    return Static(leaf), None


def _unnamed(args: Any, kwargs: Any, i: int) -> TensorError:
    path, leaf = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_tensor)[0][i]
    keyword = path[0].idx == 1
    where = f"argument {'' if keyword else path[1].idx}{jax.tree_util.keystr(path[1 if keyword else 2 :])}"
    if not hasattr(leaf, "shape"):
        return TensorError(
            f"{where} is {type(leaf).__name__}, which cannot be compiled in", fix="make it hashable, or close over it"
        )
    cure = f"name them: `wf.tensor(array, [{', '.join('...' for _ in leaf.shape)}])`"
    if leaf.shape == (2,) and leaf.dtype == np.uint32:
        cure += "; if it is a random key, make it by `jax.random.key(seed)`"
    return TensorError(f"{where} is a plain array of shape {tuple(leaf.shape)}, whose dims have no names", fix=cure)


def _check_donated_once(arrays: Sequence[Any]) -> None:
    if len({id(array) for array in arrays}) < len(arrays):
        raise RegionError("one array is donated twice", fix="donate each array once, or copy one: `jnp.copy(array)`")


def _parted(arrays: Sequence[Any], donated: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    pairs = list(zip(arrays, donated, strict=True))
    return [a for a, gone in pairs if gone], [a for a, gone in pairs if not gone]


def _joined(gone: Sequence[Any], kept: Sequence[Any], donated: Sequence[bool]) -> list[Any]:
    gone_left, kept_left = iter(gone), iter(kept)
    return [next(gone_left if is_gone else kept_left) for is_gone in donated]


def with_statics(tree: Any) -> Any:
    """The tree with every leaf that is no tensor, array or number wrapped as static."""

    def wrap(leaf: Any) -> Any:
        is_data = is_tensor(leaf) or hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)
        return leaf if is_data and not isinstance(leaf, bool | type) else Static(leaf)

    return jax.tree.map(wrap, tree, is_leaf=is_tensor)


def without_statics(tree: Any) -> Any:
    """The tree with the values that were wrapped as static."""
    is_static = lambda node: isinstance(node, Static)  # noqa: E731
    return jax.tree.map(lambda node: node.value if is_static(node) else node, tree, is_leaf=is_static)


class _Leaving:
    """A region's result taken apart: arrays, their specs, and how to join them to global tensors."""

    def __init__(self, result: Any, region: Region):
        leaves, self.structure = jax.tree.flatten(result, is_leaf=is_tensor)
        self.arrays: list[Any] = []
        self.specs: list[PartitionSpec] = []
        self.forms: list[Any] = []
        for i, leaf in enumerate(leaves):
            if is_tensor(leaf) and hasattr(leaf._array, "shape"):
                self._add_tensor(leaf, region)
            elif hasattr(leaf, "dtype") or (isinstance(leaf, int | float | complex) and not isinstance(leaf, bool)):
                self._add_value(result, i, jnp.asarray(leaf))
            else:
                self.forms.append(Static(leaf))

    def _add_tensor(self, x: Tensor, region: Region) -> None:
        fits = x._region is not None or tuple(x._array.shape) == x.dims.sizes
        placed: list[Any] = list(placement(checked(x))) if fits else [()] * x._array.ndim
        array, placed = _equalized(x.local_array, placed, region)
        self.arrays.append(array)
        self.specs.append(spec(tuple(placed)))
        self.forms.append((x.dims, Kind(store=x._kind.store)))

    def _add_value(self, result: Any, i: int, array: Any) -> None:
        path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(result, is_leaf=is_tensor)[0][i][0])
        if differing := varying(array):
            raise RegionError(
                f"result {path or 'of the region'} is a plain array that differs between processors "
                f"(over {', '.join(sorted(differing))})",
                fix="return a tensor: name its dims, or use `wf.local(fn, x, out=..., summed=...)`",
            )
        self.arrays.append(array)
        self.specs.append(PartitionSpec())
        self.forms.append(None)

    def joined(self, arrays: Sequence[Any]) -> Any:
        found = iter(arrays)
        leaves: list[Any] = []
        for form in self.forms:
            if isinstance(form, Static):
                leaves.append(form)
            elif form is None:
                leaves.append(next(found))
            else:
                leaves.append(make(next(found), form[0], None, form[1]))
        return jax.tree.unflatten(self.structure, leaves)


def _equalized(array: Any, placed: list[Any], region: Region) -> tuple[Any, list[Any]]:
    """An array that is equal over some axes but typed as varying, in a form that can leave.

    Where a dim divides each processor gives a slice, which costs nothing; else the first one's copy is sent round.
    """
    excess = tuple(sorted(varying(array) - {axis for axes in placed for axis in axes}))
    if not excess:
        return array, placed
    ways = region.ways(excess)
    for position, size in enumerate(array.shape):
        if size % ways == 0:
            placed[position] = placed[position] + excess
            return collectives.own_slice(array, excess, position, ways), placed
    return collectives.from_first(array, excess), placed


def _region_around(args: Any, kwargs: Any) -> Region | None:
    for leaf in jax.tree.leaves((args, kwargs), is_leaf=is_tensor):
        if is_tensor(leaf) and leaf._region is not None:
            return leaf._region
    return open_region()


def _moved(tree: Any, origin: Region, target: Region) -> Any:
    """The tensors of one region as those of another on the same mesh."""

    def move(x: Any) -> Any:
        if not is_tensor(x) or x._region is None:
            return x
        have, want = placement(checked(x)), target.placement(x.dims, x._kind.store)
        return make(relocate(x._array, have, want, target), x.dims, target, x._kind)

    return jax.tree.map(move, tree, is_leaf=is_tensor)
