"""Nobody outside the language reaches into a tensor, and outside binding and reading programs not into its region."""

import ast
import functools
import re

import pytest

from tests.architecture.house import ROOT, complaints
from tests.architecture.source import Module, Reach

IN_TENSORS = frozenset("tensor leaves lower".split())  # who reaches all of it
OF_LANGUAGE = frozenset("operators ops spmd".split())  # who reaches what is documented there for them
# Whose values have regions of their own: placements of programs.
WITH_REGIONS = frozenset("hints record graph program plan".split())


def private_names(source: str, class_name: str) -> frozenset[str]:
    """The private slots and methods of a class, as its source lists them."""
    # `_repr_html_` is called by notebooks: no secret
    return frozenset(name for name in names_in(source, class_name) if re.match(r"_(?!_).*(?<!_)\Z", name))


def names_in(source: str, class_name: str) -> set[str]:
    """The fields, slots and methods of a class."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for statement in node.body:
                match statement:
                    case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                        names.add(name)
                    case ast.Assign(targets=[ast.Name(id="__slots__")], value=slots):
                        names.update(ast.literal_eval(slots))
    return names


@functools.cache
def private_tensor() -> frozenset[str]:
    return private_names((ROOT / "weft" / "tensor.py").read_text(encoding="utf-8"), "Tensor")


@functools.cache
def fields_of_kind() -> frozenset[str]:
    return frozenset(names_in((ROOT / "weft" / "tensor.py").read_text(encoding="utf-8"), "Kind"))


def private_tensors(module: Module) -> list[str]:
    """Reaches into a tensor: for its slice, kind and region from outside the language, else for what is private."""
    if module.room in IN_TENSORS:
        return []
    fix = "use `array_of(x)`, `is_stored(x)`, `with_array(x, array)` of leaves.py, or ask weft/lower/rules.py"
    found = [(reach.line, ast.unparse(reach.node)) for reach in module.reached if is_inside(module, reach)]
    if module.room not in OF_LANGUAGE:
        kinds = re.compile(r"weft\.tensor\.(Kind|PLAIN|PARAMETER)\b")
        found += [(line, name) for line, name in module.mentions if kinds.match(name)]
        found += [(node.lineno, ast.unparse(node)) for node in module.nodes if passes_kind(module, node)]
    return [f"{module.name}:{line} reaches `{what}`, the inside of a tensor; fix: {fix}" for line, what in found]


def passes_kind(module: Module, node: ast.AST) -> bool:
    """Whether this makes a tensor of another's kind."""
    if not isinstance(node, ast.Call) or not re.search(r"\btensor\.make$", module.full_name(node.func) or ""):
        return False
    return any(isinstance(part, ast.Attribute) and part.attr == "kind" for part in node.args)


def is_inside(module: Module, reach: Reach) -> bool:
    """Whether what is reached is the inside of a tensor, as far as the room has no business with it."""
    owner = reach.owner if reach.owner is not None else reach.node
    if ast.unparse(owner) == "self":
        return False
    if reach.name in private_tensor():
        return True
    if module.room in OF_LANGUAGE:
        return False
    if reach.name in fields_of_kind() and module.says(r"\bkind$|\bgetattr\(.*'kind'", owner):
        return True
    if reach.name == "region":
        return module.room not in WITH_REGIONS
    if reach.name == "kind":  # steps, lines and machines have kinds too
        is_asked_by_name = isinstance(reach.node, ast.Call) and module.room not in WITH_REGIONS
        return is_asked_by_name or module.says(r": .*\bTensor\b|^Tensor$", owner)
    return reach.name == "raw"


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
        ("weft.nn.linear", "if x.kind.store == 'params': pass", True),
        ("weft.nn.linear", "kind = x.kind\nif kind.store is not None: pass", True),
        ("weft.nn.linear", "def f(x: Tensor):\n    return x.kind", True),
        ("weft.models.stack", "frozen = [p for p in leaves if p.kind.frozen]", True),
        ("weft.models.stack", "if x.kind.is_parameter: pass", True),
        ("weft.models.stack", "from ..tensor import PARAMETER\nif x.kind == PARAMETER: pass", True),
        ("weft.models.stack", "store = getattr(x.kind, 'store')", True),
        ("weft.models.stack", "kind = getattr(x, 'kind')", True),
        ("weft.train.step", "if x.region is not None: pass", True),
        ("weft.train.step", "store = leaf.kind.store", True),
        ("weft.train.step", "from ..tensor import make\ny = make(array, leaf.dims, None, leaf.kind)", True),
        ("weft.interop.saving", "from ..tensor import make\ny = make(array, x.dims, None, x.kind)", True),
        ("weft.plan.choices", "is_stored = leaf.kind.store is not None", True),
        ("weft.optim", "match x:\n    case Tensor(raw=array): pass", True),
        ("weft.optim", "arrays = list(map(operator.attrgetter('raw'), tensors))", True),
        ("weft.nn.norm", "def f(self, x: Tensor) -> Tensor:\n    if x.kind.store: return x\n    return x", True),
        ("weft.nn.norm", "def f(x: Tensor | None):\n    kind = x.kind\n    return kind", True),
        ("weft.nn.norm", "def f(x):\n    store = x.kind.store\n    return store", True),
        (
            "weft.models.transformer",
            "def f(model):\n    return [w for w in leaves(model) if w.kind.is_parameter]",
            True,
        ),
        ("weft.models.transformer", "def f(model):\n    return [w for w in leaves(model) if not w.kind.frozen]", True),
        ("weft.interop.loading", "def f(x: Tensor):\n    return make(array, x.dims, None, kind=x.kind)", True),
        ("weft.interop.loading", "from ..tensor import Kind\nkind = Kind(store='params')", True),
        ("weft.train.step", "def f(leaf):\n    return is_tensor(leaf) and leaf.kind.frozen", True),
        ("weft.train.feeding", "def f(batch):\n    return batch['tokens'].region", True),
        ("weft.train.saver", "def f(x):\n    return hasattr(x, 'raw')", True),
        ("weft.cli.model", "def f(x):\n    return x.kind.store", True),
        ("weft.optim", "def f(p):\n    return p.kind.store == 'params'", True),
    ],
)
def test_a_reach_into_a_tensor_is_caught(name, source, caught):
    assert bool(private_tensors(Module(name, source))) == caught


def test_the_inside_of_a_tensor_is_read_from_its_class():
    source = "class A:\n  __slots__ = ('_b', 'c')\n  def _d(self): ...\n  def _shown_(self): ...\nclass E:\n  _f = 1\n"
    assert private_names(source, "A") == {"_b", "_d"}
    assert private_names(source, "G") == set()
    assert {"_dims", "_memo", "_fill"} <= private_tensor()
