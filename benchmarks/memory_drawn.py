"""How far `program.memory` lies from XLA's own peak on programs that are drawn.

`python benchmarks/memory_drawn.py predict SEED` draws train steps and writes what Weft says of each into
`memory_drawn/SEED.json`; `... compile SEED` then has XLA compile them (`compiled_for`, no accelerator) and writes its
figures beside, one by one, so that it can be interrupted; `... table [SEED ...]` prints both. A seed is the commit
whose rules made the predictions: programs nobody could have tuned on. `tuning` is the seed the rules were tuned on.
"""

import argparse
import fcntl
import json
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import optax

import weft as wf
from weft import models
from weft.plan import compiled_for

FOLDER = Path(__file__).parent / "memory_drawn"
_TARGETS = {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}
_MODEL_PARALLEL = "batch:rows,vocab:cols,d_ff:cols,heads:cols"
_OPTIMIZERS = ("adam", "adamw", "adafactor", "sgd")


@dataclass(frozen=True)
class Drawn:
    """A train step on a mesh under a layout, for one target."""

    kind: str
    target: str
    mesh: str
    layout: str
    optimizer: str
    microbatches: int = 1
    sizes: dict[str, Any] = field(default_factory=dict)

    def call(self) -> tuple[Any, tuple[Any, ...]]:
        """The train step and its arguments, as shapes."""
        config = models.preset("tiny-lm", **self.sizes)

        def loss(model: Any, batch: Any, key: Any) -> Any:
            if self.microbatches == 1:
                return model.loss(batch, key)

            def part(model: Any, rows: Any) -> Any:
                value, metrics = model.loss_and_metrics(rows, key)
                return value * metrics["tokens"], metrics["tokens"]

            return wf.accumulate(part, model, batch, over="batch", count=self.microbatches)

        step = wf.train_step(loss, getattr(optax, self.optimizer)(1e-3))
        key = jax.eval_shape(lambda: jax.random.key(0))
        return step, (step.init(models.shapes(config)), config.batch_shapes(), key)

    def program(self) -> wf.Program:
        step, args = self.call()
        return wf.trace(step, *args, mesh=self.mesh, layout=self.layout)

    @property
    def machine(self) -> str:
        """The target with as many processors as the mesh."""
        count = wf.Mesh(self.mesh).size
        return f"v5p:{_TARGETS[count]}" if self.target == "tpu" else f"h100:1x{max(count // 8, 1)}x{min(count, 8)}"


class _Drawing:
    """One program being drawn: its random numbers, its sizes."""

    def __init__(self, text: str):
        self.random = random.Random(text)
        one = self.random.choice
        self.one = one
        d_kv = one([64, 128])
        heads = one([8, 16])
        d_model = one([512, 768, 1024, 1536, 2048])
        self.sizes: dict[str, Any] = dict(
            layers=one([4, 6, 8, 12, 24]), d_model=d_model, heads=heads, d_kv=d_kv, d_ff=one([2, 3, 4]) * d_model,
            vocab=one([8192, 16384, 32768, 50304]), length=one([512, 1024, 2048]), dtype="bfloat16",
            group=one([1, 1, 2, 4]), gated=one([False, True]), positions=one(["sinusoid", "rotary", "learned"]),
            activation=one(["relu", "gelu", "silu"]), norm=one(["rms", "layer"]), tied=one([False, False, True]),
            dropout=one([0.0, 0.0, 0.1]), remat=one([True, True, False, "attention", "attention feed_forward"]),
            loss_chunks=one([1, 1, 1, 4]),
        )  # fmt: skip
        self.optimizer = one(_OPTIMIZERS)
        self.microbatches = 1
        self.rows, self.cols = one([(1, 1), (2, 2), (2, 4), (4, 2), (4, 4), (8, 4), (8, 8), (2, 8)])
        self.layout = ""

    def on_two_axes(self, layout: str, rows: list[int], cols: list[int]) -> None:
        self.rows, self.cols, self.layout = self.one(rows), self.one(cols), layout

    def on_any(self) -> None:
        """One of the usual layouts: none, data parallel, model parallel, fully sharded."""
        more = self.one(["", "", ",params.d_model:rows", ",stream:cols", ",optimizer.d_model:rows"])
        if self.rows * self.cols == 1:
            self.layout = ""
        else:
            self.layout = self.one([f"{_MODEL_PARALLEL}{more}", f"{_MODEL_PARALLEL}{more}", "batch:rows+cols"])

    def draw(self, kind: str, target: str) -> Drawn:
        _KINDS[kind](self)
        axes = ("rows", "cols") if self.rows * self.cols > 1 else ("rows",)
        mesh = ",".join(f"{axis}={size}" for axis, size in zip(axes, (self.rows, self.cols), strict=False))
        split = self.rows * (self.cols if "batch:rows+cols" in self.layout else 1)
        a_processor = self.one([1, 2, 4]) * self.microbatches * self.sizes.get("pipeline_microbatches", 1)
        self.sizes["batch"] = split * a_processor
        return Drawn(kind, target, mesh, self.layout, self.optimizer, self.microbatches, self.sizes)


