"""MFU: how much work a token is, and how much a processor can do at most.

Imports the step, the program it is traced to and the table of hardware. The work is that of the model itself: what is
computed again in the backward pass, and what several processors compute twice, does not count.
"""

import jax

from ..layout import Layout
from ..mesh import Mesh
from ..plan.hardware import hardware_of
from ..program import trace
from .config import RunConfig
from .step import make_step, shapes_of_call


def peak_flops(device: jax.Device) -> float | None:
    """What a processor can do at most in bfloat16; None where that is not known."""
    hardware = hardware_of(device)
    return None if hardware is None else hardware.flops_of("bfloat16")


def flops_per_token(config: RunConfig) -> float:
    """The FLOPs of training on one token, read off the traced step."""
    step = make_step(config, Mesh("all=1"), Layout(""))
    program = trace(step, *shapes_of_call(config, step))
    return (program.flops - program.flops_recomputed) / (config.batch * config.length)
