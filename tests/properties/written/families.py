"""Kinds of programs: which dtypes, values, nesting and storage each is drawn with."""

import random
from dataclasses import dataclass
from typing import Any

import weft as wf
from tests.properties.written.drawing import DTYPES, FOLLOWS, SIZES, WIDE, Drawing, Scope, fits
from tests.properties.written.ops_control import CONTROL, draw_steps
from tests.properties.written.ops_moving import OPS  # noqa: F401

from tests.properties.written import ops_values  # noqa: F401  isort: skip
from tests.properties.written.program import Written, finished


@dataclass(frozen=True)
class Family:
    """How programs of one kind are drawn."""

    dtypes: tuple[str, ...]
    styles: tuple[str, ...]
    nesting: float
    parameters: float
    padded: float
    most_steps: int


FAMILIES = {
    "control": Family(("float32",) * 5 + ("int32", "bool"), ("small", "small", "normal"), 0.65, 0.3, 0.1, 2),
    "dtypes": Family(DTYPES, ("small", "halves", "halves", "special", "special", "zeros", "huge"), 0.0, 0.1, 0.1, 3),
    "stored": Family(("float32",) * 4 + ("bfloat16",), ("small", "normal"), 0.3, 0.8, 0.3, 3),
    "train": Family(("float32",), ("normal",), 0.2, 0.7, 0.15, 3),
    "wide": Family(WIDE, ("small", "special", "zeros", "normal"), 0.2, 0.2, 0.1, 3),
}
# In this order over and over; those called `wide` run where 64 bits are on.
ORDER = ("control", "dtypes", "control", "stored", "dtypes", "control", "forms", "train", "dtypes", "wide")


def draw_written(rng: random.Random, family: str) -> Written:
    """A program of one family; one that came to nothing is drawn again."""
    how = FAMILIES[family]
    while True:
        drawing = Drawing(rng, _dims(rng, how), how.dtypes, rng.choice(how.styles), how.parameters, how.nesting)
        drawing.open_ended = rng.random() < 0.3
        scope = Scope(drawing)
        dtype = rng.choice(how.dtypes)
        for _ in range(rng.randint(2, 3)):
            drawing.leaf(_shape(rng, drawing), dtype if rng.random() < 0.7 else rng.choice(how.dtypes))
        if family == "control":
            with drawing.undone_unless_longer(scope.lines):
                x = drawing.leaves[0].name
                word = "vmap" if rng.random() < 0.5 else rng.choice(sorted(CONTROL))
                CONTROL[word](scope, x, drawing.known[x])
        if not scope.lines or family != "control" or rng.random() < 0.3:
            draw_steps(scope, how.most_steps)
        if drawing.statements:
            return finished(drawing)


def _dims(rng: random.Random, how: Family) -> dict[str, Any]:
    dims = {name: wf.Dim(name, size, FOLLOWS.get(name)) for name, size in SIZES.items()}
    if rng.random() < how.padded:
        name = rng.choice(["a", "n", "c", "m"])
        dims[name] = wf.Dim(name, SIZES[name], valid=SIZES[name] - rng.randint(1, 2))
    return dims


def _shape(rng: random.Random, drawing: Drawing) -> list[wf.Dim]:
    """Dims of an argument; some that another has, so that they meet."""
    known = [d for leaf in drawing.leaves for d in leaf.dims]
    likely = [*drawing.dims.values()] + 3 * known
    dims: dict[str, wf.Dim] = {}
    for _ in range(rng.randint(1, 3)):
        dim = rng.choice(likely)
        dims[dim.name] = dim
    found = list(dims.values())
    return found if fits(found) else found[:1]
