"""The language model of `cpu_peers.py` by hand: local arrays in `jax.shard_map`, each collective written out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cpu_peers import EPSILON, STACKED, B, K, Row, T, V
from jax import lax

from weft.compat import varying

Loss = Callable[[dict[str, Any], Any, Any], Any]


def loss_of(row: Row) -> Loss:
    """The mean loss of this processor's slices, summed over all, under the row's layout."""
    return _by_width(row) if row.width else _by_stored(row) if row.stored else _split(row)


def vary(x: Any, *axes: str | None) -> Any:
    """`x` typed as varying over the axes: what fans out varies once, so that its gradient is summed once."""
    missing = tuple(axis for axis in axes if axis is not None and axis not in varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def summed(x: Any, *axes: str | None) -> Any:
    known = tuple(axis for axis in axes if axis is not None)
    return lax.psum(x, known) if known else x


def norm(x: Any, scale: Any, mean: Callable[[Any], Any] = lambda x: jnp.mean(x, axis=-1, keepdims=True)) -> Any:
    return x * lax.rsqrt(mean(x * x) + EPSILON) * scale


def attend(q: Any, k: Any, v: Any, first: Any = 0) -> Any:
    """Causal attention of queries from place `first` on."""
    scores = jnp.einsum("bthk,bmhk->bhtm", q, k) / np.sqrt(K)
    seen = (first + jnp.arange(q.shape[1]))[:, None] >= jnp.arange(k.shape[1])
    return jnp.einsum("bhtm,bmhk->bthk", jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1), v)


def cross_entropy(logits: Any, targets: Any, model: str | None) -> Any:
    """Of each token, of a vocab that may be split."""
    if model is None:
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(logits, axis=-1) - picked
    size = logits.shape[-1]
    largest = lax.pmax(lax.stop_gradient(jnp.max(logits, axis=-1)), model)
    total = lax.psum(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1), model)
    here = targets - lax.axis_index(model) * size
    is_here = (here >= 0) & (here < size)
    picked = jnp.take_along_axis(logits, jnp.where(is_here, here, 0)[..., None], axis=-1)[..., 0]
    return largest + jnp.log(total) - lax.psum(jnp.where(is_here, picked, 0), model)


def _split(row: Row) -> Loss:
    """Batch, length, or heads with d_ff and vocab split; weights lie as they are used."""
    data, model, length = row.data, row.model, row.length
    others = data, length

    def use(weight: Any) -> Any:
        return vary(weight, *others)

    def block(x: Any, p: Any) -> Any:
        p = {name: use(weight) for name, weight in p.items()}
        h = vary(norm(x, p["norm_1"]), model)
        q, k, v = (jnp.einsum("btd,dhk->bthk", h, p[n]) for n in "qkv")
        first: Any = 0
        if length is not None:
            first = lax.axis_index(length) * q.shape[1]
            k, v = lax.all_gather(jnp.stack([k, v]), length, axis=2, tiled=True)
        x = x + summed(jnp.einsum("bthk,hkd->btd", attend(q, k, v, first), p["o"]), model)
        h = jax.nn.relu(jnp.einsum("btd,df->btf", vary(norm(x, p["norm_2"]), model), p["w_1"]))
        return x + summed(jnp.einsum("btf,fd->btd", h, p["w_2"]), model), None

    def embed(p: Any, inputs: Any) -> Any:
        table, positions = use(p["embedding"]), use(p["positions"])
        if length is not None:
            size = inputs.shape[1]
            positions = lax.dynamic_slice_in_dim(positions, lax.axis_index(length) * size, size)
        if model is None:
            return table[inputs] + positions
        here = inputs - lax.axis_index(model) * table.shape[0]
        is_here = (here >= 0) & (here < table.shape[0])
        return lax.psum(jnp.where(is_here[..., None], table[jnp.where(is_here, here, 0)], 0), model) + positions

    def loss(p: Any, inputs: Any, targets: Any) -> Any:
        x, _ = lax.scan(block, embed(p, inputs), {name: p[name] for name in STACKED})
        h = vary(norm(x, use(p["norm"])), model)
        logits = jnp.einsum("btd,vd->btv", h, use(p["softmax"]))
        return summed(jnp.sum(cross_entropy(logits, targets, model)), *others) / (B * T)

    return loss


def _by_stored(row: Row) -> Loss:
    """FSDP: a layer is gathered where it is used, and again for its gradient; the last table once."""
    x_axis = row.stored
    assert x_axis is not None
    at = {"norm_1": 0, "norm_2": 0, "q": 0, "k": 0, "v": 0, "o": 2, "w_1": 0, "w_2": 1}

    def whole(weight: Any, axis: int) -> Any:
        return lax.all_gather(weight, x_axis, axis=axis, tiled=True)

    def use(name: str, compute: Callable[..., Any], weight: Any, *operands: Any) -> Any:
        return jax.checkpoint(lambda weight, *operands: compute(*operands, whole(weight, at[name])))(weight, *operands)

    def product(form: str) -> Callable[..., Any]:
        return lambda x, w: jnp.einsum(form, x, w)

    def block(x: Any, p: Any) -> Any:
        h = use("norm_1", norm, p["norm_1"], x)
        q, k, v = (use(n, product("btd,dhk->bthk"), p[n], h) for n in "qkv")
        x = x + use("o", product("bthk,hkd->btd"), p["o"], attend(q, k, v))
        h = use("norm_2", norm, p["norm_2"], x)
        h = jax.nn.relu(use("w_1", product("btd,df->btf"), p["w_1"], h))
        return x + use("w_2", product("btf,fd->btd"), p["w_2"], h), None

    def loss(p: Any, inputs: Any, targets: Any) -> Any:
        # Every processor looks up all ids in its columns, and sends each other the rows of its ids.
        found = p["embedding"][lax.all_gather(inputs, x_axis, axis=0, tiled=True)]
        x = lax.all_to_all(found, x_axis, split_axis=0, concat_axis=2, tiled=True) + whole(p["positions"], 1)
        x, _ = lax.scan(block, x, {name: p[name] for name in STACKED})
        logits = jnp.einsum("btd,vd->btv", norm(x, whole(p["norm"], 0)), whole(p["softmax"], 1))
        return summed(jnp.sum(cross_entropy(logits, targets, None)), x_axis) / (B * T)

    return loss


def _by_width(row: Row) -> Loss:
    """d_model split between blocks: gathered before products that split heads, d_ff or vocab, and scattered after."""
    data, y = row.data, row.width
    assert y is not None

    def mean(square: Any) -> Any:
        return lax.psum(jnp.sum(square, axis=-1, keepdims=True), y) / (square.shape[-1] * lax.axis_size(y))

    def gathered(x: Any, scale: Any) -> Any:
        return lax.all_gather(norm(x, scale, mean), y, axis=2, tiled=True)

    def scattered(x: Any) -> Any:
        return lax.psum_scatter(x, y, scatter_dimension=2, tiled=True)

    def block(x: Any, p: Any) -> Any:
        p = {name: vary(weight, data) for name, weight in p.items()}
        h = gathered(x, p["norm_1"])
        q, k, v = (jnp.einsum("btd,dhk->bthk", h, p[n]) for n in "qkv")
        x = x + scattered(jnp.einsum("bthk,hkd->btd", attend(q, k, v), p["o"]))
        h = jax.nn.relu(jnp.einsum("btd,df->btf", gathered(x, p["norm_2"]), p["w_1"]))
        return x + scattered(jnp.einsum("btf,fd->btd", h, p["w_2"])), None

    def loss(p: Any, inputs: Any, targets: Any) -> Any:
        x = vary(p["embedding"], data)[inputs] + vary(p["positions"], data)
        x, _ = lax.scan(block, x, {name: p[name] for name in STACKED})
        logits = jnp.einsum("btd,vd->btv", gathered(x, vary(p["norm"], data)), vary(p["softmax"], data))
        assert logits.shape[-1] == V // lax.axis_size(y)
        return summed(jnp.sum(cross_entropy(logits, targets, y)), data) / (B * T)

    return loss
