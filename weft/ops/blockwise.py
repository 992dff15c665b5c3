"""Blockwise (flash) attention on local arrays: running softmax, own gradients.

Scores exist one block at a time, forward and backward. A state holds for each query the sum of values so far, the
largest score and the sum of shares; blocks of keys are added to it in any order. Nothing here knows of processors:
`ring.py` brings the keys.

Queries are [.. length channel], keys and values [.. memory_length channel]; what a place says of itself (`Places`) is
[.. length 1]. Where sequences are long, loops over pieces of both keep a block small.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import AttentionKernel
from ..dims import Dim, Shape
from ..kernels import counter
from ..lower.collectives import as_varying, varying
from ..lower.dealt import Dealt
from ..lower.move import align
from ..lower.unchecked import call_unchecked
from .counter_dropout import index_shares

UNSEEN = -1e9
"""The score of a key that is not seen: a query that sees none takes the mean of all."""

LONGEST = 1024  # queries or keys of a block
_SHORTEST = 64
_LOWEST = -1e30  # below every score, and finite: exp(score - largest) is 0 or 1, never NaN


class MaskLike(Protocol):
    """What says which keys a query sees: a dataclass (`nn.Mask`)."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    causal: bool
    window: int | None
    prefix: Any
    positions: Any
    memory_positions: Any
    segments: Any
    memory_segments: Any
    is_within: bool

    @property
    def goes_by_place(self) -> bool:
        """Whether positions that are given say nothing that places do not."""

    def is_seen(self, q: Any, k: Any, *, at: tuple[Any, Any] | None = None) -> Any:
        """Where queries see keys, `at` the positions of both; None if everywhere."""


class Bias(Protocol):
    """What gives scores a bias by the distance of key and query (`nn.RelativeBias`)."""

    table: Any

    def buckets(self, distance: Any) -> Any:
        """The rows of the table, for an array of distances."""


class Places(NamedTuple):
    """Of queries or keys: the global index, positions and segments if given."""

    index: Any
    positions: Any = None
    segments: Any = None

    @property
    def position(self) -> Any:
        return self.index if self.positions is None else self.positions


class QueryPiece(NamedTuple):
    """Queries, and their places."""

    q: Any
    places: Places


class KeyPiece(NamedTuple):
    """Keys and values, and their places."""

    k: Any
    v: Any
    places: Places


class State(NamedTuple):
    """Of each query: the sum of values so far, the largest score, the sum of shares."""

    total: Any
    largest: Any
    shares: Any

    @classmethod
    def before(cls, q: Any) -> "State":
        """Before any key."""
        row = (*q.shape[:-1], 1)
        state = jnp.zeros(q.shape, "float32"), jnp.full(row, _LOWEST, "float32"), jnp.zeros(row, "float32")
        return cls(*(as_varying(x, varying(q)) for x in state))

    def result(self, dtype: Any) -> Any:
        return (self.total / self.shares).astype(dtype)

    def merge(self, other: "State") -> "State":
        """The state after the keys of both."""
        largest = jnp.maximum(self.largest, other.largest)
        own, more = jnp.exp(self.largest - largest), jnp.exp(other.largest - largest)
        return State(self.total * own + other.total * more, largest, self.shares * own + other.shares * more)


class Back(NamedTuple):
    """Of each query what its gradients need: that of its result, and how it ended."""

    gradient: Any
    largest: Any
    shares: Any
    delta: Any
    """The sum of the result times its gradient."""
    result: Any


