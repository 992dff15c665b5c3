"""Texts that code made of values, and what it takes out of them again."""

import ast
import functools
import re
from collections.abc import Iterator

from tests.architecture.house import package_modules
from tests.architecture.source import Module

TAKES_APART = frozenset(
    "split rsplit partition rpartition splitlines startswith endswith removeprefix removesuffix".split()
)
SEARCHES = frozenset("find rfind index rindex count".split())
STRIPS = frozenset("strip lstrip rstrip".split())
_CHANGES = frozenset("strip lstrip rstrip lower upper replace expandtabs ljust rjust".split())
_OF_PATTERNS = frozenset("search match fullmatch findall finditer split sub subn".split())
_READS_BACK = re.compile(r"(json|tomllib|tomli|ast)\.(loads|literal_eval)|eval")
# Whose texts these are no business of ours: errors' words, paths, dtypes, what others name or write into tables.
_OF_OTHERS = re.compile(
    r"(?<![a-z])([Pp]aths?|pathname|files?|filename|folder|url|name|key|value|text|word|annotation|field\.type|dtype|device|"
    r"version)(?![a-z])|\.get\(|\.get$"
)
_OF_ERRORS = re.compile(r"(?i)error|exception|\bexc\b")
# Rooms whose values are shown to people.
_SHOWN = frozenset("dims mesh layout tensor record schedule spmd program plan".split())


@functools.cache
def prints() -> frozenset[str]:
    """The methods that make a text of all of a value, as the rooms have them that are shown: `table`, `text`."""
    names = {"show", "getvalue", "__str__", "__repr__", "__format__"}
    for module in package_modules():
        for node in module.nodes if module.room in _SHOWN else ():
            match node:
                case ast.FunctionDef(name=name, args=args, returns=ast.Name(id="str"), decorator_list=[]):
                    is_method = bool(args.args) and args.args[0].arg == "self"
                    if is_method and len(args.args) - 1 == len(args.defaults) and None not in args.kw_defaults:
                        names.add(name)
    return frozenset(name for name in names if re.match("__|[a-z]", name))


def values_printed(module: Module, node: ast.AST, seen: frozenset[int] = frozenset()) -> Iterator[ast.AST]:
    """The values of which alone a text was made, here or where its variable was set: `x` of `f"{x}".lower()`."""
    for text in module.origins(node):
        if id(text) in seen:
            continue
        seen = seen | {id(text)}
        match text:
            case (
                ast.Call(func=ast.Name(id="str" | "repr" | "format"), args=[value])
                | ast.Call(func=ast.Attribute(value=ast.Constant(value="{}"), attr="format"), args=[value])
                | ast.BinOp(left=ast.Constant(value="%s" | "%r"), op=ast.Mod(), right=value)
                | ast.JoinedStr(values=[ast.FormattedValue(value=value, format_spec=None)])
            ):
                yield value
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[]) if name in prints():
                yield value
            case ast.Attribute(value=value, attr="text" | "type" | "said" | "heading") if is_of_program(module, value):
                yield value
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _CHANGES | TAKES_APART:
                yield from values_printed(module, inner, seen)
            case ast.Subscript(value=inner):
                yield from values_printed(module, inner, seen)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from values_printed(module, left, seen)
                yield from values_printed(module, right, seen)


def is_of_program(module: Module, node: ast.AST) -> bool:
    """Whether this is a line, or the like, of a program or a plan, which has texts for people."""
    is_there = module.room in ("program", "plan")
    return is_there or (module.room in ("cli", "train") and module.says(r"\b(lines?|rows?|ranked|printed)\b", node))


def is_error(module: Module, node: ast.AST) -> bool:
    """Whether this is an exception: one that is caught here, or is called so."""
    is_caught = any(isinstance(origin, ast.ExceptHandler) for origin in module.origins(node))
    return is_caught or any(_OF_ERRORS.search(text) for text in written(module, node))


def is_of_others(module: Module, node: ast.AST) -> bool:
    """Whether the text of a value is one that others wrote: an error, a path, a name."""
    return is_error(module, node) or any(_OF_OTHERS.search(text) for text in written(module, node))


def written(module: Module, node: ast.AST) -> list[str]:
    """An expression as it is written, and where it is an argument, or made by a call, as what."""
    origins = [origin for origin in module.origins(node) if isinstance(origin, ast.arg)]
    made = [origin.func for origin in module.origins(node) if isinstance(origin, ast.Call)]
    return [ast.unparse(part) for part in (node, *origins, *made)]


def texts_taken_apart(module: Module, node: ast.AST) -> list[ast.expr]:
    """The texts out of which an expression takes a part, or reads a value."""
    if not isinstance(node, ast.Call | ast.Compare | ast.Subscript):
        return []
    match node:
        case ast.Call(func=ast.Attribute(attr="highlight_regex" | "highlight_words")):  # Rich's, on a print-out
            return [ast.Call(ast.Name("str"), [ast.Name("program")], [])]
        case ast.Call(func=func, args=[text, *_]) if _READS_BACK.fullmatch(ast.unparse(func)):
            return [text]
        case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=str(text))]) if text:
            return [node.left]
        case ast.Subscript(value=text, slice=ast.Slice(lower=ast.expr())):  # what is cut off at its end is shown
            return [text]
    return texts_searched(module, node) + _split(node)


def _split(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="str"), attr=name)) if name in TAKES_APART:
            return []  # `map(str.split, lines)`
        case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in TAKES_APART:
            return [text]
        case ast.Call(func=ast.Attribute(value=text, attr=name), args=[_, *_]) if name in STRIPS:
            return [text]
        case ast.Call(func=ast.Attribute(value=text, attr="replace"), args=[_, ast.Constant(value="")]):
            return [text]
    return []


def texts_searched(module: Module, node: ast.AST) -> list[ast.expr]:
    """The texts in which an expression looks for something."""
    if not isinstance(node, ast.Call | ast.Compare):
        return []
    match node:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]):
            return [text]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[_, *texts]) if name in _OF_PATTERNS:
            return texts
        case ast.Call(func=ast.Attribute(value=pattern, attr=name), args=texts) if name in _OF_PATTERNS and module.says(
            r"^_?[A-Z_]+$|^re\.compile", pattern
        ):
            return texts
        case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in SEARCHES | {"startswith", "endswith"}:
            return [text]
    return []
