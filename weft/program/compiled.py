"""The compiled programs that stand in a profile: XLA's instructions.

Each instruction has the scopes it was traced in, and with that the op and the phase that it works for; a fused one has
those of all that it is made of. The profile holds them as protobuf, of which as much is read here as is needed.
"""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..graph import phase_of
from ..record import entry_and_operand, is_source, is_within_op
from .lines import Doer
from .source import shown_path

COLLECTIVES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "permute",
}
"""XLA's collectives as a ledger calls them."""
_AROUND = frozenset({"while", "conditional", "call", "async-start", "async-done", "async-update"})
_COPIES = frozenset(
    ("copy", "copy-start", "copy-done", "slice", "dynamic-slice", "concatenate", "bitcast", "transpose", "reshape")
    + ("tuple", "parameter", "constant")
)
_FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "broadcast", "iota", "reshape"})


@dataclass(frozen=True, eq=False)
class HloInstruction:
    """One instruction of a compiled program."""

    name: str
    opcode: str
    scopes: str
    """As JAX wrote them: `jit(f)/jvp(wf3_scan)/while/body/wf12_einsum/dot_general`."""
    line: str
    """The user's file and line, or a model's."""
    work: float
    """About how many operations it does."""
    parts: tuple["HloInstruction", ...] = ()
    """What it is made of, where several were fused into one."""
    around: str = ""
    """The scopes of the loop, the branch or the call that it is in."""
    behind: tuple[tuple[str, float], ...] = ()
    """The scopes of what made its operands, and how many numbers each is, where it has none itself."""
    kernel: str = ""
    """What instructions that run the same kernel have in common."""
    target: str = ""
    """Of a call of a library the function called."""

    @functools.cached_property
    def collective(self) -> str:
        """The collective it is, as a ledger calls it; empty for one that computes."""
        plain = self.opcode.removesuffix("-start").removesuffix("-done")  # of one that runs beside others
        return COLLECTIVES.get(plain) or next((part.collective for part in self.parts if part.collective), "")

    @property
    def is_around(self) -> bool:
        """Whether it only runs others: a loop, a branch, a call."""
        return self.opcode in _AROUND and not self.collective

    @property
    def is_copy(self) -> bool:
        """Whether it only moves numbers."""
        return all(part.opcode in _COPIES for part in self.parts or (self,))

    @property
    def kernel_name(self) -> str:
        """What XLA calls the kernel that it makes for it."""
        return self.name.replace(".", "_").replace("-", "_")

    @property
    def base_name(self) -> str:
        """The name without the number that tells it from others."""
        return self.name.partition(".")[0]

    @property
    def is_of_library(self) -> bool:
        """Whether a kernel runs for it that XLA did not make."""
        return self.opcode not in ("fusion", *_FREE, *_AROUND) and self.work > 0

    @functools.cached_property
    def doers(self) -> dict[Doer, float]:
        """What it works for, each with its share; nothing where no scope says.

        What XLA adds to a loop that an op has inside works for that op; a collective that it joined, or a sum that it
        cut in two, for what made the operands.
        """
        weights: dict[Doer, float] = {}
        for said, work in self._weigh_scopes():
            found = _doers(said, self.collective)
            for doer in found:
                weights[doer] = weights.get(doer, 0.0) + work / len(found)
        known = {doer: work for doer, work in weights.items() if doer.op is not None or doer.phase == "update"}
        if not (total := sum(known.values())):
            return dict.fromkeys(known, 1 / max(len(known), 1))
        return {doer: work / total for doer, work in known.items() if work}

    def _weigh_scopes(self) -> Iterable[tuple[str, float]]:
        """The scopes that say what it works for, each with its weight."""
        if scoped := [part for part in self.parts if names_op(part.scopes)] or [self] * names_op(self.scopes):
            return [(part.scopes, part.work) for part in scoped]
        if is_within_op(self.around):
            return [(self.around, 1.0)]
        return () if self.is_copy else self.behind


def names_op(scopes: str) -> bool:
    """Whether scopes say for what something works: an op, or the update."""
    return any(doer.op is not None or doer.phase == "update" for doer in _doers(scopes, ""))


@functools.lru_cache(maxsize=1 << 14)
def _doers(scopes: str, collective: str) -> tuple[Doer, ...]:
    return tuple(dict.fromkeys(_doer(each, collective) for each in alternatives(scopes)))


def _doer(scopes: str, collective: str) -> Doer:
    op, operand = entry_and_operand(scopes)
    phase = phase_of(scopes, is_global=op is None)
    return Doer(op, phase, collective, operand if collective else None)


