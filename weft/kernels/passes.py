"""The kernels of flash attention, as calls on plain arrays that are whole blocks.

The forward pass gives the result and the log-sum of each query, from which the backward passes make the shares again,
block by block. A program of the forward pass and of the gradients of queries has one block of queries and goes over the
keys; one of the gradients of keys has a tile of keys, or two, and goes over the queries of all heads that share it.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .blocks import GROUP, Tile, parts
from .plain import UNSEEN
from .tiles import LOG2E, LOWEST, How, TileSide, drop, exp2, keeps, loop, mask, scores, zero

Arrays = dict[str, Any]
"""`q k v bounds`, and what there is of `positions segments rows`, `key_positions key_segments columns later`, `prefix`
and `bias`; backward also `gradient log_sum delta`."""


@dataclass(frozen=True)
class Pass:
    """One of the kernels, on arrays of these sizes."""

    how: How
    block: Tile
    parts: tuple[bool, bool, bool]
    group: int
    """How many heads of queries share a head of keys."""

    @classmethod
    def of(cls, how: How, block: Tile, given: Arrays) -> "Pass":
        group = given["q"].shape[2] // given["k"].shape[2]
        return cls(how, block, parts(given["bounds"]), group)

    def call(self, kernel: Any, grid: Sequence[int], given: Arrays, out: Arrays, *, is_whole: bool = False) -> Any:
        """Runs `kernel(self, refs, outputs)` over the grid (blocks, heads, batch).

        A program sees its own row of the batch and the heads that share its head of keys, or `is_whole` all.
        """
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        shared = grid[1] // given["k"].shape[2]  # how many programs along heads share a head of keys

        def spec(name: str, x: Any) -> Any:
            if is_whole:
                return pl.BlockSpec(x.shape, lambda *_: (0,) * len(x.shape))
            shape, axes = _cut(name, x.shape, self.group)

            def place(_: Any, head: Any, row: Any) -> tuple[Any, ...]:
                at = {"batch": row, "heads": head if shared == 1 else lax.div(head, shared), "": 0}
                return tuple(at[axis] if x.shape[i] > 1 else 0 for i, axis in enumerate(axes))

            return pl.BlockSpec(shape, place)

        return pl.pallas_call(
            functools.partial(kernel, self),
            grid=tuple(grid),
            in_specs=[{name: spec(name, x) for name, x in given.items()}],
            out_specs={name: spec(name, x) for name, x in out.items()},
            out_shape=out,
            interpret=self.how.is_interpreted,
            compiler_params=triton.CompilerParams(num_warps=self.block.warps, num_stages=self.block.stages),
            cost_estimate=_cost(kernel.__name__, given, out),
            name=kernel.__name__.strip("_"),
        )(given)


_PRODUCTS = {"_attend_forward": 2, "_attend_backward_queries": 2, "_attend_backward_keys": 3}
"""What each kernel has of the seven products of attention and its gradients; scores made again are not counted."""


def _cost(name: str, given: Arrays, out: Arrays) -> Any:
    """What a kernel computes and moves, as a reader of programs is told."""
    from jax.experimental import pallas as pl

    (batch, length, heads, width), memory = given["q"].shape, given["k"].shape[1]
    flops = 2 * batch * heads * length * memory * width * _PRODUCTS.get(name, 0)
    moved = sum(math.prod(x.shape) * x.dtype.itemsize for x in (*given.values(), *out.values()))
    return pl.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=moved)


@dataclass(frozen=True)
class HeadView:
    """What a program reads of one head in one row of the batch."""

    run: Pass
    refs: Arrays
    head: Any
    """Of queries, among those a program sees; those of keys are chosen by the grid, where `row` is."""
    row: Any = None
    """Of the batch, where a program sees all rows and heads."""

    def places(self, name: str, at: Any) -> Any:
        """Of [batch or 1, places]; None where there is no such array."""
        if (ref := self.refs.get(name)) is None:
            return None
        return ref[at] if self.row is None else ref[self.row if ref.shape[0] > 1 else 0, at]

    def words(self, name: str, at: Any) -> Any:
        """Of [batch heads places]."""
        if (ref := self.refs.get(name)) is None:
            return None
        return ref[self.head, at] if self.row is None else ref[self.row, self.head, at]

    def vectors(self, name: str, at: Any) -> Any:
        """Of [batch places heads width]."""
        is_of_keys, ref = name in ("k", "v"), self.refs[name]
        if self.row is None:
            return ref[at, :] if is_of_keys else ref[at, self.head, :]
        return ref[self.row, at, lax.div(self.head, self.run.group) if is_of_keys else self.head, :]

    @property
    def prefix(self) -> Any:
        if (ref := self.refs.get("prefix")) is None:
            return None
        return ref[...] if self.row is None else ref[self.row]

    def bias(self, start: Any, key_start: Any, *, turned: bool = False) -> Any:
        """The bias of a tile."""
        from jax.experimental import pallas as pl

        if (ref := self.refs.get("bias")) is None:
            return None
        tile = pl.ds(start, self.run.block.queries), pl.ds(key_start, self.run.block.keys)
        rows, heads = ref.shape[:-2] if ref.ndim == 4 else (1, ref.shape[0])
        head = self.head if heads > 1 else 0
        found = ref[(head, *tile) if ref.ndim == 3 else (self.row if rows > 1 else 0, head, *tile)]
        return found.T if turned else found

    def queries(self, start: Any, *, turned: bool = False) -> TileSide:
        """What a block of queries says of itself."""
        from jax.experimental import pallas as pl

        at = pl.ds(start, self.run.block.queries)
        index = start + jnp.arange(self.run.block.queries, dtype=jnp.int32)
        axis = 0 if turned else 1
        return TileSide.along(
            axis, index, self.places("positions", at), self.places("segments", at), self.words("rows", at)
        )

    def keys(self, start: Any, *, turned: bool = False) -> TileSide:
        """What a tile of keys says of itself."""
        from jax.experimental import pallas as pl

        at = pl.ds(start, self.run.block.keys)
        index = start + jnp.arange(self.run.block.keys, dtype=jnp.int32)
        positions, segments = (self.places(f"key_{name}", at) for name in ("positions", "segments"))
        later = self.refs["later"][at] if "later" in self.refs else None
        return TileSide.along(1 if turned else 0, index, positions, segments, self.words("columns", at), later)


def _cut(name: str, sizes: Sequence[int], group: int) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    """The block of an array a program sees, and the axis of the grid along each dim."""
    match name:
        case "q" | "gradient" | "result" | "d_q":
            return (None, sizes[1], group, sizes[3]), ("batch", "", "heads", "")
        case "k" | "v" | "d_k" | "d_v":
            return (None, sizes[1], None, sizes[3]), ("batch", "", "heads", "")
        case "rows" | "columns" | "log_sum" | "delta":
            return (None, group, sizes[2]), ("batch", "heads", "")
        case "bias":
            return (None, group if sizes[1] > 1 else 1, *sizes[2:]), ("batch", "heads", "", "")
        case "bounds":
            return (None, *sizes[1:]), ("batch", "", "")
        case "prefix":
            return (None,), ("batch",)
        case "later":
            return tuple(sizes), ("",)
        case _:
            return (None, sizes[1]), ("batch", "")


# Forward.


def forward(how: How, block: Tile, given: Arrays) -> tuple[Any, Any]:
    """The result, as `q`, and the log-sum of exp(scores): [batch heads length]."""
    q = given["q"]
    batch, length, heads, _ = q.shape
    out = {
        "result": jax.ShapeDtypeStruct(q.shape, q.dtype),
        "log_sum": jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
    }
    run = Pass.of(how, block, given)
    found = run.call(_attend_forward, (length // block.queries, heads, batch), given, out)
    return found["result"], found["log_sum"]


def _attend_forward(run: Pass, refs: Arrays, out: Arrays) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import dot

    how, block = run.how, run.block
    place = pl.num_programs(0) - 1 - pl.program_id(0)  # the longest first
    head = lax.rem(pl.program_id(1), run.group)
    start = place * block.queries
    at = pl.ds(start, block.queries)
    view = HeadView(run, refs, head)
    q, here = view.vectors("q", at), view.queries(start)
    limits = [refs["bounds"][place, i] for i in range(4)]
    nothing = zero(limits)

    def add(turn: Any, carry: Any, *, masked: bool) -> Any:
        total, largest, shares = carry
        starts = how.starts(turn, block)
        there = [view.keys(start_) for start_ in starts]
        tiles = []
        for start_, keys in zip(starts, there, strict=True):
            product = dot(q, view.vectors("k", pl.ds(start_, block.keys)), trans_b=True)
            r, _ = scores(how, product, view.bias(start, start_))
            tiles.append(mask(how, r, here, keys, view.prefix)[0] if masked else r)
        new = functools.reduce(jnp.maximum, [r.max(axis=1) * how.factor for r in tiles], largest)
        old = jnp.exp2(largest - new)
        total, shares = total * old[:, None], shares * old
        for start_, r, kept in zip(starts, tiles, keeps(how, here, there), strict=True):
            share = exp2(how, r, new[:, None])
            shares = shares + share.sum(axis=1)
            v = view.vectors("v", pl.ds(start_, block.keys))
            total = total + dot(drop(kept, share, nothing).astype(v.dtype), v)
        return total, new, shares

    rows = block.queries
    carry = jnp.zeros(q.shape, jnp.float32), jnp.full(rows, LOWEST, jnp.float32), jnp.zeros(rows, jnp.float32)
    total, largest, shares = loop(run.parts, limits, how.turns(block), add, carry)
    shares = jnp.where(shares == 0, 1.0, shares)
    out["result"][at, head, :] = (total / (shares * (1 - how.dropout))[:, None]).astype(q.dtype)
    out["log_sum"][head, at] = largest * (1 / LOG2E) + jnp.log(shares)


# Backward.


def backward_queries(how: How, block: Tile, given: Arrays) -> Any:
    """The gradients of queries."""
    q = given["q"]
    batch, length, heads, _ = q.shape
    run = Pass.of(how, block, given)
    out = {"d_q": jax.ShapeDtypeStruct(q.shape, q.dtype)}
    return run.call(_attend_backward_queries, (length // block.queries, heads, batch), given, out)["d_q"]


def _attend_backward_queries(run: Pass, refs: Arrays, out: Arrays) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import dot

    how, block = run.how, run.block
    place = pl.num_programs(0) - 1 - pl.program_id(0)
    head = lax.rem(pl.program_id(1), run.group)
    start = place * block.queries
    at = pl.ds(start, block.queries)
    view = HeadView(run, refs, head)
    q, gradient, here = view.vectors("q", at), view.vectors("gradient", at), view.queries(start)
    ends = view.words("log_sum", at)[:, None], view.words("delta", at)[:, None]
    limits = [refs["bounds"][place, i] for i in range(4)]

    def add(turn: Any, d_q: Any, *, masked: bool) -> Any:
        starts = how.starts(turn, block)
        there = [view.keys(start_) for start_ in starts]
        for start_, keys, kept in zip(starts, there, keeps(how, here, there), strict=True):
            k, v = (view.vectors(name, pl.ds(start_, block.keys)) for name in ("k", "v"))
            given = dot(q, k, trans_b=True), dot(gradient, v, trans_b=True), view.bias(start, start_), *ends
            _, d_product = _pull_back(how, *given, kept, here, keys, view.prefix if masked else None, masked=masked)
            d_q = d_q + dot(d_product.astype(k.dtype), k)
        return d_q

    d_q = jnp.zeros(q.shape, jnp.float32)
    d_q = loop(run.parts, limits, how.turns(block), add, d_q)
    out["d_q"][at, head, :] = (d_q * (how.scale / (1 - how.dropout))).astype(q.dtype)


def backward_keys(how: How, block: Tile, given: Arrays) -> tuple[Any, Any]:
    """The gradients of keys and values."""
    k, v = given["k"], given["v"]
    batch, memory, heads, _ = k.shape
    run = Pass.of(how, block, given)
    out = {"d_k": jax.ShapeDtypeStruct(k.shape, k.dtype), "d_v": jax.ShapeDtypeStruct(v.shape, v.dtype)}
    tiles = memory // (block.keys * how.tiles(block))
    found = run.call(_attend_backward_keys, (tiles, heads, batch), given, out)
    return found["d_k"], found["d_v"]


def _attend_backward_keys(run: Pass, refs: Arrays, out: Arrays) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import dot

    how, block = run.how, run.block
    turn = pl.program_id(0)
    starts = how.starts(turn, block)
    own = [pl.ds(start, block.keys) for start in starts]
    k, v = [refs["k"][at, :] for at in own], [refs["v"][at, :] for at in own]
    limits = [refs["bounds"][lax.div(turn, how.turns(block)), i] for i in range(4)]
    nothing = zero(limits)

    def of_head(head: Any, sums: Any) -> Any:
        view = HeadView(run, refs, head)
        there = [view.keys(start, turned=True) for start in starts]

        def add(block_: Any, sums: Any, *, masked: bool) -> Any:
            start = block_ * block.queries
            at = pl.ds(start, block.queries)
            q, gradient, here = view.vectors("q", at), view.vectors("gradient", at), view.queries(start, turned=True)
            ends = view.words("log_sum", at)[None, :], view.words("delta", at)[None, :]
            new = []
            for i, kept in enumerate(keeps(how, here, there)):
                d_k, d_v = sums[i]
                bias = view.bias(start, starts[i], turned=True)
                given = dot(k[i], q, trans_b=True), dot(v[i], gradient, trans_b=True), bias, *ends
                share, d_product = _pull_back(
                    how, *given, kept, here, there[i], view.prefix, masked=masked, nothing=nothing
                )
                d_v = d_v + dot(share.astype(gradient.dtype), gradient)
                new.append((d_k + dot(d_product.astype(q.dtype), q), d_v))
            return new

        return loop(run.parts, limits, 1, add, sums)

    zeros = jnp.zeros((block.keys, k[0].shape[-1]), jnp.float32)
    sums: Any = [(zeros, zeros) for _ in own]
    sums = of_head(0, sums) if run.group == 1 else lax.fori_loop(0, run.group, of_head, sums)
    for at, (d_k, d_v) in zip(own, sums, strict=True):
        out["d_k"][at, :] = (d_k * (how.scale / (1 - how.dropout))).astype(k[0].dtype)
        out["d_v"][at, :] = (d_v * (1 / (1 - how.dropout))).astype(v[0].dtype)


def backward_bias(how: How, block: Tile, given: Arrays) -> Any:
    """The gradient of the bias, added up over the rows and heads that share it."""
    bias = given["bias"]
    run = Pass.of(how, block, given)
    out = {"d_bias": jax.ShapeDtypeStruct(bias.shape, bias.dtype)}
    rows, heads, length, memory = bias.shape
    tiles = length // block.queries * (memory // block.keys)
    return run.call(_attend_backward_bias, (tiles, heads, rows), given, out, is_whole=True)["d_bias"]


def _attend_backward_bias(run: Pass, refs: Arrays, out: Arrays) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import dot

    how, block = run.how, run.block
    columns = how.memory // block.keys
    start = lax.div(pl.program_id(0), columns) * block.queries
    key_start = lax.rem(pl.program_id(0), columns) * block.keys
    at, key_at = pl.ds(start, block.queries), pl.ds(key_start, block.keys)
    (batch, _, heads, _), (rows, own_heads) = refs["q"].shape, refs["bias"].shape[:2]
    shared = heads // own_heads  # heads that share this bias: all, or this one
    own_row, own_head = pl.program_id(2), pl.program_id(1)

    def add(turn: Any, total: Any) -> Any:
        row = own_row if rows > 1 else lax.div(turn, shared)
        head = own_head if own_heads > 1 else lax.rem(turn, shared)
        view = HeadView(run, refs, head, row)
        q, k, v, gradient = (
            view.vectors(name, place) for name, place in (("q", at), ("k", key_at), ("v", key_at), ("gradient", at))
        )
        here, there = view.queries(start), view.keys(key_start)
        ends = view.words("log_sum", at)[:, None], view.words("delta", at)[:, None]
        given = dot(q, k, trans_b=True), dot(gradient, v, trans_b=True), view.bias(start, key_start), *ends
        kept = keeps(how, here, [there])[0]
        return total + _pull_back(how, *given, kept, here, there, view.prefix, masked=True)[1]

    # Tiles that no query sees are zero: of ranges that all rows have in common.
    limits = refs["bounds"]
    turns = batch // rows * shared
    if limits.shape[0] == 1:
        group, place = lax.div(key_start, GROUP), lax.div(start, block.queries)
        is_visited = (limits[0, place, 0] <= group) & (group < limits[0, place, 3])
        turns = is_visited.astype(jnp.int32) * turns
    total = lax.fori_loop(jnp.int32(0), turns, add, jnp.zeros((block.queries, block.keys), jnp.float32))
    out["d_bias"][own_row, own_head, at, key_at] = (total * (1 / (1 - how.dropout))).astype(out["d_bias"].dtype)


def _pull_back(
    how: How,
    product: Any,
    d_share: Any,
    bias: Any,
    log_sum: Any,
    delta: Any,
    kept: Any,
    here: TileSide,
    there: TileSide,
    prefix: Any,
    *,
    masked: bool,
    nothing: Any = 0.0,
) -> tuple[Any, Any]:
    """The shares of a tile after dropout, and the gradients of its scores.

    Both are times (1 - rate), as is `delta`, the sum of the result times its gradient; `log_sum` is in powers of two.
    """
    r, slope = scores(how, product, bias)
    seen = None
    if masked:
        r, seen = mask(how, r, here, there, prefix)
    share = exp2(how, r, log_sum)
    if not how.sees_itself:  # of a query that sees no key `log_sum` is too large a number to hold their count
        share = jnp.where(log_sum < UNSEEN, 1 / how.keys, share)
    dropped = drop(kept, share, nothing)
    if kept is not None:
        d_share = jnp.where(kept, d_share, 0.0)
    d_score = share * (d_share - delta)
    if slope is not None:
        d_score = d_score * slope
    if seen is not None and not how.sees_itself:
        d_score = jnp.where(seen, d_score, 0.0)
    return dropped, d_score
