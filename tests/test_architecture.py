"""The shape of the house: who may import whom, and how large a room may grow.

Every rule is a function from parsed source to a list of complaints, so that the first half of the tests
can hold the package to it and the second half can show, on a few lines of made-up source, that it can fail.
Nothing of weft is imported here.
"""

import ast
import contextlib
import functools
import graphlib
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

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

COLLECTIVES = frozenset(
    "psum pmean pmax pmin all_gather psum_scatter all_to_all ragged_all_to_all "
    "ppermute pshuffle pswapaxes pbroadcast psend precv pcast pvary axis_index".split()
)
# Primitives of JAX whose names no op of Weft, no collective of a ledger and no English word has.
PRIMITIVE = re.compile(
    r"dot_general|conv_general_dilated|broadcast_in_dim|convert_element_type|bitcast_convert_type|select_n|add_any|"
    r"pvary|psum\w*|pmax|pmin|ppermute|shard_map|pjit|core_call|closed_call|remat2|custom_[jv]\w+_call|axis_index|"
    r"dynamic_(update_)?slice|random_(bits|wrap|unwrap|fold_in|seed|split)|threefry2x32|optimization_barrier|"
    r"reduce_(sum|max|min|prod|and|or|xor|precision|window\w*)|scatter-\w+|integer_pow|reshard|copy_p"
)
# Rooms that go through programs: there an `exp` is a primitive, and not a function of ours.
OF_PROGRAMS = frozenset("record graph lower ops spmd program plan".split())
OF_XLA = frozenset({"weft.program.compiled", "weft.plan.sent"})  # XLA's opcodes, many of them of the same name
TAKES_APART = frozenset(
    "split rsplit partition rpartition splitlines startswith endswith removeprefix removesuffix".split()
)
SEARCHES = frozenset("find rfind index rindex strip lstrip rstrip replace".split())
READS_FILES = frozenset("compat errors small_files dtypes primitives kernels interop data".split())  # and the like
# Modules that take texts apart, and whose texts these are: never what we print ourselves.
READS_TEXT = {
    "weft.program.source": "the user's source, and Python's names of files and functions",
    "weft.program.lines": "numbers of layers in names that the user gave",
    "weft.program.listing": "paths of the user's arguments",
    "weft.program.compiled": "scopes and opcodes in programs that XLA compiled",
    "weft.program.profile": "scopes and files in a profile that JAX wrote",
    "weft.program.step_times": "names of devices and streams in a profile that JAX wrote",
    "weft.plan.choices": "rules as a layout has them: `params.d_model`",
    "weft.plan.search": "dims as the user lists them, and messages of the user's errors",
    "weft.plan.compile": "what XLA and JAX print",
    "weft.plan.sent": "XLA's text of a compiled program",
    "weft.plan.targets": "a machine as the user names it",
    "weft.plan.hardware": "a machine as the user names it",
    "weft.plan.hardware_file": "units at the end of keys that the user writes",
    "weft.plan.this_machine": "what the system says of itself, and how far a process of ours is",
    "weft.plan.page": "the page's template",
    "weft.train.stores": "errors of Orbax and TensorStore",
    "weft.train.cloud_store": "errors of TensorStore, and the names of objects",
    "weft.train.processes": "errors of `jax.distributed`",
}
PRIVATE_JAX = "jax._src"
# Names of JAX's that stand in no documentation, reached on values and not by import.
UNPROMISED = frozenset(
    "_src _trace _check_vma dce_jaxpr name_stack source_info manual_axis_type vma func_src_info summarize".split()
)
UNPROMISED_MODULES = re.compile(
    r"jaxlib\b|jax\.interpreters\.(partial_eval|pxla|xla)\b|inspect\.(stack|currentframe)\b"
)
# Classes of tracers, files of JAX's own, and what its transformations write into scopes.
UNPROMISED_TEXT = re.compile(
    r"(\w*Tracer)|.*(jax[./]_src|(?<![\w.])(transpose|jvp|vmap)\(|rematted_computation).*", re.DOTALL
)
# Rooms that meet no errors of libraries but JAX's, whose words no release need keep.
IN_JAX_ALONE = frozenset("tensor lower ops spmd program nn models decode kernels".split())
PARTICIPLE = re.compile(r"([a-z]+(?:ed|ing))(?:_(?:by|on|out|after|to|for|in|at|from|with|as|over))?")
VERBS = frozenset("embed feed need speed bring seed exceed".split())
NOUNS = frozenset("sharding listing scaling ring".split())
# Functions that are called so all the same.
PARTICIPLES = {
    **dict.fromkeys(("renamed", "resized", "padded_to"), "a changed copy, as Python's `sorted`"),
    **dict.fromkeys(("measured", "compiled_for", "prefetched", "printed", "traced"), "called from outside"),
    **dict.fromkeys(("recorded", "bounded"), "what is decorated, or a field, is so"),
    "varying": "the axes a value varies over",
    "summed": "JSON with a sum of its bits",
    "sharing": "a number: on one in how many rows a processor works",
    "drawing": "the noun",
}
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70
MAX_FIRST_LINE = 79

# Written in pieces, so that this file passes its own test. `<`: a closing tag is not a path.
MACHINE_PATH = re.compile(r"(?<![\w./<-])/(?:(?:work|root|home|Users)\b|tmp/\w)")


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


