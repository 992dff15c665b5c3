"""Weft beside hand-written JAX and PyTorch on a GPU: train steps of nine models, and decoding.

    python benchmarks/gpu.py --out gpu.json                 # every row; a second call goes on where it stopped
    python benchmarks/gpu.py --out gpu.json --markdown      # the table of what was measured
    python benchmarks/gpu.py --small --out small.json      # tiny sizes, to try it without a GPU

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
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rivals import workloads
from benchmarks.rivals.clock import measure

RIVALS = ("torch", "weft", "jax")
NEEDED = {"torch", "weft"}
"""The rivals a row is not done without."""
LARGEST = "paper-256"
"""The workload that needs most of a GPU's memory, so that it runs alone and PyTorch may not leave gaps in it."""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


# A process: one rival, one workload.


def work(args: argparse.Namespace) -> None:
    """Runs one rival on one workload and prints a line of JSON."""
    rival = importlib.import_module(f"benchmarks.rivals.by_{args.rival}")
    since = time.time()
    sys.stdin.readline()  # until the one before is done, so that the GPU is free
    waited = time.time() - since
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


def start(workload: str, rival: str, args: argparse.Namespace, *, seconds: float) -> subprocess.Popen[str]:
    """A process of its own for one rival on one workload, which imports what it needs and waits."""
    flags = ["--work", workload, "--rival", rival, "--since", str(time.time()), "--seconds", str(seconds)]
    flags += ["--gpus", str(args.gpus), *(["--small"] if args.small else [])]
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
    if workload == LARGEST:
        environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    pipes: Any = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([python, *prefix, __file__, *flags], env=environment, **pipes)


def result_of(process: subprocess.Popen[str], args: argparse.Namespace) -> dict[str, Any]:
    """Lets a process run, and reads what it tells."""
    try:
        told, said = process.communicate("go\n" * args.gpus, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"not done after {args.timeout:.0f} s"}
    lines = [line for line in told.splitlines() if line.startswith("{")]
    if not process.returncode and lines:
        return json.loads(lines[-1])
    if args.verbose:
        print(said[-6000:], file=sys.stderr)
    last = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing"]
    error = next((line for line in reversed(last) if "error" in line.lower()), last[-1])
    return {"error": f"exit {process.returncode}: {error[:300]}"}


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
    pairs = [(name, rival) for name in names for rival in rivals]
    for (name, rival), result in zip(pairs, results(pairs, args), strict=False):
        row = finish(result, name, args) | {"rival": rival, "sitting": sitting}
        row |= {"cold_s": cold[f"{name} {rival}"]} if f"{name} {rival}" in cold else {}
        print(line(row), flush=True)
        rows.append(row)
        path.write_text(json.dumps(kept, indent=1) + "\n")
    return rows


def results(pairs: list[tuple[str, str]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each process tells, one after the other; each imports what it needs while the one before runs."""
    begin, following = time.time(), None
    for number, pair in enumerate(pairs):
        if time.time() - begin > args.budget:
            print(f"not begun for want of time: {', '.join(' '.join(pair) for pair in pairs[number:])}")
            break
        process = following or start(*pair, args, seconds=args.seconds)
        is_last = number + 1 == len(pairs) or args.gpus > 1
        following = None if is_last else start(*pairs[number + 1], args, seconds=args.seconds)
        yield result_of(process, args)
    if following is not None:
        following.kill()


def warm(names: list[str], rivals: list[str], args: argparse.Namespace) -> dict[str, float]:
    """Runs one step of each, several processes at a time: their times to it, with nothing in the caches."""
    pairs = [(name, rival) for rival in rivals for name in names if name != LARGEST]
    cold = {}
    with concurrent.futures.ThreadPoolExecutor(args.warm) as pool:
        told = pool.map(lambda pair: result_of(start(*pair, args, seconds=0), args), pairs)
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
    parser.add_argument("--since", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    rows = json.loads(Path(args.out).read_text())["rows"] if args.markdown else measure_rows(args)
    print(table(rows, args.gpus))


if __name__ == "__main__":
    main()
