"""Only weft/primitives.py knows JAX's primitives by name."""

import ast
import functools
import re

import pytest

from tests.architecture.house import ROOT, complaints
from tests.architecture.source import Module, words_listed
from tests.architecture.texts import texts_taken_apart

# Primitives of JAX whose names no op of Weft, no collective of a ledger and no English word has.
PRIMITIVE = re.compile(
    r"dot_general|conv_general_dilated|broadcast_in_dim|convert_element_type|bitcast_convert_type|select_n|add_any|"
    r"pvary|psum\w*|pmax|pmin|ppermute|shard_map|pjit|core_call|closed_call|remat2|custom_[jv]\w+_call|axis_index|"
    r"dynamic_(update_)?slice|random_(bits|wrap|unwrap|fold_in|seed|split)|threefry2x32|optimization_barrier|"
    r"reduce_(sum|max|min|prod|and|or|xor|precision|window\w*)|scatter-\w+|integer_pow|reshard|copy_p"
)
# Rooms that go through programs: there an `exp` is a primitive, and not a function of ours.
OF_PROGRAMS = frozenset("record graph lower ops spmd program plan".split())
WORD = re.compile(r"[^\w-]+")
RUNS = ("bind", "multiple_results")
OF_XLA = frozenset({"weft.program.compiled", "weft.plan.sent"})  # XLA's opcodes, many of them of the same name


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
    found = [(n.lineno, f"names `{w}`") for n in module.strings for w in WORD.split(n.value) if PRIMITIVE.fullmatch(w)]
    # `threefry2x32_p` is bound, by the one module of JAX's that gives primitives to be
    of_jax = re.compile(r"jax\.(?!extend\.random\b)[\w.]*\w_p\b|jax\.extend\.core\.primitives\b")
    found += [(line, f"uses {name}") for line, name in module.mentions if of_jax.match(name)]
    found += [(reach.line, f"reads {ast.unparse(reach.node)}") for reach in module.reached if reach.name == "primitive"]
    if module.name == "weft.graph":  # which runs them
        bound = {node.value for node in module.nodes if isinstance(node, ast.Attribute) and node.attr in RUNS}
        found = [(line, what) for line, what in found if what.removeprefix("reads ") not in map(ast.unparse, bound)]
    known = table_of_primitives() if module.room in OF_PROGRAMS and module.name not in OF_XLA else frozenset()
    for node in module.nodes:
        if goes_by_name_of_row(module, node):
            found.append((getattr(node, "lineno", 0), "goes by a primitive's name"))
        if len(known.intersection(words_listed(node))) > 1 or known & compared_with(module, node):
            found.append((getattr(node, "lineno", 0), f"goes by primitives' names: {ast.unparse(node)}"))
    for text in module.strings if known else ():
        if (
            re.fullmatch(r"\w+[_-]\*?", text.value)
            and sum(name.startswith(text.value.strip("*")) for name in known) > 1
        ):
            found.append((text.lineno, f"goes by how primitives' names begin: {text.value!r}"))
    return [f"{module.name}:{line} {what}; only weft/primitives.py knows primitives by name" for line, what in found]


def goes_by_name_of_row(module: Module, node: ast.AST) -> bool:
    """Whether code decides by the name of a row of the table, which may be shown and carried."""
    match node:
        case ast.Call(func=ast.Name(id="row_named") | ast.Attribute(attr="row_named"), args=[ast.Constant()]):
            return True
        case ast.Lambda(body=key) | ast.DictComp(key=key) | ast.SetComp(elt=key):
            keys = [key]
        case _:
            keys = [*looked_up(node), *texts_taken_apart(module, node)]
    return any(is_name_of_row(module, origin) for key in keys for origin in module.origins(key))


def is_name_of_row(module: Module, node: ast.AST) -> bool:
    """Whether this is the name of a row of the table: `step.row.name`, `row_of(eqn).name`, `step.instruction[0]`."""
    match node:
        case ast.Attribute(value=row, attr="name"):
            return module.says(r"\brow$|^row_(of|named)\(.*\)$", row)
        case (
            ast.Attribute(value=step, attr="instruction")
            | ast.Subscript(value=ast.Attribute(value=step, attr="instruction"))
        ):
            return module.says(r"\bstep$", step)
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


def compared_with(module: Module, node: ast.AST) -> set[object]:
    """The words that a node compares or matches something with."""
    if not isinstance(node, ast.Compare | ast.MatchValue):
        return set()
    sides = [origin for side in looked_up(node) for origin in module.origins(side)]
    inner = [item for side in sides if isinstance(side, ast.Tuple | ast.List | ast.Set) for item in side.elts]
    return {side.value for side in (*sides, *inner) if isinstance(side, ast.Constant)}


