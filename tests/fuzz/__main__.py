"""`python -m tests.fuzz`: many changed inputs for every parser, each in a process of its own; a table at the end."""

import argparse
import os
import sys
import time

from .harness import LONGEST, MOST_MEMORY, Report, fuzz, fuzz_in_child
from .mutators import ALL
from .parsers import PARSERS


def child(name: str, first: int, count: int, seed: int, place: str) -> None:
    """Fuzzes for `fuzz_in_child`: tells how far it is now and then, and its report at the end.

    The number of each input is written into the file `place` first, which outlives the process.
    """
    told = [time.monotonic()]
    file = os.open(place, os.O_WRONLY)

    def tell(number: int, report: Report) -> None:
        os.pwrite(file, b"%020d" % number, 0)
        if number == first or time.monotonic() - told[0] > 15:
            told[0] = time.monotonic()
            print(f"at {number} {report.to_json()}", flush=True)

    print(fuzz(PARSERS[name], count=count, seed=seed, first=first, tell=tell).to_json(), flush=True)


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6])
        return 0
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--count", type=int, default=100_000, help="inputs for each parser")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--parser", action="append", choices=PARSERS, help="this one alone; may be said several times")
    given = options.parse_args()
    reports = []
    for name in given.parser or PARSERS:
        reports.append(fuzz_in_child(name, count=given.count, seed=given.seed, progress=True))
        print("\n".join(reports[-1].raw[:20]), flush=True)
    print(table(reports))
    return int(any(report.raw or report.memory > MOST_MEMORY or report.slowest > LONGEST for report in reports))


def table(reports: list[Report]) -> str:
    """A row for each parser: inputs by kind of mutation, what came out, worst memory and time."""
    heads = ["parser", "inputs", *ALL, "fine", "refused", "raw", "MiB more", "slowest s", "mean ms"]
    rows = [heads]
    for each in reports:
        total = each.inputs.total()
        ends = [each.fine, each.refused, len(each.raw), each.memory >> 20]
        times = [f"{each.slowest:.2f}", f"{1000 * each.seconds / max(total, 1):.1f}"]
        rows.append([each.parser, *map(str, [total, *(each.inputs[kind] for kind in ALL), *ends]), *times])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
