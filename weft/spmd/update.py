"""The optimizer's update in global view: Optax on whole arrays, each sharded.

Stands below the step. XLA splits the update as the arrays are split. Optimizer state is sharded as its parameters
are, and further by the layout's `optimizer.` rules.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..layout import Layout, Region, spec
from ..mesh import Mesh
from ..tensor import is_tensor
from .border import constrain_sharding
from .partition import Partition, hashable_partition
from .place import placed_shape, placed_shapes
from .state import TrainState, map_trained, trained_arrays


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
        slices = _constrain(params, shardings.updated)
        updates, state = self.optimizer.update(_constrain(gradients, shardings.updated), state, slices, **extra)
        new = optax.apply_updates(slices, updates)
        return _constrain(new, shardings.stored), _constrain(state, shardings.state)

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
            return NamedSharding(mesh, spec(region.placement(x.dims, level)))

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
        return jax.tree.map(lambda leaf: NamedSharding(mesh, _spec_of(leaf)), state)

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


def takes_loss(optimizer: Any) -> bool:
    """Whether its `update` names `value`, which is Optax's word for the loss."""
    try:
        return "value" in inspect.signature(optimizer.update).parameters
    except (TypeError, ValueError):  # not every callable tells
        return False


def _spec_of(leaf: Any) -> PartitionSpec:
    found = getattr(getattr(leaf, "sharding", None), "spec", None)
    return PartitionSpec(*found) if found is not None else PartitionSpec()


def _constrain(tree: Any, shardings: Any) -> Any:
    return tree if shardings is None else jax.tree.map(constrain_sharding, tree, shardings)
