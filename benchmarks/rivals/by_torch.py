"""The workloads in PyTorch: `torch.compile`, SDPA or FlexAttention, fused AdamW.

As one writes them for speed: layers unrolled in one compiled graph, q, k and v one product, float32 weights and
gradients, bfloat16 products and logits; attention by the faster of flash and cuDNN, tried on the shape at hand. PyTorch
is imported by this file alone.
"""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from . import workloads
from .workloads import Workload

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
"""Of SDPA, those that are tried."""
BIASED = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
"""Of those that take a bias."""
RANK, WORLD = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
IS_CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", RANK) if IS_CUDA else torch.device("cpu")
MODE = os.environ.get("RIVAL_TORCH_MODE", "default")
"""Of `torch.compile`; `max-autotune-no-cudagraphs` tries more kernels and compiles for minutes."""
BIAS_BY = os.environ.get("RIVAL_TORCH_BIAS", "sdpa")
"""What adds a bias to scores: `sdpa` reads it as a mask; `flex` took seconds a step for the gradient of a bias."""
notes: dict[str, Any] = {"torch_mode": MODE, "bias_by": BIAS_BY}
"""What was chosen on the way, for the row of results."""


def versions() -> dict[str, str]:
    name = torch.cuda.get_device_name(DEVICE) if IS_CUDA else "cpu"
    return {"torch": torch.__version__, "device": name}


def peak_bytes() -> int | None:
    """The most memory this process ever held."""
    return torch.cuda.max_memory_allocated() if IS_CUDA else None


def read(x: Any) -> float:
    return float(x.detach().float().reshape(-1)[0])


class Norm(nn.Module):
    """RMSNorm, in float32."""

    def __init__(self, w: Workload):
        super().__init__()
        self.scale, self.epsilon = nn.Parameter(torch.ones(w.d_model)), w.epsilon

    def forward(self, x: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon) * self.scale).to(x.dtype)


def matrix(*shape: int, stddev: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).normal_(0, stddev))


