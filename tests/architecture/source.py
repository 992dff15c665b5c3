"""One file of Python as the rules read it: what it imports, what its names stand for, what it reaches for."""

import ast
import contextlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Import:
    """One imported name, written out in full: `from weft import ops` imports `weft.ops`."""

    name: str
    line: int
    only_for_types: bool


@dataclass(frozen=True)
class Reach:
    """A name reached in a value, as an attribute or by its name: `x.raw`, `getattr(x, "raw")`, `Tensor(raw=array)`."""

    node: ast.AST
    owner: ast.expr | None
    name: str

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)


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
        """All of the tree that says something, which many rules go through."""
        return [node for node in ast.walk(self.tree) if not isinstance(node, ast.expr_context)]

    @property
    def room(self) -> str:
        return room_of(self.name)

    @cached_property
    def strings(self) -> list[ast.Constant]:
        """The strings that are not docstrings."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {
            id(statement.value)
            for node in self.nodes
            if isinstance(node, documented)
            for statement in node.body
            if isinstance(statement, ast.Expr)
        }
        texts = [node for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        return [text for text in texts if id(text) not in docs]

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, wherever in the file they stand, by `import_module` too."""
        for_types = {
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            for statement in node.body
            for inner in ast.walk(statement)
        }
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found += [(self._full_name(node, alias), alias.lineno, id(node) in for_types) for alias in node.names]
            elif name := self.imported_by_call(node):
                found.append((name, node.lineno, False))
        return [Import(*each) for each in found]

    def _full_name(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
        if isinstance(node, ast.Import):
            return alias.name
        parts = self.name.split(".")
        here = parts[: len(parts) + self.is_package - node.level] if node.level else []
        return ".".join([*here, *filter(None, [node.module]), *([] if alias.name == "*" else [alias.name])])

    def imported_by_call(self, call: ast.AST) -> str | None:
        """What is imported by a call: `import_module("..plan.cost", __package__)`."""
        match call:
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__" | "import_library")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *package],
            ):
                here = self.name if self.is_package else self.name.rpartition(".")[0]
                if package and isinstance(package[0], ast.Constant):
                    here = str(package[0].value)
                with contextlib.suppress(ImportError):  # more dots than there are packages
                    return importlib.util.resolve_name(name, here)
        return None

    @cached_property
    def _bound(self) -> dict[str, str]:
        """What names stand for that are imported, or set to a part of what is: `l = jax.lax`."""
        bound = {}
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    full = self._full_name(node, alias)
                    if isinstance(node, ast.Import) and alias.asname is None:
                        full = alias.name.split(".")[0]
                    bound[alias.asname or full.split(".")[-1]] = full
        for node in self.nodes:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    | ast.NamedExpr(target=ast.Name(id=name), value=value)
                ) if full := _dotted(value, bound):
                    bound[name] = full
        return bound

    def full_name(self, node: ast.AST) -> str | None:
        """The dotted name of what was imported, or is reached through that: `jax.lax.psum` for `l.psum`."""
        return _dotted(node, self._bound)

    @cached_property
    def mentions(self) -> list[tuple[int, str]]:
        """Lines and full dotted names of all imported names and of every attribute reached through one."""
        found = [(imported.line, imported.name) for imported in self.imports]
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and (name := self.full_name(node)):
                found.append((node.end_lineno or node.lineno, name))
        return found

    @cached_property
    def reached(self) -> list[Reach]:
        """All names reached in values."""
        found = []
        for node in self.nodes:
            match node:
                case ast.Attribute(value=owner, attr=name):
                    found.append(Reach(node, owner, name))
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr" | "setattr")
                    | ast.Attribute(attr="__setattr__" | "__getattribute__"),
                    args=[owner, ast.Constant(value=str(name)), *_],
                ):
                    found.append(Reach(node, owner, name))
                case ast.Call(func=ast.Name(id="attrgetter") | ast.Attribute(attr="attrgetter"), args=names):
                    texts = [text.value for text in names if isinstance(text, ast.Constant)]
                    found += [Reach(node, None, name) for text in texts for name in str(text).split(".")]
                case ast.MatchClass(cls=owner, kwd_attrs=names):
                    found += [Reach(node, owner, name) for name in names]
        return found

    @cached_property
    def _scopes(self) -> "_Scopes":
        return _Scopes(self.tree)

    def origins(self, node: ast.AST) -> Iterator[ast.AST]:
        """What an expression may stand for: itself, a side of a choice, what its variable was set to in the function.

        Of what a loop goes through, or a tuple is unpacked from, it is the whole; of an argument that, as annotated.
        """
        return self._scopes.origins(node, frozenset())

    def is_within_function(self, node: ast.AST) -> bool:
        return self._scopes.function_of[id(node)] is not None

    def says(self, pattern: str, node: ast.AST) -> bool:
        """Whether an expression, or what its variable was set to, is written so."""
        return any(re.search(pattern, ast.unparse(origin)) for origin in self.origins(node))


