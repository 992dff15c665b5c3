"""A stack of layers: an encoder, or a decoder with or without memory of an encoder.

The weights of all layers are stored stacked along `layers`; whether they run as one loop or written out changes
neither values nor paths. Between layers positions are called `stream`; inside attention and feed-forward `length`.
One token at a time, when decoding, has neither.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..dims import UNSHOWN, Dim
from ..nn import weights
from ..nn.weights import key_of
from ..tensor import Tensor, is_tensor
from .cache import Cache, Past
from .config import TransformerConfig, stream

REPORTED = ("balance_loss", "router_z_loss", "dropped", "routed")
_WITHIN = f"{UNSHOWN}within"


class Layer(eqx.Module):
    """The weights of one layer, or of all of them stacked."""

    attention_norm: nn.RMSNorm | nn.LayerNorm
    attention: nn.Attention
    memory_norm: nn.RMSNorm | nn.LayerNorm | None
    memory_attention: nn.Attention | None
    feed_forward_norm: nn.RMSNorm | nn.LayerNorm
    feed_forward: nn.FeedForward | nn.MixtureOfExperts


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a layer sees beside the stream; the same for all layers but for `past` and `memory` when decoding."""

    mask: nn.Mask
    bias: Tensor | None = None
    memory: Tensor | Past | None = None
    memory_mask: nn.Mask | None = None
    past: Past | None = None
    at: Tensor | None = None
    """The place of the token in the past."""
    drops: bool = True
    """Whether experts leave out tokens they have no room for."""


