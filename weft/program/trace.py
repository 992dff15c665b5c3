"""Tracing a function to the SPMD program it becomes, on a mesh of any size, with no devices."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from ..errors import RegionError
from ..layout import Layout
from ..mesh import Mesh
from ..spmd import spmd
from .ledger import Ledger, read


class Program:
    """A traced SPMD program; `jaxpr` is the very thing that is compiled."""

    def __init__(self, jaxpr: Any, mesh: Mesh, layout: Layout):
        self.jaxpr, self.mesh, self.layout = jaxpr, mesh, layout

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The collectives of the program."""
        return read(self.jaxpr)

    def __repr__(self) -> str:
        return f"Program(mesh={str(self.mesh)!r}, layout={str(self.layout)!r}, {len(self.ledger)} collectives)"


def trace(fn: Callable[..., Any], *args: Any, mesh: Any = None, layout: Any = None, **kwargs: Any) -> Program:
    """The program that `fn` becomes on a mesh under a layout; arguments may be `jax.ShapeDtypeStruct` tensors.

    A function made by `wf.spmd`, or a train step with a mesh, brings its own.
    """
    bound: Any = fn if mesh is None else spmd(getattr(fn, "fn", fn), mesh=mesh, layout=layout)
    if not hasattr(bound, "abstract"):
        raise RegionError("trace got no mesh", fix="say `wf.trace(fn, ..., mesh=..., layout=...)`")
    call, arrays = bound.abstract(*args, **kwargs)
    return Program(jax.make_jaxpr(call)(*arrays), bound.mesh, bound.layout)
