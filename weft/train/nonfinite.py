"""Which operation made a step's loss or gradients not finite.

Imports the step and the program. Such a step changes nothing, and its batch follows from its number: so it can be done
again, on one processor, where every operation can be looked at.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .. import data
from ..layout import Layout
from ..mesh import Mesh
from ..program.finite import Given, not_finite
from ..spmd import get, value_and_grad
from .config import RunConfig
from .feeding import Feed
from .step import arrays_of, make_step, refilled

_MOST_NAMED = 3


def first_bad_operation(
    config: RunConfig, params: Any, feed: Feed, dataset: data.Dataset, at: int, *, past: int = 0
) -> str:
    """What first was not finite in step `at`, which began with `params`, in a sentence.

    `past` counts the batches that were left out before it. All of the model and of the batch must fit one processor.
    """
    batch = feed.placed(feed.batches(dataset).at(at + past))
    model, whole = (refilled(tree, get(arrays_of(tree))) for tree in (params, batch))
    step = make_step(config, Mesh("all=1"), Layout(""))
    differentiated = value_and_grad(step.loss, has_aux=True, sum_dtype=step.sum_dtype)

    def loss_and_gradients(params: Any, batch: Any, at: Any) -> Any:
        (loss, _), gradients = differentiated(params, batch, at)
        return loss, gradients

    try:
        found = not_finite(loss_and_gradients, model, whole, np.int32(at))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return "which operation it was cannot be said: the model and its batch do not fit one processor"
    if not found:
        return f"done again on one processor it is finite; on mesh {feed.mesh} sums are of another order or dtype"
    finite_loss = [] if 0 in found.results else ["its loss is finite, its gradients are not"]
    return "; ".join([*finite_loss, *_already(found.given), *map(str, found.made)])


def _already(given: Sequence[Given]) -> list[str]:
    """What was not finite before the step began."""
    if not given:
        return []
    more = f" and {len(given) - _MOST_NAMED} more" if len(given) > _MOST_NAMED else ""
    return [f"before it began, {', '.join(map(str, given[:_MOST_NAMED]))}{more}"]
