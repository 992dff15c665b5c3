"""How much of a processor's memory a program may use: JAX's share of it.

JAX sets aside three quarters of a GPU's memory when it starts and gives a program no more, unless the environment
variable XLA_PYTHON_CLIENT_MEM_FRACTION says another share (docs.jax.dev, "GPU memory allocation"). Of a TPU or a CPU it
takes what there is.
"""

from dataclasses import dataclass

from ..checks import is_real
from ..errors import WeftError
from ..text import size_text
from .hardware import Hardware

DEFAULT_SHARES = {"gpu": 0.75}


@dataclass(frozen=True)
class Capacity:
    """The memory of one processor, and the share of it a program may use."""

    whole: int
    share: float
    is_default: bool
    """Whether the share is the one JAX takes where none is said."""

    @property
    def bytes(self) -> int:
        return int(self.whole * self.share)

    def __str__(self) -> str:
        if self.share == 1:
            return size_text(self.bytes)
        why = "JAX's share, unless XLA_PYTHON_CLIENT_MEM_FRACTION says another" if self.is_default else "as said"
        return f"{size_text(self.bytes)} ({self.share:.0%} of {size_text(self.whole)}, {why})"


def capacity_of(
    hardware: Hardware, *, processors: int = 1, memory: float | None = None, share: float | None = None
) -> Capacity:
    """What a program may use of one of so many processors.

    `memory` is what a processor has, all of it for the program unless `share` says otherwise; without it the
    hardware's, of which JAX takes its own share.
    """
    if share is not None and not (is_real(share) and 0 < share <= 1):
        raise WeftError(f"`share` is {share!r}", fix="say which part of the memory JAX may use, e.g. `share=0.9`")
    if memory is not None:
        return Capacity(int(memory), 1.0 if share is None else float(share), is_default=False)
    whole = int(hardware.memory // (processors if hardware.is_shared else 1))
    return Capacity(whole, float(share or DEFAULT_SHARES.get(hardware.kind, 1.0)), is_default=share is None)