class Stack(eqx.Module):
    """Layers one after the other, and a last norm. `dense` are those without experts, where only some have them."""

    layers: Layer
    dense: Layer | None
    norm: nn.RMSNorm | nn.LayerNorm
    relative: nn.RelativeBias | None
    config: TransformerConfig = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, *, causal: bool, memory: bool = False):
        self.config = config
        layers, count = config.dim("layers"), config.layers // _every(config)
        self.layers = weights.stacked(_layer(config, memory, bool(config.experts)), layers.resized(count))
        self.dense = None
        if _every(config) > 1:
            self.dense = weights.stacked(_layer(config, memory, False), layers.resized(config.layers - count))
        self.norm = _norm(config)
        self.relative = None
        if config.positions == "relative":
            heads = [config.dim(name) for name in ("heads", "group") if config.dims.has(name)]
            self.relative = nn.RelativeBias(config.dim("buckets"), heads, is_causal=causal, farthest=config.farthest)

    def __call__(
        self,
        x: Tensor,
        *,
        mask: nn.Mask,
        memory: Tensor | None = None,
        memory_mask: nn.Mask | None = None,
        key: Any = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The stream after all layers and the norm, and what the experts report, summed."""
        config = self.config
        around = Surroundings(mask, self._bias(x, mask), memory, memory_mask)

        def one(x: Tensor, layer: Layer, turn: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return block(config, layer, x, around, key_of(key, turn))[:2]

        if config.remat:
            one = wf.remat(one, save=config.remat.split() if isinstance(config.remat, str) else ())
        x, told, _ = self._run(lambda x, layer, past, turn: (*one(x, layer, turn), None), x)
        return dropped(self.norm(x), config, key_of(key, config.layers)), told

    def prefill(self, x: Tensor, *, mask: nn.Mask) -> tuple[Tensor, Past]:
        """The stream after all layers, and the keys and values they made of it, to decode on from."""
        around = Surroundings(mask, self._bias(x, mask), drops=False)

        def one(x: Tensor, layer: Layer, past: None, turn: Any) -> Any:
            return block(self.config, layer, x, around, None)

        x, _, past = self._run(one, x)
        return self.norm(x), past

    def remember(self, memory: Tensor) -> Past:
        """The keys and values of every layer for what an encoder made: [layers .. memory_length heads d_kv]."""

        def one(x: None, layer: Layer, past: None, turn: Any) -> Any:
            assert layer.memory_attention is not None
            return x, {}, Past(*layer.memory_attention.keys_and_values(memory, None))

        return self._run(one, None)[2]

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """One token after those of the cache, [batch d_model], through all layers; and the cache with it."""
        mask, memory_mask = cache.mask(self.config.window), cache.memory_mask
        bias = self._bias(x, mask)

        def one(x: Tensor, layer: Layer, pasts: Any, turn: Any) -> Any:
            past, memory = pasts
            around = Surroundings(mask, bias, memory, memory_mask, past, cache.at, drops=False)
            return block(self.config, layer, x, around, None)

        x, _, new = self._run(one, x, (cache.past, cache.memory))
        return self.norm(x), cache.after(new)

    def _bias(self, x: Tensor, mask: nn.Mask) -> Tensor | None:
        if self.relative is None:
            return None
        like = inside(x)
        return self.relative(mask.here(like), mask.there(like.rename(length="memory_length") if like is not x else x))

    def _run(self, one: Callable[..., Any], x: Any, pasts: Any = None) -> tuple[Any, dict[str, Tensor], Any]:
        """`one(x, layer, its past, its number)` for each layer: the last x, what is reported, and what each layer made.

        `pasts` are stacked along `layers`, and so is what the layers make.
        """
        config, every = self.config, _every(self.config)
        count = config.layers // every
        groups: Any = (self.layers,) if self.dense is None else (_grouped(self.dense, every - 1), self.layers)
        pasts = pasts if every == 1 else _grouped(pasts, every)
        told = {name: wf.zeros([], dtype="float32") for name in REPORTED} if config.experts else {}

        def turn(x: Any, parts: Sequence[Any], pasts: Any, number: Any) -> Any:
            layers = [parts[0]] if every == 1 else [*unstacked(parts[0], _WITHIN), parts[1]]
            own = [pasts] if every == 1 else unstacked(pasts, _WITHIN) or [None] * every
            found, made = told, []
            for i, (layer, past) in enumerate(zip(layers, own, strict=True)):
                x, more, new = one(x, layer, past, number * every + i)
                found = more or found
                made.append(new)
            return x, found, made

        if not config.scanned:
            made: list[Any] = []
            each = unstacked(pasts, "layers") or [None] * count
            for number, parts in enumerate(zip(*(unstacked(group, "layers") for group in groups), strict=True)):
                x, more, new = turn(x, parts, each[number], number)
                told = {name: told[name] + more[name] for name in told if more}
                made += new
            return x, told, _stacked(made, Dim("layers", config.layers))

        def step(carry: Any, xs: Any) -> Any:
            x, sums = carry
            parts, pasts, number = xs
            x, more, made = turn(x, parts, pasts, number.local_array)
            sums = {name: sums[name] + more[name] for name in sums}
            return (x, sums), made[0] if every == 1 else _stacked(made, Dim(_WITHIN, every))

        numbers = wf.arange(config.dim("layers").resized(count))
        (x, told), made = wf.scan(step, (x, told), (groups, pasts, numbers), over="layers", unroll=config.unroll)
        return x, told, made if every == 1 else _ungrouped(made, config.dim("layers"))


def block(
    config: TransformerConfig, layer: Layer, x: Tensor, around: Surroundings, key: Any
) -> tuple[Tensor, dict[str, Tensor], Past]:
    """One layer: the stream after it, what its experts report, and the keys and values it made."""
    keys = [key_of(key, i) for i in range(6)]
    back = {"length": stream(x.size("stream"))} if x.dims.has("stream") else {}
    h = inside(layer.attention_norm(x))
    position = around.mask.here(h) if layer.attention.rotary is not None else None
    q = layer.attention.query(h, position)
    new = Past(*layer.attention.keys_and_values(h, position))
    seen = new if around.past is None or around.at is None else around.past.with_new(new, around.at)
    mixed = layer.attention.attend(
        q, seen.keys, seen.values, mask=around.mask, bias=around.bias, key=keys[0], dropout=config.dropout
    )
    y = wf.name(layer.attention.out(mixed, rename=back), "attention")
    x = wf.add(x, dropped(y, config, keys[1]), names="subset")
    if layer.memory_attention is not None:
        x = wf.add(x, dropped(_from_memory(config, layer, x, around, keys[2], back), config, keys[3]), names="subset")
    h = inside(layer.feed_forward_norm(x))
    told: dict[str, Tensor] = {}
    if isinstance(layer.feed_forward, nn.MixtureOfExperts):
        y, told = layer.feed_forward(h, key=keys[4], drops=around.drops)
        y = y.rename(**back) if back else y
    else:
        y = layer.feed_forward(h, key=keys[4], dropout=config.dropout, rename=back)
    x = wf.add(x, dropped(wf.name(y, "feed_forward"), config, keys[5]), names="subset")
    return x, told, new


def _from_memory(
    config: TransformerConfig, layer: Layer, x: Tensor, around: Surroundings, key: Any, back: Any
) -> Tensor:
    """What a layer takes from the encoder's sequence; its keys and values may have been made before."""
    attention, mask = layer.memory_attention, around.memory_mask or nn.Mask()
    assert attention is not None and layer.memory_norm is not None and around.memory is not None
    memory = around.memory
    q = attention.query(inside(layer.memory_norm(x)), None)
    k, v = (memory.keys, memory.values) if isinstance(memory, Past) else attention.keys_and_values(memory, None)
    mixed = attention.attend(q, k, v, mask=mask, key=key, dropout=config.dropout)
    return wf.name(attention.out(mixed, rename=back), "memory_attention")


def inside(x: Tensor) -> Tensor:
    """The stream under the name positions have inside a layer."""
    return x.rename(stream="length") if x.dims.has("stream") else x


def dropped(x: Tensor, config: TransformerConfig, key: Any) -> Tensor:
    """`x` with dropout, where a key is given."""
    return weights.dropped(x, config.dropout, key)


def _every(config: TransformerConfig) -> int:
    """Every how many layers there is one with experts; 1 where all layers are alike."""
    return config.every if config.experts else 1


# Stacked layers, and what belongs to them: in groups, one by one, and stacked again.


def _grouped(tree: Any, each: int) -> Any:
    def cut(x: Tensor) -> Tensor:
        dim = x.dim("layers")
        return wf.split(x, layers=[dim.resized(dim.size // each), Dim(_WITHIN, each)])

    return jax.tree.map(cut, tree, is_leaf=is_tensor)


def _ungrouped(tree: Any, layers: Dim) -> Any:
    return jax.tree.map(lambda x: wf.merge(x, ["layers", _WITHIN], into=layers), tree, is_leaf=is_tensor)


def unstacked(tree: Any, along: str) -> list[Any]:
    """Stacked layers one by one; none of a tree without tensors."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    columns = [wf.unstack(leaf, over=along) for leaf in leaves]
    return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def _stacked(trees: Sequence[Any], dim: Dim) -> Any:
    return jax.tree.map(lambda *xs: wf.stack(xs, dim), *trees, is_leaf=is_tensor)


def _norm(config: TransformerConfig) -> Any:
    d_model = config.dim("d_model")
    if config.norm == "rms":
        return nn.RMSNorm(d_model, epsilon=config.epsilon)
    return nn.LayerNorm(d_model, bias="norm" in config.bias.split(), epsilon=config.epsilon)


def _layer(config: TransformerConfig, memory: bool, has_experts: bool) -> Layer:
    d_model, heads, d_kv, d_ff = (config.dim(name) for name in ("d_model", "heads", "d_kv", "d_ff"))
    group = config.dim("group") if config.group > 1 else None
    biases = config.bias.split()

    def attention(is_self: bool) -> nn.Attention:
        return nn.Attention(
            d_model,
            heads,
            d_kv,
            group=group,
            bias=[name for name in biases if name in "qkvo"],
            scale=None if config.scale_scores else 1.0,
            softcap=config.softcap,
            rotary=config.rotary_base if config.positions == "rotary" and is_self else None,
            stretch=config.stretch,
            fused=config.attention == "auto",
        )

    feed_forward: Any = nn.FeedForward(
        d_model, d_ff, activation=config.activation, gated=config.gated, bias="in" in biases
    )
    if has_experts:
        feed_forward = nn.MixtureOfExperts(
            d_model,
            d_ff,
            config.dim("experts"),
            activation=config.activation,
            gated=config.gated,
            gating=config.gating,
            capacity=config.capacity,
            jitter=config.jitter,
            dropout=config.dropout,
        )
    return Layer(
        attention_norm=_norm(config),
        attention=attention(True),
        memory_norm=_norm(config) if memory else None,
        memory_attention=attention(False) if memory else None,
        feed_forward_norm=_norm(config),
        feed_forward=feed_forward,
    )
