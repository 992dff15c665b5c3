"""Growth: what planning costs and foretells from 8 to 16,384 processors and 0.1 B to 1 T parameters.

    python benchmarks/scale.py [--quick] [--only growth] [--out benchmarks/scale.json] [--plot docs/pictures]

Four parts, none of which needs an accelerator:
- `trace`: one train step traced for meshes of every size: seconds, host memory, lines, collectives;
- `growth`, `weak`, `strong`: the best layout that `wf.search` finds, on h100, b200 and v5p: how long the search takes,
  what a step takes, sends and holds, its MFU. The model grows with the machine; the batch does; nothing does;
- `dispatch`: what a call of a train step costs in Python, on as many virtual processors as fit into this machine.

Every cell runs in a process of its own, whose largest memory is the cell's. Rows are written as they come, and a second
run goes on where the first ended; `--again` forgets them.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HARDWARE = ("h100", "v5p", "b200")
DIMS = ("batch", "heads", "d_ff", "vocab", "params.d_model")
PROCESSORS = (8, 64, 512, 4096, 16384)
WEAK, STRONG = (8, 64, 512, 4096, 16384), (512, 2048, 8192, 16384)

_LLAMA = dict(
    vocab=128256, norm="rms", positions="rotary", activation="silu", gated=True, tied_scale=False, scanned=True,
    remat=True, loss_chunks=8,
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense 0.1 B": dict(_LLAMA, layers=12, d_model=768, heads=12, d_kv=64, d_ff=2048, vocab=32000),
    "dense 1 B": dict(_LLAMA, layers=16, d_model=2048, heads=8, group=4, d_kv=64, d_ff=8192, tied=True),
    "dense 8 B": dict(_LLAMA, layers=32, d_model=4096, heads=8, group=4, d_kv=128, d_ff=14336),
    "dense 70 B": dict(_LLAMA, layers=80, d_model=8192, heads=8, group=8, d_kv=128, d_ff=28672),
    "dense 405 B": dict(_LLAMA, layers=126, d_model=16384, heads=8, group=16, d_kv=128, d_ff=53248),
    "dense 1 T": dict(_LLAMA, layers=136, d_model=24576, heads=16, group=12, d_kv=128, d_ff=81920),
    "experts 0.5 B": dict(
        _LLAMA, layers=12, d_model=768, heads=12, d_kv=64, d_ff=2048, vocab=32000, experts=8, gating="top_k", top_k=2
    ),
    "experts 47 B": dict(
        _LLAMA, layers=32, d_model=4096, heads=8, group=4, d_kv=128, d_ff=14336, vocab=32000, experts=8,
        gating="top_k", top_k=2,
    ),
    "experts 1 T": dict(
        _LLAMA, layers=60, d_model=7168, heads=64, d_kv=128, d_ff=2048, vocab=163840, experts=384, gating="top_k",
        top_k=8,
    ),
}  # fmt: skip
"""0.1 and 0.5 B are GPT-2's width; 1, 8, 70 and 405 B are Llama 3's sizes, 47 B Mixtral's, 1 T of experts Kimi K2's."""

GROWTH = [
    ("dense 0.1 B", 8, 64, 2048),
    ("dense 1 B", 64, 256, 4096),
    ("dense 8 B", 512, 1024, 4096),
    ("dense 70 B", 4096, 4096, 4096),
    ("dense 405 B", 16384, 2048, 8192),
    ("dense 1 T", 16384, 2048, 8192),
    ("experts 0.5 B", 64, 256, 4096),
    ("experts 47 B", 512, 1024, 4096),
    ("experts 1 T", 16384, 4096, 4096),
]
"""Model, processors, sequences of a batch, their length."""


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    part: str
    model: str
    processors: int
    batch: int
    length: int
    hardware: str = ""

    @property
    def key(self) -> str:
        return " ".join(filter(None, [self.part, self.model, str(self.processors), self.hardware]))


def cells(quick: bool) -> Iterator[Cell]:
    """All cells, the cheap ones first."""
    for processors in PROCESSORS:
        for model in ("dense 8 B", "dense 405 B", "experts 47 B"):
            yield Cell("trace", model, processors, max(processors, 64), 4096)
    for processors in (1, 2, 4, 8, 16, 32, 64):
        yield Cell("dispatch", "tiny-lm", processors, 64, 16)
    for hardware in HARDWARE[:1] if quick else HARDWARE:
        for model, processors, batch, length in GROWTH[:2] if quick else GROWTH:
            yield Cell("growth", model, processors, batch, length, hardware)
        for processors in PROCESSORS[:2] if quick else WEAK:
            yield Cell("weak", "dense 8 B", processors, 2 * processors, 4096, hardware)
        for processors in () if quick else STRONG:
            yield Cell("strong", "dense 70 B", processors, 2048, 4096, hardware)


# What one process measures.


def measure(cell: Cell, search_all: bool, budget: float) -> dict[str, Any]:
    """The figures of one cell."""
    found = {"trace": measure_trace, "dispatch": measure_dispatch}.get(cell.part)
    figures = measure_search(cell, search_all, budget) if found is None else found(cell)
    return figures | {"host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def train_step_of(cell: Cell) -> tuple[Any, tuple[Any, ...], int]:
    """A train step, its arguments as shapes, and how many parameters it trains."""
    import jax
    import optax

    import weft as wf
    from weft import models

    config = models.LMConfig(name=cell.model, batch=cell.batch, length=cell.length, **MODELS[cell.model])
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(1e-3), donate=True)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step, (step.init(models.shapes(config)), config.batch_shapes(), key), config.param_count


def measure_trace(cell: Cell) -> dict[str, Any]:
    """How long a train step takes to trace, and how large what is read of it is."""
    import jax

    import weft as wf

    step, args, count = train_step_of(cell)
    split = "experts" if cell.model.startswith("experts") else "d_ff"
    times, program = [], None
    for _ in range(3):
        jax.clear_caches()
        start = time.process_time()
        program = wf.trace(
            step, *args, mesh=f"x={cell.processors // 8},y=8", layout=f"batch:x,heads:y,{split}:y,params.d_model:x"
        )
        rows = len(program.ledger)
        times.append(time.process_time() - start)
    assert program is not None
    return {"parameters": count, "trace_seconds": min(times), "rows": rows, "lines": len(str(program).splitlines())}


def measure_search(cell: Cell, search_all: bool, budget: float) -> dict[str, Any]:
    """What the search finds, and what it takes; without a plan where nothing fits."""
    import weft as wf

    step, args, count = train_step_of(cell)
    names = [*DIMS, "experts"] if cell.model.startswith("experts") else [*DIMS]
    dims = None if search_all else names
    start, cpu = time.perf_counter(), time.process_time()
    figures: dict[str, Any] = {"parameters": count, "dims": dims}
    try:
        found = wf.search(step, *args, processors=cell.processors, hardware=cell.hardware, dims=dims, workers=1, keep=1)
    except wf.WeftError as error:
        figures |= {"refused": error.fact}
    else:
        best = found.best
        figures |= {
            "mesh": str(best.mesh), "layout": str(best.layout), "seconds": best.seconds, "mfu": best.mfu,
            "memory_bytes": best.memory_bytes, "sent_bytes": best.bytes, "tokens_per_s": best.tokens_per_s,
            "searched": found.searched, "traced": found.traced, "not_seen": found.not_seen,
        }  # fmt: skip
    return figures | {
        "search_seconds": time.perf_counter() - start, "search_cpu_seconds": time.process_time() - cpu
    }  # fmt: skip


def measure_dispatch(cell: Cell) -> dict[str, Any]:
    """What a call of a train step takes until it returns, and how much of it is ours.

    Ours is what is left when XLA's executable is replaced by something that gives the last results.
    """
    import jax
    import optax

    import weft as wf
    from weft import models

    config = models.preset("tiny-lm", batch=cell.batch, length=cell.length, dropout=0.0)
    step = wf.train_step(
        lambda model, batch, key: model.loss(batch, key),
        optax.adam(1e-3),
        mesh=f"x={cell.processors}",
        layout="batch:x",
    )
    state, key = step.init(models.init(config, jax.random.key(0))), jax.random.key(1)
    ids = jax.numpy.zeros((cell.batch, cell.length), "int32")
    batch = {name: wf.tensor(ids, wf.dims(batch=cell.batch, length=cell.length)) for name in ("inputs", "targets")}
    batch = wf.put(batch, mesh=f"x={cell.processors}", layout="batch:x")  # once, as the trainer does
    last = jax.block_until_ready(step(state, batch, key))
    state = last[0]

    def timed(rounds: int) -> float:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            result = step(state, batch, key)
            times.append(time.perf_counter() - start)
            jax.block_until_ready(result)
        return statistics.quantiles(times, n=10)[0]  # other work on the machine only adds

    whole = timed(30)
    (program,) = step._programs.values()
    jitted = program.jitted
    results: dict[str, Any] = {}

    def give_last(*args: Any) -> Any:
        if "last" not in results:
            results["last"] = jitted(*args)
        return results["last"]

    program.jitted = give_last
    step(state, batch, key)
    ours = timed(200)
    return {"call_seconds": whole, "own_seconds": ours, "leaves": len(jax.tree.leaves(state))}


# The run.


def run(args: argparse.Namespace) -> None:
    rows: dict[str, dict[str, Any]] = {}
    if args.out.exists() and not args.again:
        rows = {row["key"]: row for row in json.loads(args.out.read_text())}
    wanted = [cell for cell in cells(args.quick) if not args.only or cell.part in args.only.split(",")]
    left = [cell for cell in wanted if "failed" in rows.get(cell.key, {"failed": ""})]
    print(f"{len(wanted)} cells, {len(wanted) - len(left)} of them known from {args.out}", flush=True)
    for i, cell in enumerate(left, 1):
        start = time.perf_counter()
        figures = in_own_process(cell, args)
        took = time.perf_counter() - start
        rows[cell.key] = {"key": cell.key, **vars(cell), **figures}
        args.out.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
        print(f"[{i}/{len(left)}] {cell.key}: {said(figures)} ({took:.0f} s)", flush=True)


def in_own_process(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a cell, or what went wrong."""
    command = [sys.executable, __file__, "--cell", json.dumps(vars(cell))] + ["--all"] * args.all
    command += ["--seconds", str(args.seconds)]
    devices = cell.processors if cell.part == "dispatch" else 1
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {args.timeout} s"}
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        return {"failed": (child.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    return json.loads(lines[-1])


def said(figures: dict[str, Any]) -> str:
    """The figures of a cell in a line."""
    if trouble := figures.get("failed") or figures.get("refused"):
        return trouble
    if "trace_seconds" in figures:
        return f"traced in {figures['trace_seconds']:.2f} s"
    if "own_seconds" in figures:
        return f"{figures['own_seconds'] * 1e6:.0f} us of Python in {figures['call_seconds'] * 1e3:.2f} ms"
    return f"MFU {figures['mfu']:.1%}, {figures['seconds']:.3g} s under {figures['layout']} on {figures['mesh']}"


# The pictures and the tables.


def plot(rows: list[dict[str, Any]], folder: Path) -> None:
    """Two pictures: what is foretold, and what foretelling costs."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    marks = dict(zip(HARDWARE, ("o", "s", "^"), strict=True))
    colours = dict(zip(HARDWARE, ("C0", "C1", "C2"), strict=True))
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), sharey=True)
    titles = dict(
        growth="the model grows with the machine",
        weak="8 B, 8,192 tokens a processor",
        strong="70 B, 8.4 M tokens a step",
    )
    for axis, (part, title) in zip(axes, titles.items(), strict=True):
        for hardware in HARDWARE:
            for kind, style in (("dense", "-"), ("experts", "--")):
                of = [
                    r for r in rows if r["part"] == part and r["hardware"] == hardware and r["model"].startswith(kind)
                ]
                of = sorted((r for r in of if "mfu" in r), key=lambda r: (r["processors"], r["parameters"]))
                if of:
                    label = hardware if kind == "dense" else f"{hardware}, experts"
                    at = [r["processors"] for r in of], [100 * r["mfu"] for r in of]
                    axis.plot(*at, style, marker=marks[hardware], color=colours[hardware], label=label)
                for row in of if part == "growth" and hardware == HARDWARE[0] else ():
                    words = row["model"].split(maxsplit=1)[1]
                    axis.annotate(
                        words, (row["processors"], 100 * row["mfu"]), (4, 6), textcoords="offset points", fontsize=8
                    )
        axis.set(title=title, xlabel="processors", xscale="log")
        axis.set_xticks(PROCESSORS, [f"{n:,}" for n in PROCESSORS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="MFU of the best layout, %", ylim=(0, None))
    axes[0].legend(fontsize=8)
    _save(figure, folder / "scale-mfu.png")

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.6))
    for model in dict.fromkeys(r["model"] for r in rows if r["part"] == "trace"):
        of = sorted((r for r in rows if r["part"] == "trace" and r["model"] == model), key=lambda r: r["processors"])
        axes[0].plot([r["processors"] for r in of], [r["trace_seconds"] for r in of], marker="o", label=model)
    axes[0].set(title="tracing a train step, CPU seconds", xscale="log", ylim=(0, None), xlabel="processors")
    axes[0].legend(fontsize=8)
    of = [r for r in rows if "search_cpu_seconds" in r and "mfu" in r]
    for hardware in HARDWARE:
        own = [r for r in of if r["hardware"] == hardware]
        axes[1].plot(
            [r["processors"] for r in own], [r["search_cpu_seconds"] for r in own], marks[hardware], label=hardware
        )
    axes[1].set(title="searching layouts, CPU seconds", xscale="log", ylim=(0, None), xlabel="processors")
    axes[1].legend(fontsize=8)
    of = sorted((r for r in rows if r["part"] == "dispatch" and "own_seconds" in r), key=lambda r: r["processors"])
    axes[2].plot([r["processors"] for r in of], [1e6 * r["own_seconds"] for r in of], marker="o", label="Weft's Python")
    axes[2].plot(
        [r["processors"] for r in of], [1e6 * r["call_seconds"] for r in of], marker="s", label="until it returns"
    )
    axes[2].set(title="a call of a train step, microseconds", xscale="log", yscale="log", xlabel="virtual processors")
    axes[2].legend(fontsize=8)
    for axis in axes:
        axis.grid(alpha=0.3)
    _save(figure, folder / "scale-cost.png")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(path)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of searches in Markdown."""
    lines = [
        "| part | model | processors | hardware | best layout | a step | MFU | memory | sent | search, CPU | host |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        if r["part"] not in ("growth", "weak", "strong"):
            continue
        head = f"| {r['part']} | {r['model']} | {r['processors']:,} | {r['hardware']} |"
        if "mfu" not in r:
            lines.append(f"{head} {r.get('refused') or r.get('failed')} | | | | | | |")
            continue
        lines.append(
            f"{head} `{r['layout']}` on `{r['mesh']}` | {r['seconds']:.3g} s | {r['mfu']:.1%} | "
            f"{r['memory_bytes'] / 2**30:.1f} GiB | {r['sent_bytes'] / 2**30:.1f} GiB | "
            f"{r['search_cpu_seconds']:.0f} s | {r['host_bytes'] / 2**30:.1f} GiB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, one kind of hardware")
    parser.add_argument("--only", default="", metavar="PARTS", help="like `growth,weak`")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "scale.json")
    parser.add_argument("--again", action="store_true", help="measure what is known too")
    parser.add_argument("--all", action="store_true", help="search all dims, not those named here")
    parser.add_argument(
        "--seconds", type=float, default=300, help="for one search, which then says what it did not see"
    )
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one cell")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw what is known, and print its table")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(measure(Cell(**json.loads(args.cell)), args.all, args.seconds)))
    elif args.plot:
        rows = json.loads(args.out.read_text())
        plot(rows, args.plot)
        print(table(rows))
    else:
        run(args)


if __name__ == "__main__":
    main()
