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
    "layout": ["mesh", "record"],
    "namespace": ["errors"],
    "optim": ["namespace"],
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
    "ppermute pshuffle pswapaxes pcast pvary axis_index".split()
)
# Primitives of JAX whose names no op of Weft, no collective of a ledger and no English word has.
PRIMITIVE = re.compile(
    r"dot_general|conv_general_dilated|broadcast_in_dim|convert_element_type|bitcast_convert_type|select_n|add_any|"
    r"pvary|psum\w*|pmax|pmin|ppermute|shard_map|pjit|core_call|closed_call|remat2|custom_[jv]\w+_call|axis_index|"
    r"dynamic_(update_)?slice|random_(bits|wrap|unwrap|fold_in|seed|split)|threefry2x32|optimization_barrier|"
    r"reduce_(sum|max|min|prod|and|or|xor|precision|window\w*)|scatter-\w+|integer_pow|reshard|copy_p"
)
TAKES_APART = frozenset(
    "split rsplit partition rpartition splitlines startswith endswith removeprefix removesuffix".split()
)
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
    "weft.train.checkpoints": "errors of Orbax and TensorStore",
    "weft.train.processes": "errors of `jax.distributed`",
}
PRIVATE_JAX = "jax._src"
# Names of JAX's that stand in no documentation, reached on values and not by import.
UNPROMISED = frozenset(
    "_src _trace _check_vma dce_jaxpr name_stack manual_axis_type vma func_src_info summarize".split()
)
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

    @property
    def room(self) -> str:
        return room_of(self.name)

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, wherever in the file they stand."""
        for_types = {
            id(inner)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            for statement in node.body
            for inner in ast.walk(statement)
        }
        return [
            Import(self._full_name(node, alias), alias.lineno, id(node) in for_types)
            for node in ast.walk(self.tree)
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
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    full = self._full_name(node, alias)
                    if isinstance(node, ast.Import) and alias.asname is None:
                        full = alias.name.split(".")[0]
                    bound[alias.asname or full.split(".")[-1]] = full
        found = [(imported.line, imported.name) for imported in self.imports]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                root, _, rest = ast.unparse(node).partition(".")
                if root in bound:
                    found.append((node.end_lineno or node.lineno, f"{bound[root]}.{rest}"))
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
    found = {(line, name) for line, name in module.mentions if re.match(r"jax\.([\w.]*\.)?_(?!_)", name)}
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(attr=name) if name in UNPROMISED:
                found.add((node.lineno, f"`.{name}`"))
            case ast.Constant(value=str(text)) if text in UNPROMISED or re.match(r"jax\._src|\w+Tracer\Z", text):
                found.add((node.lineno, repr(text)))
            case ast.Compare() | ast.Call(func=ast.Attribute(attr="startswith")) if "f_code.co_name" in ast.unparse(
                node
            ):
                found.add((node.lineno, f"a frame's name: {ast.unparse(node)}"))
    return found


def stray_collectives(module: Module) -> list[str]:
    """Uses of a jax.lax collective outside weft/lower/collectives.py."""
    if module.name == "weft.lower.collectives":
        return []
    return [
        f"{module.name}:{line} uses {name}; only weft/lower/collectives.py may touch the collectives of jax.lax"
        for line, name in module.mentions
        if name.removeprefix("jax.lax.") in COLLECTIVES and name.startswith("jax.lax.")
    ]


def strings(module: Module) -> Iterator[ast.Constant]:
    """The strings of a module that are not docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(statement.value)
        for node in ast.walk(module.tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def primitives_by_name(module: Module) -> list[str]:
    """Names of JAX's primitives read, compared or listed outside weft/primitives.py."""
    if module.name in ("weft.primitives", "weft.elsewhere"):  # the latter: functions of JAX that people look for
        return []
    only = "only weft/primitives.py knows primitives by name"
    complaints = [
        f"{module.name}:{node.lineno} names the primitive `{word}`; {only}"
        for node in strings(module)
        for word in node.value.split()
        if PRIMITIVE.fullmatch(word)
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(".primitive.name"):
            complaints.append(f"{module.name}:{node.lineno} reads {ast.unparse(node)}; {only}")
        elif isinstance(node, ast.Compare):
            compared = [ast.unparse(side) for side in (node.left, *node.comparators)]
            if any(re.search(r"\brow(_of\(.*\))?\.name$", side) for side in compared):
                complaints.append(f"{module.name}:{node.lineno} compares a primitive's name; {only}")
    return complaints


def other_walkers(module: Module) -> list[str]:
    """Ways through a jaxpr outside weft/graph.py."""
    if module.name == "weft.graph":
        return []
    only = "only weft/graph.py goes through jaxprs"
    found = [(line, name) for line, name in module.mentions if name.endswith("jaxprs_in_params")]
    for node in ast.walk(module.tree):
        if (isinstance(node, ast.Attribute) and node.attr == "eqns") or (
            isinstance(node, ast.keyword) and node.arg == "eqns"
        ):
            found.append((node.lineno, "eqns"))
    return [f"{module.name}:{line} uses `{name}`; {only}" for line, name in found]


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
    return [
        f"{module.name}:{node.lineno} reaches `{ast.unparse(node)}`, the inside of a tensor; fix: use `array_of(x)`"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in inside and ast.unparse(node.value) != "self"
    ]


def parsed_texts(module: Module) -> list[str]:
    """Texts that are taken apart in program or plan, where a module does not say whose texts these are.

    In cli and train, which read files and options, only what they print themselves, by `str` or `repr`.
    """
    if module.room not in ("program", "plan", "cli", "train") or module.name in READS_TEXT:
        return []
    fix = "carry a value instead of our own print-out; texts of others: add the module to READS_TEXT with the reason"
    complaint = f"takes a text apart; fix: {fix}"
    if module.room in ("cli", "train"):
        calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
        return [f"{module.name}:{call.lineno} {complaint}" for call in calls if takes_print_out_apart(call)]
    lines = [imported.line for imported in module.imports if imported.name.split(".")[0] == "re"]
    for node in ast.walk(module.tree):
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and called.attr in TAKES_APART:
            is_of_text = isinstance(node, ast.Call) and not isinstance(called.value, ast.Constant)
            if is_of_text or ast.unparse(called.value) == "str":
                lines.append(node.lineno)
    return [f"{module.name}:{line} {complaint}" for line in sorted(lines)]


def takes_print_out_apart(call: ast.Call) -> bool:
    """Whether a call takes apart what `str` or `repr` gives: `str(x).split()`, `re.search(pattern, repr(x))`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[_, *texts]):
            pass
        case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in TAKES_APART | {"find", "index"}:
            texts = [text]
        case _:
            return False
    return any(isinstance(text, ast.Call) and ast.unparse(text.func) in ("str", "repr") for text in texts)


def too_long(module: Module) -> list[str]:
    """Files and functions that have outgrown their room."""
    complaints, lines = [], len(module.source.splitlines())
    if lines > MAX_FILE_LINES:
        complaints.append(f"{module.name} has {lines} lines, more than {MAX_FILE_LINES}")
    for node in ast.walk(module.tree):
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


def long_first_lines(module: Module) -> list[str]:
    """Docstrings whose first line does not fit where editors and `help` show it alone."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    complaints = []
    for node in ast.walk(module.tree):
        first = (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, documented) else ""
        if len(first) > MAX_FIRST_LINE:
            where = f"{module.name}:{getattr(node, 'lineno', 1)}"
            complaints.append(f"{where} first line of a docstring has {len(first)} characters: {first}")
    return complaints


def rooms_by_name(module: Module) -> list[str]:
    """Rooms that code names by a string in another: `"weft.plan.cost"`, `("nn", "models")`; a sentence may."""
    others = {room for room in BELOW if room != module.room and (ROOT / "weft" / room).is_dir()}
    complaints = []
    for constant in strings(module):
        path = re.fullmatch(r"weft[./](\w+)[\w./]*", constant.value)
        if path and path[1] in others:
            complaints.append(f"{module.name}:{constant.lineno} names the room `{path[1]}` by a string")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 1:
            words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
            if len(words) == len(node.elts) and others.issuperset(words):
                complaints.append(f"{module.name}:{node.lineno} lists the rooms {', '.join(words)} by strings")
    return complaints


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
        parsed_texts,
        rooms_by_name,
        too_long,
        undocumented,
        long_first_lines,
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
    ],
)
def test_a_primitive_by_name_is_caught(source, caught):
    assert bool(primitives_by_name(Module("weft.plan.traffic", source))) == caught
    assert primitives_by_name(Module("weft.primitives", source)) == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("for eqn in closed.jaxpr.eqns: pass", True),
        ("jaxpr.replace(eqns=[])", True),
        ("from jax.extend.core import jaxprs_in_params", True),
        ("import jax\njax.extend.core.jaxprs_in_params(eqn.params)", True),
        ("for step in steps(graph(closed)): step.eqn", False),
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
        ("weft.cli.show", "import re\nis_named = re.search(str(value), fact)", False),
        ("weft.cli.show", "'{}'.format(str(row))", False),
        ("weft.train.checkpoints", "str(error).splitlines()[0]", False),
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
    ],
)
def test_a_room_named_by_a_string_is_caught(source, caught):
    assert bool(rooms_by_name(Module("weft.train.log", source))) == caught


def test_a_class_name_of_two_meanings_is_caught():
    first, second = Module("weft.dims", "class Row: ..."), Module("weft.plan.cost", "class _Row: ...")
    assert classes_of_one_name([first, second]) == ["class Row stands in weft.dims:1 and weft.plan.cost:1"]
    assert classes_of_one_name([first]) == []
