"""The same language model in four ways on 8 virtual processors: bytes, CPU time, memory, the first step.

    python benchmarks/cpu_peers.py                                  # the table of seven layouts
    python benchmarks/cpu_peers.py --first                          # CPU-seconds to the first step, imports and all
    python benchmarks/cpu_peers.py --first --mtf venv/bin/python    # beside mesh-tensorflow 0.1.21, in its own venv

In Weft by one line of layout; in plain JAX with `NamedSharding`, which XLA's partitioner splits; by hand in
`jax.shard_map` with each collective written out (`cpu_peers_by_hand.py`); and, on one layout, in the original
mesh-tensorflow (`cpu_peers_mtf.py`). 4 layers, d_model 256, 8 heads of 32, d_ff 1024, vocab 8192, 8 x 128 tokens,
float32, SGD, layers in a loop, no remat. Weights and batch are the same, and the losses are compared before anything is
timed. Bytes are those on the wire that one processor sends in rings, read off XLA's text of the compiled programs. Time
is that of the CPU, of all threads, of rounds in turning order: the median of the rounds' own ratios, and half of the
quartiles' distance.
"""

import argparse
import dataclasses
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

HERE = Path(__file__).parent
LAYERS, D, H, K, F, V, B, T = 4, 256, 8, 32, 1024, 8192, 8, 128
RATE, EPSILON = 0.1, 1e-6
SHAPES = {
    "embedding": (V, D),
    "positions": (T, D),
    "norm_1": (LAYERS, D),
    "q": (LAYERS, D, H, K),
    "k": (LAYERS, D, H, K),
    "v": (LAYERS, D, H, K),
    "o": (LAYERS, H, K, D),
    "norm_2": (LAYERS, D),
    "w_1": (LAYERS, D, F),
    "w_2": (LAYERS, F, D),
    "norm": (D,),
    "softmax": (V, D),
}
STACKED = [name for name in SHAPES if SHAPES[name][0] == LAYERS]
PATHS = {
    ".embedding.table": "embedding",
    ".positions.table": "positions",
    ".softmax.table": "softmax",
    ".decoder.norm.scale": "norm",
    ".attention_norm.scale": "norm_1",
    ".feed_forward_norm.scale": "norm_2",
    ".attention.q": "q",
    ".attention.k": "k",
    ".attention.v": "v",
    ".attention.o": "o",
    ".feed_forward.w_in": "w_1",
    ".feed_forward.w_out": "w_2",
}
"""How Weft's model calls the same weights."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A mesh and a layout, and which axis each of the peers' programs gives to what."""

    mesh: str
    layout: str
    data: str | None = None
    model: str | None = None
    """Of heads, d_ff and vocab."""
    length: str | None = None
    stored: str | None = None
    """Of d_model, in weights alone (FSDP)."""
    width: str | None = None
    """Of d_model, in weights and activations."""

    @property
    def axes(self) -> dict[str, int]:
        return {name: int(size) for name, size in (part.split("=") for part in self.mesh.split(","))}

    def jax_mesh(self) -> jax.sharding.Mesh:
        auto = (jax.sharding.AxisType.Auto,) * len(self.axes)
        return jax.make_mesh(tuple(self.axes.values()), tuple(self.axes), axis_types=auto)

    def specs(self) -> dict[str, P]:
        """How the weights lie."""
        d, m = self.stored or self.width, self.model
        one, wide = P(None, d), P(None, d, m)
        return {
            "embedding": P(m, d),
            "positions": P(None, d),
            **dict.fromkeys(("norm_1", "norm_2"), one),
            **dict.fromkeys(("q", "k", "v", "w_1"), wide),
            "o": P(None, m, None, d),
            "w_2": P(None, m, d),
            "norm": P(d),
            "softmax": P(m, d),
        }


ROWS = [
    Row("x=8", "batch:x", data="x"),
    Row("x=8", "heads:x,d_ff:x,vocab:x", model="x"),
    Row("x=4,y=2", "batch:x,heads:y,d_ff:y,vocab:y", data="x", model="y"),
    Row("x=2,y=4", "batch:x,heads:y,d_ff:y,vocab:y", data="x", model="y"),
    Row("x=4,y=2", "batch:x,length:y", data="x", length="y"),
    Row("x=8", "batch:x,params.d_model:x", data="x", stored="x"),
    Row("x=4,y=2", "batch:x,d_model:y", data="x", width="y"),
]
OF_MTF = 2
"""The row that mesh-tensorflow runs too."""


