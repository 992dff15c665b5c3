"""What each operation costs over a split dim, against the form an expert writes by hand in `jax.shard_map`.

Both forms of each row of `by_hand.py` are compiled and run in one process on 8 virtual processors: the value, and where
it has one the value with its gradients. Their numbers must be equal (if not, exits with 1); their times are measured
in interleaved rounds, and beside the ratio stands what does not depend on the machine: instructions and fusions,
operations and bytes, and the collectives of the compiled code.
"""

import argparse
import collections
import dataclasses
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import weft as wf
from benchmarks import overhead
from benchmarks.by_hand import CASES, MESH, Case

MOST_TIME = 1.1
MOST_DIFFERENCE = 1e-4
LEAST_ROUNDS = 15


# ---- the two programs of a case


@dataclasses.dataclass
class Code:
    """One compiled program: how to run it, what it gives, and what it is made of."""

    run: Any
    results: list[np.ndarray]
    places: list[Any]
    lines: collections.Counter
    instructions: int
    fusions: int
    flops: float
    bytes: float
    sent: collections.Counter


@dataclasses.dataclass
class Row:
    """A case, forward or with gradients: both programs, how far their numbers lie apart, and their times."""

    name: str
    hand: Code
    weft: Code
    difference: float
    timing: overhead.Timing

    @property
    def is_same_code(self) -> bool:
        return self.hand.lines == self.weft.lines

    @property
    def is_over(self) -> bool:
        return self.timing.ratio > MOST_TIME

    @property
    def sends_more(self) -> bool:
        return overhead.total(self.weft.sent, "bytes") > overhead.total(self.hand.sent, "bytes")

    @property
    def is_placed_alike(self) -> bool:
        pairs = zip(self.hand.places, self.weft.places, self.weft.results, strict=True)
        return all(a.is_equivalent_to(b, x.ndim) for a, b, x in pairs)

    @property
    def is_wrong(self) -> bool:
        return not self.difference <= MOST_DIFFERENCE


def rules(layout: str) -> dict[str, str]:
    return dict(rule.split(":") for rule in layout.split(","))


def arguments(case: Case, mesh: wf.Mesh) -> tuple[list[Any], list[Any], list[P]]:
    """The arguments of both programs, placed, and their specs."""
    random = np.random.default_rng(0)
    axes = rules(case.layout)
    plain, named, specs = [], [], []
    for given in case.given:
        spec = P(*(axes.get(dim.name) for dim in given.shape))
        array = jax.device_put(given.make(random), NamedSharding(mesh.jax_mesh(), spec))
        plain.append(array)
        named.append(array if given.kind == "key" else wf.tensor(array, given.shape))
        specs.append(spec)
    return plain, named, specs


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, wf.Tensor))


