"""NaN search (`--find-nan`): which operation made a step not finite.

Imports the step, the log and the program. Such a step changes nothing, and its batch follows from its number: so it can
be done again, on one processor, where every operation can be looked at.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .. import data
from ..compat import is_out_of_memory
from ..data.streams import OwnStream
from ..errors import CheckError
from ..layout import Layout
from ..mesh import Mesh
from ..nn.loss import checking_labels
from ..program.finite import BadArgument, not_finite
from ..spmd import bind, get, value_and_grad
from ..spmd.step import TrainState, TrainStep
from .config import RunConfig
from .feeding import Feed
from .interface import Listener, TrainingError
from .log import Log
from .step import arrays_of, make_step, optimizer_metrics, read_scalar, refill

_MOST_NAMED = 3


class NanSearch:
    """Ends a run at its first step that is not finite, and names the operation."""

    def __init__(self, config: RunConfig, feed: Feed, dataset: data.Dataset | OwnStream, listener: Listener):
        self._config, self._feed, self._dataset, self._listener = config, feed, dataset, listener

    def check(self, state: TrainState, at: int, *, skipped: int, log: Log) -> None:
        """Raises where step `at` was not finite; `skipped` batches were left out before."""
        if not read_scalar(optimizer_metrics(state)["bad_in_a_row"]):
            return
        with contextlib.suppress(TrainingError):  # that too many steps were not finite is no news
            log.write()
        with self._listener.stage(f"doing step {at} again on one processor"):
            batch = self._feed.batches(self._dataset).at(at - 1 + skipped)
            cause, fix = first_cause(self._config, state.params, self._feed, batch, at - 1)
        raise TrainingError(f"step {at} is not finite: {cause}", fix=fix, step=at, not_finite=cause)


def first_cause(config: RunConfig, params: Any, feed: Feed, rows: Mapping[str, np.ndarray], at: int) -> tuple[str, str]:
    """A sentence on why step `at` is not finite, and the fix; it needs one processor."""
    batch = feed.place(rows)
    model, whole = (refill(tree, get(arrays_of(tree))) for tree in (params, batch))
    step = make_step(config, Mesh("all=1"), Layout(""))
    differentiated = value_and_grad(step.loss, has_aux=True, sum_dtype=step.sum_dtype)

    def loss_and_gradients(params: Any, batch: Any, number: Any) -> Any:
        (loss, _), gradients = differentiated(params, batch, number)
        return loss, gradients

    fix = "mend that operation, or lower `schedule.rate`"
    try:
        report = not_finite(loss_and_gradients, model, whole, np.int32(at))
        if 0 in report.results and (label := _wrong_label(step, model, whole, at)):
            return label, "mend the data: classes and tokens are counted from 0, and what does not count has weight 0"
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and not is_out_of_memory(error):
            raise
        return "which operation it was cannot be said: the model and its batch do not fit one processor", fix
    if not report:
        return f"done again on one processor it is finite; on mesh {feed.mesh} sums are of another order or dtype", fix
    finite_loss = [] if 0 in report.results else ["its loss is finite, its gradients are not"]
    return "; ".join([*finite_loss, *_already(report.given), *map(str, report.made)]), fix


def _wrong_label(step: TrainStep, model: Any, batch: Any, at: int) -> str:
    """Which label lies outside the classes, if one does: the loss is NaN by it."""
    with checking_labels():
        try:
            bind(lambda *args: step.loss(*args)[0], Mesh("all=1"), Layout(""))(model, batch, np.int32(at))
        except CheckError as error:
            return f"{error.fact.removeprefix('check failed: ')}; {error.given_state.partition('   ')[0]}"
    return ""


def _already(given: Sequence[BadArgument]) -> list[str]:
    """What was not finite before the step began."""
    if not given:
        return []
    more = f" and {len(given) - _MOST_NAMED} more" if len(given) > _MOST_NAMED else ""
    return [f"before it began, {', '.join(map(str, given[:_MOST_NAMED]))}{more}"]
