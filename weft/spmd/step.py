"""One step of training: gradients in a region, then the update, in one jit.

The update (`update`) sees whole arrays, so any Optax transformation is right on every layout.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..checks import need_function
from ..dtypes import DTypeLike
from ..errors import RegionError, TensorError, fold_frames, public
from ..layout import Layout, LayoutLike, Region, as_layout, open_region
from ..leaves import array_of, cure_of_no_floats
from ..lower.trees import map_tensors
from ..mesh import Mesh, MeshLike, as_mesh
from ..record import Place, place, record_of_region
from .border import SpmdFunction
from .bound import Bound, Input, Traced, check_axes_used
from .gradients import read_sum_dtype, value_and_grad
from .partition import Partition, Skeleton, has_given_up, has_tracers, hashable_partition
from .place import placed_shapes, put
from .running import Jitted
from .state import (
    TrainState,
    as_parameters,
    check_not_given_up,
    map_pairs,
    refill,
    step_inputs,
    trained_arrays,
    unshare,
)
from .update import TypedUpdate, Update
from .zero import attach_slice, optimizer_slice


@public
def train_step(
    loss: Callable[..., Any],
    optimizer: Any,
    *,
    mesh: MeshLike | None = None,
    layout: LayoutLike | None = None,
    has_aux: bool = False,
    sum_dtype: DTypeLike | None = None,
    donate: bool = False,
) -> "TrainStep":
    """A step of training: an Optax optimizer on `loss(params, batch, key)`, a number.

    `state = step.init(params)`; `state, metrics = step(state, batch, key)`, where `metrics` has `loss`. `sum_dtype`
    says in which dtype gradient sums travel. Frozen parameters stay as they are. With `donate` the old state is
    overwritten by the new one, so that there are never two in memory: only the new one may be used. An optimizer whose
    `update` names `value` is given the loss by it.
    """
    _check_loss(loss)
    if not isinstance(donate, bool):
        raise TensorError(f"train_step got donate={donate!r}", fix="say `donate=True`: the state is what is given up")
    if (mesh is None) != (layout is None):
        raise RegionError("train_step got only one of mesh and layout", fix="give both, or neither and use wf.spmd")
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise TensorError(
            f"train_step got {optimizer!r} for its optimizer", fix="give an Optax one: `optax.adam(1e-3)`"
        )
    on = None if mesh is None else as_mesh(mesh)
    under = as_layout(layout)
    options: dict[str, Any] = dict(
        has_aux=has_aux, sum_dtype=read_sum_dtype(sum_dtype), made=place(), donate=(0,) if donate else ()
    )
    step = TrainStep(loss, optimizer, on, under, **options)
    if on is not None:
        check_axes_used(on, under, strict=False)
    return step


def _check_loss(loss: Any) -> None:
    need_function(loss, "train_step", of="(params, batch, key)")
    try:
        inspect.signature(loss).bind(*("params", "batch", "key"))
    except TypeError:
        taken = ", ".join(map(str, inspect.signature(loss).parameters.values()))
        raise TensorError(
            f"train_step calls its loss with (params, batch, key), and this one takes ({taken})",
            fix="write it so: `def loss(params, batch, key)`; where there is no randomness `key` is None",
        ) from None
    except ValueError:  # it has no signature
        pass


class TrainStep(Bound):
    """A step of training, bound to a mesh and a layout or to none."""

    def __init__(
        self,
        loss: Callable[..., Any],
        optimizer: Any,
        mesh: Mesh | None,
        layout: Layout,
        *,
        has_aux: bool,
        sum_dtype: Any,
        made: Place,
        donate: tuple[int, ...] = (),
    ):
        self.loss, self.optimizer, self.mesh, self.layout, self.has_aux = loss, optimizer, mesh, layout, has_aux
        self.sum_dtype, self.donate = sum_dtype, donate
        self.__name__ = "train_step"
        self._made = made  # where, in the user's source
        self._update = Update(optimizer, mesh, layout)
        self._gradients_on_mesh = None if mesh is None else SpmdFunction(self._gradients, mesh, layout)
        self._state = f"layout: {layout}   mesh: {mesh}"
        self._may_be_on_many = mesh is None or mesh.size > 1
        self._programs: dict[Any, Jitted] = {}
        """What was compiled, by the skeletons of a state and a batch."""
        self._bound: dict[Any, TrainStep] = {}
        self._batches: dict[Any, list[Any]] = {}
        """The shardings of the arrays of batches placed before, by the structure of a batch and their shapes."""

    @property
    def of(self) -> str:
        return getattr(self.loss, "__name__", type(self.loss).__name__)

    def on_mesh(self, mesh: Mesh, layout: Layout, *, strict: bool, donate: tuple[int, ...]) -> "TrainStep":
        """This step bound to a mesh and a layout; the same again for the same two."""
        donate = tuple(sorted({*self.donate, *donate}))
        key = mesh, str(layout), donate
        if key not in self._bound:
            options = dict(has_aux=self.has_aux, sum_dtype=self.sum_dtype, made=self._made, donate=donate)
            self._bound[key] = TrainStep(self.loss, self.optimizer, mesh, layout, **options)
        check_axes_used(mesh, layout, strict)
        return self._bound[key]

    @fold_frames
    def init(self, params: Any) -> TrainState:
        """The state before the first step, placed as the layout says.

        Of shapes alone where `params` are shapes. Every float tensor among the parameters is stored as one.
        """
        params = as_parameters(params)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
            shapes = jax.eval_shape(self.optimizer.init, trained_arrays(params))
            return TrainState(params, shapes, jax.ShapeDtypeStruct((), "int32"))
        if self.mesh is not None:
            params = put(params, mesh=self.mesh, layout=self.layout)
        trained = trained_arrays(params)
        if not jax.tree.leaves(trained):
            fix = cure_of_no_floats(params, "name arrays by wf.parameter")
            raise TensorError("there is no float tensor among the parameters", fix=fix)
        shardings = self._update.state_shardings(params)
        optimizer = self._update.init(trained, shardings)
        step: Any = jnp.zeros((), "int32")
        if self.mesh is not None:
            step = jax.device_put(step, NamedSharding(self.mesh.jax_mesh(), PartitionSpec()))
        state = TrainState(params, optimizer, step)
        return unshare(state) if self.donate else state

    def shapes(self, params: Any) -> TrainState:
        """The state before the first step as shapes, each with its sharding."""
        return self._update.placed_shapes(self.init(params), self._need_mesh().jax_mesh())

    @fold_frames
    def __call__(self, state: TrainState, batch: Any, key: Any = None) -> tuple[TrainState, dict[str, Any]]:
        if open_region() is not None:
            raise RegionError(
                "a train step was called inside a region; its update needs the whole arrays",
                fix="give the step itself to wf.spmd: `wf.spmd(step, mesh=..., layout=...)`",
            )
        if not isinstance(state, TrainState):
            raise TensorError(
                f"a train step got {type(state).__name__} for its state", fix="start with `step.init(params)`"
            )
        held = hashable_partition(state)
        if self._may_be_on_many and has_given_up(held.arrays):
            check_not_given_up(state)
        fed = self._place(batch)
        try:
            return self._program(held.skeleton, fed.skeleton)(held.arrays, fed.arrays, key)
        except (RuntimeError, ValueError):  # on one device XLA says of an array that it was given up
            check_not_given_up(state)
            raise

    def _program(self, *skeletons: Skeleton) -> Jitted:
        """The step on the arrays of a state and a batch that have these skeletons."""
        program = self._programs.get(skeletons)
        if program is None:

            def run(state: Sequence[Any], batch: Sequence[Any], key: Any) -> Partition:
                held, fed = map(Partition, (state, batch), skeletons)
                return self._run_parts(held, fed, key)

            program = Jitted(run, self.__name__, self.mesh, self._state, donate=self.donate)
            self._programs[skeletons] = program
        return program

    def _place(self, batch: Any) -> Partition:
        """The batch on the mesh; one that is there already is only looked at."""
        parts = hashable_partition(batch)
        if self.mesh is None:
            return parts
        form, shardings = _look_at(parts)
        if has_tracers(parts.arrays) or (self._batches.get(form) == shardings and not has_given_up(parts.arrays)):
            return parts
        parts = hashable_partition(put(batch, mesh=self.mesh, layout=self.layout))
        form, self._batches[form] = _look_at(parts)
        return parts

    def abstract(self, state: TrainState, batch: Any, key: Any = None) -> Traced:
        """The step traced without devices, each value of the update with its sharding."""
        on = self._need_mesh()
        record_of_region().update = self._made
        state = state._replace(params=as_parameters(state.params))
        mesh = on.abstract(AxisType.Explicit)
        update = TypedUpdate(self._update)
        with jax.sharding.use_abstract_mesh(mesh):
            run = functools.partial(self._run_parts, mesh=mesh, update=update)
            traced = Traced.of(run, *self._placed_parts(state, batch, key, mesh), state=self._state)
        return replace(traced, update_known=update.is_known)

    def inputs(self, state: TrainState, batch: Any, key: Any = None) -> list[Input]:
        return step_inputs(state, batch, key)

    def flat(
        self, state: TrainState, batch: Any, key: Any = None
    ) -> tuple[list[jax.ShapeDtypeStruct], Callable[..., list[Any]]]:
        mesh = self._need_mesh().abstract()
        shapes, structure = jax.tree.flatten(self._placed_parts(state, batch, key, mesh))

        def run(*arrays: Any) -> list[Any]:
            state, batch, key = jax.tree.unflatten(structure, arrays)
            return jax.tree.leaves(self._run_parts(state, batch, key, mesh))

        return shapes, run

    def lower(self, state: TrainState, batch: Any, key: Any = None) -> Any:
        held, fed, key = self._placed_parts(state, batch, key, self._need_mesh().jax_mesh())
        return self._program(held.skeleton, fed.skeleton).lower(held.arrays, fed.arrays, key)

    def _need_mesh(self) -> Mesh:
        if self.mesh is None:
            raise RegionError("the train step has no mesh", fix="say `wf.trace(step, ..., mesh=..., layout=...)`")
        return self.mesh

    def _placed_parts(self, state: TrainState, batch: Any, key: Any, mesh: Any) -> tuple[Partition, Partition, Any]:
        """What `_run_parts` takes, as shapes with shardings on any mesh."""
        region = Region(self._need_mesh(), self.layout)
        batch, key = placed_shapes((batch, key), region, mesh)
        return hashable_partition(self._update.placed_shapes(state, mesh)), hashable_partition(batch), key

    def _run_parts(self, state: Partition, batch: Partition, key: Any, mesh: Any = None, update: Any = None) -> Any:
        return hashable_partition(self._run(state.combine(), batch.combine(), key, mesh, update or self._update))

    def _run(
        self, state: TrainState, batch: Any, key: Any, mesh: Any, update: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        """The step itself, on a mesh of devices or an abstract one, or on none."""
        state = state._replace(params=as_parameters(state.params))
        if self.mesh is not None and self._gradients_on_mesh is not None:
            mesh = mesh or self.mesh.jax_mesh()
            (value, aux), gradients = self._gradients_on_mesh.on(mesh, state.params, batch, key)
        else:
            (value, aux), gradients = self._gradients(state.params, batch, key)
        with jax.named_scope("update"):
            arrays = trained_arrays(state.params), trained_arrays(gradients), state.optimizer
            extra = {"value": array_of(value)} if self._update.takes_loss else {}
            new, optimizer = update(*arrays, self._update.shardings(state.params, mesh), **extra)
        params = map_pairs(refill, state.params, new)
        return TrainState(params, optimizer, state.step + 1), _metrics(value, aux)

    def _gradients(self, params: Any, batch: Any, key: Any) -> Any:
        """The loss, what comes with it, and gradients, sharded as optimizer state."""

        def loss(params: Any) -> Any:
            value = self.loss(params, batch, key)
            return value if self.has_aux else (value, None)

        differentiate = functools.partial(value_and_grad, has_aux=True, sum_dtype=self.sum_dtype)
        if not self.layout.optimizer or open_region() is None:
            return differentiate(loss)(params)
        slices = map_tensors(optimizer_slice, params)
        attach = functools.partial(attach_slice, made=self._made)
        return differentiate(lambda slices: loss(map_pairs(attach, slices, params)))(slices)


def _look_at(batch: Partition) -> tuple[Any, list[Any]]:
    """The skeleton of a batch with the shapes of its arrays, and their shardings."""
    shapes = tuple([getattr(array, "shape", None) for array in batch.arrays])
    return (batch.skeleton, shapes), [getattr(array, "sharding", None) for array in batch.arrays]


def _metrics(value: Any, aux: Any) -> dict[str, Any]:
    more = aux if isinstance(aux, dict) else {} if aux is None else {"aux": aux}
    return {**more, "loss": value}
