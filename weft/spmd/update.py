"""The optimizer's update in global view: Optax on whole arrays, each sharded.

Stands below the step. XLA splits the update as the arrays are split. Optimizer state is sharded as its parameters
are, and further by the layout's `optimizer.` rules. What lies on the host is updated in pieces (`streamed`).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..compat import is_on_host, to_device
from ..layout import ALL, Layout, Region, spec
from ..mesh import Mesh
from ..tensor import is_tensor
from .border import constrain_sharding
from .partition import Partition, hashable_partition, partition
from .place import memory_kind, placed_shape, placed_shapes, sharding_of
from .state import TrainState, map_trained, trained_arrays
from .streamed import UpdateArray, stream


class UpdateShardings(NamedTuple):
    """Shardings before and after an update; None where there is no mesh."""

    stored: Any
    """Of the parameters."""
    updated: Any
    """Of parameters and gradients while they are updated: as fine as those of the optimizer's state."""
    state: Any
    """Of the optimizer's state."""


class Update:
    """An optimizer on a mesh under a layout, or on none."""

    def __init__(self, optimizer: Any, mesh: Mesh | None, layout: Layout):
        self.optimizer, self.mesh, self.layout = optimizer, mesh, layout
        self.takes_loss = takes_loss(optimizer)

    def __call__(
        self, params: Any, gradients: Any, state: Any, shardings: UpdateShardings, **extra: Any
    ) -> tuple[Any, Any]:
        """The new parameters and state; `extra` is what the optimizer asks for."""
        if any(map(is_on_host, jax.tree.leaves((params, gradients, state)))):
            return self._stream(params, gradients, state, shardings, extra)
        slices = _constrain(params, shardings.updated)
        updates, state = self.optimizer.update(_constrain(gradients, shardings.updated), state, slices, **extra)
        new = _apply_updates(slices, updates)
        return _constrain(new, shardings.stored), _constrain(state, shardings.state)

    def init(self, trained: Any, shardings: Any) -> Any:
        """The optimizer's first state; with rules for the host, array by array."""
        if not any(self.layout.host.values()):
            return jax.jit(self.optimizer.init, out_shardings=shardings)(trained)

        def leaves(trained: Any) -> list[Any]:
            return jax.tree.leaves(self.optimizer.init(jax.tree.map(to_device, trained)))

        structure = jax.tree.structure(jax.eval_shape(self.optimizer.init, trained))
        arrays = [
            jax.jit(lambda trained, i=i: leaves(trained)[i], out_shardings=sharding)(trained)
            for i, sharding in enumerate(jax.tree.leaves(shardings))
        ]
        return jax.tree.unflatten(structure, arrays)

    def _stream(
        self, params: Any, gradients: Any, state: Any, shardings: UpdateShardings, extra: Any
    ) -> tuple[Any, Any]:
        """As a call, where something lies on the host: in pieces."""
        slices, gradients = (_bring(tree, shardings.updated) for tree in (params, gradients))
        parts = hashable_partition((slices, gradients, state, extra))
        skeleton: Any = None

        def update(*arrays: Any) -> list[Any]:
            nonlocal skeleton
            slices, gradients, state, extra = parts._replace(arrays=arrays).combine()
            updates, state = self.optimizer.update(gradients, state, slices, **extra)
            new = hashable_partition((_apply_updates(slices, updates), state))
            skeleton = new.skeleton
            return list(new.arrays)

        counts = [len(partition(tree).arrays) for tree in (slices, gradients, state, extra)]
        results = [
            *range(counts[0]),
            *[None] * counts[1],
            *range(counts[0], counts[0] + counts[2]),
            *[None] * counts[3],
        ]
        specs = _specs((shardings.updated, shardings.updated, shardings.state), counts)
        held = [UpdateArray(*one) for one in zip(parts.arrays, specs, results, strict=True)]
        mesh = None if self.mesh is None else jax.tree.leaves(shardings.updated)[0].mesh
        new, state = Partition(stream(update, held, mesh), skeleton).combine()
        return _bring(new, shardings.stored), state

    def shardings(self, params: Any, mesh: Any) -> UpdateShardings:
        """The shardings of an update of these parameters, on any mesh."""
        stored, updated = (self._param_shardings(params, mesh, store) for store in ("params", "optimizer"))
        return UpdateShardings(stored, updated, self.state_shardings(params, mesh))

    def _param_shardings(self, params: Any, mesh: Any, store: str) -> Any:
        """The shardings of trained arrays: as stored, or as fine as optimizer state."""
        if self.mesh is None:
            return None
        region = Region(self.mesh, self.layout)

        def place(x: Any) -> Any:
            if not is_tensor(x):
                return NamedSharding(mesh, PartitionSpec())
            level = store if x.kind.store is not None or store == "optimizer" else None
            if store == "optimizer":
                return NamedSharding(mesh, spec(region.placement(x.dims, level)))  # while it is updated
            return sharding_of(x.dims, level, region, mesh)

        return map_trained(place, params)

    def state_shardings(self, params: Any, mesh: Any = None) -> Any:
        """The shardings of the optimizer's state, which follow from the parameters'."""
        if self.mesh is None:
            return None
        mesh = mesh if mesh is not None else self.mesh.jax_mesh()
        explicit = self.mesh.abstract(AxisType.Explicit)
        shapes = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            trained_arrays(params),
            self._param_shardings(params, explicit, "optimizer"),
        )
        with jax.sharding.use_abstract_mesh(explicit):
            state = jax.eval_shape(self.optimizer.init, shapes)
        is_on_host = self._find_hosted(params)

        def place(path: Any, leaf: Any) -> Any:
            return NamedSharding(mesh, _spec_of(leaf), memory_kind=memory_kind(is_on_host(path, leaf), mesh))

        return jax.tree_util.tree_map_with_path(place, state)

    def _find_hosted(self, params: Any) -> Callable[[Any, Any], bool]:
        """Whether an array of the optimizer's state lies on the host, by its path.

        It belongs to the parameter whose path its own ends on. A rule for all dims holds also for what is of another
        shape than its parameter (a scale of blocks, say), but for numbers.
        """
        if not any(self.layout.host.values()):
            return lambda path, leaf: False
        region = Region(cast(Mesh, self.mesh), self.layout)
        is_for_all = any(ALL in dims for dims in self.layout.host.values())
        paths = jax.tree_util.tree_flatten_with_path(map_trained(lambda x: x, params), is_leaf=is_tensor)[0]
        hosted = {
            jax.tree_util.keystr(path): x.raw.shape
            for path, x in paths
            if is_tensor(x) and region.is_on_host(x.dims, "optimizer")
        }

        def is_on_host(path: Any, leaf: Any) -> bool:
            ends = (jax.tree_util.keystr(path[i:]) for i in range(len(path) + 1))
            return bool(leaf.shape) and (is_for_all or any(hosted.get(end) == leaf.shape for end in ends))

        return is_on_host

    def placed_shapes(self, state: TrainState, mesh: Any) -> TrainState:
        """The shapes of a state, each with its sharding, on any mesh."""
        region = Region(cast(Mesh, self.mesh), self.layout)
        return TrainState(
            placed_shapes(state.params, region, mesh),
            jax.tree.map(placed_shape, state.optimizer, self.state_shardings(state.params, mesh)),
            placed_shapes(state.step, region, mesh),
        )


