"""The border between global and local: spmd, gradients, train steps, and placing arrays."""

from .border import Traced, spmd
from .gradients import grad, value_and_grad
from .place import get, put
from .step import TrainState, train_step

__all__ = ["Traced", "TrainState", "get", "grad", "put", "spmd", "train_step", "value_and_grad"]
