"""What a program sends, read a second and a third time: off its jaxpr, and off the code XLA made of it.

Nothing here knows weft's own ledger. Both give bytes by collective and mesh axes; a reduction and an exchange count
what one processor puts in, a gather what it gets out, loops count every turn and a branch its larger side.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

Sent = Counter[tuple[str, frozenset[str]]]

# For the CPU: its machine code is not optimized, which changes none of the compiled code read here.
QUICKLY = {"xla_backend_optimization_level": 0}

# Off the jaxpr.

REDUCED = {"psum", "psum2", "psum_invariant", "pmax", "pmin"}
EXCHANGED = {
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "psum_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "ppermute": "permute",
}


def walk(closed: Any) -> Sent:
    """The bytes of a closed jaxpr's collectives."""
    return _walked(closed.jaxpr, 1)


def _walked(jaxpr: Any, times: int) -> Sent:
    found: Sent = Counter()
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in REDUCED:
            found["all_reduce", frozenset(eqn.params["axes"])] += times * _size(eqn.invars)
        elif name in EXCHANGED:
            axes = eqn.params["axis_name"]
            axes = frozenset(axes if isinstance(axes, tuple) else (axes,))
            found[EXCHANGED[name], axes] += times * _size(eqn.outvars if "gather" in name else eqn.invars)
        elif name == "cond":
            found += max((_walked(branch.jaxpr, times) for branch in eqn.params["branches"]), key=Counter.total)
        else:
            turns = times * eqn.params["length"] if name == "scan" else times
            for inner in _jaxprs(tuple(eqn.params.values())):
                found += _walked(inner, turns)
    return found


