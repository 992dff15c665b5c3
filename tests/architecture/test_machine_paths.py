"""No file of the repository names a folder of the machine it was written on."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.house import ROOT

# Written in pieces, so that this file passes its own test. `<`: a closing tag is not a path.
MACHINE_PATH = re.compile(r"(?<![\w./<-])/(?:(?:work|root|home|Users)\b|tmp/\w)")


def machine_paths(file: str, text: str) -> list[str]:
    """Lines that name a folder of the machine they were written on."""
    return [
        f"{file}:{number} names a machine path: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]


def repository_files() -> list[Path]:
    """The files git tracks or would track; without git, all not in a hidden folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        return [path for path in paths if not any(part.startswith(".") for part in path.parts[:-1])]
    return [Path(file) for file in listing.split("\0") if file]


def repository_texts() -> Iterator[tuple[str, str]]:
    """Every text file of the repository, with its content."""
    for file in repository_files():
        path = ROOT / file
        if path.is_file():  # a deleted file is tracked until the deletion is committed
            with contextlib.suppress(UnicodeDecodeError):  # not text
                yield str(file), path.read_text(encoding="utf-8")


def test_no_machine_path_in_the_repository():
    assert [complaint for file, text in repository_texts() for complaint in machine_paths(file, text)] == []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("see {}work/notes.md", True),
        ("cd {}root", True),
        ("path = '{}home/someone/weft'", True),
        ("open('{}Users/someone/weft')", True),
        ("log = {}tmp/run1", True),
        ("https://example.org{}home/page", False),
        ("docs{}work.md", False),
        ("<{}root>", False),
        ("{}homework, {}workers", False),
    ],
)
def test_a_machine_path_is_caught(line, caught):
    assert bool(machine_paths("notes.md", line.replace("{}", "/"))) == caught
