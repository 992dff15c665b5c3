"""Published training runs beside what `wf.Plan` says of them.

    python benchmarks/published.py [--only PART] [--json FILE]

Each run is a configuration of `weft.models` with the sizes, mesh, layout, microbatches, recomputation and kind of
attention that its source states, traced with no device and planned. Where a source gives FLOP/s or a share of the peak,
the seconds of a step are those of its own count of FLOPs. Weft's pipelines recompute their stages once; where a run did
not, the plan's phase `recompute` is taken off. `fitted` marks the four runs that were set apart to choose constants of
`weft/plan` by.
"""

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import jax
import optax

import weft as wf
from weft import models

NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, table 1"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, table 5"
LLAMA_3 = "Llama Team 2024, arXiv 2407.21783, table 4"
MAXTEXT = "MaxText, configs/tpu/{}/README.md"
TERA = 1e12


@dataclass(frozen=True)
class Run:
    """One run: what was trained, on what, how, and how long a step took."""

    name: str
    hardware: str
    mesh: str
    layout: str
    config: Any
    published: float
    """Seconds of a step."""
    source: str
    optimizer: str = "adam"
    is_recomputed: bool = True
    """Whether what Weft recomputes was recomputed there too."""
    is_fitted: bool = False
    fused: bool = True
    """Whether its attention was a fused kernel."""

    def planned(self) -> tuple[wf.Plan, float]:
        """The plan, and its seconds of a step as the run made it."""
        step = wf.train_step(lambda model, batch, key: model.loss(batch, None), getattr(optax, self.optimizer)(1e-4))
        args = step.init(models.shapes(self.config)), self.config.batch_shapes()
        program = wf.trace(step, *args, jax.eval_shape(lambda: jax.random.key(0)), mesh=self.mesh, layout=self.layout)
        plan = wf.Plan(program, self.hardware, fused=self.fused)
        return plan, plan.seconds - (0.0 if self.is_recomputed else plan.phases.get("recompute", 0.0))


def lm(**sizes: Any) -> Any:
    return models.preset("lm-0.14b", **{"dropout": 0.0, "tied": False, "remat": False, **sizes})


