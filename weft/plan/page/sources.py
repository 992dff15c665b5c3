"""The source lines a page shows: a few around each that the program names."""

import html
import linecache
from collections.abc import Iterable

from ...program import Program
from ...program.source import NOWHERE, Site

AROUND = 5
"""Lines shown above and below the one that is meant."""
_LONGEST = 400


class SourceLines:
    """The source lines of some programs, by place as it is printed: `net.py:6`."""

    def __init__(self, programs: Iterable[Program]):
        self._sites: dict[str, Site] = {}
        self._files: dict[str, str] = {}
        for program in programs:
            for site, file in program.reading.places():
                self._sites[str(site)], self._files[site.file] = site, file
        self._wanted: dict[str, set[int]] = {}

    def link(self, place: str) -> str:
        """The name of a line on the page; empty where its file cannot be read."""
        site = self._sites.get(place, NOWHERE)
        lines = self._lines(site.file)
        if not 1 <= site.line <= len(lines):
            return ""
        around = range(max(1, site.line - AROUND), min(len(lines), site.line + AROUND) + 1)
        self._wanted.setdefault(site.file, set()).update(around)
        return f"s{list(self._wanted).index(site.file)}-{site.line}"

    def _lines(self, name: str) -> list[str]:
        return linecache.getlines(self._files[name]) if name in self._files else []

    def markup(self) -> str:
        """All lines that were asked for, file by file."""
        return "".join(self._file(i, name) for i, name in enumerate(self._wanted))

    def _file(self, i: int, name: str) -> str:
        lines, parts, before = self._lines(name), [], None
        for at in sorted(self._wanted[name]):
            gap = '<span class="gap">&#8942;</span>' if before is not None and at > before + 1 else ""
            text = html.escape(lines[at - 1].rstrip()[:_LONGEST])
            parts.append(f'{gap}<code id="s{i}-{at}" data-n="{at}">{text}</code>')
            before = at
        return f'<h3>{html.escape(name)}</h3>\n<pre data-file="{html.escape(name)}">{"".join(parts)}</pre>\n'
