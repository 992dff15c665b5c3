"""Pallas kernels inside regions, on a GPU: one compiled by Triton, one by Mosaic, each with its own backward kernel.

Compares value and gradients of `wf.local(kernel, ...)` in a region with the same function in plain JAX, and their
times in one run. On a machine without a GPU the first is interpreted, and only its numbers mean something.

    python benchmarks/kernels.py
"""

import argparse
import inspect
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import weft as wf

ROWS, COLS = 32, 128  # of a block


def by_triton(kernel, results, *arrays):
    """A kernel over blocks of some matrices, compiled by Triton; interpreted where there is no GPU."""
    shape = arrays[0].shape
    block = pl.BlockSpec((ROWS, COLS), lambda i, j: (i, j))
    return pl.pallas_call(
        kernel,
        [jax.ShapeDtypeStruct(shape, arrays[0].dtype)] * results,
        grid=(shape[0] // ROWS, shape[1] // COLS),
        in_specs=[block] * len(arrays),
        out_specs=[block] * results,
        interpret=jax.default_backend() != "gpu",
    )(*arrays)


def by_mosaic(kernel, results, *arrays):
    """The same compiled by Mosaic: a pipeline of copies to shared memory along the columns, for each block of rows."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    shape = arrays[0].shape

    def body(*refs):
        block = plgpu.BlockSpec((ROWS, COLS), lambda j: (jax.lax.axis_index("i"), j))
        plgpu.emit_pipeline(
            lambda _, *tiles: kernel(*tiles),
            grid=(shape[1] // COLS,),
            in_specs=[block] * len(arrays),
            out_specs=[block] * results,
            max_concurrent_steps=2,
        )(*refs)

    out = [jax.ShapeDtypeStruct(shape, arrays[0].dtype)] * results
    named = "out_type" if "out_type" in inspect.signature(plgpu.kernel).parameters else "out_shape"
    return plgpu.kernel(body, **{named: out}, grid=(shape[0] // ROWS,), grid_names=("i",))(*arrays)


def gate(call):
    """`tanh(a) * b` of two matrices, by a forward and a backward kernel over blocks."""

    def forward_kernel(a, b, out):
        out[...] = jnp.tanh(a[...]) * b[...]

    def backward_kernel(a, b, g, da, db):
        t = jnp.tanh(a[...])
        da[...] = g[...] * b[...] * (1 - t * t)
        db[...] = g[...] * t

    @jax.custom_vjp
    def run(a, b):
        return call(forward_kernel, 1, a, b)[0]

    run.defvjp(lambda a, b: (run(a, b), (a, b)), lambda kept, g: tuple(call(backward_kernel, 2, *kept, g)))
    return run


def seconds(fn, *args):
    """The least time of ten calls of a compiled function."""
    jax.block_until_ready(fn(*args))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(fn(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192 if jax.default_backend() == "gpu" else 128)
    rows = parser.parse_args().rows
    batch, d_ff = wf.dims(batch=rows, d_ff=8 * COLS)
    keys = jax.random.split(jax.random.key(0), 2)
    a, b = (wf.random.normal(key, [batch, d_ff]) for key in keys)
    mesh = wf.Mesh(x=len(jax.devices()))
    plain = jax.jit(jax.value_and_grad(lambda a, b: jnp.mean(jnp.sin(jnp.tanh(a) * b)), argnums=(0, 1)))
    due = plain(a.array, b.array)
    unit = seconds(plain, a.array, b.array)
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, {rows} x {8 * COLS} float32, mesh {mesh}")
    worst = 0.0
    compilers = {"Triton": by_triton, "Mosaic": by_mosaic} if jax.default_backend() == "gpu" else {"Triton": by_triton}
    for compiler, call in compilers.items():
        kernel = gate(call)

        def loss(a, b, kernel=kernel):
            return wf.mean(wf.sin(wf.local(kernel, a, b, out=a.dims)), over=[batch, d_ff])

        run = wf.spmd(wf.value_and_grad(loss, argnums=(0, 1)), mesh=mesh, layout="batch:x")
        value, slopes = run(a, b)
        found = [value.array, *(slope.array for slope in slopes)]
        errors = [
            float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max())
            for x, y in zip(found, jax.tree.leaves(due), strict=True)
        ]
        worst = max(worst, *errors)
        ratio = seconds(run, a, b) / unit
        print(
            f"{compiler:>8}: value and gradients off by {', '.join(f'{e:.0e}' for e in errors)}; {ratio:.2f} of plain"
        )
    return 1 if worst > 1e-5 else 0


if __name__ == "__main__":
    sys.exit(main())
