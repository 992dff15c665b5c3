"""Every program in README.md and docs/ runs, and prints what the text says it prints.

The python blocks of a file are one program, which share a namespace; a text block right after one is what it prints.
README's program has a fresh interpreter, as its reader has, and so has one that profiles; those of other pages share
one, which starts JAX once. Commands in console blocks name targets and files that exist. The programs of docs/errors.md
fail, and tests/errors runs them.
"""

import codeop
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from weft.train import read

ROOT = Path(__file__).parent.parent
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "decisions"]
FILES = [ROOT / "README.md", *PAGES]
OF_ERRORS = ROOT / "docs" / "errors.md"
ALL_TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

RUNNER = """
import contextlib, io, json, linecache, sys, traceback, warnings
import jax
import weft as wf

def run(name, blocks):
    namespace, results, text = {"__name__": "__main__"}, [], []
    for line, source in blocks:
        text += [""] * (line - len(text)) + source.splitlines()
        lines = [part + chr(10) for part in text]
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)  # the blocks alone are the program's source
        printed, failure = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile("\\n" * line + source, name, "exec"), namespace)
                jax.effects_barrier()
            except BaseException:
                failure = traceback.format_exc()
        results.append([printed.getvalue(), failure])
        if failure:
            break
    return results

files, results = json.load(sys.stdin), {}
if len(files) > 1:  # each asks for the processors of its own first mesh; the first mesh of all makes them for all
    wf.Mesh("rows=4, cols=2")
for name, blocks in files.items():
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.WeftWarning)
        results[name] = run(name, blocks)
json.dump(results, sys.stdout)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text and first line, and whether nothing stands between it and the one before."""

    language: str
    text: str
    line: int
    follows: bool


def blocks_of(path):
    text, found, end = path.read_text(), [], None
    for match in FENCE.finditer(text):
        follows = end is not None and not text[end : match.start()].strip()
        found.append(Block(match[1], match[2], text.count("\n", 0, match.start()) + 1, follows))
        end = match.end()
    return found


def programs_of(path):
    return [block for block in blocks_of(path) if block.language == "python"]


def run(paths):
    """What each program of each file printed and how it failed, all in one fresh interpreter."""
    given = {name_of(path): [[block.line, block.text] for block in programs_of(path)] for path in paths}
    command = [sys.executable, "-c", RUNNER]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def name_of(path):
    return str(path.relative_to(ROOT))


def as_read(text):
    return [line.rstrip() for line in text.strip().splitlines()]


WITH_PROGRAMS = [path for path in FILES if path != OF_ERRORS and programs_of(path)]
SLOW = {
    "models.md",
    "own-models.md",
    "tutorial.md",
    "choose-a-layout.md",
    "does-not-fit.md",
}  # what they do tests of models, runs and plans do too
ALONE = {ROOT / "README.md", ROOT / "docs" / "planning.md"}  # the second profiles what its process runs


@pytest.fixture(scope="module")
def results(request):
    """What the programs of the chosen files did."""
    name = test_every_program_runs_and_prints_what_the_text_says.__name__
    chosen = {item.callspec.params["path"] for item in request.session.items if item.originalname == name}
    groups = [chosen & {path} for path in ALONE] + [chosen - ALONE]
    return {name: found for paths in groups if paths for name, found in run(sorted(paths)).items()}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.name in SLOW else ()) for path in WITH_PROGRAMS],
    ids=name_of,
)
def test_every_program_runs_and_prints_what_the_text_says(path, results):
    blocks, programs = blocks_of(path), programs_of(path)
    for block, (printed, failure) in zip(programs, results[name_of(path)], strict=False):
        assert failure is None, f"the block at {path.name}:{block.line} failed\n{failure}"
        after = next((other for other in blocks if other.line > block.line), None)
        shown = after.text if after is not None and after.language == "text" and after.follows else ""
        assert as_read(printed) == as_read(shown), f"the block at {path.name}:{block.line} prints something else"
    assert len(results[name_of(path)]) == len(programs)


@pytest.mark.parametrize("path", ALL_TEXTS, ids=name_of)
def test_every_command_names_a_target_or_a_file_that_exists(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in blocks_of(path):
        if block.language not in ("console", "sh", "bash", "shell"):
            continue
        for line in block.text.splitlines():
            command = line.split("#")[0].split()
            if command[:1] == ["make"]:
                assert command[1] in targets, f"{path.name}:{block.line}: `{line}` is no target of the Makefile"
            files = [word for word in command if word.endswith((".py", ".toml", ".lock"))]
            missing = [word for word in files if not (ROOT / word).is_file()]
            assert not missing, f"{path.name}:{block.line}: `{line}` names {missing}, which are not there"


def test_every_run_file_in_the_text_has_keys_that_there_are(tmp_path):
    weights = tmp_path / "models" / "flan-t5-small"
    shutil.copytree(ROOT / "tests" / "interop" / "fixtures" / "t5", weights)
    blocks = [block for path in FILES for block in blocks_of(path) if block.language == "toml"]
    assert blocks
    for number, block in enumerate(blocks):
        text = block.text.replace("models/flan-t5-small", str(weights))
        is_whole = re.search(r"^(\[model|model = |init_from = )", text, re.MULTILINE)
        file = tmp_path / f"{number}.toml"
        file.write_text(text if is_whole else f'model = "tiny-lm"\n{text}')  # some tables of a file, shown alone
        read(file)


@pytest.mark.parametrize("path", ALL_TEXTS, ids=name_of)
def test_every_link_leads_somewhere(path):
    prose = FENCE.sub("", path.read_text())
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose)]
    missing = [link for link in links if link and "://" not in link and not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_fence_names_its_language_and_is_closed(path):
    fences = re.findall(r"^```(.*)$", path.read_text(), re.MULTILINE)
    assert all(opening and not closing for opening, closing in zip(fences[::2], fences[1::2], strict=True))


def test_the_tutorial_can_be_pasted_into_a_session_of_python():
    # There a statement right after an indented block is a syntax error, and a blank line ends a class.
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert "into one Python session" in text
    compiled = codeop.CommandCompiler()
    for language, block in FENCE.findall(text):
        typed = []
        for line in [*block.splitlines(), ""] if language == "python" else []:
            typed.append(line)
            if compiled("\n".join(typed), "<stdin>", "single") is not None:
                typed = []
        assert not any(typed)
