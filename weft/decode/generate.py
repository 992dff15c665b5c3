"""Autoregressive generation: the likeliest tokens, or sampled ones.

The prompt goes through the model once; then one token at a time does, in one compiled loop that ends when all
continuations have.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import ops as wf
from ..dims import UNSHOWN, Dim, Shape
from ..errors import TensorError, public
from ..layout import LayoutLike
from ..models.cache import KVCache
from ..models.unrolled import prepare
from ..nn.arguments import check_count
from ..nn.weights import check_key
from ..spmd.place import get
from ..tensor import Tensor
from .prompts import check_id, check_positions, compile_once, start_decoding
from .sampling import Sampler, best_log_probability, log_probability
from .speculative import AHEAD, Speculation, check_speculation

_WRITTEN = f"{UNSHOWN}written"


@dataclass(frozen=True)
class Continuations:
    """What followed the prompts."""

    tokens: np.ndarray
    """The new ids, [batch length] or [batch samples length]; after the end of one it is padded with `end` or 0."""
    lengths: np.ndarray
    """How many of them there are, the end counted."""
    scores: np.ndarray
    """The log-probability of each continuation, as the model itself has it."""
    accepted: float | None = None
    """Of the tokens that were proposed (speculative decoding), the share that was taken."""

    @property
    def sequences(self) -> list[Any]:
        """The ids of each continuation as a list, without the padding."""
        return cut_off(self.tokens, self.lengths)


def cut_off(tokens: np.ndarray, lengths: np.ndarray) -> Any:
    """Rows of ids as lists, each as long as its length says."""
    if tokens.ndim == 1:
        return tokens[:lengths].tolist()
    return [cut_off(row, length) for row, length in zip(tokens, lengths, strict=True)]


@public
def generate(
    model: Any,
    prompts: Any,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    samples: int | None = None,
    end: int | None = None,
    key: Any = None,
    layout: LayoutLike | None = None,
    draft: Any = None,
    ngrams: int | None = None,
    ahead: int = AHEAD,
) -> Continuations:
    """Continues each prompt by up to `max_new_tokens`, under the layout of the model.

    `prompts` are lists of token ids, of any lengths; for an encoder-decoder they are its inputs. A language model that
    learned from `tokens` saw a 0 before the first: begin prompts with it. At temperature 0 the
    likeliest token is taken, else one is drawn, for which a `key` is needed. With `samples` there are several
    continuations of each prompt. A continuation ends with the id `end`. `layout` replaces the model's own.

    Speculative decoding writes the same in fewer steps: `ahead` tokens at a time are proposed by a smaller model,
    `draft`, or by what followed the last `ngrams` tokens before, and those that the model agrees with are taken.
    """
    sampler = Sampler(temperature, top_k, top_p, repetition_penalty)
    if not sampler.is_greedy and key is None:
        raise TensorError("tokens are to be drawn, and there is no key", fix="give `key=jax.random.key(0)`")
    key = jax.random.key(0) if key is None else check_key(key)
    many = {} if samples is None else {"samples": check_count(samples, "samples")}
    is_speculative = draft is not None or ngrams is not None
    if is_speculative:
        check_speculation(model, draft, ngrams, ahead, repetition_penalty)
    start = start_decoding(model, prompts, max_new_tokens, layout, many, ahead if is_speculative else 0)
    end = None if end is None else check_id("end", end, model.config.vocab)
    if is_speculative:
        if draft is not None:
            check_positions(draft, start.prompt["inputs"].size("length"), int(max_new_tokens))
        speculation = Speculation(sampler, int(max_new_tokens), start.room, samples, end, int(ahead), ngrams)
        found = get(compile_once(speculation, start.mesh, start.layout)(model, draft, start.prompt, key))
        tokens, lengths, scores, taken, rounds = map(np.asarray, found)
        return Continuations(tokens, lengths, scores, float(taken) / max(int(rounds) * ahead, 1))
    generation = _Generation(sampler, int(max_new_tokens), start.room, samples, end)
    run = compile_once(generation, start.mesh, start.layout)
    tokens, lengths, scores = get(run(model, start.prompt, key))
    return Continuations(np.asarray(tokens), np.asarray(lengths), np.asarray(scores))


@dataclass(frozen=True)
class _Generation:
    """A generation: all that decides what is compiled, but for the shapes."""

    sampler: Sampler
    steps: int
    room: int
    samples: int | None
    end: int | None

    def __call__(self, model: Any, prompt: dict[str, Tensor], key: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits, cache = model.prefill(prompt, self.room)
        model, cache = prepare(model, cache)
        batch = prompt["inputs"].dim("batch")
        rows = Shape([batch])
        if self.samples is not None:
            rows = Shape([batch, Dim("samples", self.samples)])
            cache = cache.spread(rows[1])
            logits = wf.broadcast(logits, [*rows, logits.dim("vocab")])
        state = {
            "turn": wf.full([], 0, dtype="int32"),
            "tokens": wf.full([*rows, Dim(_WRITTEN, self.steps)], self._padding, like=logits, dtype="int32"),
            "is_done": wf.full(rows, False, like=logits, dtype=bool),
            "lengths": wf.zeros(rows, like=logits, dtype="int32"),
            "scores": wf.zeros(rows, like=logits, dtype="float32"),
        }
        if self.sampler.repetition_penalty != 1:
            state["seen"] = self._seen(prompt, logits)
        state = self._extend(logits, state, key)

        def is_open(carry: tuple[dict[str, Tensor], KVCache]) -> Tensor:
            state, _ = carry
            return (state["turn"] < self.steps) & wf.any(~state["is_done"], over=rows)

        def turn(carry: tuple[dict[str, Tensor], KVCache]) -> tuple[dict[str, Tensor], KVCache]:
            state, cache = carry
            logits, cache = model.step(state["last"], cache)
            return self._extend(logits, state, key), cache

        state, _ = wf.while_loop(is_open, turn, (state, cache))
        return state["tokens"], state["lengths"], state["scores"]

    @property
    def _padding(self) -> int:
        return 0 if self.end is None else self.end

    def _extend(self, logits: Tensor, state: dict[str, Tensor], key: Any) -> dict[str, Tensor]:
        """The state with one token more for each that has not ended."""
        turn_key = jax.random.fold_in(key, state["turn"].local_array)
        token = self.sampler(logits, turn_key, state.get("seen"))
        is_done, is_open = state["is_done"], ~state["is_done"]
        token = wf.where(is_done, self._padding, token)
        gain = best_log_probability(logits) if self.sampler.is_plain else log_probability(logits, token)
        extended = dict(
            turn=state["turn"] + 1,
            last=token,
            tokens=wf.update(state["tokens"], token, over=_WRITTEN, at=state["turn"]),
            is_done=is_done if self.end is None else is_done | (token == self.end),
            lengths=state["lengths"] + wf.cast(is_open, "int32"),
            scores=state["scores"] + wf.where(is_done, 0.0, gain),
        )
        if "seen" in state:
            extended["seen"] = state["seen"] | wf.one_hot(token, logits.dim("vocab"), dtype=bool)
        return extended

    def _seen(self, prompt: dict[str, Tensor], logits: Tensor) -> Tensor:
        """Which ids the prompts hold: [batch (samples) vocab]."""
        inputs = prompt["inputs"]
        hot = wf.one_hot(inputs, logits.dim("vocab"), dtype=bool)
        if "first" in prompt:
            hot = hot & (wf.arange(inputs.dim("length"), like=inputs) >= prompt["first"])
        return wf.broadcast(wf.any(hot, over="length"), logits.dims)
