"""Blocks of our flash attention on this GPU, beside cuDNN and PyTorch.

    python benchmarks/flash_attention.py --tune            each kernel with several blocks: the best are printed
    python benchmarks/flash_attention.py                   as built, beside cuDNN, with errors against f32

Times are of one forward pass and of forward and backward, in ms: the least of three means of 20 calls each.
"""

import argparse
import concurrent.futures
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.kernels import flash
from weft.kernels.blocks import Blocks, Tile

# batch, length, heads, heads of keys, width
SHAPES = {
    "16x1024x16x64": (16, 1024, 16, 16, 64),
    "128x256x4x256": (128, 256, 4, 4, 256),
    "4x4096x16(4)x128": (4, 4096, 16, 4, 128),
    "64x512x8x64": (64, 512, 8, 8, 64),
}
SMALL = {"1x256x2x16": (1, 256, 2, 2, 16)}
DROPOUT = 0.1
PARTS = ("forward", "queries", "keys")

# queries, keys, warps, stages; "-": tiles of keys one by one, not in pairs
CANDIDATES = {
    ("forward", 64): "64x64/4/2 64x64/4/3 64x64/4/4 128x64/8/2 128x64/8/3 128x32/4/2 128x32/4/3 64x32/4/3 128x64/4/2-",
    ("queries", 64): "64x32/4/2 64x32/4/3 64x32/4/4 64x64/4/2 64x64/4/3 128x32/8/3 128x32/4/2 128x32/4/3 64x64/4/2-",
    (
        "keys",
        64,
    ): "32x128/4/2- 32x128/4/3- 32x128/4/4- 64x64/4/2- 64x64/4/3- 32x64/4/3- 32x64/4/2 32x64/4/3 64x128/8/2-",
    ("forward", 256): "128x32/8/2 128x32/8/1 64x32/4/2 64x32/4/1 64x64/4/2- 64x64/8/1 64x32/8/2 128x32/8/2-",
    ("queries", 256): "64x32/4/2 64x32/4/1 128x32/8/1 128x32/8/2 64x16/4/2 64x32/4/2- 64x64/8/1-",
    ("keys", 256): "32x64/8/2- 32x64/8/1- 64x64/8/1- 16x64/4/2- 16x64/8/2- 32x128/8/1- 16x128/8/2- 32x64/4/1-",
    ("forward", 128): "128x64/8/2 128x64/8/3 128x32/8/3 128x32/8/2 64x64/4/2 64x32/4/3 64x32/4/2",
    ("queries", 128): "128x64/8/2 128x32/8/3 128x32/8/2 64x32/4/3 64x32/4/2 64x64/4/2-",
    ("keys", 128): "32x64/4/2- 32x64/4/3- 64x64/4/2- 32x128/8/2- 32x128/8/3- 64x128/8/2- 64x64/8/2-",
    ("forward", 16): "64x64/4/2 64x64/4/2-",
    ("queries", 16): "64x64/4/2 64x64/4/2-",
    ("keys", 16): "64x64/4/2 64x64/4/2-",
}
UNTUNED = {"64x512x8x64": "16x1024x16x64"}  # takes the blocks of the other


def tile(text: str) -> Tile:
    sizes, warps, stages = text.rstrip("-").split("/")
    queries, keys = sizes.split("x")
    return Tile(int(queries), int(keys), int(warps), int(stages), not text.endswith("-"))


def measure(run: Any, args: Any, calls: int = 20) -> float:
    """Milliseconds of a call."""
    jax.block_until_ready(run(*args))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            found = run(*args)
        jax.block_until_ready(found)
        times.append((time.perf_counter() - start) / calls * 1e3)
    return min(times)


def make(shape: tuple[int, ...]) -> list[Any]:
    batch, length, heads, heads_kv, width = shape
    keys = jax.random.split(jax.random.key(0), 5)
    sizes = [(batch, length, n, width) for n in (heads, heads_kv, heads_kv, heads)]
    arrays = [jax.random.normal(key, size, "bfloat16") for key, size in zip(keys, sizes, strict=False)]
    return [*arrays, jax.random.key_data(keys[4])]  # q k v gradient seed


