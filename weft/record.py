"""The record: every op of a traced program, where it stands in the user's source, and what it was done with.

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
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import jax

from .dims import Shape
from .errors import is_users

Axes = tuple[str, ...]
Place = tuple[CodeType | None, int]
"""An instruction of someone's code; -1 for the function as a whole."""

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
MAPPED = ("vmap", "associative_scan")  # blocks whose body sees one place along a dim, and works on all at once
_PROGRAMS = ("nn", "models", "decode", "train", "cli")  # rooms written in the language, shown as a user's own source


@dataclass(frozen=True)
class Placed:
    """The type of a tensor: its dtype, its dims, and over which axes each of them is split."""

    dtype: Any
    dims: Shape
    placement: tuple[Axes, ...]
    store: str | None = None
    """`"params"` where this is how a parameter is stored rather than how it is used."""


@dataclass(frozen=True)
class Argument:
    """An array a region is given: an argument by itself, or a leaf of a tree, called by its path."""

    name: str
    is_leaf: bool


@dataclass
class Entry:
    """One op as it was traced, or one loop or branch with the ops in it."""

    id: int
    op: str
    code: CodeType | None
    at: int
    """The instruction of `code` that called the op; -1 for the function as a whole."""
    parent: int | None
    is_block: bool = False
    operands: list[Placed | None] = field(default_factory=list)
    makers: list[int | None] = field(default_factory=list)
    """For each operand the entry that made it, where one did."""
    gradients: list[bool | None] = field(default_factory=list)
    """For each operand whether a gradient flows back to it; None where that is not known."""
    dims: dict[str, Axes] = field(default_factory=dict)
    """Every dim of the op and the axes it is split over where the operands meet."""
    taken: Axes = ()
    """The axes of the dim that a function around the op is mapped over."""
    over: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    """Old names and new ones, where the op renames dims."""
    results: list[Placed] = field(default_factory=list)
    turns: int | None = None
    reason: str = ""
    is_free: bool = False
    """Nothing runs: the result is an operand under other names."""
    stays_stored: bool = False
    """Done on parameters as they are stored, which are gathered only where they meet something else."""
    is_gone: bool = False
    """Traced, and traced again in another form that stands instead."""


class Record:
    """The ops of one traced program, in the order they were traced."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.arguments: list[Argument] = []
        """The region's arrays, in order."""
        self.update: Place = (None, -1)
        """Where the train step was made whose update is part of the program."""
        self.current: Entry | None = None
        self._parent: int | None = None

    @contextlib.contextmanager
    def op(self, name: str, *, reason: str = "", at: Place | None = None) -> Iterator[Entry]:
        """While one op is traced; ops it is made of are part of it."""
        if self.current is not None:
            yield self.current
            return
        entry = self.current = self._new(name, at or place())
        entry.reason = reason
        try:
            with jax.named_scope(f"wf{entry.id}_{name}"):
                yield entry
        finally:
            self.current = None

    @contextlib.contextmanager
    def block(self, name: str) -> Iterator[Entry]:
        """While a loop or a branch is traced; ops in its body are entries of their own."""
        outer, before = self._parent, self.current
        _BLOCKS.add(name)
        entry = self._new(name, place())
        entry.is_block = True
        if outer is not None and self._is_part_of(entry, self.entries[outer]):
            self.entries.pop()
            entry = self.entries[outer]
        self._parent, self.current = entry.id, None
        try:
            with jax.named_scope(f"wf{entry.id}_{name}"):
                yield entry
        finally:
            self._parent, self.current = outer, before

    def _is_part_of(self, inner: Entry, outer: Entry) -> bool:
        """Whether a loop was made by one call together with the loop around it: `fori_loop` is a scan."""
        return inner.code is not None and (inner.code, inner.at) == (outer.code, outer.at) and inner.op != outer.op

    def _new(self, name: str, at: Place) -> Entry:
        entry = Entry(len(self.entries), name, *at, self._parent)
        self.entries.append(entry)
        return entry

    @property
    def block_being_traced(self) -> Entry | None:
        return None if self._parent is None else self.entries[self._parent]

    def forget(self, mark: int) -> None:
        """Marks all entries from number `mark` on as superseded: their body is traced again."""
        for entry in self.entries[mark:]:
            entry.is_gone = True


def operand_scope(index: int) -> contextlib.AbstractContextManager[Any]:
    """While an op brings one operand to where it is needed, so that what this sends can be told from the rest."""
    return jax.named_scope(f"of{index}")


_NUMBER = re.compile(r"\bwf(\d+)_(\w*)")
_BLOCKS: set[str] = set()
_OPERAND = re.compile(r"\bof(\d+)\b")


def entry_and_operand(scopes: str) -> tuple[int | None, int | None]:
    """The number of the innermost op among JAX's scope names, and of its operand, if one was being brought.

    >>> entry_and_operand("transpose(jvp(wf3_scan))/wf12_einsum/of1")
    (12, 1)
    """
    found = None
    for found in _NUMBER.finditer(scopes):  # noqa: B007
        pass
    if found is None:
        return None, None
    operands = _OPERAND.findall(scopes, found.end())
    return int(found[1]), int(operands[-1]) if operands else None


def is_within_op(scopes: str) -> bool:
    """Whether the innermost of JAX's scopes that is one of ours is an op's, and not that of a loop or a branch."""
    names = [name for _, name in _NUMBER.findall(scopes)]
    return bool(names) and names[-1] not in _BLOCKS


def place() -> Place:
    """Where the program stands: a user's own line, or one of a model written in the language."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_source(frame.f_code.co_filename):
        frame = frame.f_back
    return (None, -1) if frame is None else (frame.f_code, frame.f_lasti)


@functools.cache
def is_source(filename: str) -> bool:
    if filename.startswith(_HERE):
        return filename[len(_HERE) :].split(os.sep)[0] in _PROGRAMS
    return is_users(filename)


_listening: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record being made", default=None)


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    """While a program is traced to be read: all regions opened meanwhile write to one record."""
    record = Record()
    token = _listening.set(record)
    try:
        yield record
    finally:
        _listening.reset(token)


def record_of_region() -> Record:
    """The record a new region writes to."""
    return _listening.get() or Record()
