"""One step of training by a run's configuration: loss, gradients, update, and what is told of it.

Imports the configuration and the optimizers. A step whose gradients are not finite changes nothing and is counted.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import models, nn
from .. import ops as wf
from ..dims import Dim
from ..layout import Layout
from ..mesh import Mesh
from ..spmd import train_step
from ..tensor import Tensor
from .config import RunConfig
from .optimizers import optimizer


class Measured(NamedTuple):
    """What the update notes of the gradients."""

    norm: Any


class Averaged(NamedTuple):
    """A running average of the weights."""

    weights: Any


def model_of(config: RunConfig) -> models.TransformerConfig:
    """The model's configuration with the sizes of the run's batches."""
    return dataclasses.replace(config.model, batch=config.batch, length=config.length)


def prepared(model: Any, config: RunConfig) -> Any:
    """The model with what is frozen frozen, and with thin weights beside."""
    if config.lora.rank:
        key = jax.random.fold_in(jax.random.key(config.seed), 1)
        model = nn.lora.add(model, rank=config.lora.rank, key=key, where=config.lora.where, alpha=config.lora.alpha)
    return nn.freeze(model, *config.train.freeze) if config.train.freeze else model


def make_step(config: RunConfig, mesh: Mesh, layout: Layout) -> Any:
    """The step on the mesh: `state, told = step(state, batch, key)`; the old state is overwritten."""
    parts = config.train.microbatches

    def loss(model: Any, batch: Any, key: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if parts == 1:
            return model.loss_and_metrics(batch, key)

        def part(model: Any, rows: Any) -> tuple[Tensor, Tensor]:
            value, told = model.loss_and_metrics(rows, key)
            return value * told["tokens"], told["tokens"]

        return wf.accumulate(part, model, batch, over=Dim("batch", config.batch), count=parts), {}

    return train_step(loss, update(config), has_aux=True).on_mesh(mesh, layout, strict=False, donate=(0,))


def update(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer, which leaves out steps that are not finite, measures gradients and averages weights."""
    guarded = optax.apply_if_finite(optimizer(config), max_consecutive_errors=2**30)
    parts = [_measure(), guarded]
    if config.train.average is not None:
        parts.append(_average(config.train.average))
    return optax.chain(*parts)


def _measure() -> optax.GradientTransformation:
    def change(gradients: Any, state: Measured, params: Any = None) -> tuple[Any, Measured]:
        return gradients, Measured(optax.global_norm(gradients))

    return optax.GradientTransformation(lambda params: Measured(jnp.zeros(())), change)


def _average(share: float) -> optax.GradientTransformation:
    def change(updates: Any, state: Averaged, params: Any = None) -> tuple[Any, Averaged]:
        new = optax.apply_updates(params, updates)
        return updates, Averaged(jax.tree.map(lambda a, b: share * a + (1 - share) * b, state.weights, new))

    return optax.GradientTransformation(lambda params: Averaged(jax.tree.map(jnp.copy, params)), change)


def told_of(state: Any) -> dict[str, Any]:
    """What the optimizer's state tells: the norm of the gradients, and the steps left out, in a row and in all."""
    measured, guarded, *_ = state.optimizer
    return {
        "grad_norm": measured.norm,
        "bad_in_a_row": guarded.notfinite_count,
        "bad_steps": guarded.total_notfinite,
    }
