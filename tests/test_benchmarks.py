"""Benchmarks are run by hand; what they import of the package is there all the same."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.name)
def test_what_a_benchmark_imports_of_the_package_is_there(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("weft", "tests"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                is_module = (
                    importlib.util.find_spec(f"{node.module}.{alias.name}") if hasattr(module, "__path__") else None
                )
                assert alias.name in vars(module) or is_module, f"{node.module} has no `{alias.name}`"
