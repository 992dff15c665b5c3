"""Weft: a language for distributed tensor computation. Public names, nothing else."""

from . import data, decode, interop, models, nn, train
from .dims import Dim, dims
from .errors import (
    CheckError,
    DimError,
    LayoutError,
    MeshError,
    RegionError,
    TensorError,
    WeftError,
    WeftWarning,
)
from .layout import Layout
from .mesh import Mesh
from .ops import *  # noqa: F403
from .plan import Plan, search
from .program import Program, trace
from .spmd import TrainState, get, grad, put, spmd, train_step, value_and_grad
from .tensor import Tensor, parameter, tensor
