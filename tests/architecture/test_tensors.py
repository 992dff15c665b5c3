"""Nobody outside the language reaches into a tensor, and no layer or model into its region."""

import ast
import functools
import re

import pytest

from tests.architecture.house import ROOT, Module, complaints


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


def test_every_module_keeps_it():
    assert complaints(private_tensors) == []


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
