"""Running a model outside a region: on a mesh and under a layout of its own.

A model itself says nothing about processors; inside a region it runs under that one's layout.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import equinox as eqx
import jax

from ..layout import Layout, open_region
from ..mesh import Mesh
from ..spmd import spmd
from ..spmd.place import check_values
from .config import SEARCHED


class Runnable(eqx.Module):
    """A model that can be called outside a region.

    There it runs on its mesh and under its layout, which `on` gives it, or on one processor. A subclass holds weights
    and computes with them, and hands what it computes to `run`.
    """

    searched_dims: ClassVar[Sequence[str]] = SEARCHED
    mesh: Mesh | None = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True)

    def __init__(self) -> None:
        self.mesh = self.layout = None

    def on(self, mesh: Mesh, layout: Layout) -> Self:
        """The same model to be run there; its weights stay where they are."""
        model = copy.copy(self)
        object.__setattr__(model, "mesh", mesh)  # a module is frozen, and this one is new
        object.__setattr__(model, "layout", layout)
        return model

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """`fn(self, *args)`; outside a region compiled for the model's mesh and layout."""
        if open_region() is not None:
            return fn(self, *args)
        check_values(jax.tree.leaves((self, args)))
        return _compile(fn, self.mesh, self.layout)(self, *args)


@functools.cache  # one function for each mesh and layout, so that what it compiled is found again
def _compile(fn: Callable[..., Any], mesh: Mesh | None, layout: Layout | None) -> Callable[..., Any]:
    if mesh is None or layout is None:
        return jax.jit(fn)
    return spmd(fn, mesh=mesh, layout=without_rules(layout, "beam", "samples"))


def without_rules(layout: Layout, *dims: str) -> Layout:
    """The layout without the rules of dims that there are not in a program."""
    return layout.drop(*(dim for dim in dims if dim in layout.rules))
