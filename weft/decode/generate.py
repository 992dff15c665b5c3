"""Autoregressive generation: the likeliest tokens, or sampled ones.

The prompt goes through the model once; then one token at a time does, in one compiled loop that ends when all
continuations have.
"""

from collections.abc import Callable, Sequence
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
from .constraints import Constraints, Processor, check_ends, constrain, is_one_of
from .prompts import Start, check_positions, compile_once, config_of, start_decoding
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
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int | None = None,
    min_length: int = 0,
    min_new_tokens: int = 0,
    processors: Sequence[Processor] = (),
    samples: int | None = None,
    end: int | Sequence[int] | None = None,
    key: Any = None,
    layout: LayoutLike | None = None,
    draft: Any = None,
    ngrams: int | None = None,
    ahead: int = AHEAD,
    stream: Callable[[np.ndarray], None] | None = None,
    padded: int | None = None,
) -> Continuations:
    """Continues each prompt by up to `max_new_tokens`, under the layout of the model.

    `prompts` are lists of token ids, of any lengths; for an encoder-decoder they are its inputs. A language model that
    learned from `tokens` saw a 0 before the first: begin prompts with it. At temperature 0 the
    likeliest token is taken, else one is drawn, for which a `key` is needed. With `samples` there are several
    continuations of each prompt. A continuation ends with the id `end`, or one of several. `layout` replaces the
    model's own. `stream` is called with each turn's tokens, [batch] or [batch samples], as they come. Prompts are
    `padded` to that length, so that one program serves many.

    Constraints hold before a token is chosen: `repetition_penalty`; no sequence of `no_repeat_ngram` tokens twice; no
    end before `min_length` tokens, the prompt's counted, or `min_new_tokens`; and `processors` of one's own, functions
    of the logits [.. vocab], the tokens before [.. place] (-1 where there is none) and the step, which give logits.

    Speculative decoding writes the same in fewer steps: `ahead` tokens at a time are proposed by a smaller model,
    `draft`, or by what followed the last `ngrams` tokens before, and those that the model agrees with are taken.
    """
    sampler = Sampler(temperature, top_k, top_p, min_p)
    if not sampler.is_greedy and key is None:
        raise TensorError("tokens are to be drawn, and there is no key", fix="give `key=jax.random.key(0)`")
    key = jax.random.key(0) if key is None else check_key(key)
    many = {} if samples is None else {"samples": check_count(samples, "samples")}
    is_speculative = draft is not None or ngrams is not None
    ends = check_ends(end, config_of(model).vocab)
    limits = constrain(repetition_penalty, no_repeat_ngram, min_length, min_new_tokens, processors, ends)
    if is_speculative:
        check_speculation(model, draft, ngrams, ahead, limits.said + ["stream"] * (stream is not None))
    start = start_decoding(model, prompts, max_new_tokens, layout, many, ahead if is_speculative else 0, padded)
    if is_speculative:
        if draft is not None:
            check_positions(draft, start.prompt["inputs"].size("length"), int(max_new_tokens))
        speculation = Speculation(sampler, int(max_new_tokens), start.room, samples, ends, int(ahead), ngrams)
        found = get(compile_once(speculation, start.mesh, start.layout)(model, draft, start.prompt, key))
        tokens, lengths, scores, taken, rounds = map(np.asarray, found)
        return Continuations(tokens, lengths, scores, float(taken) / max(int(rounds) * ahead, 1))
    generation = Generation(sampler, limits, int(max_new_tokens), start.room, samples)
    if stream is not None:
        return _stream(generation, start, model, key, stream)
    run = compile_once(generation, start.mesh, start.layout)
    tokens, lengths, scores = get(run(model, start.prompt, key))
    return Continuations(np.asarray(tokens), np.asarray(lengths), np.asarray(scores))


