"""LoRA: fine-tuning by low-rank adapters of frozen weights.

To a weight the product of two others is added, which go through few channels, the rank. Imports the layers' weights.
The product is added where the weight is used, layer by layer, so that it is never held for all layers at once.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax

from ..dims import Dim, Shape
from ..errors import TensorError, public
from ..namespace import namespace
from ..tensor import Tensor, is_tensor, parameter
from .arguments import check_count
from .freezing import freeze, map_paths, match_paths, unfreeze
from .weights import STACKED, LoraWeight, Weight, cast_weight, check_key, init, key_for

WHERE = ("*.attention.q", "*.attention.v")


@public
def add(model: Any, *, rank: int, key: Any, where: str | Sequence[str] = WHERE, alpha: float | None = None) -> Any:
    """The model with LoRA adapters on the weights whose paths match `where`.

    Only the adapters are trained. At first they change nothing. Their product counts `alpha / rank` times; `alpha` is
    twice the rank unless given.
    """
    check_key(key)
    rank = check_count(rank, "rank")
    if _has_adapters(model):
        raise TensorError("the model has adapters already", fix="fold them in first: `lora.merge(model)`")
    chosen, scale = match_paths(where, model), (2.0 if alpha is None else alpha / rank)
    mesh, layout = getattr(model, "mesh", None), getattr(model, "layout", None)
    rules = None if layout is None else [*layout.rules, *layout.params, *layout.optimizer]

    def adapt(path: str, x: Any) -> Any:
        if path not in chosen:
            return x
        down, up = init(_low_rank_pair(path, x, Dim("rank", rank)), key_for(key, path), mesh, layout, dims=rules)
        return LoraWeight(x, down, up, scale)

    return map_paths(adapt, freeze(model, "*"))


@public
def merge(model: Any) -> Any:
    """The model with its LoRA adapters folded in, and all of it trained again."""
    if not _has_adapters(model):
        raise TensorError("the model has no adapters to merge", fix="add some: `lora.add(model, rank=8, key=key)`")

    def fold(leaf: Any) -> Any:
        if not _is_adapted(leaf):
            return leaf
        sharding = leaf.weight.array.sharding  # of the sum too: each processor makes its own slice
        return parameter(jax.jit(lambda weight: cast_weight(weight, weight.weight.dtype), out_shardings=sharding)(leaf))

    return unfreeze(jax.tree.map(fold, model, is_leaf=lambda x: _is_adapted(x) or is_tensor(x)))


def _has_adapters(model: Any) -> bool:
    return any(map(_is_adapted, jax.tree.leaves(model, is_leaf=_is_adapted)))


def _is_adapted(leaf: Any) -> bool:
    return isinstance(leaf, LoraWeight)


def _low_rank_pair(path: str, x: Tensor, rank: Dim) -> tuple[Weight, Weight]:
    """An adapter's two weights: into the rank, and out of it (0 at first)."""
    shared = [dim for dim in x.dims if dim.name in (*STACKED, "experts")]
    dims = list(x.dims.without(shared))
    if len(dims) < 2 or path.endswith(".table"):
        raise TensorError(
            f"`{path}` has dims [{x.dims}]: no weight of a layer's product",
            fix="adapt such as `*.attention.q` or `*.feed_forward.w_in`",
        )
    cut = 1 if dims[0].name == "d_model" else len(dims) - 1
    ins, outs = dims[:cut], dims[cut:]
    stack = tuple(dim for dim in shared if dim.name in STACKED)
    experts = [dim for dim in shared if dim.name == "experts"]
    spread, dtype = math.prod(dim.count for dim in ins) ** -0.5, str(x.dtype)
    down = Weight(Shape([*experts, *ins, rank]), spread, stack=stack, dtype=dtype)
    return down, Weight(Shape([*experts, rank, *outs]), stack=stack, dtype=dtype)


__all__ = ["WHERE", "add", "merge"]

__dir__, __getattr__ = namespace(globals(), called="nn.lora")
