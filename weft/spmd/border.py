"""The border between global and local: a function of global tensors run as one SPMD program.

`spmd` wraps `jax.shard_map` with every mesh axis manual; what goes in and out follows from the dims. One trace
decides the placement of the results too.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..errors import LayoutError, RegionError, TensorError, WeftWarning, folded, public, user_stacklevel
from ..graph import map_equations
from ..layout import Layout, Region, as_layout, axes_in, open_region, opened, spec
from ..leaves import is_data
from ..lower import collectives
from ..lower.collectives import varying
from ..lower.meet import need_function
from ..lower.move import relocate, result
from ..mesh import Mesh, as_mesh
from ..ops.debug import failures
from ..record import Place
from ..tensor import Kind, Tensor, checked, is_tensor, make, placement
from .arguments import Call, Static, positions, read, without_statics
from .guard import Guarded, check_slices
from .place import check_values, put_array, wait_for_earlier_calls
from .remembered import remembered


@public
def spmd(
    fn: Callable[..., Any],
    *,
    mesh: Any,
    layout: Any,
    static: int | str | Sequence[int | str] = (),
    donate: int | str | Sequence[int | str] = (),
    strict: bool = False,
) -> Callable[..., Any]:
    """`fn` as one SPMD program on a mesh: global tensors in, global tensors out.

    `static` arguments are compiled in, `donate`d ones may be overwritten; `strict` makes an axis that splits nothing
    an error instead of a warning. Made again of the same function it is the same program, compiled once.
    """
    mesh, layout = as_mesh(mesh), as_layout(layout)
    need_function(fn, "spmd")
    if hasattr(fn, "on_mesh"):  # a train step has a part in global view
        return fn.on_mesh(mesh, layout, strict=strict, donate=positions(fn, donate, "donate"))
    how = positions(fn, static, "static"), positions(fn, donate, "donate")
    bound = remembered(fn, (mesh, str(layout), *how), lambda: Spmd(fn, mesh, layout, *how))
    check_axes_used(mesh, layout, strict)
    return bound


@dataclass(frozen=True)
class Traced:
    """A program traced without devices: its closed jaxpr, with the region inside."""

    jaxpr: Any
    before: Any
    """The same before what no result needs was left out."""
    update_known: bool = True
    """Whether every value of a train step's update is typed with how it lies; false where an optimizer cannot be."""

    @classmethod
    def of(cls, fn: Callable[..., Any], *args: Any, state: str = "") -> "Traced":
        """`fn` traced, less what no result needs: jit leaves that out before it compiles."""
        closed = jax.make_jaxpr(fn)(*args)
        check_slices(closed, state)
        return cls(map_equations(closed, _needed), closed)


def _needed(eqn: Any) -> Any:
    """A region, or an update, whose body does no more than its results need."""
    inner = eqn.params.get("jaxpr")
    if inner is None:
        return eqn
    body = getattr(inner, "jaxpr", inner)
    body, _ = partial_eval.dce_jaxpr(body, [True] * len(body.outvars), instantiate=True)
    return eqn.replace(params={**eqn.params, "jaxpr": inner.replace(jaxpr=body) if hasattr(inner, "jaxpr") else body})


@dataclass
class _Ready:
    """What one way of calling a region has compiled to: as a whole, and as a part of someone's own program."""

    whole: Callable[..., Any]
    part: Callable[..., Any]
    shardings: list[NamedSharding] | None = None
    has_checks: bool = False


