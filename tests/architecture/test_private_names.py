"""A name with an underscore is used where it is defined: in no other module, and not in a library's values."""

import ast
import re

import pytest

from tests.architecture.house import complaints
from tests.architecture.source import Module, bindings
from tests.architecture.test_tensors import private_tensor

PRIVATE = re.compile(r"_(?!_).*(?<!_)")
# Of Python's: documented for all their underscore, or the one way there is.
OF_PYTHON = {
    **dict.fromkeys(("_replace", "_asdict", "_fields", "_make"), "of named tuples"),
    "_getframe": "the caller, of `sys`",
    "_exit": "the end of a process, of `os`",
    "_processes": "those of a pool, to end them: `kill_workers` comes with Python 3.14",
}


def private_names_of_others(module: Module) -> list[str]:
    """Names with an underscore that are imported, or reached in a value, and defined elsewhere."""
    found = [
        (imported.line, imported.name)
        for imported in module.imports
        if imported.name.startswith("weft.") and PRIVATE.fullmatch(imported.name.rpartition(".")[2])
    ]
    known = names_defined(module) | OF_PYTHON.keys() | private_tensor()  # of which there is a rule of its own
    for reach in module.reached if module.name != "weft.compat" else ():
        is_own = reach.owner is not None and ast.unparse(reach.owner) in ("self", "cls", "super()")
        if PRIVATE.fullmatch(reach.name) and reach.name not in known and not is_own:
            found.append((reach.line, ast.unparse(reach.node)))
    return [f"{module.name}:{line} uses `{what}`, which is private to another" for line, what in found]


def names_defined(module: Module) -> set[str]:
    """The names that a module defines, those of attributes too."""
    names = set()
    for node in module.nodes:
        names.update(name for name, _ in bindings(node))
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=slots):
                names.update(ast.literal_eval(slots))
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[_, ast.Constant(value=str(name)), *_]):
                names.add(name)
    return names


def test_every_module_keeps_it():
    assert complaints(private_names_of_others) == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("weft.ops.custom", "x = array._value", True),
        ("weft.spmd.step", "n = compiled._cache_size()", True),
        ("weft.spmd.step", "x = getattr(array, '_npy_value', None)", True),
        ("weft.spmd.step", "x = mesh._flat_devices_tuple", True),
        ("weft.nn.linear", "from ..lower.meet import _plan", True),
        ("weft.nn.linear", "from ..lower import meet\nmeet._plan(x)", True),
        ("weft.plan.search", "rows = plan._rows", True),
        (
            "weft.spmd.step",
            "class A:\n    def __init__(self): self._x = 1\n    def f(self, other): return other._x",
            False,
        ),
        ("weft.spmd.step", "class A(B):\n    def f(self): return self._of_b", False),
        ("weft.spmd.step", "class A:\n    __slots__ = ('_x',)\ndef f(a): return a._x", False),
        ("weft.spmd.step", "class A:\n    _x: int\ndef f(a): return a._x", False),
        ("weft.train.stopping", "import os\nos._exit(1)", False),
        ("weft.spmd.step", "state._replace(step=1)._asdict()", False),
        ("weft.namespace", "module.__name__", False),
        ("weft.compat", "trace = tracer._trace", False),
        ("weft.ops.custom", "x = array._arrays[0]", True),
        ("weft.spmd.step", "exe = lowered._lowering.compile()", True),
        ("weft.lower.move", "import jax\nmesh = jax.sharding.get_abstract_mesh()._name_to_type", True),
        ("weft.lower.move", "spec = x.sharding._parsed_pspec", True),
        ("weft.lower.move", "def f(array):\n    return array._committed", True),
        ("weft.lower.move", "def f(fn):\n    return fn._cache_miss", True),
    ],
)
def test_a_private_name_of_another_is_caught(name, source, caught):
    assert bool(private_names_of_others(Module(name, source))) == caught
