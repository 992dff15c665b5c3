"""Binding functions to meshes and layouts: `spmd`, and `bind` for those who read."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from ..checks import need_function
from ..errors import RegionError, public
from ..layout import LayoutLike, as_layout
from ..mesh import MeshLike, as_mesh
from .arguments import positions
from .border import SpmdFunction
from .bound import Bound, check_axes_used
from .remembered import remembered
from .step import TrainStep


@public
def spmd(
    fn: Callable[..., Any],
    *,
    mesh: MeshLike,
    layout: LayoutLike,
    static: int | str | Sequence[int | str] = (),
    donate: int | str | Sequence[int | str] = (),
    strict: bool = False,
) -> Callable[..., Any]:
    """`fn` as one SPMD program on a mesh: global tensors in, global tensors out.

    `static` arguments are compiled in, `donate`d ones may be overwritten; `strict` makes an axis that splits nothing
    an error instead of a warning. Made again of the same function it is the same program, compiled once.
    """
    mesh, layout = as_mesh(mesh), as_layout(layout)
    need_function(fn, "spmd")
    if isinstance(fn, TrainStep):  # it has a part in global view
        return fn.on_mesh(mesh, layout, strict=strict, donate=positions(fn, donate, "donate"))
    options = positions(fn, static, "static"), positions(fn, donate, "donate")
    bound = remembered(fn, (mesh, str(layout), *options), lambda: SpmdFunction(fn, mesh, layout, *options))
    check_axes_used(mesh, layout, strict)
    return bound


def is_bound(fn: Any) -> TypeGuard[Bound]:
    """Whether a function brings a mesh and a layout of its own."""
    return isinstance(fn, SpmdFunction | TrainStep) and fn.mesh is not None


def bind(fn: Callable[..., Any], mesh: MeshLike | None, layout: LayoutLike | None) -> Bound:
    """`fn` on this mesh under this layout; with no mesh, as it was bound before."""
    if mesh is not None:
        bound: Any
        if isinstance(fn, SpmdFunction):  # on another mesh, or under another layout
            bound = spmd(fn.fn, mesh=mesh, layout=layout or "", static=fn.static, donate=fn.donate)
        else:
            bound = spmd(fn, mesh=mesh, layout=layout or "")
        return bound
    if not isinstance(fn, SpmdFunction | TrainStep):
        raise RegionError("trace got no mesh", fix="say `wf.trace(fn, ..., mesh=..., layout=...)`")
    return fn
