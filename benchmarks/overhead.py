"""What Weft adds to plain JAX: nothing in the compiled program, little while tracing.

First, a Transformer block, forward and backward, by hand in `jax.shard_map` and in Weft, on 8 virtual processors:
the collectives and their bytes (from the jaxpr and from the compiled code), compiled instructions, numbers and step
time, all in one run. Then the time to trace a whole train step of the paper's largest language model for meshes that
are not there. Exits with 1 where a promise is broken; one about step time only with `--strict-time`, since time is
the machine's as well.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import re
import statistics
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import weft as wf
from weft.graph import graph, steps

MOST_INSTRUCTIONS = 1.02
MOST_STEP_TIME = 1.03
MOST_DIFFERENCE = 1e-5
LEAST_ROUNDS = 30
MOST_TRACE_SECONDS = 0.5
MOST_TRACE_GROWTH = 1.3

MESH = "rows=2,cols=4"
LAYOUTS = [
    "batch:rows",
    "heads:cols,d_ff:cols",
    "batch:rows,heads:cols,d_ff:cols",
    "batch:rows,params.d_model:rows",
    "batch:rows,heads:cols,d_ff:cols,params.d_model:rows",
]

B, T, D, F = wf.dims(batch=16, length=64, d_model=128, d_ff=512)
M, H, K = wf.dims(memory_length=64, heads=8, d_kv=32)
EPSILON = 1e-6
WEIGHTS = {
    "norm_1": [D],
    "q": [D, H, K],
    "k": [D, H, K],
    "v": [D, H, K],
    "o": [H, K, D],
    "norm_2": [D],
    "w_1": [D, F],
    "w_2": [F, D],
}


# The block in Weft.


def norm(x: wf.Tensor, scale: wf.Tensor) -> wf.Tensor:
    return x * wf.rsqrt(wf.mean(x * x, over=D) + EPSILON) * scale


def attention(p: dict[str, wf.Tensor], h: wf.Tensor) -> wf.Tensor:
    q, k, v = (wf.einsum(h, p[n], over=D) for n in "qkv")
    k, v = k.rename(length=M), v.rename(length=M)
    seen = wf.arange(T, like=h) >= wf.arange(M, like=h)
    scores = wf.where(seen, wf.einsum(q, k, over=K) / math.sqrt(K.size), -1e9)
    return wf.einsum(wf.einsum(wf.softmax(scores, over=M), v, over=M), p["o"], over=[H, K])


def block(p: dict[str, wf.Tensor], x: wf.Tensor) -> wf.Tensor:
    x = x + attention(p, norm(x, p["norm_1"]))
    h = wf.relu(wf.einsum(norm(x, p["norm_2"]), p["w_1"], over=D))
    return x + wf.einsum(h, p["w_2"], over=F)


def loss(p: dict[str, wf.Tensor], x: wf.Tensor) -> wf.Tensor:
    y = block(p, x)
    return wf.mean(y * y, over=[B, T, D])


# The same by hand. Every axis is manual; each value that fans out is made to vary once, so that its gradient is
# summed once; each sum stands where it is due.


@dataclasses.dataclass(frozen=True)
class Hand:
    """The block for one layout: the axis of the batch, that of heads and d_ff, that of stored d_model."""

    data: str | None
    model: str | None
    stored: str | None

    @classmethod
    def of(cls, layout: str) -> "Hand":
        return cls(
            data="rows" if "batch:rows" in layout else None,
            model="cols" if "heads:cols" in layout else None,
            stored="rows" if "params.d_model:rows" in layout else None,
        )

    def specs(self) -> dict[str, P]:
        model, stored = self.model, self.stored
        by_dim = {D: stored, H: model, K: None, F: model}
        return {name: P(*(by_dim[dim] for dim in dims)) for name, dims in WEIGHTS.items()}

    def use(self, name: str, compute: Any, *values: Any) -> Any:
        """`compute` of a weight made to vary with the data, or gathered and never kept for the backward pass."""
        *others, weight = values
        if not self.stored:
            return compute(*others, vary(weight, self.data))
        at = WEIGHTS[name].index(D)

        @jax.checkpoint
        def gather_and_compute(*values: Any) -> Any:
            *others, weight = values
            return compute(*others, lax.all_gather(weight, self.stored, axis=at, tiled=True))

        return gather_and_compute(*others, weight)

    def norm(self, p: dict[str, Any], name: str, x: Any) -> Any:
        scaled = x * lax.rsqrt(jnp.mean(x * x, axis=-1) + EPSILON)[..., None]
        return vary(self.use(name, jnp.multiply, scaled, p[name]), self.model)

    def attention(self, p: dict[str, Any], h: Any) -> Any:
        q, k, v = (self.use(n, functools.partial(jnp.einsum, "btd,dhk->bthk"), h, p[n]) for n in "qkv")
        seen = jnp.arange(T.size)[:, None] >= jnp.arange(M.size)
        scores = jnp.einsum("bthk,bmhk->bthm", q, k) / math.sqrt(K.size)
        weights = jax.nn.softmax(jnp.where(seen[:, None, :], scores, -1e9), axis=-1)
        mixed = jnp.einsum("bthm,bmhk->bthk", weights, v)
        return sum_over(self.use("o", functools.partial(jnp.einsum, "bthk,hkd->btd"), mixed, p["o"]), self.model)

    def block(self, p: dict[str, Any], x: Any) -> Any:
        x = x + self.attention(p, self.norm(p, "norm_1", x))
        h = self.use("w_1", functools.partial(jnp.einsum, "btd,df->btf"), self.norm(p, "norm_2", x), p["w_1"])
        y = self.use("w_2", functools.partial(jnp.einsum, "btf,fd->btd"), jax.nn.relu(h), p["w_2"])
        return x + sum_over(y, self.model)

    def loss(self, p: dict[str, Any], x: Any) -> Any:
        y = self.block(p, x)
        return sum_over(jnp.sum(y * y) / (B.size * T.size * D.size), self.data)

    def step(self, mesh: jax.sharding.Mesh) -> Any:
        specs = self.specs()
        return jax.jit(
            jax.shard_map(
                jax.value_and_grad(self.loss),
                mesh=mesh,
                in_specs=(specs, P(self.data)),
                out_specs=(P(), specs),
                check_vma=True,
            )
        )


def vary(x: Any, axis: str | None) -> Any:
    return x if axis is None else lax.pcast(x, axis, to="varying")


def sum_over(x: Any, axis: str | None) -> Any:
    return x if axis is None else lax.psum(x, axis)


# What is compared.

Sent = collections.Counter  # (collective, axes or groups, bytes) → calls


@dataclasses.dataclass
class Side:
    """One of the two programs: how to run it, what it sends, and how large it is once compiled."""

    run: Any
    sent: Sent
    compiled_sent: Sent
    instructions: int
    results: list[np.ndarray]


@dataclasses.dataclass
class Comparison:
    layout: str
    hand: Side
    weft: Side

    @property
    def instructions_ratio(self) -> float:
        return self.weft.instructions / self.hand.instructions

    @property
    def largest_difference(self) -> float:
        """The largest relative difference of the loss and of any gradient."""
        pairs = zip(self.hand.results, self.weft.results, strict=True)
        return max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in pairs)

    def broken(self) -> list[str]:
        """The promises that do not hold; step time aside."""
        found = []
        if self.hand.sent != self.weft.sent:
            found.append(f"traced collectives differ: {difference(self.hand.sent, self.weft.sent)}")
        if self.hand.compiled_sent != self.weft.compiled_sent:
            found.append(f"compiled collectives differ: {difference(self.hand.compiled_sent, self.weft.compiled_sent)}")
        if not 2 - MOST_INSTRUCTIONS <= self.instructions_ratio <= MOST_INSTRUCTIONS:
            found.append(f"compiled instructions differ by {self.instructions_ratio - 1:+.1%}")
        if self.largest_difference > MOST_DIFFERENCE:
            found.append(f"numbers differ by {self.largest_difference:.1e}")
        return found


def difference(hand: Sent, weft: Sent) -> str:
    """What only one of them sends."""
    sides = (("by hand only", hand - weft), ("Weft only", weft - hand))
    return "; ".join(f"{name} {dict(extra)}" for name, extra in sides if extra)


def compare(layout: str) -> Comparison:
    """The block by hand and in Weft under a layout, traced, compiled and run once."""
    mesh = wf.Mesh(MESH)
    random = np.random.default_rng(0)
    arrays = {n: random.normal(size=[d.size for d in dims]).astype("float32") for n, dims in WEIGHTS.items()}
    arrays = {n: a / math.sqrt(D.size) if a.ndim > 1 else 1 + a / 10 for n, a in arrays.items()}
    data = random.normal(size=[B.size, T.size, D.size]).astype("float32")

    hand = Hand.of(layout)
    place = {n: NamedSharding(mesh.jax_mesh(), s) for n, s in hand.specs().items()}
    by_hand = hand.step(mesh.jax_mesh())
    hand_args = (
        {n: jax.device_put(a, place[n]) for n, a in arrays.items()},
        jax.device_put(data, NamedSharding(mesh.jax_mesh(), P(hand.data))),
    )

    with quiet():
        in_weft = wf.spmd(wf.value_and_grad(loss), mesh=mesh, layout=layout)
    weft_args = (
        {n: wf.parameter(hand_args[0][n], dims) for n, dims in WEIGHTS.items()},
        wf.tensor(hand_args[1], [B, T, D]),
    )
    return Comparison(layout, side(by_hand, hand_args), side(in_weft, weft_args))


def side(fn: Any, args: Any) -> Side:
    program = jax.jit(fn).lower(*args).compile()
    text = program.as_text()
    return Side(
        run=functools.partial(fn, *args),
        sent=traced(jax.make_jaxpr(fn)(*args)),
        compiled_sent=compiled(text),
        instructions=len(INSTRUCTION.findall(text)),
        results=[np.asarray(leaf) for leaf in jax.tree.leaves(program(*args))],
    )


def traced(jaxpr: Any) -> Sent:
    """The collectives of a jaxpr."""
    found: Sent = collections.Counter()
    for step in steps(graph(jaxpr)):
        if step.collective is not None:
            for aval in step.carried:
                found[step.collective, "+".join(sorted(step.axes)), aval.size * aval.dtype.itemsize] += step.count
    return found


INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)
COLLECTIVE = re.compile(
    r"= (?P<type>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    r".*?(?:replica_groups|source_target_pairs)=(?P<groups>\S+?\}\}|\S+),"
)
ARRAY = re.compile(r"\b(?:f|bf|s|u|c|pred)(\d*)\[([\d,]*)\]")


def compiled(text: str) -> Sent:
    """The collectives of compiled code; those of one group are added up, since XLA joins them as it likes."""
    found: Sent = collections.Counter()
    for match in COLLECTIVE.finditer(text):
        size = sum(
            int(bits or 8) // 8 * math.prod(map(int, filter(None, shape.split(","))))
            for bits, shape in ARRAY.findall(match["type"])
        )
        found[match["kind"], match["groups"], "calls"] += 1
        found[match["kind"], match["groups"], "bytes"] += size
    return found


@dataclasses.dataclass
class Timing:
    """Median seconds of a step of each side, the ratio of their times, and that of one program against itself."""

    hand: float
    weft: float
    ratio: float
    ratio_error: float
    noise: float
    rounds: int


def step_times(hand: Any, weft: Any, *, budget: float, least_rounds: int = LEAST_ROUNDS) -> Timing:
    """Interleaved steps of the hand-written program, Weft's and the hand-written one again, in turning order.

    What slows the machine down slows all three; the ratio is the median of the rounds' own. Takes `budget` seconds.
    """

    def seconds(run: Any) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - start

    runs = [hand, weft, hand]
    orders = list(itertools.permutations(range(3)))
    for run in runs:
        seconds(run)
    found: list[list[float]] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(found) < least_rounds:
        order = orders[len(found) % len(orders)]
        measured = {j: seconds(runs[j]) for j in order}
        found.append([measured[j] for j in range(3)])
    times = np.array(found)
    ratios = times[:, 1] / np.sqrt(times[:, 0] * times[:, 2])
    low, high = np.quantile(ratios, [0.25, 0.75])
    return Timing(
        hand=float(np.median(times[:, [0, 2]])),
        weft=float(np.median(times[:, 1])),
        ratio=float(np.median(ratios)),
        ratio_error=float(1.25 * (high - low) / 1.35 / math.sqrt(len(found))),  # of a median, were the noise normal
        noise=float(np.median(times[:, 2] / times[:, 0])),
        rounds=len(found),
    )


# Tracing a train step of the paper's largest language model.

TRACE_LAYOUT = "batch:rows,vocab:cols,heads:cols,d_ff:cols"
TRACE_MESHES = ["rows=2,cols=4", "rows=16,cols=32", "rows=64,cols=64"]


def language_model(
    *, layers: int, d_model: int, heads: int, d_kv: int, d_ff: int, vocab: int, batch: int, length: int
) -> tuple[Any, wf.TrainState, dict[str, wf.Tensor]]:
    """A train step of a decoder with its layers in a scan, its state and its batch; nothing is allocated."""
    L, D, H, K = wf.dims(layers=layers, d_model=d_model, heads=heads, d_kv=d_kv)
    B, T, M = wf.dims(batch=batch, length=length, memory_length=length)
    F, V = wf.dims(d_ff=d_ff, vocab=vocab)

    def norm(x: wf.Tensor, scale: wf.Tensor) -> wf.Tensor:
        wide = wf.cast(x, "float32")
        return wf.cast(wide * wf.rsqrt(wf.mean(wide * wide, over=D) + EPSILON) * scale, x.dtype)

    def layer(x: wf.Tensor, p: dict[str, wf.Tensor]) -> tuple[wf.Tensor, None]:
        w = {name: wf.cast(weight, x.dtype) for name, weight in p.items() if "norm" not in name}
        h = norm(x, p["norm_1"])
        q, k, v = (wf.einsum(h, w[n], over=D) for n in "qkv")
        k, v = k.rename(length=M), v.rename(length=M)
        seen = wf.arange(M, like=x) <= wf.arange(T, like=x)
        scores = wf.where(seen, wf.cast(wf.einsum(q, k, over=K), "float32") / math.sqrt(K.size), -1e9)
        mixed = wf.einsum(wf.cast(wf.softmax(scores, over=M), x.dtype), v, over=M)
        x = x + wf.einsum(mixed, w["o"], over=[H, K])
        h = wf.relu(wf.einsum(norm(x, p["norm_2"]), w["w_1"], over=D))
        return x + wf.einsum(h, w["w_2"], over=F), None

    def cross_entropy(p: dict[str, Any], batch: dict[str, wf.Tensor], key: Any) -> wf.Tensor:
        x = wf.take(wf.cast(p["embedding"], "bfloat16"), batch["inputs"], over=V)
        x, _ = wf.scan(wf.remat(layer), x, p["layers"], over=L)
        logits = wf.einsum(norm(x, p["norm"]), wf.cast(p["softmax"], "bfloat16"), over=D, dtype="float32")
        target = wf.sum(logits * wf.one_hot(batch["targets"], V), over=V)
        return wf.mean(wf.logsumexp(logits, over=V) - target, over=[B, T])

    def weight(*dims: wf.Dim) -> wf.Tensor:
        return wf.parameter(jax.ShapeDtypeStruct([dim.size for dim in dims], "float32"), dims)

    stacked = {"norm_1": [D], "q": [D, H, K], "k": [D, H, K], "v": [D, H, K], "o": [H, K, D]}
    stacked |= {"norm_2": [D], "w_1": [D, F], "w_2": [F, D]}
    params = {
        "embedding": weight(V, D),
        "layers": {name: weight(L, *dims) for name, dims in stacked.items()},
        "norm": weight(D),
        "softmax": weight(V, D),
    }
    words = wf.tensor(jax.ShapeDtypeStruct([B.size, T.size], "int32"), [B, T])
    step = wf.train_step(cross_entropy, optax.adam(1e-3))
    return step, jax.eval_shape(step.init, params), {"inputs": words, "targets": words}


PAPERS_LARGEST = dict(
    layers=6, d_model=1024, heads=256, d_kv=256, d_ff=262144, vocab=32768, batch=256, length=256
)  # fmt: skip


def trace_times(*, repeats: int, model: dict[str, int]) -> dict[str, list[tuple[float, float]]]:
    """Seconds by the clock and of the CPU to trace the step for each mesh in turn, JAX's caches emptied before each."""
    times: dict[str, list[tuple[float, float]]] = {mesh: [] for mesh in TRACE_MESHES}
    wf.trace(*language_model(**model), mesh=TRACE_MESHES[0], layout=TRACE_LAYOUT)  # imports
    for _ in range(repeats):
        for mesh, found in times.items():
            jax.clear_caches()
            step, state, batch = language_model(**model)
            start, start_cpu = time.perf_counter(), time.process_time()
            wf.trace(step, state, batch, mesh=mesh, layout=TRACE_LAYOUT)
            found.append((time.perf_counter() - start, time.process_time() - start_cpu))
    return times


