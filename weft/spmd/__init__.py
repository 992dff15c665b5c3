"""The border of global and local: SPMD programs, gradients, train steps, placing."""

from .bind import bind, is_bound, spmd
from .bound import Bound, Input, Traced
from .gradients import grad, value_and_grad
from .place import get, put
from .step import TrainState, TrainStep, train_step

__all__ = [
    "Bound",
    "Input",
    "Traced",
    "TrainState",
    "TrainStep",
    "bind",
    "get",
    "grad",
    "is_bound",
    "put",
    "spmd",
    "train_step",
    "value_and_grad",
]
