"""Weft: a language for distributed tensor computation. Public names, nothing else."""

from typing import Any

from . import data, decode, interop, models, nn, ops, train
from .dims import Dim, dims
from .elsewhere import FUNCTIONS, unknown_name
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
    folded,
)
from .layout import Layout
from .mesh import Mesh
from .ops import *  # noqa: F403
from .plan import Plan, search
from .program import Program, trace
from .spmd import TrainState, get, grad, put, spmd, train_step, value_and_grad
from .tensor import Tensor, parameter, tensor

__version__ = "0.1.0"

__all__ = [
    "CheckError", "Dim", "DimError", "Layout", "LayoutError", "Mesh", "MeshError", "Plan", "Program", "RegionError",
    "Tensor", "TensorError", "TrainState", "UnknownNameError", "WeftError", "WeftWarning", "data", "decode", "dims",
    "get", "grad", "interop", "models", "nn", "parameter", "put", "search", "spmd", "tensor", "trace", "train",
    "train_step", "value_and_grad", *ops.__all__,
]  # fmt: skip


@folded
def __getattr__(name: str) -> Any:
    raise unknown_name("wf", name, __all__, FUNCTIONS)