# The report.


@contextlib.contextmanager
def quiet() -> Any:
    """Layouts that leave an axis unused are meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        yield


def total(sent: Sent, word: str) -> int:
    return sum(count for (_, _, what), count in sent.items() if what == word)


def report_block(budget: float) -> tuple[list[str], list[str]]:
    print(f"A Transformer block, forward and backward, f32, mesh {MESH}: by hand / in Weft")
    print(f"  {' '.join(map(str, (B, T, D, H, K, F)))}; steps interleaved for {budget:g} s a layout")
    broken, slow = [], []
    for layout in LAYOUTS:
        found = compare(layout)
        timing = step_times(found.hand.run, found.weft.run, budget=budget)
        broken += [f"{layout}: {promise}" for promise in found.broken()]
        if timing.ratio > MOST_STEP_TIME:
            slow.append(f"{layout}: a step takes {timing.ratio:.3f} times as long (at most {MOST_STEP_TIME})")
        sides = (found.hand, found.weft)
        print(f"\n  {layout}")
        line("collectives, traced", [sum(s.sent.values()) for s in sides], "the same")
        line("  their bytes", [sum(size * n for (_, _, size), n in s.sent.items()) for s in sides], "the same")
        line("collectives, compiled", [total(s.compiled_sent, "calls") for s in sides], "the same")
        line("  their bytes", [total(s.compiled_sent, "bytes") for s in sides], "the same")
        line("compiled instructions", [s.instructions for s in sides], f"within {MOST_INSTRUCTIONS - 1:.0%}")
        line("largest difference", ["", f"{found.largest_difference:.1e}"], f"at most {MOST_DIFFERENCE:.0e}")
        line("ms a step", [f"{timing.hand * 1e3:.2f}", f"{timing.weft * 1e3:.2f}"], "")
        line("  ratio", ["", f"{timing.ratio:.3f} ± {timing.ratio_error:.3f}"], f"at most {MOST_STEP_TIME}", end="")
        print(f"   ({timing.rounds} rounds; by hand against itself: {timing.noise:.3f})")
    return broken, slow


def line(what: str, sides: list[Any], required: str, end: str = "\n") -> None:
    required = f"   required: {required}" if required else ""
    print(f"    {what:<24}{sides[0]:>12}{sides[1]:>16}{required}", end=end)


def report_tracing(repeats: int) -> list[str]:
    print("\nTracing a train step: " + ", ".join(f"{name} {size}" for name, size in PAPERS_LARGEST.items()))
    print(f"  layout {TRACE_LAYOUT}, Adam, layers in a scan with remat, bf16 compute; nothing is allocated")
    best = {}
    for mesh, found in trace_times(repeats=repeats, model=PAPERS_LARGEST).items():
        times, cpu_times = zip(*found, strict=True)
        best[mesh] = min(times)
        print(f"    {mesh:<16}{wf.Mesh(mesh).size:>6} processors   best {min(times):.3f} s", end="")
        print(f"   median {statistics.median(times):.3f} s   best CPU time {min(cpu_times):.3f} s")
    growth = max(best.values()) / min(best.values())
    middle = TRACE_MESHES[1]
    print(f"    required: under {MOST_TRACE_SECONDS} s for {middle}; largest / smallest {growth:.2f}", end="")
    print(f" at most {MOST_TRACE_GROWTH}")
    slow = []
    if best[middle] >= MOST_TRACE_SECONDS:
        slow.append(f"tracing for {middle} takes {best[middle]:.2f} s (under {MOST_TRACE_SECONDS})")
    if growth > MOST_TRACE_GROWTH:
        slow.append(f"tracing time differs {growth:.2f} times between meshes (at most {MOST_TRACE_GROWTH})")
    return slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="how long to time each layout")
    parser.add_argument("--repeats", type=int, default=5, help="traces for each mesh")
    parser.add_argument("--strict-time", action="store_true", help="exit with 1 where time alone is over its limit too")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    print(f"JAX {jax.__version__}, {jax.devices()[0].platform}, {jax.device_count()} virtual processors")
    broken, slow = report_block(args.seconds)
    slow += report_tracing(args.repeats)
    for promise in broken:
        print(f"BROKEN: {promise}")
    for promise in slow:
        print(f"TOO SLOW: {promise}")
    return 1 if broken or (slow and args.strict_time) else 0


if __name__ == "__main__":
    sys.exit(main())