def wrong_directions(module: Module) -> list[str]:
    """Rooms nobody knows, and imports of a room that does not stand below."""
    if module.room not in BELOW:
        return [f"{module.name}: unknown room `{module.room}`; fix: move it into one of {', '.join(BELOW)}"]
    complaints = []
    for imported in module.imports:
        if imported.name.split(".")[0] != "weft":
            continue
        target = room_of(imported.name)
        if target not in BELOW:  # `from weft import Tensor` is a name of weft/__init__.py
            target = "__init__"
        if target not in rooms_below(module.room):
            fact = f"`{target}` does not stand below `{module.room}`"
            complaints.append(f"{module.name}:{imported.line} imports {imported.name}, but {fact}")
    return complaints


def import_cycle(modules: list[Module]) -> list[str]:
    """The modules of one import cycle, first and last the same; empty where there is none."""
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for imported in module.imports:
            # `weft.ops.sum` is a name in `weft.ops` unless there is such a file.
            target = imported.name if imported.name in names else imported.name.rpartition(".")[0]
            if target in names and not imported.only_for_types:
                graph[module.name].add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def private_jax(module: Module) -> list[str]:
    """Uses of what JAX does not promise outside weft/compat.py, or of `jax._src` inside it without its reason."""
    if module.name != "weft.compat":
        return [
            f"{module.name}:{line} uses {what}, which JAX does not promise; only weft/compat.py may"
            for line, what in sorted(couplings_to_jax(module))
        ]
    reasons = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:)", token.string):
            reasons.add(token.start[0])
    return [
        f"{module.name}:{line} uses {name} without a comment on that line saying why"
        for line, name in module.mentions
        if f"{name}.".startswith(f"{PRIVATE_JAX}.") and line not in reasons
    ]


def couplings_to_jax(module: Module) -> set[tuple[int, str]]:
    """Where a module depends on what JAX does not promise: by import, by attribute, by a class's or function's name."""
    is_private = re.compile(rf"jax\.([\w.]*\.)?_(?!_)|{UNPROMISED_MODULES.pattern}")
    found = {(line, name) for line, name in module.mentions if is_private.match(name)}
    found |= {(node.lineno, repr(node.value)) for node in strings(module) if UNPROMISED_TEXT.fullmatch(node.value)}
    # A frame's name may be shown, and nothing else be done with it.
    shown = {id(inner) for text in module.nodes if isinstance(text, ast.JoinedStr) for inner in ast.walk(text)}
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name) if name in UNPROMISED:
                found.add((node.lineno, f"`.{name}`"))
            case ast.Constant(value=str(text)) if text in UNPROMISED:
                found.add((node.lineno, repr(text)))
            case ast.Attribute(attr="co_name") if id(node) not in shown:
                found.add((node.lineno, f"a frame's name: {ast.unparse(node)}"))
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]) if module.room in IN_JAX_ALONE:
                if re.fullmatch(r"(str|repr)\(\w*error\w*\)", ast.unparse(text)):
                    found.add((node.lineno, f"the words of an error: {ast.unparse(node)}"))
    return found


