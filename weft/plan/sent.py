"""What a compiled program sends, read off XLA's own text of it.

A reduction and an exchange count what one processor puts in, a gather what it gets out; a loop counts every turn it
is known to take, a branch its larger side.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..program.compiled import COLLECTIVES


@dataclass(frozen=True)
class Sent:
    """A collective of a compiled program: `bytes` of one call here, and how often."""

    collective: str
    axes: tuple[str, ...]
    """The mesh axes it goes over."""
    group: int
    """How many processors take part in one call."""
    bytes: int
    count: int = 1


# Operands are printed by name: their types stand where they are made.
_COMPUTATION = re.compile(r"^(ENTRY )?%?(?P<name>[\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r"(?:^|[)}\] ])(?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$")
_ARRAY = re.compile(r"\b(?P<type>pred|[a-z]+(?P<bits>\d+)(?:e\d\w*)?)\[(?P<shape>[\d,]*)\]")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"\b(?P<what>body|condition|calls|to_apply)=%?(?P<name>[\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
_TWO_BRANCHES = re.compile(r"\b(?:true|false)_computation=%?([\w.-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_GROUPS = re.compile(r"\b(?:replica_groups|source_target_pairs)=")
_MESH_GROUPS = re.compile(
    r"mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\(\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?\))?"
    r" \{(?P<over>[^}]*)\}"
)
_IOTA_GROUPS = re.compile(r"\[(?P<groups>[\d,]+)\]<=\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")


@dataclass
class _Instruction:
    """One line of compiled code."""

    type: str
    opcode: str
    inside: str
    """What stands in the brackets."""
    operands: list[str]
    attributes: str


_Body = dict[str, _Instruction]
"""The instructions of a computation, by name."""


def read_collectives(text: str, mesh: Mapping[str, int]) -> list[Sent]:
    """The collectives of a compiled module, by the axes of its mesh."""
    computations, entry = _parse(text)
    sizes = tuple(mesh.values())
    places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes))

    def axes_of(groups: list[tuple[int, ...]]) -> tuple[str, ...]:
        spread = {
            name for group in groups for name, row in zip(mesh, places[:, list(group)], strict=True) if len({*row}) > 1
        }
        return tuple(name for name in mesh if name in spread)

    @functools.cache
    def collectives_in(name: str) -> Counter[Sent]:
        counts: Counter[Sent] = Counter()
        body = computations[name]
        for line in body.values():
            kind = COLLECTIVES.get(line.opcode.removesuffix("-start"))
            if kind is not None:
                groups = _groups(line.attributes, math.prod(sizes))
                size = sum(_bytes(body[operand].type) for operand in line.operands)
                size *= len(groups[0]) if kind == "all_gather" else 1
                counts[Sent(kind, axes_of(groups), len(groups[0]), size)] += 1
            turns = _turns(line, body, computations)
            for called, times in _calls(line, turns, lambda name: _total(collectives_in(name))):
                counts += Counter({sent: count * times for sent, count in collectives_in(called).items()})
        return counts

    return [
        Sent(sent.collective, sent.axes, sent.group, sent.bytes, count)
        for sent, count in sorted(collectives_in(entry).items(), key=lambda pair: -pair[0].bytes * pair[1])
    ]


def _total(counts: Counter[Sent]) -> int:
    return sum(sent.bytes * count for sent, count in counts.items())


def _parse(text: str) -> tuple[dict[str, _Body], str]:
    computations: dict[str, _Body] = {}
    entry, body = "", {}
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) is not None and " = " not in line.split("{")[0]:
            body = computations[head["name"]] = {}
            entry = head["name"] if line.startswith("ENTRY") else entry
        elif (made := _INSTRUCTION.match(line)) is not None:
            split = _OPCODE.search(made["rest"])
            assert split is not None, line
            inside, attributes = _split_at_bracket(split["rest"])
            operands = re.findall(r"%([\w.-]+)", inside)
            type_ = made["rest"][: split.start() + 1]
            body[made["name"]] = _Instruction(type_, split["opcode"], inside, operands, attributes)
    return computations, entry


def _split_at_bracket(text: str) -> tuple[str, str]:
    """What stands before the bracket that closes, and after it."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:i], text[i + 1 :]
    raise AssertionError(text)


