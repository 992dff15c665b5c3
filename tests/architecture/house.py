"""The house as its rules read it: the rooms, the modules in them, and what their source says.

Every rule is a function from parsed source to a list of complaints. Each has a file beside this one, which holds the
package to the rule and shows, on a few lines of made-up source, that the rule can fail. Nothing of weft is imported.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Each room and the rooms directly below it. It may import those, and all that stand below them.
BELOW = {
    "compat": [],
    "kernels": ["compat"],
    "fields": [],
    "cells": [],
    "errors": ["compat"],
    "checks": ["errors"],
    "libraries": ["errors"],
    "text": ["errors"],
    "small_files": ["checks"],
    "dims": ["checks"],
    "dtypes": ["checks"],
    "elsewhere": ["errors"],
    "devices": ["errors"],
    "mesh": ["dims", "devices", "kernels", "cells"],
    "schedule": [],
    "record": ["dims", "schedule", "kernels"],
    "primitives": ["compat"],
    "graph": ["primitives", "record", "compat"],
    "hints": ["dims"],
    "layout": ["mesh", "record", "hints"],
    "namespace": ["errors"],
    "optim": ["namespace", "elsewhere"],
    "notebook": ["errors"],
    "operators": ["layout", "dtypes", "elsewhere", "namespace"],
    "tensor": ["operators"],
    "leaves": ["tensor"],
    "lower": ["leaves", "graph"],
    "ops": ["lower", "kernels"],
    "spmd": ["ops", "libraries", "text"],
    "program": ["spmd", "text", "notebook"],
    "plan": ["program", "small_files"],
    "nn": ["spmd"],
    "models": ["nn", "fields"],
    "decode": ["models", "data"],  # texts in, texts out: it needs their tokenizers
    "interop": ["models", "small_files", "libraries"],
    "data": ["spmd", "small_files", "fields", "libraries"],
    "train": ["data", "plan", "decode", "interop", "optim"],
    "cli": ["train"],
    "__main__": ["cli"],
    "__init__": ["cli"],  # the public names: may import every room, and no room imports it
}


@dataclass(frozen=True)
class Import:
    """One imported name, written out in full: `from weft import ops` imports `weft.ops`."""

    name: str
    line: int
    only_for_types: bool


@dataclass(frozen=True)
class Module:
    """One Python file of the package: its dotted name and its source."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree, which many rules go through."""
        return list(ast.walk(self.tree))

    @property
    def room(self) -> str:
        return room_of(self.name)

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, wherever in the file they stand."""
        for_types = {
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            for statement in node.body
            for inner in ast.walk(statement)
        }
        return [
            Import(self._full_name(node, alias), alias.lineno, id(node) in for_types)
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]

    def _full_name(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
        if isinstance(node, ast.Import):
            return alias.name
        parts = self.name.split(".")
        here = parts[: len(parts) + self.is_package - node.level] if node.level else []
        return ".".join([*here, *filter(None, [node.module]), *([] if alias.name == "*" else [alias.name])])

    @cached_property
    def mentions(self) -> list[tuple[int, str]]:
        """Lines and full dotted names of all imported names and of every attribute reached through one."""
        bound = {}
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    full = self._full_name(node, alias)
                    if isinstance(node, ast.Import) and alias.asname is None:
                        full = alias.name.split(".")[0]
                    bound[alias.asname or full.split(".")[-1]] = full
        for node in self.nodes:
            match node:  # `l = jax.lax`
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Name() as value):
                    root, dot, rest = ast.unparse(value).partition(".")
                    if root in bound:
                        bound[name] = bound[root] + dot + rest
        found = [(imported.line, imported.name) for imported in self.imports]
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                start, rest = node.value, [node.attr]
                while isinstance(start, ast.Attribute):
                    start, rest = start.value, [start.attr, *rest]
                if isinstance(start, ast.Name) and start.id in bound:
                    found.append((node.end_lineno or node.lineno, ".".join([bound[start.id], *rest])))
        return found


def room_of(name: str) -> str:
    """The room a dotted name stands in: `ops` for `weft.ops.einsum`, `__init__` for `weft` itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def rooms_below(room: str) -> set[str]:
    """The room itself and every room it may import."""
    return {room}.union(*(rooms_below(below) for below in BELOW[room]))


def strings(module: Module) -> Iterator[ast.Constant]:
    """The strings of a module that are not docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(statement.value)
        for node in module.nodes
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def words_listed(node: ast.AST) -> list[object]:
    """The constants in a tuple, list, set or dict of nothing else, the keys of a dict, or the words of a split text."""
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
            words = [item.value for item in items if isinstance(item, ast.Constant)]
            return words if len(words) == len(items) else []
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=[]):
            return list(text.split())
    return []


@functools.cache
def package_modules() -> list[Module]:
    modules = []
    for path in sorted((ROOT / "weft").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


def complaints(rule: Callable[[Module], list[str]]) -> list[str]:
    """What a rule says of the package."""
    return [complaint for module in package_modules() for complaint in rule(module)]
