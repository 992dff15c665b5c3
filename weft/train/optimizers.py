"""Optimizers, and learning-rate schedules with their warm-up, from Optax.

Imports the configuration. What decays is told apart by paths, like `decoder.layers.attention.q`.
"""

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..nn.weights import path_text
from ..optim import scale_by_adam8bit
from .config import RunConfig
from .muon import scale_by_muon_and_adam
from .tables import Optimizer, Schedule


def schedule(config: Schedule, steps: int) -> Callable[[Any], Any]:
    """The learning rate at a step."""
    rate, warmup = config.rate, config.warmup
    rest = max(steps - warmup, 1)
    if config.kind == "constant":
        after = optax.constant_schedule(rate)
    elif config.kind == "linear":
        after = optax.linear_schedule(rate, rate * config.end, rest)
    elif config.kind == "cosine":
        after = optax.cosine_decay_schedule(rate, rest, config.end)
    elif config.kind == "wsd":
        after = _wsd(rate, rest, config)
    else:
        after = _rsqrt(rate, max(warmup, 1), steps, config.cooldown)
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(rate / warmup, rate, warmup - 1), after], [warmup])


def _wsd(rate: float, steps: int, config: Schedule) -> Callable[[Any], Any]:
    """WSD (warmup, stable, decay) after its warmup: a line down over the last steps."""

    def value(count: Any) -> Any:
        left = jnp.clip((steps - count) / config.cooldown, 0.0, 1.0) if config.cooldown else 1.0
        return rate * (config.end + (1 - config.end) * left)

    return value


def _rsqrt(rate: float, warmup: int, steps: int, cooldown: int) -> Callable[[Any], Any]:
    """Inverse square root of the step; linear cooldown to 0 over the last ones."""

    def value(count: Any) -> Any:
        step = jnp.maximum(count, 0) + warmup  # before the warmup's end it is asked too, and not used
        down = jnp.clip((steps - step) / cooldown, 0.0, 1.0) if cooldown else 1.0
        return rate * jnp.sqrt(warmup / step) * down

    return value


def optimizer(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer, with its rate by step, and decay where it belongs."""
    return transformation(config.optimizer, config.model, schedule(config.schedule, config.train.steps))


def transformation(options: Optimizer, model: Any, rate: Any) -> optax.GradientTransformation:
    """An optimizer for a model's configuration, with a rate or a rate by step."""
    parts: list[optax.GradientTransformation] = []
    if options.name in ("adamw", "adam"):
        parts.append(optax.scale_by_adam(options.b1, options.b2, options.epsilon))
    elif options.name in ("adamw8bit", "adam8bit"):
        parts.append(
            scale_by_adam8bit(
                options.b1,
                options.b2,
                options.epsilon,
                block_size=options.block_size,
                keep_float32=lambda params: matches(params, options.keep_float32),
            )
        )
    elif options.name == "muon":
        parts.append(scale_by_muon_and_adam(options, model))
    elif options.name == "lion":
        parts.append(optax.scale_by_lion(options.b1, options.b2))
    elif options.name == "momentum":
        parts.append(optax.trace(options.momentum))
    elif options.name == "adafactor":
        # Shazeer and Stern 2018: no momentum, second moments by rows and columns, updates clipped.
        parts += [optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0)]
        parts += [optax.scale_by_param_block_rms()] if options.parameter_scale else []
    if options.weight_decay:
        parts.append(optax.add_decayed_weights(options.weight_decay, mask=lambda params: decays(params, options)))
    return optax.chain(*parts, optax.scale_by_learning_rate(rate))


def decays(params: Any, config: Optimizer) -> Any:
    """Which weights have weight decay: a tree of booleans."""
    return jax.tree.map(lambda flag: not flag, matches(params, config.no_decay))


def matches(params: Any, patterns: Sequence[str]) -> Any:
    """Which weights have a path that one of the patterns matches: a tree of booleans."""

    def does(path: Any, leaf: Any) -> bool:
        return any(fnmatch.fnmatch(path_text(path), pattern) for pattern in patterns)

    return jax.tree_util.tree_map_with_path(does, params)