def alternatives(scopes: str) -> list[str]:
    """The scopes of each of several that XLA took together: `a/(b:c)` is a/b and a/c.

    >>> alternatives("a/(wf1_sum/psum:jvp(wf2_sum)/psum)"), alternatives("jit(f)/a")
    (['a/wf1_sum/psum', 'a/jvp(wf2_sum)/psum'], ['jit(f)/a'])
    """
    if (found := _JOINED.search(scopes)) is None:
        return [scopes]
    depth, begin, parts = 0, found.end(), list[str]()
    for at in range(found.end(), len(scopes)):
        if depth == 0 and scopes[at] in ":)":
            parts.append(scopes[begin:at])
            begin = at + 1
            if scopes[at] == ")":
                break
        depth += (scopes[at] == "(") - (scopes[at] == ")")
    return [each for part in parts for each in alternatives(f"{scopes[: found.start(1)]}{part}{scopes[begin:]}")]


_JOINED = re.compile(r"(?:^|/)(\()(?=.*:)")


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A program as XLA runs it on one processor."""

    name: str
    instructions: Mapping[str, HloInstruction]
    entry: frozenset[str]
    """The instructions that run once each time it does."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """The dtypes of its arguments, where they are floats, and their shapes on one processor."""
    order: tuple[tuple[str, ...], ...] = ()
    """The instructions of each body, in the order they run."""
    key: str = ""
    """The name with the number that events have of it: `jit_f(12)`; several programs may have one name."""

    @functools.cached_property
    def ops(self) -> set[tuple[int, str]]:
        """The numbers and names of the ops whose scopes it has."""
        scopes = (each.scopes for each in self.instructions.values())
        return {(int(number), name) for text in scopes for number, name in _OP.findall(text)}


_OP = re.compile(r"\bwf(\d+)_(\w+)")


def read_programs(profile: bytes) -> list[CompiledProgram]:
    """The compiled programs of a profile."""
    programs = []
    for plane in map(_message, _message(profile)[1]):
        if _text(plane, 2) != "/host:metadata":
            continue
        for held in (_message(held) for entry in plane[4] for held in _message(entry)[2]):
            found = [module for stat in held[5] for proto in _message(stat)[6] for module in _message(proto)[1]]
            programs += [replace(_Module(_message(module)).program, key=_text(held, 2)) for module in found]
    return programs


_DEEPEST = 6  # instructions without scopes one behind the other


class _Module:
    """One program while it is read."""

    def __init__(self, module: "_Message"):
        computations = [_message(computation) for computation in module[3]]
        self.raw = {_one(each, 5): [_message(raw) for raw in each[2]] for each in computations}
        self.roots = {_one(each, 5): _one(each, 6) for each in computations}
        self.by_id = {_one(raw, 35): raw for instructions in self.raw.values() for raw in instructions}
        self._stacks = _SourceStacks(_message(next(iter(module[17]), b"")))
        self._read: dict[int, tuple[HloInstruction, ...]] = {}
        self._callers = {
            called: (computation, raw)
            for computation, instructions in self.raw.items()
            for raw in instructions
            if _text(raw, 2) in _AROUND
            for called in _numbers(raw, 38)
        }
        instructions = {each.name: each for computation in self.raw for each in self._instructions(computation)}
        entry = self.raw.get(_one(module, 6), [])
        inputs = [_shape(raw) for raw in entry if _text(raw, 2) == "parameter"]
        names = frozenset(_text(raw, 1) for raw in self._run_once(_one(module, 6)))
        order = tuple(self._order(module))
        self.program = CompiledProgram(_text(module, 1), instructions, names, tuple(filter(None, inputs)), order)

    def _order(self, module: "_Message") -> Iterator[tuple[str, ...]]:
        """The names of each body's instructions as they are scheduled."""
        for raw in _message(next(iter(module[7]), b""))[1]:
            sequence = _message(next(iter(_message(raw)[2]), b""))
            yield tuple(_text(self.by_id[number], 1) for number in _numbers(sequence, 1) if number in self.by_id)

    def _run_once(self, computation: int) -> Iterator["_Message"]:
        """The instructions of a computation and of those that it calls, but for loops."""
        for raw in self.raw.get(computation, []):
            yield raw
            for called in _numbers(raw, 38) if _text(raw, 2) == "call" else ():
                yield from self._run_once(called)

    def _instructions(self, computation: int) -> tuple[HloInstruction, ...]:
        """The instructions of a computation, with those they are fused of."""
        if computation not in self._read:
            self._read[computation] = ()
            around = self._around(computation)
            found = (self._instruction(raw, around) for raw in self.raw.get(computation, []))
            self._read[computation] = tuple(found)
        return self._read[computation]

    def _around(self, computation: int) -> str:
        """The scopes of the innermost loop or call around a computation that has some."""
        while computation in self._callers:
            computation, raw = self._callers[computation]
            if scopes := _text(_message(next(iter(raw[7]), b"")), 2):
                return scopes
        return ""

    def _instruction(self, raw: "_Message", around: str) -> HloInstruction:
        opcode = _text(raw, 2)
        metadata = _message(next(iter(raw[7]), b""))
        called = _numbers(raw, 38) if opcode in ("fusion", "async-start") else []
        parts = tuple(
            part for number in called for each in self._instructions(number) for part in each.parts or (each,)
        )
        line, scopes = self._stacks.line(_one(metadata, 15)), _text(metadata, 2)
        is_said = opcode in _FREE or names_op(scopes) or any(names_op(part.scopes) for part in parts)
        behind = () if is_said else tuple(self._behind(raw))
        kernel, target = _text(metadata, 12) or _text(raw, 1), _text(raw, 28)
        said = (opcode, scopes, line, self._work(raw, opcode), parts, around, behind, kernel, target)
        return HloInstruction(_text(raw, 1), *said)

    def _behind(self, raw: "_Message", depth: int = 0) -> Iterator[tuple[str, float]]:
        """The scopes of what made an instruction's operands, and their elements."""
        for operand in [self.by_id[number] for number in _numbers(raw, 36) if number in self.by_id]:
            maker, size = self._maker(operand), float(_elements(operand))
            inside = [part for number in _numbers(maker, 38) for part in self._instructions(number)]
            fused = [part for part in inside if names_op(part.scopes)]
            if names_op(scopes := _text(_message(next(iter(maker[7]), b"")), 2)):
                yield scopes, size
            elif fused and _text(maker, 2) == "fusion":
                yield fused[-1].scopes, size
            elif depth < _DEEPEST:
                yield from self._behind(maker, depth + 1)

    def _maker(self, raw: "_Message") -> "_Message":
        """What made a value: of a fused instruction of several results, what is inside."""
        if _text(raw, 2) != "get-tuple-element":
            return raw
        made = self.by_id.get(next(iter(_numbers(raw, 36)), -1), raw)
        if _text(made, 2) != "fusion":
            return made
        root = self.by_id.get(self.roots.get(next(iter(_numbers(made, 38)), -1), -1), made)
        parts, at = _numbers(root, 36), _one(raw, 13)
        return self.by_id.get(parts[at], made) if _text(root, 2) == "tuple" and at < len(parts) else made

    def _work(self, raw: "_Message", opcode: str) -> float:
        """Operations of an instruction: FLOPs of a product, else its elements."""
        if opcode in _FREE:
            return 0.0
        operands = [self.by_id[number] for number in _numbers(raw, 36) if number in self.by_id]
        made, given = _elements(raw), [_elements(operand) for operand in operands]
        if opcode == "dot" and operands:
            _, sizes = _shape(operands[0]) or ("", ())
            return 2.0 * made * math.prod(sizes[axis] for axis in _numbers(_message(raw[30][0]), 1))
        if opcode == "dynamic-update-slice":
            return float(min([*given[1:2], made]))
        return float(made if opcode in ("slice", "dynamic-slice", "gather") else max([made, *given]))


