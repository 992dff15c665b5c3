"""What a run of random cases came to: how many agreed and were refused, and how often each operation took part."""

import collections
import json
import os
from pathlib import Path


class Counts:
    """The outcomes of one property, printed and written to the file that WEFT_CASE_COUNTS names."""

    def __init__(self, name: str):
        self.name = name
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.operations: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()

    def ran(self, outcome: str, words: list[str]) -> None:
        self.outcomes[outcome] += 1
        self.operations.update(set(words))

    def was_refused(self, fact: str, words: list[str]) -> None:
        self.outcomes[f"refused: {fact.split('`')[0].strip()}"] += 1
        self.refused.update(set(words))

    def share(self, *outcomes: str) -> float:
        return sum(self.outcomes[outcome] for outcome in outcomes) / max(self.outcomes.total(), 1)

    def report(self) -> None:
        """Prints the figures, and writes them beside those of other properties."""
        figures = {
            "cases": self.outcomes.total(),
            "outcomes": dict(self.outcomes.most_common()),
            "operations that ran": dict(sorted(self.operations.items())),
            "operations refused": dict(sorted(self.refused.items())),
        }
        print(f"\n{self.name}: {json.dumps(figures)}")
        if where := os.environ.get("WEFT_CASE_COUNTS"):
            path = Path(where)
            written = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(written | {self.name: figures}, indent=1))
