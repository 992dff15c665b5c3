"""Prompts of a file continued into another, batch by batch, and gone on with.

Imports the data and decoding. A line of the one, an object with a `prompt`, becomes a line of the other: the same
object with what was written. A line counts once it is whole: what a crash left of the last is cut off when it goes on.
Batches are the same wherever it goes on from, and so is what is drawn. How the lines are made is kept in a file beside
them: those of other weights or options are not gone on with.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.atomic import write_atomic
from ..data.files import lines
from ..data.records import json_records
from ..data.resumable import ResumableLines
from ..small_files import Reader, is_text, summed
from .continuation import Continued
from .translate import DecodingError

Record = dict[str, Any]


@dataclass(frozen=True)
class PromptFile:
    """A file with a prompt a line, and the file that they are continued into."""

    source: Path
    target: Path
    samples: int = 1
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """What the texts depend on beside their prompts, by name: options, and what says which weights they are of."""

    @functools.cached_property
    def records(self) -> list[Record]:
        """The objects of all lines; blank ones are none."""
        if self.target.exists() and self.source.exists() and self.target.samefile(self.source):
            raise DecodingError(f"{self.target} is the file of prompts itself", fix="name another file with --out")
        rows = json_records(self.source, lines(self.source), error=DecodingError, example='{"prompt": "..."}')
        records = [_check_prompt(self.source, *row) for row in rows]
        if not records:
            raise DecodingError(
                f"there is no prompt in {self.source}", fix='write a line for each: `{"prompt": "..."}`'
            )
        return records

    def run(self, batch: int, go_on: Callable[[int, list[str]], Sequence[Continued]]) -> Iterator[int]:
        """Continues what is not there yet; gives how many lines are done.

        `go_on` is given a batch's number and its prompts, always as many.
        """
        records = self.records
        self._check_made_alike()
        with ResumableLines(self.target, self._is_of, f"the prompts in {self.source}") as file:
            done = len(file.done)
            if not done:
                self._keep_made_by()
            yield done
            for number in range(done // batch, -(-len(records) // batch)):
                some = records[number * batch : (number + 1) * batch]
                prompts = [record["prompt"] for record in some]
                texts = go_on(number, [*prompts, *[prompts[-1]] * (batch - len(some))])
                new = [
                    self._line(record, texts[place * self.samples : (place + 1) * self.samples])
                    for place, record in enumerate(some)
                ]
                file.add(new[done - number * batch :])
                done = number * batch + len(some)
                yield done

    @property
    def _beside(self) -> Path:
        return self.target.with_name(self.target.name + OPTIONS)

    def _check_made_alike(self) -> None:
        """Raises where there are lines that were made with other options."""
        if not self.target.is_file() or next(iter(self.target.open("rb")), b"")[-1:] != b"\n":
            return
        fix = "name another file with --out, or remove this one to begin anew"
        if not self._beside.exists():
            fact = f"{self.target} has lines, and with which options they were made is not known: no {self._beside}"
            raise DecodingError(fact, fix=fix)
        before = Reader(DecodingError, fix=fix).summed_json(self._beside, {"made_by": dict})["made_by"]
        now = json.loads(json.dumps(self.made_by))
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if names:
            changes = "; ".join(f"{name} was {_show(before.get(name))} and is {_show(now.get(name))}" for name in names)
            raise DecodingError(f"{self.target} was begun otherwise: {changes}", fix=f"say the same again, {fix}")

    def _keep_made_by(self) -> None:
        try:
            write_atomic(self._beside, summed({"made_by": dict(self.made_by)}))
        except OSError as error:
            raise DecodingError(
                f"{self._beside} cannot be written: {error.strerror}", fix="name another file with --out"
            ) from None

    def _is_of(self, number: int, line: bytes) -> bool:
        """Whether a line is what a prompt became."""
        if number >= len(self.records):
            return False
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return False
        record = self.records[number]
        is_whole = isinstance(found, dict) and ("samples" if self.samples > 1 else "text") in found
        return is_whole and all(found.get(key) == value for key, value in record.items() if key not in _WRITTEN)

    def _line(self, record: Record, texts: Sequence[Continued]) -> str:
        written = [{"text": text.text, "tokens": text.tokens, "is_ended": text.is_ended} for text in texts]
        more: Record = written[0] if self.samples == 1 else {"samples": written}
        return json.dumps({**record, **more}, ensure_ascii=False)


OPTIONS = ".options.json"  # after the name of the file of texts
_WRITTEN = ("text", "tokens", "is_ended", "samples")


def _show(value: Any) -> str:
    return "not said" if value is None else f"{value}"


def _check_prompt(path: Path, number: int, record: Record) -> Record:
    """The object of a line, if it has a prompt."""
    prompt = record.get("prompt")
    if isinstance(prompt, str) and is_text(prompt):
        return record
    has = "no `prompt`" if "prompt" not in record else f"a `prompt` that is {prompt!a:.40}"
    raise DecodingError(f"{path}:{number} has {has}", fix='write a line for each: `{"prompt": "..."}`')
