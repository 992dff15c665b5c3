"""One step of training: gradients in a region, the optimizer's update in global view, one jit.

The update sees whole arrays, so any Optax transformation is right on every layout; XLA splits it as the arrays are
split. Optimizer state lies as its parameters do, and further by the layout's `optimizer.` rules.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..checks import need_function
from ..errors import RegionError, TensorError, folded, public
from ..layout import Layout, Region, as_layout, open_region, spec
from ..leaves import is_trained
from ..lower.collectives import as_varying, own_slice, reduce_scatter
from ..lower.move import result
from ..lower.recorded import placed
from ..lower.trees import map_tensors
from ..mesh import Mesh, as_mesh
from ..ops.debug import failures
from ..record import Place, operand_scope, place, record_of_region
from ..tensor import Kind, Tensor, is_tensor, make, placement
from .arguments import with_statics, without_statics
from .border import Spmd, Traced, check_axes_used, laid
from .gradients import value_and_grad
from .guard import Guarded
from .place import put, wait_for_earlier_calls
from .state import (
    TrainState,
    as_parameters,
    check_not_given_up,
    map_pairs,
    map_trained,
    refilled,
    trained_arrays,
    unshared,
)


@public
def train_step(
    loss: Callable[..., Any],
    optimizer: Any,
    *,
    mesh: Any = None,
    layout: Any = None,
    has_aux: bool = False,
    sum_dtype: Any = None,
    donate: bool = False,
) -> "TrainStep":
    """A step of training on `loss(params, batch, key)`, one number, with an Optax optimizer.

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
    how = dict(has_aux=has_aux, sum_dtype=sum_dtype, made=place(), donate=(0,) if donate else ())
    if mesh is None:
        return TrainStep(loss, optimizer, None, Layout(""), **how)
    mesh, layout = as_mesh(mesh), as_layout(layout)
    bound = TrainStep(loss, optimizer, mesh, layout, **how)
    check_axes_used(mesh, layout, strict=False)
    return bound


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


