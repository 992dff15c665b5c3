"""No layout changes what a layer gives, nor its gradients: random numbers on, padding there, tokens dropped."""

import functools
from typing import Any

import jax
import pytest

import weft as wf
from tests.programs.everywhere import assert_close, outcome

from .cases import FAMILIES, B, T

PLACES = [
    ("a=2,b=4", "batch:a,experts:a,heads:b,d_ff:b,vocab:b,params.d_model:a"),
    ("x=8", "length:x,experts:x"),
    ("a=2,b=2,c=2", "length:a,memory_length:b,d_kv:c,vocab:c,d_ff:b+c,router:b,params.experts:a"),
]
MORE = [
    ("x=8", "batch:x,experts:x"),
    ("x=8", "batch:x,params.d_model:x"),
    ("x=8", "heads:x,d_ff:x,vocab:x"),
    ("x=8", "memory_length:x,router:x"),
    ("x=8", "d_model:x,buckets:x"),
    ("x=8", "d_kv:x,d_model_out:x"),
    ("a=2,b=4", "batch:b,experts:b,d_ff:a,vocab:a,heads:a"),
    ("a=2,b=4", "length:a,memory_length:b,router:b"),
    ("a=2,b=4", "batch:a,d_model:b,params.vocab:a,params.d_ff:a"),
    ("a=2,b=4", "length:a,batch:b,experts:a"),
    ("a=2,b=4", "batch:a+b,experts:a"),
    ("a=2,b=2,c=2", "batch:a+b+c,experts:b"),
    ("a=2,b=2,c=2", "batch:a+b,experts:c+a"),
    ("a=2,b=2,c=2", "batch:a,length:b,d_model:c,params.heads:a"),
    ("a=2,b=2,c=2", "batch:a+b,experts:a+b,d_ff:c,heads:c,vocab:c,params.d_model:b"),
    ("a=2,b=2,c=2", "batch:c,length:b+a,params.d_model_out:c"),
    ("a=2,b=2,c=2", "experts:c,expert_batch:a,heads:a,d_kv:c,d_model:b"),
    ("one=1,x=8", "batch:x,length:one"),
]
# The longest sums go over all tokens; statistics and softmaxes are sums inside of these.
TERMS = 2 * B.size * T.size

NAMES = {
    "experts": {"router", "dispatch", "expert_batch", "slots"},
    "attention": {"memory_length"},
    "positions": {"memory_length"},
    "maps": {"d_model_out"},
    "recurrent": {"d_model_out"},
}


def family_program(family: str) -> Any:
    cases = FAMILIES[family]
    return lambda given: {name: case.run(given[name]) for name, case in cases.items()}


def given(family: str) -> Any:
    return {name: case.given for name, case in FAMILIES[family].items()}


@functools.cache
def expected(family: str) -> Any:
    return outcome(None, family_program(family), given(family))


def known_rules(family: str, layout: str) -> wf.Layout:
    """The layout without the rules of dims that the family does not have."""
    inputs = {dim.name for case in FAMILIES[family].values() for x in case.inputs for dim in x.dims}
    layers = [case.layer for case in FAMILIES[family].values()]
    leaves = jax.tree.leaves(layers, is_leaf=lambda x: isinstance(x, wf.Tensor))
    stored = {dim.name for x in leaves for dim in x.dims}
    known = inputs | stored | NAMES.get(family, set()) | {f"params.{name}" for name in stored}
    return wf.Layout(",".join(rule for rule in layout.split(",") if rule.split(":")[0] in known))


def cases() -> list[Any]:
    """Every family at every place; all but the first of the usual places are left to the slow run.

    So are attention, which whole models have under layouts (tests/grid), losses (test_loss.py) and layers of layers.
    """
    slow = {(family, place) for family in FAMILIES for place in (*PLACES[1:], *MORE)}
    slow |= {(family, PLACES[0]) for family in ("attention", "losses", "recurrent", "composed", "experts")}
    return [
        pytest.param(
            family, place, id=f"{family} {' '.join(place)}", marks=[pytest.mark.slow] * ((family, place) in slow)
        )
        for family in FAMILIES
        for place in (*PLACES, *MORE)
    ]


@pytest.mark.parametrize(("family", "place"), cases())
def test_no_layout_changes_values_or_gradients(family, place):
    mesh, layout = place
    found = outcome((mesh, known_rules(family, layout)), family_program(family), given(family))
    assert_close(found, expected(family), TERMS)