def test_every_module_keeps_it():
    assert complaints(primitives_by_name) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.plan.traffic", "if eqn.primitive.name in kinds: pass", True),
        ("weft.plan.traffic", "kind = step.eqn.primitive.name", True),
        ("weft.plan.traffic", "if row_of(eqn).name == other: pass", True),
        ("weft.plan.traffic", "if step.row.name in names: pass", True),
        ("weft.plan.traffic", "if kind == 'dot_general': pass", True),
        ("weft.plan.traffic", "_FREE = frozenset('reshape squeeze pvary'.split())", True),
        ("weft.plan.traffic", "WORK = {'psum': 1, 'exp': 8}", True),
        ("weft.plan.traffic", "if name == 'scatter-add': pass", True),
        ("weft.plan.traffic", "if row_of(eqn).kind is Kind.PRODUCT: pass", False),
        ("weft.plan.traffic", "text = f'by {row_of(eqn).name}'", False),
        ("weft.plan.traffic", "if step.collective == 'all_gather': pass", False),
        ("weft.plan.traffic", "def sum(x):\n    'A psum where dims are split.'", False),
        ("weft.plan.traffic", "FREE = {'reshape', 'squeeze', 'transpose', 'exp'}", True),
        ("weft.plan.traffic", "WORK = {'exp': 8, 'tanh': 12}", True),
        ("weft.plan.traffic", "FREE = 'exp tanh'.split()", True),
        ("weft.plan.traffic", "name = step.row.name\nif name in ('exp', 'tanh'): pass", True),
        ("weft.plan.traffic", "name = step.row.name\nif name == 'exp': pass", True),
        ("weft.plan.traffic", "match step.row.name:\n    case 'exp': pass", True),
        ("weft.plan.traffic", "if step.instruction[0] == 'exp': pass", True),
        ("weft.plan.traffic", "primitive = eqn.primitive", True),
        ("weft.plan.traffic", "primitive = getattr(eqn, 'primitive')", True),
        ("weft.plan.traffic", "work = WORK.get(step.row.name, 1)", True),
        ("weft.plan.traffic", "work = WORK[row_named(name).name]", True),
        ("weft.plan.traffic", "import jax\nis_exp = primitive is jax.lax.exp_p", True),
        ("weft.plan.traffic", "from jax.extend.core.primitives import exp_p", True),
        ("weft.plan.traffic", "from jax.extend import random\nrandom.threefry2x32_p.bind(a, b, c, d)", False),
        ("weft.plan.traffic", "figures['name']", False),
        ("weft.plan.traffic", "if kind == 'all_reduce': pass", False),
        ("weft.program.work", "def f(step):\n    name = step.row.name\n    return name == other", True),
        ("weft.program.work", "WORK = dict(exp=8, tanh=12)", True),
        ("weft.program.work", "FREE = 'reshape,squeeze,exp'.split(',')", True),
        ("weft.plan.traffic", "is_free = re.fullmatch('exp|tanh|log1p', name)", True),
        ("weft.plan.traffic", "EXP = 'exp'\nif name == EXP: pass", True),
        ("weft.plan.traffic", "if name in ('exp',): pass", True),
        ("weft.spmd.guard", "name = operator.attrgetter('primitive.name')(eqn)", True),
        ("weft.program.work", "by_name = groupby(steps, key=lambda s: s.row.name)", True),
        ("weft.program.work", "if fnmatch(name, 'reduce_*'): pass", True),
        ("weft.plan.values", "row = row_named('exp')", True),
        ("weft.plan.traffic", "class Op(Enum):\n    EXP = 'exp'\n    TANH = 'tanh'", True),
        ("weft.program.memory", "is_rng = re.compile(r'random_|threefry')\nif is_rng.match(step.row.name): pass", True),
        ("weft.program.memory", "def f(step):\n    return sorted(steps, key=lambda s: s.row.name)", True),
        ("weft.program.memory", "def f(step):\n    return {s.row.name for s in steps}", True),
        ("weft.graph", "name = getattr(eqn.primitive, 'name')", True),
        ("weft.graph", "return _TABLE[eqn.primitive]", True),
    ],
)
def test_a_primitive_by_name_is_caught(name, source, caught):
    assert bool(primitives_by_name(Module(name, source))) == caught
    assert primitives_by_name(Module("weft.primitives", source)) == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("self.eqn.primitive.bind(*arrays)", False),
        ("self.eqn.primitive.multiple_results", False),
        ("primitive = eqn.primitive\nif primitive.name == 'scan': pass", True),
        ("if str(eqn.primitive) == 'while': pass", True),
        ("if row.name == 'cond': pass", True),
    ],
)
def test_the_walker_runs_primitives_and_knows_none_by_name(source, caught):
    assert bool(primitives_by_name(Module("weft.graph", source))) == caught
