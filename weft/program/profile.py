"""The names of ops in a profile that JAX wrote.

A profile is two files: what ran when, as JSON that ui.perfetto.dev shows, and the same with the compiled programs, as
protobuf. The first names XLA's instructions; the second knows the scopes and the source lines they come from.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..graph import phase_of
from ..record import is_source
from .source import shown_path

EVENTS, PROGRAMS = ".trace.json.gz", ".xplane.pb"
_OP = re.compile(r"\bwf\d+_(\w+)")


def name_events(folder: Path) -> int:
    """Names events of a folder's newest profile by op, phase, line; says how many."""
    count = 0
    newest = max((folder / "plugins" / "profile").iterdir())
    for file in newest.glob(f"*{EVENTS}"):
        names = read_op_names((newest / (file.name.removesuffix(EVENTS) + PROGRAMS)).read_bytes())
        profile = json.loads(gzip.decompress(file.read_bytes()))
        for event in profile["traceEvents"]:
            args = event.get("args", {})
            if name := names.get((args.get("hlo_module", ""), args.get("hlo_op", ""))):
                event["name"], count = name, count + 1
        file.write_bytes(gzip.compress(json.dumps(profile).encode(), compresslevel=5))
    return count


def read_op_names(profile: bytes) -> dict[tuple[str, str], str]:
    """The op of each instruction in a profile, by program and instruction.

    `einsum (backward) nn/attention.py:242`. Where two programs of one name differ in an instruction it has none.
    """
    names: dict[tuple[str, str], str] = {}
    for plane in _all(profile, 1):
        if _text(plane, 2) != "/host:metadata":
            continue
        for entry in _all(plane, 4):
            stats = [stat for held in _all(entry, 2) for stat in _all(held, 5)]
            for program in (module for stat in stats for held in _all(stat, 6) for module in _all(held, 1)):
                title = _text(program, 1)
                for instruction, name in _instructions(program):
                    names[title, instruction] = name if names.get((title, instruction), name) == name else ""
    return names


def _instructions(program: bytes) -> Iterator[tuple[str, str]]:
    stacks = _SourceStacks(program)
    for computation in _all(program, 3):
        for instruction in _all(computation, 2):
            for metadata in _all(instruction, 7):
                fields = dict(_fields(metadata))
                if name := _name(fields.get(2, b"").decode(), stacks.line(fields.get(15, 0))):
                    yield _text(instruction, 1), name


def _name(scopes: str, line: str) -> str:
    """The name of an instruction by the scopes it was traced in; empty without op."""
    ops = _OP.findall(scopes)
    phase = phase_of(scopes, is_global=not ops)
    if not ops and phase != "update":
        return ""
    return f"{ops[-1]} ({phase}) {line}".rstrip() if ops else f"{scopes.split('/')[-1]} ({phase})"


class _SourceStacks:
    """The source lines of a program: stacks of frames, by number from 1 on."""

    def __init__(self, program: bytes):
        index = next(iter(_all(program, 17)), b"")
        self.files = [name.decode() for name in _all(index, 1)]
        self.places = [dict(_fields(place)) for place in _all(index, 3)]
        self.frames = [dict(_fields(frame)) for frame in _all(index, 4)]

    def line(self, frame: int) -> str:
        """The innermost line of a stack that is the user's own, or a model's."""
        while frame:
            place = self.places[self.frames[frame - 1][1] - 1]
            if is_source(file := self.files[place[1] - 1]):
                return f"{shown_path(file)}:{place[3]}"
            frame = self.frames[frame - 1].get(2, 0)
        return ""


# Protobuf, as far as it is needed: numbers, and bytes that are texts or further messages.


def _all(message: bytes, field: int) -> list[Any]:
    return [value for number, value in _fields(message) if number == field]


def _text(message: bytes, field: int) -> str:
    return next(iter(_all(message, field)), b"").decode()


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message's fields, in order."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        match key & 7:
            case 0:
                value, at = _number(message, at)
                yield key >> 3, value
                continue
            case 2:
                size, at = _number(message, at)
            case wire:
                size = {1: 8, 5: 4}[wire]
        yield key >> 3, message[at : at + size]
        at += size


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while message[at] > 127:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | message[at] << shift, at + 1
