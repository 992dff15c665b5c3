"""Beam search: the continuations with the highest score, several followed.

The score is the log-probability over a penalty that grows with the length. Of `2 * beams` candidates a turn, those
that end among the best `beams` are finished; the best of the rest go on.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops as wf
from ..checks import is_real
from ..dims import UNSHOWN, Dim
from ..errors import TensorError, closest, public
from ..layout import LayoutLike
from ..models.cache import KVCache
from ..models.unrolled import prepare
from ..nn.arguments import check_count
from ..spmd.place import get
from ..tensor import Tensor
from .generate import cut_off
from .prompts import check_id, compile_once, start_decoding

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
    end: int = 1,
    max_new_tokens: int = 64,
    penalty: str = "gnmt",
    early_stopping: bool = False,
    layout: LayoutLike | None = None,
) -> Hypotheses:
    """The `beams` best continuations of each input, under the layout of the model.

    `inputs` are lists of token ids: what an encoder-decoder translates, or the prompts of a language model. The score
    is the log-probability over ((5 + length) / 6) ** alpha, as in GNMT; with `penalty="length"` over length ** alpha.
    The search ends when no open hypothesis can overtake a finished one; with `early_stopping`, when as many as there
    are beams are finished. `layout` replaces the model's own.
    """
    if penalty not in PENALTIES:
        raise TensorError(f"there is no penalty {penalty!r}", fix=closest(str(penalty), PENALTIES))
    if not is_real(alpha) or alpha < 0:
        raise TensorError(f"`alpha` is {alpha!r}", fix="give a number from 0 on; 0 has no regard to length")
    beams = check_count(beams, "beams")
    start = start_decoding(model, inputs, max_new_tokens, layout, {"beam": beams})
    search = _BeamSearch(
        beams,
        float(alpha),
        penalty,
        check_id("end", end, model.config.vocab),
        int(max_new_tokens),
        start.room,
        bool(early_stopping),
    )
    tokens, lengths, scores = get(compile_once(search, start.mesh, start.layout)(model, start.prompt))
    return Hypotheses(tokens, lengths, scores)


State = dict[str, Tensor]


@dataclass(frozen=True)
class _BeamSearch:
    """A beam search: all that decides what is compiled, but for the shapes."""

    beams: int
    alpha: float
    penalty: str
    end: int
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
            "tokens": wf.full([batch, beam, written], self.end, like=logits, dtype="int32"),
            "finished": wf.full([batch, finished, written], self.end, like=logits, dtype="int32"),
            "lengths": wf.zeros([batch, finished], like=logits, dtype="int32"),
            "finished_scores": wf.full([batch, finished], WORST, like=logits),
            "is_open": wf.full([batch], True, like=logits, dtype=bool),
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
        scores, parents, tokens = self._candidates(logits, state["scores"])
        written = wf.update(wf.take(state["tokens"], parents, over="beam"), tokens, over=_WRITTEN, at=state["turn"])
        ends = (tokens == self.end) | (state["turn"] == self.steps - 1)
        state = self._with_finished(state, scores, written, ends)
        beam = Dim("beam", self.beams)
        scores, chosen = wf.top_k(wf.where(ends, WORST, scores), over=_CANDIDATES, k=beam)
        state |= {
            "turn": state["turn"] + 1,
            "scores": scores,
            "tokens": wf.take(written, chosen, over=_CANDIDATES),
            "last": wf.take(tokens, chosen, over=_CANDIDATES),
        }
        state["is_open"] = self._is_open(state)
        parents = wf.take(parents, chosen, over=_CANDIDATES)
        return state, cache.map_past(lambda x: wf.gather(x, parents, over="beam"))

    def _candidates(self, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways on, twice as many as beams: scores, beams continued, tokens."""
        candidates = Dim(_CANDIDATES, 2 * self.beams)
        of_beam = Dim(_BEST, min(2 * self.beams, logits.dim("vocab").count))
        best, ids = wf.top_k(wf.log_softmax(logits, over="vocab"), over="vocab", k=of_beam)
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
        is_new = ends & (rank < self.beams) & state["is_open"]
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
        # A log-probability only falls; over the largest penalty it is as high as it can become.
        most = wf.max(state["scores"], over="beam") / self._penalty(self.steps)
        worst = wf.min(state["finished_scores"], over=_FINISHED)
        return state["is_open"] & (~is_full | (most > worst))

    def _penalty(self, length: Tensor | int) -> Any:
        return PENALTIES[self.penalty](length, self.alpha)
