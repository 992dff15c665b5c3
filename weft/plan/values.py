"""The nodes of a program and the arrays between them on one processor.

A pass over the graph of the program: a loop's turn is a routine by itself, with how often it runs. What costs nothing
(a reshape, a change of type alone) is gone: its result is its operand.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..compat import is_on_host
from ..graph import Body, Loop, Step, Value
from ..layout import placement_of
from ..primitives import VIEWS, Role
from ..program.reading import Reading
from ..program.update import split_of

_FREE = VIEWS | {Role.TRANSPOSE}


class Array:
    """An array as one processor holds it."""

    __slots__ = ("bytes", "elements", "from_carry", "maker", "uses", "ways")

    def __init__(self, aval: Any, ways: int = 1, *, maker: "Node | None" = None, from_carry: bool = False):
        shape = getattr(aval, "shape", ())
        self.ways, self.maker, self.from_carry = ways, maker, from_carry
        self.elements = math.prod(shape) // ways
        self.bytes = self.elements * _itemsize(aval)
        self.uses: list[Node] = []


def _itemsize(aval: Any) -> int:
    """Bytes of one number; of what lies on the host none is in this memory."""
    if is_on_host(aval):
        return 0
    dtype = getattr(aval, "dtype", None)
    return int(getattr(dtype, "itemsize", 0) or 0)


class Node:
    """One step: the arrays it reads and those it makes."""

    __slots__ = ("ins", "is_early", "is_hard", "is_joined", "leaves", "outs", "stage", "step")

    def __init__(self, step: Step, ins: list[Array]):
        self.step, self.ins = step, ins
        self.outs: list[Array] = []
        self.stage = 0
        self.leaves: frozenset[Array] = frozenset()
        self.is_joined = self.is_hard = self.is_early = False

    @property
    def kind(self) -> Role:
        return self.step.row.kind


@dataclass
class Routine:
    """The nodes of one body, in order, and what becomes of its results."""

    count: int = 1
    is_turn: bool = False
    """Whether it is a turn of a loop, whose next turn needs `kept`."""
    is_looped: bool = False
    """Whether a loop runs it, however far around."""
    nodes: list[Node] = field(default_factory=list)
    kept: list[Array] = field(default_factory=list)
    """Results, and what crosses the region's border."""
    stacked: list[Array] = field(default_factory=list)
    """Results of a loop's turn that are written into a stack."""
    sliced: list[Array] = field(default_factory=list)
    """What a loop's turn is given a slice of."""
    choices: list[list[list["Routine"]]] = field(default_factory=list)
    """For each branch in the body its sides, of which one runs: the routines of each."""


def routines_of(reading: Reading) -> list[Routine]:
    """All routines of a program, that of the program itself first."""
    reader = _ValueReader(reading)
    program = reading.graph
    arrays = {value: reader.array(value) for value in program.inputs}
    reader.routines[0].kept += reader.read(program, arrays, reader.routines[0])
    return reader.routines


