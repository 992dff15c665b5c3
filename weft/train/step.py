"""One step of training by a run's configuration: loss, gradients, update, EMA.

Loss scaling, gradient clipping and gradient accumulation stand here around the language's train step.
A step that is bad (its loss or gradients are not finite, or it is a spike that is not kept) changes nothing and is
counted.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import models, nn
from .. import ops as wf
from ..data.preferences import SIDES
from ..dims import Dim
from ..layout import Layout
from ..leaves import array_of, with_array
from ..mesh import Mesh
from ..nn.weights import path_text
from ..spmd import train_step
from ..spmd.step import TrainState, TrainStep
from ..tensor import Tensor, is_tensor, tensor
from .config import RunConfig
from .optimizers import optimizer
from .own.model import OwnModel, weight_of
from .preferences import REFERENCE, dpo_loss, reference_of
from .spikes import History, is_spike, no_history

KEEP = "keep"  # what `train.spikes` is where none is looked for
_WEIGHTS, _LORA, _NOISE = range(3)  # what the keys made of a run's seed are for


class GuardedState(NamedTuple):
    """The state of an optimizer that leaves bad steps out."""

    inner: Any
    """The optimizer's own."""
    norm: Any
    """Of the gradients."""
    in_a_row: Any
    """How many of the last steps were not finite."""
    in_all: Any
    spikes: History | None = None
    """What is known of the last steps, where spikes are looked for."""


class Averaged(NamedTuple):
    """The EMA (exponential moving average) of the weights."""

    averaged: Any


