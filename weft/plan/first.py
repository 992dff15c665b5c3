"""Layouts to trace before all others, so that a search soon has an answer.

None of their sets of rules has been traced yet: what fits is told by the names of the dims that a set splits alone.
"""

from collections.abc import Sequence

import numpy as np

from ..mesh import Mesh
from .choices import Choices
from .compose import Composer, Facts
from .legal import Legal

Row = tuple[int, ...]


def first_layouts(
    choices: Choices, whole: Facts, meshes: Sequence[Mesh], capacity: int, *, all_axes: bool
) -> list[tuple[Mesh, Row]]:
    """A plain layout that seems to fit, and the one that needs least memory.

    Each with its mesh. Plain is one of few axes and few rules, that splits the first dim (a model's `batch`) most. A
    layout is the number of the set on each axis.
    """
    legal = Legal(choices, range(len(choices.sets)))
    composer = Composer(choices, whole, {}, 0.0)
    lengths = np.array([len(rules) for rules in choices.sets])
    splits_first = np.array([choices.rules[0] in rules for rules in choices.sets])
    plain: list[tuple[tuple[float, ...], Mesh, Row]] = []
    small: list[tuple[float, Mesh, Row]] = []
    for axes in sorted({len(mesh.axes) for mesh in meshes}):
        for mesh in (mesh for mesh in meshes if len(mesh.axes) == axes):
            shape = tuple(mesh.axes.values())
            rows = legal.layouts(shape, all_axes=all_axes and mesh.size > 1)
            if not len(rows):
                continue
            memory = composer.memory(shape, rows)
            least = int(np.argmin(memory))
            small.append((float(memory[least]), mesh, tuple(map(int, rows[least]))))
            ways = np.where(splits_first[rows], shape, 1).prod(axis=1)
            fitting = np.flatnonzero(memory <= capacity)
            if len(fitting):
                order = np.lexsort((lengths[rows[fitting]].sum(axis=1), -ways[fitting]))
                at = int(fitting[order[0]])
                plain.append(((-float(ways[at]), float(lengths[rows[at]].sum())), mesh, tuple(map(int, rows[at]))))
        if plain:
            break
    best = [min(plain, key=lambda each: each[0])[1:]] if plain else []
    least_of_all = [min(small, key=lambda each: each[0])[1:]] if small else []
    return list(dict.fromkeys(best + least_of_all))
