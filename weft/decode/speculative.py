"""Speculative decoding: a few tokens proposed, and checked by the model at once.

They are proposed by a smaller model (`draft`), or are those that followed the last few when these came before
(`ngrams`, prompt lookup). The model sees all of them in one step, and as many are taken as it could have written: at
temperature 0 those that are its likeliest, else each with the chance that leaves the distribution what it is (Leviathan
et al. 2023, arXiv:2211.17192). A turn gives at least one token, and at most one more than were proposed. All rows of a
batch move by the same number: that of the row of which the fewest are taken.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .. import ops as wf
from ..dims import UNSHOWN, Dim, Shape
from ..errors import TensorError
from ..models import TransformerLM
from ..models.cache import KVCache
from ..models.unrolled import prepare
from ..nn.arguments import check_count
from ..tensor import Tensor
from .constraints import is_one_of
from .sampling import Sampler, log_probability

_PLACE, _FEW, _AHEAD = (f"{UNSHOWN}{name}" for name in ("place", "few", "ahead"))
AHEAD = 4
State = dict[str, Any]


def check_speculation(model: Any, draft: Any, ngrams: Any, ahead: Any, others: Sequence[str]) -> None:
    """Raises where tokens cannot be proposed so."""
    if draft is not None and ngrams is not None:
        raise TensorError("`draft` and `ngrams` both propose tokens", fix="give one of them")
    check_count(ahead, "ahead")
    if ngrams is not None:
        check_count(ngrams, "ngrams")
    for name, one in (("model", model), ("draft", draft)):
        if one is not None and not isinstance(one, TransformerLM):
            raise TensorError(
                f"the {name} is {type(one).__name__}, and tokens are proposed to and by language models",
                fix="leave `draft` and `ngrams` out, or give a `models.TransformerLM`",
            )
    if draft is not None and draft.config.vocab != model.config.vocab:
        raise TensorError(
            f"the draft has a vocab of {draft.config.vocab}, and the model one of {model.config.vocab}",
            fix="give a draft that was trained with the same tokenizer",
        )
    if others:
        raise TensorError(
            f"`{others[0]}` is given, and tokens that are checked at once do not see each other",
            fix=f"leave out `{others[0]}`, or `draft` and `ngrams`",
        )


@dataclass(frozen=True)
class Speculation:
    """A speculative generation: all that decides what is compiled, but for shapes."""

    sampler: Sampler
    steps: int
    room: int
    samples: int | None
    ends: tuple[int, ...]
    ahead: int
    ngrams: int | None

    def __call__(self, model: Any, draft: Any, prompt: dict[str, Tensor], key: Any) -> tuple[Tensor, ...]:
        logits, cache = model.prefill(prompt, self.room)
        model, cache = prepare(model, cache)
        inputs = prompt["inputs"]
        rows = Shape([inputs.dim("batch"), *([] if self.samples is None else [Dim("samples", self.samples)])])
        state = self._start(logits, inputs, rows, key)
        caches = {"model": cache}
        if draft is not None:
            draft, caches["draft"] = prepare(draft, draft.prefill(prompt, self.room)[1])
        if self.samples is not None:
            caches = {name: cache.spread(rows[1]) for name, cache in caches.items()}
        seen = inputs.size("length")

        def is_open(carry: tuple[State, dict[str, KVCache]]) -> Tensor:
            state, _ = carry
            return (state["turn"] < self.steps) & wf.any(~state["is_done"], over=rows)

        def turn(carry: tuple[State, dict[str, KVCache]]) -> tuple[State, dict[str, KVCache]]:
            state, caches = carry
            turn_key = jax.random.fold_in(key, state["turn"].local_array)
            if draft is None:
                proposed, of_draft = self._look_up(state, seen, prompt.get("first")), None
            else:
                proposed, of_draft, drafted = self._draft(draft, caches["draft"], state["last"], turn_key)
                caches = {**caches, "draft": drafted}
            few = wf.concat([_row(state["last"], _FEW), proposed.rename(**{_AHEAD: _few(self.ahead)})], over=_FEW)
            logits, after = model.step(few.rename(**{_FEW: Dim("length", self.ahead + 1)}), caches["model"])
            logits = logits.rename(stream=_few(self.ahead + 1))
            tokens, run = self._choose(logits, proposed, of_draft, turn_key)
            run = wf.min(wf.where(state["is_done"], self.ahead, run), over=rows)
            state = self._write(state, logits, tokens, run, seen)
            at = caches["model"].at + state["moved"]  # what lies behind it in a cache is seen by none, and overwritten
            after = {**caches, "model": after}
            return state, {name: dataclasses.replace(cache, at=at) for name, cache in after.items()}

        state, _ = wf.while_loop(is_open, turn, (state, caches))
        written = wf.slice(state["history"], over=_PLACE, start=seen, size=self.steps)
        return written, state["lengths"], state["scores"], state["taken"], state["rounds"]

    @property
    def _padding(self) -> int:
        return self.ends[0] if self.ends else 0

    def _start(self, logits: Tensor, inputs: Tensor, rows: Shape, key: Any) -> State:
        """The state with the first token, which follows from the prompt alone."""
        logits = wf.broadcast(logits, [*rows, logits.dim("vocab")])
        token = self.sampler(logits, jax.random.fold_in(key, 0))
        places = Dim(_PLACE, inputs.size("length") + self.steps + self.ahead)
        history = wf.pad(inputs.rename(length=_PLACE), over=_PLACE, after=self.steps + self.ahead, value=self._padding)
        history = wf.broadcast(history, [*rows, places])
        return {
            "turn": wf.full([], 1, dtype="int32"),
            "moved": wf.full([], 1, dtype="int32"),
            "taken": wf.full([], 0, dtype="int32"),
            "rounds": wf.full([], 0, dtype="int32"),
            "history": wf.update(history, token, over=_PLACE, at=inputs.size("length")),
            "last": token,
            "is_done": is_one_of(token, self.ends) if self.ends else wf.full(rows, False, like=logits, dtype=bool),
            "lengths": wf.full(rows, 1, like=logits, dtype="int32"),
            "scores": log_probability(logits, token),
        }

    def _draft(self, draft: Any, cache: KVCache, last: Tensor, key: Any) -> tuple[Tensor, Tensor, KVCache]:
        """Tokens that a draft model continues with, its logits for each, its KV cache.

        It takes one step more than it proposes tokens, so that its cache has them all.
        """

        def one(carry: tuple[Tensor, KVCache], number: Tensor) -> Any:
            token, cache = carry
            logits, cache = draft.step(token, cache)
            token = self.sampler.draw(logits, jax.random.fold_in(key, number.local_array))
            return (token, cache), (token, logits)

        (_, cache), results = wf.scan(one, (last, cache), wf.arange(Dim(_AHEAD, self.ahead + 1)), over=_AHEAD)
        tokens, logits = (wf.slice(x, over=_AHEAD, start=0, size=self.ahead) for x in results)
        return tokens, logits, cache

    def _look_up(self, state: State, seen: int, first: Tensor | None) -> Tensor:
        """The tokens that followed the last `ngrams` where these were written last."""
        assert self.ngrams is not None
        history, know = state["history"], state["turn"] + seen
        here = wf.arange(history.dim(_PLACE), like=history)
        is_same = here < know - self.ngrams  # not the last ones themselves
        if first is not None:
            is_same = is_same & (here >= first)
        for i in range(self.ngrams):
            token = history[_PLACE, know - self.ngrams + i]
            is_same = is_same & (wf.shift(history, over=_PLACE, by=-i) == token)
        best = wf.max(wf.where(is_same, here, -1), over=_PLACE)
        begin = wf.where(best < 0, know - 1, best + self.ngrams)  # none: the last one again
        place = wf.minimum(begin + wf.arange(Dim(_AHEAD, self.ahead), like=history), history.size(_PLACE) - 1)
        return wf.take(history, place, over=_PLACE)

    def _choose(self, logits: Tensor, proposed: Tensor, of_draft: Tensor | None, key: Any) -> tuple[Tensor, Tensor]:
        """A token for each place, and how many of those proposed are taken in a row."""
        proposed = proposed.rename(**{_AHEAD: _few(self.ahead)})
        if self.sampler.is_greedy:
            tokens = wf.argmax(logits, over="vocab")
            is_taken = wf.slice(tokens, over=_FEW, start=0, size=self.ahead) == proposed
        else:
            tokens, is_taken = self._draw(logits, proposed, of_draft, key)
        run = wf.cumprod(wf.cast(is_taken, "int32"), over=_FEW)
        return tokens, wf.sum(run, over=_FEW)

    def _draw(self, logits: Tensor, proposed: Tensor, of_draft: Tensor | None, key: Any) -> tuple[Tensor, Tensor]:
        """Tokens drawn as the model has them, and which of those proposed are taken.

        One is taken with the chance p / q of the model and the draft; where it is not, another is drawn from what the
        model has above the draft, p - q. After all of them comes one that the model alone draws.
        """
        chances, ahead = self.sampler.filter(logits), self.ahead
        p = wf.softmax(wf.slice(chances, over=_FEW, start=0, size=ahead), over="vocab")
        hot = wf.one_hot(proposed, logits.dim("vocab"), dtype=bool)
        if of_draft is None:
            q = wf.cast(hot, "float32")
        else:
            q = wf.softmax(self.sampler.filter(of_draft.rename(**{_AHEAD: _few(ahead)})), over="vocab")
        own, of_q = (wf.sum(wf.where(hot, x, 0.0), over="vocab") for x in (p, q))
        drawn = wf.random.uniform(jax.random.fold_in(key, ahead + 1), own.dims, like=own)
        is_taken = drawn * of_q < own
        above = wf.maximum(p - q, 0.0)
        rest = wf.where(above > 0, wf.log(wf.where(above > 0, above, 1.0)), -1e9)
        last = wf.slice(chances, over=_FEW, start=ahead, size=1)
        others = wf.random.categorical(
            jax.random.fold_in(key, ahead + 2), wf.concat([rest, last], over=_FEW), over="vocab"
        )
        is_kept = wf.pad(is_taken, over=_FEW, after=1, value=False)
        return wf.where(is_kept, wf.pad(proposed, over=_FEW, after=1), others), is_taken

    def _write(self, state: State, logits: Tensor, tokens: Tensor, run: Tensor, seen: int) -> State:
        """The state with those of the tokens that count, after a run that was taken."""
        moved = wf.minimum(run + 1, self.steps - state["turn"])
        here = wf.arange(tokens.dim(_FEW), like=tokens)
        is_new = (here < moved) & ~state["is_done"]
        is_done = state["is_done"]
        if self.ends:
            ends = wf.cast(is_new & is_one_of(tokens, self.ends), "int32")
            is_new = is_new & (wf.cumsum(ends, over=_FEW) - ends == 0)  # up to the end, which counts
            is_done = is_done | (wf.sum(ends, over=_FEW) > 0)
        tokens = wf.where(is_new, tokens, self._padding)
        gains = log_probability(logits, tokens)
        written = tokens.rename(**{_FEW: Dim(_PLACE, self.ahead + 1)})
        return {
            "turn": state["turn"] + moved,
            "moved": moved,
            "taken": state["taken"] + run,
            "rounds": state["rounds"] + 1,
            "history": wf.update(state["history"], written, over=_PLACE, at=state["turn"] + seen),
            "last": tokens[_FEW, moved - 1],
            "is_done": is_done,
            "lengths": state["lengths"] + wf.sum(wf.cast(is_new, "int32"), over=_FEW),
            "scores": state["scores"] + wf.sum(wf.where(is_new, gains, 0.0), over=_FEW),
        }


def _few(size: int) -> Dim:
    return Dim(_FEW, size)


def _row(x: Tensor, name: str) -> Tensor:
    """`x` with a dim of one place more."""
    return wf.broadcast(x, [*x.dims, Dim(name, 1)])
