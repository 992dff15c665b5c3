"""Bound programs: functions on a mesh under a layout, as they are read.

`SpmdFunction` and `TrainStep` are such programs. Imports what stands below the ops.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from ..dims import Shape
from ..errors import LayoutError, WeftWarning, user_stacklevel
from ..graph import map_equations, prune
from ..layout import Layout
from ..mesh import Mesh
from .guard import check_slices


@dataclass(frozen=True)
class Input:
    """An array that a program is called with."""

    name: str
    dims: Shape | None
    """Its dims where they are known."""
    store: str | None
    is_donated: bool
    """Whether the program may overwrite it."""


@dataclass(frozen=True)
class Traced:
    """A program traced without devices: its closed jaxpr, with the region inside."""

    jaxpr: Any
    before: Any
    """The same before what no result needs was left out."""
    update_known: bool = True
    """Whether every value of a train step's update is typed with its sharding; false where an optimizer cannot be."""

    @classmethod
    def of(cls, fn: Callable[..., Any], *args: Any, state: str = "") -> "Traced":
        """`fn` traced, less what no result needs: jit leaves that out before it compiles."""
        closed = jax.make_jaxpr(fn)(*args)
        check_slices(closed, state)
        return cls(map_equations(closed, prune), closed)


class Bound(Protocol):
    """A program bound to a mesh and a layout, or to none yet.

    A call needs devices and values; the rest takes shapes, and only `lower` asks for devices.
    """

    __name__: str
    mesh: Mesh | None
    layout: Layout

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __repr__(self) -> str:
        on = f", mesh={str(self.mesh)!r}, layout={str(self.layout)!r}" if self.mesh is not None else ""
        return f"{type(self).__name__}({self.of}{on})"

    @property
    def of(self) -> str:
        """The name of the function it was made of."""
        return self.__name__

    def abstract(self, *args: Any, **kwargs: Any) -> Traced:
        """The program traced without devices."""
        ...

    def inputs(self, *args: Any, **kwargs: Any) -> list[Input]:
        """What is known of the arrays of a call, in the order of the traced program."""
        ...

    def flat(self, *args: Any, **kwargs: Any) -> tuple[list[jax.ShapeDtypeStruct], Callable[..., list[Any]]]:
        """The shapes of the inputs with their shardings, and the program of these."""
        ...

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The very program a call runs, lowered for the devices of its mesh."""
        ...


def path_words(path: Sequence[Any]) -> tuple[tuple[str, ...], str]:
    """The keys of a leaf's path, and how it is written: `.layers.q`, `[0].bias`."""
    words = tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
    return words, "".join(f"[{word}]" if word.isdigit() else f".{word}" for word in words)


def says_enough(words: Sequence[str]) -> bool:
    """Whether a leaf of a tree can be called by its path, without the tree's name."""
    return len(words) > 1 and not words[0].isdigit()


def check_axes_used(mesh: Mesh, layout: Layout, strict: bool) -> None:
    """Warns of an axis over which nothing is split: its processors all do the same."""
    unused = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in layout.axes]
    if not unused:
        return
    ways = math.prod(mesh.axes[axis] for axis in unused)
    named = ("axis " if len(unused) == 1 else "axes ") + ", ".join(f"`{axis}`" for axis in unused)
    name, axes = next(iter(layout.rules.items()), ("batch", ()))
    error = LayoutError(
        f"no rule of the layout uses mesh {named}: each piece of work is done {ways} times",
        state=f"layout: {layout}   mesh: {mesh}",
        fix=f"split a dim over it, e.g. `{name}:{'+'.join((*axes, unused[0]))}`, "
        f"or leave `{unused[0]}` out of the mesh",
    )
    if strict:
        raise error
    warnings.warn(WeftWarning(error), stacklevel=user_stacklevel())
