"""Runs random programs x layouts in many processes: `python -m tests.properties.run --pairs 20000 --workers 16`.

The seed follows from the commit unless given; `--first 17 --pairs 5 --workers 1` runs one program again, by its
number. It can be interrupted, and then reports what it has. Exit status 1 if any answer was wrong, any error was not a
WeftError with a reason that holds, or any program hung or died.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.properties.written.families import ORDER
from tests.properties.written.report import Report, show_finding
from tests.properties.written.workers import Pool, Settings


def main() -> int:
    asked = parse()
    seed = asked.seed if asked.seed is not None else seed_of_commit()
    folder = Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    order = tuple(asked.families.split(",")) if asked.families else ORDER
    report, settings = Report(), Settings(seed, asked.layouts, asked.limit, folder, order)
    pool = Pool(asked.workers, settings, asked.first)
    began = time.monotonic()
    print(f"seed {seed}: {asked.pairs} pairs, {asked.workers} workers; findings go to {folder}/", flush=True)
    try:
        follow(pool, report, asked.pairs, began)
    except KeyboardInterrupt:
        print("\ninterrupted")
    finally:
        pool.close()
    report.write(folder, seed)
    took = time.monotonic() - began
    print(f"\n{report.shown()}\n\n{report.summary()}\n")
    print(f"{took:.0f} s; {report.pairs / max(took, 1):.2f} pairs a second")
    return 0 if report.is_clean else 1


def follow(pool: Pool, report: Report, pairs: int, began: float) -> None:
    """Adds up what comes, and shows each new kind of finding and how far it is."""
    shown = time.monotonic()
    for outcome in pool.run():
        if report.add(outcome):
            print(f"\n{show_finding(outcome)}\n", flush=True)
        if time.monotonic() - shown > 15:
            shown = time.monotonic()
            print(f"{report.pairs}/{pairs} in {shown - began:.0f} s: {report.counts()}", flush=True)
        if report.pairs >= pairs:
            return


def seed_of_commit() -> int:
    """A seed that a commit has for itself."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    return int(hashlib.sha256(head.strip().encode()).hexdigest()[:8], 16)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20000, help="how many program x layout pairs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="default: from the commit")
    parser.add_argument("--layouts", type=int, default=4, help="layouts a program")
    parser.add_argument("--families", help="kinds of programs, of: " + ", ".join(sorted(set(ORDER))))
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a silent worker has hung")
    parser.add_argument("--out", default="runs/random", help="a folder for the table and the findings")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
