"""Between hosts: which way a collective over several levels of a mesh goes.

A mesh has levels where a bar stands in it (`pods=2 | hosts=8 | x=8`), the slowest links first. What goes over axes of
more than one level goes in steps, one a level:

- a sum: reduce-scatter inside, all-reduce between, all-gather inside. Of an array of N bytes N / x go between hosts of
  x processors each; a maximum goes as a sum does, its pieces by an all-to-all;
- a reduce-scatter from the inside out, an all-gather from the outside in: the slow links carry what is smallest;
- an all-to-all inside first, then between: a processor sends to as many others as a host has, and hosts there are,
  not to each of all.

All of it goes in one step under `FLAT_BELOW` bytes, where more calls cost more than a shorter way saves; an all-to-all
also from `EXCHANGED_BELOW` bytes for each other processor on, where messages are large and a second step only carries
all of it once more. Sends nothing itself: knows names of axes.
"""

import math

from ..layout import Axes, open_region

FLAT_BELOW = 1024
EXCHANGED_BELOW = 256 * 1024

Steps = tuple[Axes, ...]
"""Axes level by level, the innermost first."""


def steps_of(axes: Axes, size: int) -> Steps:
    """The steps in which so many bytes go over these axes: one if no bar parts them."""
    region = open_region()
    if region is None or len(region.mesh.levels) == 1 or size < FLAT_BELOW:
        return (axes,)
    sizes = region.mesh.axes
    levels = (tuple(a for a in axes if a in level and sizes[a] > 1) for level in reversed(region.mesh.levels))
    steps = tuple(step for step in levels if step)
    return steps if len(steps) > 1 else (axes,)


def steps_of_exchange(axes: Axes, size: int) -> Steps:
    """As `steps_of`, of an all-to-all: large messages go to each other one at once."""
    steps = steps_of(axes, size)
    region = open_region()
    if len(steps) == 1 or region is None:
        return steps
    ways = math.prod(region.mesh.axes[axis] for axis in axes)
    return steps if size // ways < EXCHANGED_BELOW else (axes,)
