"""Only weft/graph.py goes through jaxprs; it and weft/primitives.py alone read an equation's parameters."""

import ast
import re

import pytest

from tests.architecture.house import Module, complaints


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
