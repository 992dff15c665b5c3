"""Weft and PyTorch on one GPU in turns: blocks of steps of both rivals, one after the other, again and again.

    python benchmarks/turns.py --out turns.json                                # every row; goes on where it stopped
    python benchmarks/turns.py --out turns.json --only deep,dropout --seconds 6
    python benchmarks/turns.py --out small.json --small                        # tiny sizes, to try it without a GPU

The workloads and the rows are those of `gpu.py`, whose `--markdown` shows this file too. There each rival has the GPU
for a while, and what the GPU's clock does meanwhile is in the ratio; here both hold their weights at once and take
turns (in the order AB BA AB ...): a ratio is the median of those of single rounds, with its quartiles. PyTorch's
processes compile side by side; Weft's one after the other, since XLA chooses kernels by timing them. A group of rows
begins to be timed when all are ready or `--patience` is over. `--profiles DIR` keeps the kernels of a step of each,
`--hlo DIR` the code that XLA made of Weft's.
"""

import argparse
import contextlib
import gzip
import importlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu import finish, is_done, line
from benchmarks.rivals import workloads

GROUPS = (("dropout", "deep", "decode-1", "decode-64", "decode-8"), ("t5", "paper-4", "packed"), ("paper-16", "moe"),
          ("llama",), ("paper-256",))  # fmt: skip
"""Rows whose rivals all fit in the memory of one GPU at once."""
ALONE = {"paper-256", "llama"}
"""Rows of which even two rivals do not: each has all of its blocks before the other begins."""
SHARE = {"dropout": 0.17, "deep": 0.15, "decode-64": 0.09, "t5": 0.17, "paper-4": 0.12, "packed": 0.17}
SHARE |= {"paper-16": 0.26, "moe": 0.26}
"""Of the GPU's memory, what Weft's process takes beside others; 0.05 in decoding."""
ROUNDS = 10


# A process: one rival, one workload, which does what it is told line by line.


def serve(args: argparse.Namespace) -> None:
    """Makes and compiles a step, then runs blocks of steps; every answer is a line of JSON."""
    rival = importlib.import_module(f"benchmarks.rivals.by_{args.rival}")
    sys.stdin.readline()
    since = time.time()
    workload = workloads.find(args.work, is_small=args.small)
    run = rival.make(workload)
    loss = rival.read(run())
    tell(first_s=time.time() - since, loss=loss)
    for command in sys.stdin:
        word, _, value = command.strip().partition(" ")
        if word == "block":
            tell(ms=block(run, rival.read, int(value)))
        elif word == "profile":
            tell(kernels=rival.profile(run, Path(value)))
        else:
            break
    peak = rival.peak_bytes()
    tell(peak_gb=None if peak is None else peak / 1e9, **rival.versions(), **getattr(rival, "notes", {}))


def block(run: Any, read: Any, count: int) -> float:
    """Milliseconds of a step, of so many after one that is not timed."""
    read(run())
    start = time.perf_counter()
    for _ in range(count):
        last = run()
    read(last)
    return (time.perf_counter() - start) / count * 1e3


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


class Rival:
    """The process of one rival, and what it said."""

    def __init__(self, work: str, rival: str, args: argparse.Namespace):
        self.work, self.rival, self.row = work, rival, {}
        self.error = ""
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115, lives as long as the process
        self.hlo = Path(tempfile.mkdtemp()) if args.hlo and rival == "weft" else None
        flags = ["--work", work, "--rival", rival, *(["--small"] if args.small else [])]
        python = args.torch_python if rival == "torch" else sys.executable
        self.process = subprocess.Popen(
            [python, __file__, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True,
            env=os.environ | self._environment(args),
        )  # fmt: skip
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _environment(self, args: argparse.Namespace) -> dict[str, str]:
        cache = Path(args.cache).resolve()
        share = 0.93 if self.work in ALONE else SHARE.get(self.work, 0.05)
        found = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "torch"), "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "4", "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5", "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": str(share), "PYTHONUNBUFFERED": "1",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }  # fmt: skip
        if self.hlo:
            flags = f"--xla_dump_to={self.hlo} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*"
            found["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        return found

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):
                self.answers.put(json.loads(text))
        self.answers.put(None)

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()

    def hear(self, seconds: float) -> dict[str, Any]:
        """Its next answer; nothing, and `error`, if it has none in that time."""
        if self.error:
            return {}
        try:
            answer = self.answers.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.error = "not done in time"
            return {}
        if answer is None:
            self.said.seek(0)
            lines = [text.strip() for text in self.said.read().splitlines() if text.strip()] or ["nothing said"]
            found = next((text for text in reversed(lines) if "error" in text.lower()), lines[-1])
            self.error = f"exit {self.process.wait()}: {found[:300]}"
            return {}
        return answer

    def ask(self, command: str, seconds: float) -> dict[str, Any]:
        self.say(command)
        return self.hear(seconds)

    def end(self) -> None:
        self.row |= self.ask("end", 20) if not self.error else {}
        self.process.kill()
        self.process.wait()


# Groups of rows.