def forms(case: Case, mesh: wf.Mesh) -> dict[str, tuple[Any, list[Any], Any, list[Any]]]:
    """For the value, and for the value with gradients: a function and its arguments, by hand and in Weft."""
    plain, named, specs = arguments(case, mesh)
    axes = rules(case.layout)
    with overhead.quiet():
        in_weft = wf.spmd(case.weft, mesh=mesh, layout=case.layout)
    found = jax.eval_shape(in_weft, *named)
    placed = jax.tree.map(
        lambda x: P(*(axes.get(name) for name in x.dims.names)), found, is_leaf=lambda x: isinstance(x, wf.Tensor)
    )

    def mapped(fn: Any, in_specs: Any, out_specs: Any) -> Any:
        return jax.shard_map(fn, mesh=mesh.jax_mesh(), in_specs=tuple(in_specs), out_specs=out_specs, check_vma=True)

    made = {"value": (mapped(case.hand, specs, placed), plain, in_weft, named)}
    if not case.is_differentiable:
        return made
    # A loss that is linear in the results: what it hands back to them is given, so that the op is what is measured.
    random = np.random.default_rng(1)
    outs = [(x, spec) for x, spec in zip(leaves(found), jax.tree.leaves(placed), strict=True) if is_float(x)]
    scales = [
        jax.device_put(random.normal(size=x.dims.sizes).astype("float32"), NamedSharding(mesh.jax_mesh(), spec))
        for x, spec in outs
    ]
    floats = [i for i, given in enumerate(case.given) if given.is_differentiated]

    def hand_loss(args: list[Any], others: list[Any], scales: list[Any]) -> Any:
        ys = filter(is_float, jax.tree.leaves(case.hand(*joined(args, others, floats))))
        parts = [
            lax.psum(jnp.sum(y * scale), tuple(filter(None, spec)))
            for y, scale, (_, spec) in zip(ys, scales, outs, strict=True)
        ]
        return sum(parts)

    def weft_loss(args: list[Any], others: list[Any], scales: list[Any]) -> Any:
        ys = filter(is_float, leaves(case.weft(*joined(args, others, floats))))
        return sum(wf.sum(y * scale, over=y.dims) for y, scale in zip(ys, scales, strict=True))

    at, rest = [specs[i] for i in floats], [spec for i, spec in enumerate(specs) if i not in floats]
    by_hand = mapped(jax.value_and_grad(hand_loss), (at, rest, [spec for _, spec in outs]), (P(), at))
    with overhead.quiet():
        graded = wf.spmd(wf.value_and_grad(weft_loss), mesh=mesh, layout=case.layout)
    named_scales = [wf.tensor(scale, x.dims) for scale, (x, _) in zip(scales, outs, strict=True)]
    made["gradient"] = (
        by_hand, [*parted(plain, floats), scales], graded, [*parted(named, floats), named_scales]
    )  # fmt: skip
    return made


def parted(args: list[Any], first: list[int]) -> tuple[list[Any], list[Any]]:
    return [args[i] for i in first], [x for i, x in enumerate(args) if i not in first]


def joined(args: list[Any], others: list[Any], first: list[int]) -> list[Any]:
    some, rest = iter(args), iter(others)
    return [next(some) if i in first else next(rest) for i in range(len(args) + len(others))]


PAIRS = re.compile(r"(?<=source_target_pairs=\{)[\d,{}]+(?=\})")
NAMES = re.compile(r"%[\w.-]+|, metadata=\{[^}]*\}|, backend_config=\{.*\}$|channel_id=\d+")


def code(fn: Any, args: list[Any]) -> Code:
    program = jax.jit(fn).lower(*args).compile()
    text = PAIRS.sub(lambda match: ",".join(sorted(match[0].split(",{"))), program.as_text())
    body = [line.strip() for line in text.splitlines() if overhead.INSTRUCTION.match(line)]
    cost = program.cost_analysis()
    return Code(
        run=lambda: program(*args),
        results=[np.asarray(leaf) for leaf in jax.tree.leaves(program(*args))],
        places=jax.tree.leaves(program.output_shardings),
        lines=collections.Counter(NAMES.sub("", line.removeprefix("ROOT ")) for line in body),
        instructions=len(body),
        fusions=sum(" fusion(" in line for line in body),
        flops=cost.get("flops", 0.0),
        bytes=cost.get("bytes accessed", 0.0),
        sent=overhead.compiled(text),
    )


def furthest(expected: list[Any], found: list[Any]) -> float:
    """The largest difference of two lists of arrays, each against the largest value of its own array."""
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
        worst = max(worst, float(np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-30)))
    return worst


def measure(case: Case, mesh: wf.Mesh, seconds: float) -> list[Row]:
    rows = []
    for kind, (by_hand, plain, in_weft, named) in forms(case, mesh).items():
        hand, weft = code(by_hand, plain), code(in_weft, named)
        expected = hand.results
        if case.expected is not None:
            expected = whole_results(case, kind, plain)
        timing = overhead.step_times(hand.run, weft.run, budget=seconds, least_rounds=LEAST_ROUNDS)
        if timing.ratio > MOST_TIME:  # once more, for longer: a burst of other work on the machine is not the op's
            again = overhead.step_times(hand.run, weft.run, budget=4 * seconds)
            timing = min(timing, again, key=lambda t: t.ratio)
        rows.append(Row(f"{case.name}, {kind}", hand, weft, furthest(expected, weft.results), timing))
    return rows


