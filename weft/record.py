"""The record: every op of a traced program and its place in the source.

A jaxpr knows primitives, not ops. So each op takes a number here and runs in a JAX scope of that name, which
survives differentiation, loops and recomputation; whoever reads the jaxpr finds its way back by the number. Holds
names, dims and axes; knows neither tensors nor the mesh.
"""

import contextlib
import contextvars
import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import jax

from .dims import Shape
from .errors import is_users
from .kernels.choice import AttentionCase
from .schedule import PipelineSchedule, Schedule

Axes = tuple[str, ...]
Place = tuple[CodeType | None, int]
"""An instruction of someone's code; -1 for the function as a whole."""

BRANCHES = ("on_false", "on_true")
"""The blocks in a branch, in the order in which JAX has its bodies."""


@dataclass(frozen=True)
class Placed:
    """The type of a tensor: dtype, dims, and the axes each dim is sharded over."""

    dtype: Any
    dims: Shape
    placement: tuple[Axes, ...]
    store: str | None = None
    """`"params"` where this is how a parameter is stored rather than how it is used."""


@dataclass(frozen=True)
class ArgumentName:
    """An array given to a region: an argument, or a leaf of one, called by its path."""

    name: str
    is_leaf: bool


GOES_OVER = "because {op} goes over {along}, split over {axes}"
SUMS = "because {along_is} summed and split over {axes}"


@dataclass(frozen=True)
class Traits:
    """What an op says of itself, so that readers of programs need no names of ops.

    Reasons say why it sends. In their texts `{axes}`, `{op}` and `{over}` are filled in, `{name}` by its first operand,
    and `{along}` or `{along_is}` by the dims it goes over.
    """

    reason: str = ""
    """Why it sends, whatever it sends."""
    reason_along: str = GOES_OVER
    """Why it sends along dims it goes over."""
    reason_else: str = ""
    """Why it sends what neither an operand nor a dim accounts for."""
    reason_exchange: str = ""
    """Why axes go from one dim to another (all-to-all), where no rename does it; `{along}` are the dims they leave."""
    sign: str = ""
    """The operator that calls it."""
    arguments_before: int = 0
    """How many positional arguments come before its operands."""
    is_rename: bool = False
    """Its keyword arguments are names of dims and new ones."""
    is_product: bool = False
    """It multiplies its operands: so do its gradients, and what goes round a ring may be a piece of the result."""
    is_cast: bool = False
    """It changes the dtype alone, and so does its gradient."""
    is_mapped: bool = False
    """A block whose body sees one place along a dim, and works on all at once."""
    has_line: bool = True
    """It has a line of its own in printed programs; what an op or the border does unasked has none."""


_PLAIN = Traits()


@dataclass(frozen=True, eq=False)
class NotedAttention:
    """An attention as it was written out, and what it asks of a kernel that does all."""

    length: int
    memory_length: int
    case: AttentionCase
    block: int | None = None
    """How many scores a block has on one processor, where it is written as a loop over blocks."""
    kernel: str = ""
    """The kernel by which it was traced, if it is not written out."""

    @property
    def is_one_kernel(self) -> bool:
        """Whether one kernel does all blocks, where a kernel does any."""
        return self.block is not None and not self.case.is_in_blocks


