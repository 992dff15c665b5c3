"""Weft: a language for distributed tensor computation.

Tensor dims have names, mesh axes have names, and one line of layout says which goes over which.

    import weft as wf

    def forward(x, w):
        return wf.einsum(x, w, over="d_model")

    y = wf.spmd(forward, mesh="rows=4,cols=2", layout="batch:rows,d_ff:cols")(x, w)

What `wf` has, by family; `help(wf.einsum)` says more of one.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import ops
from .dims import Dim, dims
from .elsewhere import FUNCTIONS as _FUNCTIONS
from .errors import (
    CheckError,
    DimError,
    LayoutError,
    MeshError,
    RegionError,
    TensorError,
    UnknownNameError,
    WeftError,
    WeftWarning,
)
from .layout import Layout
from .mesh import Mesh
from .namespace import contents as _contents
from .namespace import hide_modules as _hide_modules
from .namespace import namespace as _namespace
from .notebook import import_drawer_by as _import_drawer_by
from .ops import *  # noqa: F403
from .spmd import TrainState, get, grad, put, spmd, train_step, value_and_grad
from .tensor import Tensor, parameter, tensor

if _TYPE_CHECKING:
    from . import data, decode, interop, models, nn, optim, plan, program, train
    from .plan import Plan, search
    from .program import Program, trace

__version__ = "0.2.0"

__all__ = [
    "CheckError", "Dim", "DimError", "Layout", "LayoutError", "Mesh", "MeshError", "Plan", "Program", "RegionError",
    "Tensor", "TensorError", "TrainState", "UnknownNameError", "WeftError", "WeftWarning", "data", "decode", "dims",
    "get", "grad", "interop", "models", "nn", "optim", "parameter", "put", "search", "spmd", "tensor", "trace", "train",
    "train_step", "value_and_grad", *ops.__all__,
]  # fmt: skip

# Rooms that a program of the language alone does not need, nor the libraries below them; imported when first asked for.
_LATER = {
    **dict.fromkeys("data decode interop models nn optim plan program train".split(), ""),
    "Plan": "plan", "search": "plan",
    "Program": "program", "trace": "program",
}  # fmt: skip

# A new file or room of public names is a word here.
_FAMILIES = {
    "Dims, meshes, layouts and tensors": "dims mesh layout tensor",
    "Running, differentiating and training": "spmd",
    "Reading a program before it runs": "program plan",
    "Modules with names of their own": "rooms",
    "Products": "ops.einsum",
    "Elementwise": "ops.elementwise",
    "Reductions": "ops.reduce ops.moments",
    "Sorting and prefix sums": "ops.order",
    "Indexing and slicing": "ops.index ops.scatter ops.slicing",
    "Shapes": "ops.reshape ops.regroup ops.uneven",
    "Convolutions and pools": "ops.conv ops.pool",
    "Loops, branches and recomputation": "ops.control ops.branches ops.mapping ops.prefixes ops.remat",
    "Microbatches": "ops.accumulate ops.pipeline",
    "New tensors": "ops.create ops.random",
    "Functions of your own": "ops.local ops.custom",
    "Looking at values": "ops.debug",
    "Errors": "errors",
}

__doc__ = f"{__doc__}\n{_contents(globals(), _FAMILIES, later=_LATER)}\n"
__dir__, __getattr__ = _namespace(globals(), called="wf", written=_FUNCTIONS, later=_LATER)
_import_drawer_by(lambda: __getattr__("plan"))
_hide_modules(globals())