class Attention(nn.Module):
    """Attention; of a sequence to itself q, k and v are one product, to another one k and v are."""

    def __init__(self, w: Workload, *, is_cross: bool = False):
        super().__init__()
        self.w, self.is_cross = w, is_cross
        self.queries, self.keys = w.heads * w.group * w.d_kv, w.heads * w.d_kv
        stddev = w.d_model**-0.5
        self.q = matrix(self.queries, w.d_model, stddev=stddev) if is_cross else None
        joined = 2 * self.keys + (0 if is_cross else self.queries)
        self.qkv = matrix(joined, w.d_model, stddev=stddev)
        self.o = matrix(w.d_model, self.queries, stddev=self.queries**-0.5)

    def project(self, h: Any, memory: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values: [batch heads length d_kv]."""
        joined = F.linear(memory, self.qkv.to(h.dtype))
        if self.q is None:
            q, k, v = joined.split([self.queries, self.keys, self.keys], -1)
        else:
            q, (k, v) = F.linear(h, self.q.to(h.dtype)), joined.split([self.keys, self.keys], -1)
        return tuple(x.unflatten(-1, (-1, self.w.d_kv)).transpose(1, 2) for x in (q, k, v))  # type: ignore

    def out(self, mixed: Any) -> Any:
        return F.linear(mixed.transpose(1, 2).flatten(2), self.o.to(mixed.dtype))

    def forward(self, h: Any, memory: Any, how: dict[str, Any]) -> Any:
        w, rotation = self.w, how.get("rotation")
        q, k, v = self.project(h, memory)
        if rotation is not None:
            q, k = rope(q, *rotation), rope(k, *rotation)
        scale = 1.0 if w.encoder else w.d_kv**-0.5
        causal = how.get("causal", False)
        if self.is_cross:
            return self.out(F.scaled_dot_product_attention(q, k, v, scale=scale))
        if how.get("bias") is not None or how.get("block_mask") is not None:
            return self.out(flex(q, k, v, how.get("bias"), how["block_mask"], scale))
        rate = w.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, dropout_p=rate, scale=scale, enable_gqa=w.group > 1
        )
        return self.out(mixed)


def flex(q: Any, k: Any, v: Any, bias: Any, block_mask: Any, scale: float) -> Any:
    """FlexAttention with a bias [heads length length], a mask, or both; or SDPA in its place.

    Without a GPU FlexAttention has no gradient, and SDPA stands in for it.
    """
    if (not IS_CUDA and torch.is_grad_enabled()) or (bias is not None and BIAS_BY == "sdpa"):
        mask = torch.zeros((1, 1, 1, 1)) if bias is None else bias[None].float()
        if block_mask is not None:
            is_seen = create_mask(block_mask.mask_mod, len(q), q.shape[1], q.shape[2], k.shape[2], q.device.type)
            mask = torch.where(is_seen, mask, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), scale=scale)

    def add_bias(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + bias[h, i, j]

    how = {} if bias is None else {"score_mod": add_bias}
    return flex_attention(q, k, v, block_mask=block_mask, scale=scale, **how)


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """RoPE: channels i and i + half turned by position."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class FeedForward(nn.Module):
    """A feed-forward part with ReLU, or SwiGLU."""

    def __init__(self, w: Workload):
        super().__init__()
        self.dropout = w.dropout
        self.w_in = matrix(w.d_ff, w.d_model, stddev=w.d_model**-0.5)
        self.w_gate = matrix(w.d_ff, w.d_model, stddev=w.d_model**-0.5) if w.gated else None
        self.w_out = matrix(w.d_model, w.d_ff, stddev=w.d_ff**-0.5)

    def forward(self, h: Any) -> tuple[Any, Any]:
        hidden = F.linear(h, self.w_in.to(h.dtype))
        gate = None if self.w_gate is None else F.linear(h, self.w_gate.to(h.dtype))
        hidden = F.relu(hidden) if gate is None else F.silu(gate) * hidden
        return F.linear(F.dropout(hidden, self.dropout, self.training), self.w_out.to(h.dtype)), 0.0


class Experts(nn.Module):
    """Feed-forward parts of which a token goes to two: tokens sorted by expert, grouped products."""

    def __init__(self, w: Workload):
        super().__init__()
        self.w = w
        self.gate = matrix(w.d_model, w.experts, stddev=w.d_model**-0.5)
        self.w_in = matrix(w.experts, w.d_model, w.d_ff, stddev=w.d_model**-0.5)
        self.w_out = matrix(w.experts, w.d_ff, w.d_model, stddev=w.d_ff**-0.5)

    def forward(self, h: Any) -> tuple[Any, Any]:
        w = self.w
        rows = h.reshape(-1, w.d_model)
        share = (rows.float() @ self.gate).softmax(-1)
        shares, chosen = share.topk(2)
        shares = shares / shares.sum(-1, keepdim=True)
        order = chosen.reshape(-1).argsort(stable=True)
        is_chosen = chosen.reshape(-1)[:, None] == torch.arange(w.experts, device=h.device)
        ends = is_chosen.sum(0).cumsum(0).to(torch.int32)
        hidden = F.relu(grouped(rows[order // 2], self.w_in.to(h.dtype), ends))
        made = grouped(hidden, self.w_out.to(h.dtype), ends)[order.argsort()].unflatten(0, (-1, 2))
        y = (made * shares.to(h.dtype)[..., None]).sum(1).reshape(h.shape)
        first = F.one_hot(share.argmax(-1), w.experts).float().mean(0)
        return y, w.experts * (first * share.mean(0)).sum()


def grouped(x: Any, weight: Any, ends: Any) -> Any:
    """Each row times the matrix of its group: one kernel on a GPU."""
    if IS_CUDA:
        product = getattr(F, "grouped_mm", None) or torch._grouped_mm
        return product(x, weight, offs=ends)
    starts = [0, *ends.tolist()]
    return torch.cat([x[a:b] @ m for a, b, m in zip(starts, starts[1:], weight, strict=False)])


class Block(nn.Module):
    """A Transformer block, pre-norm."""

    def __init__(self, w: Workload, *, has_memory: bool):
        super().__init__()
        self.dropout = w.dropout
        self.attention_norm, self.attention = Norm(w), Attention(w)
        self.memory_norm = Norm(w) if has_memory else None
        self.memory_attention = Attention(w, is_cross=True) if has_memory else None
        self.feed_forward_norm = Norm(w)
        self.feed_forward = Experts(w) if w.experts else FeedForward(w)

    def forward(self, x: Any, memory: Any, how: dict[str, Any]) -> tuple[Any, Any]:
        h = self.attention_norm(x)
        x = x + self.drop(self.attention(h, h, how))
        if self.memory_attention is not None and self.memory_norm is not None:
            x = x + self.drop(self.memory_attention(self.memory_norm(x), memory, {}))
        y, balance = self.feed_forward(self.feed_forward_norm(x))
        return x + self.drop(y), balance

    def drop(self, x: Any) -> Any:
        return F.dropout(x, self.dropout, self.training)


class Stack(nn.Module):
    """An encoder or a decoder."""

    def __init__(self, w: Workload, *, causal: bool):
        super().__init__()
        self.w, self.causal = w, causal
        self.layers = nn.ModuleList(Block(w, has_memory=w.encoder and causal) for _ in range(w.layers))
        self.norm = Norm(w)
        self.table = matrix(workloads.BUCKETS, w.heads, stddev=0.1) if w.positions == "relative" else None
        if self.table is not None:
            place = np.arange(w.length)
            self.register_buffer("buckets", torch.as_tensor(bucket(place[None] - place[:, None], causal)), False)

    def forward(self, x: Any, memory: Any, how: dict[str, Any]) -> tuple[Any, Any]:
        w, balance = self.w, 0.0
        if self.table is not None:
            bias = self.table.to(x.dtype)[self.buckets].permute(2, 0, 1).contiguous()
            if BIAS_BY == "sdpa" and self.causal:
                bias = bias.masked_fill(torch.ones_like(self.buckets, dtype=torch.bool).triu(1), -torch.inf)
            how = how | {"bias": bias}
        for layer in self.layers:
            x, more = layer(x, memory, how | {"causal": self.causal})
            balance = balance + more
        return F.dropout(self.norm(x), w.dropout, self.training), balance


def bucket(distance: np.ndarray, causal: bool) -> np.ndarray:
    """T5's buckets of the distances from queries to keys."""
    buckets = workloads.BUCKETS if causal else workloads.BUCKETS // 2
    start = 0 if causal else np.where(distance > 0, buckets, 0)
    away = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = buckets // 2
    ratio = np.log(np.maximum(away, 1).astype("float32") / exact) / math.log(workloads.FARTHEST / exact)
    wide = np.minimum(exact + (ratio * (buckets - exact)).astype(int), buckets - 1)
    return start + np.where(away < exact, away, wide)


class Model(nn.Module):
    """The model and its loss."""

    def __init__(self, w: Workload, half: Any):
        super().__init__()
        self.w, self.half = w, half
        self.embedding = matrix(w.vocab, w.d_model, stddev=w.embedding_stddev)
        self.encoder = Stack(w, causal=False) if w.encoder else None
        self.decoder = Stack(w, causal=True)

    def embed(self, ids: Any, here: Any) -> Any:
        x = F.embedding(ids, self.embedding.to(self.half))
        if self.w.positions != "sinusoid":
            return x
        channel = torch.arange(self.w.d_model, device=ids.device)
        angle = here[..., None] * torch.exp(channel // 2 * (-2 * math.log(10_000) / self.w.d_model))
        return (x + torch.sin(angle + channel % 2 * (math.pi / 2))).to(self.half)

    def forward(self, batch: dict[str, Any], block_mask: Any = None) -> Any:
        w = self.w
        targets = batch["targets"] if w.encoder else batch["tokens"]
        before = F.pad(targets, (1, 0))[:, :-1]
        here = torch.arange(w.length, device=targets.device)[None]
        how: dict[str, Any] = {"block_mask": block_mask}
        if w.document:
            segments, here = batch["segments"], batch["positions"]
            before = torch.where(F.pad(segments, (1, 0), value=-1)[:, :-1] == segments, before, 0)
        if w.positions == "rotary":
            how["rotation"] = rotation(w, here)
        memory = None
        if self.encoder is not None:
            x = self.embed(batch["inputs"], here)
            memory, _ = self.encoder(F.dropout(x, w.dropout, self.training), None, {"block_mask": None})
        x = F.dropout(self.embed(before, here), w.dropout, self.training)
        x, balance = self.decoder(x, memory, how)
        if w.tied_scale:
            x = x * w.d_model**-0.5
        logits = F.linear(x, self.embedding.to(self.half))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().long())
        return loss + workloads.BALANCE * balance


def rotation(w: Workload, here: Any) -> tuple[Any, Any]:
    half = w.d_kv // 2
    rate = torch.exp(torch.arange(half, device=here.device) * (-math.log(w.rotary_base) / half))
    angle = (here[..., None] * rate)[:, None]
    return angle.cos(), angle.sin()


def load(model: Model, values: dict[str, np.ndarray]) -> None:
    """Gives a model the weights of another rival, by the names of `workloads.weights`."""
    w = model.w
    state = {"embedding": values["embedding.table"]}
    for side in ("encoder", "decoder") if w.encoder else ("decoder",):
        state[f"{side}.norm.scale"] = values[f"{side}.norm.scale"]
        if w.positions == "relative":
            state[f"{side}.table"] = values[f"{side}.relative.table"]
        prefix = f"{side}.layers."
        for i in range(w.layers):
            own = {name.removeprefix(prefix): value[i] for name, value in values.items() if name.startswith(prefix)}
            state |= {f"{prefix}{i}.{name}": value for name, value in _layer_state(w, own).items()}
    model.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in state.items()})


def _layer_state(w: Workload, own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A layer's weights as PyTorch keeps them: products turned round, q, k and v joined."""
    state = {}
    for part in {name.partition(".")[0] for name in own}:
        of_part = {name.partition(".")[2]: value for name, value in own.items() if name.partition(".")[0] == part}
        if part.endswith("attention"):
            flat = {name: value.reshape(w.d_model, -1).T for name, value in of_part.items() if name != "o"}
            state[f"{part}.o"] = of_part["o"].reshape(-1, w.d_model).T
            is_cross = part == "memory_attention"
            state[f"{part}.qkv"] = np.concatenate([flat[name] for name in ("kv" if is_cross else "qkv")])
            state |= {f"{part}.q": flat["q"]} if is_cross else {}
        else:
            turned = part == "feed_forward" and not w.experts
            state |= {f"{part}.{name}": value.T if turned else value for name, value in of_part.items()}
    return state


# Training.


def make(w: Workload, half: Any = torch.bfloat16) -> Callable[[], Any]:
    """What runs a step, or a generation: weights are made, nothing is compiled yet."""
    torch.manual_seed(RANK)
    torch.set_float32_matmul_precision("high")
    if IS_CUDA:
        torch.cuda.set_device(DEVICE)
    with torch.device(DEVICE):
        model = Model(w, half)
    if w.new_tokens:
        from .torch_decode import generation

        return generation(w, model)
    choose_attention(w)
    return train_step(w, model)


def compiled(fn: Any, **how: Any) -> Any:
    """`fn` compiled, where there is a GPU to compile for."""
    return torch.compile(fn, mode=MODE, dynamic=False, **how) if IS_CUDA else fn


def train_step(w: Workload, model: Any) -> Callable[[], Any]:
    batch = {name: torch.as_tensor(value, device=DEVICE) for name, value in workloads.batch(w).items()}
    if WORLD > 1:
        torch.distributed.init_process_group("nccl" if IS_CUDA else "gloo")
        model = nn.parallel.DistributedDataParallel(model, device_ids=[RANK] if IS_CUDA else None)
    forward, make_mask = compiled(model), compiled(create_block_mask)
    optimizer = make_optimizer(w, model.parameters())

    def run() -> Any:
        # Of packed documents it is made anew for each batch, whose documents are others.
        loss = forward(batch, block_mask(w, batch, make_mask))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return run


def block_mask(w: Workload, batch: dict[str, Any], make_mask: Any = create_block_mask) -> Any:
    """The mask FlexAttention needs for a batch, or None."""
    if not w.document:
        is_needed = w.encoder and BIAS_BY == "flex"
        return make_mask(_is_before, None, None, w.length, w.length, DEVICE) if is_needed else None
    segments = batch["segments"]

    def is_seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (segments[b, i] == segments[b, j])

    return make_mask(is_seen, w.batch, None, w.length, w.length, DEVICE)


def _is_before(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def make_optimizer(w: Workload, parameters: Any) -> Any:
    if w.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=workloads.LEARNING_RATE)
    how = dict(lr=workloads.LEARNING_RATE, weight_decay=workloads.WEIGHT_DECAY, fused=IS_CUDA)
    return torch.optim.AdamW(parameters, **how)


def choose_attention(w: Workload) -> None:
    """Has SDPA use the faster of its kernels for this workload's shape, from now on."""
    if not IS_CUDA or w.document or (w.encoder and BIAS_BY == "flex"):
        return
    shape = (w.batch, w.heads * w.group, w.length, w.d_kv), (w.batch, w.heads, w.length, w.d_kv)
    how = dict(device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (torch.randn(s, **how) for s in (*shape, shape[1]))  # type: ignore
    bias = torch.randn((1, w.heads, w.length, w.length), **how) if w.encoder else None  # type: ignore
    times = {}
    for name, backend in (BIASED if w.encoder else BACKENDS).items():
        try:
            with sdpa_kernel(backend):
                times[name] = _time_attention(q, k, v, bias, w)
        except RuntimeError as error:
            notes[f"sdpa_{name}_error"] = str(error).splitlines()[0][:120]
    if not times:  # PyTorch chooses
        return
    best = notes["sdpa"] = min(times, key=times.__getitem__)
    notes["sdpa_ms"] = {name: round(took * 1e3, 3) for name, took in times.items()}
    # Flash takes no bias, so that of an encoder-decoder model it does the attention that has none.
    torch.backends.cuda.enable_flash_sdp(best == "flash" or w.encoder)
    torch.backends.cuda.enable_cudnn_sdp(best == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(best == "efficient")
    torch.backends.cuda.enable_math_sdp(best == "math")


def _time_attention(q: Any, k: Any, v: Any, bias: Any, w: Workload) -> float:
    how: dict[str, Any] = dict(is_causal=bias is None, attn_mask=bias, dropout_p=w.dropout, enable_gqa=w.group > 1)
    for count in (3, 20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            F.scaled_dot_product_attention(q, k, v, **how).backward(q)
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def profile(run: Callable[[], Any], path: Path, *, steps: int = 3) -> int:
    """Writes how many milliseconds of a step each kernel takes, and how often it runs; gives how many there are."""
    activities = [torch.profiler.ProfilerActivity.CUDA if IS_CUDA else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(steps):
            last = run()
        read(last)
    rows = [
        {
            "kernel": row.key,
            "ms": getattr(row, "self_device_time_total", 0.0) / steps * 1e-3,
            "calls": row.count / steps,
        }
        for row in found.key_averages()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sorted(rows, key=lambda row: -row["ms"]), indent=0))
    return len(rows)
