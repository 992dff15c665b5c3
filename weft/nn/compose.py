"""Layers made of layers: MLP, Sequential, one layer many times; and Dropout.

Imports the layers. A part that takes a `key` is given one of its own.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx

from .. import ops as wf
from ..dims import Dim
from ..errors import DimError, TensorError, public
from ..tensor import Tensor
from .arguments import check_choice, check_number
from .feed_forward import ACTIVATIONS
from .linear import Linear
from .weights import apply_dropout, check_key, fold_key, init, stack


class Dropout(eqx.Module):
    """`x` with dropout: values zero with probability `rate`, the rest scaled.

    Without a key, as in evaluation, `x` as it is.
    """

    rate: float = eqx.field(static=True)

    @public
    def __init__(self, rate: float):
        self.rate = check_number(rate, "rate", least=0, below=1, example=0.1)

    @public
    def __call__(self, x: Tensor, *, key: Any = None) -> Tensor:
        return apply_dropout(x, self.rate, None if key is None else check_key(key))


class MLP(eqx.Module):
    """A multi-layer perceptron: linear maps from dim to dim, an activation between.

    `nn.MLP([features, hidden, classes])` has two maps.
    """

    maps: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    @public
    def __init__(
        self,
        dims: Sequence[Dim],
        *,
        activation: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
        key: Any = None,
    ):
        if not isinstance(dims, Sequence) or len(dims) < 2 or not all(isinstance(dim, Dim) for dim in dims):
            fix = "give the dims that go in, lie between and come out: `nn.MLP([features, hidden, classes])`"
            raise DimError(f"an MLP goes through {dims!r:.80}", fix=fix)
        self.activation = check_choice(activation, ACTIVATIONS, "activation")
        self.dropout = check_number(dropout, "dropout", least=0, below=1, example=0.1)
        maps = tuple(Linear(ins, outs, bias=bias) for ins, outs in itertools.pairwise(dims))
        self.maps = maps if key is None else init({"maps": maps}, key)["maps"]

    @public
    def __call__(self, x: Tensor, *, key: Any = None) -> Tensor:
        for i, linear in enumerate(self.maps):
            x = linear(x if i == 0 else apply_dropout(ACTIVATIONS[self.activation](x), self.dropout, fold_key(key, i)))
        return x


class Sequential(eqx.Module):
    """Layers and functions one after the other: `nn.Sequential([linear, wf.relu])`."""

    parts: tuple[Any, ...]

    @public
    def __init__(self, parts: Sequence[Any]):
        if not isinstance(parts, Sequence) or not all(map(callable, parts)):
            fix = "give a list of layers and functions: `nn.Sequential([linear, wf.relu])`"
            raise TensorError(f"Sequential got {parts!r:.80}", fix=fix)
        self.parts = tuple(part if isinstance(part, eqx.Module) else Function(part) for part in parts)

    @public
    def __call__(self, x: Tensor, *, key: Any = None) -> Tensor:
        for i, part in enumerate(self.parts):
            x = part(x, key=fold_key(key, i)) if takes_key(part) else part(x)
        return x


class Function(eqx.Module):
    """A function as a layer without weights."""

    fn: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.fn(x)


class Stacked(eqx.Module):
    """A layer as often as a dim is long, each with weights of its own, by `wf.scan`.

    The weights of all are stacked along that dim. The layer's result has the dims of what it is given.
    """

    layer: Any
    along: Dim = eqx.field(static=True)

    @public
    def __init__(self, layer: Any, along: Dim):
        if not isinstance(along, Dim):
            fix = "give a dim: `wf.Dim('layers', 12)`"
            raise DimError(f"`along` is {along!r}, which is no dim", fix=fix)
        self.layer, self.along = stack(layer, along), along

    @public
    def __call__(
        self, x: Any, *more: Any, key: Any = None, remat: bool = False, prefetch: bool = False, unroll: int = 1
    ) -> Any:
        """`x` after all of them; `more` is given to each, and a key of its own.

        With `remat` a layer is computed again in the backward pass; `prefetch` and `unroll` are those of `wf.scan`.
        """

        def one(x: Any, layer: Any, number: Any) -> Any:
            if key is None or not takes_key(layer):
                return layer(x, *more)
            return layer(x, *more, key=fold_key(key, number))

        def turn(x: Any, own: Any) -> tuple[Any, None]:
            layer, number = own
            return (wf.remat(one) if remat else one)(x, layer, number.local_array), None

        numbers = wf.arange(self.along)
        return wf.scan(turn, x, (self.layer, numbers), over=self.along, prefetch=prefetch, unroll=unroll)[0]


def takes_key(layer: Any) -> bool:
    """Whether a layer is called with a `key`."""
    try:
        return "key" in inspect.signature(layer).parameters
    except (TypeError, ValueError):  # not every callable tells
        return False