class TrainStep:
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
        self.sum_dtype = sum_dtype
        self.__name__ = "train_step"
        self._made = made
        self._gradients: Any = self._local_gradients
        if mesh is not None:
            Region(mesh, layout)
            self._gradients = Spmd(self._local_gradients, mesh, layout)
        self._has_checks = False
        self._takes_loss = _takes_loss(optimizer)
        self.donate = donate
        self._jitted = Guarded(jax.jit(self._run, donate_argnums=donate), f"layout: {layout}   mesh: {mesh}")
        self._bound: dict[Any, TrainStep] = {}

    def on_mesh(self, mesh: Mesh, layout: Layout, *, strict: bool, donate: tuple[int, ...]) -> "TrainStep":
        """This step bound to a mesh and a layout: once to each, so that nothing is compiled twice."""
        donate = tuple(sorted({*self.donate, *donate}))
        key = mesh, str(layout), donate
        if key not in self._bound:
            how = dict(has_aux=self.has_aux, sum_dtype=self.sum_dtype, made=self._made, donate=donate)
            self._bound[key] = TrainStep(self.loss, self.optimizer, mesh, layout, **how)
        check_axes_used(mesh, layout, strict)
        return self._bound[key]

    @folded
    def init(self, params: Any) -> TrainState:
        """The state before the first step, placed as the layout says; of shapes alone where `params` are shapes.

        Every float tensor among the parameters is stored as one.
        """
        params = as_parameters(params)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
            shapes = jax.eval_shape(self.optimizer.init, trained_arrays(params))
            return TrainState(params, shapes, jax.ShapeDtypeStruct((), "int32"))
        if self.mesh is not None:
            params = put(params, mesh=self.mesh, layout=self.layout)
        trained = trained_arrays(params)
        if not jax.tree.leaves(trained):
            raise TensorError("there is no float tensor among the parameters", fix="name arrays by wf.parameter")
        shardings = self._state_shardings(params)
        state = jax.jit(self.optimizer.init, out_shardings=shardings)(trained)
        step: Any = jnp.zeros((), "int32")
        if self.mesh is not None:
            step = jax.device_put(step, NamedSharding(self.mesh.jax_mesh(), PartitionSpec()))
        made = TrainState(params, state, step)
        return unshared(made) if self.donate else made

    def shapes(self, params: Any) -> TrainState:
        """The state of a step on a mesh with shapes in place of arrays, each with how it lies."""
        return self._typed_state(self.init(params), cast(Mesh, self.mesh).jax_mesh())

    @folded
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
        check_not_given_up(state)
        before = failures.checks_traced
        with failures.raised_after():
            found = self._jitted(with_statics(state), with_statics(self._placed(batch)), key)
        self._has_checks = self._has_checks or failures.checks_traced > before
        if self.mesh is not None:
            wait_for_earlier_calls(found, self.mesh)
        if self._has_checks:
            jax.effects_barrier()
            failures.raise_first()
        return without_statics(found)

    def abstract(self, state: TrainState, batch: Any, key: Any = None) -> Traced:
        """The step traced without devices, on a mesh where JAX types every value of the update with how it lies."""
        if self.mesh is None:
            raise RegionError("the train step has no mesh", fix="say `wf.trace(step, ..., mesh=..., layout=...)`")
        record_of_region().update = self._made
        state = state._replace(params=as_parameters(state.params))
        mesh = self.mesh.abstract(AxisType.Explicit)
        update = _TypedUpdate(self)
        with jax.sharding.use_abstract_mesh(mesh):
            typed = self._typed_state(state, mesh), self._typed(batch, mesh), self._typed(key, mesh)
            args = with_statics(typed[0]), with_statics(typed[1]), typed[2]
            run = functools.partial(self._run, mesh=mesh, update=update)
            found = Traced.of(run, *args, state=f"layout: {self.layout}   mesh: {self.mesh}")
        return replace(found, update_known=update.is_known)

    def _typed_state(self, state: TrainState, mesh: Any) -> TrainState:
        """The state's shapes, each with how it lies."""
        shardings = self._state_shardings(state.params, mesh)
        return TrainState(
            self._typed(state.params, mesh),
            jax.tree.map(_typed_array, state.optimizer, shardings),
            self._typed(state.step, mesh),
        )

    def _typed(self, tree: Any, mesh: Any) -> Any:
        """The shapes of a tree's tensors, each with how the layout says it lies; numbers lie everywhere."""
        region = Region(cast(Mesh, self.mesh), self.layout)

        def typed(leaf: Any) -> Any:
            if not is_tensor(leaf):
                return _typed_array(leaf, NamedSharding(mesh, PartitionSpec()))
            fits = tuple(getattr(leaf.raw, "shape", ())) == leaf.dims.sizes
            placed = region.placement(leaf.dims, leaf.kind.store) if fits else ()
            return make(_typed_array(leaf.raw, NamedSharding(mesh, spec(placed))), leaf.dims, None, leaf.kind)

        return jax.tree.map(typed, tree, is_leaf=is_tensor)

    def _placed(self, batch: Any) -> Any:
        if self.mesh is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(batch)):
            return batch
        return put(batch, mesh=self.mesh, layout=self.layout)

    def _run(
        self, state: TrainState, batch: Any, key: Any, mesh: Any = None, update: Any = None
    ) -> tuple[TrainState, dict[str, Any]]:
        state, batch = without_statics(state), without_statics(batch)
        state = state._replace(params=as_parameters(state.params))
        if self.mesh is not None:
            mesh = mesh or self.mesh.jax_mesh()
            (value, aux), gradients = self._gradients.on(mesh, state.params, batch, key)
        else:
            (value, aux), gradients = self._gradients(state.params, batch, key)
        with jax.named_scope("update"):
            arrays = trained_arrays(state.params), trained_arrays(gradients), state.optimizer
            told = {"value": value.raw if is_tensor(value) else value} if self._takes_loss else {}
            new, optimizer = (update or self.update)(*arrays, self._places(state.params, mesh), **told)
        params = map_pairs(refilled, state.params, new)
        return with_statics((TrainState(params, optimizer, state.step + 1), _metrics(value, aux)))

    def _local_gradients(self, params: Any, batch: Any, key: Any) -> Any:
        """The loss, what comes with it, and gradients that lie where the optimizer's state does."""

        def loss(params: Any) -> Any:
            found = self.loss(params, batch, key)
            return found if self.has_aux else (found, None)

        differentiate = functools.partial(value_and_grad, has_aux=True, sum_dtype=self.sum_dtype)
        if not self.layout.optimizer or open_region() is None:
            return differentiate(loss)(params)
        parts = map_tensors(_part, params)
        attach = functools.partial(_attached, made=self._made)
        return differentiate(lambda parts: loss(map_pairs(attach, parts, params)))(parts)

    def update(self, trained: Any, slopes: Any, optimizer: Any, places: "_Places", **told: Any) -> tuple[Any, Any]:
        """The new parameters and the optimizer's new state, of global arrays; `told` is what the optimizer asks for."""
        parts = _laid(trained, places.finer)
        updates, optimizer = self.optimizer.update(_laid(slopes, places.finer), optimizer, parts, **told)
        return _laid(optax.apply_updates(parts, updates), places.stored), _laid(optimizer, places.state)

    def _places(self, params: Any, mesh: Any) -> "_Places":
        return _Places(
            stored=self._shardings(params, mesh, "params"),
            finer=self._shardings(params, mesh, "optimizer"),
            state=self._state_shardings(params, mesh),
        )

    def _shardings(self, params: Any, mesh: Any, store: str) -> Any:
        """How the trained arrays lie: as stored, or as finely as the optimizer's state."""
        if self.mesh is None:
            return None
        region = Region(self.mesh, self.layout)

        def place(x: Any) -> Any:
            if not is_tensor(x):
                return NamedSharding(mesh, PartitionSpec())
            level = store if x.kind.store is not None or store == "optimizer" else None
            return NamedSharding(mesh, spec(region.placement(x.dims, level)))

        return map_trained(place, params)

    def _state_shardings(self, params: Any, mesh: Any = None) -> Any:
        """How the optimizer's state lies: JAX says, given how the parameters do."""
        if self.mesh is None:
            return None
        mesh = mesh if mesh is not None else self.mesh.jax_mesh()
        explicit = self.mesh.abstract(AxisType.Explicit)
        shardings = self._shardings(params, explicit, "optimizer")
        shapes = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), trained_arrays(params), shardings
        )
        with jax.sharding.use_abstract_mesh(explicit):
            state = jax.eval_shape(self.optimizer.init, shapes)
        return jax.tree.map(lambda leaf: NamedSharding(mesh, _spec_of(leaf)), state)