def ours(width: int, blocks: Blocks | None, backend: str, dropout: float, **more: Any) -> Any:
    """Attention of (q, k, v, seed)."""
    how = {"scale": width**-0.5, "causal": True, "dropout": dropout, "backend": backend, **more}

    def attend(q: Any, k: Any, v: Any, seed: Any) -> Any:
        return flash.flash_attention(q, k, v, seed=seed, blocks=blocks, **how)

    return attend


def both(attend: Any) -> Any:
    """The result and the gradients, of (q, k, v, gradient, seed)."""

    def run(q: Any, k: Any, v: Any, gradient: Any, seed: Any) -> Any:
        result, pull_back = jax.vjp(lambda q, k, v: attend(q, k, v, seed), q, k, v)
        return result, pull_back(gradient)

    return jax.jit(run)


def forward(attend: Any) -> Any:
    return jax.jit(lambda q, k, v, _, seed: attend(q, k, v, seed))


def part_of(part: str, block: Tile, width: int, backend: str) -> Any:
    """One of the three kernels alone, of (q, k, v, gradient, seed)."""

    def run(q: Any, k: Any, v: Any, gradient: Any, seed: Any) -> Any:
        how = {"scale": width**-0.5, "causal": True, "window": None, "softcap": None, "dropout": DROPOUT}
        masks = dict.fromkeys(("segments", "positions", "prefix"))
        blocks = Blocks(block, block, block)
        kernels, extra = flash.prepare(
            q, k, **how, **masks, seed=seed, origin=(0, 0, 0, 0), backend=backend, blocks=blocks
        )
        if part == "forward":
            return kernels.forward(q, k, v, None, extra)
        log_sum = jnp.full((q.shape[0], q.shape[2], q.shape[1]), 6.0)
        d_q, d_k, d_v, _ = kernels.backward(q, k, v, None, extra, result=gradient, log_sum=log_sum, gradient=gradient)
        return d_q if part == "queries" else (d_k, d_v)

    return jax.jit(run)


def tune(shapes: Any, backend: str, seconds: float) -> dict[str, Any]:
    """Each kernel of each shape with each of its blocks, in ms; compiled side by side."""
    begin, found = time.perf_counter(), {}
    with concurrent.futures.ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 2)) as pool:
        waiting = {}
        arrays = {name: make(shape) for name, shape in shapes.items() if name not in UNTUNED}
        for name in arrays:
            width = shapes[name][-1]
            tiles = [(part, text) for part in PARTS for text in CANDIDATES[part, width].split()]
            for part, text in tiles:
                if time.perf_counter() - begin < seconds / 2:
                    lowered = part_of(part, tile(text), width, backend).lower(*arrays[name])
                    waiting[pool.submit(lowered.compile)] = name, part, text
        print(f"{len(waiting)} lowered after {time.perf_counter() - begin:.1f} s", flush=True)
        for done in concurrent.futures.as_completed(waiting):
            name, part, text = waiting[done]
            if time.perf_counter() - begin > seconds:
                print("out of time", flush=True)
                break
            try:
                ms = measure(done.result(), arrays[name], 10)
            except Exception as error:
                print(name, part, text, str(error)[:120].replace("\n", " "), flush=True)
                continue
            found.setdefault(name, {}).setdefault(part, {})[text] = round(ms, 4)
        pool.shutdown(wait=False, cancel_futures=True)
    for name, parts in found.items():
        for part, times in parts.items():
            ranked = sorted(times.items(), key=lambda item: item[1])
            print(name, part, "  ".join(f"{text} {ms:.3f}" for text, ms in ranked), flush=True)
    print(f"tuned in {time.perf_counter() - begin:.1f} s", flush=True)
    return found


def best(found: dict[str, Any], name: str) -> Blocks | None:
    """The fastest blocks of a shape, where all three were measured."""
    parts = found.get(UNTUNED.get(name, name), {})
    if len(parts) < len(PARTS):
        return None
    return Blocks(**{part: tile(min(times, key=times.get)) for part, times in parts.items()})


def cudnn(width: int, dropout: float) -> Any:
    """cuDNN through JAX; with dropout by its own bits, below the public function."""
    if not dropout:
        return lambda q, k, v, seed: jax.nn.dot_product_attention(
            q, k, v, scale=width**-0.5, is_causal=True, implementation="cudnn"
        )
    from jax._src.cudnn import fused_attention_stablehlo as module

    return lambda q, k, v, seed: module.dot_product_attention(
        q, k, v, scale=width**-0.5, mask_type=module.MaskType.CAUSAL, dropout_rate=dropout, seed=42
    )


