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
all of it once more. Sends nothing itself.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..layout import Axes, open_region

FLAT_BELOW = 1024
EXCHANGED_BELOW = 256 * 1024

Steps = tuple[Axes, ...]
"""Axes level by level, the innermost first."""


def steps_of(axes: Axes, size: int) -> Steps:
    """The steps in which so many bytes go over these axes: one if no bar parts them."""
    region = open_region()
    if region is None or len(region.mesh.levels) == 1 or size < max(FLAT_BELOW, 1):
        return (axes,)
    levels = (tuple(axis for axis in axes if axis in level) for level in reversed(region.mesh.levels))
    steps = tuple(step for step in levels if step)
    return steps if sum(region.ways(step) > 1 for step in steps) > 1 else (axes,)


def steps_of_exchange(axes: Axes, size: int) -> Steps:
    """As `steps_of`, of an all-to-all: large messages go to each other one at once."""
    steps = steps_of(axes, size)
    return steps if len(steps) > 1 and size // lax.axis_size(axes) < EXCHANGED_BELOW else (axes,)


def axes_of(steps: Steps) -> Axes:
    """The axes of all steps, the outermost level first."""
    return tuple(axis for step in reversed(steps) for axis in step)


def part(array: Any, axes: Axes, steps: Steps, position: int) -> Any:
    """A dim of slices along the axes as several: one a level, the outermost first."""
    sizes = [lax.axis_size(axis) for axis in axes]
    array = _reshape(array, position, 1, [*sizes, array.shape[position] // math.prod(sizes)])
    array = _reorder(array, position, [axes.index(axis) for axis in axes_of(steps)])
    return _reshape(array, position, len(axes), [lax.axis_size(step) for step in reversed(steps)])


def join(array: Any, axes: Axes, steps: Steps, position: int) -> Any:
    """The dim that `part` took apart: slices along the axes, in their order."""
    ordered = axes_of(steps)
    array = _reshape(array, position, len(steps), [lax.axis_size(axis) for axis in ordered])
    array = _reorder(array, position, [ordered.index(axis) for axis in axes])
    return merge(array, position, len(axes) + 1)


def merge(array: Any, position: int, count: int) -> Any:
    """So many dims from `position` on as one."""
    return _reshape(array, position, count, [math.prod(array.shape[position : position + count])])


def _reshape(array: Any, position: int, count: int, sizes: list[int]) -> Any:
    """The array with dims of these sizes in the place of `count` others."""
    return array.reshape(*array.shape[:position], *sizes, *array.shape[position + count :])


def _reorder(array: Any, position: int, order: list[int]) -> Any:
    """The array with its dims from `position` on in this order."""
    if order == sorted(order):
        return array
    around = range(position), range(position + len(order), array.ndim)
    return jnp.transpose(array, [*around[0], *(position + i for i in order), *around[1]])
