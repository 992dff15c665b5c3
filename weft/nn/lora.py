"""Fine-tuning with few parameters: to a frozen weight the product of two thin ones is added (LoRA).

Imports the layers' weights. The product is added where the weight is used, layer by layer, so that it is never held
for all layers at once.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax

from ..dims import Dim, Shape
from ..errors import TensorError, public
from ..tensor import Tensor, is_tensor, parameter
from .freezing import freeze, map_paths, matched, unfreeze
from .given import whole
from .weights import Adapted, Weight, checked_key, init, own_key, used

WHERE = ("*.attention.q", "*.attention.v")


@public
def add(model: Any, *, rank: int, key: Any, where: str | Sequence[str] = WHERE, alpha: float | None = None) -> Any:
    """The model with thin weights beside those whose paths match `where`; only the thin ones are trained.

    At first they change nothing. Their product counts `alpha / rank` times; `alpha` is twice the rank unless given.
    """
    checked_key(key)
    rank = whole(rank, "rank")
    if _has_adapters(model):
        raise TensorError("the model has adapters already", fix="fold them in first: `lora.merge(model)`")
    chosen, scale = matched(where, model), (2.0 if alpha is None else alpha / rank)
    mesh, layout = getattr(model, "mesh", None), getattr(model, "layout", None)
    rules = None if layout is None else [*layout.rules, *layout.params, *layout.optimizer]

    def adapted(path: str, x: Any) -> Any:
        if path not in chosen:
            return x
        down, up = init(_thin(path, x, Dim("rank", rank)), own_key(key, path), mesh, layout, dims=rules)
        return Adapted(x, down, up, scale)

    return map_paths(adapted, freeze(model, "*"))


@public
def merge(model: Any) -> Any:
    """The model with the adapters folded into their weights, and all of it trained again."""
    if not _has_adapters(model):
        raise TensorError("the model has no adapters to merge", fix="add some: `lora.add(model, rank=8, key=key)`")

    def fold(leaf: Any) -> Any:
        if not _is_adapted(leaf):
            return leaf
        lies = leaf.weight.array.sharding  # and so does the sum: each processor makes its own slice
        return parameter(jax.jit(lambda weight: used(weight, weight.weight.dtype), out_shardings=lies)(leaf))

    return unfreeze(jax.tree.map(fold, model, is_leaf=lambda x: _is_adapted(x) or is_tensor(x)))


def _has_adapters(model: Any) -> bool:
    return any(map(_is_adapted, jax.tree.leaves(model, is_leaf=_is_adapted)))


def _is_adapted(leaf: Any) -> bool:
    return isinstance(leaf, Adapted)


def _thin(path: str, x: Tensor, rank: Dim) -> tuple[Weight, Weight]:
    """The thin weights: from what `x` reads to the rank, and from there to what it writes; the second is 0 at first."""
    shared = [dim for dim in x.dims if dim.name in ("layers", "experts")]
    own = list(x.dims.without(shared))
    if len(own) < 2 or path.endswith(".table"):
        raise TensorError(
            f"`{path}` has dims [{x.dims}]: no weight of a layer's product",
            fix="adapt such as `*.attention.q` or `*.feed_forward.w_in`",
        )
    cut = 1 if own[0].name == "d_model" else len(own) - 1
    ins, outs = own[:cut], own[cut:]
    stack = next((dim for dim in shared if dim.name == "layers"), None)
    experts = [dim for dim in shared if dim.name == "experts"]
    spread, dtype = math.prod(dim.count for dim in ins) ** -0.5, str(x.dtype)
    down = Weight(Shape([*experts, *ins, rank]), spread, stack=stack, dtype=dtype)
    return down, Weight(Shape([*experts, rank, *outs]), stack=stack, dtype=dtype)
