"""Which kernel does an attention, and why not another: one place decides.

A case says by values alone what an attention asks of a kernel, a chip what it would run on. So a program that is
traced with no devices knows what a GPU or a TPU would do, and the layer, the plan and the printed program say the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..compat import attention_kernel, has_pallas_triton

HOPPER = (9, 0)
WIDEST = 256  # channels of a head that any kernel takes
_AMPERE = (8, 0)
NAMES = {"cudnn": "cuDNN", "flash": "Weft's flash kernel", "splash": "JAX's splash attention"}
_LANES = 128  # of whose multiples a TPU's kernel takes lengths
_SHORT_FLOATS = ("bfloat16", "float16")
_LONG_FLOATS = "fused kernels take bfloat16 and float16, and this is {}"


@dataclass(frozen=True)
class Chip:
    """What an attention would run on: `gpu`, `tpu` or `cpu`, and how new a GPU it is."""

    kind: str
    capability: tuple[int, int] = HOPPER
    """CUDA's compute capability; of a GPU that nothing is known of, Hopper's."""
    has_cudnn: bool = True
    """Whether JAX finds cuDNN there, and calls it as expected."""

    def __str__(self) -> str:
        if self.kind != "gpu":
            return f"a {self.kind.upper()}"
        return (
            f"a GPU of compute capability {'.'.join(map(str, self.capability))}" if any(self.capability) else "no CUDA"
        )


@dataclass(frozen=True)
class AttentionCase:
    """What one attention asks of a kernel, of its sizes those on one processor."""

    dtype: str
    length: int
    memory_length: int
    width: int
    causal: bool = False
    window: int | None = None
    tensors: tuple[str, ...] = ()
    """What else the mask has: `prefix`, `positions`, `segments`."""
    is_in_order: bool = False
    """Whether positions that are given count up along each segment, so that causal goes by place."""
    is_within: bool = False
    """Whether each query is one of the keys, and sees itself; else one may see none."""
    bias: str = ""
    """`shared` by all sequences, `each` one's own, or none."""
    softcap: bool = False
    dropout: bool = False
    is_offset: bool = False
    """Whether queries are a slice, which begins anywhere."""
    is_in_blocks: bool = False
    """Whether blocks of it are each done by themselves: keys go round, or queries are a slice of plain attention."""
    refusal: str = ""
    """Why no kernel can do it, whatever it runs on."""

    @property
    def goes_by_place(self) -> bool:
        """Whether causal and window are those of places in the arrays, from 0 on."""
        is_counted = "positions" not in self.tensors or self.is_in_order
        sees_some = self.window is None or (self.causal and self.length <= self.memory_length)
        return is_counted and sees_some and not self.is_offset and "prefix" not in self.tensors

    @property
    def needs_mask(self) -> bool:
        """Whether a kernel needs an array of what is seen, beside causal and window."""
        has_order = self.causal or self.window is not None
        return "segments" in self.tensors or (has_order and not self.goes_by_place)


@dataclass(frozen=True)
class KernelChoice:
    """The kernel that does an attention, and why none that would come first."""

    kernel: str
    """`cudnn`, `flash`, `splash`, or `plain`: products and a softmax as XLA compiles them."""
    reason: str = ""

    @property
    def is_fused(self) -> bool:
        return self.kernel != "plain"

    def __str__(self) -> str:
        if not self.is_fused:
            return f"plain, because {self.reason}"
        return f"fused by {NAMES[self.kernel]}" + (f" ({self.reason})" if self.reason else "")


def read_chip(device: Any) -> Chip:
    """The chip that a device of JAX is; of compute capability 0.0 where it has none."""
    if device.platform != "gpu":
        return Chip(device.platform)
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    capability = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
    return Chip("gpu", capability, has_cudnn=attention_kernel(1.0) is not None)


def choose(case: AttentionCase, chip: Chip) -> KernelChoice:
    """The kernel that does a case on a chip.

    >>> case = AttentionCase("bfloat16", 256, 256, 256, causal=True)
    >>> print(choose(case, Chip("gpu")), "|", choose(case, Chip("cpu")))
    fused by cuDNN | plain, because a CPU has no fused kernel
    """
    if case.refusal:
        return KernelChoice("plain", case.refusal)
    against: dict[str, None] = {}
    for name in _order(case, chip):
        reason = _WHY_NOT[name](case, chip)
        if not reason:
            return KernelChoice(name, "; ".join(against))
        against[reason] = None
    return KernelChoice("plain", "; ".join(against) or f"{chip} has no fused kernel")


