"""Weft beside hand-written JAX and PyTorch on a GPU: train steps of nine models, and decoding.

    python benchmarks/gpu.py --out gpu.json                 # every row; a second call goes on where it stopped
    python benchmarks/gpu.py --out gpu.json --markdown      # the table of what was measured
    python benchmarks/gpu.py --small --out /tmp/small.json  # tiny sizes, to try it without a GPU

The rivals compute the same models (`rivals/workloads.py`): the same shapes, weights in float32, products in bfloat16,
first values from the same distributions. Each rival of a row runs in a process of its own; a row is done when Weft and
PyTorch both ran it in one call. `ms` is the median of six blocks of steps, the spread their least and most. MFU counts
the operations of products forward and backward, of attention those the causal mask lets through, nothing recomputed,
against 990 TFLOP/s. Of decoding, `ms` is that of a token: prompts of 128, 256 new tokens, prefill counted in.
With `--cache DIR --warm N` every process is first run N at a time for one step, which fills the compilers' caches: the
time to the first step is then that of such a run.
"""

import argparse
import concurrent.futures
import datetime
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rivals import workloads
from benchmarks.rivals.clock import measure

RIVALS = ("torch", "weft", "jax")
NEEDED = {"torch", "weft"}
"""The rivals a row is not done without."""
UNBEGUN = "not begun for want of time"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


# A process: one rival, one workload.


def work(args: argparse.Namespace) -> None:
    """Runs one rival on one workload and prints a line of JSON."""
    rival = importlib.import_module(f"benchmarks.rivals.by_{args.rival}")
    since = time.time()
    if args.lock:  # the next process has its imports behind it when this one is done
        lock = open(args.lock, "w")  # noqa: SIM115  (held until the process ends)
        fcntl.flock(lock, fcntl.LOCK_EX)
    waited = time.time() - since
    signal.alarm(int(args.timeout) + 1)
    times = args.gpus if args.rival != "torch" else 1  # each process of PyTorch's has a batch of its own
    workload = workloads.find(args.work, is_small=args.small, times=times)
    run = rival.make(workload)
    row = measure(run, rival.read, seconds=args.seconds, since=args.since + waited)
    if workload.new_tokens:
        row.pop("loss")
        row |= {name: row[name] / workload.new_tokens for name in ("ms", "least", "most") if name in row}
    row |= {"peak_gb": None if (peak := rival.peak_bytes()) is None else peak / 1e9}
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(row | rival.versions() | getattr(rival, "notes", {})), flush=True)


# The rows, each rival in its own process.