def _size(variables: Any) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _jaxprs(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield value.jaxpr
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _jaxprs(item)


# Off the compiled code. Operands are printed by name: their types stand where they are made.

KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
}
COMPUTATION = re.compile(r"^(ENTRY )?%?(?P<name>[\w.-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
OPCODE = re.compile(r"(?:^|[)}\] ])(?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$")
ARRAY = re.compile(r"\b(?P<type>pred|[a-z]+(?P<bits>\d+)(?:e\d\w*)?)\[(?P<shape>[\d,]*)\]")
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
CALLED = re.compile(r"\b(?P<what>body|condition|calls|to_apply)=%?(?P<name>[\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
TWO_BRANCHES = re.compile(r"\b(?:true|false)_computation=%?([\w.-]+)")
GROUPS = re.compile(r"\b(?:replica_groups|source_target_pairs)=")
MESH_GROUPS = re.compile(
    r"mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\(\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?\))?"
    r" \{(?P<over>[^}]*)\}"
)
IOTA_GROUPS = re.compile(r"\[(?P<groups>[\d,]+)\]<=\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")


@dataclasses.dataclass
class Instruction:
    """One line of compiled code."""

    type: str
    opcode: str
    operands: list[str]
    attributes: str


Computation = dict[str, Instruction]


def compiled(text: str, mesh: dict[str, int]) -> Sent:
    """The bytes of the collectives of a compiled module, by the axes of the mesh its processors are numbered on."""
    computations, entry = _parsed(text)
    names = list(mesh)

    def axes_of(groups: list[tuple[int, ...]]) -> frozenset[str]:
        places = np.stack(np.unravel_index(np.arange(math.prod(mesh.values())), tuple(mesh.values())))
        spread = {
            name for group in groups for name, row in zip(names, places[:, list(group)], strict=True) if len({*row}) > 1
        }
        return frozenset(spread)

    @functools.cache
    def sent_by(name: str) -> Sent:
        found: Sent = Counter()
        body = computations[name]
        for line in body.values():
            kind = KINDS.get(line.opcode.removesuffix("-start"))
            if kind is not None:
                groups = _groups(line.attributes, math.prod(mesh.values()))
                size = sum(_bytes(body[operand].type) for operand in line.operands)
                size *= len(groups[0]) if kind == "all_gather" else 1
                found[kind, axes_of(groups)] += size
            for called, times in _calls(line, sent_by):
                found += Counter({key: size * times for key, size in sent_by(called).items()})
        return found

    return sent_by(entry)


def _parsed(text: str) -> tuple[dict[str, Computation], str]:
    computations: dict[str, Computation] = {}
    entry, body = "", {}
    for line in text.splitlines():
        if (head := COMPUTATION.match(line)) is not None and " = " not in line.split("{")[0]:
            body = computations[head["name"]] = {}
            entry = head["name"] if line.startswith("ENTRY") else entry
        elif (found := INSTRUCTION.match(line)) is not None:
            split = OPCODE.search(found["rest"])
            assert split is not None, line
            inside, attributes = _closed(split["rest"])
            operands = re.findall(r"%([\w.-]+)", inside)
            body[found["name"]] = Instruction(found["rest"][: split.start() + 1], split["opcode"], operands, attributes)
    return computations, entry


def _closed(text: str) -> tuple[str, str]:
    """What stands before the bracket that closes, and after it."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:i], text[i + 1 :]
    raise AssertionError(text)


def _calls(line: Instruction, sent_by: Any) -> list[tuple[str, int]]:
    """The computations an instruction runs that may send something, and how often."""
    if line.opcode == "conditional":
        listed = BRANCHES.search(line.attributes)
        names = re.findall(r"%?([\w.-]+)", listed[1]) if listed else TWO_BRANCHES.findall(line.attributes)
        return [(max(names, key=lambda name: sent_by(name).total()), 1)]
    turns = TURNS.search(line.attributes)
    times = int(turns[1]) if line.opcode == "while" and turns else 1
    if line.opcode not in ("while", "fusion", "call", "async-start"):
        return []
    return [(found["name"], times) for found in CALLED.finditer(line.attributes)]


def _bytes(printed: str) -> int:
    """The bytes of all arrays in a type."""
    found = ARRAY.finditer(printed)
    return sum(int(a["bits"] or 8) * math.prod(map(int, filter(None, a["shape"].split(",")))) // 8 for a in found)


def _groups(attributes: str, devices: int) -> list[tuple[int, ...]]:
    """The groups of processors that exchange something; pairs count as groups."""
    start = GROUPS.search(attributes)
    assert start is not None, attributes
    text = attributes[start.end() :]
    if text.startswith("{{"):
        inner = text[1 : text.index("}}") + 1]
        return [tuple(map(int, part.split(","))) for part in re.findall(r"\{([\d,]+)\}", inner)]
    if text.startswith("{}"):
        return [tuple(range(devices))]
    if (iota := IOTA_GROUPS.match(text)) is not None:
        found = _numbered(iota["shape"], iota["order"]).reshape(_numbers(iota["groups"]))
        return [tuple(map(int, row)) for row in found]
    named = MESH_GROUPS.match(text)
    assert named is not None, text
    axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named["axes"])}
    sizes = tuple(axes.values())
    order = _numbered(named["shape"], named["order"]) if named["shape"] else np.arange(math.prod(sizes))
    over = [list(axes).index(name) for name in re.findall(r"'([^']+)'", named["over"])]
    grid = np.moveaxis(order.reshape(sizes), over, range(-len(over), 0))
    return [tuple(map(int, row)) for row in grid.reshape(-1, math.prod(sizes[i] for i in over))]


def _numbered(shape: str, order: str | None) -> np.ndarray:
    found = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return (found.transpose(_numbers(order)) if order else found).reshape(-1)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


@dataclasses.dataclass(frozen=True)
class Less:
    """By how many bytes XLA sends less than the program, and the passes that bring it about."""

    bytes: dict[tuple[str, str], int]
    passes: str


def difference(one: Sent, other: Sent) -> dict[tuple[str, str], int]:
    """One less the other, where they differ."""
    keys = itertools.chain(one, other)
    return {
        (kind, "+".join(sorted(axes))): one[kind, axes] - other[kind, axes]
        for kind, axes in keys
        if one[kind, axes] != other[kind, axes]
    }
