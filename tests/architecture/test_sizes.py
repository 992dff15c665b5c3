"""Small rooms: no long file, no long function, and every public module says what it holds."""

import ast
import re

import pytest

from tests.architecture.house import complaints
from tests.architecture.source import Module

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70


def too_long(module: Module) -> list[str]:
    """Files and functions that have outgrown their room."""
    complaints, lines = [], len(module.source.splitlines())
    if lines > MAX_FILE_LINES:
        complaints.append(f"{module.name} has {lines} lines, more than {MAX_FILE_LINES}")
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                where = f"{module.name}:{node.lineno} `{node.name}`"
                complaints.append(f"{where} has {lines} lines, more than {MAX_FUNCTION_LINES}")
    return complaints


def undocumented(module: Module) -> list[str]:
    """A public module that does not open by saying what it holds."""
    is_private = any(re.match(r"_(?!_)", part) for part in module.name.split("."))
    if is_private or ast.get_docstring(module.tree):
        return []
    return [f"{module.name} has no docstring"]


@pytest.mark.parametrize("rule", [too_long, undocumented])
def test_every_module_keeps(rule):
    assert complaints(rule) == []


def test_a_long_file_is_caught():
    assert too_long(Module("weft.dims", "x = 1\n" * MAX_FILE_LINES)) == []
    assert len(too_long(Module("weft.dims", "x = 1\n" * (MAX_FILE_LINES + 1)))) == 1


@pytest.mark.parametrize("head", ["def f():\n", "async def f():\n", "class A:\n  def f(self):\n"])
def test_a_long_function_is_caught(head):
    body = "    x = 1\n"
    assert too_long(Module("weft.dims", head + body * (MAX_FUNCTION_LINES - 1))) == []
    assert len(too_long(Module("weft.dims", head + body * MAX_FUNCTION_LINES))) == 1


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.dims", '"""Named dimensions."""', False),
        ("weft.dims", "x = 1", True),
        ("weft", "", True),
        ("weft.program", "from weft.program.trace import trace", True),
        ("weft.program._walk", "x = 1", False),
    ],
)
def test_a_module_without_docstring_is_caught(name, source, caught):
    assert bool(undocumented(Module(name, source))) == caught
