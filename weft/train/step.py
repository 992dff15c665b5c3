"""One step of training by a run's configuration: loss, gradients, update, and what is told of it.

Imports the configuration and the optimizers. A step that is bad (its gradients are not finite, or it is a spike that
is not kept) changes nothing and is counted.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import models, nn
from .. import ops as wf
from ..dims import Dim
from ..layout import Layout
from ..mesh import Mesh
from ..nn.weights import written
from ..spmd import train_step
from ..spmd.step import TrainState, TrainStep
from ..tensor import Tensor, is_tensor, make, tensor
from .config import RunConfig
from .optimizers import optimizer
from .spikes import Watched, is_spike, nothing_seen

KEEP = "keep"  # what `train.spikes` is where none is looked for
_WEIGHTS, _LORA, _NOISE = range(3)  # what the keys made of a run's seed are for


class Guarded(NamedTuple):
    """The optimizer's state, the norm of the gradients, and the steps that were not finite: in a row, and in all."""

    inner: Any
    norm: Any
    in_a_row: Any
    in_all: Any
    spikes: Watched | None = None
    """What is known of the last steps, where spikes are looked for."""


class Averaged(NamedTuple):
    """A running average of the weights."""

    averaged: Any


def first_model(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> Any:
    """The model a run begins with, where no weights are given: what is frozen is frozen, thin weights are beside."""
    return prepared(models.init(config.sized_model, _key(config, _WEIGHTS), mesh, layout), config)


def shapes_of_model(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> Any:
    """The same with shapes in place of values; nothing is allocated."""
    return jax.eval_shape(lambda: first_model(config, mesh, layout))


def prepared(model: Any, config: RunConfig) -> Any:
    """The model with thin weights beside, and with what is frozen frozen."""
    if config.lora.rank:
        own = config.lora
        model = nn.lora.add(model, rank=own.rank, key=_key(config, _LORA), where=own.where, alpha=own.alpha)
    return nn.freeze(model, *config.train.freeze) if config.train.freeze else model


def _key(config: RunConfig, purpose: int) -> Any:
    return jax.random.fold_in(jax.random.key(config.seed), purpose)


def shapes_of_call(config: RunConfig, step: TrainStep) -> tuple[Any, ...]:
    """What a step is called with, as shapes: its state, a batch, and its number."""
    rows = [config.sized_model.dim("batch"), config.sized_model.dim("length")]
    ids, weights = (
        tensor(jax.ShapeDtypeStruct((config.batch, config.length), dtype), rows) for dtype in ("int32", "float32")
    )
    batch = {"inputs": ids, "targets": ids, "weights": weights}
    return step.init(shapes_of_model(config)), batch, jax.ShapeDtypeStruct((), "int32")


def make_step(config: RunConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> TrainStep:
    """The step on the mesh, or on none yet: `state, told = step(state, batch, at)`; the old state is overwritten.

    `at` counts the steps from 0: with the seed it is what random numbers follow from.
    """
    parts, scale = config.train.microbatches, config.train.loss_scale or 1.0

    def loss(model: Any, batch: Any, at: Any) -> tuple[Tensor, dict[str, Tensor]]:
        key = jax.random.fold_in(_key(config, _NOISE), at)
        if parts == 1:
            value, told = model.loss_and_metrics(batch, key)
            return value * scale, told

        def part(model: Any, rows: Any) -> tuple[Tensor, Tensor]:
            value, told = model.loss_and_metrics(rows, key)
            return value * told["tokens"], told["tokens"]

        return wf.accumulate(part, model, batch, over=Dim("batch", config.batch), count=parts) * scale, {}

    return train_step(
        loss, update(config), has_aux=True, sum_dtype=config.train.sum_dtype, donate=True, mesh=mesh, layout=layout
    )


def update(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer, with shorter gradients, which leaves out steps that are not finite and averages weights."""
    parts = [_guarded(optimizer(config), config)]
    if config.train.loss_scale is not None:
        parts.insert(0, optax.scale(1 / config.train.loss_scale))
    if config.train.average is not None:
        parts.append(_average(config.train.average))
    chain = optax.chain(*parts)
    if config.train.spikes == KEEP:
        return chain

    def change(gradients: Any, state: Any, params: Any = None, *, value: Any) -> Any:
        return chain.update(gradients, state, params, value=value / (config.train.loss_scale or 1.0))

    return optax.GradientTransformationExtraArgs(chain.init, change)


def _guarded(inner: optax.GradientTransformation, config: RunConfig) -> optax.GradientTransformation:
    """The optimizer on gradients of at most the norm `clip` (0: any); a step that is bad changes nothing.

    One whose norm is not finite is bad, and a spike where these are not kept. As `optax.clip_by_global_norm` and
    `optax.apply_if_finite`, with one norm for both and for the log: its sums are what the update sends.
    """
    longest, own = config.optimizer.clip, config.train

    def first(params: Any) -> Guarded:
        spikes = None if own.spikes == KEEP else nothing_seen(own.spike_window)
        return Guarded(inner.init(params), jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), spikes)

    def change(gradients: Any, state: Guarded, params: Any = None, *, value: Any = None) -> tuple[Any, Guarded]:
        norm = optax.tree.norm(gradients)
        is_finite = is_good = jnp.isfinite(norm)
        spikes = state.spikes
        if spikes is not None:
            is_one, spikes = is_spike(spikes, value, norm, own.spike_sigmas)
            is_good &= ~is_one
        if longest:
            gradients = jax.tree.map(
                lambda x: jnp.where(norm < longest, x, x / norm.astype(x.dtype) * longest), gradients
            )
        updates, new = inner.update(gradients, state.inner, params)
        updates = jax.tree.map(lambda x: jnp.where(is_good, x, jnp.zeros_like(x)), updates)
        kept = jax.tree.map(lambda a, b: jnp.where(is_good, a, b), new, state.inner)
        bad = 1 - is_finite.astype(jnp.int32)
        return updates, Guarded(kept, norm, (state.in_a_row + 1) * bad, state.in_all + bad, spikes)

    return optax.GradientTransformationExtraArgs(first, change)


def _average(share: float) -> optax.GradientTransformation:
    def change(updates: Any, state: Averaged, params: Any = None) -> tuple[Any, Averaged]:
        new = optax.apply_updates(params, updates)
        return updates, Averaged(jax.tree.map(lambda a, b: share * a + (1 - share) * b, state.averaged, new))

    return optax.GradientTransformation(lambda params: Averaged(jax.tree.map(jnp.copy, params)), change)


def told_of(state: TrainState) -> dict[str, Any]:
    """What the optimizer's state tells: the norm of the gradients, the steps that were not finite, and spikes."""
    found = next(part for part in state.optimizer if isinstance(part, Guarded))
    told = {"grad_norm": found.norm, "bad_in_a_row": found.in_a_row, "bad_steps": found.in_all}
    return told if found.spikes is None else {**told, "spikes": found.spikes.in_all, "spike": found.spikes.last}


def judged_model(state: TrainState) -> Any:
    """The model to evaluate: that of the averaged weights, where they are averaged."""
    average = next((part.averaged for part in state.optimizer if isinstance(part, Averaged)), None)
    if average is None:
        return state.params
    averaged = arrays_of(average)
    return refilled(state.params, {path: averaged.get(path, x) for path, x in arrays_of(state.params).items()})


# States as arrays by path.


def arrays_of(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths, those of tensors too: `params.decoder.layers.attention.q`."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    return {written(path): leaf.raw if is_tensor(leaf) else leaf for path, leaf in found}


def refilled(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree with other arrays at its paths."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    new = [
        make(arrays[written(path)], leaf.dims, None, leaf.kind) if is_tensor(leaf) else arrays[written(path)]
        for path, leaf in leaves
    ]
    return jax.tree.unflatten(structure, new)