def first_model(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> Any:
    """The model a run begins with, where no weights are given, with its LoRA."""
    return prepare_model(new_model(config, mesh, layout), config)


def new_model(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> Any:
    """The run's model with its first weights, all of them trained, without LoRA."""
    model, key = config.sized_model, _key(config, _WEIGHTS)
    return model.init(key, mesh, layout) if isinstance(model, OwnModel) else models.init(model, key, mesh, layout)


def shapes_of_model(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> Any:
    """The same with shapes in place of values; nothing is allocated."""
    return jax.eval_shape(lambda: first_model(config, mesh, layout))


def prepare_model(model: Any, config: RunConfig) -> Any:
    """The model with LoRA weights beside its own, and with what is frozen frozen."""
    lora = config.lora
    if lora.rank:
        model = nn.lora.add(model, rank=lora.rank, key=_key(config, _LORA), where=lora.where, alpha=lora.alpha)
    return nn.freeze(model, *config.train.freeze) if config.train.freeze else model


def _key(config: RunConfig, purpose: int) -> Any:
    return jax.random.fold_in(jax.random.key(config.seed), purpose)


def shapes_of_call(config: RunConfig, step: TrainStep) -> tuple[Any, ...]:
    """What a step is called with, as shapes: its state, a batch, and its number."""
    state, number = step.init(shapes_of_model(config)), jax.ShapeDtypeStruct((), "int32")
    if config.own_data is not None:
        return state, config.own_data.batch_shapes(config.batch), number
    rows = [Dim("batch", config.batch), Dim("length", config.length)]
    ids, weights = (
        tensor(jax.ShapeDtypeStruct((config.batch, config.length), dtype), rows) for dtype in ("int32", "float32")
    )
    if config.is_dpo:
        names = [f"{side}_{name}" for side in SIDES for name in ("inputs", "targets")]
        batch = dict.fromkeys(names, ids) | {f"{side}_weights": weights for side in SIDES}
        batch["weights"] = tensor(jax.ShapeDtypeStruct((config.batch,), "float32"), "batch")
        return state, {**batch, REFERENCE: reference_of(state.params)}, number
    batch = {"inputs": ids, "targets": ids, "weights": weights}
    if isinstance(config.model, OwnModel) and config.train.pack and not config.train.across:
        batch |= {"segments": ids, "positions": ids}  # of which a loss of one's own may ask
    return state, batch, number


def loss_and_metrics(config: RunConfig, model: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Any]]:
    """The loss of a batch, and metrics."""
    own = config.model
    if config.is_dpo:
        return dpo_loss(model, batch, key, beta=config.train.beta)
    return own.loss_and_metrics(model, batch, key) if isinstance(own, OwnModel) else model.loss_and_metrics(batch, key)


def make_step(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> TrainStep:
    """The step of a run: `state, metrics = step(state, batch, number)`.

    It is bound to the mesh, or to none yet. The old state is overwritten. `number` counts the steps from 0: random
    numbers follow from it and the seed, so that no key is carried from step to step.
    """
    microbatches, scale = config.train.microbatches, config.train.loss_scale or 1.0
    is_own = isinstance(config.model, OwnModel)

    def loss(model: Any, batch: Any, number: Any) -> tuple[Tensor, dict[str, Tensor]]:
        key = jax.random.fold_in(_key(config, _NOISE), number)
        if microbatches == 1:
            value, metrics = loss_and_metrics(config, model, batch, key)
            return value * scale, metrics

        def part(held: Any, rows: Any) -> tuple[Tensor, Tensor]:
            model, beside = held
            value, metrics = loss_and_metrics(config, model, {**rows, **beside}, key)
            weight = weight_of(metrics, rows) if is_own else metrics["pairs" if config.is_dpo else "tokens"]
            return value * weight, weight

        beside = {name: batch[name] for name in (REFERENCE,) if name in batch}  # no rows: there is one for all
        batch = {name: x for name, x in batch.items() if name not in beside}
        rows = Dim("batch", config.batch)
        return wf.accumulate(part, (model, beside), batch, over=rows, count=microbatches) * scale, {}

    return train_step(
        loss, update(config), has_aux=True, sum_dtype=config.train.sum_dtype, donate=True, mesh=mesh, layout=layout
    )


def update(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer with clipping, loss scale, the guard against bad steps, and EMA."""
    parts = [_guard(optimizer(config), config)]
    if config.train.loss_scale is not None:
        parts.insert(0, optax.scale(1 / config.train.loss_scale))
    if config.train.average is not None:
        parts.append(_ema(config.train.average))
    chain = optax.chain(*parts)

    def change(gradients: Any, state: Any, params: Any = None, *, value: Any) -> Any:
        return chain.update(gradients, state, params, value=value / (config.train.loss_scale or 1.0))

    return optax.GradientTransformationExtraArgs(chain.init, change)


def _guard(inner: optax.GradientTransformation, config: RunConfig) -> optax.GradientTransformation:
    """The optimizer on gradients clipped to a norm; a bad step changes nothing.

    One whose loss or norm is not finite is bad, and a spike where these are not kept. As `optax.clip_by_global_norm`
    and `optax.apply_if_finite`, with one norm for both and for the log: its sums are what the update sends.
    """
    clip, train = config.optimizer.clip, config.train

    def init(params: Any) -> GuardedState:
        spikes = None if train.spikes == KEEP else no_history(train.spike_window)
        return GuardedState(
            inner.init(params), jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), spikes
        )

    def change(gradients: Any, state: GuardedState, params: Any = None, *, value: Any) -> tuple[Any, GuardedState]:
        norm = optax.tree.norm(gradients)
        is_finite = is_good = jnp.isfinite(norm) & jnp.isfinite(value)
        spikes = state.spikes
        if spikes is not None:
            is_one, spikes = is_spike(spikes, value, norm, train.spike_sigmas)
            is_good &= ~is_one
        if clip:
            gradients = jax.tree.map(lambda x: jnp.where(norm < clip, x, x / norm.astype(x.dtype) * clip), gradients)
        updates, new = inner.update(gradients, state.inner, params)
        updates = jax.tree.map(lambda x: jnp.where(is_good, x, jnp.zeros_like(x)), updates)
        kept = jax.tree.map(lambda a, b: jnp.where(is_good, a, b), new, state.inner)
        bad = 1 - is_finite.astype(jnp.int32)
        return updates, GuardedState(kept, norm, (state.in_a_row + 1) * bad, state.in_all + bad, spikes)

    return optax.GradientTransformationExtraArgs(init, change)


def _ema(decay: float) -> optax.GradientTransformation:
    def change(updates: Any, state: Averaged, params: Any = None) -> tuple[Any, Averaged]:
        new = optax.apply_updates(params, updates)
        return updates, Averaged(jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, state.averaged, new))

    return optax.GradientTransformation(lambda params: Averaged(jax.tree.map(jnp.copy, params)), change)


def optimizer_metrics(state: TrainState) -> dict[str, Any]:
    """The gradients' norm, bad steps and spikes, as the optimizer's state has them."""
    guarded = next(part for part in state.optimizer if isinstance(part, GuardedState))
    metrics = {"grad_norm": guarded.norm, "bad_in_a_row": guarded.in_a_row, "bad_steps": guarded.in_all}
    if guarded.spikes is not None:
        metrics |= {"spikes": guarded.spikes.in_all, "spike": guarded.spikes.last}
    return metrics


def read_scalar(x: Any) -> float:
    """A scalar that is the same everywhere, read from this process's own copy."""
    array = array_of(x)
    return float(np.asarray(array.addressable_data(0) if isinstance(array, jax.Array) else array))


def evaluated_model(state: TrainState) -> Any:
    """The model to evaluate: that of the EMA of the weights, where one is kept."""
    average = next((part.averaged for part in state.optimizer if isinstance(part, Averaged)), None)
    if average is None:
        return state.params
    averaged = arrays_of(average)
    return refill(state.params, {path: averaged.get(path, x) for path, x in arrays_of(state.params).items()})


def arrays_of(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by path, like `params.decoder.layers.attention.q`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    return {path_text(path): array_of(leaf) for path, leaf in leaves}


def refill(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree with other arrays at its paths."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    new = [
        with_array(leaf, arrays[path_text(path)]) if is_tensor(leaf) else arrays[path_text(path)]
        for path, leaf in leaves
    ]
    return jax.tree.unflatten(structure, new)
