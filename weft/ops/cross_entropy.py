"""What a cross-entropy needs of the logits, in one op with a gradient by hand.

Imports the language below it. The logits are read twice forward and once backward, in the dtype they have; statistics
are of at least float32, and the gradient of the logits is written once, in their dtype. Of a split vocab numbers of
tokens are sent alone: the largest logits, then all sums by one all-reduce. Backward nothing is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..dims import Dim, DimLike, Shape, only, resolve
from ..layout import Axes
from ..lower.collectives import all_reduce, as_varying, first_place, max_for_shift
from ..lower.meet import Meeting, meet
from ..lower.move import align, settle
from ..lower.recorded import recorded
from ..tensor import Tensor


class CrossEntropyTerms(NamedTuple):
    """Of each token, in float32 or wider."""

    log_sum: Tensor
    """log(sum(exp(logits)))."""
    target: Tensor
    """The logit of the target; 0 where that is no id of the vocab."""
    smoothed: Tensor
    """The mean logit under the smoothed distribution of targets; the target's own where that is not smoothed."""
    is_hit: Tensor | None
    """Whether the target is the first of the largest logits (argmax), where that is asked for."""


@recorded(name="cross_entropy")
def cross_entropy_terms(
    logits: Tensor, targets: Tensor, *, over: DimLike, smoothing: float = 0.0, counts_hits: bool = False
) -> CrossEntropyTerms:
    """The terms of a cross-entropy; `logits` have the dims of `targets`, and `over`."""
    dim = only(resolve(over, logits.dims, what="over"), "cross_entropy")
    meeting = meet([logits, targets])
    kept = logits.dims.without([dim])
    rows = _Rows(meeting, logits.dims, dim, smoothing, counts_hits)

    def compute(a: Any, ids: Any) -> tuple[Any, ...]:
        return rows.terms(as_varying(a, rows.axes), align(ids, targets.dims, logits.dims))

    placement = meeting.placement(kept)
    terms = [settle(term, kept, placement, meeting.region) for term in meeting.run(compute, [logits, targets])]
    log_sum, target = terms[:2]
    return CrossEntropyTerms(
        log_sum, target, terms[2] if smoothing else target, is_hit=terms[-1] if counts_hits else None
    )


class _Rows:
    """The rows of logits on this processor, along a dim of which it may have a part."""

    def __init__(self, meeting: Meeting, dims: Shape, dim: Dim, smoothing: float, counts_hits: bool):
        self.meeting, self.dims, self.dim = meeting, dims, dim
        self.smoothing, self.counts_hits = smoothing, counts_hits
        self.at = dims.position(dim)
        self.axes: Axes = meeting.axes([dim])

    def terms(self, a: Any, ids: Any) -> tuple[Any, ...]:
        """The log-sum, the target's logit, and the other terms that are asked for."""
        run = jax.custom_vjp(lambda a, ids: self._forward(a, ids)[0])
        run.defvjp(self._forward, self._backward)
        return run(a, ids)

    def _forward(self, a: Any, ids: Any) -> tuple[tuple[Any, ...], Any]:
        wide, places = self._wide(a), self._places(a)
        top = max_for_shift(jnp.max(wide, axis=self.at, keepdims=True), self.axes)
        shift = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
        parts = {"total": jnp.exp(wide - shift), "target": jnp.where(places == ids, wide, 0)}
        if self.smoothing:
            parts["all"] = self.meeting.filled(wide, self.dims, 0, [self.dim])
        if self.counts_hits:  # those as large that come before, of which argmax takes the first
            parts["before"] = ((wide == top) & (places < ids)).astype(wide.dtype)
        sums = self._sums(parts)
        total, target = sums["total"], sums["target"]
        terms = [jnp.log(total) + jnp.squeeze(shift, self.at), target]
        if self.smoothing:
            terms.append((1 - self.smoothing) * target + self.smoothing * (sums["all"] / self.dim.count))
        if self.counts_hits:
            is_top = (jnp.expand_dims(target, self.at) == top) & (ids >= 0) & (ids < self.dim.count)
            terms.append(jnp.squeeze(is_top, self.at) & (sums["before"] == 0))
        return tuple(terms), (a, ids, shift, total)

    def _backward(self, kept: Any, gradients: Sequence[Any]) -> tuple[Any, None]:
        a, ids, shift, total = kept
        of_sum, of_target, *more = gradients
        if self.smoothing:
            of_target = of_target + (1 - self.smoothing) * more[0]
        by_sum, by_target = (jnp.expand_dims(g, self.at) for g in (of_sum / total, of_target))
        slope = jnp.exp(self._wide(a) - shift) * by_sum + jnp.where(self._places(a) == ids, by_target, 0)
        if self.smoothing:
            slope = slope + jnp.expand_dims(more[0] * (self.smoothing / self.dim.count), self.at)
        return slope.astype(a.dtype), None

    def _wide(self, a: Any) -> Any:
        """The logits as statistics are computed, least in the padding of the vocab."""
        wide = a.astype(jnp.promote_types(a.dtype, jnp.float32))
        return self.meeting.filled(wide, self.dims, -jnp.inf, [self.dim])

    def _places(self, a: Any) -> Any:
        """The global places along the vocab, to broadcast."""
        own = a.shape[self.at]
        places = jnp.arange(own) + first_place(self.axes, own)
        return places.reshape([-1 if i == self.at else 1 for i in range(a.ndim)])

    def _sums(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Each part summed along the vocab; sent together where it is split."""
        sums = [jnp.sum(part, axis=self.at) for part in parts.values()]
        return dict(zip(parts, all_reduce(jnp.stack(sums), self.axes) if self.axes else sums, strict=True))
