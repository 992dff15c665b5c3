"""How far `program.memory` lies from XLA's own peak: language models, layouts and optimizers, on both targets.

XLA's figures are kept in `memory_xla.json`; `--compile gpu` or `--compile tpu` makes them anew (`compiled_for`, 10 s to
minutes each). Without it nothing is compiled, and the table takes seconds. The rules of `weft/program/memory_course.py`
were tuned on the rows marked so.
"""

import argparse
import json
import statistics
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import weft as wf
from weft.cli.model import Model, load_preset
from weft.plan import compiled_for

XLA = Path(__file__).parent / "memory_xla.json"
PAPER = "batch:rows,vocab:cols,d_ff:cols,heads:cols"
SHARDED = "params.d_model"
SMALL = dict(dtype="bfloat16", remat=True)
LIMITS = {"gpu": 0.10, "tpu": 0.15}
_SLICES = {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}


@dataclass(frozen=True)
class Case:
    """A train step on a mesh under a layout."""

    name: str
    preset: str
    mesh: str
    layout: str
    optimizer: str = "adam"
    kind: str = "scanned"
    """`scanned`, `unrolled`, or `other`, which is no language model of one stack."""
    sizes: dict[str, Any] = field(default_factory=dict)

    def model(self) -> Model:
        return load_preset(self.preset, optimizer=self.optimizer, **self.sizes)

    def program(self) -> wf.Program:
        return self.model().traced(mesh=self.mesh, layout=self.layout)

    def target(self, kind: str) -> str:
        """A machine with as many processors as the mesh."""
        count = wf.Mesh(self.mesh).size
        if kind == "tpu":
            return f"v5p:{_SLICES.get(count, '8x8x8')}"
        return f"h100:1x{max(count // 8, 1)}x{min(count, 8)}"


def _case(*args: Any, **sizes: Any) -> Case:
    return Case(*args, sizes=sizes)


def _other(*args: Any, **sizes: Any) -> Case:
    return Case(*args, kind="other", sizes=sizes)


def _unrolled(*args: Any, **sizes: Any) -> Case:
    return Case(*args, kind="unrolled", sizes=dict(scanned=False, **sizes))


CASES = [
    _case("8 M", "tiny-lm", "rows=4,cols=2", PAPER, "adam", layers=4, d_model=256, d_kv=64, d_ff=1024, vocab=8192,
           batch=64, length=128, **SMALL),
    _case("0.14 B", "lm-0.14b", "rows=2,cols=4", PAPER, "adam", batch=32),
    _case("0.14 B, one processor", "lm-0.14b", "all=1", "", "sgd", batch=8),
    _case("0.14 B, no remat", "lm-0.14b", "rows=4,cols=2", PAPER, "adam", batch=64, remat=False),
    _case("GPT-2", "gpt2", "all=8", "batch:all", "adam"),
    _case("0.37 B, fully sharded", "lm-0.37b", "all=16", f"batch:all,{SHARDED}:all", "adam"),
    _case("0.67 B", "lm-0.67b", "rows=4,cols=8", PAPER, "adafactor"),
    _case("0.22 B", "lm-0.22b", "rows=2,cols=4", PAPER, "adam", batch=64, length=128),
    _case("1.28 B, fully sharded", "lm-1.28b", "rows=8,cols=8", f"{PAPER},{SHARDED}:rows", "adam"),
    _case("2.48 B", "lm-2.48b", "rows=8,cols=32", PAPER, "sgd"),
    _case("2.48 B, fully sharded", "lm-2.48b", "rows=32,cols=4", f"{PAPER},{SHARDED}:rows", "adam", batch=512),
    _case("4.90 B, 8 x 64", "lm-4.90b", "rows=8,cols=64", PAPER, "adafactor"),
    _case("4.90 B", "lm-4.90b", "rows=16,cols=32", PAPER, "adam"),
    _case("23 M, one processor", "tiny-lm", "all=1", "", "adam", layers=6, d_model=384, heads=6, d_kv=64, d_ff=1536,
          vocab=16384, batch=16, length=256, dropout=0.0, **SMALL),
    _case("23 M", "tiny-lm", "rows=4,cols=2", PAPER, "adafactor", layers=12, d_model=320, heads=4, d_kv=80, d_ff=1280,
          vocab=12288, batch=32, length=128, **SMALL),
    _case("59 M, no remat", "tiny-lm", "rows=2,cols=2", PAPER, "adam", d_model=512, d_kv=64, d_ff=2048, vocab=32768,
          batch=32, length=256, dtype="bfloat16", remat=False),
    _case("0.37 B, model parallel", "lm-0.37b", "all=4", "vocab:all,d_ff:all,heads:all", "adam", batch=16, length=512),
    _case("GPT-2 medium", "gpt2-medium", "rows=4,cols=4", PAPER, "adam", vocab=50304),
    _case("0.67 B, optimizer split", "lm-0.67b", "rows=8,cols=2", f"{PAPER},optimizer.d_model:rows", "adam", batch=64),
    _case("GPT-2 large, fully sharded", "gpt2-large", "rows=8,cols=4", f"{PAPER},{SHARDED}:rows", "adam", vocab=50304,
          batch=128),
    _case("Llama 1 B, fully sharded", "llama-1b", "all=64", f"batch:all,{SHARDED}:all", "adafactor", length=1024,
          batch=128),
    _case("4.90 B, 16 x 16", "lm-4.90b", "rows=16,cols=16", PAPER, "adam", batch=128),
    _other("translation, 0.15 B", "mt-0.15b", "rows=4,cols=2", PAPER, "adafactor", batch=32),
    _other("T5 small, fully sharded", "t5-small", "all=8", f"batch:all,{SHARDED}:all", "adam", batch=32),
    _other("experts, 74 M", "tiny-moe", "rows=2,cols=4", f"{PAPER},experts:cols".replace(",d_ff:cols", ""), "adam",
           d_model=256, d_kv=64, d_ff=1024, vocab=16384, batch=32, length=256, capacity=1.25, **SMALL),
    _unrolled("0.14 B, unrolled", "lm-0.14b", "rows=2,cols=4", PAPER, "adam", batch=32),
    _unrolled("59 M, unrolled, no remat", "tiny-lm", "rows=2,cols=2", PAPER, "adam", d_model=512, d_kv=64, d_ff=2048,
              vocab=32768, batch=32, length=256, dtype="bfloat16", remat=False),
    _unrolled("GPT-2, unrolled, fully sharded", "gpt2", "all=8", f"batch:all,{SHARDED}:all", "adam", batch=32),
]  # fmt: skip


