"""Weft: a language for distributed tensor computation. Public names, nothing else."""

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
from .gradients import grad, value_and_grad
from .layout import Layout
from .mesh import Mesh
from .ops import *  # noqa: F403
from .place import get, put
from .spmd import spmd
from .tensor import Tensor, parameter, tensor
