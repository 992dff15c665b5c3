"""The workloads of `benchmarks/gpu.py`: sizes, weights, batches and the operations they need.

Plain Python and NumPy, so that each rival's process imports nothing of another's. Weights go by the paths they have in
Weft's models, stacked along the layers.
"""

import dataclasses
from typing import Any

import numpy as np

PEAK = 990e12
"""Operations a second of an H100 or H200 in bfloat16, dense, by the data sheet."""
BUCKETS, FARTHEST = 32, 128
"""Of T5's relative bias."""
BALANCE = 0.01
"""How much the load-balancing loss of experts counts."""
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, a batch and an optimizer; with `new_tokens`, a generation instead."""

    name: str
    layers: int
    d_model: int
    heads: int
    """Of keys and values; each has `group` heads of queries."""
    d_kv: int
    d_ff: int
    batch: int
    length: int
    vocab: int = 32768
    group: int = 1
    gated: bool = False
    """Whether the feed-forward part is SwiGLU; else it has a ReLU."""
    experts: int = 0
    """How many there are, of which a token goes to two, however many others do."""
    positions: str = "sinusoid"
    encoder: bool = False
    """Whether it is an encoder-decoder, of so many layers each, with T5's scores."""
    dropout: float = 0.0
    document: int = 0
    """Mean length of the documents that are packed into a row; 0 for one a row."""
    optimizer: str = "adamw"
    tied_scale: bool = True
    embedding_stddev: float = 1.0
    new_tokens: int = 0
    weft: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How Weft computes it: fields of its configuration that change no number of the model."""

    @property
    def tokens(self) -> int:
        """How many tokens a step predicts, or a generation makes."""
        return self.batch * (self.new_tokens or self.length)

    @property
    def epsilon(self) -> float:
        return 1e-5 if self.gated else 1e-6

    @property
    def rotary_base(self) -> float:
        return 500_000.0


DEEP = Workload(
    name="deep", layers=24, d_model=1024, heads=16, d_kv=64, d_ff=4096, batch=16, length=1024,
    weft=dict(scanned=False, remat=False),
)  # fmt: skip
PAPER = dataclasses.replace(DEEP, name="paper-4", layers=6, heads=4, d_kv=256, batch=128, length=256)

TRAINED = (
    DEEP,
    PAPER,
    dataclasses.replace(PAPER, name="paper-16", heads=16, d_ff=16384),
    dataclasses.replace(DEEP, name="packed", document=300),
    dataclasses.replace(DEEP, name="dropout", dropout=0.1),
    Workload(
        name="t5", layers=12, d_model=768, heads=12, d_kv=64, d_ff=3072, vocab=32128, batch=32, length=512,
        positions="relative", encoder=True, weft=dict(scanned=False, remat=False),
    ),
    Workload(
        name="llama", layers=16, d_model=2048, heads=8, group=4, d_kv=64, d_ff=8192, vocab=128256, batch=4,
        length=4096, positions="rotary", gated=True, tied_scale=False, embedding_stddev=0.02,
        weft=dict(scanned=False, remat=False),
    ),
    dataclasses.replace(DEEP, name="moe", layers=12, experts=8),
    dataclasses.replace(
        PAPER, name="paper-256", heads=256, d_ff=262144, batch=32, optimizer="adafactor"
    ),
)  # fmt: skip
DECODED = tuple(
    dataclasses.replace(DEEP, name=f"decode-{batch}", batch=batch, length=128, new_tokens=256) for batch in (1, 8, 64)
)
WORKLOADS = {workload.name: workload for workload in (*TRAINED, *DECODED)}
TITLES = {
    "deep": "24 x 1024, 16 heads of 64",
    "paper-4": "paper, 4 heads of 256",
    "paper-16": "paper, 16 heads of 256",
    "packed": "24 x 1024, packed documents",
    "dropout": "24 x 1024, dropout 0.1",
    "t5": "T5, relative bias",
    "llama": "Llama-like, GQA, RoPE, SwiGLU",
    "moe": "12 x 1024, 8 experts, top-2",
    "paper-256": "paper, 256 heads of 256, Adafactor",
} | {f"decode-{batch}": f"decode 24 x 1024, batch {batch}" for batch in (1, 8, 64)}


def small(workload: Workload) -> Workload:
    """The same workload in tiny sizes, to try everything without a GPU."""
    sizes = dict(layers=2, d_model=32, heads=2, d_kv=16, d_ff=64, vocab=128, length=32)
    return dataclasses.replace(
        workload, **sizes, batch=min(workload.batch, 2), document=workload.document and 10,
        new_tokens=workload.new_tokens and 8,
    )  # fmt: skip


def find(name: str, *, is_small: bool = False, times: int = 1) -> Workload:
    """The workload of that name, of so many times the rows."""
    workload = WORKLOADS[name]
    workload = small(workload) if is_small else workload
    return dataclasses.replace(workload, batch=workload.batch * times)


# Weights.


def weights(w: Workload) -> dict[str, tuple[tuple[int, ...], float]]:
    """Each weight's shape and the standard deviation of its first values; 0 for ones."""
    found = {"embedding.table": ((w.vocab, w.d_model), w.embedding_stddev)}
    for side in ("encoder", "decoder") if w.encoder else ("decoder",):
        for name, (shape, stddev) in _block(w, has_memory=w.encoder and side == "decoder").items():
            found[f"{side}.layers.{name}"] = ((w.layers, *shape), stddev)
        found[f"{side}.norm.scale"] = ((w.d_model,), 0.0)
        if w.positions == "relative":
            found[f"{side}.relative.table"] = ((BUCKETS, w.heads), 0.1)
    return found


