"""The table of Mesh-TensorFlow's names names all of them, and what it says to write instead exists.

`mesh_tensorflow.json` lists the names that version 0.1.21 defines: the public functions, classes and constants of each
module of its wheel, tests left out.
"""

import ast
import inspect
import json
import re
from pathlib import Path

import optax
import pytest
import typer

import weft as wf
from weft import data, decode, interop, models, nn
from weft.cli import app
from weft.elsewhere import FUNCTIONS

PAGE = Path(__file__).parent.parent / "docs" / "from" / "mesh-tensorflow.md"
LISTED = {module: names.split() for module, names in json.loads(
    (Path(__file__).parent / "mesh_tensorflow.json").read_text()).items()}  # fmt: skip
ROOMS = {"wf": wf, "nn": nn, "models": models, "data": data, "decode": decode, "interop": interop, "optax": optax}
NAME = re.compile(rf"\b(?:{'|'.join(ROOMS)})(?:\.[A-Za-z_]\w*)+")


def rows():
    """The rows of the table: the heading above it, the old names, and what is written instead."""
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
        elif heading and line.startswith("| `"):
            old, new = re.split(r"(?<!\\)\|", line)[1:3]
            yield heading, re.findall(r"`(\w+)`", old), new.replace("\\|", "|")


ROWS = list(rows())
CODES = sorted({code for _, _, new in ROWS for code in re.findall(r"`([^`]+)`", new)})


@pytest.mark.parametrize("module", LISTED)
def test_every_public_name_stands_in_the_table_of_its_module(module):
    part = module.split(".")[1]
    named = {name for heading, old, _ in ROWS if part in heading for name in old}
    assert set(LISTED[module]) <= named


def test_the_table_names_nothing_else():
    assert {name for _, old, _ in ROWS for name in old} == {name for names in LISTED.values() for name in names}


def lookup(name):
    room, *path = name.split(".")
    value = ROOMS[room]
    for part in path:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("code", [code for code in CODES if NAME.search(code)])
def test_what_is_written_instead_exists_and_takes_these_arguments(code):
    for name in NAME.findall(code):
        lookup(name)
    try:
        tree = ast.parse(code.replace("=,", "=None,").replace("=)", "=None)"))
    except SyntaxError:
        assert code.endswith(")") is False, f"`{code}` is no Python"
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and NAME.fullmatch(ast.unparse(call.func)):
            known = inspect.signature(lookup(ast.unparse(call.func))).parameters
            if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                assert {keyword.arg for keyword in call.keywords} <= set(known), code


def test_a_function_typed_out_of_habit_is_an_error_that_says_what_the_table_says():
    wrong = []
    for heading, old, new in ROWS:
        instead = set(NAME.findall(new))
        if heading.rpartition(".")[2] not in ("ops", "layers", "optimize") or not instead:
            continue
        for name in old:
            if name in wf.__all__ or (name[0].isupper() and not name.endswith("Optimizer")):
                continue
            if not instead & set(NAME.findall(FUNCTIONS.get(name, ""))):
                wrong.append((name, FUNCTIONS.get(name), new))
    assert wrong == []


def test_every_command_it_gives_exists():
    commands = {command for code in CODES for command in re.findall(r"^weft (\w+)", code)}
    assert commands and commands <= set(typer.main.get_command(app).commands)


def test_a_layout_of_mesh_tensorflow_reads_as_it_is():
    assert wf.Layout("batch:rows;hidden:cols") == wf.Layout("batch:rows,hidden:cols")
    assert wf.Layout("d_ff:model ,heads:model batch:all") == wf.Layout("d_ff:model,heads:model,batch:all")
    assert wf.Mesh("rows:4;cols:2") == wf.Mesh("rows=4,cols=2") == wf.Mesh({"rows": 4, "cols": 2})
    assert wf.Layout({"batch": "all_processors"}) == wf.Layout("batch:all_processors")