def whole_results(case: Case, kind: str, plain: list[Any]) -> list[Any]:
    """What the op promises on the whole arrays, where the hand-written form has numbers of its own."""
    if kind == "value":
        return jax.tree.leaves(case.expected(*plain))
    args, others, scales = plain
    floats = [i for i, given in enumerate(case.given) if given.is_differentiated]

    def loss(args: list[Any]) -> Any:
        ys = jax.tree.leaves(case.expected(*joined(args, others, floats)))
        return sum(jnp.sum(y * scale) for y, scale in zip(ys, scales, strict=True))

    return jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(args))


# ---- the report

HEAD = (
    f"{'':<30}{'ms by hand':>10}  {'Weft / by hand':<15}{'itself':>7}  {'instructions':>13}  {'fusions':>9}  "
    f"{'flops':>6}  {'bytes':>6}  collectives (KiB)"
)


def pair(hand: Any, weft: Any) -> str:
    return f"{hand} {'=' if hand == weft else '→'} {weft}"


def share(hand: float, weft: float) -> str:
    if hand == weft:
        return "="
    return f"x{weft / hand:.2f}" if weft < 100 * hand else f"+{(weft - hand) / 1e6:.1f}M"


def collectives(sent: collections.Counter) -> str:
    count, size = overhead.total(sent, "calls"), overhead.total(sent, "bytes")
    return f"{count} ({size / 1024:.0f})" if count else "none"


def show(row: Row) -> None:
    t = row.timing
    ratio = f"{t.ratio:.3f} ± {t.ratio_error:.3f}" + ("!" if row.is_over else "")
    sent = [collectives(row.hand.sent), collectives(row.weft.sent)]
    print(
        f"{row.name:<30}{t.hand * 1e3:>10.2f}  {ratio:<15}{t.noise:>7.3f}  "
        f"{pair(row.hand.instructions, row.weft.instructions):>13}  {pair(row.hand.fusions, row.weft.fusions):>9}  "
        f"{share(row.hand.flops, row.weft.flops):>6}  {share(row.hand.bytes, row.weft.bytes):>6}  "
        f"{pair(*sent) if sent[0] != sent[1] else sent[0] + ' ='}"
        f"{'   same code' if row.is_same_code else ''}{'' if row.is_placed_alike else '   placed otherwise'}"
        f"{'   WRONG' if row.is_wrong else ''}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="ops whose name starts so; may be repeated")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to time each row")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    chosen = [case for case in CASES if not args.only or any(case.name.startswith(name) for name in args.only)]
    if not chosen:
        parser.error(f"no such op; there are: {', '.join(case.name for case in CASES)}")
    start = time.perf_counter()
    print(f"JAX {jax.__version__}, {jax.devices()[0].platform}, {jax.device_count()} virtual processors, mesh {MESH}")
    print(HEAD)
    rows, mesh = [], wf.Mesh(MESH)
    for case in chosen:
        for row in measure(case, mesh, args.seconds):
            show(row)
            rows.append(row)
    print(
        f"\n{len(rows)} rows in {time.perf_counter() - start:.0f} s, {sum(r.is_same_code for r in rows)} the same code"
    )
    over = sorted((row for row in rows if row.is_over), key=lambda row: -row.timing.ratio)
    print(f"over {MOST_TIME}x by hand: " + (", ".join(f"{r.name} {r.timing.ratio:.2f}" for r in over) or "none"))
    print("sending more than by hand: " + (", ".join(row.name for row in rows if row.sends_more) or "none"))
    wrong = [row for row in rows if row.is_wrong]
    for row in wrong:
        print(f"WRONG: {row.name}: numbers differ by {row.difference:.1e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