class Sitting:
    """The rows of one call: which are measured, and the file they are written to."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.path, self.number = args, Path(args.out), int(time.time())
        self.kept = json.loads(self.path.read_text()) if self.path.exists() else {"rows": [], "cold_s": {}}
        self.until = time.time() + args.budget

    def names(self, group: tuple[str, ...]) -> list[str]:
        chosen = [name for name in group if not self.args.only or name in self.args.only.split(",")]
        return [name for name in chosen if self.args.again or not is_done(self.kept["rows"], name, 1)]

    def left(self) -> float:
        return self.until - time.time()

    def write(self, rival: Rival) -> None:
        row = rival.row if "ms" in rival.row else {"error": rival.error or "not measured"} | rival.row
        row = finish(row, rival.work, self.args) | {"rival": rival.rival, "sitting": self.number}
        self.kept["rows"].append(row)
        self.path.write_text(json.dumps(self.kept, indent=1) + "\n")
        print(line(row), flush=True)

    def run(self, names: list[str]) -> None:
        """Compiles all rivals of a group, times those that are ready in turns, and writes each row at once."""
        rivals = {name: [Rival(name, rival, self.args) for rival in ("torch", "weft")] for name in names}
        try:
            compile_all([one for pair in rivals.values() for one in pair], min(self.args.patience, self.left()))
            for pair in rivals.values():
                self.time(pair)
        finally:
            for one in (one for pair in rivals.values() for one in pair):
                one.process.kill()

    def run_alone(self, name: str) -> None:
        """Each rival by itself, where both do not fit in memory together."""
        for rival in ("torch", "weft"):
            one = Rival(name, rival, self.args)
            try:
                compile_all([one], min(self.args.patience, self.left()))
                self.time([one])
            finally:
                one.process.kill()

    def time(self, pair: list[Rival]) -> None:
        """Blocks in turns, then what each ends with."""
        ready = [one for one in pair if not one.error]
        counts = dict.fromkeys(ready, 1)
        for one in ready:
            one.ask("block 2", 60)
            took = one.ask("block 2", 60).get("ms", 1e3)
            counts[one] = max(min(int(self.args.seconds * 1e3 / ROUNDS / took), 50), 1)
        blocks: dict[str, list[float]] = {one.rival: [] for one in ready}
        for number in range(ROUNDS):
            for one in ready if number % 2 else ready[::-1]:
                found = one.ask(f"block {counts[one]}", 60)
                blocks[one.rival] += [found["ms"]] if found else []
        for one in ready:
            if len(found := blocks[one.rival]) == ROUNDS:
                new = workloads.find(one.work, is_small=self.args.small).new_tokens or 1
                found = [value / new for value in found]
                one.row |= {"ms": statistics.median(found), "least": min(found), "most": max(found)}
                one.row |= {"steps": ROUNDS * counts[one], "blocks": found}
                if self.args.profiles:
                    one.ask(f"profile {Path(self.args.profiles).resolve()}/{one.work}.{one.rival}.json", 40)
        if len(ready) == 2 and all(len(found) == ROUNDS for found in blocks.values()):
            ratios = [mine / theirs for theirs, mine in zip(blocks["torch"], blocks["weft"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            ready[1].row |= {"ratio": middle, "ratio_quartiles": [low, high]}
            print(f"{ready[1].work:10} Weft / PyTorch {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
        for one in pair:
            one.end()
            keep_code(one, self.args.hlo)
            self.write(one)


def compile_all(rivals: list[Rival], seconds: float) -> None:
    """Lets PyTorch's processes compile at once and Weft's one after the other, for so long.

    Who is not ready then is ended: it would go on compiling beside what is timed.
    """
    until = time.time() + seconds
    for one in rivals:
        if one.rival == "torch":
            one.say("make")
    for rival in ("weft", "torch"):
        for one in rivals:
            if one.rival == rival:
                if rival == "weft":
                    one.say("make")
                one.row |= one.hear(until - time.time())
                told = one.error or f"first step after {one.row['first_s']:.1f} s, loss {one.row['loss']:.4f}"
                print(f"{one.work:10} {one.rival:6} {told}", flush=True)
    for one in rivals:
        if one.error:
            one.process.kill()


def keep_code(one: Rival, folder: str) -> None:
    """Keeps the largest program that XLA compiled for a rival of Weft's, compressed."""
    if not one.hlo:
        return
    if found := sorted(one.hlo.glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size):
        place = Path(folder) / f"{one.work}.hlo.txt.gz"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(gzip.compress(found[-1].read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="turns.json", help="results, which a second call goes on with")
    parser.add_argument("--only", default="", help=f"some of {','.join(workloads.WORKLOADS)}")
    parser.add_argument("--seconds", type=float, default=5, help="how long each rival of a row is timed")
    parser.add_argument("--patience", type=float, default=200, help="seconds a group may compile")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no group begins")
    parser.add_argument("--again", action="store_true", help="also the rows that are done")
    parser.add_argument(
        "--cache", default=str(Path(tempfile.gettempdir()) / "turns"), help="a folder for compiled code"
    )
    parser.add_argument("--profiles", default="", help="a folder for PyTorch's kernels")
    parser.add_argument("--hlo", default="", help="a folder for what XLA compiled")
    parser.add_argument("--torch-python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    parser.add_argument("--gpus", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rival", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        serve(args)
        return
    sitting = Sitting(args)
    for group in GROUPS:
        names = sitting.names(group)
        if names and sitting.left() < 30:
            print(f"not begun for want of time: {', '.join(names)}")
            continue
        if together := [name for name in names if name not in ALONE]:
            sitting.run(together)
        for name in names:
            if name in ALONE:
                sitting.run_alone(name)


if __name__ == "__main__":
    main()
