"""The picture in docs/architecture.md is that of the imports, and its text names rooms and functions that are there."""

import re
from pathlib import Path

from tests.architecture.house import BELOW, package_modules
from tests.architecture.source import Module
from tests.rooms import PICTURE, depths, direct, draw, imports_between

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_is_that_of_the_imports():
    fix = "fix: python -m tests.rooms"
    assert PICTURE.read_text(encoding="utf-8") == draw(imports_between(package_modules())), fix


def test_a_room_stands_below_all_that_import_it_and_implied_lines_are_left_out():
    sources = {"weft.dims": "", "weft.ops.sum": "from ..dims import Dim", "weft.nn": "from weft import dims, ops"}
    graph = imports_between(Module(name, source) for name, source in sources.items())
    assert depths(graph) == {"nn": 0, "ops": 1, "dims": 2}
    assert direct(graph) == {("nn", "ops"), ("ops", "dims")}


def test_every_room_has_its_line_in_the_text():
    rooms = [room for room in BELOW if not room.startswith("__")]
    assert [room for room in rooms if f"`{room}`" not in TEXT] == []


def test_every_function_the_text_names_is_in_the_file_it_names():
    """`weft/ops/einsum.py` `einsum` names a function, class or method of that file."""
    places = re.findall(r"`(weft/[\w/]+\.py)`((?: `\w+(?:\.\w+)?`,?)*)", TEXT)
    assert places
    for file, names in places:
        source = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"^ *(?:def|class) {name}\b|^{name}\b", source, re.MULTILINE), f"{file} has no `{name}`"
