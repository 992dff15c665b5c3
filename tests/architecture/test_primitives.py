"""Only weft/primitives.py knows JAX's primitives by name."""

import ast
import functools
import re

import pytest

from tests.architecture.house import ROOT, Module, complaints, strings, words_listed

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


def test_every_module_keeps_it():
    assert complaints(primitives_by_name) == []


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