class _Scopes:
    """What the variables of each function are set to."""

    def __init__(self, tree: ast.Module):
        self.function_of: dict[int, int | None] = {}
        self._around: dict[int, int | None] = {}
        self._set: dict[tuple[int | None, str], list[ast.AST]] = {}
        waiting: list[tuple[ast.AST, int | None]] = [(tree, None)]
        while waiting:
            node, function = waiting.pop()
            self.function_of[id(node)] = function
            if isinstance(node, FUNCTIONS):
                self._around[id(node)] = function
                function = id(node)
            for name, value in bindings(node):
                self._set.setdefault((function, name), []).append(value)
            waiting += [(child, function) for child in ast.iter_child_nodes(node)]

    def origins(self, node: ast.AST, seen: frozenset[str]) -> Iterator[ast.AST]:
        yield node
        match node:
            case ast.Name(id=name) if name not in seen:
                within = self.function_of.get(id(node))
                while within is not None and (within, name) not in self._set:
                    within = self._around[within]
                parts = self._set.get((within, name), [])
                seen = seen | {name}
            case ast.IfExp(body=one, orelse=other):
                parts = [one, other]
            case ast.BoolOp(values=values):
                parts = list(values)
            case ast.NamedExpr(value=value):
                parts = [value]
            case _:
                return
        for part in parts:
            yield from self.origins(part, seen)


def bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that a node sets, each with what it is set to; an argument with itself."""
    yield from assignments(node)
    match node:
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield from _pairs(target, value)
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield from _pairs(target, value)
        case ast.ExceptHandler(name=str(name)):
            yield name, node
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments) | ast.Lambda(args=arguments):
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield argument.arg, argument


def assignments(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that an assignment sets, each with what it is set to."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _pairs(target, value)
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.AugAssign(target=target, value=value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield from _pairs(target, value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Starred(value=inner), _:
            yield from _pairs(inner, value)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), (ast.Tuple(elts=values) | ast.List(elts=values))) if (
            len(targets) == len(values)
        ):
            for one, its_value in zip(targets, values, strict=True):
                yield from _pairs(one, its_value)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            for one in targets:
                yield from _pairs(one, value)


def _dotted(node: ast.AST, bound: dict[str, str]) -> str | None:
    rest: list[str] = []
    while isinstance(node, ast.Attribute):
        node, rest = node.value, [node.attr, *rest]
    return ".".join([bound[node.id], *rest]) if isinstance(node, ast.Name) and node.id in bound else None


def room_of(name: str) -> str:
    """The room a dotted name stands in: `ops` for `weft.ops.einsum`, `__init__` for `weft` itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def words_listed(node: ast.AST) -> list[object]:
    """The constants in a tuple, list, set or dict of nothing else, the keys of a dict, or the words of a split text."""
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
            words = [item.value for item in items if isinstance(item, ast.Constant)]
            return words if len(words) == len(items) else []
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keys):
            return [key.arg for key in keys]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=cuts):
            return list(text.split(*(cut.value for cut in cuts if isinstance(cut, ast.Constant))))
        case ast.Constant(value=str(text)) if "|" in text:  # a pattern
            return list(text.split("|"))
        case ast.ClassDef(body=body):  # an Enum
            return [value.value for part in body for _, value in assignments(part) if isinstance(value, ast.Constant)]
    return []
