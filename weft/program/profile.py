"""The names of ops in a profile that JAX wrote.

A profile is two files: what ran when, as JSON that ui.perfetto.dev shows, and the same with the compiled programs, as
protobuf. The first names XLA's instructions; the second knows the scopes and the source lines they come from.
"""

import gzip
import json
import re
from pathlib import Path

from ..graph import phase_of
from .compiled import HloInstruction, read_programs

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
    for program in read_programs(profile):
        for instruction in program.instructions.values():
            if name := _name(instruction):
                key = program.name, instruction.name
                names[key] = name if names.get(key, name) == name else ""
    return names


def _name(instruction: HloInstruction) -> str:
    """The name of an instruction by the scopes it was traced in; empty without op."""
    scopes = instruction.scopes
    ops = _OP.findall(scopes)
    phase = phase_of(scopes, is_global=not ops)
    if not ops and phase != "update":
        return ""
    return f"{ops[-1]} ({phase}) {instruction.line}".rstrip() if ops else f"{scopes.split('/')[-1]} ({phase})"