def errors(attend: Any, plain: Any, given: list[Any]) -> list[float]:
    """The largest error of the result and of each gradient, of the largest of f32's."""
    few = [x[:2] for x in given[:4]]
    exact = jax.tree.leaves(both(plain)(*(x.astype("float32") for x in few), given[4]))
    found = jax.tree.leaves(both(attend)(*few, given[4]))
    return [float(jnp.abs(a - b.astype("float32")).max() / jnp.abs(a).max()) for a, b in zip(exact, found, strict=True)]


def more_kinds(shape: Any, backend: str) -> dict[str, Any]:
    """What cuDNN does by an array of all scores, or not at all: documents, a bias, a soft cap."""
    batch, length, heads, _, width = shape
    cuts = np.cumsum(np.random.default_rng(0).exponential(300, (batch, length // 30)).astype(int) + 1, axis=1)
    segments = jnp.asarray((np.arange(length)[None, :, None] >= cuts[:, None]).sum(-1))
    bias = jax.random.normal(jax.random.key(1), (1, heads, length, length), "bfloat16")
    more = {
        "packed": lambda q: {"segments": segments[: q.shape[0]]},
        "softcap": lambda _: {"softcap": 5.0},
        # Of queries, so that its gradient is asked for, and seen in that of queries.
        "bias": lambda q: {"bias": bias * (1 + q[0, 0, 0, 0].astype(bias.dtype))},
    }

    def make_attend(options: Any, rate: float, backend: str) -> Any:
        return lambda q, k, v, seed: ours(width, None, backend, rate, **options(q))(q, k, v, seed)

    return {
        f"{kind} {rate}": (make_attend(options, rate, backend), make_attend(options, rate, "plain"))
        for rate in (DROPOUT, 0.0)
        for kind, options in more.items()
    }


def compare(name: str, shape: Any, blocks: Blocks | None, backend: str, until: float) -> dict[str, Any]:
    """Ours with and without dropout beside cuDNN: forward, forward and backward, errors."""
    rows, width, given = {}, shape[-1], make(shape)
    kinds: dict[str, Any] = {
        f"ours {rate}": (ours(width, blocks, backend, rate), ours(width, None, "plain", rate))
        for rate in (DROPOUT, 0.0)
    }
    if backend == "triton":
        kinds |= {f"cudnn {rate}": (cudnn(width, rate), None) for rate in (DROPOUT, 0.0)}
    if name == next(iter(SHAPES)) or backend == "interpret":
        kinds |= more_kinds(shape, backend)
    for kind, (attend, plain) in kinds.items():
        if time.perf_counter() > until:
            print("out of time", flush=True)
            return rows
        try:
            row = {"forward": measure(forward(attend), given), "both": measure(both(attend), given)}
            if plain is not None and kind != "ours 0.0":
                row["errors"] = errors(attend, plain, given)
        except Exception as error:
            print(name, kind, type(error).__name__, str(error)[:300], flush=True)
            continue
        rows[kind] = row
        said = " ".join(f"{e:.1e}" for e in row.get("errors", []))
        print(f"{name:18} {kind:11} forward {row['forward']:.3f}  both {row['both']:.3f} ms  {said}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny shapes, step by step, on a CPU")
    parser.add_argument("--seconds", type=float, default=1200.0, help="at most; of them two thirds to tune")
    parser.add_argument("--shapes", default="", help="some of them, by commas")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    shapes = (
        SMALL if args.small else {k: v for k, v in SHAPES.items() if not args.shapes or k in args.shapes.split(",")}
    )
    backend = "interpret" if args.small else "triton"
    device = jax.devices()[0]
    print(f"{device.device_kind}, JAX {jax.__version__}, causal, bf16", flush=True)
    begin, rows = time.perf_counter(), {}
    found = tune(shapes, backend, args.seconds * 2 / 3) if args.tune else {}
    for name, shape in shapes.items():
        rows[name] = compare(name, shape, best(found, name), backend, begin + args.seconds)
        if args.out:
            Path(args.out).write_text(json.dumps({"tuned": found, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