def start(workload: str, rival: str, args: argparse.Namespace, *, seconds: float, lock: str = "") -> dict[str, Any]:
    """What a process of its own tells of one rival on one workload."""
    flags = ["--work", workload, "--rival", rival, "--since", str(time.time()), "--seconds", str(seconds)]
    flags += ["--gpus", str(args.gpus), "--timeout", str(args.timeout), "--lock", lock]
    flags += ["--small"] if args.small else []
    python = args.torch_python if rival == "torch" else sys.executable
    prefix = [*TORCHRUN, str(args.gpus)] if rival == "torch" and args.gpus > 1 else []
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if args.cache:
        cache = Path(args.cache).resolve()
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "torch"), "TRITON_CACHE_DIR": str(cache / "triton"),
            "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        }  # fmt: skip
    if not seconds:  # several share the GPU's memory
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    else:
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.93")
    command = [python, *prefix, __file__, *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * args.timeout + 60, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": "hung"}
    if done.returncode in (-signal.SIGALRM, 128 + signal.SIGALRM):
        return {"error": f"not done after {args.timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
        if args.verbose:
            print(done.stderr[-6000:], file=sys.stderr)
        told = next((line for line in reversed(said) if "Error" in line or "error" in line), said[-1])
        return {"error": f"exit {done.returncode}: {told.strip()[:300]}"}
    return json.loads(lines[-1])


def finish(row: dict[str, Any], workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """A row of results with what follows from its time: MFU, tokens a second."""
    w = workloads.find(workload, is_small=args.small)
    if "ms" in row:
        step_ms = row["ms"] * (w.new_tokens or 1)
        row["mfu"] = workloads.flops(w) / (step_ms * 1e-3) / workloads.PEAK
        row["tokens_a_second"] = w.tokens * args.gpus / (step_ms * 1e-3)
    row |= {"workload": workload, "gpus": args.gpus, "parameters": workloads.parameters(w), "flops": workloads.flops(w)}
    return row | {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}


def is_done(rows: list[dict[str, Any]], workload: str, gpus: int) -> bool:
    """Whether some call ran all rivals a row needs."""
    ran: dict[Any, set[str]] = {}
    for row in rows:
        if row["workload"] == workload and row["gpus"] == gpus and "ms" in row:
            ran.setdefault(row["sitting"], set()).add(row["rival"])
    return any(rivals >= NEEDED for rivals in ran.values())


def measure_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs every row that is not done, and appends what it finds to the file."""
    path, sitting = Path(args.out), int(time.time())
    kept = json.loads(path.read_text()) if path.exists() else {"rows": [], "cold_s": {}}
    rows, cold = kept["rows"], kept["cold_s"]
    names = [name for name in workloads.WORKLOADS if not args.only or name in args.only.split(",")]
    names = [name for name in names if args.again or not is_done(rows, name, args.gpus)]
    rivals = args.rivals.split(",")
    if args.warm:
        cold |= warm(names, rivals, args)
        path.write_text(json.dumps(kept, indent=1) + "\n")
    begin, pairs = time.time(), [(name, rival) for name in names for rival in rivals]

    def one(pair: tuple[str, str], lock: str) -> dict[str, Any]:
        if time.time() - begin > args.budget:
            return {"error": UNBEGUN}
        return start(*pair, args, seconds=args.seconds, lock=lock)

    with (
        tempfile.NamedTemporaryFile() as lock,
        concurrent.futures.ThreadPoolExecutor(2 if args.gpus == 1 else 1) as pool,
    ):
        told = pool.map(lambda pair: one(pair, lock.name if args.gpus == 1 else ""), pairs)
        for (name, rival), result in zip(pairs, told, strict=True):
            row = finish(result, name, args) | {"rival": rival, "sitting": sitting}
            row |= {"cold_s": cold[f"{name} {rival}"]} if f"{name} {rival}" in cold else {}
            print(line(row), flush=True)
            if result.get("error") != UNBEGUN:
                rows.append(row)
                path.write_text(json.dumps(kept, indent=1) + "\n")
    return rows


def warm(names: list[str], rivals: list[str], args: argparse.Namespace) -> dict[str, float]:
    """Runs one step of each, several processes at a time: their times to it, with nothing in the caches."""
    pairs = [(name, rival) for rival in rivals for name in names if name != "paper-256"]  # which needs a GPU for itself
    cold = {}
    with concurrent.futures.ThreadPoolExecutor(args.warm) as pool:
        told = pool.map(lambda pair: start(*pair, args, seconds=0), pairs)
        for (name, rival), row in zip(pairs, told, strict=True):
            after = f"first step after {row['first_s']:6.1f} s" if "first_s" in row else row["error"]
            print(f"{name:10} {rival:6} {after}", flush=True)
            cold |= {f"{name} {rival}": row["first_s"]} if "first_s" in row else {}
    return cold


# What is shown.


def line(row: dict[str, Any]) -> str:
    """A result as a line of text."""
    head = f"{row['workload']:10} {row['rival']:6}"
    if "error" in row:
        return f"{head} {row['error']}"
    memory = "" if row.get("peak_gb") is None else f"  {row['peak_gb']:5.1f} GB"
    return (
        f"{head} {row['ms']:9.3f} ms ({row['least']:.3f} to {row['most']:.3f})  MFU {row['mfu']:6.1%}{memory}  "
        f"first {row.get('cold_s', row['first_s']):5.1f} s  loss {show(row, 'loss', '{:.4f}')}"
    )


def table(rows: list[dict[str, Any]], gpus: int) -> str:
    """The rows that are done as a table in Markdown, each of its last sitting."""
    both = "PyTorch / Weft"
    heads = ["workload", "PyTorch ms", "Weft ms", "Weft / PyTorch", "JAX by hand ms", f"MFU, {both}"]
    heads += [f"peak GB, {both}", f"s to the first step, {both}", f"loss at first, {both}"]
    told = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in workloads.WORKLOADS:
        found = last_sitting(rows, name, gpus)
        if not found:
            continue
        torch, weft, jax = (found.get(rival) for rival in RIVALS)
        cells = [workloads.TITLES[name], spread(torch), spread(weft)]
        is_whole = torch and weft and "ms" in torch and "ms" in weft
        cells.append(f"**{weft['ms'] / torch['ms']:.3f}**" if is_whole else "–")
        cells.append(spread(jax))
        cells += [" / ".join(show(row, key, form) for row in (torch, weft)) for key, form in COLUMNS]
        told.append("| " + " | ".join(cells) + " |")
    return "\n".join(told)


COLUMNS = (("mfu", "{:.1%}"), ("peak_gb", "{:.1f}"), ("cold_s", "{:.0f}"), ("loss", "{:.3f}"))


def show(row: dict[str, Any] | None, key: str, form: str) -> str:
    value = None if row is None else row.get(key, row.get("first_s") if key == "cold_s" else None)
    return "–" if value is None else form.format(value)


def spread(row: dict[str, Any] | None) -> str:
    """A time with the least and the most of its blocks."""
    if row is None or "ms" not in row:
        return "–" if row is None else "failed"
    digits = 3 if row["ms"] < 10 else 1
    return f"{row['ms']:.{digits}f} ({row['least']:.{digits}f}–{row['most']:.{digits}f})"


def last_sitting(rows: list[dict[str, Any]], workload: str, gpus: int) -> dict[str, dict[str, Any]]:
    """The rivals of a workload in the last call that ran all a row needs, or else in the last one."""
    own = [row for row in rows if row["workload"] == workload and row["gpus"] == gpus]
    by_sitting: dict[int, dict[str, Any]] = {}
    for row in own:
        by_sitting.setdefault(row["sitting"], {})[row["rival"]] = row
    done = [s for s, of in by_sitting.items() if {name for name, row in of.items() if "ms" in row} >= NEEDED]
    return by_sitting[max(done or by_sitting)] if by_sitting else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="gpu.json", help="results, which a second call goes on with")
    parser.add_argument("--only", default="", help=f"some of {','.join(workloads.WORKLOADS)}")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--seconds", type=float, default=2.5, help="how long each is timed")
    parser.add_argument("--timeout", type=float, default=240, help="seconds a process may take")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no row begins")
    parser.add_argument("--again", action="store_true", help="also the rows that are done")
    parser.add_argument("--cache", default="", help="a folder for compiled code")
    parser.add_argument("--warm", type=int, default=0, help="processes at a time that fill it first")
    parser.add_argument("--gpus", type=int, default=1, help="data parallel over so many, each with a batch as given")
    parser.add_argument("--torch-python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--markdown", action="store_true", help="only the table of what was measured")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    parser.add_argument("--verbose", action="store_true", help="also what processes that fail say")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rival", default="", help=argparse.SUPPRESS)
    parser.add_argument("--lock", default="", help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    rows = json.loads(Path(args.out).read_text())["rows"] if args.markdown else measure_rows(args)
    print(table(rows, args.gpus))


if __name__ == "__main__":
    main()