@dataclass(frozen=True)
class Entry:
    """One op as it was traced, or a loop or branch; made when the op has ended."""

    id: int
    op: str
    traits: Traits
    code: CodeType | None
    at: int
    """The instruction of `code` that called the op; -1 for the function as a whole."""
    parent: int | None
    is_block: bool = False
    attention: NotedAttention | None = None
    """The attention it is part of, which may be one kernel on some target."""
    operands: tuple[Placed | None, ...] = ()
    makers: tuple[int | None, ...] = ()
    """For each operand the entry that made it, where one did."""
    gradients: tuple[bool | None, ...] = ()
    """For each operand whether a gradient flows back to it; None where that is not known."""
    dims: dict[str, Axes] = field(default_factory=dict)
    """Every dim of the op and the axes it is split over where the operands meet."""
    taken: Axes = ()
    """The axes of the dim that a function around the op is mapped over."""
    over: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    """Old names and new ones, where the op renames dims."""
    results: tuple[Placed, ...] = ()
    examples: int = 1
    """How many examples a processor works on at once, where the op maps a function."""
    schedule: Schedule | None = None
    """Of a pipeline or a ring who works on what at which turn."""
    sharing: int = 0
    """Of dropless experts, how many processors share them: each works on one in so many rows, if routing is even."""
    is_free: bool = False
    """Nothing runs: the result is an operand under other names."""
    stays_stored: bool = False
    """Done on parameters as they are stored, which are gathered only where they meet something else."""
    choice: tuple[tuple[str, int], ...] = ()
    """What it sends and its bytes, and then what it could have sent instead, where it chose the fewest."""
    is_gone: bool = False
    """Traced, and traced again in another form that stands instead."""

    @property
    def idle(self) -> tuple[int, int]:
        """Of a pipeline in how many turns of how many a processor idles (its bubble)."""
        return self.schedule.idle if isinstance(self.schedule, PipelineSchedule) else (0, 1)


class Draft:
    """An op while it is traced; what is noted, by the fields of `Entry`, becomes one."""

    def __init__(self, op: str, traits: Traits, at: Place, **facts: Any):
        self.op, self.traits, self.at = op, traits, at
        self.id, self.is_block = facts["id"], facts["is_block"]
        self.noted: dict[str, Any] = {"op": op, "traits": traits, "code": at[0], "at": at[1], **facts}

    def note(self, **facts: Any) -> None:
        """Notes facts; what was noted before under their names no longer counts."""
        self.noted.update(facts)

    def includes(self, block: str, at: Place) -> bool:
        """Whether one call made this block and another inside it: `fori_loop` is a scan."""
        return at[0] is not None and self.at == at and self.op != block

    def entry(self) -> Entry:
        """The entry, with all that was noted."""
        return Entry(**self.noted)


class Record:
    """The ops of one traced program, in the order they were traced."""

    def __init__(self) -> None:
        self.arguments: list[ArgumentName] = []
        """The region's arrays, in order."""
        self.update: Place = (None, -1)
        """Where the train step was made whose update is part of the program."""
        self.current: Draft | None = None
        """The op being traced, of which ops that it calls are part."""
        self.block_being_traced: Draft | None = None
        self._attention: tuple[CodeType | None, NotedAttention] | None = None
        self._entries: list[Entry | None] = []
        """By number; None for an op that has not ended."""

    @property
    def entries(self) -> list[Entry]:
        """All ops that have ended."""
        return [entry for entry in self._entries if entry is not None]

    @property
    def mark(self) -> int:
        """The number of the next entry."""
        return len(self._entries)

    @contextlib.contextmanager
    def op(self, name: str, traits: Traits = _PLAIN, *, at: Place | None = None) -> Iterator[Draft]:
        """While one op is traced; ops it is made of are part of it."""
        if self.current is not None:
            yield self.current
            return
        draft = self.current = self._new(name, traits, at or place())
        try:
            with jax.named_scope(f"wf{draft.id}_{name}"):
                yield draft
        finally:
            self.current, self._entries[draft.id] = None, draft.entry()

    def unasked(self, name: str, reason: str = "", *, at: Place | None = None) -> AbstractContextManager[Draft]:
        """While something is traced that no line asks for, and that has no line itself."""
        return self.op(name, Traits(reason=reason, has_line=False), at=at)

    @contextlib.contextmanager
    def block(self, name: str, traits: Traits = _PLAIN) -> Iterator[Draft]:
        """While a loop or a branch is traced; ops in its body are entries of their own."""
        outer, before, at = self.block_being_traced, self.current, place()
        _BLOCKS.add(name)
        draft = outer if outer is not None and outer.includes(name, at) else self._new(name, traits, at, is_block=True)
        self.block_being_traced, self.current = draft, None
        try:
            with jax.named_scope(f"wf{draft.id}_{name}"):
                yield draft
        finally:
            self.block_being_traced, self.current = outer, before
            if draft is not outer:
                self._entries[draft.id] = draft.entry()

    @contextlib.contextmanager
    def attending(self, attention: NotedAttention) -> Iterator[None]:
        """While a function itself writes out an attention."""
        before, self._attention = self._attention, (place()[0], attention)
        try:
            yield
        finally:
            self._attention = before

    def _new(self, name: str, traits: Traits, at: Place, *, is_block: bool = False) -> Draft:
        parent = self.block_being_traced
        draft = Draft(name, traits, at, id=self.mark, parent=None if parent is None else parent.id, is_block=is_block)
        if self._attention is not None and at[0] is self._attention[0]:
            draft.note(attention=self._attention[1])
        self._entries.append(None)
        return draft

    def rewind(self, mark: int) -> None:
        """Takes away all entries from number `mark` on: the next ones have their numbers."""
        del self._entries[mark:]

    def forget(self, mark: int) -> None:
        """Marks all entries from number `mark` on as gone: their body is traced again."""
        self._entries[mark:] = [entry and replace(entry, is_gone=True) for entry in self._entries[mark:]]


