"""Configurations of the models, and the sizes of the paper under their names.

Imports what stands left of the operations. A configuration is checked where it is made; the models trust it.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from ..dims import Dim, Shape
from ..errors import DimError, TensorError, closest
from ..tensor import as_dtype


@dataclasses.dataclass(frozen=True)
class LMConfig:
    """A decoder-only Transformer language model: its sizes, and how it is computed.

    >>> preset("lm-0.14b").param_count
    142619648
    """

    name: str
    layers: int
    d_model: int
    heads: int
    d_kv: int
    d_ff: int
    vocab: int
    batch: int = 256
    """How many sequences `dims` counts on; the data may bring another number."""
    length: int = 256
    """How many tokens a sequence has; the data may bring another number."""
    tied: bool = False
    """Whether the logits are made with the embedding instead of a table of their own."""
    scanned: bool = True
    """Whether the layers are one loop over stacked weights instead of a list."""
    remat: bool = True
    """Whether a layer is computed again in the backward pass instead of kept."""
    dtype: str = "bfloat16"
    """Of activations; parameters are stored in float32, and softmax and loss are computed in it."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field.name, field.type, getattr(self, field.name)))

    @property
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""
        names = "batch length memory_length d_model heads d_kv d_ff vocab".split()
        sizes = {name: getattr(self, name.removeprefix("memory_")) for name in names}
        stacked = [Dim("layers", self.layers)] if self.scanned else []
        return Shape([*(Dim(name, size) for name, size in sizes.items()), *stacked])

    @property
    def param_count(self) -> int:
        """How many numbers the weights hold."""
        attention = 4 * self.d_model * self.heads * self.d_kv
        feed_forward = 2 * self.d_model * self.d_ff
        norms = 2 * self.d_model
        tables = (1 if self.tied else 2) * self.vocab * self.d_model
        return self.layers * (attention + feed_forward + norms) + self.d_model + tables


def _checked(name: str, kind: Any, value: Any) -> Any:
    """The value of one field, if it is of its kind."""
    if name == "dtype":
        dtype = as_dtype(value)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TensorError(f"`dtype` is {dtype}, and activations are floats", fix="give 'bfloat16' or 'float32'")
        return str(dtype)
    if kind is int:
        if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
            raise DimError(f"`{name}` is {value!r}, which is no size", fix=f"give a whole number, e.g. `{name}=8`")
        return int(value)
    if not isinstance(value, kind):
        example = f"{name}=True` or `{name}=False" if kind is bool else f"{name}='my-lm'"
        raise DimError(f"`{name}` is {value!r}, which is no {kind.__name__}", fix=f"say `{example}`")
    return value


def _of_the_paper(name: str, heads: int) -> LMConfig:
    """A row of the paper's table of language models."""
    return LMConfig(name, layers=6, d_model=1024, heads=heads, d_kv=256, d_ff=1024 * heads, vocab=32768)


_PRESETS = {
    config.name: config
    for config in (
        _of_the_paper("lm-0.14b", heads=4),
        _of_the_paper("lm-0.22b", heads=8),
        _of_the_paper("lm-0.37b", heads=16),
        _of_the_paper("lm-0.67b", heads=32),
        _of_the_paper("lm-1.28b", heads=64),
        _of_the_paper("lm-2.48b", heads=128),
        _of_the_paper("lm-4.90b", heads=256),
        LMConfig(
            "tiny-lm", layers=2, d_model=32, heads=8, d_kv=8, d_ff=64, vocab=64, batch=8, length=16,
            remat=False, dtype="float32",
        ),
    )
}  # fmt: skip

PRESETS = tuple(_PRESETS)


def preset(name: str, /, **changes: Any) -> LMConfig:
    """The configuration of that name, with some fields changed.

    >>> preset("tiny-lm", layers=4).layers
    4
    """
    if not isinstance(name, str) or name not in _PRESETS:
        raise DimError(f"there is no preset {name!r}", fix=closest(str(name), _PRESETS))
    fields = [field.name for field in dataclasses.fields(LMConfig)]
    if unknown := next((field for field in changes if field not in fields), None):
        raise DimError(
            f"a language model has no `{unknown}` to change",
            state=f"preset: {name}, {unknown}={changes[unknown]!r}",
            fix=closest(unknown, fields),
        )
    return dataclasses.replace(_PRESETS[name], **changes)
