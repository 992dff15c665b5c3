"""What the user wrote at an instruction: line, variable, text of the arguments.

Python keeps the position of every instruction, and `ast` the text at that position; no frame is kept and nothing of
JAX is asked. Code without source (typed at a prompt) still has its function and line.
"""

import ast
import functools
import linecache
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from ..record import Entry, Traits

Position = tuple[int, int, int, int]

_LONGEST_ARGUMENT = 32
_LONGEST_TEXT = 52
_UNSAID = ("out", "like", "dtype", "names")  # the printed type says it, or nothing needs to


@dataclass(frozen=True)
class Site:
    """A place in the user's source: `name = text` at `line` of `function` in `file`."""

    file: str
    line: int
    function: str
    names: tuple[str, ...] = ()
    """The variable the result is given to; several where a comprehension fills several."""
    called: str = ""
    """The last word of the function called there, or the operator."""
    text: str = ""
    arguments: tuple[str, ...] = ()
    """The text of each positional operand."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


NOWHERE = Site("", 0, "")


class Sources:
    """What the user wrote at each op of a program."""

    def __init__(self, entries: Iterable[Entry]):
        self._ops: dict[tuple[str, Position], dict[str, Traits]] = {}
        """The ops called at each place."""
        for entry in entries:
            if entry.code is not None and entry.at >= 0 and (position := _position(entry.code, entry.at)) is not None:
                self._ops.setdefault((entry.code.co_filename, position), {})[entry.op] = entry.traits
        self._sites: dict[tuple[CodeType | None, int], Site] = {}
        self._files: dict[str, _File] = {}

    def site(self, code: CodeType | None, at: int) -> Site:
        """What the user wrote where `code` called an op by the instruction `at`."""
        if (code, at) not in self._sites:
            self._sites[code, at] = self._site(code, at) if code is not None else NOWHERE
        return self._sites[code, at]

    def _file(self, filename: str) -> "_File":
        if filename not in self._files:
            self._files[filename] = _parse("".join(linecache.getlines(filename)))
        return self._files[filename]

    def _site(self, code: CodeType, at: int) -> Site:
        file, function = shown_path(code.co_filename), _function(code)
        position = _position(code, at) if at >= 0 else None
        if position is None:
            return Site(file, code.co_firstlineno, function)
        node = self._file(code.co_filename).find(position)
        if node is None:
            return Site(file, position[0], function)
        here = self._ops.get((code.co_filename, position), {})
        writer = _Writer(lambda inner: (code.co_filename, _place(inner)) in self._ops, here)
        called, text, arguments = writer.write(node)
        return Site(file, position[0], function, writer.targets(node), called, _shorten(text, _LONGEST_TEXT), arguments)


def shown_path(filename: str) -> str:
    """A file as it is printed: below the working directory, or folder and name."""
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    if not relative.startswith(".."):
        return relative.replace(os.sep, "/")
    return "/".join(filename.split(os.sep)[-2:])


def _function(code: CodeType) -> str:
    """The name of the function: `layer` for `model.<locals>.layer.<genexpr>`."""
    words = [word for word in code.co_qualname.split(".") if not word.startswith("<")]
    if words and words[-1].startswith("__"):  # a class says more than `__call__`
        return ".".join(words[-2:])
    return words[-1] if words else "lambda" if "<lambda>" in code.co_qualname else "the module"


def _position(code: CodeType, at: int) -> Position | None:
    positions = _positions(code)
    index = at // 2
    line, end_line, column, end_column = positions[index] if index < len(positions) else (None,) * 4
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return line, column, end_line, end_column


@functools.lru_cache(maxsize=10_000)
def _positions(code: CodeType) -> list[Any]:
    return list(code.co_positions())


class _File:
    """A source file: its expressions by position, and what stands around each."""

    def __init__(self, text: str):
        self.by_position: dict[Position, ast.AST] = {}
        self.by_end: dict[tuple[int, int], ast.AST] = {}
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                child.parent = node  # type: ignore[attr-defined]
            if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare | ast.AugAssign | ast.Subscript):
                self.by_position.setdefault(_place(node), node)
                if isinstance(node, ast.Call):
                    self.by_end.setdefault(_place(node)[2:], node)

    def find(self, position: Position) -> ast.AST | None:
        # A call in a chain of several lines may be said to start at its own name.
        return self.by_position.get(position) or self.by_end.get(position[2:])


@functools.lru_cache(maxsize=200)
def _parse(text: str) -> _File:
    return _File(text)


_SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not ",
}  # fmt: skip


def _place(node: Any) -> Position:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _flat(nodes: Sequence[Any]) -> list[Any]:
    """Operands, those in a literal list one by one."""
    operands: list[Any] = []
    for node in nodes:
        operands.extend(node.elts if isinstance(node, ast.List | ast.Tuple) else [node])
    return operands


class _Writer:
    """Writes expressions down; an op inside another, on its own line, is `...`."""

    def __init__(self, is_op: Callable[[Any], bool], ops: Mapping[str, Traits]):
        self.is_op, self.ops = is_op, ops

    def write(self, node: Any) -> tuple[str, str, tuple[str, ...]]:
        """The function or operator, the text of the whole, and that of each operand."""
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp | ast.AugAssign):
            pair = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            return self._write_sign(_SIGNS[type(node.op)], *pair)
        if isinstance(node, ast.Compare):
            return self._write_sign(_SIGNS.get(type(node.ops[0]), "?"), node.left, node.comparators[0])
        if isinstance(node, ast.UnaryOp):
            inner, sign = self.argument(node.operand), _SIGNS[type(node.op)]
            return sign, f"{sign}{inner}", (inner,)
        return "[]", ast.unparse(node), (self.argument(node.value),)

    def _call(self, node: ast.Call) -> tuple[str, str, tuple[str, ...]]:
        called = ast.unparse(node.func).split(".")[-1]
        inside = [self.argument(item) for item in node.args]
        inside += [f"{k.arg}={self.argument(k.value)}" for k in node.keywords if k.arg and k.arg not in _UNSAID]
        traits = self.ops.get(called, Traits())
        if isinstance(node.func, ast.Attribute) and traits.is_rename:  # a method of a tensor
            owner = self.argument(node.func.value)
            return called, f"{owner}.{called}({', '.join(inside)})", (owner,)
        if traits.sign and len(node.args) == 2:
            return self._write_sign(traits.sign, *node.args)
        operands = tuple(self.argument(item) for item in _flat(node.args[traits.arguments_before :]))
        return called, f"{called}({', '.join(inside)})", operands

    def _write_sign(self, sign: str, left: Any, right: Any) -> tuple[str, str, tuple[str, ...]]:
        pair = self._in_brackets(left), self._in_brackets(right)
        return sign, f"{pair[0]} {sign} {pair[1]}", pair

    def _in_brackets(self, node: Any) -> str:
        """An operand of a sign; one that is made of others stands in brackets."""
        text = self.argument(node)
        is_made = isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp | ast.IfExp)
        return f"({text})" if is_made and text != "..." else text

    def argument(self, node: Any) -> str:
        if any(self.is_op(inner) for inner in ast.walk(node) if hasattr(inner, "lineno")):
            return "..."
        return _shorten(ast.unparse(node), _LONGEST_ARGUMENT)

    def targets(self, node: Any) -> tuple[str, ...]:
        """The variables an expression's value is assigned to as it stands, if any."""
        parent = getattr(node, "parent", None)
        if isinstance(node, ast.AugAssign):
            return _names(node.target)
        if isinstance(parent, ast.Assign) and parent.value is node:
            return (ast.unparse(parent.targets[-1]),)
        if isinstance(parent, ast.AnnAssign | ast.NamedExpr) and parent.value is node:
            return _names(parent.target)
        outer = getattr(parent, "parent", None)
        if not isinstance(outer, ast.Assign) or outer.value is not parent or len(outer.targets) != 1:
            return ()
        names = _names(outer.targets[0])
        if isinstance(parent, ast.Tuple | ast.List) and len(names) == len(parent.elts):
            return (names[parent.elts.index(node)],)
        is_filled = isinstance(parent, ast.GeneratorExp | ast.ListComp) and parent.elt is node
        return names if is_filled and len(names) > 1 else ()


def _names(target: Any) -> tuple[str, ...]:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return tuple(ast.unparse(part) for part in parts)


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