def values() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights, and tokens of which the targets are the next."""
    random = np.random.default_rng(0)

    def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.startswith("norm"):
            return np.ones(shape, "float32")
        fan = {"embedding": 1, "positions": 2500, "o": H * K, "w_2": F}.get(name, D)
        return (random.normal(size=shape) / np.sqrt(fan)).astype("float32")

    return {name: weight(name, shape) for name, shape in SHAPES.items()}, random.integers(0, V, (B, T + 1), "int32")


# Each peer is a function of the state and the batch that gives the new state and the loss.


@dataclasses.dataclass
class Peer:
    name: str
    call: Callable[[Any], tuple[Any, Any]]
    """The step on the batch: state → (state, loss)."""
    state: Any
    lower: Callable[[], Any]

    def run(self) -> float:
        """One step; the state goes on."""
        self.state, loss = self.call(self.state)
        return float(jax.block_until_ready(loss))


def weft(row: Row) -> Peer:
    import optax

    import weft as wf

    config = wf.models.LMConfig(
        name="peer", layers=LAYERS, d_model=D, heads=H, d_kv=K, d_ff=F, vocab=V, batch=B, length=T,
        positions="learned", dtype="float32", scanned=True, remat=False,
    )  # fmt: skip
    weights, tokens = values()

    def fill(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        text = jax.tree_util.keystr(path)
        name = next(name for end, name in PATHS.items() if text.replace(".array", "").endswith(end))
        return weights[name].reshape(leaf.shape)

    model = jax.tree_util.tree_map_with_path(fill, wf.models.shapes(config))
    step = wf.train_step(
        lambda model, batch, key: model.loss(batch), optax.sgd(RATE), mesh=row.mesh, layout=row.layout, donate=True
    )
    named = {"inputs": wf.tensor(tokens[:, :-1], "batch length"), "targets": wf.tensor(tokens[:, 1:], "batch length")}
    batch = wf.put(named, mesh=row.mesh, layout=row.layout)
    state = step.init(model)

    def call(state: Any) -> Any:
        state, metrics = step(state, batch)
        return state, metrics["loss"].array

    return Peer("weft", call, state, lambda: step.lower(state, batch))


def norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * scale


def partitioned(row: Row) -> Peer:
    """Plain JAX on whole arrays, told where weights and activations lie."""
    mesh = row.jax_mesh()

    def lies(x: Any, *axes: str | None) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    data, model, length, width = row.data, row.model, row.length, row.width

    def block(x: Any, p: Any) -> Any:
        h = norm(x, p["norm_1"])
        q, k, v = (lies(jnp.einsum("btd,dhk->bthk", h, p[n]), data, length, model) for n in "qkv")
        scores = jnp.einsum("bthk,bmhk->bhtm", q, k) / np.sqrt(K)
        seen = jnp.arange(T)[:, None] >= jnp.arange(T)
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        mixed = lies(jnp.einsum("bhtm,bmhk->bthk", weights, v), data, length, model)
        x = lies(x + jnp.einsum("bthk,hkd->btd", mixed, p["o"]), data, length, width)
        h = lies(jax.nn.relu(jnp.einsum("btd,df->btf", norm(x, p["norm_2"]), p["w_1"])), data, length, model)
        return lies(x + jnp.einsum("btf,fd->btd", h, p["w_2"]), data, length, width), None

    def loss(p: Any, inputs: Any, targets: Any) -> Any:
        x = lies(p["embedding"][inputs] + p["positions"], data, length, width)
        x, _ = jax.lax.scan(block, x, {name: p[name] for name in STACKED})
        logits = lies(jnp.einsum("btd,vd->btv", norm(x, p["norm"]), p["softmax"]), data, length, model)
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    return _peer("partitioner", row, mesh, jax.value_and_grad(loss))


def by_hand(row: Row) -> Peer:
    from cpu_peers_by_hand import loss_of

    mesh, specs = row.jax_mesh(), hand_specs(row)
    fn = jax.shard_map(
        jax.value_and_grad(loss_of(row)),
        mesh=mesh,
        in_specs=(specs, P(row.data, row.length), P(row.data, row.length)),
        out_specs=(P(), specs),
    )
    return _peer("by hand", row, mesh, fn, specs)


def hand_specs(row: Row) -> dict[str, P]:
    """As the row's; of d_model in activations, weights lie by what a product gives."""
    if row.width is None:
        return row.specs()
    y = row.width
    return {
        **dataclasses.replace(row, width=None, model=y).specs(),
        "embedding": P(None, y),
        "positions": P(None, y),
        **dict.fromkeys(("norm_1", "norm_2"), P(None, y)),
        "norm": P(y),
    }


def _peer(name: str, row: Row, mesh: Any, gradients: Any, specs: dict[str, P] | None = None) -> Peer:
    weights, tokens = values()
    lies = {n: NamedSharding(mesh, spec) for n, spec in (specs or row.specs()).items()}
    state = {n: jax.device_put(array, lies[n]) for n, array in weights.items()}
    place = NamedSharding(mesh, P(row.data, row.length))
    inputs, targets = (jax.device_put(np.ascontiguousarray(part), place) for part in (tokens[:, :-1], tokens[:, 1:]))

    def step(p: Any, inputs: Any, targets: Any) -> Any:
        loss, slopes = gradients(p, inputs, targets)
        return {n: p[n] - RATE * slopes[n] for n in p}, loss

    jitted = jax.jit(step, donate_argnums=0, out_shardings=(lies, None))
    return Peer(name, lambda state: jitted(state, inputs, targets), state, lambda: jitted.lower(state, inputs, targets))


