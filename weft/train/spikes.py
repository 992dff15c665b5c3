"""Loss spikes: which steps are one, by the losses and norms of the steps before.

Imports nothing of the house. It is all numbers of the optimizer's state, the same on every processor: a run that goes
on, on any mesh, knows what it knew.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

LEAST = 0.01
"""A deviation counts as at least this share of the mean: where all is as before, a hair's breadth is no spike."""


class History(NamedTuple):
    """Losses and gradients' norms of the last steps, to tell a spike by."""

    losses: Any
    norms: Any
    seen: Any
    """How many steps there were."""
    in_all: Any
    """How many of them were spikes."""
    last: Any
    """Of the last step: whether it is a spike, its loss and norm, and the highest that are none."""


class Spike(NamedTuple):
    """A step that is one."""

    step: int
    loss: float
    grad_norm: float
    highest_loss: float
    highest_norm: float

    def __str__(self) -> str:
        why = f"its loss is {self.loss:.4g}, and at most {self.highest_loss:.4g} is none"
        if self.loss <= self.highest_loss:
            why = f"its gradients' norm is {self.grad_norm:.4g}, and at most {self.highest_norm:.4g} is none"
        return f"step {self.step} is a spike: {why}"


def is_of_spikes(path: str) -> bool:
    """Whether a path in a run's state is of the history: `optimizer.0.spikes.losses`."""
    return ".spikes." in path


def no_history(window: int) -> History:
    """The history before the first step."""
    none = jnp.zeros((), jnp.int32)
    return History(jnp.zeros(window), jnp.zeros(window), none, jnp.copy(none), jnp.zeros(5))


def is_spike(before: History, loss: Any, norm: Any, sigmas: float) -> tuple[Any, History]:
    """Whether a step is a spike, and the history with it.

    It is one where its loss, or the norm of its gradients, is above the mean of the last steps by more than so many
    standard deviations; as long as there are too few of them, none is but one whose loss is not finite. A spike counts
    among the last steps like any other: what lasts is one only in its first few.
    """
    loss, norm = jnp.float32(loss), jnp.float32(norm)
    window = before.losses.shape[0]
    is_known = before.seen >= window
    highest_loss, highest_norm = (
        jnp.where(is_known, _highest(x, sigmas), jnp.inf) for x in (before.losses, before.norms)
    )
    is_high = ~((loss <= highest_loss) & (norm <= highest_norm) & jnp.isfinite(loss)) & jnp.isfinite(norm)
    is_new = (jnp.arange(window) == before.seen % window) & jnp.isfinite(loss) & jnp.isfinite(norm)
    count = is_high.astype(jnp.int32)
    after = History(
        jnp.where(is_new, loss, before.losses),
        jnp.where(is_new, norm, before.norms),
        before.seen + jnp.any(is_new).astype(jnp.int32),
        before.in_all + count,
        jnp.stack([jnp.float32(count), loss, norm, highest_loss, highest_norm]),
    )
    return is_high, after


def _highest(x: Any, sigmas: float) -> Any:
    mean = jnp.mean(x)
    deviation = jnp.sqrt(jnp.mean(jnp.square(x - mean)))
    return mean + sigmas * jnp.maximum(deviation, LEAST * jnp.abs(mean))
