"""Only weft/graph.py goes through jaxprs; it and weft/primitives.py alone read an equation's parameters."""

import ast
import re

import pytest

from tests.architecture.house import complaints
from tests.architecture.source import Module

# Rooms that meet equations, and the values of ours there that have `params` too.
OF_EQUATIONS = frozenset("kernels graph lower ops spmd program plan".split())
NOT_OF_EQUATIONS = r"\b(self|state|layout|\w*State|Layout)\b[^.]*$"


def other_walkers(module: Module) -> list[str]:
    """Ways through a jaxpr outside weft/graph.py; compat has what JAX does not promise."""
    if module.name in ("weft.graph", "weft.compat"):
        return []
    only = "only weft/graph.py goes through jaxprs"
    found = [(line, name) for line, name in module.mentions if re.search(r"(jaxprs|_jaxpr|jaxprs_in_params)$", name)]
    found = [(line, name) for line, name in found if not name.endswith(".make_jaxpr")]
    found += [(reach.line, "eqns") for reach in module.reached if reach.name == "eqns"]
    for node in module.nodes:
        match node:
            case ast.keyword(arg="eqns") | ast.Constant(value="eqns"):
                found.append((node.lineno, "eqns"))
    return [f"{module.name}:{line} uses `{name}`; {only}" for line, name in found]


def other_readers(module: Module) -> list[str]:
    """Reads of an equation's parameters outside weft/graph.py and weft/primitives.py, whatever it is called there."""
    if module.name in ("weft.graph", "weft.primitives"):
        return []
    found = set()
    for reach in module.reached:
        owner = reach.owner if reach.owner is not None else reach.node
        if reach.name == "params" and (
            module.says(r"(?i)eqn$|\bequation$|^visits\(|\.eqns$", owner)
            or (module.room in OF_EQUATIONS and not module.says(NOT_OF_EQUATIONS, owner))
        ):
            found.add((reach.line, ast.unparse(owner)))
    fix = "ask weft/primitives.py, or a step of the graph"
    return [f"{module.name}:{line} reads `{owner}.params`; fix: {fix}" for line, owner in sorted(found)]


@pytest.mark.parametrize("rule", [other_walkers, other_readers])
def test_every_module_keeps(rule):
    assert complaints(rule) == []


def test_a_read_of_an_equations_parameters_is_caught():
    of_eqn = ("axes = eqn.params['axes']", "axes = node.step.eqn.params.get('axes')", "f(**visit.eqn.params)")
    for source in (*of_eqn, "call = step.eqn\ninner = call.params['jaxpr']", "for x in equation.params.values(): pass"):
        assert len(other_readers(Module("weft.plan.traffic", source))) == 1
        assert other_readers(Module("weft.primitives", source)) == []
    assert other_readers(Module("weft.plan.traffic", "rules = layout.params['axes']")) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.program.finite", "for eqn in closed.jaxpr.eqns: pass", True),
        ("weft.program.finite", "jaxpr.replace(eqns=[])", True),
        ("weft.program.finite", "from jax.extend.core import jaxprs_in_params", True),
        ("weft.program.finite", "import jax\njax.extend.core.jaxprs_in_params(eqn.params)", True),
        ("weft.program.finite", "for step in steps(graph(closed)): step.eqn", False),
        ("weft.program.finite", "inner = closed.jaxpr\nfor eqn in inner.eqns: pass", True),
        ("weft.program.finite", "for eqn in getattr(jaxpr, 'eqns'): pass", True),
        ("weft.program.finite", "from jax.core import subjaxprs", True),
        ("weft.program.finite", "import jax\njax.core.eval_jaxpr(jaxpr, consts, x)", True),
        ("weft.program.finite", "import jax\nclosed = jax.make_jaxpr(fn)(x)", False),
        ("weft.program.finite", "get = operator.attrgetter('jaxpr.eqns')", True),
    ],
)
def test_another_walker_through_jaxprs_is_caught(name, source, caught):
    assert bool(other_walkers(Module(name, source))) == caught
    assert other_walkers(Module("weft.graph", source)) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.program.finite", "p = e.params\ninner = p['jaxpr']", True),
        ("weft.program.finite", "params = dict(e.params)", True),
        ("weft.program.finite", "key = 'jaxpr' if is_scan else 'call_jaxpr'\ninner = e.params[key]", True),
        ("weft.program.finite", "if 'jaxpr' in e.params: pass", True),
        ("weft.program.finite", "for value in jax.tree.leaves(e.params): pass", True),
        ("weft.program.finite", "params = getattr(e, 'params')", True),
        ("weft.program.finite", "e.replace(params={**e.params, 'axes': ()})", True),
        ("weft.plan.traffic", "e = step.eqn\nparams = e.params\nn = params['length']", True),
        ("weft.plan.traffic", "def f(equation):\n    params = equation.params\n    return params.get('axes')", True),
        ("weft.plan.traffic", "f(**e.params)", True),
        ("weft.plan.traffic", "n = call.params.pop('length')", True),
        ("weft.lower.eager", "match eqn:\n    case JaxprEqn(params=params): pass", True),
    ],
)
def test_a_read_of_parameters_by_another_name_is_caught(name, source, caught):
    assert bool(other_readers(Module(name, source))) == caught