def operand_scope(index: int) -> AbstractContextManager[Any]:
    """While an op brings one operand to where it is needed: marks what that sends."""
    return jax.named_scope(f"of{index}")


def sum_scope(axes: Axes) -> AbstractContextManager[Any]:
    """While one sum goes in several steps: marks what they are steps of."""
    return jax.named_scope(f"sum_over_{'+'.join(axes)}")


def dtype_scope(dtype: Any) -> AbstractContextManager[Any]:
    """While numbers are sent as bytes: marks what they are."""
    return jax.named_scope(f"sent_as_{dtype}")


_SUM = re.compile(r"\bsum_over_([\w+]+)")
_SENT_AS = re.compile(r"\bsent_as_(\w+)")


def axes_of_sum(scopes: str) -> Axes:
    """The axes of the sum whose steps stand in these scopes of JAX; none elsewhere.

    >>> axes_of_sum("transpose(jvp(wf12_einsum))/of1/sum_over_hosts+x")
    ('hosts', 'x')
    """
    found = _SUM.findall(scopes)
    return tuple(found[-1].split("+")) if found else ()


def dtype_sent(scopes: str) -> str | None:
    """The dtype of the numbers whose bytes are sent in these scopes, if one is named."""
    found = _SENT_AS.findall(scopes)
    return found[-1] if found else None


_NUMBER = re.compile(r"\bwf(\d+)_(\w*)")
_BLOCKS: set[str] = set()
_OPERAND = re.compile(r"\bof(\d+)\b")


def entry_and_operand(scopes: str) -> tuple[int | None, int | None]:
    """The innermost op among JAX's scope names, and its operand if one is brought.

    >>> entry_and_operand("transpose(jvp(wf3_scan))/wf12_einsum/of1")
    (12, 1)
    """
    ops = list(_NUMBER.finditer(scopes))
    if not ops:
        return None, None
    operands = _OPERAND.findall(scopes, ops[-1].end())
    return int(ops[-1][1]), int(operands[-1]) if operands else None


def is_within_op(scopes: str) -> bool:
    """Whether the innermost scope of ours is an op's, not a loop's or a branch's."""
    names = [name for _, name in _NUMBER.findall(scopes)]
    return bool(names) and names[-1] not in _BLOCKS


_PROGRAMS: list[str] = []  # folders


def show_as_source(folder: str) -> None:
    """Shows a room's files as a user's own source: they are written in the language."""
    _PROGRAMS.append(folder + os.sep)
    is_source.cache_clear()


def place() -> Place:
    """The innermost frame that is shown as source: a user's own line, or a model's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_source(frame.f_code.co_filename):
        frame = frame.f_back
    return (None, -1) if frame is None else (frame.f_code, frame.f_lasti)


@functools.cache
def is_source(filename: str) -> bool:
    """Whether printed programs show a file's lines: a user's own, or a model's."""
    return filename.startswith(tuple(_PROGRAMS)) or is_users(filename)


_listening: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record being made", default=None)


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    """While a program is traced to be read: all regions write to one record."""
    record = Record()
    token = _listening.set(record)
    try:
        yield record
    finally:
        _listening.reset(token)


def record_of_region() -> Record:
    """The record a new region writes to."""
    return _listening.get() or Record()