class TypedUpdate:
    """An update traced with typed shardings, or where that fails left to XLA."""

    def __init__(self, update: Update):
        self.update, self.is_known = update, True

    def __call__(
        self, params: Any, gradients: Any, state: Any, shardings: UpdateShardings, **extra: Any
    ) -> tuple[Any, Any]:
        parts = hashable_partition(state)
        skeleton: Any = None

        def update(shardings: UpdateShardings) -> Callable[..., Any]:
            def arrays(params: Any, gradients: Any, state: Partition, extra: Any) -> list[Any]:
                nonlocal skeleton
                results = hashable_partition(self.update(params, gradients, state.combine(), shardings, **extra))
                skeleton = results.skeleton
                return list(results.arrays)

            return arrays

        try:
            # In a jit of its own: what an attempt that fails has traced is then dropped whole.
            arrays = jax.jit(update(shardings))(params, gradients, parts, extra)
        except Exception:  # JAX raises several kinds; what is wrong on any mesh is raised again below
            self.is_known = False
            auto = cast(Mesh, self.update.mesh).abstract()
            left_to_xla = jax.tree.map(lambda sharding: NamedSharding(auto, sharding.spec), shardings)
            out = jax.tree.leaves((shardings.stored, shardings.state))
            arrays = jax.sharding.auto_axes(update(left_to_xla), out_sharding=out)(params, gradients, parts, extra)
        return Partition(arrays, skeleton).combine()


def _apply_updates(params: Any, updates: Any) -> Any:
    """The parameters after the updates an optimizer gave."""
    import optax  # who does not train needs no Optax

    return optax.apply_updates(params, updates)


def takes_loss(optimizer: Any) -> bool:
    """Whether its `update` names `value`, which is Optax's word for the loss."""
    try:
        return "value" in inspect.signature(optimizer.update).parameters
    except (TypeError, ValueError):  # not every callable tells
        return False


def _spec_of(leaf: Any) -> PartitionSpec:
    found = getattr(getattr(leaf, "sharding", None), "spec", None)
    return PartitionSpec(*found) if found is not None else PartitionSpec()


def _bring(tree: Any, shardings: Any) -> Any:
    """As `_constrain`; what lies on the host, split as is wanted, stays there."""
    if shardings is None:
        return tree

    def bring(array: Any, wanted: NamedSharding) -> Any:
        return array if is_on_host(array) else constrain_sharding(array, wanted)

    return jax.tree.map(bring, tree, shardings)


def _specs(shardings: Sequence[Any], counts: Sequence[int]) -> list[PartitionSpec]:
    """How each array of an update is split: those of its parts, and then numbers."""
    specs = [sharding.spec for part in shardings for sharding in jax.tree.leaves(part)]
    return specs + [PartitionSpec()] * (sum(counts) - len(specs))


def _constrain(tree: Any, shardings: Any) -> Any:
    return tree if shardings is None else jax.tree.map(constrain_sharding, tree, shardings)