def widest(chip: Chip) -> int:
    """Channels of a head that cuDNN takes at most."""
    return WIDEST if chip.capability >= HOPPER else 128


def why_not_cudnn(case: AttentionCase, chip: Chip) -> str:
    """Why cuDNN does not do a case; empty if it does."""
    most, has_array = widest(chip), case.needs_mask or bool(case.bias)
    if chip.capability < _AMPERE:
        return f"cuDNN fuses attention from compute capability 8.0 on, and this is {chip}"
    if not chip.has_cudnn:
        return "JAX finds no cuDNN here, or calls it otherwise than expected"
    if case.dtype not in _SHORT_FLOATS:
        return _LONG_FLOATS.format(case.dtype)
    if case.width > most:
        before = "" if most == WIDEST else " before Hopper"
        return f"cuDNN takes heads of at most {most} channels{before}, and these have {case.width}"
    if case.width % 8:
        return f"cuDNN takes heads of a multiple of 8 channels, and these have {case.width}"
    if case.softcap:
        return "cuDNN has no softcap"
    if case.dropout:
        return "cuDNN's dropout has bits of its own, which a layout would change"
    if has_array and (case.length % 2 or case.memory_length % 2):
        return f"cuDNN takes a mask or a bias of even lengths, and these are {case.length} and {case.memory_length}"
    if case.needs_mask and case.dtype == "float16":
        return "cuDNN's mask is a number that float16 cannot hold"
    if case.bias == "each" or (case.bias and case.needs_mask and case.tensors):
        return "the bias and the mask would be one array as large as all scores"
    return ""


def why_not_flash(case: AttentionCase, chip: Chip) -> str:
    """Why the kernel of ours does not do a case; empty if it does."""
    if chip.capability < _AMPERE:
        return f"Weft's kernel needs compute capability 8.0, and this is {chip}"
    if case.dtype not in _SHORT_FLOATS:
        return _LONG_FLOATS.format(case.dtype)
    if not has_pallas_triton():
        return "Weft's kernel is lowered by Pallas to Triton, which this JAX no longer does"
    if case.is_in_blocks:
        return "Weft's kernel does no blocks apart"
    if case.width > WIDEST:
        return f"Weft's kernel takes heads of at most {WIDEST} channels"
    return ""


def why_not_splash(case: AttentionCase, chip: Chip) -> str:
    """Why a TPU's splash attention does not do a case; empty if it does."""
    if case.dtype not in ("bfloat16", "float32"):
        return f"splash attention takes bfloat16 and float32, and this is {case.dtype}"
    if size := next((size for size in (case.length, case.memory_length) if size % _LANES), 0):
        return f"splash attention takes multiples of {_LANES} queries and keys, and these are {size}"
    if asked := [name for name in ("dropout", "bias") if getattr(case, name)]:
        return f"splash attention has no {asked[0]}"
    if case.is_in_blocks:
        return "splash attention does no blocks apart"
    if "prefix" in case.tensors or ("positions" in case.tensors and not case.is_in_order):
        return "splash attention goes by place, and the mask by positions or a prefix"
    if case.is_offset and (case.causal or case.window is not None):
        return "splash attention counts queries from 0, and these are a slice"
    if "segments" in case.tensors and (case.is_offset or not case.is_within):
        return "splash attention has segments of queries that are the keys"
    if case.window is not None and case.length > case.memory_length:
        return "some queries are past the window of every key"
    return ""


def _order(case: AttentionCase, chip: Chip) -> tuple[str, ...]:
    """The kernels there are, the fastest first, by what was measured on an H200.

    Forward and backward of 16 x 1024 tokens, 16 heads of 64: causal 0.56 ms by cuDNN and 0.54 by Weft's kernel; packed
    texts, for which cuDNN is given an array while Weft's kernel leaves blocks out, 0.84 and 0.44. Of 128 x 256 tokens,
    4 heads of 256: 0.60 and 0.68 (`benchmarks/attention_kernels.py`).
    """
    if chip.kind == "gpu":
        return ("flash", "cudnn") if case.needs_mask and not case.bias else ("cudnn", "flash")
    return ("splash",) if chip.kind == "tpu" else ()


_WHY_NOT: dict[str, Callable[[AttentionCase, Chip], str]] = {
    "cudnn": why_not_cudnn,
    "flash": why_not_flash,
    "splash": why_not_splash,
}
