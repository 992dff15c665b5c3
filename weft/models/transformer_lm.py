"""The paper's language model: a decoder-only Transformer, pre-norm, causal, with a ReLU feed-forward.

Imports what stands left of the models. Nothing here says anything about processors: the same lines run on one and
under every layout. Weights are stored in float32 and cast where they are used; norms, softmax and loss are float32.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import ops as wf  # the operations under the name that a user's own model gives them
from ..dims import union
from ..errors import DimError, RegionError, TensorError, closest
from ..layout import Layout, Region, as_layout, open_region
from ..mesh import Mesh, as_mesh
from ..spmd import spmd
from ..spmd.place import check_values
from ..tensor import Tensor, is_tensor, tensor
from . import weights
from .presets import LMConfig

EPSILON = 1e-6
LONGEST_WAVE = 10_000  # of the sinusoids of positions, over 2 pi
QUARTER_TURN = math.pi / 2
UNSEEN = -1e9


class Layer(eqx.Module):
    """The weights of one layer, or of all of them stacked."""

    attention_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    feed_forward_norm: Tensor
    w_in: Tensor
    w_out: Tensor


class TransformerLM(eqx.Module):
    """A language model: its weights, its configuration, and where it was made if that was on a mesh."""

    embedding: Tensor
    layers: Layer | list[Layer]
    norm: Tensor
    softmax: Tensor | None
    config: LMConfig = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True, default=None)
    layout: Layout | None = eqx.field(static=True, default=None)

    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy of `targets` given `inputs`, in nats a token; a scalar.

        Inside a region it runs under that one's layout, outside under the model's own.
        """
        inputs, targets = _named(batch)
        if open_region() is not None:
            return mean_loss(self, inputs, targets)
        check_values(jax.tree.leaves((self, inputs, targets)))
        return _outside(self.mesh, self.layout)(self, inputs, targets)


@functools.cache  # one function for each mesh and layout, so that what it compiled is found again
def _outside(mesh: Mesh | None, layout: Layout | None) -> Callable[..., Tensor]:
    return jax.jit(mean_loss) if mesh is None else spmd(mean_loss, mesh=mesh, layout=layout)


# The model. Each line is a line of the printed program, under the name it gives its result.


