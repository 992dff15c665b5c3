"""Ring attention (context parallelism): keys and values go round, queries stay.

Where `length` and `memory_length` are split over the same axes each processor holds the queries and the keys of one
piece. Keys and values, with positions and segments that are given, go from each processor to the next until all have
met all; in the backward pass they go round again, and their gradients with them, which one last hop brings home. Where
keys are whole there is no ring, and the same is blockwise attention on one processor.

A causal mask lets half of the scores be left out. So that every processor has as many left, each holds one piece from
the beginning and one from the end (zigzag), the i-th and the i-th last of twice as many pieces as processors: of two
pieces of keys that arrive, two of the four blocks are seen in full, and no others. Outside `length` stays in order.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import attention_kernel
from ..dims import Dim, Shape
from ..errors import DimError, LayoutError
from ..kernels.choice import choose
from ..layout import Axes
from ..lower.collectives import as_varying, first_place, index, permute, varying
from ..lower.dealt import dealt_among
from ..lower.meet import Meeting, meet_apart, with_layout
from ..lower.move import align, settle
from ..lower.recorded import note_schedule, recorded
from ..schedule import RingSchedule
from ..tensor import Tensor, is_tensor, placement
from .block_case import MASK_TENSORS, block_case, chip_of, is_ordered
from .blockwise import (
    Back,
    Bias,
    KeyPiece,
    MaskLike,
    More,
    Places,
    QueryPiece,
    Scoring,
    State,
    halve,
    pieces_of,
    zeros_like,
)
from .random import key_words

RING = "because keys and values go round the ring of {axes}"


def is_ring(q: Tensor, k: Tensor) -> bool:
    """Whether queries and keys are split over the same axes, along their places."""
    return bool(axes := _axes_of(q, "length")) and axes == _axes_of(k, "memory_length")


def _axes_of(x: Tensor, dim: str) -> Axes:
    return placement(x)[x.dims.position(dim)] if x.dims.has(dim) else ()


LARGEST = 2**26  # scores of one head and sequence on one processor that are held at once


def is_long(q: Tensor, k: Tensor) -> bool:
    """Whether scores are too many to be held, of keys that are whole: blocks are."""
    if not q.dims.has("length") or not k.dims.has("memory_length") or k.ways("memory_length") > 1:
        return False
    return q.size("length") // q.ways("length") * k.size("memory_length") > LARGEST


@recorded(name="ring_attention", reason_along=RING, reason_else=RING)
def ring_attention(q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: Bias | None = None, **how: Any) -> Tensor:
    """As `blockwise_attention`, of keys that are split as queries are, and go round."""
    return _attend(q, k, v, mask, bias, **how)


@recorded
def blockwise_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: Bias | None = None, **how: Any
) -> Tensor:
    """The mean of the values each query sees, by how well keys answer: as `q`.

    `q` is [.. length .. channel], `k` and `v` [.. memory_length .. channel], with no other dims than `q` has. What
    `how` says: `scale`, `softcap`, and the `key` and rate of `dropout`.
    """
    return _attend(q, k, v, mask, bias, **how)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: MaskLike,
    bias: Bias | None,
    *,
    scale: float,
    softcap: float | None = None,
    key: Any = None,
    dropout: float = 0.0,
) -> Tensor:
    if mask.goes_by_place:
        mask = dataclasses.replace(mask, positions=None, memory_positions=None)
    channel = q.dims[-1]
    table = None if bias is None else with_layout(bias.table, q.region)
    tensors = {"q": q, "k": k, "v": v, "table": table} | {name: getattr(mask, name) for name in MASK_TENSORS}
    named = {name: x for name, x in tensors.items() if is_tensor(x)}
    meeting = meet_apart(list(named.values()))
    _check(meeting, q, k, channel)
    ring = _Ring.of(meeting, q, k, mask)
    if ring.hops:
        shape = ring.axes, ring.ways, ring.hops, ring.is_zigzag
        own = k.size("memory_length") // ring.ways
        note_schedule(RingSchedule(*shape, is_ordered(q, k, mask), own, mask.window))
    scoring = _make_scoring(meeting, q, k, mask, bias, scale, softcap, dropout if key is not None else 0.0)

    def attend(*arrays: Any) -> Any:
        given = dict(zip(named, arrays, strict=True))
        outer = scoring.outer
        rows = [*outer, "length", channel.name]
        columns = [*scoring.outer_of_keys, "memory_length", channel.name]

        def order(name: str, want: Sequence[str]) -> Any:
            x = meeting.fill(given[name], tensors[name].dims, 0)
            return align(x, tensors[name].dims, Shape(tensors[name].dims.find(dim) for dim in want))

        def say(name: str, along: str | None, sizes: Sequence[int]) -> Any:
            return _spread(given.get(name), tensors[name], outer, along, sizes)

        queries, keys = order("q", rows), jnp.stack([order("k", columns), order("v", columns)])
        here = [say(name, "length", queries.shape) for name in ("positions", "segments")]
        there = [say(f"memory_{name}", "memory_length", keys.shape) for name in ("positions", "segments")]
        data = None if key is None or not dropout else as_varying(key_words(key, scoring.dealt), varying(queries))
        more = More(say("prefix", None, queries.shape), data)
        mixed = ring.attend(scoring, queries, keys, given.get("table"), (here, there, more))
        return align(mixed, [q.dims.find(name) for name in rows], q.dims)

    array = meeting.run(attend, list(named.values()))
    return settle(array, q.dims, meeting.placement(q.dims), meeting.region)


def _check(meeting: Meeting, q: Tensor, k: Tensor, channel: Dim) -> None:
    """Raises where queries and keys cannot meet block by block."""
    if stray := next((dim for dim in k.dims if dim.name != "memory_length" and not q.dims.has(dim)), None):
        raise DimError(f"keys have `{stray.name}`, which queries [{q.dims}] have not", fix="give queries that dim too")
    if axes := meeting.axes([channel]):
        raise LayoutError(
            f"attention by blocks needs `{channel.name}` whole, and it is split over `{'+'.join(axes)}`",
            state="" if meeting.region is None else meeting.region.state,
            fix=f"split `heads` over it instead, or drop `{channel.name}:{'+'.join(axes)}`",
        )


def _make_scoring(
    meeting: Meeting,
    q: Tensor,
    k: Tensor,
    mask: MaskLike,
    bias: Bias | None,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Scoring:
    channel, memory = q.dims[-1], k.dim("memory_length")
    outer = q.dims.without(["length", channel])

    def start_of(dim: Dim) -> Callable[[], Any]:
        return lambda: jnp.asarray(first_place(meeting.axes([dim]), meeting.local_sizes([dim])[0])).astype("uint32")

    return Scoring(
        outer=outer.names,
        outer_of_keys=tuple(name for name in outer.names if k.dims.has(name)),
        scale=scale,
        softcap=softcap,
        mask=dataclasses.replace(mask, **dict.fromkeys(MASK_TENSORS)),
        bias=bias,
        outer_of_bias=() if bias is None else bias.table.dims.names[1:],
        memory_count=memory.count if memory.is_padded else None,
        dropout=dropout,
        share_dims=Shape([*q.dims.without([channel]), memory]),
        dealt=dealt_among(q.dims),
        starts=[start_of(dim) for dim in outer],
        kernel=attention_kernel(scale)
        if choose(block_case(q, k, mask, bias, softcap, dropout), chip_of(q)).kernel == "cudnn"
        else None,
        is_ordered=is_ordered(q, k, mask),
    )


def count_scores(q: Tensor, k: Tensor, mask: MaskLike) -> int:
    """How many scores a block has on one processor, of all its heads and sequences."""
    own, memory = (x.size(dim) // x.ways(dim) for x, dim in ((q, "length"), (k, "memory_length")))
    if is_ring(q, k) and is_ordered(q, k, mask) and mask.window is None and own % 2 == 0:
        own, memory = own // 2, memory // 2  # of a zigzag
    outer = (q.size(dim) // q.ways(dim) for dim in q.dims.without(["length", q.dims[-1]]))
    return math.prod(outer) * (own // pieces_of(own)) * (memory // pieces_of(memory))


def _spread(array: Any, x: Tensor | None, outer: Sequence[str], along: str | None, sizes: Sequence[int]) -> Any:
    """What is said of places as [outer .. places 1], of size 1 where a dim lacks."""
    if array is None or x is None:
        return None
    array = align(array, x.dims, [Dim(name, 1) for name in (*outer, *([] if along is None else [along]))])
    if along is None:
        return array[..., None, None]
    return jnp.broadcast_to(array[..., None], (*array.shape[:-1], sizes[-2], 1))


@dataclasses.dataclass(frozen=True)
class _Ring:
    """Which keys come by where, and in which order."""

    axes: Axes
    """Those of queries; keys have them too, or are whole."""
    ways: int
    """How many pieces of keys there are; 1 where they are whole."""
    hops: int
    """How often keys move on: all are seen, or those that a window still reaches."""
    is_zigzag: bool

    @classmethod
    def of(cls, meeting: Meeting, q: Tensor, k: Tensor, mask: MaskLike) -> "_Ring":
        length, memory = q.dim("length"), k.dim("memory_length")
        axes, ways = meeting.axes([length]), meeting.ways(memory)
        own, hops, in_order = memory.size // ways, ways - 1, is_ordered(q, k, mask)
        if in_order and mask.window is not None:
            hops = min(hops, -(-(mask.window - 1) // own))
        is_zigzag = in_order and mask.window is None and own % 2 == 0 and ways > 1
        return cls(axes, ways, hops, is_zigzag)

    def attend(self, scoring: Scoring, q: Any, kv: Any, table: Any, rest: Any) -> Any:
        """What queries take from all keys; `rest` are their places and `More`."""
        if not self.is_zigzag:
            return self._run(scoring)(q, kv, table, rest)
        here, there, more = rest
        q, kv, here, there = jax.tree.map(self._to_zigzag, (q, kv, here, there))
        return self._from_zigzag(self._run(scoring)(q, kv, table, (here, there, more)))

    def _run(self, scoring: Scoring) -> Callable[..., Any]:
        run = jax.custom_vjp(lambda *given: self._forward(scoring, *given)[0])
        run.defvjp(
            lambda *given: self._forward(scoring, *given),
            lambda kept, gradient: self._backward(scoring, kept, gradient),
        )
        return run

    # The two rings.

    def _forward(self, scoring: Scoring, q: Any, kv: Any, table: Any, rest: Any) -> tuple[Any, Any]:
        here, there, more = rest
        queries = self._queries(q, here)
        states = [State.before(part.q) for part in queries]

        def visit(hop: Any, states: list[State], kv: Any, there: Any) -> list[State]:
            keys = self._keys(hop, kv, there)
            for i, j, is_past in self._pairs(hop):
                new = scoring.add(_get(states, i), _get(queries, i), _get(keys, j), table, more, is_past=is_past)
                states = _put(states, i, new)
            return states

        def turn(carry: Any, hop: Any) -> Any:
            states, (kv, there) = carry
            coming = self._send((kv, there))  # beside the work on what is here
            return (visit(hop, states, kv, there), coming), None

        coming = self._send((kv, there)) if self.hops else None
        states = visit(0, states, kv, there)
        if self.hops:
            states, held = self._go_round(turn, (states, coming))
            states = visit(self.hops, states, *held)
        state = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-2), *states)
        result = state.result(q.dtype)
        return result, (q, kv, table, rest, result, state.largest, state.shares)

    def _backward(self, scoring: Scoring, kept: Any, gradient: Any) -> tuple[Any, ...]:
        q, kv, table, (here, there, more), result, largest, shares = kept
        delta = jnp.sum(result.astype("float32") * gradient.astype("float32"), axis=-1, keepdims=True)
        queries, backs = self._queries(q, here), self._parts(Back(gradient, largest, shares, delta, result))

        def visit(hop: Any, sums: Any, kv: Any, there: Any) -> tuple[Any, Any]:
            keys, (d_q, d_table) = self._keys(hop, kv, there), sums
            d_kv = [jnp.stack([zeros_like(part.k), zeros_like(part.v)]) for part in keys]
            for i, j, is_past in self._pairs(hop):
                given = _get(queries, i), _get(backs, i), _get(keys, j)
                own_q, own_k, own_v, own_table = scoring.gradients(*given, table, more, is_past=is_past)
                d_q, d_kv = _add_to(d_q, i, own_q), _add_to(d_kv, j, jnp.stack([own_k, own_v]))
                d_table = jax.tree.map(jnp.add, d_table, own_table)
            return (d_q, d_table), jnp.concatenate(d_kv, axis=-2).astype(kv.dtype)

        def turn(carry: Any, hop: Any) -> Any:
            sums, (kv, there), d_kv = carry
            moved, there_next = self._send((jnp.concatenate([kv, d_kv]), there))
            sums, own = visit(hop, sums, kv, there)
            return (sums, (moved[:2], there_next), moved[2:] + own), None

        sums = [zeros_like(part.q) for part in queries], jax.tree.map(zeros_like, table)
        coming = self._send((kv, there)) if self.hops else None
        sums, d_kv = visit(0, sums, kv, there)
        if self.hops:
            sums, held, d_kv = self._go_round(turn, (sums, coming, d_kv))
            d_kv = self._send(d_kv)
            sums, own = visit(self.hops, sums, *held)
            d_kv = self._send(d_kv + own, -self.hops)
        d_q, d_table = sums
        d_table = jax.tree.map(lambda d, t: d.astype(t.dtype), d_table, table)
        return jnp.concatenate(d_q, axis=-2).astype(q.dtype), d_kv, d_table, None

    def _go_round(self, turn: Callable[..., Any], carry: Any) -> Any:
        """What is carried after all hops but the first and the last."""
        return carry if self.hops == 1 else lax.scan(turn, carry, jnp.arange(1, self.hops))[0]

    def _send(self, tree: Any, by: int = 1) -> Any:
        """The arrays on the processor so many places on."""
        pairs = [(i, (i + by) % self.ways) for i in range(self.ways)]
        return jax.tree.map(lambda x: permute(x, self.axes, pairs), tree)

    # What is where.

    def _pairs(self, hop: Any) -> list[tuple[Any, Any, bool]]:
        """Which parts of queries and keys meet; whether these keys all come before."""
        if not self.is_zigzag:
            return [(0, 0, False)]
        if isinstance(hop, int) and hop == 0:
            return [(0, 0, False), (1, 0, True), (1, 1, False)]
        first = self._holder(hop) < index(self.axes)  # keys from the left: the first parts meet too
        return [(1, 0, True), (first, first, True)]

    def _holder(self, hop: Any) -> Any:
        """The processor whose keys are here after so many hops."""
        return (index(self.axes) - hop) % self.ways if self.ways > 1 else 0

    def _parts(self, tree: Any) -> Sequence[Any]:
        return halve(tree) if self.is_zigzag else [tree]

    def _queries(self, q: Any, said: Sequence[Any]) -> list[QueryPiece]:
        holder = index(self.axes) if self.axes else 0
        places = Places(self._index(holder, q), *said)
        return [QueryPiece(*part) for part in self._parts((q, places))]

    def _keys(self, hop: Any, kv: Any, said: Sequence[Any]) -> list[KeyPiece]:
        places = Places(self._index(self._holder(hop), kv[0]), *said)
        return [KeyPiece(*part) for part in self._parts((kv[0], kv[1], places))]

    def _index(self, holder: Any, x: Any) -> Any:
        """The global indices of what a processor holds: [.. length 1]."""
        own = x.shape[-2]
        places = jnp.arange(own)
        if self.is_zigzag:
            half = own // 2
            last = 2 * self.ways - 1 - holder
            places = jnp.concatenate([holder * half + places[:half], last * half + places[:half]])
        else:
            places = holder * own + places
        places = as_varying(places.reshape([1] * (x.ndim - 2) + [own, 1]), varying(x))
        # As if they came of the data: what a loop over layers makes of constants alone JAX takes out of it, and the
        # masks of all blocks would be held at once.
        return lax.optimization_barrier((places, x))[0]

    # Zigzag: of 2n pieces processor i has the i-th and the i-th last, in place of 2i and 2i + 1.

    def _to_zigzag(self, x: Any) -> Any:
        even, odd = (self._send_by(half, i, is_back=False) for i, half in enumerate(halve(x)))
        is_even = index(self.axes) % 2 == 0
        first, last = jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)
        return jnp.concatenate([first, last], axis=-2)

    def _from_zigzag(self, x: Any) -> Any:
        first, last = halve(x)
        is_even = index(self.axes) % 2 == 0
        halves = jnp.where(is_even, first, last), jnp.where(is_even, last, first)
        return jnp.concatenate([self._send_by(half, i, is_back=True) for i, half in enumerate(halves)], axis=-2)

    def _send_by(self, half: Any, parity: int, *, is_back: bool) -> Any:
        """The even or the odd pieces on the processors that have them in a zigzag."""
        pieces = [2 * i + parity for i in range(self.ways)]
        pairs = [(i, min(piece, 2 * self.ways - 1 - piece)) for i, piece in enumerate(pieces)]
        return permute(half, self.axes, [(b, a) for a, b in pairs] if is_back else pairs)


def _get(parts: Sequence[Any], at: Any) -> Any:
    """The part at a place; where it is not known before, the first if `at` is true."""
    if isinstance(at, int):
        return parts[at]
    return jax.tree.map(lambda a, b: jnp.where(at, a, b), *parts)


def _put(parts: Sequence[Any], at: Any, new: Any) -> list[Any]:
    """The parts with a new one at a place, as `_get` takes it."""
    if isinstance(at, int):
        return [new if i == at else part for i, part in enumerate(parts)]
    first, last = parts
    return [
        jax.tree.map(lambda a, b: jnp.where(at, a, b), new, first),
        jax.tree.map(lambda a, b: jnp.where(at, b, a), new, last),
    ]


def _add_to(parts: Sequence[Any], at: Any, more: Any) -> list[Any]:
    """The parts with more added to the one at a place."""
    return _put(parts, at, _get(parts, at) + more)
