"""What a run came to: counts, a table of operation x dtype x kind of layout, and every finding with its program."""

import collections
import hashlib
import json
from pathlib import Path
from typing import Any

from tests.properties.written.cases import BAD


class Report:
    """Outcomes added up, and the findings, those that may have one cause together."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.refusals: collections.Counter[str] = collections.Counter()
        self.table: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.findings: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)

    @property
    def pairs(self) -> int:
        return self.outcomes.total()

    @property
    def is_clean(self) -> bool:
        return not any(self.outcomes[what] for what in BAD)

    def add(self, outcome: dict[str, Any]) -> bool:
        """Counts an outcome; whether it is the first of its findings."""
        what = outcome["outcome"]
        self.outcomes[what] += 1
        if what == "refused":
            self.refusals[outcome["about"]] += 1
        if what == "equal":
            for word, dtype in outcome["words"]:
                for kind in outcome["kinds"]:
                    self.table[word, dtype, kind] += 1
        if what not in BAD:
            return False
        key = f"{what}: {outcome['about']}"
        self.findings[key].append(outcome)
        return len(self.findings[key]) == 1

    def counts(self) -> str:
        return "  ".join(f"{what} {count}" for what, count in sorted(self.outcomes.items()))

    def shown(self) -> str:
        """The table of what was equal: a row an operation and dtype, a column a kind of layout."""
        kinds = sorted({kind for _, _, kind in self.table})
        rows = sorted({(word, dtype) for word, dtype, _ in self.table})
        width = max((len(f"{word} {dtype}") for word, dtype in rows), default=9)
        lines = [f"{'operation':{width}}  " + "  ".join(kinds)]
        for word, dtype in rows:
            cells = (f"{self.table[word, dtype, kind] or '-':>{len(kind)}}" for kind in kinds)
            lines.append(f"{word + ' ' + dtype:{width}}  " + "  ".join(cells))
        return "\n".join(lines)

    def summary(self) -> str:
        lines = [f"{self.pairs} pairs: {self.counts()}", "", "refused rightly:"]
        lines += [f"  {count:6}  {why}" for why, count in self.refusals.most_common()]
        lines += ["", "findings:"] if self.findings else ["", "findings: none"]
        for key, found in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            first = found[0]
            lines.append(
                f"  {len(found):6}  {key}   first: program {first['program']} {first['mesh']} {first['layout']}"
            )
        return "\n".join(lines)

    def write(self, folder: Path, seed: int) -> None:
        """The table, the counts and the findings as files."""
        (folder / "table.txt").write_text(self.shown() + "\n")
        (folder / "summary.txt").write_text(f"seed {seed}\n{self.summary()}\n")
        for key, found in self.findings.items():
            name = hashlib.sha256(key.encode()).hexdigest()[:10]
            shortest = sorted(found, key=lambda f: len(f["text"]))[:3]
            (folder / f"finding-{name}.txt").write_text("\n\n".join(show_finding(f) for f in shortest))
        figures = {"seed": seed, "pairs": self.pairs, "outcomes": self.outcomes, "refused": self.refusals}
        (folder / "figures.json").write_text(json.dumps(figures, indent=1))


def show_finding(found: dict[str, Any]) -> str:
    """A finding as one reads it: what, where, and the program by itself."""
    where = f"program {found['program']} ({found['family']})  mesh {found['mesh']!r}  layout {found['layout']!r}"
    detail = "\n".join(f"#   {line}" for line in found["detail"].splitlines())
    return f"# {found['outcome']}: {found['about']}\n# {where}\n{detail}\n{found['text']}"