class More(NamedTuple):
    """What all blocks share: the prefix [.. 1 1], the words of the dropout's key."""

    prefix: Any = None
    key: Any = None


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How scores and shares are made of queries and keys."""

    outer: tuple[str, ...]
    """The dims of queries but `length` and the channel, in order."""
    outer_of_keys: tuple[str, ...]
    """Those of them that keys have, in order."""
    scale: float
    softcap: float | None
    mask: MaskLike
    """Without tensors."""
    bias: Bias | None
    """Its table is given apart: [buckets ..], the dims named in `outer_of_bias`."""
    outer_of_bias: tuple[str, ...]
    memory_count: int | None
    """How many keys there are, where the dim is padded."""
    dropout: float
    share_dims: Shape
    """The dims of all shares, in the order in which dropout counts them."""
    dealt: Dealt | None
    """Which of the rows are here, where they are dealt out."""
    starts: Any
    """For each of `outer` the global index at which the slice starts, as functions."""
    kernel: AttentionKernel | None
    """What does a block at once on a GPU, where it can: no mask but causal, no bias, cap, dropout or padding."""
    is_ordered: bool
    """Whether places count from 0, each sees itself and none after it: blocks of later keys are left out."""

    # One block.

    def scores(self, product: Any, table: Any, here: Places, there: Places, more: More, *, is_past: bool) -> Any:
        """The scores of a block, f32; `is_past`: all its keys come before its queries."""
        scores = product * self.scale
        here_at, there_at = here.position, _turn(there.position)
        if self.bias is not None:
            scores = scores + self._bias(table, there_at - here_at)
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        order = {"causal": False, "window": None} if is_past else {"prefix": more.prefix}
        segments = {"segments": here.segments, "memory_segments": _turn(there.segments)}
        seen = dataclasses.replace(self.mask, **order, **segments).is_seen(None, None, at=(here_at, there_at))
        if seen is not None:
            scores = jnp.where(seen, scores, UNSEEN)
        if self.memory_count is not None:
            scores = jnp.where(_turn(there.index) < self.memory_count, scores, -jnp.inf)
        return scores

    def _bias(self, table: Any, distance: Any) -> Any:
        """T5's bias of a block, by the distance of key and query."""
        assert self.bias is not None
        buckets = self.bias.buckets(distance)
        lacking = [i for i, size in enumerate(buckets.shape[:-2]) if size == 1]
        of_distance = [name for i, name in enumerate(self.outer) if i not in lacking]
        bias = jnp.take(table, buckets.squeeze(lacking), axis=0)
        have, want = (
            (*of_distance, "length", "memory_length", *self.outer_of_bias),
            (*self.outer, "length", "memory_length"),
        )
        return align(bias, [Dim(name, 1) for name in have], [Dim(name, 1) for name in want]).astype("float32")

    def _factors(self, here: Places, there: Places, more: More, sizes: tuple[int, ...]) -> Any:
        """What shares are multiplied by: dropout with the bits of all shares' dropout."""
        if more.key is None:
            return None
        over = varying(more.key)

        def along(i: int, start: Any) -> Any:
            sides = [sizes[i] if at == i else 1 for at in range(len(sizes))]
            return as_varying((start + jnp.arange(sizes[i], dtype="uint32")).reshape(sides), over)

        index = {name: along(i, start()) for i, (name, start) in enumerate(zip(self.outer, self.starts, strict=True))}
        index |= {"length": here.index, "memory_length": _turn(there.index)}
        own = index_shares(self.share_dims, index, self.dealt, None if self.dealt is None else more.key[2])
        kept = counter.keep(more.key[:2], self.dropout, **own._asdict())
        return jnp.where(kept, jnp.float32(1 / (1 - self.dropout)), jnp.float32(0))

    def _product(self, q: Any, k: Any) -> Any:
        return self._einsum("qd", "kd", "qk", q, k)

    def _einsum(self, left: str, right: str, out: str, a: Any, b: Any) -> Any:
        """A product in f32 of arrays [outer ..]; keys lack some of the outer dims."""
        letters = dict(zip(self.outer, "abcefghijlmnop", strict=False))
        outer = {
            name: "".join(letters[dim] for dim in dims) for name, dims in (("q", self.outer), ("k", self.outer_of_keys))
        }

        def written(dims: str) -> str:
            return outer["k" if dims == "kd" else "q"] + dims

        formula = f"{written(left)},{written(right)}->{written(out)}"
        return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)

    def _add(
        self, state: State, queries: QueryPiece, keys: KeyPiece, table: Any, more: More, *, is_past: bool
    ) -> State:
        here, there = queries.places, keys.places
        scores = self.scores(self._product(queries.q, keys.k), table, here, there, more, is_past=is_past)
        largest = jnp.maximum(state.largest, scores.max(-1, keepdims=True))
        share, old = jnp.exp(scores - largest), jnp.exp(state.largest - largest)
        shares = state.shares * old + share.sum(-1, keepdims=True)
        if (kept := self._factors(here, there, more, scores.shape)) is not None:
            share = share * kept
        values = self._einsum("qk", "kd", "qd", share.astype(keys.v.dtype), keys.v)
        return State(state.total * old + values, largest, shares)

    def _gradients(
        self, queries: QueryPiece, back: Back, keys: KeyPiece, table: Any, more: More, *, is_past: bool
    ) -> tuple[Any, Any, Any, Any]:
        """The gradients of a block: of queries, keys, values and the bias's table; f32."""
        here, there = queries.places, keys.places
        scores, pull_back = jax.vjp(
            lambda product, table: self.scores(product, table, here, there, more, is_past=is_past),
            self._product(queries.q, keys.k),
            table,
        )
        share = jnp.exp(scores - back.largest) / back.shares
        d_share = self._einsum("qd", "kd", "qk", back.gradient, keys.v)
        dropped = share
        if (kept := self._factors(here, there, more, scores.shape)) is not None:
            dropped, d_share = share * kept, d_share * kept
        d_v = self._einsum("qk", "qd", "kd", dropped.astype(back.gradient.dtype), back.gradient)
        d_product, d_table = pull_back(share * (d_share - back.delta))
        d_product = d_product.astype(queries.q.dtype)
        d_q = self._einsum("qk", "kd", "qd", d_product, keys.k)
        return d_q, self._einsum("qk", "qd", "kd", d_product, queries.q), d_v, d_table

    # Many blocks.

    def _if_seen(
        self, add: Callable[[], Any], leave: Callable[[], Any], queries: QueryPiece, keys: KeyPiece, *, is_past: bool
    ) -> Any:
        """What `add` gives; what `leave` gives, if no query of a block sees a key of it."""
        if is_past or not self.is_ordered:
            return add()
        here, there = queries.places.index.reshape(-1), keys.places.index.reshape(-1)
        is_seen = there[0] <= here[-1]
        if self.mask.window is not None:
            is_seen = is_seen & (there[-1] > here[0] - self.mask.window)
        return lax.cond(is_seen, add, leave)

    def add(self, state: State, queries: QueryPiece, keys: KeyPiece, table: Any, more: More, *, is_past: bool) -> State:
        """The state with these keys."""
        if self.kernel is not None:
            return self._add_fused(self.kernel, state, queries, keys, is_past=is_past)
        rows, columns = pieces_of(queries.q.shape[-2]), pieces_of(keys.k.shape[-2])
        if rows == columns == 1:
            return self._add(state, queries, keys, table, more, is_past=is_past)
        cut_keys = _cut(keys, columns)

        def row(_: None, given: Any) -> Any:
            state, queries = given

            def block(state: State, keys: KeyPiece) -> Any:
                def add() -> State:
                    return self._add(state, queries, keys, table, more, is_past=is_past)

                return self._if_seen(add, lambda: state, queries, keys, is_past=is_past), None

            return None, lax.scan(block, state, cut_keys)[0]

        return _join(lax.scan(row, None, _cut((state, queries), rows))[1])

    def gradients(
        self, queries: QueryPiece, back: Back, keys: KeyPiece, table: Any, more: More, *, is_past: bool
    ) -> tuple[Any, Any, Any, Any]:
        """The gradients of queries, keys, values and the bias's table; f32."""
        if self.kernel is not None:
            return *self._gradients_fused(self.kernel, queries, back, keys, is_past=is_past), None
        rows, columns = pieces_of(queries.q.shape[-2]), pieces_of(keys.k.shape[-2])
        if rows == columns == 1:
            return self._gradients(queries, back, keys, table, more, is_past=is_past)
        cut_queries = _cut((queries, back), rows)

        def column(carry: Any, keys: KeyPiece) -> Any:
            d_queries, d_table = carry
            start = [zeros_like(keys.k), zeros_like(keys.v), d_table]

            def block(carry: Any, given: Any) -> Any:
                (queries, back), d_q = given

                def add() -> Any:
                    more_q, *rest = self._gradients(queries, back, keys, table, more, is_past=is_past)
                    return jax.tree.map(jnp.add, carry, rest), d_q + more_q

                return self._if_seen(add, lambda: (carry, d_q), queries, keys, is_past=is_past)

            (d_k, d_v, d_table), d_queries = lax.scan(block, start, (cut_queries, d_queries))
            return (d_queries, d_table), (d_k, d_v)

        start = _cut(zeros_like(queries.q), rows), jax.tree.map(zeros_like, table)
        (d_q, d_table), (d_k, d_v) = lax.scan(column, start, _cut(keys, columns))
        return _join(d_q), _join(d_k), _join(d_v), d_table

    # Blocks by a fused kernel.

    def _add_fused(
        self, kernel: AttentionKernel, state: State, queries: QueryPiece, keys: KeyPiece, *, is_past: bool
    ) -> State:
        def block(state: State, keys: KeyPiece, *, causal: bool) -> State:
            given = _heads_joined(queries.q), _heads_joined(keys.k), _heads_joined(keys.v)
            result, log_sum = call_unchecked(functools.partial(kernel.forward, causal=causal), *given)
            row = log_sum.reshape(state.largest.shape)
            return state.merge(State(result.reshape(queries.q.shape).astype("float32"), row, jnp.ones_like(row)))

        if not self._is_diagonal(queries, keys, is_past):
            return block(state, keys, causal=self.mask.causal and not is_past)

        def turn(state: State, keys: KeyPiece) -> Any:
            past, own = functools.partial(block, causal=False), functools.partial(block, causal=True)
            return self._by_place(queries, keys, [past, own, lambda state, _: state], state, keys), None

        return lax.scan(turn, state, _cut(keys, keys.k.shape[-2] // queries.q.shape[-2]))[0]

    def _gradients_fused(
        self, kernel: AttentionKernel, queries: QueryPiece, back: Back, keys: KeyPiece, *, is_past: bool
    ) -> tuple[Any, Any, Any]:
        log_sum = _heads_joined(back.largest + jnp.log(back.shares))[..., 0]
        ends = log_sum, _heads_joined(back.result), _heads_joined(back.gradient)

        def block(keys: KeyPiece, *, causal: bool) -> tuple[Any, ...]:
            given = _heads_joined(queries.q), _heads_joined(keys.k), _heads_joined(keys.v)
            found = call_unchecked(functools.partial(kernel.backward, causal=causal), *given, *ends)
            shapes = queries.q.shape, keys.k.shape, keys.v.shape
            return tuple(d.reshape(shape).astype("float32") for d, shape in zip(found, shapes, strict=True))

        if not self._is_diagonal(queries, keys, is_past):
            d_q, d_k, d_v = block(keys, causal=self.mask.causal and not is_past)
            return d_q, d_k, d_v

        def turn(d_q: Any, keys: KeyPiece) -> Any:
            past, own = functools.partial(block, causal=False), functools.partial(block, causal=True)
            nothing = zeros_like(queries.q), zeros_like(keys.k), zeros_like(keys.v)
            more, d_k, d_v = self._by_place(queries, keys, [past, own, lambda _: nothing], keys)
            return d_q + more, (d_k, d_v)

        cut = _cut(keys, keys.k.shape[-2] // queries.q.shape[-2])
        d_q, d_kv = lax.scan(turn, zeros_like(queries.q), cut)
        d_k, d_v = _join(d_kv)
        return d_q, d_k, d_v

    def _is_diagonal(self, queries: QueryPiece, keys: KeyPiece, is_past: bool) -> bool:
        """Whether some of the keys come before the queries, some beside, some after."""
        return self.mask.causal and not is_past and queries.q.shape[-2] != keys.k.shape[-2]

    def _by_place(self, queries: QueryPiece, keys: KeyPiece, choices: Sequence[Any], *given: Any) -> Any:
        """The choice for keys before the queries, for the same places, or for later ones."""
        here, there = (piece.places.index.reshape(-1)[0] for piece in (queries, keys))
        return lax.switch(jnp.sign(there - here) + 1, choices, *given)


def _heads_joined(x: Any) -> Any:
    """[batch heads (group) ..] as [batch heads ..]."""
    return x.reshape(x.shape[0], -1, *x.shape[-2:])


def zeros_like(x: Any) -> Any:
    """Zeros in f32 to which gradients of `x` are added."""
    return as_varying(jnp.zeros(x.shape, "float32"), varying(x))


def _turn(x: Any) -> Any:
    """What keys' places say, along the columns of scores."""
    return None if x is None else jnp.swapaxes(x, -1, -2)


def pieces_of(length: int) -> int:
    """Into how many equal pieces of at most `LONGEST` so many places are cut."""
    fewest = math.ceil(length / LONGEST)
    pieces = next(n for n in range(max(fewest, 1), length + 1) if length % n == 0)
    return pieces if pieces == 1 or length // pieces >= _SHORTEST else 1


def _cut(tree: Any, pieces: int) -> Any:
    """The arrays with their places in pieces, along a first dim."""

    def cut(x: Any) -> Any:
        shape = (*x.shape[:-2], pieces, x.shape[-2] // pieces, x.shape[-1])
        return jnp.moveaxis(x.reshape(shape), -3, 0)

    return jax.tree.map(cut, tree)


def _join(tree: Any) -> Any:
    """The arrays whose places are in pieces along a first dim, as one."""

    def join(x: Any) -> Any:
        x = jnp.moveaxis(x, 0, -3)
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    return jax.tree.map(join, tree)


def halve(tree: Any) -> Sequence[Any]:
    """The first and the second half of the places."""
    return [jax.tree.map(lambda x, i=i: jnp.split(x, 2, axis=-2)[i], tree) for i in range(2)]
