"""The feed-forward part (MLP) of a Transformer block, plain or gated.

Gated with `silu` it is SwiGLU, with `gelu` GEGLU, with `relu` ReGLU; `relu2` is
ReLU squared.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import ops as wf
from ..dims import Dim
from ..errors import public
from ..ops.elementwise import relu_of_array
from ..tensor import Tensor
from .arguments import check_choice, check_dim, check_dims, check_matmul_dtype
from .weights import apply_dropout, cast_weight, full, normal

ACTIVATIONS = {
    "relu": wf.relu,
    "gelu": lambda x: wf.elementwise(lambda a: jax.nn.gelu(a, approximate=False), x),
    "gelu_tanh": wf.gelu,
    "silu": wf.silu,
    "relu2": lambda x: wf.square(wf.relu(x)),
}

ON_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "relu": relu_of_array,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
    "relu2": lambda x: jnp.square(relu_of_array(x)),
}
"""The same of local arrays, for functions that `wf.local` runs."""


class FeedForward(eqx.Module):
    """`w_out(act(w_in(x)))`, or `w_out(act(w_gate(x)) * w_in(x))`."""

    computed: ClassVar[Sequence[str]] = ("w_in", "w_gate", "w_out", "in_bias", "gate_bias", "out_bias")
    w_in: Tensor
    w_gate: Tensor | None
    w_out: Tensor
    in_bias: Tensor | None
    gate_bias: Tensor | None
    out_bias: Tensor | None
    activation: str = eqx.field(static=True)
    matmul_dtype: str | None = eqx.field(static=True)
    """`float8`: its products are fp8 ones."""

    @public
    def __init__(
        self,
        d_model: Dim,
        d_ff: Dim,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = False,
        gate_bias: bool = False,
        matmul_dtype: str | None = None,
        key: Any = None,
    ):
        self.matmul_dtype = check_matmul_dtype(matmul_dtype)
        self.activation = check_choice(activation, ACTIVATIONS, "activation")
        d_model, d_ff = check_dim(d_model, "d_model"), check_dim(d_ff, "d_ff")
        by_width = d_model.count**-0.5
        self.w_in = normal([d_model, d_ff], stddev=by_width, key=key, name="w_in")
        self.w_gate = normal([d_model, d_ff], stddev=by_width, key=key, name="w_gate") if gated else None
        self.w_out = normal([d_ff, d_model], stddev=d_ff.count**-0.5, key=key, name="w_out")
        self.in_bias = full([d_ff], 0.0, key=key, name="in_bias") if bias else None
        self.gate_bias = full([d_ff], 0.0, key=key, name="gate_bias") if gated and gate_bias else None
        self.out_bias = full([d_model], 0.0, key=key, name="out_bias") if bias else None

    @public
    def __call__(self, h: Tensor, *, key: Any = None, dropout: float = 0.0, rename: Any = None) -> Tensor:
        """The result; `rename` lets it leave under other names, as in `einsum`."""
        check_dims(h, self.w_in.dims[:1], makes=self.w_in.dims[1:])
        w_in = cast_weight(self.w_in, h.dtype)
        w_out = cast_weight(self.w_out, h.dtype)
        d_model, d_ff = w_in.dims
        hidden = wf.einsum(h, w_in, over=d_model, matmul_dtype=self.matmul_dtype)
        if self.in_bias is not None:
            hidden = wf.add(hidden, wf.cast(self.in_bias, h.dtype), names="subset")
        activate = ACTIVATIONS[self.activation]
        if self.w_gate is None:
            hidden = activate(hidden)
        else:
            gate = wf.einsum(h, cast_weight(self.w_gate, h.dtype), over=d_model, matmul_dtype=self.matmul_dtype)
            if self.gate_bias is not None:
                gate = wf.add(gate, wf.cast(self.gate_bias, h.dtype), names="subset")
            hidden = wf.multiply(activate(gate), hidden, names="subset")
        hidden = apply_dropout(hidden, dropout, key)
        y = wf.einsum(hidden, w_out, over=d_ff, rename=rename, matmul_dtype=self.matmul_dtype)
        return y if self.out_bias is None else wf.add(y, wf.cast(self.out_bias, h.dtype), names="subset")