PEERS = {"partitioner": partitioned, "by hand": by_hand, "weft": weft}


# What is measured.


def wire_megabytes(text: str, row: Row) -> float:
    """What one processor sends, each collective as a ring."""
    from weft.plan.sent import read_collectives

    total = 0.0
    for sent in read_collectives(text, row.axes):
        share = (sent.group - 1) / sent.group
        share = {"all_reduce": 2 * share, "permute": 1.0}.get(sent.collective, share)
        total += sent.bytes * sent.count * share
    return total / 1e6


def cpu_of(peer: Peer) -> float:
    start = time.process_time()
    peer.run()
    return time.process_time() - start


def ratios(peers: list[Peer], rounds: int) -> dict[str, tuple[float, float]]:
    """Weft's CPU time by each other's: the median of rounds, and half of the quartiles' distance."""
    orders = list(itertools.permutations(range(len(peers))))
    times: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for i in range(rounds + 1):
        for j in orders[i % len(orders)]:
            spent = cpu_of(peers[j])
            if i:
                times[peers[j].name].append(spent)
    found = {}
    for name, own in times.items():
        each = [a / b for a, b in zip(times["weft"], own, strict=True)]
        low, _, high = statistics.quantiles(each, n=4)
        found[name] = statistics.median(each), (high - low) / 2
    return found


def table(rows: list[Row], rounds: int, out: Path | None) -> None:
    print("| mesh | layout | wire MB: partitioner / by hand / Weft | CPU Weft / partitioner | Weft / by hand |", end="")
    print(" temp MB p / h / W |\n|---|---|---|---|---|---|", flush=True)
    for row in rows:
        peers = [make(row) for make in PEERS.values()]
        compiled = {peer.name: peer.lower().compile() for peer in peers}
        wire = {name: wire_megabytes(program.as_text(), row) for name, program in compiled.items()}
        temp = {name: program.memory_analysis().temp_size_in_bytes / 2**20 for name, program in compiled.items()}
        losses = {peer.name: [peer.run() for _ in range(3)] for peer in peers}
        for name, found in losses.items():
            np.testing.assert_allclose(found, losses["weft"], rtol=2e-5, err_msg=f"{row.layout}: {name}")
        cpu = ratios(peers, rounds)
        shown = [f"{cpu[name][0]:.3f} ± {cpu[name][1]:.3f}" for name in ("partitioner", "by hand")]
        print(f"| {row.mesh} | `{row.layout}` | {' / '.join(f'{wire[n]:.2f}' for n in PEERS)} | ", end="")
        print(f"{' | '.join(shown)} | {' / '.join(f'{temp[n]:.0f}' for n in PEERS)} |", flush=True)
        if out is not None:
            told = {"mesh": row.mesh, "layout": row.layout, "wire_mb": wire, "temp_mb": temp, "cpu": cpu}
            with out.open("a") as file:
                file.write(json.dumps(told) + "\n")


def first_step(name: str) -> None:
    """Prints the CPU- and clock-seconds of this process up to the end of its first step."""
    PEERS[name](ROWS[OF_MTF]).run()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}))


def first_steps(mtf: str | None, rounds: int) -> None:
    commands = {name: [sys.executable, __file__, "--first-of", name] for name in PEERS}
    if mtf is not None:
        commands["mesh-tensorflow"] = [mtf, str(HERE / "cpu_peers_mtf.py"), "--steps", "1"]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            start = time.perf_counter()
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append({**json.loads(done.stdout.splitlines()[-1]), "s": time.perf_counter() - start})
    print(
        f"| from the start of Python to the first step, {ROWS[OF_MTF].mesh} | CPU s (least of {rounds}) | s | peak MB |"
    )
    print("|---|---|---|---|")
    for name, runs in found.items():
        least = min(runs, key=lambda run: run["cpu_s"])
        print(f"| {name} | {least['cpu_s']:.1f} | {least['s']:.1f} | {least['peak_mb']:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=24, help="steps of each peer in a row, or starts of each")
    parser.add_argument("--rows", type=int, nargs="*", help="only these rows of the table, from 0 on")
    parser.add_argument("--out", type=Path, help="a file to which each row is added as JSON")
    parser.add_argument("--first", action="store_true", help="the first step instead of the table")
    parser.add_argument("--first-of", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--mtf", metavar="PYTHON", help="the Python of a venv with mesh-tensorflow 0.1.21")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    if args.first_of is not None:
        return first_step(args.first_of)
    if args.first:
        return first_steps(args.mtf, min(args.rounds, 3))
    print(f"JAX {jax.__version__}, {jax.device_count()} virtual processors, {args.rounds} rounds\n")
    table([ROWS[i] for i in args.rows] if args.rows is not None else ROWS, args.rounds, args.out)


if __name__ == "__main__":
    main()
