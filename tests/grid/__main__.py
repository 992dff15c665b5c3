"""Runs the grid and counts: `python -m tests.grid`; `--only modern` for the rows that say so, `--list` to see them.

Exit status 1 where a row differs from one processor, is refused and should not be, or the other way round.
"""

import argparse
import os
import sys
import time
from collections import Counter

from tests.environment import SETTINGS

os.environ.update(SETTINGS)

import jax

jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_num_cpu_devices", 8)

from tests.grid.compare import TOLERANCE, verdict  # noqa: E402
from tests.grid.rows import KINDS  # noqa: E402
from tests.grid.table import ROWS, show_counts  # noqa: E402


def main() -> int:
    asked = parse()
    rows = [row for row in ROWS if asked.only in str(row)]
    if asked.list:
        print(*rows, sep="\n")
        return 0
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    wrong, worst, began = [], 0.0, time.monotonic()
    for number, row in enumerate(rows, 1):
        found = verdict(row)
        counts[row.kind][found.word] += 1
        counts[row.kind]["drawn"] += row.is_drawn
        worst = max(worst, found.apart if not found.wrong else 0.0)
        if found.wrong:
            wrong.append(row)
            print(f"\n{row}\n    {found.wrong}")
        print(f"\r{number}/{len(rows)} {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(show_counts(counts))
    print(f"\nworst difference {worst:.1e} of {TOLERANCE:.0e} allowed; {len(wrong)} of {len(rows)} rows are wrong")
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose text has this in it")
    parser.add_argument("--list", action="store_true", help="print the rows and run none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
