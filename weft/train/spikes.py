"""Loss spikes: which steps are one, by the steps before them, and what is kept of these to tell.

Imports nothing of the house. It is all numbers of the optimizer's state, the same on every processor: a run that goes
on, on any mesh, knows what it knew.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

LEAST = 0.01
"""A deviation counts as at least this share of the mean: where all is as before, a hair's breadth is no spike."""


class Watched(NamedTuple):
    """Losses and norms of the gradients of the last steps, how many there were and how many spikes in all."""

    losses: Any
    norms: Any
    seen: Any
    in_all: Any
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
        found = [f"its loss is {self.loss:.4g}, and at most {self.highest_loss:.4g} is none"]
        if self.loss <= self.highest_loss:
            found = [f"its gradients' norm is {self.grad_norm:.4g}, and at most {self.highest_norm:.4g} is none"]
        return f"step {self.step} is a spike: {found[0]}"


def is_of_spikes(path: str) -> bool:
    """Whether an array of a run's state is what is known of spikes: `optimizer.0.spikes.losses`."""
    return ".spikes." in path


def nothing_seen(window: int) -> Watched:
    """What is known before the first step."""
    none = jnp.zeros((), jnp.int32)
    return Watched(jnp.zeros(window), jnp.zeros(window), none, jnp.copy(none), jnp.zeros(5))


def is_spike(before: Watched, loss: Any, norm: Any, sigmas: float) -> tuple[Any, Watched]:
    """Whether a step is a spike, and what is known with it.

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
    found = ~((loss <= highest_loss) & (norm <= highest_norm) & jnp.isfinite(loss)) & jnp.isfinite(norm)
    is_new = (jnp.arange(window) == before.seen % window) & jnp.isfinite(loss) & jnp.isfinite(norm)
    count = found.astype(jnp.int32)
    after = Watched(
        jnp.where(is_new, loss, before.losses),
        jnp.where(is_new, norm, before.norms),
        before.seen + jnp.any(is_new).astype(jnp.int32),
        before.in_all + count,
        jnp.stack([jnp.float32(count), loss, norm, highest_loss, highest_norm]),
    )
    return found, after


def _highest(x: Any, sigmas: float) -> Any:
    mean = jnp.mean(x)
    deviation = jnp.sqrt(jnp.mean(jnp.square(x - mean)))
    return mean + sigmas * jnp.maximum(deviation, LEAST * jnp.abs(mean))
