"""Every layer and every way to make it, as programs of their parameters and inputs; random numbers on.

The cases of a family run as one region under each placement. A new layer is a row here.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import weft as wf
from tests.programs.everywhere import values
from weft import nn

B, T, M, D, H, G, K, F, E = wf.dims(
    batch=8, length=16, memory_length=8, d_model=16, heads=8, group=2, d_kv=8, d_ff=32, experts=8
)
V = wf.Dim("vocab", 61).padded_to(8)
KEY = jax.random.key(5)


@dataclass(frozen=True)
class Case:
    """A layer, or parameters by name, without values; a program of it and of the inputs; the inputs."""

    bare: Any
    program: Callable[..., Any]
    inputs: tuple[wf.Tensor, ...]

    @functools.cached_property
    def layer(self) -> Any:
        """The layer with values: made when it is wanted, since to collect the tests takes none."""
        return made(self.bare)

    def run(self, given: Any) -> Any:
        return self.program(*given)

    @property
    def given(self) -> Any:
        return (self.layer, *self.inputs)


FAMILIES: dict[str, dict[str, Case]] = {}


def case(family: str, name: str, layer: Any, program: Callable[..., Any], *inputs: wf.Tensor) -> None:
    FAMILIES.setdefault(family, {})[name] = Case(layer, program, inputs)


def made(layer: Any) -> Any:
    """A layer with values: where they begin as zeros or ones they are moved, so that they count."""
    layer = nn.init(layer, KEY)
    is_tensor = lambda x: isinstance(x, wf.Tensor)  # noqa: E731
    leaves, structure = jax.tree.flatten(layer, is_leaf=is_tensor)
    return jax.tree.unflatten(structure, [_moved(x, i) if is_tensor(x) else x for i, x in enumerate(leaves)])


def _moved(x: wf.Tensor, i: int) -> wf.Tensor:
    if np.ptp(np.asarray(x.array)) > 0:
        return x
    return wf.parameter(np.asarray(x.array) + 0.5 * values(x.dims, 50 + i), x.dims)


def normal(dims: Any, seed: int) -> wf.Tensor:
    return wf.tensor(np.random.default_rng(seed).normal(size=[d.size for d in dims]).astype("float32"), dims)


X, MEMORY = normal([B, T, D], 1), normal([B, M, D], 2)
IDS = wf.tensor(np.random.default_rng(3).integers(0, V.count, (B.size, T.size)).astype("int32"), [B, T])
WEIGHTS = wf.tensor(np.random.default_rng(4).uniform(0, 2, (B.size, T.size)).astype("float32"), [B, T])
SEGMENTS = wf.tensor(np.sort(np.random.default_rng(5).integers(0, 4, (B.size, T.size))).astype("int32"), [B, T])
POSITIONS = wf.tensor(np.random.default_rng(6).permuted(np.tile(np.arange(T.size), (B.size, 1)), axis=1), [B, T])
PREFIX = wf.tensor(np.arange(B.size, dtype="int32"), [B])

# ---- maps and norms

case("maps", "linear", nn.Linear(D, F), lambda m, x: m(x), X)
case("maps", "linear to itself", nn.Linear(D, D, bias=True), lambda m, x: m(x), X)
case("maps", "linear from and to several", nn.Linear([T, D], [H, K], bias=True), lambda m, x: m(x), X)
case("maps", "linear partly to itself", nn.Linear([T, D], [D, H]), lambda m, x: m(x), X)
case("maps", "embedding", nn.Embedding(V, D), lambda m, ids: m(ids), IDS)
case("maps", "unembedding", nn.Embedding(V, D), lambda m, x: m.logits(x), X)
case("maps", "learned positions", nn.Embedding(T.renamed("positions"), D), lambda m, i: m(i), POSITIONS)
for activation in ("relu", "gelu", "gelu_tanh", "silu", "relu2"):
    is_gated = activation in ("gelu_tanh", "silu")
    case("maps", activation, nn.FeedForward(D, F, activation=activation, gated=is_gated, bias=True),
         lambda m, x: m(x, key=KEY, dropout=0.25), X)  # fmt: skip

case("norms", "layer", nn.LayerNorm(D), lambda m, x: m(x), X)
case("norms", "layer of two dims", nn.LayerNorm([T, D], bias=False), lambda m, x: m(x), X)
case("norms", "rms", nn.RMSNorm(D), lambda m, x: m(x), X)
case("norms", "scale", nn.ScaleNorm(D), lambda m, x: m(x), X)
case("norms", "group", nn.GroupNorm(D, 4), lambda m, x: m(x, over="length"), X)
case("norms", "group of one", nn.GroupNorm(D, 1), lambda m, x: m(x, over="length"), X)
case("norms", "batch", nn.BatchNorm(D), lambda m, x: m(x, over="batch length"), X)
case("norms", "batch at inference", nn.BatchNorm(D), lambda m, x: m(x, over="batch", training=False), X)

# ---- recurrent layers, patches, layers of layers

TURNS = X.rename(length="turns")
case("recurrent", "lstm", nn.LSTM(D, F), lambda m, x: m(x, over="turns"), TURNS)
case("recurrent", "lstm to itself", nn.LSTM(D, D, bias=False), lambda m, x: m(x, over="turns", reverse=True)[0], TURNS)
case("recurrent", "gru", nn.GRU(D, F), lambda m, x: m(x, over="turns"), TURNS)
case("recurrent", "gru to itself", nn.GRU(D, D, bias=False), lambda m, x: m(x, over="turns")[0], TURNS)

case("composed", "patches", nn.Patches(D, F, {"length": 2}, into="places"), lambda m, x: m(x), X)
case("composed", "mlp", nn.MLP([D, F, D, H], activation="gelu", dropout=0.25), lambda m, x: m(x, key=KEY), X)
case("composed", "sequential", nn.Sequential([nn.Linear(D, F), wf.relu, nn.Dropout(0.25), nn.Linear(F, D)]),
     lambda m, x: m(x, key=KEY), X)  # fmt: skip
case("composed", "stacked", nn.Stacked(nn.MLP([D, F, D], dropout=0.25), wf.Dim("layers", 3)),
     lambda m, x: m(x, key=KEY, remat=True), X)  # fmt: skip

# ---- positions and attention

case("positions", "sinusoids", {}, lambda m, i, x: x + nn.sinusoids(i, D, x), POSITIONS, X)
case("positions", "rotated", {}, lambda m, i, x: nn.rope(x, i, over="d_model"), POSITIONS, X)
case("positions", "rotated heads", {}, lambda m, i, x: nn.rope(x, i, base=500.0), POSITIONS, normal([B, T, H, K], 7))
for is_causal in (False, True):
    case("positions", f"relative, causal: {is_causal}",
         nn.RelativeBias(wf.Dim("buckets", 8), [H, G], is_causal=is_causal, farthest=12),
         lambda m, i: m(i, i.rename(length="memory_length")), POSITIONS)  # fmt: skip


def attends(name: str, *inputs: wf.Tensor, mask: Callable[..., Any] | None = None, **how: Any) -> None:
    """Attention of X to itself, or to what the inputs begin with; the mask is made of the rest."""

    def program(layer: Any, x: wf.Tensor, *more: wf.Tensor) -> wf.Tensor:
        return layer(x, mask=None if mask is None else mask(*more), key=KEY, dropout=0.25)

    case("attention", name, nn.Attention(D, H, K, **how), program, X, *inputs)


def _with_bias(layer: Any, x: wf.Tensor) -> wf.Tensor:
    here = wf.arange("length", like=x)
    return layer["attention"](x, bias=layer["bias"](here, here.rename(length="memory_length")))


attends("all see all", bias="qkvo")
attends("causal", mask=lambda: nn.Mask(causal=True), rotary=100.0)
attends("prefix", PREFIX, mask=lambda n: nn.Mask(causal=True, prefix=n), softcap=2.0)
attends("window back", mask=lambda: nn.Mask(causal=True, window=3), group=G)
attends("window both ways", mask=lambda: nn.Mask(window=3), talking=True)
attends("segments", SEGMENTS, mask=lambda s: nn.Mask.within(segments=s, causal=True), group=G, rotary=100.0)
attends("positions", POSITIONS, mask=lambda i: nn.Mask.within(positions=i, causal=True, window=5), rotary=100.0)
attends("qk-norm of each head", mask=lambda: nn.Mask(causal=True), rotary=100.0, group=G, qk_norm="head")
attends("qk-norm of all heads", mask=lambda: nn.Mask(causal=True), group=G, qk_norm="all", epsilon=1e-3)
case("attention", "cross", nn.Attention(D, H, K, group=G, scale=1.0), lambda m, x, y: m(x, y), X, MEMORY)
case("attention", "relative bias",
     {"attention": nn.Attention(D, H, K), "bias": nn.RelativeBias(wf.Dim("buckets", 8), H, is_causal=False)},
     _with_bias, X)  # fmt: skip

# ---- experts

GATINGS = ("switch", "top2", "choice")
for gating in GATINGS:
    how = {"gating": gating, "capacity": 0.75, "jitter": 0.3, "dropout": 0.25, "gated": gating == "top2"}
    case("experts", gating, nn.MixtureOfExperts(D, F, E, **how), lambda m, x: m(x, key=KEY), X)
case("experts", "single tokens", nn.MixtureOfExperts(D, F, E, gating="top2", jitter=0.3, dropout=0.25),
     lambda m, x: m(x, key=KEY), normal([B, D], 8))  # fmt: skip
case("experts", "top 3", nn.MixtureOfExperts(D, F, E, gating="top_k", top_k=3, capacity=0.75, dropout=0.25),
     lambda m, x: m(x, key=KEY), X)  # fmt: skip
case("experts", "without drops", nn.MixtureOfExperts(D, F, E, gating="top2", activation="silu"),
     lambda m, x: m(x, drops=False), X)  # fmt: skip

# ---- losses

HOW = {"smoothing": 0.1, "z_loss": 1e-2}


def _mean(chunks: int, **how: Any) -> Callable[..., Any]:
    """Means in place of sums: of a large sum, the sine that gradients are taken of is mostly rounding."""

    def program(layer: Any, x: wf.Tensor, targets: wf.Tensor, weights: wf.Tensor | None = None) -> Any:
        sums = nn.summed_cross_entropy(layer.logits, x, targets, weights, chunks=chunks, **how)
        return {name: value / targets.dims.sizes[0] / targets.dims.sizes[1] for name, value in sums.items()}

    return program


case("losses", "cross_entropy", nn.Embedding(V, D), lambda m, x, t: nn.cross_entropy(m.logits(x), t, **HOW), X, IDS)
case("losses", "in one piece", nn.Embedding(V, D), _mean(1, **HOW), X, IDS, WEIGHTS)
case("losses", "in chunks", nn.Embedding(V, D), _mean(2, **HOW), X, IDS, WEIGHTS)
case("losses", "chunks without weights", nn.Embedding(V, D), _mean(2), X, IDS)