def _stream(
    generation: "Generation", start: Start, model: Any, key: Any, stream: Callable[[np.ndarray], None]
) -> Continuations:
    """The same continuations, a turn at a time; each is told while the next one runs."""
    model, state, cache = compile_once(_Begin(generation), start.mesh, start.layout)(model, start.prompt, key)
    turn = compile_once(_GoOn(generation), start.mesh, start.layout, donate=(1, 2))
    for number in range(1, generation.steps + 1):
        token, is_done = (
            np.array(get(state[name])) for name in ("last", "is_done")
        )  # copies: the next turn takes them
        is_last = number == generation.steps or is_done.all()
        if not is_last:
            state, cache = turn(model, state, cache, key)
        stream(token)
        if is_last:
            break
    tokens, lengths, scores = (np.asarray(get(state[name])) for name in ("tokens", "lengths", "scores"))
    return Continuations(tokens, lengths, scores)


@dataclass(frozen=True)
class Generation:
    """A generation: all that decides what is compiled, but for the shapes."""

    sampler: Sampler
    limits: Constraints
    steps: int
    room: int
    samples: int | None

    def __call__(self, model: Any, prompt: dict[str, Tensor], key: Any) -> tuple[Tensor, Tensor, Tensor]:
        model, state, cache = self.begin(model, prompt, key)

        def is_open(carry: tuple[dict[str, Any], KVCache]) -> Tensor:
            state, _ = carry
            return (state["turn"] < self.steps) & wf.any(~state["is_done"], over=state["is_done"].dims)

        def turn(carry: tuple[dict[str, Any], KVCache]) -> tuple[dict[str, Any], KVCache]:
            return self.go_on(model, *carry, key)

        state, _ = wf.while_loop(is_open, turn, (state, cache))
        return state["tokens"], state["lengths"], state["scores"]

    def begin(self, model: Any, prompt: dict[str, Tensor], key: Any) -> tuple[Any, dict[str, Any], KVCache]:
        """The model and its KV cache as the loop has them, and the first token's state."""
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
            "before": self.limits.begin(model, prompt, rows, self.steps),
        }
        return model, self._extend(logits, state, key), cache

    def go_on(self, model: Any, state: dict[str, Any], cache: KVCache, key: Any) -> tuple[dict[str, Any], KVCache]:
        """The state with one token more for each that has not ended."""
        logits, cache = model.step(state["last"], cache)
        return self._extend(logits, state, key), cache

    @property
    def _padding(self) -> int:
        return self.limits.ends[0] if self.limits.ends else 0

    def _extend(self, logits: Tensor, state: dict[str, Any], key: Any) -> dict[str, Any]:
        """The state with the next token, which follows from these logits."""
        turn_key = jax.random.fold_in(key, state["turn"].local_array)
        token = self.sampler(self.limits(logits, state["before"], state["turn"], self.steps), turn_key)
        is_done, is_open = state["is_done"], ~state["is_done"]
        token = wf.where(is_done, self._padding, token)
        is_plain = self.sampler.is_greedy and not self.limits.said
        gain = best_log_probability(logits) if is_plain else log_probability(logits, token)
        return dict(
            turn=state["turn"] + 1,
            last=token,
            tokens=wf.update(state["tokens"], token, over=_WRITTEN, at=state["turn"]),
            is_done=is_done | is_one_of(token, self.limits.ends) if self.limits.ends else is_done,
            lengths=state["lengths"] + wf.cast(is_open, "int32"),
            scores=state["scores"] + wf.where(is_done, 0.0, gain),
            before=self.limits.extend(state["before"], token, state["turn"], self.steps),
        )


@dataclass(frozen=True)
class _Begin:
    """The first token of a generation, as a program by itself."""

    generation: Generation

    def __call__(self, model: Any, prompt: dict[str, Tensor], key: Any) -> tuple[Any, dict[str, Any], KVCache]:
        return self.generation.begin(model, prompt, key)


@dataclass(frozen=True)
class _GoOn:
    """Every other token of a generation, as a program by itself."""

    generation: Generation

    def __call__(self, model: Any, state: dict[str, Any], cache: KVCache, key: Any) -> tuple[dict[str, Any], KVCache]:
        return self.generation.go_on(model, state, cache, key)