class Spmd:
    """A function bound to a mesh and a layout."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Mesh,
        layout: Layout,
        static: tuple[int, ...] = (),
        donate: tuple[int, ...] = (),
    ):
        self.fn, self.mesh, self.layout = fn, mesh, layout
        self.static, self.donate = static, donate
        self._state = f"layout: {layout}   mesh: {mesh}"
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = fn.__doc__
        Region(mesh, layout)  # every axis named is there
        self._ready: dict[Call, _Ready] = {}

    @folded
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (outer := _region_around(args, kwargs)) is not None:
            return self._inline(outer, args, kwargs)
        call, arrays = self._read(args, kwargs)
        if (ready := self._ready.get(call)) is None:
            ready = self._ready[call] = _Ready(self._jitted(call), self._jitted(call))
        if any(isinstance(array, jax.core.Tracer) for array in arrays):  # a part of someone's own program
            return without_statics(ready.part(*call.parted(arrays)))
        if ready.shardings is None:
            ready.shardings = self._shardings(call, arrays)
        placed = [put_array(array, wanted) for array, wanted in zip(arrays, ready.shardings, strict=True)]
        before = failures.checks_traced
        with failures.raised_after():
            found = ready.whole(*call.parted(placed))
        ready.has_checks = ready.has_checks or failures.checks_traced > before
        wait_for_earlier_calls(found, self.mesh)
        if ready.has_checks:
            jax.effects_barrier()
            failures.raise_first()
        return without_statics(found)

    def _jitted(self, call: Call) -> Callable[..., Any]:
        run = jax.jit(lambda gone, kept: self.run(call, gone, kept, self.mesh.jax_mesh()), donate_argnums=0)
        return Guarded(run, self._state)

    def on(self, mesh: Any, *args: Any, **kwargs: Any) -> Any:
        """The program as part of a larger one that is being traced, on a mesh of devices or an abstract one."""
        call, arrays = self._read(args, kwargs)
        return without_statics(self.run(call, *call.parted(arrays), mesh))

    def abstract(self, *args: Any, **kwargs: Any) -> Traced:
        """The program traced without devices."""
        call, arrays = self._read(args, kwargs)
        mesh = self.mesh.abstract()
        return Traced.of(lambda gone, kept: self.run(call, gone, kept, mesh), *call.parted(arrays), state=self._state)

    def _read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Call, list[Any]]:
        return read(self.fn, args, kwargs, self.static, self.donate, self._state)

    def _shardings(self, call: Call, arrays: Sequence[Any]) -> list[NamedSharding]:
        """Where the program wants its arrays; put there first nothing is copied inside, and donation works."""
        check_values(arrays)
        region, mesh = Region(self.mesh, self.layout), self.mesh.jax_mesh()
        return [NamedSharding(mesh, placed) for placed in call.specs(region)]

    def run(self, call: Call, gone: Sequence[Any], kept: Sequence[Any], mesh: Any) -> Any:
        """The program itself, on a mesh of devices or an abstract one; gives tensors, with statics wrapped."""
        region = Region(self.mesh, self.layout)
        in_specs = tuple(call.specs(region))
        mesh, arrays = _on_callers_mesh(mesh, call.joined(gone, kept), in_specs)
        region.record.arguments = call.names(self.fn)
        out_specs: list[PartitionSpec] = []
        outputs: list[Any] = []

        def body(*arrays: Any) -> list[Any]:
            args, kwargs = call.local(arrays, region)
            with opened(region):
                leaving = _Leaving(_called(self.fn, args, kwargs), region, (getattr(self.fn, "__code__", None), -1))
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
        inner.record = outer.record
        args, kwargs = _moved((args, kwargs), inner)
        with opened(inner):
            found = self.fn(*args, **kwargs)
        inner.check_all_rules_matched()
        return _moved(found, outer)


def _called(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # the call itself
            raise TensorError(
                f"the function could not be called: {error}", fix="give it the arguments it takes"
            ) from None
        if "weft.tensor.Tensor" not in str(error):
            raise
        raise TensorError(
            f"a plain JAX function was called on a tensor; it would not see the names ({str(error).splitlines()[0]})",
            fix="use the wf function of that name, `wf.elementwise(fn, x)` or `wf.local(fn, x, out=...)`",
        ) from error


def check_axes_used(mesh: Mesh, layout: Layout, strict: bool) -> None:
    """Warns of an axis over which nothing is split: its processors all do the same."""
    unused = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in layout.axes]
    if not unused:
        return
    ways = math.prod(mesh.axes[axis] for axis in unused)
    named = ("axis " if len(unused) == 1 else "axes ") + ", ".join(f"`{axis}`" for axis in unused)
    name, axes = next(iter(layout.rules.items()), ("batch", ()))
    error = LayoutError(
        f"no rule of the layout uses mesh {named}: each piece of work is done {ways} times",
        state=f"layout: {layout}   mesh: {mesh}",
        fix=f"split a dim over it, e.g. `{name}:{'+'.join((*axes, unused[0]))}`, "
        f"or leave `{unused[0]}` out of the mesh",
    )
    if strict:
        raise error
    warnings.warn(str(error), WeftWarning, stacklevel=user_stacklevel())


def _on_callers_mesh(mesh: Any, arrays: Sequence[Any], specs: Sequence[PartitionSpec]) -> tuple[Any, Sequence[Any]]:
    """The mesh and the arrays to use where the caller's own program has typed shardings (an Explicit mesh).

    Such a program needs results and gradients typed on its own mesh, and says where a sharding changes.
    """
    for array in arrays:
        theirs = getattr(getattr(jax.typeof(array), "sharding", None), "mesh", None)
        if theirs is not None and dict(theirs.shape) == dict(mesh.shape) and AxisType.Explicit in theirs.axis_types:
            pairs = zip(arrays, specs, strict=True)
            return theirs, [laid(a, NamedSharding(theirs, placed)) for a, placed in pairs]
    return mesh, arrays


def laid(array: Any, wanted: NamedSharding) -> Any:
    """A global array that lies as `wanted`: XLA is told so; where shardings are typed it is moved, if it must."""
    if AxisType.Explicit not in wanted.mesh.axis_types:
        return jax.lax.with_sharding_constraint(array, wanted)
    return array if jax.typeof(array).sharding == wanted else jax.sharding.reshard(array, wanted)


class _Leaving:
    """A region's result taken apart: arrays, their specs, and how to join them to global tensors."""

    def __init__(self, given: Any, region: Region, at: Place):
        self.at = at
        leaves, self.structure = jax.tree.flatten(given, is_leaf=is_tensor)
        self.arrays: list[Any] = []
        self.specs: list[PartitionSpec] = []
        self.forms: list[Any] = []
        for i, leaf in enumerate(leaves):
            if not is_data(leaf):
                self.forms.append(Static(leaf))
            elif is_tensor(leaf):
                self._add_tensor(leaf, region)
            else:
                self._add_value(given, i, jnp.asarray(leaf))

    def _add_tensor(self, x: Tensor, region: Region) -> None:
        if x._region is not None and x._region is not region:
            raise RegionError(
                f"the result {x!r} belongs to another region, which has ended",
                state=x._region.state,
                fix="return it from that region and pass it in as an argument",
            )
        fits = x._region is not None or tuple(x._array.shape) == x.dims.sizes
        placed: list[Any] = list(placement(checked(x))) if fits else [()] * x._array.ndim
        with region.record.op("return", reason=_LEAVING, at=self.at):
            array, placed = _equalized(x.local_array, placed, region)
        self.arrays.append(array)
        self.specs.append(spec(tuple(placed)))
        self.forms.append((x.dims, Kind(store=x._kind.store, frozen=x._kind.frozen)))

    def _add_value(self, given: Any, i: int, array: Any) -> None:
        if differing := varying(array):
            path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(given, is_leaf=is_tensor)[0][i][0])
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


_LEAVING = "because a result that is the same on all of {axes} must leave the region as one copy"


def _equalized(array: Any, placed: list[Any], region: Region) -> tuple[Any, list[Any]]:
    """An array that is equal over some axes but typed as varying, in a form that can leave.

    Where a dim divides each processor gives a slice, which costs nothing; else the first one's copy is sent round.
    """
    excess = tuple(sorted(varying(array) - set(axes_in(placed))))
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


_OTHER_LAYOUT = "because the region called inside has another layout, which lays it otherwise over {axes}"


def _moved(tree: Any, target: Region) -> Any:
    """The tensors of one region as those of another on the same mesh."""

    def move(x: Any) -> Any:
        if not is_tensor(x) or x._region is None:
            return x
        have, want = placement(checked(x)), target.placement(x.dims, x._kind.store)
        with target.record.op("spmd", reason=_OTHER_LAYOUT):
            moved = relocate(x._array, have, want, target)
        return result(moved, x.dims, target, Kind(store=x._kind.store, frozen=x._kind.frozen))

    return jax.tree.map(move, tree, is_leaf=is_tensor)