def _shape(raw: "_Message") -> tuple[str, tuple[int, ...]] | None:
    """The dtype and the shape of what an instruction gives; None for a tuple."""
    shape = _message(next(iter(raw[3]), b""))
    dtype = _one(shape, 2)
    return None if shape[4] else (_FLOATS.get(dtype, ""), tuple(_numbers(shape, 3)))


_FLOATS = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}


def _elements(raw: "_Message") -> int:
    shape = _shape(raw)
    return 0 if shape is None else math.prod(shape[1])


class _SourceStacks:
    """The source lines of a program: stacks of frames, by number from 1 on."""

    def __init__(self, index: "_Message"):
        self.files = [name.decode() for name in index[1]]
        self.places = [_message(place) for place in index[3]]
        self.frames = [_message(frame) for frame in index[4]]

    def line(self, frame: int) -> str:
        """The innermost line of a stack that is the user's own, or a model's."""
        while frame:
            place = self.places[_one(self.frames[frame - 1], 1) - 1]
            if is_source(file := self.files[_one(place, 1) - 1]):
                return f"{shown_path(file)}:{_one(place, 3)}"
            frame = _one(self.frames[frame - 1], 2)
        return ""


# Protobuf, as far as it is needed: numbers, and bytes that are texts or further messages.

_Message = Mapping[int, list[Any]]
"""The values of a message's fields, by their numbers."""


def _message(raw: bytes) -> _Message:
    fields: defaultdict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(raw):
        key, at = _number(raw, at)
        match key & 7:
            case 0:
                value, at = _number(raw, at)
                fields[key >> 3].append(value)
                continue
            case 2:
                size, at = _number(raw, at)
            case wire:
                size = {1: 8, 5: 4}[wire]
        fields[key >> 3].append(raw[at : at + size])
        at += size
    return fields


def _one(message: _Message, field: int) -> int:
    return next(iter(message[field]), 0)


def _text(message: _Message, field: int) -> str:
    return next(iter(message[field]), b"").decode()


def _numbers(message: _Message, field: int) -> list[int]:
    """A field's numbers, each by itself or packed together."""
    numbers: list[int] = []
    for value in message[field]:
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _number(value, at)
            numbers.append(number)
    return numbers


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while message[at] > 127:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | message[at] << shift, at + 1