class _ValueReader:
    def __init__(self, reading: Reading):
        self.routines, self._mesh = [Routine()], reading.mesh.axes

    def array(self, value: Value) -> Array:
        """A global value as one processor holds it, by its type or its region's."""
        if value.local is None:
            return Array(value.aval, self._ways(split_of(value)))
        array = Array(value.local)
        array.ways = self._ways(placement_of(value.spec))
        return array

    def _ways(self, split: Sequence[Sequence[str]]) -> int:
        return math.prod(self._mesh.get(axis, 1) for axes in split for axis in axes)

    def read(self, body: Body, arrays: dict[Value, Array], routine: Routine) -> list[Array]:
        """Puts the steps of a body into a routine; gives its results."""

        def array(value: Value) -> Array:
            found = arrays.get(value)
            if found is None:
                found = arrays[value] = Array(value.aval)
            return found

        for step in body:
            if step.kind in _FREE and len(step.results) == len(step.operands):
                outs = [self._same(array(a), b) for a, b in zip(step.operands, step.results, strict=True)]
            else:
                ins = [array(value) for value in step.operands]
                if isinstance(step, Loop):
                    outs = self._loop(step, ins, routine)
                else:
                    outs = self._node(step, ins, routine)
            for value, out in zip(step.results, outs, strict=True):
                arrays[value] = out
                if value.local is not None:  # it goes into the region
                    out.elements = math.prod(value.local.shape)
                    out.bytes = out.elements * _itemsize(value.local)
                elif value.spec is not None:  # it comes out of it
                    out.ways = self._ways(placement_of(value.spec))
                    routine.kept.append(out)
        return [array(value) for value in body.results]

    def _same(self, array: Array, value: Value) -> Array:
        """An array under another shape; after a reshard it has another size."""
        ways = self._ways(split_of(value))
        if ways > 1 and ways != array.ways and array.maker is None:
            array.elements = array.elements * array.ways // ways
            array.bytes, array.ways = array.bytes * array.ways // ways, ways
        return array

    def _node(self, step: Step, ins: list[Array], routine: Routine) -> list[Array]:
        ins = [array for array, value in zip(ins, step.operands, strict=True) if not value.is_literal]
        node = Node(step, ins)
        for array in ins:
            array.uses.append(node)
        for value in step.results:
            ways = 1
            if step.is_global:
                size = math.prod(getattr(value.aval, "shape", ()))
                alike = [array.ways for array in ins if array.elements * array.ways == size]
                split = split_of(value)
                ways = self._ways(split) if any(split) else max(alike, default=1)
            node.outs.append(Array(value.aval, ways, maker=node))
        routine.nodes.append(node)
        return node.outs

    def _loop(self, loop: Loop, ins: list[Array], routine: Routine) -> list[Array]:
        if not loop.is_scan:
            return self._sides(loop, ins, routine)
        (body,), (fixed, carried) = loop.bodies, loop.parts
        turn = Routine(routine.count * (loop.turns or 1), is_turn=True, is_looped=True)
        self.routines.append(turn)
        inner = [
            Array(value.aval, ins[i].ways if loop.is_global else 1, from_carry=fixed <= i < fixed + carried)
            for i, value in enumerate(body.inputs)
        ]
        turn.sliced = inner[fixed + carried :] if loop.turns != 1 else []  # a loop of one turn is written out
        results = self.read(body, dict(zip(body.inputs, inner, strict=True)), turn)
        turn.kept, turn.stacked = results[:carried], results[carried:]
        if loop.turns == 1:
            turn.kept, turn.stacked = results, []
        outs = self._node(loop, ins, routine)
        for outside, inside in zip(outs, results, strict=True):
            outside.ways = inside.ways
        return outs

    def _sides(self, loop: Loop, ins: list[Array], routine: Routine) -> list[Array]:
        """A loop of unknown length, counted for one turn, or a branch."""
        sides: list[list[Routine]] = []
        before = self.routines
        for body in loop.bodies:
            self.routines = [Routine(routine.count, is_looped=routine.is_looped or not loop.is_branch)]
            inputs = {value: Array(value.aval, from_carry=True) for value in body.inputs}
            self.routines[0].kept = self.read(body, inputs, self.routines[0])
            sides.append(self.routines)
        self.routines = before
        if loop.is_branch:
            routine.choices.append(sides)
        else:
            self.routines += [inner for side in sides for inner in side]
        return self._node(loop, ins, routine)


def is_among_zeros(value: Array) -> bool:
    """Whether a value is a slice written into zeros."""
    maker = value.maker
    return maker is not None and maker.kind is Role.WRITE and _is_constant(maker.ins[0])


def zeros_below(node: Node) -> list[Array]:
    """The zeros that slices are written into before a node adds them."""
    return [value.maker.ins[0] for value in node.ins if value.maker is not None and is_among_zeros(value)]


def _is_constant(value: Array) -> bool:
    return value.maker is not None and not value.maker.ins


def bytes_of(values: Iterable[Array]) -> int:
    """The bytes of all of them."""
    return sum(value.bytes for value in values)