# On whose figures the rules were tuned; those of the others were looked at afterwards.
TUNED = {
    "gpu": {
        "8 M", "0.14 B", "0.14 B, one processor", "0.14 B, no remat", "GPT-2", "0.37 B, fully sharded", "0.67 B",
        "0.22 B", "1.28 B, fully sharded", "2.48 B", "2.48 B, fully sharded", "4.90 B, 8 x 64", "4.90 B",
    },
    "tpu": {
        "8 M", "0.14 B", "0.37 B, fully sharded", "4.90 B", "23 M, one processor", "GPT-2 medium",
        "Llama 1 B, fully sharded",
    },
}  # fmt: skip


def recorded() -> dict[str, dict[str, dict[str, int]]]:
    """XLA's figures: for each case and target the bytes of arguments and of the peak."""
    return json.loads(XLA.read_text()) if XLA.exists() else {}


def compile_all(kind: str, names: list[str]) -> None:
    for case in CASES:
        if names and case.name not in names:
            continue
        model = case.model()
        try:
            proof = compiled_for(model.fn, model.args, case.mesh, case.layout, case.target(kind))
        except wf.WeftError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        found = recorded()
        found.setdefault(case.name, {})[kind] = {"arguments": proof.argument_bytes, "peak": proof.peak_bytes}
        XLA.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{case.name}: {proof.peak_bytes:,} B in {proof.seconds} s", flush=True)


def table(kind: str) -> bool:
    """Prints the errors on a target; whether all rows that no rule was tuned on lie within the limit."""
    print(f"\n| {kind} | params | mesh | layout | optimizer | arguments | XLA's peak | Weft's | error | range |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    errors: dict[str, list[float]] = {}
    for case in CASES:
        if (xla := recorded().get(case.name, {}).get(kind)) is None:
            continue
        memory = case.program().memory_on(kind)
        error = memory.peak / xla["peak"] - 1
        group = case.kind if case.kind != "scanned" else "tuned" if case.name in TUNED[kind] else "held out"
        errors.setdefault(group, []).append(error)
        low, high = memory.range
        inside = "holds" if low <= xla["peak"] <= high else "**missed**"
        exact = "exact" if memory.arguments == xla["arguments"] else f"{memory.arguments - xla['arguments']:+,} B"
        params = wf.models.preset(case.preset, **case.sizes).param_count
        print(
            f"| {case.name}{' (tuned)' * (group == 'tuned')} | {params / 1e6:,.0f} M | `{case.mesh}` "
            f"| `{case.layout}` | {case.optimizer} | {exact} | {xla['peak'] / 2**20:,.0f} MiB "
            f"| {memory.peak / 2**20:,.0f} MiB | {100 * error:+.1f} % "
            f"| {low / xla['peak']:.2f}–{high / xla['peak']:.2f}, {inside} |"
        )
    for name, found in errors.items():
        sizes = [abs(error) for error in found]
        print(f"\n{name}: {len(sizes)}, mean {100 * statistics.mean(sizes):.1f} %, largest {100 * max(sizes):.1f} %")
    return all(abs(error) <= LIMITS[kind] for error in errors.get("held out", []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", choices=["gpu", "tpu"], help="make XLA's figures anew for a target")
    parser.add_argument("names", nargs="*", help="the cases to compile; all where none is named")
    given = parser.parse_args()
    warnings.simplefilter("ignore", wf.WeftWarning)
    if given.compile:
        compile_all(given.compile, given.names)
    within = [table(kind) for kind in ("gpu", "tpu")]
    sys.exit(0 if all(within) else 1)


if __name__ == "__main__":
    main()
