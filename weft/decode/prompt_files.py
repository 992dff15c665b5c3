"""Prompts of a file continued into another, batch by batch, and gone on with.

Imports the data and decoding. A line of the one, an object with a `prompt`, becomes a line of the other: the same
object with what was written. A line counts once it is whole: what a crash left of the last is cut off when it goes on.
Batches are the same wherever it goes on from, and so is what is drawn.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.files import lines
from ..data.resumable import ResumableLines
from ..small_files import is_text
from .continuation import Continued
from .translate import DecodingError

Record = dict[str, Any]


@dataclass(frozen=True)
class PromptFile:
    """A file with a prompt a line, and the file that they are continued into."""

    source: Path
    target: Path
    samples: int = 1

    @functools.cached_property
    def records(self) -> list[Record]:
        """The objects of all lines; blank ones are none."""
        if self.target.exists() and self.source.exists() and self.target.samefile(self.source):
            raise DecodingError(f"{self.target} is the file of prompts itself", fix="name another file with --out")
        records = [_check_prompt(self.source, *each) for each in read_objects(self.source)]
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
        with ResumableLines(self.target, self._is_of, f"the prompts in {self.source}") as file:
            done = len(file.done)
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


_WRITTEN = ("text", "tokens", "is_ended", "samples")


def read_objects(path: Path) -> Iterator[tuple[int, Record]]:
    """The objects of a file of JSON lines, each with the number of its line."""
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = "nested too deep" if isinstance(error, RecursionError) else error
            raise DecodingError(f"{path}:{number} is not JSON: {why}", fix="mend the line") from None
        if not isinstance(record, dict):
            raise DecodingError(f"{path}:{number} is a {type(record).__name__}", fix="write an object a line")
        yield number, record


def _check_prompt(path: Path, number: int, record: Record) -> Record:
    """The object of a line, if it has a prompt."""
    prompt = record.get("prompt")
    if isinstance(prompt, str) and is_text(prompt):
        return record
    has = "no `prompt`" if "prompt" not in record else f"a `prompt` that is {prompt!a:.40}"
    raise DecodingError(f"{path}:{number} has {has}", fix='write a line for each: `{"prompt": "..."}`')
