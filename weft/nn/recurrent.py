"""Recurrent layers: LSTM and GRU, by `wf.scan` along a dim.

What depends on a place alone is computed for all places at once; in turn goes what depends on the one before.
The dim they go along is whole on each processor; `hidden` may be split: a turn then sends its gates once.
"""

from typing import Any

import equinox as eqx

from .. import ops as wf
from ..dims import Dim, DimLike
from ..errors import public
from ..tensor import Tensor
from .arguments import check_dim, check_dims
from .weights import cast_weight, full, normal

GATES = "gates"


class _Recurrent(eqx.Module):
    """What recurrent layers share: products with what comes in, and with the state."""

    w_in: Tensor
    w_hidden: Tensor
    in_bias: Tensor | None
    ins: Dim = eqx.field(static=True)
    hidden: Dim = eqx.field(static=True)

    def _declare(self, ins: Dim, hidden: Dim, gates: int, bias: bool, key: Any) -> None:
        self.ins, self.hidden = check_dim(ins, "ins"), check_dim(hidden, "hidden")
        gate = Dim(GATES, gates)
        self.w_in = normal([ins, gate, _name_state(ins, hidden)], stddev=ins.count**-0.5, key=key, name="w_in")
        self.w_hidden = normal(
            [hidden, gate, _name_state(hidden, hidden)], stddev=hidden.count**-0.5, key=key, name="w_hidden"
        )
        self.in_bias = full([gate, hidden], 0.0, key=key, name="in_bias") if bias else None

    def _from_input(self, x: Tensor) -> Tensor:
        """What the gates take from `x`, for all places at once."""
        check_dims(x, [self.ins], makes=self.w_in.dims.without([self.ins]))
        y = _product(x, self.w_in, self.ins, self.hidden)
        return y if self.in_bias is None else wf.add(y, wf.cast(self.in_bias, x.dtype), names="subset")

    def _start(self, x: Tensor, over: DimLike) -> Tensor:
        """A state of zeros."""
        return wf.zeros([*x.dims.without([self.ins, over]), self.hidden], like=x, dtype=x.dtype)


def _name_state(ins: Dim, hidden: Dim) -> Dim:
    """The state under a name that what goes in does not have."""
    return hidden if ins.name != hidden.name else Dim(f"{hidden.name}_out", hidden.size, hidden.name, hidden.valid)


def _product(x: Tensor, weight: Tensor, ins: Dim, hidden: Dim) -> Tensor:
    made = _name_state(ins, hidden)
    names = {made.name: hidden} if made.name != hidden.name else None
    return wf.einsum(x, cast_weight(weight, x.dtype), over=ins, rename=names)


class LSTM(_Recurrent):
    """A long short-term memory (LSTM) layer, along `length` or another dim."""

    @public
    def __init__(self, ins: Dim, hidden: Dim, *, bias: bool = True, key: Any = None):
        self._declare(ins, hidden, 4, bias, key)

    @public
    def __call__(
        self,
        x: Tensor,
        state: tuple[Tensor, Tensor] | None = None,
        *,
        over: DimLike = "length",
        reverse: bool = False,
        unroll: int = 1,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What each place gives, and the last state (h, c); a state may be begun with."""
        from_inputs = self._from_input(x)
        state = (self._start(x, over), self._start(x, over)) if state is None else state

        def turn(state: Any, from_input: Tensor) -> Any:
            h, c = state
            gates = from_input + _product(h, self.w_hidden, self.hidden, self.hidden)
            into, forget, new, out = wf.unstack(gates, over=GATES)
            c = wf.sigmoid(forget) * c + wf.sigmoid(into) * wf.tanh(new)
            h = wf.sigmoid(out) * wf.tanh(c)
            return (h, c), h

        last, outputs = wf.scan(turn, state, from_inputs, over=over, reverse=reverse, unroll=unroll)
        return outputs, last


class GRU(_Recurrent):
    """A gated recurrent unit (GRU) layer, along `length` or another dim."""

    hidden_bias: Tensor | None

    @public
    def __init__(self, ins: Dim, hidden: Dim, *, bias: bool = True, key: Any = None):
        self._declare(ins, hidden, 3, bias, key)
        self.hidden_bias = full([Dim(GATES, 3), hidden], 0.0, key=key, name="hidden_bias") if bias else None

    @public
    def __call__(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        over: DimLike = "length",
        reverse: bool = False,
        unroll: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """What each place gives, and the last state; a state may be begun with."""
        from_inputs = self._from_input(x)

        def turn(h: Tensor, from_input: Tensor) -> Any:
            from_state = _product(h, self.w_hidden, self.hidden, self.hidden)
            if self.hidden_bias is not None:
                from_state = wf.add(from_state, wf.cast(self.hidden_bias, h.dtype), names="subset")
            reset, update, new = wf.unstack(from_input, over=GATES)
            own_reset, own_update, own_new = wf.unstack(from_state, over=GATES)
            z = wf.sigmoid(update + own_update)
            candidate = wf.tanh(new + wf.sigmoid(reset + own_reset) * own_new)
            h = (1 - z) * candidate + z * h
            return h, h

        start = self._start(x, over) if state is None else state
        last, outputs = wf.scan(turn, start, from_inputs, over=over, reverse=reverse, unroll=unroll)
        return outputs, last
