"""Beam search: the continuations with the highest score, several followed.

The score is the log-probability over a penalty that grows with the length. Of `2 * beams` candidates a turn, those
that end among the best `beams` are finished; the best of the rest go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops as wf
from ..checks import is_real
from ..dims import UNSHOWN, Dim, Shape
from ..errors import TensorError, closest, public
from ..layout import LayoutLike
from ..models.cache import KVCache
from ..models.unrolled import prepare
from ..nn.arguments import check_count
from ..spmd.place import get
from ..tensor import Tensor
from .constraints import NEVER, Constraints, Processor, check_ends, constrain, is_one_of
from .generate import cut_off
from .prompts import compile_once, config_of, start_decoding

WORST = -1e9  # the score of what is not there
_WRITTEN, _CANDIDATES, _FINISHED, _BEST = (f"{UNSHOWN}{name}" for name in ("written", "candidates", "finished", "best"))

PENALTIES = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
    "length": lambda length, alpha: length**alpha,
}


@dataclass(frozen=True)
class Hypotheses:
    """The best continuations of each input, best first."""

    tokens: np.ndarray
    """Their ids, [batch beam length]; after the end of one it is padded with `end`."""
    lengths: np.ndarray
    """How many there are of each, the end counted; 0 where fewer hypotheses were found."""
    scores: np.ndarray
    """Log-probabilities over the penalty of the length."""

    @property
    def sequences(self) -> list[list[list[int]]]:
        """The ids of each hypothesis as a list, without the padding."""
        return cut_off(self.tokens, self.lengths)


@public
def beam_search(
    model: Any,
    inputs: Any,
    *,
    beams: int = 5,
    alpha: float = 0.6,
    end: int | Sequence[int] = 1,
    max_new_tokens: int = 64,
    penalty: str = "gnmt",
    early_stopping: bool = False,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int | None = None,
    min_length: int = 0,
    min_new_tokens: int = 0,
    processors: Sequence[Processor] = (),
    layout: LayoutLike | None = None,
) -> Hypotheses:
    """The `beams` best continuations of each input, under the layout of the model.

    `inputs` are lists of token ids: what an encoder-decoder translates, or the prompts of a language model. The score
    is the log-probability over ((5 + length) / 6) ** alpha, as in GNMT; with `penalty="length"` over length ** alpha;
    a negative `alpha` favours short ones. `end` is an id, or several. Constraints are those of `generate`, on
    log-probabilities, and a score is of what they leave. The search ends when no open hypothesis can overtake a
    finished one; with `early_stopping`, when as many as there are beams are finished. `layout` replaces the model's
    own.
    """
    if penalty not in PENALTIES:
        raise TensorError(f"there is no penalty {penalty!r}", fix=closest(str(penalty), PENALTIES))
    if not is_real(alpha):
        raise TensorError(f"`alpha` is {alpha!r}", fix="give a number; 0 has no regard to length")
    beams = check_count(beams, "beams")
    ends = check_ends(end, config_of(model).vocab)
    if not ends:
        raise TensorError("`end` is None", fix="give the id that ends a hypothesis, or several")
    start = start_decoding(model, inputs, max_new_tokens, layout, {"beam": beams})
    search = _BeamSearch(
        beams,
        float(alpha),
        penalty,
        constrain(repetition_penalty, no_repeat_ngram, min_length, min_new_tokens, processors, ends),
        int(max_new_tokens),
        start.room,
        bool(early_stopping),
    )
    tokens, lengths, scores = get(compile_once(search, start.mesh, start.layout)(model, start.prompt))
    return Hypotheses(tokens, lengths, scores)


State = dict[str, Any]


@dataclass(frozen=True)
class _BeamSearch:
    """A beam search: all that decides what is compiled, but for the shapes."""

    beams: int
    alpha: float
    penalty: str
    limits: Constraints
    steps: int
    room: int
    early_stopping: bool

    def __call__(self, model: Any, prompt: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, cache = model.prefill(prompt, self.room)
        model, cache = prepare(model, cache)
        batch, beam, vocab = logits.dim("batch"), Dim("beam", self.beams), logits.dim("vocab")
        finished, written = Dim(_FINISHED, self.beams), Dim(_WRITTEN, self.steps)
        logits = wf.broadcast(logits, [batch, beam, vocab])
        at = wf.arange(beam, like=logits)
        state: State = {
            "turn": wf.full([], 0, dtype="int32"),
            "scores": wf.broadcast(wf.where(at == 0, 0.0, WORST), [batch, beam]),  # all begin the same: one counts
            "tokens": wf.full([batch, beam, written], self._padding, like=logits, dtype="int32"),
            "finished": wf.full([batch, finished, written], self._padding, like=logits, dtype="int32"),
            "lengths": wf.zeros([batch, finished], like=logits, dtype="int32"),
            "finished_scores": wf.full([batch, finished], WORST, like=logits),
            "is_open": wf.full([batch], True, like=logits, dtype=bool),
            "before": self.limits.begin(model, prompt, Shape([batch, beam]), self.steps),
        }
        state, cache = self._extend(logits, state, cache.spread(beam))

        def is_open(carry: tuple[State, KVCache]) -> Tensor:
            state, _ = carry
            return (state["turn"] < self.steps) & wf.any(state["is_open"], over="batch")

        def turn(carry: tuple[State, KVCache]) -> tuple[State, KVCache]:
            state, cache = carry
            logits, cache = model.step(state["last"], cache)
            return self._extend(logits, state, cache)

        state, _ = wf.while_loop(is_open, turn, (state, cache))
        return state["finished"], state["lengths"], state["finished_scores"]

    def _extend(self, logits: Tensor, state: State, cache: KVCache) -> tuple[State, KVCache]:
        """One token more in each beam, and the KV cache of the beams they continue."""
        scores, parents, tokens = self._candidates(logits, state)
        written = wf.update(wf.take(state["tokens"], parents, over="beam"), tokens, over=_WRITTEN, at=state["turn"])
        ends = is_one_of(tokens, self.limits.ends) | (state["turn"] == self.steps - 1)
        state = self._with_finished(state, scores, written, ends)
        beam = Dim("beam", self.beams)
        scores, chosen = wf.top_k(wf.where(ends, WORST, scores), over=_CANDIDATES, k=beam)
        parents, last = (wf.take(x, chosen, over=_CANDIDATES) for x in (parents, tokens))
        before = {name: _of_beams(x, parents) for name, x in state["before"].items()}
        state |= {
            "turn": state["turn"] + 1,
            "scores": scores,
            "tokens": wf.take(written, chosen, over=_CANDIDATES),
            "last": last,
            "before": self.limits.extend(before, last, state["turn"], self.steps),
        }
        state["is_open"] = self._is_open(state)
        return state, cache.map_past(lambda x: wf.gather(x, parents, over="beam"))

    def _candidates(self, logits: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways on: scores, beams continued, tokens.

        There are as many for each beam as there are ids that end it, and one more: so enough go on.
        """
        candidates = Dim(_CANDIDATES, (1 + len(self.limits.ends)) * self.beams)
        of_beam = Dim(_BEST, min(candidates.size, logits.dim("vocab").count))
        gains = self.limits(wf.log_softmax(logits, over="vocab"), state["before"], state["turn"], self.steps)
        best, ids = wf.top_k(wf.maximum(gains, NEVER), over="vocab", k=of_beam)
        scores = state["scores"]
        beam = Dim(f"{UNSHOWN}beam", self.beams)  # a name no rule splits
        both = Dim(f"{UNSHOWN}both", self.beams * of_beam.size)
        best = wf.merge((best + scores).rename(beam=beam), [beam, of_beam], into=both)
        ids = wf.merge(ids.rename(beam=beam), [beam, of_beam], into=both)
        scores, places = wf.top_k(best, over=both, k=candidates)
        return scores, places // of_beam.size, wf.take(ids, places, over=both)

    def _with_finished(self, state: State, scores: Tensor, written: Tensor, ends: Tensor) -> State:
        """Those that ended now among the finished ones, of which the best stay."""
        length = wf.cast(state["turn"] + 1, "float32")
        rank = wf.arange(scores.dim(_CANDIDATES), like=scores)
        is_new = ends & (rank < self.beams) & state["is_open"] & (scores > WORST / 2)
        new = wf.where(is_new, scores / self._penalty(length), WORST)
        lengths = wf.where(is_new, state["turn"] + 1, 0)
        both = {
            "finished_scores": (state["finished_scores"], new),
            "lengths": (state["lengths"], lengths),
            "finished": (state["finished"], written),
        }
        joined = {
            name: wf.concat([x.rename(**{_FINISHED: _CANDIDATES}), more], over=_CANDIDATES)
            for name, (x, more) in both.items()
        }
        best, chosen = wf.top_k(joined["finished_scores"], over=_CANDIDATES, k=Dim(_FINISHED, self.beams))
        kept = {name: wf.take(joined[name], chosen, over=_CANDIDATES) for name in ("lengths", "finished")}
        return {**state, **kept, "finished_scores": best}

    def _is_open(self, state: State) -> Tensor:
        """Which inputs may still get a better hypothesis than their worst finished one."""
        is_full = wf.all(state["lengths"] > 0, over=_FINISHED)
        if self.early_stopping:
            return state["is_open"] & ~is_full
        # A log-probability only falls; over the largest penalty to come it is as high as it can become.
        length = self.steps if self.alpha >= 0 else wf.cast(state["turn"] + 1, "float32")
        most = wf.max(state["scores"], over="beam") / self._penalty(length)
        worst = wf.min(state["finished_scores"], over=_FINISHED)
        return state["is_open"] & (~is_full | (most > worst))

    @property
    def _padding(self) -> int:
        return self.limits.ends[0]

    def _penalty(self, length: Tensor | int) -> Any:
        return PENALTIES[self.penalty](length, self.alpha)


def _of_beams(x: Tensor, parents: Tensor) -> Tensor:
    """What is known of each beam, of the beams that others continue."""
    return wf.gather(x, parents, over="beam") if x.dims.has("beam") else x
