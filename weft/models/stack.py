"""How a stack of blocks runs: scan or written out, remat, KV cache.

The weights of all blocks are stacked along `layers`; how they run changes neither values nor paths. Where only every
n-th layer has experts, a group of n layers is one turn of the scan: n - 1 dense blocks and one with experts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..dims import UNSHOWN, Dim
from ..nn import weights
from ..nn.weights import apply_dropout, fold_key
from ..ops.ring import is_long, is_ring
from ..tensor import Tensor, is_tensor
from .cache import KeysValues, KVCache
from .config import TransformerConfig

REPORTED = ("balance_loss", "router_z_loss", "dropped", "routed")
_IN_GROUP = f"{UNSHOWN}within"


class Stack(eqx.Module):
    """Blocks and a last norm; experts in some: those are `layers`, others `dense`."""

    layers: Any
    dense: Any
    norm: nn.RMSNorm | nn.LayerNorm
    relative: nn.RelativeBias | None
    config: TransformerConfig = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, make_block: Callable[..., Any], *, norm: Any, relative: Any):
        layers, count = config.dim("layers"), config.layers // _group_size(config)
        block = make_block(has_experts=bool(config.experts))
        self.layers = weights.stack(block, layers.resized(count))
        self.dense = None
        if _group_size(config) > 1:
            self.dense = weights.stack(make_block(has_experts=False), layers.resized(config.layers - count))
        self.config, self.norm, self.relative = config, norm, relative

    def __call__(
        self,
        x: Tensor,
        *,
        mask: nn.Mask,
        memory: Tensor | None = None,
        memory_mask: nn.Mask | None = None,
        key: Any = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The stream after all blocks and the norm, and what the experts report, summed."""
        config, bias = self.config, self._bias(x, mask)

        def one(x: Tensor, block: Any, turn: Any) -> tuple[Tensor, dict[str, Tensor]]:
            own_key = fold_key(key, turn)
            return block(x, mask=mask, bias=bias, memory=memory, memory_mask=memory_mask, key=own_key)[:2]

        if config.remat:
            one = wf.remat(one, save=config.remat.split() if isinstance(config.remat, str) else ())
        x, report, _ = self._run(lambda x, block, past, turn: (*one(x, block, turn), None), x)
        return apply_dropout(self.norm(x), config.dropout, fold_key(key, config.layers)), report

    def prefill(self, x: Tensor, *, mask: nn.Mask) -> tuple[Tensor, KeysValues]:
        """The stream after all blocks, and their keys and values for a KV cache."""
        bias = self._bias(x, mask)

        def one(x: Tensor, block: Any, past: None, turn: Any) -> Any:
            return block(x, mask=mask, bias=bias, drops=False)

        x, _, past = self._run(one, x)
        return self.norm(x), past

    def keys_and_values_of(self, memory: Tensor) -> KeysValues:
        """Every block's keys and values of cross-attention to what an encoder outputs."""

        def one(x: None, block: Any, past: None, turn: Any) -> Any:
            return x, {}, block.keys_and_values_of(memory)

        return self._run(one, None)[2]

    def step(self, x: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """One token, [batch d_model], through all blocks; and the KV cache with it."""
        mask, memory_mask = cache.mask(self.config.window), cache.memory_mask
        bias = self._bias(x, mask)

        def one(x: Tensor, block: Any, pasts: Any, turn: Any) -> Any:
            past, memory = pasts
            kept = {"past": past, "at": cache.at, "memory": memory, "memory_mask": memory_mask}
            return block(x, mask=mask, bias=bias, drops=False, **kept)

        x, _, new = self._run(one, x, (cache.past, cache.memory))
        return self.norm(x), cache.after(new)

    def _bias(self, x: Tensor, mask: nn.Mask) -> Tensor | nn.RelativeBias | None:
        """T5's relative bias, which all blocks share; of a ring or long scores, its maker."""
        if self.relative is None:
            return None
        q = as_length(x)
        k = x if q is x else q.rename(length="memory_length")
        if is_ring(q, k) or (self.config.attention == "auto" and is_long(q, k)):
            return self.relative
        positions = mask.query_positions(q)
        return self.relative(positions, mask.key_positions(k))

    def _run(self, one: Callable[..., Any], x: Any, pasts: Any = None) -> tuple[Any, dict[str, Tensor], Any]:
        """The last x, the report summed, and what each block outputs.

        For each block `one(x, block, its past, its number)` gives these three. `pasts` are stacked along `layers`, and
        so is what the blocks make.
        """
        config, size = self.config, _group_size(self.config)
        count = config.layers // size
        blocks: Any = (self.layers,) if self.dense is None else (_group(self.dense, size - 1), self.layers)
        pasts = pasts if size == 1 else _group(pasts, size)
        report = {name: wf.zeros([], dtype="float32") for name in REPORTED} if config.experts else {}

        def run_group(x: Any, blocks: Sequence[Any], pasts: Any, number: Any) -> Any:
            own_blocks = [blocks[0]] if size == 1 else [*_unstack(blocks[0], _IN_GROUP), blocks[1]]
            own_pasts = [pasts] if size == 1 else _unstack(pasts, _IN_GROUP) or [None] * size
            more, outputs = report, []
            for i, (block, past) in enumerate(zip(own_blocks, own_pasts, strict=True)):
                x, own_report, new = one(x, block, past, number * size + i)
                more = own_report or more
                outputs.append(new)
            return x, more, outputs

        if not config.scanned:
            outputs: list[Any] = []
            own_pasts = _unstack(pasts, "layers") or [None] * count
            for number, own_blocks in enumerate(zip(*(_unstack(part, "layers") for part in blocks), strict=True)):
                x, more, new = run_group(x, own_blocks, own_pasts[number], number)
                report = {name: report[name] + more[name] for name in report if more}
                outputs += new
            return x, report, _stack(outputs, Dim("layers", config.layers))

        def turn(carry: Any, xs: Any) -> Any:
            x, sums = carry
            own_blocks, own_pasts, number = xs
            x, more, outputs = run_group(x, own_blocks, own_pasts, number.local_array)
            sums = {name: sums[name] + more[name] for name in sums}
            return (x, sums), outputs[0] if size == 1 else _stack(outputs, Dim(_IN_GROUP, size))

        numbers = wf.arange(config.dim("layers").resized(count))
        (x, report), outputs = wf.scan(
            turn,
            (x, report),
            (blocks, pasts, numbers),
            over="layers",
            unroll=config.unroll,
            prefetch=config.prefetch,
        )
        return x, report, outputs if size == 1 else _ungroup(outputs, config.dim("layers"))


def as_length(x: Tensor) -> Tensor:
    """The residual stream under the name its positions have inside a block: `length`."""
    return x.rename(stream="length") if x.dims.has("stream") else x


def _group_size(config: TransformerConfig) -> int:
    """Every how many layers there is one with experts; 1 where all layers are alike."""
    return config.every if config.experts else 1


# Trees of tensors with a dim of layers: in groups, one by one, and stacked again.


def _group(tree: Any, size: int) -> Any:
    def cut(x: Tensor) -> Tensor:
        dim = x.dim("layers")
        return wf.split(x, layers=[dim.resized(dim.size // size), Dim(_IN_GROUP, size)])

    return jax.tree.map(cut, tree, is_leaf=is_tensor)


def _ungroup(tree: Any, layers: Dim) -> Any:
    return jax.tree.map(lambda x: wf.merge(x, ["layers", _IN_GROUP], into=layers), tree, is_leaf=is_tensor)


def _unstack(tree: Any, along: str) -> list[Any]:
    """The tree of each place along a dim; none of a tree without tensors."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    columns = [wf.unstack(leaf, over=along) for leaf in leaves]
    return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def _stack(trees: Sequence[Any], dim: Dim) -> Any:
    return jax.tree.map(lambda *xs: wf.stack(xs, dim), *trees, is_leaf=is_tensor)
