"""Constraints on what is written: repetition, n-grams, length, one's own.

Imports the language. They change logits by the tokens before, in the order and with the meaning of `transformers`: a
language model's prompt is among those tokens, an encoder's inputs are not. A vocab that is split stays so.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from .. import ops as wf
from ..checks import is_real, is_whole
from ..dims import Dim, Shape
from ..errors import TensorError
from ..models import Seq2Seq
from ..nn.arguments import check_count
from ..tensor import Tensor, is_tensor
from .prompts import check_id

NEVER = -1e9  # the logit of what cannot be
PLACE = "place"  # the dim of the tokens before, which no rule splits
NOTHING = -1  # the id where no token is: it equals none, and its one-hot is zero
Processor = Callable[[Tensor, Tensor, Tensor], Tensor]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Constraints:
    """What changes logits before a token is chosen; a default changes nothing."""

    repetition_penalty: float = 1.0
    """Divides the chance of tokens that have been; 1 changes nothing."""
    no_repeat_ngram: int | None = None
    """Of how many tokens no sequence comes twice."""
    min_length: int = 0
    """So many tokens are written before an end, those of the prompt counted."""
    min_new_tokens: int = 0
    """So many tokens are written before an end, those of the prompt not counted."""
    processors: tuple[Processor, ...] = ()
    """Functions of logits, tokens and step that give logits."""
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not is_real(self.repetition_penalty) or self.repetition_penalty <= 0:
            raise TensorError(f"`repetition_penalty` is {self.repetition_penalty!r}", fix="give e.g. 1.2; 1 is none")
        if self.no_repeat_ngram is not None:
            check_count(self.no_repeat_ngram, "no_repeat_ngram")
        for name in ("min_length", "min_new_tokens"):
            if check_count(getattr(self, name), name, 0) and not self.ends:
                raise TensorError(
                    f"`{name}` is {getattr(self, name)}, and there is no `end` to keep off",
                    fix="give the id of an `end`",
                )
        if odd := next((fn for fn in self.processors if not callable(fn)), None):
            raise TensorError(
                f"`processors` holds {odd!r:.60}", fix="give functions: `def process(logits, tokens, step): ...`"
            )

    @property
    def said(self) -> list[str]:
        """The names of those that change anything."""
        named = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        return [name for name in named if name != "ends"]

    def begin(self, model: Any, prompt: dict[str, Tensor], rows: Shape, steps: int) -> State:
        """What is known of the tokens before: those of the prompts, or a decoder's start."""
        inputs = prompt["inputs"]
        if isinstance(model, Seq2Seq):
            before = wf.full([inputs.dim("batch"), Dim(PLACE, 1)], model.config.start, like=inputs, dtype="int32")
        else:
            before = inputs.rename(length=PLACE)
            if "first" in prompt:
                before = wf.where(_places(before) >= prompt["first"], before, NOTHING)
        state: State = {}
        if self.repetition_penalty != 1:
            hot = wf.any(wf.one_hot(before, model.config.vocab_dim, dtype=bool), over=PLACE)
            state["seen"] = wf.broadcast(hot, [*rows, hot.dim("vocab")])
        if self.no_repeat_ngram is not None or self.processors:
            history = wf.pad(before, over=PLACE, after=steps, value=NOTHING)
            state["history"] = wf.broadcast(history, [*rows, history.dim(PLACE)])
        if self.min_length:
            state["begun"] = wf.sum(wf.cast(before != NOTHING, "int32"), over=PLACE)
        return state

    def extend(self, state: State, token: Tensor, turn: Tensor, steps: int) -> State:
        """The same with one token more in each row, the one of number `turn` of `steps`."""
        state = dict(state)
        if "seen" in state:
            state["seen"] = state["seen"] | wf.one_hot(token, state["seen"].dim("vocab"), dtype=bool)
        if "history" in state:
            at = turn + (state["history"].size(PLACE) - steps)
            state["history"] = wf.update(state["history"], token, over=PLACE, at=at)
        return state

    def __call__(self, logits: Tensor, state: State, turn: Tensor, steps: int) -> Tensor:
        """The logits of token number `turn` of `steps`: f32[.. vocab]."""
        if "seen" in state:
            lower = wf.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = wf.where(state["seen"], lower, logits)
        if self.no_repeat_ngram is not None:
            begun = state["history"].size(PLACE) - steps
            repeats = _repeats(state["history"], turn + begun, self.no_repeat_ngram, logits.dim("vocab"))
            logits = wf.where(repeats, NEVER, logits)
        if self.min_length or self.min_new_tokens:
            is_early = turn < self.min_new_tokens
            if self.min_length:
                is_early = is_early | (state["begun"] + turn < self.min_length)
            is_end = is_one_of(wf.arange(logits.dim("vocab"), like=logits), self.ends)
            logits = wf.where(is_early & is_end, NEVER, logits)
        for fn in self.processors:
            logits = _check_processed(fn, fn(logits, state["history"], turn), logits)
        return logits


def constrain(
    penalty: float, ngram: int | None, length: int, new: int, processors: Sequence[Processor], ends: tuple[int, ...]
) -> Constraints:
    """The constraints that the arguments of a call say."""
    if not isinstance(processors, Sequence):
        raise TensorError(f"`processors` is {processors!r:.60}", fix="give a list of functions: `processors=[process]`")
    return Constraints(penalty, ngram, length, new, tuple(processors), ends)


def check_ends(end: Any, vocab: int) -> tuple[int, ...]:
    """The ids that end a continuation: none, one, or several."""
    if end is None or is_whole(end):
        return () if end is None else (check_id("end", end, vocab),)
    if not isinstance(end, Sequence) or isinstance(end, str) or not end:
        raise TensorError(f"`end` is {end!r:.60}", fix="give an id, or a list of ids")
    return tuple(check_id("end", each, vocab) for each in end)


def is_one_of(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Where tokens are one of these ids."""
    return functools.reduce(operator.or_, (tokens == each for each in ids))


def _places(x: Tensor) -> Tensor:
    return wf.arange(x.dim(PLACE), like=x)


def _repeats(history: Tensor, know: Tensor, count: int, vocab: Dim) -> Tensor:
    """Which ids would make an n-gram of `count` tokens that was before: [.. vocab].

    `know` tokens are known. The last `count - 1` of them are looked for where they stand earlier.
    """
    is_same = (history != NOTHING) & (_places(history) < know - (count - 1))
    for i in range(count - 1):
        at = wf.maximum(know - (count - 1) + i, 0)  # where fewer are known, no place is before them
        is_same = is_same & (wf.shift(history, over=PLACE, by=-i, fill=NOTHING) == history[PLACE, at])
    after = wf.shift(history, over=PLACE, by=1 - count, fill=NOTHING)
    return wf.any(wf.one_hot(wf.where(is_same, after, NOTHING), vocab, dtype=bool), over=PLACE)


def _check_processed(fn: Processor, found: Any, logits: Tensor) -> Tensor:
    """What a processor gave, where it can stand in place of the logits."""
    name = getattr(fn, "__name__", type(fn).__name__)
    if not is_tensor(found):
        raise TensorError(
            f"the processor `{name}` gave {type(found).__name__} in place of logits",
            fix=f"give a tensor [{logits.dims}], made of the logits by `wf`",
        )
    if set(found.dims) != set(logits.dims) or not jnp.issubdtype(found.dtype, jnp.floating):
        raise TensorError(
            f"the processor `{name}` gave {found.dtype}[{found.dims}] in place of logits",
            fix=f"give {logits.dtype}[{logits.dims}]",
        )
    return found