def _scanned(draw: _Drawing) -> None:
    draw.on_any()
    draw.sizes["remat"] = draw.one([True, "attention", "feed_forward", "attention feed_forward"])


def _saved(draw: _Drawing) -> None:
    draw.on_any()
    draw.sizes |= dict(remat=False, layers=draw.one([4, 6, 8, 12]))


def _unrolled(draw: _Drawing) -> None:
    draw.on_any()
    draw.sizes |= dict(scanned=False, layers=draw.one([2, 3, 4]))


def _chunked_loss(draw: _Drawing) -> None:
    draw.on_any()
    draw.sizes["loss_chunks"] = draw.one([2, 4, 8])


def _microbatches(draw: _Drawing) -> None:
    draw.on_any()
    draw.microbatches = draw.one([2, 4])


def _pipeline(draw: _Drawing) -> None:
    stages = draw.one([2, 4])
    draw.on_two_axes(draw.one(["batch:rows,stage:cols", "batch:rows,stage:cols,params.d_model:rows"]), [2, 4], [stages])
    draw.sizes |= dict(stages=stages, layers=draw.one([4, 8, 12]), pipeline_microbatches=draw.one([1, 2]) * stages)
    if draw.sizes["layers"] >= 2 * stages:
        draw.sizes["pipeline_rounds"] = draw.one([1, 1, 2])


def _ring(draw: _Drawing) -> None:
    draw.on_two_axes("batch:rows,length:cols,memory_length:cols,stream:cols", [1, 2, 4], [4, 8])
    draw.sizes["length"] = draw.one([2048, 4096])


def _fully_sharded(draw: _Drawing) -> None:
    shared = [f"{_MODEL_PARALLEL},params.d_model:rows", "batch:rows+cols,params.d_model:rows+cols"]
    draw.on_two_axes(draw.one(shared), [2, 4, 8], [2, 4, 8])


def _prefetch(draw: _Drawing) -> None:
    _fully_sharded(draw)
    draw.sizes["prefetch"] = True


def _experts(draw: _Drawing) -> None:
    draw.on_two_axes(draw.one(["batch:rows,experts:cols,vocab:cols,heads:cols", "batch:rows+cols"]), [2, 4], [2, 4])
    draw.sizes |= dict(experts=8, gating=draw.one(["switch", "top2", "top_k"]), layers=draw.one([4, 8]))


_KINDS: dict[str, Callable[[_Drawing], None]] = {
    "scanned": _scanned,
    "scanned, no remat": _saved,
    "unrolled": _unrolled,
    "chunked loss": _chunked_loss,
    "microbatches": _microbatches,
    "pipeline": _pipeline,
    "ring": _ring,
    "fully sharded": _fully_sharded,
    "fully sharded, prefetch": _prefetch,
    "experts": _experts,
}


