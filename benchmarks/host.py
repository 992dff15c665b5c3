"""What Weft costs on the host: importing it, calling a compiled step, ops on values.

    python benchmarks/host.py            # all three tables
    python benchmarks/host.py --import   # one of them; so --call and --eager

CPU time, interleaved with the rival's. The import's is of fresh processes and the least of each; a call's is of the
thread that calls, and the call is waited for before the next; an op's is of many calls in a row. `jax.jit` is given the
very step on the same tree of tensors. Limits stand beside the figures; no test holds them: time is the machine's too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MOST_IMPORT = 1.3
MOST_CALL = 1.2
MOST_CALL_US = 20
MOST_EAGER = 3


def import_times(rounds: int) -> None:
    """CPU-seconds of `import weft` and `import jax`, bytecode there."""
    code = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found: dict[str, list[float]] = {"jax": [], "weft": []}
    for i in range(rounds + 1):
        for name, times in found.items():
            command = [sys.executable, "-c", code.format(name)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            if i:  # the first writes bytecode
                times.append(float(done.stdout))
    jax_s, weft_s = (min(times) for times in found.values())
    print(f"import jax {jax_s:.3f} s of CPU, import weft {weft_s:.3f}: {weft_s / jax_s:.2f} (at most {MOST_IMPORT})")


def call_times(rounds: int) -> None:
    """CPU-microseconds of a call of a train step, by `jax.jit` and by Weft."""
    import jax
    import numpy as np
    import optax

    import weft as wf

    rows, d_in, d_out = wf.dims(batch=8, d_in=8, d_out=8)
    print("\n| a call of a step | weights | jit us | Weft us | more us | ratio |\n|---|---|---|---|---|---|")
    for processors in (1, 8):
        mesh, layout = f"x={processors}", "batch:x"
        batch = wf.put(wf.tensor(np.ones((8, 8), "float32"), [rows, d_in]), mesh=mesh, layout=layout)
        for count in (2, 40):
            weights = {f"w{i}": wf.parameter(np.eye(8, dtype="float32"), [d_in, d_out]) for i in range(count)}

            def loss(weights: Any, x: Any, key: Any) -> Any:
                each = [wf.mean(wf.square(wf.einsum(x, w, over=d_in)), over=[rows, d_out]) for w in weights.values()]
                return sum(each[1:], each[0])

            step = wf.train_step(loss, optax.sgd(1e-3), mesh=mesh, layout=layout)
            state, jitted = step.init(weights), jax.jit(step)

            def spent(call: Callable[..., Any], state: Any = state, batch: Any = batch) -> float:
                total = 0.0
                for _ in range(100):
                    start = time.thread_time()
                    result = call(state, batch)
                    total += time.thread_time() - start
                    jax.block_until_ready(result)
                return total * 1e4

            spent(jitted), spent(step)
            pairs = [(spent(jitted), spent(step)) for _ in range(rounds)]
            plain, own, more = (statistics.median(v) for v in zip(*((a, b, b - a) for a, b in pairs), strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            print(
                f"| {processors} processors | {count} | {plain:.0f} | {own:.0f} | {more:.0f} | {ratio:.2f} |",
                flush=True,
            )
    print(f"limits: {MOST_CALL} with 40 weights, {MOST_CALL_US} us more with 2")


def eager_times(rounds: int) -> None:
    """CPU-microseconds of ops on values of 16 x 16, in jnp and in Weft."""
    import jax
    import jax.numpy as jnp

    import weft as wf

    a, b, c, top = wf.dims(a=16, b=16, c=16, top=4)
    x, y, ids, key = jnp.ones((16, 16)), jnp.ones(16), jnp.arange(16), jax.random.key(0)
    tx, tw, ty, ti = wf.tensor(x, [a, b]), wf.tensor(x, [b, c]), wf.tensor(y, [b]), wf.tensor(ids, "n")
    ops: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "einsum against jnp.einsum": (lambda: jnp.einsum("ab,bc->ac", x, x), lambda: wf.einsum(tx, tw, over=b)),
        "einsum against jnp.matmul": (lambda: jnp.matmul(x, x), lambda: wf.einsum(tx, tw, over="b")),
        "x + x": (lambda: x + x, lambda: tx + tx),
        "x + y": (lambda: x + y, lambda: tx + ty),
        "x * 2.0": (lambda: x * 2.0, lambda: tx * 2.0),
        "exp": (lambda: jnp.exp(x), lambda: wf.exp(tx)),
        "gelu": (lambda: jax.nn.gelu(x), lambda: wf.gelu(tx)),
        "where": (lambda: jnp.where(x > 0, x, 0.0), lambda: wf.where(tx > 0, tx, 0.0)),
        "cast": (lambda: x.astype("bfloat16"), lambda: wf.cast(tx, "bfloat16")),
        "sum": (lambda: jnp.sum(x, 1), lambda: wf.sum(tx, over=b)),
        "mean": (lambda: jnp.mean(x, 1), lambda: wf.mean(tx, over=b)),
        "var": (lambda: jnp.var(x, 1), lambda: wf.var(tx, over=b)),
        "softmax": (lambda: jax.nn.softmax(x, 1), lambda: wf.softmax(tx, over=b)),
        "argmax": (lambda: jnp.argmax(x, 1), lambda: wf.argmax(tx, over=b)),
        "cumsum": (lambda: jnp.cumsum(x, 1), lambda: wf.cumsum(tx, over=b)),
        "sort": (lambda: jnp.sort(x, 1), lambda: wf.sort(tx, over=b)),
        "top_k": (lambda: jax.lax.top_k(x, 4), lambda: wf.top_k(tx, over=b, k=top)),
        "take": (lambda: jnp.take(x, ids, axis=0), lambda: wf.take(tx, ti, over=a)),
        "concat": (lambda: jnp.concatenate([x, x], 0), lambda: wf.concat([tx, tx], over=a)),
        "slice": (lambda: x[2:6], lambda: wf.slice(tx, over=a, start=2, size=4)),
        "getitem": (lambda: x[3], lambda: tx["a", 3]),
        "roll": (lambda: jnp.roll(x, 1, 0), lambda: wf.roll(tx, over=a, by=1)),
        "flip": (lambda: jnp.flip(x, 0), lambda: wf.flip(tx, over=a)),
        "arange": (lambda: jnp.arange(16), lambda: wf.arange(a)),
        "random.normal": (lambda: jax.random.normal(key, (16, 16)), lambda: wf.random.normal(key, [a, b])),
    }

    def spent(call: Callable[[], Any]) -> float:
        start = time.thread_time()
        for _ in range(200):
            call()
        return (time.thread_time() - start) / 200 * 1e6

    print("\n| an op on values | jnp us | Weft us | ratio |\n|---|---|---|---|")
    worst = 0.0
    for name, calls in ops.items():
        for call in calls:
            spent(call)
        plain, own = (
            statistics.median(v) for v in zip(*([spent(c) for c in calls] for _ in range(rounds)), strict=True)
        )
        worst = max(worst, own / plain)
        print(f"| {name} | {plain:.1f} | {own:.1f} | {own / plain:.2f} |", flush=True)
    print(f"largest {worst:.2f} (at most {MOST_EAGER})")


TABLES = {"import": import_times, "call": call_times, "eager": eager_times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    for name in TABLES:
        parser.add_argument(f"--{name}", dest="chosen", action="append_const", const=name)
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    for name in args.chosen or TABLES:
        TABLES[name](args.rounds)


if __name__ == "__main__":
    main()
