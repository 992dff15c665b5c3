"""The import direction, and no cycles."""

import functools
import graphlib

import pytest

from tests.architecture.house import BELOW, ROOT, complaints, package_modules, rooms_below
from tests.architecture.source import Module, room_of


@functools.cache
def beside_weft() -> frozenset[str]:
    """What else the repository has to import: tests, benchmarks, examples."""
    return frozenset(folder.name for folder in ROOT.iterdir() if any(folder.glob("*.py"))) - {"weft"}


def wrong_directions(module: Module) -> list[str]:
    """Rooms nobody knows, and imports of a room that does not stand below; uses of one that another import brought."""
    if module.room not in BELOW:
        return [f"{module.name}: unknown room `{module.room}`; fix: move it into one of {', '.join(BELOW)}"]
    found = {}
    for line, name in module.mentions:
        target = room_of(name)
        if name.split(".")[0] in beside_weft():
            found.setdefault(
                name.split(".")[0], f"{module.name}:{line} imports {name}, which is not installed with weft"
            )
        if name.split(".")[0] != "weft":
            continue
        if target not in BELOW:  # `from weft import Tensor` is a name of weft/__init__.py
            target = "__init__"
        if target not in rooms_below(module.room):
            fact = f"`{target}` does not stand below `{module.room}`"
            found.setdefault(target, f"{module.name}:{line} imports {name}, but {fact}")
    return list(found.values())


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


def test_every_module_keeps_it():
    assert complaints(wrong_directions) == []


def test_no_import_cycle():
    assert import_cycle(package_modules()) == []


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
        ("weft.nn.linear", "import weft.tensor\ncost = weft.plan.cost"),
        ("weft.nn.linear", "import importlib\ncost = importlib.import_module('..plan.cost', __package__)"),
        ("weft.nn.linear", "from importlib import import_module\ncost = import_module('..plan.cost', 'weft.nn')"),
        ("weft.nn.linear", "from tests.environment import X"),
        (
            "weft.spmd.border",
            "import importlib\ntrace = importlib.import_module('..program.trace', package=__package__)",
        ),
        ("weft.nn.linear", "from benchmarks import turns"),
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
