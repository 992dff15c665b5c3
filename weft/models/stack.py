"""How a stack of blocks runs: scan or written out, remat, pipeline, KV cache.

The weights of all blocks are stacked along `layers`; how they run changes neither values nor paths. Where only every
n-th layer has experts, or layers are local and global in turn, a group of them is one turn of the scan; what is left
behind the last whole group is written out. Cut into stages, the weights are [stage layers ..], and microbatches flow
through them (`wf.pipeline`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..dims import UNSHOWN, Dim
from ..errors import DimError
from ..lower.rules import state_of, stores_parameters, ways_under
from ..nn import weights
from ..nn.moe import summarise
from ..nn.weights import apply_dropout, fold_key, number_along
from ..ops.block_case import chip_of
from ..ops.in_turn import in_turn
from ..ops.ring import is_long, is_ring
from ..tensor import Tensor, is_tensor
from .cache import KeysValues, KVCache
from .config import TransformerConfig
from .parts import apply_norm

_MEANS = ("balance_loss", "router_z_loss")
"""Of what experts report, what is a mean over the rows they see."""
_IN_GROUP = f"{UNSHOWN}within"
MOST_WRITTEN_OUT = 48
"""How many layers `scanned = "auto"` writes out at most: XLA compiles about three a second."""


class Stack(eqx.Module):
    """Blocks and a last norm; experts in some: those are `layers`, others `dense`."""

    layers: Any
    dense: Any
    norm: nn.RMSNorm | nn.LayerNorm | None
    relative: nn.RelativeBias | None
    config: TransformerConfig = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, make_block: Callable[..., Any], *, norm: Any, relative: Any):
        size, groups = config.group_size, config.layers // config.group_size
        is_padded = groups < config.chunk_groups * config.stages * config.pipeline_rounds

        def stack(block: Any, per_group: int) -> Any:
            return weights.stack(block, config.stack_dims(per_group), groups * per_group if is_padded else None)

        in_group = size // config.every if config.experts else size
        self.layers = stack(make_block(has_experts=bool(config.experts)), in_group)
        self.dense = stack(make_block(has_experts=False), size - in_group) if size > in_group else None
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
        config = self.config
        if x.dims.has("microbatch"):
            x, report = self._flow(x, (mask, memory, memory_mask), key)
        else:
            one = self._block_runner(mask, self.bias(x, mask), memory, memory_mask, key)
            if config.remat:
                one = wf.remat(one, save=self._names_kept)
            x, report, _ = self._run_all(lambda x, block, past, turn: (*one(x, block, turn), None), x)
        return apply_dropout(apply_norm(self.norm, x), config.output_drop, fold_key(key, config.layers)), report

    @property
    def _names_kept(self) -> list[str]:
        """The names of what remat keeps, of those that these blocks have."""
        names = self.config.remat.split() if isinstance(self.config.remat, str) else []
        has_memory = self.layers.memory_attention is not None
        return [name for name in names if name.partition("@")[0] != "memory_attention" or has_memory]

    @property
    def _keeps_stream(self) -> bool:
        """Whether remat keeps what goes into a layer."""
        return any(name.partition("@")[0] == "stream" for name in self._names_kept)

    def _block_runner(
        self, mask: nn.Mask, bias: Any, memory: Any, memory_mask: nn.Mask | None, key: Any, *, recomputes: bool = False
    ) -> Callable[..., Any]:
        """What runs one block in training: `one(x, block, its number)`.

        With `recomputes` each block is recomputed by itself, inside what is recomputed of all.
        """

        def one(x: Tensor, block: Any, turn: Any) -> tuple[Tensor, dict[str, Tensor]]:
            own_key = fold_key(key, turn)
            how: dict[str, Any] = {"memory": memory, "memory_mask": memory_mask, "key": own_key, "number": turn}
            return block(x, mask=mask, bias=bias, **how)[:2]

        run = (
            wf.remat(one, save=[n for n in self._names_kept if n.partition("@")[0] != "stream"]) if recomputes else one
        )
        return (lambda x, block, turn: run(wf.name(x, "stream"), block, turn)) if self._keeps_stream else run

    def _flow(self, x: Tensor, given: Any, key: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The stream after all stages of a pipeline, and the experts' report.

        What is given to blocks beside it flows along where it differs by row, and is closed over where it does not.
        """
        config = self.config
        leaves, structure = jax.tree.flatten(given, is_leaf=is_tensor)
        flows = [leaf.dims.has("batch") for leaf in leaves]
        # Or all layers of a stage would be held while it is recomputed; not again where their inputs are kept.
        recomputes = (config.remat is True or self._keeps_stream) and config.chunk_groups * config.group_size > 1
        bias = None if self.relative is None or _positions_flow(given[0]) else self.bias(x, given[0])

        def stage(state: Any, own: Any, _: Any) -> Any:
            x, flowing = state
            blocks, numbers = own
            left = iter(flowing)
            whole = [next(left) if flag else leaf for leaf, flag in zip(leaves, flows, strict=True)]
            mask, memory, memory_mask = jax.tree.unflatten(structure, whole)
            own_bias = self.bias(x, mask) if bias is None else bias
            one = self._block_runner(mask, own_bias, memory, memory_mask, key, recomputes=recomputes)
            block = lambda x, block, past, turn: (*one(x, block, turn), None)  # noqa: E731
            x, report, _ = self._run(block, x, blocks, None, numbers)
            return (x, flowing), report

        state = x, [leaf for leaf, flag in zip(leaves, flows, strict=True) if flag]
        numbers = number_along(config.stack_dims(1))
        micro, rounds, save = config.microbatch, config.pipeline_rounds, self._names_kept
        (x, _), report = wf.pipeline(stage, state, (self._blocks(), numbers), micro=micro, rounds=rounds, save=save)
        return x, {name: value / micro.size if name in _MEANS else value for name, value in report.items()}

    def prefill(self, x: Tensor, *, mask: nn.Mask) -> tuple[Tensor, KeysValues]:
        """The stream after all blocks, and their keys and values for a KV cache."""
        bias = self.bias(x, mask)

        def one(x: Tensor, block: Any, past: None, turn: Any) -> Any:
            return block(x, mask=mask, bias=bias, drops=False, number=turn)

        x, _, past = self._run_all(one, x)
        return apply_norm(self.norm, x), past

    def keys_and_values_of(self, memory: Tensor) -> KeysValues:
        """Every block's keys and values of cross-attention to what an encoder outputs."""

        def one(x: None, block: Any, past: None, turn: Any) -> Any:
            return x, {}, block.keys_and_values_of(memory)

        return self._run_all(one, None)[2]

    def step(self, x: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """One token, [batch d_model], or a few of `stream`; and the KV cache with them."""
        mask, memory_mask = cache.mask(as_length(x)), cache.memory_mask
        bias = self.bias(x, mask)

        def one(x: Tensor, block: Any, pasts: Any, turn: Any) -> Any:
            past, memory = pasts
            kept = {"past": past, "at": cache.at, "memory": memory, "memory_mask": memory_mask}
            return block(x, mask=mask, bias=bias, drops=False, number=turn, **kept)

        x, _, new = self._run_all(one, x, (cache.past, cache.memory))
        return apply_norm(self.norm, x), cache.after(new)

    def each_block(self) -> list[Any]:
        """The blocks of all layers in their order, each by itself."""
        return self._in_order([_unstack(part, "layers") for part, _ in self._parts()])

    def _in_order(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        """Blocks from the first of a group on: dense and with experts, local and global."""
        config, left = self.config, [iter(part) for part in parts]
        kinds = config.layer_kinds
        blocks = []
        for i in range(sum(len(part) for part in parts)):
            is_last = self.dense is None or i % config.every == config.every - 1
            blocks.append(next(left[-1 if is_last else 0]).of_kind(kinds[i % len(kinds)]))
        return blocks

    def bias(self, x: Tensor, mask: nn.Mask) -> Tensor | nn.RelativeBias | None:
        """T5's relative bias, which all blocks share; its maker, if scores are in blocks."""
        return None if self.relative is None else relative_bias(self.relative, x, mask, self.config)

    def _parts(self) -> list[tuple[Any, int]]:
        """The weights of blocks, dense ones first, and how many of each a group has."""
        size = self.config.group_size
        in_group = size // self.config.every if self.config.experts else size
        return [*([] if self.dense is None else [(self.dense, size - in_group)]), (self.layers, in_group)]

    def _blocks(self) -> tuple[Any, ...]:
        """The weights of blocks in groups, dense ones of each group first."""
        return tuple(_group_blocks(part, count) for part, count in self._parts())

    def _is_scanned(self, blocks: Any) -> bool:
        """Whether the layers run as one loop; by `auto` where that costs little.

        A loop stacks what each turn keeps for the backward pass. On a GPU that is a copy of most results; with remat
        there are few of them, and of weights stored split a loop gathers a layer at a time.
        """
        config = self.config
        if isinstance(config.scanned, bool):
            return config.scanned
        weight = jax.tree.leaves(blocks, is_leaf=is_tensor)[0]
        is_held = not config.remat and config.stages == 1 and not config.prefetch and not stores_parameters(weight)
        return chip_of(weight).kind != "gpu" or not is_held or config.layers > MOST_WRITTEN_OUT

    def _run_all(self, one: Callable[..., Any], x: Any, pasts: Any = None) -> tuple[Any, dict[str, Tensor], Any]:
        """As `_run`, of all layers; pasts and outputs of stages are stacked as they are."""
        config, size = self.config, self.config.group_size

        def run(x: Any, own: Any) -> tuple[Any, dict[str, Tensor], Any]:
            blocks, numbers, pasts = own
            pasts = pasts if size == 1 else _group(pasts, size)
            x, report, outputs = self._run(one, x, blocks, pasts, numbers)
            return x, report, _ungroup(outputs, size) if size > 1 and self._is_scanned(blocks) else outputs

        if config.stages == 1:
            groups, left = divmod(config.layers, size)
            if not left:
                return run(x, (self._blocks(), groups, pasts))
            first = tuple(_group_blocks(_cut(part, 0, groups * count), count) for part, count in self._parts())
            x, report, outputs = run(x, (first, groups, _cut(pasts, 0, groups * size)))
            return self._run_rest(one, x, pasts, report, outputs)
        own = (self._blocks(), number_along(config.stack_dims(1)), pasts)
        x, outputs = in_turn(lambda x, own: run(x, own)[::2], x, own)
        return x, {}, outputs

    def _run_rest(self, one: Callable[..., Any], x: Any, pasts: Any, report: Any, outputs: Any) -> Any:
        """What `_run` gives with the layers behind the last whole group, written out."""
        groups, left = divmod(self.config.layers, self.config.group_size)
        start = self.config.layers - left
        behind = [_unstack(_cut(part, groups * count, None), "layers") for part, count in self._parts()]
        own_pasts = _unstack(_cut(pasts, start, None), "layers") or [None] * left
        told, made = [], []
        for i, (block, past) in enumerate(zip(self._in_order(behind), own_pasts, strict=True)):
            x, of_block, new = one(x, block, past, start + i)
            told += [of_block] if of_block else []
            made.append(new)
        more = _report(_stack(told, Dim("layers", len(told)))) if told else {}
        report = {name: value + more[name] for name, value in report.items()} if more else report
        join = lambda a, b: wf.concat([a, b], over="layers")  # noqa: E731
        return x, report, jax.tree.map(join, outputs, _stack(made, Dim("layers", left)), is_leaf=is_tensor)

    def _run(
        self, one: Callable[..., Any], x: Any, blocks: Any, pasts: Any, numbers: Any
    ) -> tuple[Any, dict[str, Tensor], Any]:
        """The last x, the report summed, and what each block outputs.

        For each block `one(x, block, its past, its number)` gives these three. `pasts` are stacked along `layers`, and
        so is what the blocks make. `numbers` are those of the groups, or how many of them there are. A group in the
        padding of a stage gives x as it is.
        """
        config, size = self.config, self.config.group_size
        groups = config.layers // size
        is_padded = (
            not isinstance(numbers, int) and groups < config.chunk_groups * config.stages * config.pipeline_rounds
        )

        def run_group(x: Any, blocks: Sequence[Any], pasts: Any, number: Any) -> Any:
            own_blocks = self._in_order([_unstack_group(part) for part in blocks])
            own_pasts = [pasts] if size == 1 else _unstack(pasts, _IN_GROUP) or [None] * size
            before, outputs = x, []
            all_told: list[dict[str, Tensor]] = []
            for i, (block, past) in enumerate(zip(own_blocks, own_pasts, strict=True)):
                x, of_block, new = one(x, block, past, number * size + i)
                all_told += [of_block] if of_block else []
                outputs.append(new)
            told = _stack(all_told, Dim(_IN_GROUP, len(all_told))) if len(all_told) > 1 else (all_told or [{}])[0]
            if is_padded:
                x = wf.where(number < groups, x, before)
                told = {name: wf.where(number < groups, value, 0.0) for name, value in told.items()}
            return x, told, outputs

        if not self._is_scanned(blocks):
            count = numbers if isinstance(numbers, int) else numbers.size("layers")
            own_numbers: Any = range(count)
            if not isinstance(numbers, int):
                own_numbers = [number.local_array for number in wf.unstack(numbers, over="layers")]
            outputs, all_told = [], []
            own_pasts = _unstack(pasts, "layers") or [None] * count
            turns = zip(
                own_numbers, own_pasts, zip(*(_unstack(part, "layers") for part in blocks), strict=True), strict=True
            )
            for number, past, own_blocks in turns:
                x, told, new = run_group(x, own_blocks, past, number)
                all_told.append(told)
                outputs += new
            return x, _report(_stack(all_told, Dim("layers", count))), _stack(outputs, Dim("layers", count * size))

        def turn(x: Any, xs: Any) -> Any:
            own_blocks, own_pasts, number = xs
            x, told, outputs = run_group(x, own_blocks, own_pasts, number.local_array)
            return x, (told, outputs[0] if size == 1 else _stack(outputs, Dim(_IN_GROUP, size)))

        if isinstance(numbers, int):
            numbers = wf.arange(Dim("layers", numbers))
        how: dict[str, Any] = {"unroll": config.unroll, "prefetch": config.prefetch}
        x, (told, stacked) = wf.scan(turn, x, (blocks, pasts, numbers), over="layers", **how)
        return x, _report(told), stacked


def _report(told: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The experts' report of all layers, of their statistics."""
    if not told:
        return {}
    statistics = told["statistics"]
    return summarise(_ungroup(statistics, statistics.size(_IN_GROUP)) if statistics.dims.has(_IN_GROUP) else statistics)


def deal_out(batch: Mapping[str, Any], config: TransformerConfig) -> dict[str, Any]:
    """The batch as microbatches of a pipeline, if there is one; no row moves.

    Row i goes to microbatch i mod their number. What comes before and after the pipeline is split over its stages by
    these, so that no stage does what another does.
    """
    micro = config.microbatch
    if config.stages == 1:
        return dict(batch)

    def deal(x: Tensor) -> Tensor:
        rows, ways, state = x.dim("batch"), ways_under(x, micro), state_of(x)
        if micro.size % ways:
            raise DimError(
                f"{micro.size} microbatches of a pipeline do not divide over the {ways} processors of `stage`",
                state=state,
                fix=f"say `pipeline_microbatches={-(-micro.size // ways) * ways}`, or another multiple of {ways}",
            )
        if rows.size % (step := micro.size * x.ways("batch")):
            split = f" split {x.ways('batch')} ways" if x.ways("batch") > 1 else ""
            raise DimError(
                f"a batch of {rows.size}{split} does not divide into {micro.size} microbatches of a pipeline",
                state=state,
                fix=f"make it a multiple of {step} (nearest: {-(-rows.size // step) * step}), "
                "or say another `pipeline_microbatches`",
            )
        return wf.split(x, batch=[rows.resized(rows.size // micro.size), micro])

    return {name: deal(x) for name, x in batch.items()}


def put_together(x: Tensor) -> Tensor:
    """The rows of all microbatches of a pipeline, in their order, if it is dealt out."""
    if not x.dims.has("microbatch"):
        return x
    rows, micro = x.dim("batch"), x.dim("microbatch")
    return wf.merge(x, [rows, micro], into=rows.resized(rows.size * micro.size))


def relative_bias(
    relative: nn.RelativeBias, x: Tensor, mask: nn.Mask, config: TransformerConfig
) -> Tensor | nn.RelativeBias:
    """T5's relative bias for the places of x; its maker, if scores are in blocks."""
    q = mask.query_places(as_length(x))  # of x no other dim matters: with keys' places it need not meet
    k = q.rename(length="memory_length") if q.dims.has("length") else x
    if is_ring(q, k) or (config.attention == "auto" and is_long(q, k)):
        return relative
    return relative(q, mask.key_places(k))


def _positions_flow(mask: nn.Mask) -> bool:
    """Whether rows have positions of their own."""
    return any(x is not None and x.dims.has("batch") for x in (mask.positions, mask.memory_positions))


def as_length(x: Tensor) -> Tensor:
    """The residual stream under the name its positions have inside a block: `length`."""
    return x.rename(stream="length") if x.dims.has("stream") else x


# Trees of tensors with a dim of layers: in groups, one by one, and stacked again.


def _group(tree: Any, size: int) -> Any:
    def cut(x: Tensor) -> Tensor:
        dim = x.dim("layers")
        return wf.split(x, layers=[dim.resized(dim.size // size), Dim(_IN_GROUP, size)])

    return jax.tree.map(cut, tree, is_leaf=is_tensor)


def _group_blocks(part: Any, count: int) -> Any:
    """The weights of blocks with a dim of those in a group, where there are several."""
    return _group(part, count) if count > 1 else part


def _unstack_group(part: Any) -> list[Any]:
    """The blocks of a group, or the only one."""
    first = jax.tree.leaves(part, is_leaf=is_tensor)[0]
    return _unstack(part, _IN_GROUP) if first.dims.has(_IN_GROUP) else [part]


def _cut(tree: Any, start: int, end: int | None) -> Any:
    """The tree of layers from `start` on, to before the `end`."""

    def cut(x: Tensor) -> Tensor:
        size = (x.size("layers") if end is None else end) - start
        return wf.slice(x, over="layers", start=start, size=size)

    return jax.tree.map(cut, tree, is_leaf=is_tensor)


def _ungroup(tree: Any, size: int) -> Any:
    def join(x: Tensor) -> Tensor:
        return wf.merge(x, ["layers", _IN_GROUP], into=Dim("layers", x.size("layers") * size))

    return jax.tree.map(join, tree, is_leaf=is_tensor)


def _unstack(tree: Any, along: str) -> list[Any]:
    """The tree of each place along a dim; none of a tree without tensors."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    columns = [wf.unstack(leaf, over=along) for leaf in leaves]
    return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def _stack(trees: Sequence[Any], dim: Dim) -> Any:
    return jax.tree.map(lambda *xs: wf.stack(xs, dim), *trees, is_leaf=is_tensor)
