"""The border: a function of global tensors run as one SPMD program.

A bound function wraps `jax.shard_map` with every mesh axis manual; what goes in (`arguments`) and out (`leaving`)
follows from the dims. One trace decides the placement of the results too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..compat import is_on_host, is_refusal_of
from ..errors import RegionError, TensorError, fold_frames
from ..layout import Layout, Region, open_region, tracing_in
from ..lower.move import relocate, result
from ..mesh import Mesh
from ..tensor import Kind, Tensor, check_tensor, is_tensor, placement
from .arguments import Call, check_usable, is_plain_value, read_call, wrap_statics
from .bound import Bound, Input, Traced
from .leaving import Leaving
from .partition import Partition, has_given_up, has_tracers, hashable_partition, partition
from .place import check_values, put_array
from .running import Jitted


@dataclass
class _Compiled:
    """One way of calling, compiled as a whole and as a part of someone's program."""

    call: Call
    whole: Jitted
    part: Jitted
    shardings: list[NamedSharding] | None = None
    """Those the program wants its arrays in; known once it has been called with values."""


class SpmdFunction(Bound):
    """A function bound to a mesh and a layout."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Mesh,
        layout: Layout,
        static: tuple[int, ...] = (),
        donate: tuple[int, ...] = (),
    ):
        self.fn, self.layout = fn, layout
        self.mesh: Mesh = mesh
        self.static, self.donate = static, donate
        self._state = f"layout: {layout}   mesh: {mesh}"
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = fn.__doc__
        Region(mesh, layout)  # every axis named is there
        self._compiled: dict[Any, _Compiled] = {}
        """By the skeleton of the arguments and the shapes of their arrays."""

    @fold_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled, arrays = (None, []) if open_region() is not None else self._compile(args, kwargs)
        if compiled is None:
            return self._inline(args, kwargs)
        call = compiled.call
        if has_tracers(arrays):
            return compiled.part(*call.part(arrays))
        if compiled.shardings is None:
            check_values(arrays)
            compiled.shardings = self._shardings(call, self.mesh.jax_mesh())
        placed = [put_array(array, wanted) for array, wanted in zip(arrays, compiled.shardings, strict=True)]
        return compiled.whole(*call.part(placed))

    def _compile(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[_Compiled | None, Sequence[Any]]:
        """What this call compiles to, and its arrays; None for tensors of a region."""
        args, kwargs = wrap_statics(self.fn, args, kwargs, self.static)
        arrays, skeleton = partition((args, kwargs))
        key = skeleton, tuple(getattr(array, "shape", ()) for array in arrays)
        try:
            compiled = self._compiled.get(key)
        except TypeError:  # something among the arguments cannot be hashed
            compiled = None
        if compiled is None or not all(is_plain_value(arrays[i]) for i in compiled.call.values):
            if _region_of((args, kwargs)) is not None:
                return None, []
            call, arrays = read_call(args, kwargs, self.donate, self._state)
            compiled = self._compiled[key] = _Compiled(call, self._jit(call), self._jit(call))
        if any(compiled.call.donated) or has_given_up(arrays):
            check_usable(arrays, compiled.call.donated)
        return compiled, arrays

    def _jit(self, call: Call) -> Jitted:
        def run(donated: Sequence[Any], kept: Sequence[Any]) -> Partition:
            return hashable_partition(self._run(call, call.join(donated, kept), self.mesh.jax_mesh()))

        return Jitted(run, self.__name__, self.mesh, self._state, donate=0)

    def on(self, mesh: Any, *args: Any, **kwargs: Any) -> Any:
        """The program as part of a larger one that is being traced, on any mesh."""
        call, arrays = self._read(args, kwargs)
        return self._run(call, arrays, mesh)

    def abstract(self, *args: Any, **kwargs: Any) -> Traced:
        call, arrays = self._read(args, kwargs)
        if any(self.layout.host.values()):  # said by the types of arrays, which shapes alone do not have
            shapes = self._shapes(call, arrays, self.mesh.abstract())
            arrays = [
                shape if is_on_host(jax.typeof(shape)) else array for array, shape in zip(arrays, shapes, strict=True)
            ]
        return Traced.of(self._flat_run(call), *_in_program_order(call, arrays), state=self._state)

    def inputs(self, *args: Any, **kwargs: Any) -> list[Input]:
        return self._read(args, kwargs)[0].inputs(self.fn)

    def flat(self, *args: Any, **kwargs: Any) -> tuple[list[jax.ShapeDtypeStruct], Callable[..., list[Any]]]:
        call, arrays = self._read(args, kwargs)
        return _in_program_order(call, self._shapes(call, arrays, self.mesh.abstract())), self._flat_run(call)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        call, arrays = self._read(args, kwargs)
        return self._jit(call).lower(*call.part(self._shapes(call, arrays, self.mesh.jax_mesh())))

    def _read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Call, list[Any]]:
        args, kwargs = wrap_statics(self.fn, args, kwargs, self.static)
        call, arrays = read_call(args, kwargs, self.donate, self._state)
        check_usable(arrays, call.donated)
        return call, arrays

    def _flat_run(self, call: Call) -> Callable[..., list[Any]]:
        count = sum(call.donated)

        def run(*arrays: Any) -> list[Any]:
            results = self._run(call, call.join(arrays[:count], arrays[count:]), self.mesh.abstract())
            return list(hashable_partition(results).arrays)

        return run

    def _shardings(self, call: Call, mesh: Any) -> list[NamedSharding]:
        """The shardings the program wants: put so first, nothing is copied inside."""
        return call.shardings(Region(self.mesh, self.layout), mesh)

    def _shapes(self, call: Call, arrays: Sequence[Any], mesh: Any) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the arrays, each with the sharding the program wants."""
        shapes = [jax.eval_shape(lambda x: x, array) for array in arrays]
        return [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak_type)
            for x, sharding in zip(shapes, self._shardings(call, mesh), strict=True)
        ]

    def _run(self, call: Call, arrays: Sequence[Any], mesh: Any) -> Any:
        """The program itself, on a mesh of devices or an abstract one."""
        region = Region(self.mesh, self.layout)
        in_specs = tuple(call.specs(region))
        mesh, arrays = _on_callers_mesh(mesh, arrays, in_specs)
        region.record.arguments = call.names(self.fn)
        out_specs: list[PartitionSpec] = []
        results: list[Leaving] = []

        def body(*arrays: Any) -> list[Any]:
            args, kwargs = call.local(arrays, region)
            with tracing_in(region):
                leaving = Leaving(_call(self.fn, args, kwargs), region, (getattr(self.fn, "__code__", None), -1))
            region.check_all_rules_matched()
            out_specs[:] = leaving.specs  # shard_map reads the specs after it has called the body
            results[:] = [leaving]
            return leaving.arrays

        arrays = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)(*arrays)
        return results[0].join(arrays)

    def _inline(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A call inside another region: traced as part of it."""
        outer = _region_of((args, kwargs)) or open_region()
        assert outer is not None
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
        args, kwargs = _move((args, kwargs), inner)
        with tracing_in(inner):
            results = self.fn(*args, **kwargs)
        inner.check_all_rules_matched()
        return _move(results, outer)


def _in_program_order(call: Call, arrays: Sequence[Any]) -> list[Any]:
    donated, kept = call.part(arrays)
    return [*donated, *kept]


def _call(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # the call itself
            raise TensorError(
                f"the function could not be called: {error}", fix="give it the arguments it takes"
            ) from None
        if not is_refusal_of(error, Tensor):
            raise
        raise TensorError(
            f"a plain JAX function was called on a tensor; it would not see the names ({str(error).splitlines()[0]})",
            fix="use the wf function of that name, `wf.elementwise(fn, x)` or `wf.local(fn, x, out=...)`",
        ) from error


def _on_callers_mesh(mesh: Any, arrays: Sequence[Any], specs: Sequence[PartitionSpec]) -> tuple[Any, Sequence[Any]]:
    """The mesh and the arrays to use; the caller's where its shardings are typed.

    Such a program (on an Explicit mesh) needs results and gradients typed on its own mesh, and says where a sharding
    changes.
    """
    for array in arrays:
        theirs = getattr(getattr(jax.typeof(array), "sharding", None), "mesh", None)
        if theirs is not None and dict(theirs.shape) == dict(mesh.shape) and AxisType.Explicit in theirs.axis_types:
            pairs = zip(arrays, specs, strict=True)
            return theirs, [constrain_sharding(a, NamedSharding(theirs, placed)) for a, placed in pairs]
    return mesh, arrays


def constrain_sharding(array: Any, wanted: NamedSharding) -> Any:
    """A global array of that sharding: XLA is told; where it is typed, resharded."""
    if AxisType.Explicit not in wanted.mesh.axis_types:
        return jax.lax.with_sharding_constraint(array, wanted)
    return array if jax.typeof(array).sharding == wanted else jax.sharding.reshard(array, wanted)


def _region_of(tree: Any) -> Region | None:
    """The region of the first tensor of a tree that is in one."""
    leaves = jax.tree.leaves(tree, is_leaf=is_tensor)
    return next((leaf.region for leaf in leaves if is_tensor(leaf) and leaf.region is not None), None)


_OTHER_LAYOUT = "because the region called inside has another layout, which lays it otherwise over {axes}"


def _move(tree: Any, target: Region) -> Any:
    """The tensors of one region as those of another on the same mesh."""

    def move(x: Any) -> Any:
        if not is_tensor(x) or x.region is None:
            return x
        have, want = placement(check_tensor(x)), target.placement(x.dims, x.kind.store)
        with target.record.unasked("spmd", _OTHER_LAYOUT):
            moved = relocate(x.raw, have, want, target)
        return result(moved, x.dims, target, Kind(store=x.kind.store, frozen=x.kind.frozen))

    return jax.tree.map(move, tree, is_leaf=is_tensor)
