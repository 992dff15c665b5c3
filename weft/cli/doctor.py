"""`weft doctor`: what is here, what is missing, and how to get it."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from .checkup import (
    BROKEN,
    MISSING,
    OK,
    Finding,
    look_at_compilers,
    look_at_devices,
    look_at_folders,
    look_at_packages,
)
from .terminal import reported, write

EXAMPLES = """Examples:

\b
  weft doctor
  weft doctor --json | jq '.findings[] | select(.state != "ok")'

\b
Exit codes: 0 what is here works, though something may be missing; 1 something is broken.
"""
VERSION = 1
LONGEST = 60.0
_MARKS = {OK: "+", MISSING: "-", BROKEN: "!"}


def doctor(
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are to be kept.")] = Path("runs"),
    seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="How long JAX may look for devices, in a process of its own.")
    ] = LONGEST,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what is here, what is missing, and how to get it.

    Versions, devices, compilers for machines that need not be here, folders. What is marked `-` is missing and may
    stay so; what is marked `!` is broken.
    """
    with reported():
        findings = [
            *look_at_packages(),
            *look_at_devices(seconds),
            *look_at_compilers(),
            *look_at_folders(runs),
        ]
        is_ok = all(finding.state != BROKEN for finding in findings)
        if as_json:
            plain = [dataclasses.asdict(finding) for finding in findings]
            write(json.dumps({"version": VERSION, "ok": is_ok, "findings": plain}, indent=1))
        else:
            write(findings_text(findings))
        raise typer.Exit(0 if is_ok else 1)


def findings_text(findings: list[Finding]) -> str:
    """All findings, by what they are about, each fix below what it mends."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    about = ""
    for finding in findings:
        if finding.about != about:
            about = finding.about
            lines += ["", about] if lines else [about]
        lines.append(f"  {_MARKS[finding.state]} {finding.name:<{width}}  {finding.found}")
        if finding.fix:
            lines.append(f"    {'':<{width}}  fix: {finding.fix}")
    broken = [finding.name for finding in findings if finding.state == BROKEN]
    ending = f"broken: {', '.join(broken)}" if broken else "nothing is broken"
    return "\n".join([*lines, "", ending])