def draws(seed: str, count: int, kinds: list[str]) -> Iterator[Drawn]:
    """So many programs; each kind in turn, every fourth for a TPU, whose compiler takes longest."""
    for i in range(count):
        kind = kinds[(i + i // (2 * len(kinds))) % len(kinds)]
        yield _Drawing(f"{seed}/{i}").draw(kind, "tpu" if i % 4 == 3 else "gpu")


def predict(seed: str, count: int, kinds: list[str], part: str) -> None:
    """Writes what Weft says of the programs of a seed, one by one; XLA's figures stay where they are."""
    if len(_rows(seed)) != count:
        _write(seed, [{"program": asdict(drawn)} for drawn in draws(seed, count, kinds)])
    for i, row in enumerate(_rows(seed)):
        drawn, found = Drawn(**row["program"]), dict[str, Any]()
        if "weft" in row or "refused" in row or not _is_mine(i, part):
            continue
        try:
            memory = drawn.program().memory_on(drawn.target)
            found["weft"] = {"arguments": memory.arguments, "peak": memory.peak, "range": list(memory.range)}
        except wf.WeftError as error:
            found["refused"] = str(error).splitlines()[0]
        _add(seed, i, found)


def compile_all(seed: str, target: str | None, part: str) -> None:
    """Has XLA compile what is not compiled yet; a figure or its error is written at once."""
    for i, row in enumerate(_rows(seed)):
        drawn = Drawn(**row["program"])
        if "xla" in row or "weft" not in row or not _is_mine(i, part) or target not in (None, drawn.target):
            continue
        try:
            proof = compiled_for(*drawn.call(), drawn.mesh, drawn.layout, drawn.machine)
            found: dict[str, Any] = {"arguments": proof.argument_bytes, "peak": proof.peak_bytes}
        except wf.WeftError as error:
            found = {"error": str(error)}
        _add(seed, i, {"xla": found})


def _is_mine(i: int, part: str) -> bool:
    """Whether a program is for this one of several processes."""
    mine, of = part.split("/")
    return i // 4 % int(of) == int(mine)


def _add(seed: str, i: int, found: dict[str, Any]) -> None:
    with open(FOLDER / ".lock", "w") as lock:  # several processes may run
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = _rows(seed)
        rows[i] |= found
        _write(seed, rows)
    print(i, rows[i]["program"]["kind"], rows[i]["program"]["target"], found, flush=True)


def _rows(seed: str) -> list[dict[str, Any]]:
    path = FOLDER / f"{seed}.json"
    return json.loads(path.read_text()) if path.exists() else []


def _write(seed: str, rows: list[dict[str, Any]]) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = ",\n".join(json.dumps(row) for row in rows)
    (FOLDER / f"{seed}.json").write_text(f"[\n{text}\n]\n")


def table(seeds: list[str], *, anew: bool) -> bool:
    """Prints Weft's figures beside XLA's; whether none said that it fits where it did not."""
    print("| program | target | mesh | layout | sizes | XLA's peak | Weft's | error | range |")
    print("|---|---|---|---|---|---|---|---|---|")
    errors: dict[str, list[float]] = {"gpu": [], "tpu": []}
    inside = low_end = 0
    for row in [row for seed in seeds for row in _rows(seed) if "peak" in row.get("xla", {})]:
        drawn, xla, said = Drawn(**row["program"]), row["xla"], row["weft"]
        if anew:
            memory = drawn.program().memory_on(drawn.target)
            said = {"arguments": memory.arguments, "peak": memory.peak, "range": memory.range}
        peak, (low, high) = xla["peak"], said["range"]
        error = said["peak"] / peak - 1
        errors[drawn.target].append(error)
        holds = "holds" if low <= peak <= high else "**too low**" if peak > high else "too high"
        inside, low_end = inside + (low <= peak <= high), low_end + (peak > high)
        exact = (
            "" if said["arguments"] == xla["arguments"] else f", arguments {said['arguments'] - xla['arguments']:+,} B"
        )
        print(
            f"| {drawn.kind} | {drawn.target} | `{drawn.mesh}` | `{drawn.layout}` | {_sizes_text(drawn)} "
            f"| {peak / 2**20:,.0f} MiB | {said['peak'] / 2**20:,.0f} | {100 * error:+.1f} %{exact} "
            f"| {low / peak:.2f}–{high / peak:.2f}, {holds} |"
        )
    for target, found in errors.items():
        if found:
            sizes = [abs(error) for error in found]
            print(
                f"\n{target}: {len(sizes)}, mean {100 * statistics.mean(sizes):.1f} %, largest {100 * max(sizes):.1f} %"
            )
    print(f"\nrange holds {inside} of {sum(map(len, errors.values()))}; high end too low {low_end}")
    return not low_end


def _sizes_text(drawn: Drawn) -> str:
    sizes = drawn.sizes
    said = [f"{sizes['layers']} x {sizes['d_model']}, {sizes['batch']} x {sizes['length']}", drawn.optimizer]
    remat = sizes["remat"]
    said.append("remat" if remat is True else "no remat" if remat is False else f"remat but {remat}")
    said += [f"{drawn.microbatches} microbatches"] * (drawn.microbatches > 1)
    said += [f"loss in {sizes['loss_chunks']}"] * (sizes["loss_chunks"] > 1)
    return ", ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["predict", "compile", "table"])
    parser.add_argument("seeds", nargs="+")
    parser.add_argument("--count", type=int, default=40, help="how many programs to draw")
    parser.add_argument("--kind", action="append", choices=list(_KINDS), help="draw only of this kind")
    parser.add_argument("--target", choices=["gpu", "tpu"], help="compile only for this one")
    parser.add_argument("--part", default="0/1", help="of several processes that compile, which: `0/2`, `1/2`")
    parser.add_argument("--anew", action="store_true", help="predict anew for the table, not as it was written")
    given = parser.parse_args()
    warnings.simplefilter("ignore", wf.WeftWarning)
    if given.command == "table":
        sys.exit(0 if table(given.seeds, anew=given.anew) else 1)
    for seed in given.seeds:
        if given.command == "predict":
            predict(seed, given.count, given.kind or list(_KINDS), given.part)
        else:
            compile_all(seed, given.target, given.part)


if __name__ == "__main__":
    main()