def _turns(line: _Instruction, around: _Body, computations: Mapping[str, _Body]) -> int:
    """How many turns a loop takes: as it says, or as its test counts."""
    if line.opcode != "while":
        return 1
    if said := _TURNS.search(line.attributes):
        return int(said[1])
    # The TPU's compiler does not say it. JAX's loops of known length count by one up to a number.
    test = computations[{called["what"]: called["name"] for called in _CALLED.finditer(line.attributes)}["condition"]]
    compare = next((each for each in test.values() if each.opcode == "compare"), None)
    if compare is None or "direction=LT" not in compare.attributes:
        return 1
    counter, bound = (test[name] for name in compare.operands)
    if counter.opcode != "get-tuple-element" or (last := _number(bound)) is None:
        return 1
    start = around[line.operands[0]]
    index = _INDEX.search(counter.attributes)
    first = around.get(start.operands[int(index[1])]) if start.opcode == "tuple" and index else None
    while first is not None and first.opcode in ("copy", "bitcast") and first.operands:
        first = around.get(first.operands[0])
    return max(last - ((_number(first) if first is not None else None) or 0), 0)


def _number(line: _Instruction) -> int | None:
    """The number a constant is."""
    return int(line.inside) if line.opcode == "constant" and line.inside.lstrip("-").isdigit() else None


def _calls(line: _Instruction, turns: int, total: Any) -> list[tuple[str, int]]:
    """The computations an instruction runs that may send something, and how often."""
    if line.opcode == "conditional":
        listed = _BRANCHES.search(line.attributes)
        names = re.findall(r"%?([\w.-]+)", listed[1]) if listed else _TWO_BRANCHES.findall(line.attributes)
        return [(max(names, key=total), 1)]
    if line.opcode not in ("while", "fusion", "call", "async-start"):
        return []
    return [(called["name"], turns) for called in _CALLED.finditer(line.attributes)]


def _bytes(printed: str) -> int:
    """The bytes of all arrays in a type."""
    arrays = _ARRAY.finditer(printed)
    return sum(int(a["bits"] or 8) * math.prod(map(int, filter(None, a["shape"].split(",")))) // 8 for a in arrays)


def _groups(attributes: str, devices: int) -> list[tuple[int, ...]]:
    """The groups of processors that exchange something; pairs count as groups."""
    start = _GROUPS.search(attributes)
    assert start is not None, attributes
    text = attributes[start.end() :]
    if text.startswith("{{"):
        inner = text[1 : text.index("}}") + 1]
        return [tuple(map(int, part.split(","))) for part in re.findall(r"\{([\d,]+)\}", inner)]
    if text.startswith("{}"):
        return [tuple(range(devices))]
    if (iota := _IOTA_GROUPS.match(text)) is not None:
        numbered = _number_devices(iota["shape"], iota["order"]).reshape(_numbers(iota["groups"]))
        return [tuple(map(int, row)) for row in numbered]
    named = _MESH_GROUPS.match(text)
    assert named is not None, text
    axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named["axes"])}
    sizes = tuple(axes.values())
    order = _number_devices(named["shape"], named["order"]) if named["shape"] else np.arange(math.prod(sizes))
    over = [list(axes).index(name) for name in re.findall(r"'([^']+)'", named["over"])]
    grid = np.moveaxis(order.reshape(sizes), over, range(-len(over), 0))
    return [tuple(map(int, row)) for row in grid.reshape(-1, math.prod(sizes[i] for i in over))]


def _number_devices(shape: str, order: str | None) -> np.ndarray:
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return (numbers.transpose(_numbers(order)) if order else numbers).reshape(-1)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
