"""What a cross-entropy needs of the logits, in one op with a gradient by hand.

Imports the language below it. The logits are read twice forward and once backward, in the dtype they have; statistics
are of at least float32, and the gradient of the logits is written once, in their dtype. Of a split vocab numbers of
tokens are sent alone: the largest logits, then sums. Backward nothing is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..dims import Dim, DimLike, Shape, only, resolve
from ..layout import Axes
from ..lower.collectives import all_reduce, as_varying, first_place, max_for_shift
from ..lower.meet import Meeting, meet
from ..lower.move import align, settle
from ..lower.recorded import recorded
from ..tensor import Tensor, as_dtype


class CrossEntropyTerms(NamedTuple):
    """Of each token, in float32 or wider."""

    log_sum: Tensor
    """log(sum(exp(logits)))."""
    target: Tensor
    """The logit of the target; 0 where that is no id of the vocab."""
    is_hit: Tensor
    """Whether the target, an id of the vocab, is the first of the largest logits (argmax)."""
    smoothed: Tensor | None = None
    """The mean logit under the smoothed distribution of targets, where that is smoothed."""


@recorded
def cross_entropy_terms(logits: Tensor, targets: Tensor, *, over: DimLike, smoothing: float = 0.0) -> CrossEntropyTerms:
    """The terms of a cross-entropy; `logits` have the dims of `targets`, and `over`."""
    dim = only(resolve(over, logits.dims, what="over"), "cross_entropy")
    meeting = meet([logits, targets])
    kept = logits.dims.without([dim])
    rows = _Rows(meeting, logits.dims, dim, smoothing)

    def compute(a: Any, ids: Any) -> tuple[Any, ...]:
        ids = ids.astype(as_dtype("int64" if ids.dtype.itemsize == 8 else "int32"))  # room for an offset
        return rows.terms(as_varying(a, rows.axes), align(ids, targets.dims, logits.dims))

    placement = meeting.placement(kept)
    terms = meeting.run(compute, [logits, targets])
    return CrossEntropyTerms(*(settle(term, kept, placement, meeting.region) for term in terms))


class _Rows:
    """The rows of logits on this processor, along a dim of which it may have a part."""

    def __init__(self, meeting: Meeting, dims: Shape, dim: Dim, smoothing: float):
        self.meeting, self.dims, self.dim, self.smoothing = meeting, dims, dim, smoothing
        self.at = dims.position(dim)
        self.axes: Axes = meeting.axes([dim])

    def terms(self, a: Any, ids: Any) -> tuple[Any, ...]:
        """The terms, as `CrossEntropyTerms` has them."""
        run = jax.custom_vjp(lambda a, ids: self._forward(a, ids)[0])
        run.defvjp(self._forward, self._backward)
        return run(a, ids)

    def _forward(self, a: Any, ids: Any) -> tuple[tuple[Any, ...], Any]:
        wide, places = self._wide(a), self._places(a)
        top = max_for_shift(jnp.max(wide, axis=self.at, keepdims=True), self.axes)
        shift = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
        sums = [jnp.sum(jnp.exp(wide - shift), axis=self.at), self._own_targets(a, ids)]
        if self.smoothing:
            sums.append(jnp.sum(self.meeting.fill(wide, self.dims, 0, [self.dim]), axis=self.at))
        total, target, *every = self._add_up(sums)
        # Of the largest argmax takes the first. Sent apart: where hits are not asked for, it is not.
        (before,) = self._add_up([jnp.sum((wide == shift) & (places < ids), axis=self.at, dtype=wide.dtype)])
        shift_of_row = jnp.squeeze(shift, self.at)
        terms = [jnp.log(total) + shift_of_row, target, (target == shift_of_row) & (before == 0)]
        if self.smoothing:
            terms.append((1 - self.smoothing) * target + self.smoothing * (every[0] / self.dim.count))
        return tuple(terms), (a, ids, shift, total)

    def _backward(self, kept: Any, gradients: Sequence[Any]) -> tuple[Any, None]:
        a, ids, shift, total = kept
        of_sum, of_target, _, *more = gradients
        if self.smoothing:
            of_target = of_target + (1 - self.smoothing) * more[0]
        by_sum, by_target = (jnp.expand_dims(g, self.at) for g in (of_sum / total, of_target))
        slope = jnp.exp(self._wide(a) - shift) * by_sum + jnp.where(self._places(a) == ids, by_target, 0)
        if self.smoothing:
            slope = slope + jnp.expand_dims(more[0] * (self.smoothing / self.dim.count), self.at)
        return slope.astype(a.dtype), None

    def _wide(self, a: Any) -> Any:
        """The logits as statistics are computed, least in the padding of the vocab.

        XLA may keep what a product gave before it was rounded to `a.dtype`, and then no target would equal the largest
        of its row: the rounding is said once more, which it leaves in.
        """
        wide, info = a.astype(jnp.promote_types(a.dtype, jnp.float32)), jnp.finfo(a.dtype)
        if wide.dtype != a.dtype:
            wide = lax.reduce_precision(wide, exponent_bits=info.nexp, mantissa_bits=info.nmant)
        return self.meeting.fill(wide, self.dims, -jnp.inf, [self.dim])

    def _places(self, a: Any) -> Any:
        """The global places along the vocab, to broadcast."""
        own = a.shape[self.at]
        places = jnp.arange(own) + first_place(self.axes, own)
        return places.reshape([-1 if i == self.at else 1 for i in range(a.ndim)])

    def _own_targets(self, a: Any, ids: Any) -> Any:
        """The targets' logits; 0 for those that are not here."""
        own = a.shape[self.at]
        here = ids - first_place(self.axes, own)
        is_here = (here >= 0) & (here < own) & (ids < self.dim.count)
        shape = tuple(1 if i == self.at else size for i, size in enumerate(a.shape))
        at = jnp.broadcast_to(jnp.where(is_here, here, 0), shape)
        found = jnp.take_along_axis(a, at, axis=self.at, mode="promise_in_bounds")
        found = jnp.where(is_here, found, jnp.zeros_like(found)).astype(jnp.promote_types(a.dtype, jnp.float32))
        return jnp.squeeze(found, self.at)

    def _add_up(self, sums: Sequence[Any]) -> list[Any]:
        """What each processor sums along its part of the vocab, sent together."""
        return list(all_reduce(jnp.stack(sums), self.axes)) if self.axes else list(sums)