def mean_loss(model: TransformerLM, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of the targets, a scalar."""
    logits = predict(model, inputs)
    nll = cross_entropy(logits, targets)
    loss = wf.mean(nll, over="batch length")
    return loss


def predict(model: TransformerLM, inputs: Tensor) -> Tensor:
    """The logits of the token that follows each of `inputs`: f32[batch length vocab]."""
    x = embed(model, inputs)
    x = decoder(model, x)
    x = norm(x, model.norm)
    table = model.softmax
    if table is None:
        x = x * model.config.d_model**-0.5
        table = model.embedding
    table = wf.cast(table, x.dtype)
    logits = wf.einsum(x, table, over="d_model", dtype="float32")
    return logits


def embed(model: TransformerLM, inputs: Tensor) -> Tensor:
    """Words and their positions: [batch length d_model]."""
    table = wf.cast(model.embedding, model.config.dtype)
    words = wf.take(table, inputs, over="vocab")
    waves = positions(words)
    x = wf.cast(words + waves, model.config.dtype)
    return x


def positions(x: Tensor) -> Tensor:
    """Sinusoids that tell positions apart, a sine and a cosine of each wave length: f32[length d_model]."""
    slope = -2 * math.log(LONGEST_WAVE) / x.size("d_model")
    position = wf.arange("length", like=x, dtype="float32")
    channel = wf.arange("d_model", like=x, dtype="float32")
    pair = channel // 2
    is_cosine = channel % 2
    rate = wf.exp(pair * slope)
    angle = position * rate + is_cosine * QUARTER_TURN
    waves = wf.sin(angle)
    return waves


def decoder(model: TransformerLM, x: Tensor) -> Tensor:
    """All layers, one after the other: [batch length d_model]."""
    run = wf.remat(block) if model.config.remat else block
    if isinstance(model.layers, Layer):
        x, _ = wf.scan(lambda x, layer: (run(x, layer), None), x, model.layers, over="layers")
        return x
    for layer in model.layers:
        x = run(x, layer)
    return x


def block(x: Tensor, layer: Layer) -> Tensor:
    """One layer: [batch length d_model]."""
    h = norm(x, layer.attention_norm)
    y = attention(h, layer)
    x = x + y
    h = norm(x, layer.feed_forward_norm)
    y = feed_forward(h, layer)
    x = x + y
    return x


def norm(x: Tensor, scale: Tensor) -> Tensor:
    """`x` with the root of its mean square made 1, then scaled: [batch length d_model]."""
    wide = wf.cast(x, "float32")
    square = wide * wide
    mean_square = wf.mean(square, over="d_model")
    normed = wide * wf.rsqrt(mean_square + EPSILON)
    h = wf.cast(normed * scale, x.dtype)
    return h


def attention(h: Tensor, layer: Layer) -> Tensor:
    """What each position takes from itself and those before it: [batch length d_model]."""
    w_q = wf.cast(layer.q, h.dtype)
    w_k = wf.cast(layer.k, h.dtype)
    w_v = wf.cast(layer.v, h.dtype)
    w_o = wf.cast(layer.o, h.dtype)
    q = wf.einsum(h, w_q, over="d_model")
    k = wf.einsum(h, w_k, over="d_model")
    v = wf.einsum(h, w_v, over="d_model")
    k = k.rename(length="memory_length")
    v = v.rename(length="memory_length")
    scores = wf.einsum(q, k, over="d_kv")
    scores = wf.cast(scores, "float32")
    scores = scores / math.sqrt(q.size("d_kv"))
    here = wf.arange("length", like=q)
    there = wf.arange("memory_length", like=k)
    is_seen = there <= here
    scores = wf.where(is_seen, scores, UNSEEN)
    share = wf.softmax(scores, over="memory_length")
    share = wf.cast(share, h.dtype)
    mixed = wf.einsum(share, v, over="memory_length")
    y = wf.einsum(mixed, w_o, over="heads d_kv")
    return y


def feed_forward(h: Tensor, layer: Layer) -> Tensor:
    """Two matrices with a ReLU between: [batch length d_model]."""
    w_in = wf.cast(layer.w_in, h.dtype)
    w_out = wf.cast(layer.w_out, h.dtype)
    hidden = wf.einsum(h, w_in, over="d_model")
    hidden = wf.relu(hidden)
    y = wf.einsum(hidden, w_out, over="d_ff")
    return y


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of each target: f32[batch length]; of a split vocab only sums are sent."""
    vocab = logits.dim("vocab")
    is_target = wf.one_hot(targets, vocab, dtype=bool)
    target = wf.where(is_target, logits, 0.0)
    target = wf.sum(target, over="vocab")
    total = wf.logsumexp(logits, over="vocab")
    nll = total - target
    return nll


# Its weights.


def init(config: LMConfig, key: Any, mesh: Any = None, layout: Any = None) -> TransformerLM:
    """The model with its first weights; on a mesh each processor makes only its own slices of them.

    The values do not depend on the mesh, on the layout, or on whether the layers are stacked.
    """
    if (mesh is None) != (layout is None):
        raise RegionError("init got only one of mesh and layout", fix="give both, or neither")
    if mesh is None:
        return weights.made(weights.whole, _blueprint(config), key)
    if open_region() is not None:
        raise RegionError("init was called on a mesh inside a region", fix="call it outside, or without a mesh")
    mesh, layout = as_mesh(mesh), as_layout(layout)
    layout.check_dims(config.dims)
    make = functools.partial(weights.in_place, region=Region(mesh, layout))
    return weights.made(make, _blueprint(config, mesh, layout), key)


def shapes(config: LMConfig) -> TransformerLM:
    """The model with shapes in place of values, for `wf.trace`; nothing is allocated."""
    return jax.tree.map(weights.shape, _blueprint(config))


def _blueprint(config: LMConfig, mesh: Mesh | None = None, layout: Layout | None = None) -> Any:
    """The model with a `Weight` in the place of each tensor."""
    d_model, heads, d_kv = config.dims.find("d_model"), config.dims.find("heads"), config.dims.find("d_kv")
    d_ff, vocab = config.dims.find("d_ff"), config.dims.find("vocab")
    by_width = d_model.size**-0.5
    layer: Any = Layer(
        attention_norm=weights.ones([d_model]),
        q=weights.normal([d_model, heads, d_kv], stddev=by_width),
        k=weights.normal([d_model, heads, d_kv], stddev=by_width),
        v=weights.normal([d_model, heads, d_kv], stddev=by_width),
        o=weights.normal([heads, d_kv, d_model], stddev=(heads.size * d_kv.size) ** -0.5),
        feed_forward_norm=weights.ones([d_model]),
        w_in=weights.normal([d_model, d_ff], stddev=by_width),
        w_out=weights.normal([d_ff, d_model], stddev=d_ff.size**-0.5),
    )
    if config.scanned:
        layers = jax.tree.map(lambda weight: weight.stacked(config.dims.find("layers")), layer)
    else:
        layers = [layer] * config.layers
    return TransformerLM(
        embedding=weights.normal([vocab, d_model], stddev=1.0),
        layers=layers,
        norm=weights.ones([d_model]),
        softmax=None if config.tied else weights.normal([vocab, d_model], stddev=by_width),
        config=config,
        mesh=mesh,
        layout=layout,
    )


# Its data.


def _named(batch: Any) -> tuple[Tensor, Tensor]:
    """The inputs and the targets of a batch, tensors of dims `batch` and `length`."""
    known = ("inputs", "targets")
    if not isinstance(batch, Mapping):
        raise TensorError(
            f"the batch is {type(batch).__name__}", fix="give a dict: `{'inputs': tokens, 'targets': tokens}`"
        )
    if unknown := [name for name in batch if name not in known]:
        raise TensorError(
            f"the batch has {unknown[0]!r}, which a language model does not take", fix=closest(str(unknown[0]), known)
        )
    if missing := next((name for name in known if name not in batch), None):
        raise TensorError(f"the batch has no `{missing}`", fix=f"add integers of shape [batch, length] as `{missing}`")
    inputs, targets = (_tokens(name, batch[name]) for name in known)
    union(inputs.dims, targets.dims)  # one size for each name
    return inputs, targets


def _tokens(name: str, given: Any) -> Tensor:
    as_integers = f"wf.cast({name}, 'int32')" if is_tensor(given) else f"{name}.astype('int32')"
    if not is_tensor(given):
        array = _array(name, given)
        if len(array.shape) != 2:
            raise DimError(
                f"`{name}` has shape {tuple(array.shape)}", fix="give an array of shape [batch, length], or a tensor"
            )
        given = tensor(array, "batch length")
    if set(given.dims.names) != {"batch", "length"}:
        raise DimError(
            f"`{name}` has dims [{given.dims}], and a language model reads `batch` and `length`",
            fix=f"name them so: `wf.tensor({name}, 'batch length')`",
        )
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise TensorError(f"`{name}` holds {given.dtype}, not token ids", fix=f"make them integers: `{as_integers}`")
    return given


def _array(name: str, given: Any) -> Any:
    try:
        return given if isinstance(given, jax.Array | jax.ShapeDtypeStruct) else jnp.asarray(given)
    except (TypeError, ValueError):
        raise TensorError(
            f"`{name}` is {type(given).__name__} {given!r:.60}, no array of token ids",
            fix="give an integer array of shape [batch, length], or a tensor",
        ) from None
