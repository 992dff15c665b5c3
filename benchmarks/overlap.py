"""When collective matmul pays: `wf.einsum(..., overlap=True)` against a gather before and a reduce-scatter after.

Three parts, each where it can be had. On this machine's processors: the same block both ways, values, bytes and time.
On one accelerator: what cutting a product into pieces costs, measured; with the links' published rates, when a ring is
worth that. For 8 H100 that need not be there (JAX's CUDA plugin installed): which products the compiler put beside
each permute. Times of links are figures, not measurements: this needs several accelerators.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import weft as wf

B, T, D, F = wf.dims(batch=4, length=512, d_model=512, d_ff=2048)
S = wf.Dim("stream", 512)
LAYOUT = "stream:x,d_ff:x"

# Bytes a second that one processor sends, each way: published figures.
LINKS = {"NVLink 4 (H100, H200)": 450e9, "InfiniBand NDR, one port a GPU": 50e9}


def block(overlap: bool) -> Any:
    """A feed-forward block of a sequence-parallel model, its mean square and all gradients."""

    def loss(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
        h = wf.relu(wf.einsum(x, w, over=D, rename={"stream": T}, overlap=overlap))
        y = wf.einsum(h, v, over=F, rename={"length": S}, overlap=overlap)
        return wf.mean(y * y, over=[B, S, D])

    return wf.value_and_grad(loss, argnums=(0, 1, 2))


def inputs() -> list[wf.Tensor]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [wf.random.normal(key, dims) * 0.02 for key, dims in zip(keys, ([B, S, D], [D, F], [F, D]), strict=True)]


def on_processors(ways: int, seconds: float) -> None:
    mesh = wf.Mesh(f"x={ways}")
    args = wf.put(inputs(), mesh=mesh, layout=LAYOUT)
    runs = [wf.spmd(block(overlap), mesh=mesh, layout=LAYOUT) for overlap in (False, True)]
    plain, ring = ([np.asarray(x) for x in jax.tree.leaves(run(*args))] for run in runs)
    worst = max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in zip(plain, ring, strict=True))
    sent = [
        sum(row.wire_bytes * row.count for row in wf.trace(block(o), *args, mesh=mesh, layout=LAYOUT).ledger)
        for o in (False, True)
    ]
    ratios, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(ratios) < 5:
        first, second = (timed(run, args) for run in runs)
        ratios.append(second / first)
    print(f"{ways} processors ({jax.devices()[0].platform}): time {statistics.median(ratios):.2f} of the plain form,")
    print(f"  {sent[1]:,} B on the wire against {sent[0]:,} B, values within {worst:.1e}")


def timed(run: Any, args: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - start


def pieces_on_one_device(seconds: float) -> None:
    """What a product costs in pieces, and when hiding the gather behind it is worth that."""
    print(
        f"\none {jax.devices()[0].device_kind}, bf16: a product [tokens d_model] x [d_model d_ff], whole and in pieces"
    )
    header = ("tokens", "d_model", "d_ff/n", "n", "whole", "pieces", "pieces/whole")
    print("  ".join(f"{word:>12}" for word in header) + "   gain of the ring, by link")
    for tokens, d_model, d_ff, ways in [
        (8192, 4096, 2048, 8),
        (8192, 4096, 4096, 4),
        (4096, 8192, 4096, 8),
        (16384, 8192, 3584, 8),
        (2048, 2048, 1024, 8),
        (65536, 8192, 3584, 8),
    ]:
        x, w = jnp.ones((tokens, d_model), jnp.bfloat16), jnp.ones((d_model, d_ff), jnp.bfloat16)
        whole, cut = (median_time(fn, x, w, seconds) for fn in (product, in_pieces(ways)))
        gather = tokens * d_model * 2 * (ways - 1) / ways
        gains = []
        for name, rate in LINKS.items():
            plain = gather / rate + whole
            step_sent, step_made = gather / (ways - 1) / rate, cut / ways
            ring = (ways - 1) * max(step_sent, step_made) + step_made
            gains.append(f"{name}: {plain / ring:.2f}x")
        row = (tokens, d_model, d_ff, ways, f"{whole * 1e6:.0f} us", f"{cut * 1e6:.0f} us", f"{cut / whole:.2f}")
        print("  ".join(f"{cell!s:>12}" for cell in row) + "   " + ", ".join(gains))


def product(x: Any, w: Any) -> Any:
    return x @ w


def in_pieces(ways: int) -> Any:
    """The product as the ring makes it: a piece of x at a time, put in its place."""

    def cut(x: Any, w: Any) -> Any:
        made = jnp.zeros((x.shape[0], w.shape[1]), x.dtype)
        size = x.shape[0] // ways
        for turn in range(ways):
            part = lax.dynamic_slice_in_dim(x, turn * size, size, 0) @ w
            made = lax.dynamic_update_slice_in_dim(made, part, turn * size, 0)
        return made

    return cut


def median_time(fn: Any, x: Any, w: Any, seconds: float) -> float:
    repeat, run = 20, jax.jit(fn)
    jax.block_until_ready(run(x, w))
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 5:
        start = time.perf_counter()
        for _ in range(repeat):
            last = run(x, w)
        jax.block_until_ready(last)
        found.append((time.perf_counter() - start) / repeat)
    return statistics.median(found)


_SCHEDULE = """
import re, sys
sys.path.insert(0, {root!r})
import jax
from jax.experimental import topologies
import weft as wf
from benchmarks import overlap
from tests.program.cuda import H100
jax.config.update("jax_num_cpu_devices", 8)
shape = "1x1x8"
topology = topologies.get_topology_desc(platform="cuda", topology_name=shape, topology=shape, target_config=H100)
mesh = wf.Mesh("x=8", devices=topology.devices)
args = [wf.cast(x, "bfloat16") for x in overlap.inputs()]
structs = [wf.tensor(jax.ShapeDtypeStruct(x.array.shape, x.dtype), x.dims) for x in args]
run = wf.spmd(overlap.block(True), mesh=mesh, layout=overlap.LAYOUT)
text = jax.jit(run).lower(*structs).compile().as_text()
beside = alone = 0
made = {{}}
for line in text[text.index("ENTRY"):].splitlines():
    name = line.strip().split(" ")[0]
    if "collective-permute-start(" in line:
        made[name] = 0
    elif "collective-permute-done(" in line:
        count = made.pop(re.search(r"%[\\w.\\-]+", line.split("collective-permute-done(")[1]).group(), None)
        if count is not None:
            beside, alone = beside + (count > 0), alone + (count == 0)
    elif "gemm_fusion_dot" in name or "__cublas" in line or " dot(" in line:
        for start in made:
            made[start] += 1
print(f"{{beside + alone}} permutes, {{beside}} of them with a product beside")
"""


def schedule() -> None:
    if importlib.util.find_spec("jax_plugins.xla_cuda12") is None:
        print("\nfor 8 H100: JAX's CUDA plugin is not installed; fix: pip install jax-cuda12-plugin jax-cuda12-pjrt")
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCHEDULE.format(root=root)], env=env, capture_output=True, text=True
    )
    print("\nfor 8 H100, compiled ahead of time:", done.stdout.strip() or done.stderr.strip()[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="how long each comparison is timed")
    seconds = parser.parse_args().seconds
    if jax.default_backend() == "cpu":
        for ways in (2, 4, 8):
            on_processors(ways, seconds)
    else:
        pieces_on_one_device(min(seconds, 1.0))
    schedule()


if __name__ == "__main__":
    warnings.simplefilter("ignore", wf.WeftWarning)
    jax.config.update("jax_num_cpu_devices", 8)
    main()