def stray_collectives(module: Module) -> list[str]:
    """Uses of a jax.lax collective outside weft/lower/collectives.py."""
    if module.name == "weft.lower.collectives":
        return []
    stars = [node for node in module.nodes if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    return [f"{module.name}:{node.lineno} imports all of {node.module}" for node in stars if node.level == 0] + [
        f"{module.name}:{line} uses {name}; only weft/lower/collectives.py may touch the collectives of jax.lax"
        for line, name in module.mentions
        if name.removeprefix("jax.lax.") in COLLECTIVES and name.startswith("jax.lax.")
    ]


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


@functools.cache
def table_of_primitives() -> frozenset[str]:
    """The names in weft/primitives.py, less those that a ledger calls its collectives by."""
    names, collectives = set(), set()
    for node in ast.walk(ast.parse((ROOT / "weft" / "primitives.py").read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="_rows"), args=[_, ast.Constant(value=str(words))], keywords=columns):
                names.update(words.split())
                collectives.update(
                    word.value.value
                    for word in columns
                    if word.arg == "collective" and isinstance(word.value, ast.Constant)
                )
    return frozenset(names - collectives)


def primitives_by_name(module: Module) -> list[str]:
    """Names of JAX's primitives read, compared or listed outside weft/primitives.py."""
    if module.name in ("weft.primitives", "weft.elsewhere"):  # the latter: functions of JAX that people look for
        return []
    found = [(n.lineno, f"names `{w}`") for n in strings(module) for w in n.value.split() if PRIMITIVE.fullmatch(w)]
    # `threefry2x32_p` is bound, by the one module of JAX's that gives primitives to be
    of_jax = re.compile(r"jax\.(?!extend\.random\b)[\w.]*\w_p\b|jax\.extend\.core\.primitives\b")
    found += [(line, f"uses {name}") for line, name in module.mentions if of_jax.match(name)]
    known = table_of_primitives() if module.room in OF_PROGRAMS and module.name not in OF_XLA else frozenset()
    for node in module.nodes:
        match node:
            case ast.Attribute(attr="primitive") if module.name != "weft.graph":  # which runs them
                found.append((node.lineno, f"reads {ast.unparse(node)}"))
            case ast.Attribute(value=ast.Attribute(attr="primitive"), attr="name"):
                found.append((node.lineno, f"reads {ast.unparse(node)}"))
            case ast.Constant(value="primitive"):
                found.append((node.lineno, "reads `primitive` by its name"))
        sides = looked_up(node)
        named = {side.value for side in sides if isinstance(side, ast.Constant)}
        if any(is_name_of_row(side) for side in sides):
            found.append((getattr(node, "lineno", 0), "goes by a primitive's name"))
        if len(known.intersection(words_listed(node))) > 1 or (
            isinstance(node, ast.Compare | ast.MatchValue) and known & named
        ):
            found.append((getattr(node, "lineno", 0), f"goes by primitives' names: {ast.unparse(node)}"))
    return [f"{module.name}:{line} {what}; only weft/primitives.py knows primitives by name" for line, what in found]


def is_name_of_row(node: ast.AST) -> bool:
    """Whether this is the name of a row of the table: `step.row.name`, `row_of(eqn).name`."""
    match node:
        case ast.Attribute(value=ast.Name(id=row) | ast.Attribute(attr=row), attr="name"):
            return row == "row"
        case ast.Attribute(value=ast.Call(func=ast.Name(id="row_of" | "row_named")), attr="name"):
            return True
    return False


def looked_up(node: ast.AST) -> list[ast.expr]:
    """The expressions that a node compares, matches, or looks something up by."""
    match node:
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.Match(subject=value) | ast.MatchValue(value=value):
            return [value]
        case ast.Subscript(slice=key) | ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
            return [key]
    return []


def other_walkers(module: Module) -> list[str]:
    """Ways through a jaxpr outside weft/graph.py; compat has what JAX does not promise."""
    if module.name in ("weft.graph", "weft.compat"):
        return []
    only = "only weft/graph.py goes through jaxprs"
    found = [(line, name) for line, name in module.mentions if re.search(r"(jaxprs|_jaxpr|jaxprs_in_params)$", name)]
    found = [(line, name) for line, name in found if not name.endswith(".make_jaxpr")]
    for node in module.nodes:
        match node:
            case ast.Attribute(attr="eqns") | ast.keyword(arg="eqns") | ast.Constant(value="eqns"):
                found.append((node.lineno, "eqns"))
    return [f"{module.name}:{line} uses `{name}`; {only}" for line, name in found]


def other_readers(module: Module) -> list[str]:
    """Reads of an equation's parameters outside weft/graph.py and weft/primitives.py."""
    if module.name in ("weft.graph", "weft.primitives"):
        return []
    found = set()
    for node in module.nodes:
        match node:
            case ast.Attribute(value=owner, attr="params") if re.search(r"\beqn$", ast.unparse(owner)):
                found.add((node.lineno, ast.unparse(owner)))
            case (  # whatever the equation is called there
                ast.Subscript(value=ast.Attribute(value=owner, attr="params"), slice=ast.Constant(value=str()))
                | ast.Call(
                    func=ast.Attribute(value=ast.Attribute(value=owner, attr="params"), attr="get" | "values" | "items")
                )
            ) if not re.search(r"\blayout$", ast.unparse(owner)):
                found.add((node.lineno, ast.unparse(owner)))
    fix = "ask weft/primitives.py, or a step of the graph"
    return [f"{module.name}:{line} reads `{owner}.params`; fix: {fix}" for line, owner in sorted(found)]


def private_names(source: str, class_name: str) -> frozenset[str]:
    """The private slots and methods of a class, as its source lists them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for statement in node.body:
                match statement:
                    case ast.FunctionDef(name=name):
                        names.add(name)
                    case ast.Assign(targets=[ast.Name(id="__slots__")], value=slots):
                        names.update(ast.literal_eval(slots))
    # `_repr_html_` is called by notebooks: no secret
    return frozenset(name for name in names if re.match(r"_(?!_).*(?<!_)\Z", name))


@functools.cache
def private_tensor() -> frozenset[str]:
    return private_names((ROOT / "weft" / "tensor.py").read_text(encoding="utf-8"), "Tensor")


def private_tensors(module: Module) -> list[str]:
    """Reaches into a tensor: for its slice from outside the language, for what is private from outside the lowering."""
    if module.room in ("tensor", "leaves", "lower"):
        return []
    inside = private_tensor() if module.room in ("ops", "spmd") else private_tensor() | {"raw"}
    if module.room in ("nn", "models", "decode"):  # which say nothing about processors
        inside |= {"region"}
    fix = "use `array_of(x)`, or ask weft/lower/rules.py"
    complaints = []
    for node in module.nodes:
        match node:
            case ast.Attribute(value=owner, attr=name) if name in inside and ast.unparse(owner) != "self":
                what = ast.unparse(node)
            case (
                ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=name), *_])
                | ast.Call(
                    func=ast.Attribute(attr="__setattr__" | "__getattribute__"), args=[_, ast.Constant(value=name), *_]
                )
            ) if name in inside:
                what = ast.unparse(node)
            case _:
                continue
        complaints.append(f"{module.name}:{node.lineno} reaches `{what}`, the inside of a tensor; fix: {fix}")
    return complaints


def parsed_texts(module: Module) -> list[str]:
    """Texts that are taken apart in program or plan, where a module does not say whose texts these are.

    Anywhere but where files are read, what `str`, `repr` or an f-string just made of a value.
    """
    fix = "carry a value instead of our own print-out; texts of others: add the module to READS_TEXT with the reason"
    lines = [] if module.room in READS_FILES else print_outs_taken_apart(module)
    if module.room in ("program", "plan") and module.name not in READS_TEXT:
        lines += [imported.line for imported in module.imports if imported.name.split(".")[0] == "re"]
        lines += [getattr(node, "lineno", 0) for node in module.nodes if takes_text_apart(node)]
    return [f"{module.name}:{line} takes a text apart; fix: {fix}" for line in sorted(set(lines))]


def takes_text_apart(node: ast.AST) -> bool:
    """Whether this takes a text apart, or looks for a part of it, whatever text it is."""
    match node:
        case ast.Attribute(value=ast.Name(id="str"), attr=name):  # `map(str.split, lines)`
            return name in TAKES_APART
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in TAKES_APART:
            return not isinstance(owner, ast.Constant)
        case ast.Call(func=ast.Attribute(attr="replace"), args=[ast.Constant(), ast.Constant(value="")]):
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str(part))]) if name in SEARCHES:
            return not part.isidentifier()  # `dims.find("batch")`
        case ast.Compare(left=ast.Constant(value=str()), comparators=[ast.Attribute(attr=name)]):
            return name in ("text", "type") and isinstance(node.ops[0], ast.In | ast.NotIn)
        case ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Slice()):
            return name in ("text", "type")
    return False


def print_outs_taken_apart(module: Module) -> list[int]:
    """Where a module takes apart what it just printed, in an expression or by way of a variable."""
    lines = []
    functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in (*functions, module.tree):
        printed = {
            target.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and is_print_out(node.value) and scope is not module.tree
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[_, *texts]):
                    pass
                case ast.Call(func=ast.Attribute(attr="highlight_regex" | "highlight_words")):  # Rich's, on a print-out
                    texts = [ast.Call(ast.Name("str"), [ast.Name("text")], [])]
                case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in TAKES_APART | SEARCHES - {
                    "replace"
                }:
                    texts = [text]
                case ast.Compare(left=ast.Constant(), ops=[ast.In() | ast.NotIn()], comparators=[text]):
                    texts = [text]
                case _:
                    continue
            if any(is_print_out(text) or (isinstance(text, ast.Name) and text.id in printed) for text in texts):
                lines.append(node.lineno)
    return lines


def is_print_out(node: ast.AST) -> bool:
    """Whether this makes a text of one value, which is no error: `str(x)`, `f"{x}"`, `x.__str__()`."""
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr" | "format"), args=[value, *_]):
            return "error" not in ast.unparse(value)
        case ast.Call(func=ast.Attribute(attr="__str__" | "__repr__")):
            return True
        case ast.JoinedStr(values=[ast.FormattedValue(value=value)]):
            return "error" not in ast.unparse(value)
    return False


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


def participles(module: Module) -> list[str]:
    """Functions called by what was done, or is being done, and not by what they do: `joined`, `checking`.

    A property says what something is; a context manager what holds inside it; a function within another is no name.
    """
    complaints = []
    inner = {
        id(node)
        for outer in module.nodes
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(outer)
        if node is not outer
    }
    for node in module.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or id(node) in inner:
            continue
        around = " ".join(ast.unparse(part) for part in (*node.decorator_list, node.returns) if part is not None)
        word = PARTICIPLE.fullmatch(node.name.strip("_"))
        if word and word[1] not in VERBS | NOUNS and not re.search(r"property|contextmanager|ContextManager", around):
            complaints.append(f"{module.name}:{node.lineno} `{node.name}` is no verb; fix: say what it does")
    return [complaint for complaint in complaints if complaint.split("`")[1] not in PARTICIPLES]


def wrong_imports_told(module: Module) -> list[str]:
    """A docstring that says which rooms a module imports `alone`, and it imports others."""
    told = re.search(
        r"\bimports (?:([\w\s,]+) alone|nothing of)\b", ast.get_docstring(module.tree) or "", re.IGNORECASE
    )
    if told is None:
        return []
    rooms = set(re.split(r",\s+|\s+and\s+", told[1])) if told[1] else set()
    real = {room_of(imported.name) for imported in module.imports if imported.name.startswith("weft.")} - {module.room}
    return [f"{module.name}: `{told[0]}`, and it imports {', '.join(sorted(real)) or 'none'}"] if rooms != real else []


def long_first_lines(module: Module) -> list[str]:
    """Docstrings whose first line does not fit where editors and `help` show it alone."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    complaints = []
    for node in module.nodes:
        first = (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, documented) else ""
        if len(first) > MAX_FIRST_LINE:
            where = f"{module.name}:{getattr(node, 'lineno', 1)}"
            complaints.append(f"{where} first line of a docstring has {len(first)} characters: {first}")
    return complaints


def rooms_by_name(module: Module) -> list[str]:
    """Rooms that code names by a string in another: `"weft.plan.cost"`, `("nn", "models")`; a sentence may."""
    if module.room == "__init__":  # what is public
        return []
    others = {room for room in BELOW if room != module.room and (ROOT / "weft" / room).is_dir()}
    files = [f"/{path.relative_to(ROOT)}" for room in others for path in (ROOT / "weft" / room).rglob("[!_]*.py")]
    found = []
    for constant in strings(module):
        path = re.fullmatch(r"weft[./](\w+)[\w./]*", constant.value)
        if path and path[1] in others:
            found.append((constant, f"names the room `{path[1]}` by a string"))
        elif re.fullmatch(r"[\w/]+\.py", constant.value) and any(file.endswith(f"/{constant.value}") for file in files):
            found.append((constant, f"names the file `{constant.value}` by a string"))
    for node in module.nodes:
        words = [str(word) for word in words_listed(node)]
        of_others = [word for word in words if word.split(".")[0] in others and is_module(word)]
        if len(of_others) > 1 and BELOW.keys() >= set(words) - set(of_others):
            found.append((node, f"lists the rooms {', '.join(words)} by strings"))
        match node:
            case (
                ast.Compare(left=one, comparators=[ast.Constant(value=room)])
                | ast.BinOp(left=one, op=ast.Div(), right=ast.Constant(value=room))
            ) if room in others and re.search(r"__(name|module|file)__|PACKAGE|\b_?HERE\b|weft", ast.unparse(one)):
                found.append((node, f"names the room `{room}` by a string"))
    return [f"{module.name}:{getattr(node, 'lineno', 0)} {what}" for node, what in found]


def is_module(name: str) -> bool:
    """Whether there is a file or folder of the package under this dotted name."""
    path = ROOT.joinpath("weft", *name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def words_listed(node: ast.AST) -> list[object]:
    """The constants in a tuple, list, set or dict of nothing else, the keys of a dict, or the words of a split text."""
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
            words = [item.value for item in items if isinstance(item, ast.Constant)]
            return words if len(words) == len(items) else []
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=[]):
            return list(text.split())
    return []


def classes_of_one_name(modules: list[Module]) -> list[str]:
    """Class names with two meanings; a leading underscore makes no difference to a reader."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.strip("_"), []).append(f"{module.name}:{node.lineno}")
    return [f"class {name} stands in {' and '.join(where)}" for name, where in places.items() if len(where) > 1]


def machine_paths(file: str, text: str) -> list[str]:
    """Lines that name a folder of the machine they were written on."""
    return [
        f"{file}:{number} names a machine path: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]


@functools.cache
def package_modules() -> list[Module]:
    modules = []
    for path in sorted((ROOT / "weft").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


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


# The package keeps the rules.


@pytest.mark.parametrize(
    "rule",
    [
        wrong_directions,
        private_jax,
        private_tensors,
        stray_collectives,
        primitives_by_name,
        other_walkers,
        other_readers,
        parsed_texts,
        rooms_by_name,
        too_long,
        undocumented,
        long_first_lines,
        wrong_imports_told,
        participles,
    ],
)
def test_every_module_keeps(rule):
    assert [complaint for module in package_modules() for complaint in rule(module)] == []


def test_no_import_cycle():
    assert import_cycle(package_modules()) == []


def test_a_class_name_has_one_meaning():
    assert classes_of_one_name(package_modules()) == []


def test_no_machine_path_in_the_repository():
    assert [complaint for file, text in repository_texts() for complaint in machine_paths(file, text)] == []


# The rules can fail.


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weft.dims", "from weft.errors import DimError"),
        ("weft.spmd", "from weft import ops"),
        ("weft.ops.einsum", "from ..lower.collectives import all_reduce"),
        ("weft.plan.cost", "from weft.program.ledger import Ledger"),
        ("weft.data.text", "from weft.tensor import Tensor"),
        ("weft.train.loop", "from weft import data, decode, interop, models, plan"),
        ("weft.cli", "from weft.train import loop"),
        ("weft.layout", "import numpy, jax.sharding"),
    ],
)
def test_an_import_from_below_is_fine(name, source):
    assert wrong_directions(Module(name, source)) == []


def test_the_front_door_may_import_every_room():
    source = "\n".join(f"from weft import {room}" for room in BELOW if not room.startswith("__"))
    assert wrong_directions(Module("weft", source, is_package=True)) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weft.compat", "from weft.errors import WeftError"),
        ("weft.errors", "from weft.dims import Dim"),
        ("weft.tensor", "from weft import ops"),
        ("weft.tensor", "def add(x, y):\n    from weft.ops.elementwise import add"),
        ("weft.layout", "if TYPE_CHECKING:\n    from weft.tensor import Tensor"),
        ("weft.mesh", "from .layout import Layout"),
        ("weft.ops.einsum", "from ..spmd import spmd"),
        ("weft.ops.einsum", "import weft.spmd as border"),
        ("weft.nn.linear", "from weft.program import trace"),
        ("weft.models.mlp", "import weft.plan.cost"),
        ("weft.decode.cache", "from weft.program.trace import trace"),
        ("weft.interop.t5", "from weft import plan"),
        ("weft.decode.cache", "from weft.interop import t5"),
        ("weft.program.trace", "from weft.nn import linear"),
        ("weft.data.text", "from weft.nn import loss"),
        ("weft.train.loop", "from weft.cli import app"),
        ("weft.nn.linear", "import weft as wf"),
        ("weft.ops.einsum", "from weft import Tensor"),
        ("weft.ops.einsum", "from weft import *"),
        ("weft.ops.einsum", "from weft.utils import helper"),
    ],
)
def test_an_import_from_above_is_caught(name, source):
    assert len(wrong_directions(Module(name, source))) == 1


def test_an_unknown_room_is_caught():
    assert "unknown room `utils`" in wrong_directions(Module("weft.utils", ""))[0]


@pytest.mark.parametrize(
    ("reduce_imports", "cycle"),
    [
        ("import jax", False),
        ("from weft.ops.einsum import einsum", True),
        ("from weft.ops import einsum", True),
        ("from . import einsum", True),
        ("from weft.ops import softmax", True),  # a name of weft/ops/__init__.py, which imports this file
        ("def late():\n    from .einsum import einsum", True),
        ("if TYPE_CHECKING:\n    from .einsum import einsum", False),
        ("if typing.TYPE_CHECKING:\n    pass\nelse:\n    from .einsum import einsum", True),
    ],
)
def test_an_import_cycle_is_caught(reduce_imports, cycle):
    modules = [
        Module("weft.ops", "from weft.ops import einsum, reduce", is_package=True),
        Module("weft.ops.einsum", "from weft.ops.reduce import sum"),
        Module("weft.ops.reduce", reduce_imports),
    ]
    assert bool(import_cycle(modules)) == cycle


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.compat", "from jax._src.core import Trace  # no public name for it", False),
        (
            "weft.compat",
            "from jax._src.core import (\n    Trace,  # no public name for it\n    Tracer,\n)",
            True,
        ),
        ("weft.compat", "from jax._src.core import Trace", True),
        ("weft.compat", "from jax._src.core import Trace  # noqa: F401", True),
        ("weft.compat", "import jax\ntrace = jax._src.core.Trace", True),
        ("weft.tensor", "from jax._src.core import Trace  # no public name for it", True),
        ("weft.tensor", "from jax import _src", True),
        ("weft.tensor", "import jax._src.core as core", True),
        ("weft.tensor", "import jax.extend.core\nfrom jax import numpy as jnp", False),
        ("weft.tensor", "import importlib\nimportlib.import_module('jax._src.core')", True),
        ("weft.tensor", "import jax\ncore = getattr(jax, '_src').core", True),
        ("weft.tensor", "import jax\nfrom jax import numpy as jnp\nx = jnp._private(y)", True),
        ("weft.tensor", "import sys\nif sys._getframe(1).f_code.co_name == 'grad':\n    pass", True),
        ("weft.tensor", "import sys\nx = sys._getframe(1).f_code.co_name.startswith('_operator_')", True),
        ("weft.errors", "text = f'in {frame.f_code.co_name}'", False),
        ("weft.ops.custom", "x = type(array).__name__ in ('JVPTracer',)", True),
        ("weft.ops.custom", "x = isinstance(array, jax.core.Tracer)", False),
        ("weft.lower.collectives", "x = array._trace", True),
        ("weft.lower.collectives", "x = getattr(array, '_trace', None)", True),
        ("weft.spmd.border", "from jax.interpreters import partial_eval\nx = partial_eval.dce_jaxpr(y)", True),
        ("weft.program.graph", "x = str(eqn.source_info.name_stack)", True),
        ("weft.ops.control", "x = aval.manual_axis_type.varying", True),
        ("weft.compat", "x = aval.manual_axis_type.varying", False),
        ("weft.ops.custom", "name = sys._getframe(1).f_code.co_name\nif name == 'grad': pass", True),
        ("weft.ops.custom", "code = frame.f_code\nif code.co_name in NAMES: pass", True),
        ("weft.ops.custom", "import inspect\nif inspect.stack()[1].function == '_check_scalar': pass", True),
        ("weft.ops.custom", "if frame.f_code.co_filename.endswith('jax/_src/api.py'): pass", True),
        ("weft.ops.custom", "x = 'Tracer' in type(array).__name__", True),
        ("weft.ops.custom", "from jax.interpreters import partial_eval as pe\npe.trace_to_jaxpr_dynamic(f)", True),
        ("weft.ops.custom", "from jax.interpreters import batching, mlir", False),
        ("weft.ops.custom", "from jaxlib import xla_client", True),
        ("weft.spmd.step", "line = eqn.source_info.traceback", True),
        ("weft.program.ledger", "is_backward = 'transpose(' in scopes", True),
        ("weft.ops.conv", "fix = 'map over it: `wf.vmap(fn)`'", False),
        ("weft.spmd.running", "if 'deleted or donated' not in str(error): raise", True),
        ("weft.data.files", "if 'CRC' in str(error): raise", False),
    ],
)
def test_private_jax_is_caught(name, source, caught):
    assert bool(private_jax(Module(name, source))) == caught


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.ops.reduce", "y = x._memo['moved']", True),
        ("weft.spmd.step", "y = tree[0]._dims", True),
        ("weft.nn.linear", "def f(x):\n    x._memo.clear()", True),
        ("weft.lower.meet", "y = x._memo['moved']", False),
        ("weft.tensor", "y = x._dims", False),
        ("weft.ops.reduce", "y = x.raw, x.region, x.kind.store", False),
        ("weft.spmd.step", "y = x.raw", False),
        ("weft.nn.lora", "y = x.weight.raw", True),
        ("weft.plan.values", "class A:\n    def f(self):\n        return self._dims()", False),  # its own
        ("weft.nn.linear", "y = getattr(x, 'raw')", True),
        ("weft.train.step", "object.__setattr__(x, '_dims', dims)", True),
        ("weft.models.stack", "ways = x.region.ways(axes)", True),
        ("weft.ops.reduce", "ways = x.region.ways(axes)", False),
    ],
)
def test_a_reach_into_a_tensor_is_caught(name, source, caught):
    assert bool(private_tensors(Module(name, source))) == caught


def test_the_inside_of_a_tensor_is_read_from_its_class():
    source = "class A:\n  __slots__ = ('_b', 'c')\n  def _d(self): ...\n  def _shown_(self): ...\nclass E:\n  _f = 1\n"
    assert private_names(source, "A") == {"_b", "_d"}
    assert private_names(source, "G") == set()
    assert {"_dims", "_memo", "_fill"} <= private_tensor()


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_every_collective_is_caught(name):
    source = f"import jax\ny = jax.lax.{name}(x, 'rows')"
    assert stray_collectives(Module("weft.lower.collectives", source)) == []
    assert len(stray_collectives(Module("weft.ops.reduce", source))) == 1


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("from jax import lax\nlax.psum(x, 'rows').sum()", True),
        ("from jax import lax as l\nsummed = l.psum", True),
        ("import jax.lax as l\nl.psum(x, 'rows')", True),
        ("from jax.lax import psum as add_up", True),
        ("from jax import lax\nlax.stop_gradient(x)", False),
        ("from weft.ops import collectives\ncollectives.psum(x)", False),
        ("names = {'psum': 'all_reduce'}", False),
        ("import jax\nl = jax.lax\nl.psum(x, 'rows')", True),
        ("from jax.lax import *", True),
        ("from jax import lax\nlax.pbroadcast(x, 'rows', 0)", True),
    ],
)
def test_a_collective_is_caught_under_any_name(source, caught):
    assert bool(stray_collectives(Module("weft.spmd", source))) == caught


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("if eqn.primitive.name in kinds: pass", True),
        ("kind = step.eqn.primitive.name", True),
        ("if row_of(eqn).name == other: pass", True),
        ("if step.row.name in names: pass", True),
        ("if kind == 'dot_general': pass", True),
        ("_FREE = frozenset('reshape squeeze pvary'.split())", True),
        ("WORK = {'psum': 1, 'exp': 8}", True),
        ("if name == 'scatter-add': pass", True),
        ("if row_of(eqn).kind is Kind.PRODUCT: pass", False),
        ("text = f'by {row_of(eqn).name}'", False),
        ("if step.collective == 'all_gather': pass", False),
        ("def sum(x):\n    'A psum where dims are split.'", False),
        ("FREE = {'reshape', 'squeeze', 'transpose', 'exp'}", True),
        ("WORK = {'exp': 8, 'tanh': 12}", True),
        ("FREE = 'exp tanh'.split()", True),
        ("name = step.row.name\nif name in ('exp', 'tanh'): pass", True),
        ("name = step.row.name\nif name == 'exp': pass", True),
        ("match step.row.name:\n    case 'exp': pass", True),
        ("if step.instruction[0] == 'exp': pass", True),
        ("primitive = eqn.primitive", True),
        ("primitive = getattr(eqn, 'primitive')", True),
        ("work = WORK.get(step.row.name, 1)", True),
        ("work = WORK[row_named(name).name]", True),
        ("import jax\nis_exp = primitive is jax.lax.exp_p", True),
        ("from jax.extend.core.primitives import exp_p", True),
        ("from jax.extend import random\nrandom.threefry2x32_p.bind(a, b, c, d)", False),
        ("figures['name']", False),
        ("if kind == 'all_reduce': pass", False),
    ],
)
def test_a_primitive_by_name_is_caught(source, caught):
    assert bool(primitives_by_name(Module("weft.plan.traffic", source))) == caught
    assert primitives_by_name(Module("weft.primitives", source)) == []


def test_a_read_of_an_equations_parameters_is_caught():
    of_eqn = ("axes = eqn.params['axes']", "axes = node.step.eqn.params.get('axes')", "f(**visit.eqn.params)")
    for source in (*of_eqn, "call = step.eqn\ninner = call.params['jaxpr']", "for x in equation.params.values(): pass"):
        assert len(other_readers(Module("weft.plan.traffic", source))) == 1
        assert other_readers(Module("weft.primitives", source)) == []
    assert other_readers(Module("weft.plan.traffic", "rules = layout.params['axes']")) == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("for eqn in closed.jaxpr.eqns: pass", True),
        ("jaxpr.replace(eqns=[])", True),
        ("from jax.extend.core import jaxprs_in_params", True),
        ("import jax\njax.extend.core.jaxprs_in_params(eqn.params)", True),
        ("for step in steps(graph(closed)): step.eqn", False),
        ("inner = closed.jaxpr\nfor eqn in inner.eqns: pass", True),
        ("for eqn in getattr(jaxpr, 'eqns'): pass", True),
        ("from jax.core import subjaxprs", True),
        ("import jax\njax.core.eval_jaxpr(jaxpr, consts, x)", True),
        ("import jax\nclosed = jax.make_jaxpr(fn)(x)", False),
    ],
)
def test_another_walker_through_jaxprs_is_caught(source, caught):
    assert bool(other_walkers(Module("weft.program.finite", source))) == caught
    assert other_walkers(Module("weft.graph", source)) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.plan.page.tensors", "import re", True),
        ("weft.program.diff", "from re import compile", True),
        ("weft.program.memory_names", "dims = called.type.partition('[')[2]", True),
        ("weft.plan.page.sent", "shown = [line for line in lines if not line.startswith('over ')]", True),
        ("weft.plan.page.listing", "first, *rest = map(str.split, lines)", True),
        ("weft.plan.cost", "KINDS = frozenset('product sent moved'.split())", False),
        ("weft.plan.sent", "import re\naxes = text.split(',')", False),
        ("weft.train.config", "key.split('.')", False),
        ("weft.train.config", "first = str(program).splitlines()[0]", True),
        ("weft.train.config", "import re\nsteps = re.search('[0-9]+', repr(line))", True),
        ("weft.cli.show", "at = str(row).find('>>')", True),
        ("weft.cli.terminal", "text.highlight_regex(_SOURCE, 'dim')", True),
        ("weft.cli.terminal", "text.stylize('dim', *line.place)", False),
        ("weft.cli.show", "import re\nis_named = re.search(str(value), fact)", False),
        ("weft.cli.show", "'{}'.format(str(row))", False),
        ("weft.train.stores", "str(error).splitlines()[0]", False),
        ("weft.program.diff", "at = text.find('[')", True),
        ("weft.program.diff", "at = dims.find('batch')", False),
        ("weft.program.diff", "sent = text.replace('>> ', '')", True),
        ("weft.program.diff", "sent = text.lstrip('> ')", True),
        ("weft.program.diff", "line = text.rstrip()", False),
        ("weft.program.memory", "has_memory = 'memory_length' in array.type", True),
        ("weft.program.memory", "number = int(line.text[3:8])", True),
        ("weft.program.lines", "first, second = str(program).split('x')", True),  # though it reads names of layers
        ("weft.plan.page", "rows = f'{ledger}'.splitlines()", True),
        ("weft.cli.show", "def f():\n    text = str(program)\n    return text.splitlines()", True),
        ("weft.cli.show", "is_sent = 'over rows' in str(program)", True),
        ("weft.spmd.step", "rules = str(layout).split(',')", True),
        ("weft.ops.reduce", "name = repr(x).partition('[')[2]", True),
        ("weft.data.remote", "scheme = str(path).partition('://')[0]", False),
    ],
)
def test_a_parsed_print_out_is_caught(name, source, caught):
    assert bool(parsed_texts(Module(name, source))) == caught


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


@pytest.mark.parametrize("length", [MAX_FIRST_LINE, MAX_FIRST_LINE + 1])
def test_a_long_first_line_is_caught(length):
    sources = [f'"""{"x" * length}"""', f'def f():\n    """{"x" * length}\n\n    More.\n    """']
    for source in sources:
        assert bool(long_first_lines(Module("weft.dims", source))) == (length > MAX_FIRST_LINE)


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ('SHOWN = "weft/nn/linear.py"', True),
        ('importlib.import_module("weft.plan.cost")', True),
        ('own = "weft.train.log"', False),
        ('"""What weft.plan reads."""', False),
        ('said = "weft plan"', False),
        ('fix = "make it by weft.models.preset"', False),
        ('PROGRAMS = ("nn", "models")', True),
        ('parts = ["nn", "dropout"]', False),
        ('SHOWN = {"nn.lora": "nn.lora.", "nn": "nn."}', True),
        ('PROGRAMS = "nn models".split()', True),
        ('SHOWN = {"data.path": "paths", "data.held_out": "part"}', False),  # keys of a run's file
        ('SHOWN = {"nn": "layers", "other": "else"}', False),
        ('if file.endswith("nn/attention.py"): pass', True),
        ('if file.endswith("attention.py"): pass', True),
        ('files = folder.glob("__init__.py")', False),
        ('ROOMS = ["ops", "spmd", "tensor", "compat"]', True),
        ('SHOWN = {"mesh": 1, "layout": 2, "plan": 3}', False),
        ('if module.__name__.split(".")[1] == "ops": pass', True),
        ('layers = Path(__file__).parent / "nn"', True),
        ('tokens = folder / "data"', False),
    ],
)
def test_a_room_named_by_a_string_is_caught(source, caught):
    assert bool(rooms_by_name(Module("weft.train.log", source))) == caught


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("def joined(x): ...", True),
        ("class A:\n  def _checked(self): ...", True),
        ("def stored_by(x): ...", True),
        ("def join(x): ...", False),
        ("def embed(x): ...", False),
        ("def stored_slice(x): ...", False),
        ("@property\ndef closed(self): ...", False),
        ("@contextlib.contextmanager\ndef tracing(): ...", False),
        ("def outer():\n  def decorated(): ...", False),
        ("class Dim:\n  def renamed(self): ...", False),
    ],
)
def test_a_function_that_is_no_verb_is_caught(source, caught):
    assert bool(participles(Module("weft.dims", source))) == caught


def test_each_participle_that_may_be_is_one():
    defined = {node.name for module in package_modules() for node in module.nodes if isinstance(node, ast.FunctionDef)}
    assert PARTICIPLES.keys() <= defined


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("'''Text.\n\nImports errors alone.'''\nfrom .errors import WeftError", False),
        ("'''Text.\n\nImports errors and\nchecks alone.'''\nfrom .errors import WeftError", True),
        ("'''Text.\n\nImports errors alone.'''\nfrom .errors import WeftError\nfrom .checks import is_whole", True),
        ("'''Text.\n\nImports nothing of the house.'''\nfrom .errors import WeftError", True),
        ("'''Text.\n\nImports nothing of the house.'''\nimport os", False),
        ("'''Text.\n\nImports the language.'''\nfrom .errors import WeftError", False),
    ],
)
def test_wrongly_told_imports_are_caught(source, caught):
    assert bool(wrong_imports_told(Module("weft.dims", source))) == caught


def test_a_class_name_of_two_meanings_is_caught():
    first, second = Module("weft.dims", "class Row: ..."), Module("weft.plan.cost", "class _Row: ...")
    assert classes_of_one_name([first, second]) == ["class Row stands in weft.dims:1 and weft.plan.cost:1"]
    assert classes_of_one_name([first]) == []