def _block(w: Workload, *, has_memory: bool) -> dict[str, tuple[tuple[int, ...], float]]:
    queries = (w.heads, w.group, w.d_kv) if w.group > 1 else (w.heads, w.d_kv)
    by_width, by_heads = w.d_model**-0.5, (w.heads * w.group * w.d_kv) ** -0.5
    attention = {
        "q": ((w.d_model, *queries), by_width),
        "k": ((w.d_model, w.heads, w.d_kv), by_width),
        "v": ((w.d_model, w.heads, w.d_kv), by_width),
        "o": ((*queries, w.d_model), by_heads),
    }
    experts = (w.experts,) if w.experts else ()
    forward = {
        "w_in": ((*experts, w.d_model, w.d_ff), by_width),
        "w_out": ((*experts, w.d_ff, w.d_model), w.d_ff**-0.5),
    }
    if w.gated:
        forward["w_gate"] = ((*experts, w.d_model, w.d_ff), by_width)
    if w.experts:
        forward["gate"] = ((w.d_model, w.experts), by_width)
    parts: dict[str, Any] = {"attention": attention, "feed_forward": forward}
    if has_memory:
        parts["memory_attention"] = attention
    found = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    norms = ["attention", "feed_forward", *(["memory"] if has_memory else [])]
    return found | {f"{name}_norm.scale": ((w.d_model,), 0.0) for name in norms}


def parameters(w: Workload) -> int:
    """How many numbers the weights hold."""
    return sum(int(np.prod(shape)) for shape, _ in weights(w).values())


# Batches.


def batch(w: Workload) -> dict[str, np.ndarray]:
    """Random token ids; where documents are packed, which one each token is of, and its place there."""
    random = np.random.default_rng(0)
    ids = random.integers(1, w.vocab, (2, w.batch, w.length), "int32")
    if w.encoder:
        return {"inputs": ids[0], "targets": ids[1]}
    if not w.document:
        return {"tokens": ids[0]}
    places = [_documents(w, random) for _ in range(w.batch)]
    return {
        "tokens": ids[0],
        "segments": np.stack([s for s, _ in places]),
        "positions": np.stack([p for _, p in places]),
    }


def _documents(w: Workload, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A row of documents, of lengths that are exponential about their mean, the last one cut off."""
    lengths = np.maximum(random.exponential(w.document, w.length).astype(int), 1)
    ends = np.cumsum(lengths)
    place = np.arange(w.length)
    segment = np.searchsorted(ends, place, side="right")
    return segment.astype("int32"), (place - np.concatenate([[0], ends])[segment]).astype("int32")


# Operations.


def flops(w: Workload) -> float:
    """Operations of a step's products: forward once, backward twice, nothing recomputed.

    Of attention only the pairs a causal mask lets through count, of packed documents only those within one. What is
    looked up, normed or updated does not. Of a generation, the products of its new tokens with the weights alone.
    """
    used = sum(int(np.prod(shape)) for name, (shape, stddev) in weights(w).items() if stddev and "relative" not in name)
    if w.experts:
        idle = sum(
            int(np.prod(shape)) for name, (shape, _) in weights(w).items() if "feed_forward.w_" in name
        ) * (1 - 2 / w.experts)  # fmt: skip
        used -= int(idle)
    if w.new_tokens:
        return 2.0 * w.tokens * used
    return 6.0 * w.tokens * used + 12.0 * w.layers * w.heads * w.group * w.d_kv * pairs(w)


def pairs(w: Workload) -> float:
    """How many pairs of a query and a key a layer's heads each look at; of an encoder-decoder, in both."""
    square, causal = w.batch * w.length**2, w.batch * w.length * (w.length + 1) / 2
    if w.encoder:
        return square + causal + square
    return float((batch(w)["positions"] + 1).sum()) if w.document else causal
