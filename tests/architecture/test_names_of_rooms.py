"""No room is named by a string in another."""

import ast
import re

import pytest

from tests.architecture.house import BELOW, ROOT, Module, complaints, strings, words_listed


def rooms_by_name(module: Module) -> list[str]:
    """Rooms that code names by a string in another: `"weft.plan.cost"`, `("nn", "models")`; a sentence may."""
    if module.room == "__init__":  # what is public
        return []
    others = {room for room in BELOW if room != module.room and (ROOT / "weft" / room).is_dir()}
    files = [f"/{path.relative_to(ROOT)}" for room in others for path in (ROOT / "weft" / room).rglob("[!_]*.py")]
    found = []
    for constant in strings(module):
        path = re.fullmatch(r"weft[./](\w+)[\w./]*", constant.value)
        if path and path[1] in others:
            found.append((constant, f"names the room `{path[1]}` by a string"))
        elif re.fullmatch(r"[\w/]+\.py", constant.value) and any(file.endswith(f"/{constant.value}") for file in files):
            found.append((constant, f"names the file `{constant.value}` by a string"))
    for node in module.nodes:
        words = [str(word) for word in words_listed(node)]
        of_others = [word for word in words if word.split(".")[0] in others and is_module(word)]
        if len(of_others) > 1 and BELOW.keys() >= set(words) - set(of_others):
            found.append((node, f"lists the rooms {', '.join(words)} by strings"))
        match node:
            case (
                ast.Compare(left=one, comparators=[ast.Constant(value=room)])
                | ast.BinOp(left=one, op=ast.Div(), right=ast.Constant(value=room))
            ) if room in others and re.search(r"__(name|module|file)__|PACKAGE|\b_?HERE\b|weft", ast.unparse(one)):
                found.append((node, f"names the room `{room}` by a string"))
    return [f"{module.name}:{getattr(node, 'lineno', 0)} {what}" for node, what in found]


def is_module(name: str) -> bool:
    """Whether there is a file or folder of the package under this dotted name."""
    path = ROOT.joinpath("weft", *name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_every_module_keeps_it():
    assert complaints(rooms_by_name) == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ('SHOWN = "weft/nn/linear.py"', True),
        ('importlib.import_module("weft.plan.cost")', True),
        ('own = "weft.train.log"', False),
        ('"""What weft.plan reads."""', False),
        ('said = "weft plan"', False),
        ('fix = "make it by weft.models.preset"', False),
        ('PROGRAMS = ("nn", "models")', True),
        ('parts = ["nn", "dropout"]', False),
        ('SHOWN = {"nn.lora": "nn.lora.", "nn": "nn."}', True),
        ('PROGRAMS = "nn models".split()', True),
        ('SHOWN = {"data.path": "paths", "data.held_out": "part"}', False),  # keys of a run's file
        ('SHOWN = {"nn": "layers", "other": "else"}', False),
        ('if file.endswith("nn/attention.py"): pass', True),
        ('if file.endswith("attention.py"): pass', True),
        ('files = folder.glob("__init__.py")', False),
        ('ROOMS = ["ops", "spmd", "tensor", "compat"]', True),
        ('SHOWN = {"mesh": 1, "layout": 2, "plan": 3}', False),
        ('if module.__name__.split(".")[1] == "ops": pass', True),
        ('layers = Path(__file__).parent / "nn"', True),
        ('tokens = folder / "data"', False),
    ],
)
def test_a_room_named_by_a_string_is_caught(source, caught):
    assert bool(rooms_by_name(Module("weft.train.log", source))) == caught
