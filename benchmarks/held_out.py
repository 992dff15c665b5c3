"""Steps on one GPU that nothing was fitted to: predicted first, measured afterwards.

    python benchmarks/held_out.py --predict          # writes benchmarks/held_out.json, before anything is measured
    python benchmarks/held_out.py --out FILE         # on the GPU: measures each, beside what that file says
    python benchmarks/held_out.py --table            # the table of README.md
    python benchmarks/held_out.py --only T5 --profile FOLDER    # also each line of its program, measured beside planned

Train steps, a prefill, steps of decoding (a compiled step called again and again, its KV cache overwritten) and tokens
of `decode.generate` (a loop over the prepared step: the whole call less its prefill, over its tokens) that
differ in what they are, not only in size: shared keys and values, gates, long sequences, chunks of the loss, experts of
both kinds, an encoder-decoder, convolutions, layers in a loop and written out. Weights start as constants: what they
are changes no time.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weft as wf
from weft import decode, models
from weft.program.profiling import profile_calls

PREDICTED = Path(__file__).with_suffix(".json")
LLAMA = dict(norm="rms", positions="rotary", activation="silu", gated=True, tied=False)
EXPERTS = dict(layers=8, d_model=1024, heads=16, d_kv=64, d_ff=4096, vocab=32768, batch=16, length=1024, every=2)
DECODED = dict(LLAMA, layers=28, d_model=3072, heads=8, group=3, d_kv=128, d_ff=8192, vocab=128256)

TRAINED = {
    "0.5 B, GQA, gated, chunked loss": (
        dict(LLAMA, layers=18, d_model=1280, heads=5, group=4, d_kv=64, d_ff=3456, vocab=65536, batch=8, length=2048,
             loss_chunks=8, remat=False),
        "adamw",
    ),
    "1.3 B, unrolled, keeps attention": (
        dict(LLAMA, layers=16, d_model=2560, heads=5, group=4, d_kv=128, d_ff=7168, vocab=32000, batch=4, length=4096,
             scanned=False, remat="attention"),
        "adamw",
    ),
    "0.4 B, one sequence of 16,384": (
        dict(layers=12, d_model=1536, heads=12, d_kv=128, d_ff=6144, vocab=32768, batch=1, length=16384, remat=True),
        "adam",
    ),
    "0.6 B, 16 experts, switch": (dict(EXPERTS, experts=16, gating="switch", remat=False), "adam"),
    "0.4 B, 8 experts, dropless": (dict(EXPERTS, experts=8, gating="dropless", top_k=2, remat=True), "adam"),
}  # fmt: skip
OTHERS = {
    "0.22 B T5, 32 x 512": (("t5-base", dict(batch=32, length=512, dropout=0.0, remat=False)), "adafactor"),
    "U-Net, 16 x 512 x 512": (("unet", dict(batch=16, remat=False)), "adam"),
}
PREFILL = {"3.6 B, prefill of 4 x 4,096": (dict(DECODED), 4, 4096)}
DECODE = {
    "3.6 B, a token, context 4,096": (dict(DECODED), 4096, 1),
    "3.6 B, 32 tokens, context 2,048": (dict(DECODED), 2048, 32),
    "3.6 B unrolled, a token, context 16,384": (dict(DECODED, scanned=False), 16384, 1),
    "0.5 B unrolled, 32 tokens, context 4,096": (
        dict(DECODED, layers=14, d_model=1536, heads=4, d_ff=4096, vocab=32000, scanned=False), 4096, 32,
    ),
}  # fmt: skip
GENERATED = {
    "3.6 B, generated, a token, context 4,096": (dict(DECODED), 4096, 1),
    "3.6 B, generated, 32 tokens, context 2,048": (dict(DECODED), 2048, 32),
    "3.6 B, generated, a token, context 16,384": (dict(DECODED), 16384, 1),
    "0.5 B, generated, 32 tokens, context 4,096": (DECODE["0.5 B unrolled, 32 tokens, context 4,096"][0], 4096, 32),
}
NEW = 128
SMALL = dict(layers=2, d_model=64, heads=2, d_kv=16, d_ff=128, vocab=256, batch=4, length=32)


def loss(model, batch, key):
    return model.loss(batch, None)


class Trained:
    """A train step of a model."""

    def __init__(self, config, optimizer: str):
        self.config = config
        self.step = wf.spmd(wf.train_step(loss, getattr(optax, optimizer)(1e-4)), mesh="x=1", layout="", donate=0)

    def program(self):
        state = self.step.init(models.shapes(self.config))
        return wf.trace(self.step, state, self.config.batch_shapes(), jax.eval_shape(lambda: jax.random.key(0)))

    def values(self):
        """The state, a batch and a key."""
        return self.step.init(constants(models.shapes(self.config))), batch_of(self.config), jax.random.key(0)

    def runner(self):
        state, batch, key = self.values()

        def run():
            nonlocal state
            state, told = self.step(state, batch, key)
            return told

        return run


class Prefilled:
    """The forward pass over a prompt, which fills the KV cache."""

    def __init__(self, config, batch: int, length: int, *, room: int = 0):
        self.config, self.ids = config, jax.ShapeDtypeStruct((batch, length), "int32")
        prefill = lambda model, ids: model.prefill({"inputs": ids}, room or length)  # noqa: E731
        self.step = wf.spmd(prefill, mesh="x=1", layout="")

    def program(self):
        return wf.trace(self.step, models.shapes(self.config), wf.tensor(self.ids, "batch length"))

    def runner(self, model=None):
        model = constants(models.shapes(self.config)) if model is None else model
        ids = wf.tensor(jnp.ones(self.ids.shape, "int32"), "batch length")
        return lambda: self.step(model, ids)[0]


class Generated:
    """A token of `decode.generate`, where the KV cache has so many places."""

    def __init__(self, config, context: int, batch: int, new: int):
        self.config, self.context, self.batch, self.new = config, context, batch, new

    def measure(self, seconds: float) -> dict:
        """As `measured_ms`, a token of each sequence."""
        model = constants(models.shapes(self.config))
        prompt = np.ones((self.batch, self.context - self.new), "int32")
        before = Prefilled(self.config, self.batch, self.context - self.new, room=self.context).runner(model)
        rows = {}
        for name, run in {
            "prefill": before,
            "all": lambda: decode.generate(model, prompt, max_new_tokens=self.new).tokens,
        }.items():
            rows[name] = time_calls(run, seconds / 2)
        each = {key: (rows["all"][key] - rows["prefill"][key]) / (self.new - 1) for key in ("ms", "least")}
        return each | {"first_s": rows["all"]["first_s"], "prefill_ms": rows["prefill"]["ms"]}


class Decoded:
    """A step of decoding."""

    def __init__(self, config, context: int, batch: int):
        self.step, self.args = models.decode_step(config, context, batch)

    def program(self):
        return wf.trace(self.step, *self.args)

    def runner(self):
        model, tokens, cache = (constants(arg) for arg in self.args)

        def run():
            nonlocal cache
            logits, cache = self.step(model, tokens, cache)
            return logits

        return run


def constants(shapes):
    """Small constants in place of shapes, made in one program."""

    def constant(leaf):
        value = 0.01 if jnp.issubdtype(leaf.dtype, jnp.floating) else 1
        return jnp.full(leaf.shape, value, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.jit(lambda: jax.tree.map(constant, shapes))()


def batch_of(config):
    """Random ids below the vocab, or random images and labels."""
    random = np.random.default_rng(0)
    most = getattr(config, "vocab", None) or config.classes

    def filled(leaf):
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        made = (
            random.standard_normal(leaf.shape, "float32") if is_float else random.integers(1, most, leaf.shape, "int32")
        )
        return jnp.asarray(made)

    return jax.tree.map(filled, config.batch_shapes())


def cases(*, small: bool) -> dict:
    """Every case, not yet traced: its name, and what makes it."""
    tiny = SMALL if small else {}

    def lm(sizes, **changes):
        return models.preset("lm-0.14b", **{"tied": True, "dropout": 0.0, **sizes, **tiny, **changes})

    made = {name: lambda s=sizes, o=optimizer: Trained(lm(s), o) for name, (sizes, optimizer) in TRAINED.items()}
    for name, ((preset, changes), optimizer) in OTHERS.items():
        fewer = dict(batch=2) | (dict(height=32, width=32, channels=8, levels=2) if preset == "unet" else SMALL)
        changes = {**changes, **(fewer if small else {})}
        made[name] = lambda p=preset, c=changes, o=optimizer: Trained(models.preset(p, **c), o)
    served = dict(param_dtype="bfloat16")
    for name, (sizes, batch, length) in PREFILL.items():
        made[name] = lambda s=sizes, b=batch, n=length: Prefilled(lm(s, **served), b, 32 if small else n)
    for name, (sizes, context, batch) in DECODE.items():
        made[name] = lambda s=sizes, c=context, b=batch: Decoded(lm(s, **served), 64 if small else c, b)
    for name, (sizes, context, batch) in GENERATED.items():
        of, new = (64, 8) if small else (context, NEW)
        made[name] = lambda s=sizes, c=of, b=batch, n=new: Generated(lm(s, **served), c, b, n)
    return made


def predicted_row(name: str, case, hardware: str) -> dict:
    """What the plan says of a case."""
    plan = wf.Plan(case.program(), hardware)
    by = {kind: round(took * 1e3, 3) for kind, took in plan.kinds.items()}
    return {"name": name, "predicted_ms": round(plan.seconds * 1e3, 3), "by": by, "memory": plan.memory.peak}


def measured_ms(case, seconds: float) -> dict:
    """Milliseconds a call, the median of five blocks; and the seconds to the end of the first."""
    if isinstance(case, Generated):
        return case.measure(seconds)
    begin = time.perf_counter()
    told = time_calls(case.runner(), seconds)
    return told | {"first_s": time.perf_counter() - begin - told["timed_s"]}


def time_calls(run, seconds: float) -> dict:
    """Milliseconds a call, the median of five blocks, and the seconds of the first."""
    begin = time.perf_counter()

    def block(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            told = run()
        jax.block_until_ready(jax.tree.leaves(told))
        return (time.perf_counter() - start) / count

    block(1)
    first = time.perf_counter()
    one = block(2)
    count = max(min(int(seconds / 5 / max(one, 1e-4)), 100), 1)
    blocks = [block(count) for _ in range(5)]
    timed = time.perf_counter() - first
    figures = {"ms": statistics.median(blocks) * 1e3, "least": min(blocks) * 1e3}
    return figures | {"first_s": first - begin, "timed_s": timed}


def profile(case: Trained, hardware: str) -> dict:
    """Each line of a train step, measured beside planned."""
    values = case.values()
    program = wf.trace(case.step, *values)
    with tempfile.TemporaryDirectory() as folder:
        profile_calls(case.step, values, Path(folder), steps=3)
        return program.measured(folder, hardware=hardware).to_dict()


def measure(args) -> None:
    known = {row["name"]: row for row in json.loads(PREDICTED.read_text())["rows"]} if not args.small else {}
    rows, begin = [], time.perf_counter()
    for name, make in cases(small=args.small).items():
        row = dict(known.get(name, {"name": name}))
        if args.only not in name or time.perf_counter() - begin > args.seconds:
            continue
        try:
            row |= measured_ms(make(), args.each)
            if args.profile and isinstance(case := make(), Trained):
                jax.clear_caches()
                told = json.dumps(profile(case, args.hardware))
                Path(args.profile, f"{''.join(filter(str.isalnum, name))}.json").write_text(told)
        except Exception as error:  # out of memory, say: the others still count
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        jax.clear_caches()
        rows.append(row)
        print(json.dumps(row), flush=True)
        device = jax.devices()[0].device_kind
        Path(args.out).write_text(json.dumps({"device": device, "jax": jax.__version__, "rows": rows}, indent=1))


def table(rows: list[dict]) -> str:
    lines = ["| step | predicted | measured | ratio |", "|---|---|---|---|"]
    for row in rows:
        if "ms" in row:
            ratio = row["predicted_ms"] / row["ms"]
            lines.append(f"| {row['name']} | {row['predicted_ms']:.2f} ms | {row['ms']:.2f} ms | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--out", default="held_out_measured.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", default="", help="a folder for what each line of the train steps took")
    parser.add_argument("--seconds", type=float, default=330, help="no case begins after as many")
    parser.add_argument("--each", type=float, default=2.0, help="seconds a case is run for")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(PREDICTED.read_text())["rows"]))
    elif args.predict:
        chosen = [name for name in cases(small=args.small) if args.only in name]
        rows = [predicted_row(name, cases(small=args.small)[name](), args.hardware) for name in chosen]
        for row in rows:
            print(json.dumps(row), flush=True)
        if not args.small and not args.only:
            PREDICTED.write_text(json.dumps({"hardware": args.hardware, "rows": rows}, indent=1) + "\n")
    else:
        measure(args)


if __name__ == "__main__":
    main()