class _Places(NamedTuple):
    """How things lie before and after an update; None where there is no mesh."""

    stored: Any
    """The parameters."""
    finer: Any
    """The parameters and gradients while they are updated."""
    state: Any
    """The optimizer's state."""


class _TypedUpdate:
    """A step's update traced where shardings are typed; where the optimizer cannot be, with the types left to XLA."""

    def __init__(self, step: TrainStep):
        self.step, self.is_known = step, True

    def __call__(self, trained: Any, slopes: Any, optimizer: Any, places: _Places, **told: Any) -> tuple[Any, Any]:
        arrays = trained, slopes, with_statics(optimizer), told
        try:
            # In a jit of its own: what an attempt that fails has traced is then dropped whole.
            return without_statics(jax.jit(self._traced(places))(*arrays))
        except Exception:  # JAX raises several kinds; what is wrong on any mesh is raised again below
            self.is_known = False
        free = jax.tree.map(self._free, places)
        lying = jax.sharding.auto_axes(self._traced(free), out_sharding=(places.stored, places.state))
        return without_statics(lying(*arrays))

    def _traced(self, places: _Places) -> Callable[..., Any]:
        def update(trained: Any, slopes: Any, optimizer: Any, told: Any) -> Any:
            return with_statics(self.step.update(trained, slopes, without_statics(optimizer), places, **told))

        return update

    def _free(self, sharding: NamedSharding) -> NamedSharding:
        return NamedSharding(cast(Mesh, self.step.mesh).abstract(), sharding.spec)


def _takes_loss(optimizer: Any) -> bool:
    """Whether its `update` names `value`, which is Optax's word for the loss."""
    try:
        return "value" in inspect.signature(optimizer.update).parameters
    except (TypeError, ValueError):  # not every callable tells
        return False


def _spec_of(leaf: Any) -> PartitionSpec:
    found = getattr(getattr(leaf, "sharding", None), "spec", None)
    return PartitionSpec(*found) if found is not None else PartitionSpec()


def _laid(tree: Any, shardings: Any) -> Any:
    return tree if shardings is None else jax.tree.map(laid, tree, shardings)


def _typed_array(array: Any, sharding: NamedSharding) -> Any:
    """The array's shape with how it lies; what is no array as it is."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return array
    weak = getattr(array, "weak_type", False)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding, weak_type=weak)


def _metrics(value: Any, aux: Any) -> dict[str, Any]:
    more = aux if isinstance(aux, dict) else {} if aux is None else {"aux": aux}
    return {**more, "loss": value}


def _part(x: Tensor) -> Tensor:
    """The slice of a parameter whose optimizer state this processor holds."""
    if not is_trained(x) or x.region is None:
        return x
    array, have, want = x.raw, placement(x), x.region.placement(x.dims, "optimizer")
    for position, (held, wanted) in enumerate(zip(have, want, strict=True)):
        if more := wanted[len(held) :]:
            array = own_slice(array, more, position, x.region.ways(more))
    return result(array, x.dims, x.region, Kind(store="optimizer"))


_FINER = (
    "because the optimizer's state of {name} is stored split over {axes} (`optimizer.` rules): each keeps its slice"
)


def _attached(part: Any, whole: Any, made: Place) -> Any:
    """The parameter itself, whose gradient arrives summed and sliced as `part`, by one reduce-scatter."""
    if not is_tensor(part):
        return part
    if part.kind.store != "optimizer":
        return whole
    pieces = [
        (position, finer[len(held) :])
        for position, (held, finer) in enumerate(zip(placement(whole), placement(part), strict=True))
        if finer != held
    ]
    axes = [axis for _, more in pieces for axis in more]

    @jax.custom_vjp
    def attach(part: Any, whole: Any) -> Any:
        return as_varying(whole, axes)

    def backward(like: Any, gradient: Any) -> Any:
        for position, more in pieces:
            gradient = reduce_scatter(gradient, more, position)
        return gradient, jnp.zeros_like(like)

    attach.defvjp(lambda part, whole: (as_varying(whole, axes), whole), backward)
    with whole.region.record.op("update", reason=_FINER, at=made) as entry, operand_scope(0):
        entry.operands, entry.makers, entry.gradients = [placed(whole)], [None], [True]
        return result(attach(part.raw, whole.raw), whole.dims, whole.region, whole.kind)
