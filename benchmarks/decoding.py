"""Decoding on one GPU: milliseconds a token of `decode.generate`.

    python benchmarks/decoding.py [--batch 1 8 64] [--small] [--seconds 600] [--variants]

A language model of 24 x 1024 (0.34 B, float32 weights, bfloat16 compute) continues prompts of 128 tokens by 256, each
the likeliest. A time is that of the whole call, prompt and all, over the tokens of one row; the median of `--repeats`
calls after one that compiles. `--variants` changes one thing at a time; `--profile` adds which kernels took the time. A
JSON line a case; none begins after `--seconds`. PyTorch's decoding is a row of `gpu.py` and `turns.py`.
"""

import argparse
import contextlib
import functools
import json
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rivals.by_weft import kernels_of
from weft import decode, models
from weft.decode import prompts
from weft.spmd import compiling

SIZES = dict(layers=24, d_model=1024, heads=16, d_kv=64, d_ff=4096, vocab=32768, length=1024)
SMALL = dict(layers=2, d_model=64, heads=4, d_kv=16, d_ff=128, vocab=256, length=64)
PROMPT, NEW = 128, 256
COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL"
VARIANTS = {
    "as it is": {},
    "n-grams of 2, 4 ahead": {"how": {"ngrams": 2, "ahead": 4}},
    "n-grams of 2, 8 ahead": {"how": {"ngrams": 2, "ahead": 8}},
    "drawn from the 50 likeliest": {"how": {"temperature": 0.8, "top_k": 50, "key": jax.random.key(0)}},
    "the loop a command buffer": {"options": {"xla_gpu_enable_command_buffer": f"{COMMANDS},WHILE"}},
    "no command buffers": {"options": {"xla_gpu_enable_command_buffer": ""}},
    "plain attention": {"kernel": False},
    "no Triton products": {"options": {"xla_gpu_enable_triton_gemm": False}},
    "layers a loop": {"unrolled": False},
}


@functools.cache
def made(layers: int, *, small: bool):
    sizes = {**(SMALL if small else SIZES), **({} if small else {"layers": layers})}
    return models.init(models.LMConfig(name="decoding", **sizes), jax.random.key(0))


def prompts_of(batch: int, vocab: int, count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, vocab, (batch, count)).astype("int32")


def weft_decoding(
    batch: int, *, layers: int = 24, repeats: int = 3, new: int = NEW, options: dict | None = None, kernel: bool = True,
    unrolled: bool = True, small: bool = False, profile: bool = False, how: dict | None = None,
) -> dict:  # fmt: skip
    """Milliseconds a token of `decode.generate`, the least and the most, and the seconds of the first call."""
    model = made(layers, small=small)
    ids = prompts_of(batch, model.config.vocab, 8 if small else PROMPT)
    new = 8 if small else new
    prompts.compile_once.cache_clear()
    with contextlib.ExitStack() as changes:
        if options is not None:
            changes.enter_context(mock.patch.dict(compiling.OPTIONS, gpu={**compiling.OPTIONS["gpu"], **options}))
        if not kernel:
            changes.enter_context(mock.patch.object(models.unrolled, "can_attend_cached", lambda *_: False))
        if not unrolled:
            changes.enter_context(mock.patch.object(models.unrolled, "MOST_LAYERS", 0))
        times = []
        for _ in range(repeats + 1):
            begin = time.perf_counter()
            found = decode.generate(model, ids, max_new_tokens=new, **(how or {}))
            times.append(time.perf_counter() - begin)
        kernels = kernels_of(lambda: decode.generate(model, ids, max_new_tokens=new), times=new) if profile else None
    each = [took / new * 1e3 for took in times[1:]]
    row = {"ms": statistics.median(each), "least": min(each), "most": max(each), "first_s": times[0]}
    more = {} if found.accepted is None else {"accepted": found.accepted}
    return {**row, "checksum": int(found.tokens.sum()), **more, **({"kernels": kernels[:24]} if kernels else {})}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--variants", nargs="*", help="those whose names hold one of these words; all, if none")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    args = parser.parse_args()
    begin = time.perf_counter()
    words = ["as it is"] if args.variants is None else args.variants or [""]
    for name, changes in VARIANTS.items():
        if not any(word in name for word in words):
            continue
        for batch in args.batch:
            if time.perf_counter() - begin > args.seconds:
                continue
            row = {"batch": batch, "layers": args.layers, "variant": name, "device": jax.devices()[0].device_kind}
            try:
                more = dict(repeats=args.repeats, small=args.small, profile=args.profile)
                row |= weft_decoding(batch, layers=args.layers, **more, **changes)
            except Exception as error:  # the others still count
                row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()