def gpt(layers: int, width: int, heads: int, **more: Any) -> Any:
    """A GPT of Megatron: learned positions, biases, four times as wide inside, 51,200 words, 2,048 tokens."""
    sizes = dict(layers=layers, d_model=width, heads=heads, d_kv=width // heads, d_ff=4 * width, vocab=51200)
    parts = dict(norm="layer", positions="learned", activation="gelu_tanh", bias="q k v o in out norm", tied=True)
    return lm(**sizes, **parts, length=2048, param_dtype="bfloat16", **more)


def narayanan_seconds(layers: int, width: int, batch: int, gpus: int, teraflops: float) -> float:
    """By their formula (3), which counts one recomputed forward pass."""
    length, vocab = 2048, 51200
    flops = 96 * batch * length * layers * width**2 * (1 + length / (6 * width) + vocab / (16 * layers * width))
    return flops / (gpus * teraflops * TERA)


def narayanan(name: str, sizes: tuple[int, int, int], ways: tuple[int, int, int], batch: int, micro: int, **how) -> Run:
    """A row of their table: tensor, pipeline and data parallel, activations recomputed."""
    (layers, width, heads), (tensor, pipeline, data) = sizes, ways
    rounds, teraflops = how.get("rounds", 1), how["teraflops"]
    staged = dict(stages=pipeline, pipeline_microbatches=batch // data // micro, pipeline_rounds=rounds)
    config = gpt(layers, width, heads, batch=batch, **(staged if pipeline > 1 else dict(remat=True)))
    layout = "batch:d, heads:t, d_ff:t, vocab:t" + (", stage:p" if pipeline > 1 else "")
    mesh = f"p={pipeline}, d={data}, t={tensor}" if pipeline > 1 else f"d={data}, t={tensor}"
    seconds = narayanan_seconds(layers, width, batch, tensor * pipeline * data, teraflops)
    return Run(
        f"GPT {name}, {tensor * pipeline * data:,} A100", "a100", mesh, layout, config, seconds, NARAYANAN, fused=False
    )


def korthikanti(name: str, sizes: tuple[int, int, int], pipeline: int, batch: int, seconds: float, **how) -> Run:
    """A row of their table: tensor and sequence parallel over 8, selective recomputation."""
    staged = dict(stages=pipeline, pipeline_microbatches=batch, pipeline_rounds=how.get("rounds", 1))
    config = gpt(*sizes, batch=batch, **(staged if pipeline > 1 else {}))
    layout = "heads:t, d_ff:t, vocab:t, stream:t" + (", stage:p" if pipeline > 1 else "")
    mesh = f"p={pipeline}, t=8" if pipeline > 1 else "t=8"
    told = dict(is_recomputed=False, is_fitted=how.get("is_fitted", False), fused=False)
    return Run(f"GPT {name}, {8 * pipeline} A100", "a100", mesh, layout, config, seconds, KORTHIKANTI, **told)


LLAMA = dict(norm="rms", positions="rotary", rotary_base=500_000.0, activation="silu", gated=True)


def llama_3(data: int, context: int, length: int, each: int, teraflops: float, *, is_fitted: bool = False) -> Run:
    """405 B over 8 x 16 x data x context H100; 126 layers are 16 stages of 8 rounds."""
    batch = data * each
    sizes = dict(layers=126, d_model=16384, heads=8, group=16, d_kv=128, d_ff=53248, vocab=128256)
    staged = dict(stages=16, pipeline_microbatches=each, pipeline_rounds=8)
    config = lm(**sizes, **LLAMA, **staged, batch=batch, length=length, loss_chunks=8, param_dtype="bfloat16")
    ring = ", length:c, memory_length:c" if context > 1 else ""
    stream = ", stream:c+t" if context > 1 else ", stream:t"
    layout = f"batch:d, heads:t, d_ff:t, vocab:t{stream}, stage:p, optimizer.d_model:d{ring}"
    mesh = f"p=16, d={data}, c={context}, t=8" if context > 1 else f"p=16, d={data}, t=8"
    gpus = 128 * data * context
    flops = batch * length * (6 * 405e9 + 6 * 126 * 16384 * length)  # attention's causal half
    name = f"Llama 3 405 B, {gpus:,} H100, length {length:,}"
    told = dict(is_recomputed=False, is_fitted=is_fitted)
    return Run(name, "h100", mesh, layout, config, flops / (gpus * teraflops * TERA), LLAMA_3, **told)


def maxtext(name: str, hardware: str, chips: int, tensor: int, each: int, teraflops: float, *, remat, **how) -> Run:
    """A dense model of MaxText: `global_parameter_scale`, fully sharded, tensor parallel over some."""
    width, heads, inside, layers = SCALES[name]
    sizes = dict(layers=layers, d_model=width, heads=heads, d_kv=128, d_ff=inside, vocab=32000, length=2048)
    config = lm(**sizes, **LLAMA, batch=each * chips, remat=remat, **how.get("more", {}))
    tokens = each * 2048  # of a chip
    flops = tokens * (6 * config.param_count + 12 * layers * heads * 128 * 2048)  # their count, attention in full
    layout = "batch:d, params.d_model:d" + (", heads:t, d_ff:t, vocab:t, stream:t" if tensor > 1 else "")
    mesh = f"d={chips // tensor}, t={tensor}" if tensor > 1 else f"d={chips}"
    told = dict(optimizer="adamw", is_fitted=how.get("is_fitted", False))
    seconds, source = flops / (teraflops * TERA), MAXTEXT.format(hardware)
    return Run(f"MaxText {name}, {chips} {hardware}", hardware, mesh, layout, config, seconds, source, **told)


SCALES = {  # width, heads, inside, layers
    "16B": (4096, 64, 28672, 32),
    "32B": (8192, 64, 28672, 32),
    "64B": (8192, 64, 28672, 64),
    "128B": (8192, 128, 57344, 64),
    "256B": (16384, 128, 57344, 64),
    "512B": (16384, 128, 57344, 128),
}


def gpt2(preset: str, hardware: str, gpus: int, tokens: int, seconds: float, source: str) -> Run:
    """GPT-2, data parallel; all microbatches of a step in one."""
    config = models.preset(
        preset, dropout=0.0, remat=False, batch=tokens // 1024, scanned=False, param_dtype="bfloat16"
    )
    name = f"GPT-2 {config.param_count / 1e6:,.0f} M, {gpus} {hardware.upper()}"
    return Run(name, hardware, f"d={gpus}", "batch:d, optimizer.d_model:d", config, seconds, source, "adamw")


def runs() -> list[Run]:
    """All of them."""
    return [
        llama_3(64, 1, 8192, 32, 430.0),
        llama_3(128, 1, 8192, 16, 400.0, is_fitted=True),
        llama_3(8, 16, 131072, 16, 380.0),
        Run(
            "Llama 2 70 B, 2,048 A100", "a100", "d=256, t=8",
            "batch:d, heads:t, d_ff:t, vocab:t, stream:t, optimizer.d_model:d",
            lm(layers=80, d_model=8192, heads=8, group=8, d_kv=128, d_ff=28672, vocab=32000, batch=1024, length=4096,
               **LLAMA, param_dtype="bfloat16"),
            1_720_320 * 3600 / 2048 * 1024 * 4096 / 2e12,
            "Touvron et al. 2023, arXiv 2307.09288, table 2: 1,720,320 hours for 2 T tokens, layout not stated",
        ),
        narayanan("7.5 B", (36, 4096, 32), (4, 1, 32), 512, 16, teraflops=142.0),
        narayanan("39 B", (48, 8192, 64), (8, 2, 32), 1536, 4, teraflops=138.0),
        narayanan("146 B", (80, 12288, 96), (8, 8, 24), 2304, 2, teraflops=148.0, rounds=2),
        narayanan("1 T", (128, 25600, 160), (8, 64, 6), 3072, 1, teraflops=163.0),
        korthikanti("22 B", (48, 6144, 64), 1, 4, 1.10, is_fitted=True),
        korthikanti("175 B", (96, 12288, 96), 8, 64, 13.75, rounds=3),
        korthikanti("530 B", (105, 20480, 128), 35, 280, 37.83, rounds=3),
        Run(
            "PaLM 540 B, 6,144 TPU v4", "v4", "pods=2 | d=256, t=12",
            "batch:pods+d, group:t, d_ff:t, vocab:t, params.d_model:d",
            lm(layers=118, d_model=18432, heads=1, group=48, d_kv=256, d_ff=73728, vocab=256000, batch=2048,
               length=2048, norm="layer", positions="rotary", activation="silu", gated=True, tied=True, remat=True,
               vocab_multiple=3072),
            2048 * 2048 / 238_300, "Chowdhery et al. 2022, arXiv 2204.02311: 238.3 K tokens/s, 46.2 % MFU",
            "adafactor", fused=False,
        ),
        maxtext("16B", "v5e", 256, 1, 6, 120.0, remat=True),
        maxtext("32B", "v5e", 256, 1, 4, 132.0, remat=True, is_fitted=True),
        maxtext("64B", "v5e", 256, 1, 2, 118.0, remat=True),
        maxtext("128B", "v5e", 256, 16, 1, 110.0, remat="attention"),
        maxtext("32B", "v5p", 64, 4, 6, 328.0, remat=False),
        maxtext("64B", "v5p", 64, 4, 3, 323.0, remat=False),
        maxtext("128B", "v5p", 128, 8, 1, 315.0, remat=False, is_fitted=True),
        maxtext("256B", "v5p", 512, 8, 1, 308.0, remat=False),
        maxtext("512B", "v5p", 512, 8, 2, 294.0, remat=True),
        Run(
            "MaxText 754 B of experts, 256 v6e", "v6e", "d=16, e=16",
            "batch:d+e, experts:e, params.d_model:d",
            lm(layers=56, d_model=8192, heads=8, group=32, d_kv=128, d_ff=32768, vocab=32000, batch=256, length=8192,
               **LLAMA, experts=16, gating="top2", capacity=1.5, remat=True, param_dtype="bfloat16"),
            256 * 8192 * 6 * 1.23e11 / (0.381 * 256 * 918 * TERA),
            "MaxText, docs/guides/optimization/custom_model.md: 38.1 % MFU; heads of 256 as twice as many", "sgd",
        ),
        gpt2("gpt2", "a100", 8, 524_288, 90 * 60 / 19_073, "llm.c, discussion 481: 10 B tokens in 90 minutes"),
        gpt2("gpt2", "h100", 8, 524_288, 45 * 60 / 19_073, "modded-nanogpt, README: llm.c's run in 45 minutes"),
        gpt2("gpt2-xl", "h100", 8, 1_048_576, 24 * 3600 / 32_000, "llm.c, discussion 677: 32,000 steps in 24 hours"),
        gpt2("gpt2", "a100", 8, 491_520, 0.562, "nanoGPT, issue 110: 562 ms for 40 x 12 x 1,024 tokens"),
    ]  # fmt: skip


def row_of(run: Run) -> dict[str, Any]:
    """One run as plain values."""
    begin = time.perf_counter()
    plan, seconds = run.planned()
    return {
        "name": run.name,
        "published": run.published,
        "planned": seconds,
        "ratio": seconds / run.published,
        "fitted": run.is_fitted,
        "mesh": run.mesh,
        "layout": run.layout,
        "mfu": plan.mfu * plan.seconds / seconds,
        "kinds": plan.kinds,
        "phases": plan.phases,
        "communication": plan.communication,
        "exposed": plan.exposed,
        "bubble": [bubble.share for bubble in plan.bubbles],
        "source": run.source,
        "took": time.perf_counter() - begin,
    }


def text_of(row: dict[str, Any]) -> str:
    mark = " (fitted)" if row["fitted"] else ""
    times = f"{row['published']:.3g} s | {row['planned']:.3g} s | {row['ratio']:.2f}"
    return f"| {row['name']}{mark} | {times} | {row['source']} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    print("| run | published | planned | ratio | source |\n|---|---|---|---|---|")
    for run in runs():
        if args.only in run.name:
            rows.append(row_of(run))
            print(text_of(rows[-1]), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    for which, title in ((False, "held out"), (True, "fitted")):
        off = [abs(row["ratio"] - 1) for row in rows if row["fitted"] is which]
        if off:
            print(
                f"{title}: {sum(each <= 0.25 for each in off)} of {len(off)} within 25 %, the worst {max(off):.0%} off"
            )


if __name__ == "__main__":
    main()
