"""Only weft/lower/collectives.py touches the collectives of jax.lax."""

import ast

import pytest

from tests.architecture.house import complaints
from tests.architecture.source import Module

COLLECTIVES = frozenset(
    "psum pmean pmax pmin all_gather psum_scatter all_to_all ragged_all_to_all "
    "ppermute pshuffle pswapaxes pbroadcast psend precv pcast pvary axis_index".split()
)


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


def test_every_module_keeps_it():
    assert complaints(stray_collectives) == []


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
        ("import jax\nlax: object = jax.lax\nlax.all_gather(x, 'rows')", True),
    ],
)
def test_a_collective_is_caught_under_any_name(source, caught):
    assert bool(stray_collectives(Module("weft.spmd", source))) == caught
