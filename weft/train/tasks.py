"""Tasks of a harness: multiple choice and cloze, with few-shot examples.

Imports the data. A task is an object a line: a context and what may follow it, `choices`, one of which is the `answer`,
or a `target` (cloze). What follows is joined to the context by a `delimiter`, a blank unless said, as
lm-evaluation-harness does.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import is_whole
from ..data import Tokenizer
from ..data.files import lines
from ..data.records import json_records
from ..errors import closest
from ..small_files import is_text
from .evaluation import EvaluationError

_KEYS = ("task", "id", "context", "choices", "answer", "target", "delimiter")
BETWEEN = "\n\n"  # between examples


@dataclass(frozen=True)
class Question:
    """A question to a model: which of some texts follows a context."""

    name: str
    context: str
    choices: tuple[str, ...]
    """Of a cloze, the target alone."""
    answer: int
    delimiter: str
    is_cloze: bool

    @property
    def as_example(self) -> str:
        """The context with what is right."""
        return self.context + self.delimiter + self.choices[self.answer]

    def key(self, *more: Any) -> str:
        """A hash of all in it, and of what else decides its result."""
        parts = (self.name, self.context, self.choices, self.answer, self.delimiter, self.is_cloze, *more)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_tasks(path: Path) -> list[Question]:
    """The tasks in a file, in order."""
    rows = json_records(path, lines(path), error=EvaluationError, example='{"context": "...", "choices": [...]}')
    tasks = [_read(record, f"{path}:{number}", path.stem) for number, record in rows]
    if not tasks:
        raise EvaluationError(f"there is no task in {path}", fix=_FORM)
    return tasks


_FORM = 'write a line for each: `{"context": "...", "choices": ["...", "..."], "answer": 0}`, or with a `target`'


def _read(record: dict[str, Any], where: str, name: str) -> Question:
    if (unknown := next((key for key in record if key not in _KEYS), None)) is not None:
        raise EvaluationError(f"{where} has `{unknown}`, which says nothing of a task", fix=closest(unknown, _KEYS))
    texts: dict[str, Any] = {"context": record.get("context")}
    texts |= {"delimiter": record.get("delimiter", " "), "task": record.get("task", name)}
    if odd := next((key for key, value in texts.items() if not isinstance(value, str) or not is_text(value)), None):
        what = f"no `{odd}`" if odd not in record else f"a `{odd}` that is {record[odd]!a:.40}"
        raise EvaluationError(f"{where} has {what}", fix=_FORM)
    if ("choices" in record) == ("target" in record):
        both = "both `choices` and `target`" if "target" in record else "neither `choices` nor `target`"
        raise EvaluationError(f"{where} has {both}", fix=_FORM)
    choices = [record["target"]] if "target" in record else record["choices"]
    is_list = isinstance(choices, list) and len(choices) > (0 if "target" in record else 1)
    if not is_list or not all(isinstance(each, str) and each.strip() and is_text(each) for each in choices):
        key = "target" if "target" in record else "choices"
        raise EvaluationError(f"{where} has `{key}` that are {record[key]!a:.60}", fix="give texts that are not empty")
    answer = 0 if "target" in record else record.get("answer")
    if not is_whole(answer, 0) or answer >= len(choices):
        fix = f"say which of the {len(choices)} choices is right, from 0 on"
        raise EvaluationError(f"{where} has an `answer` that is {answer!r:.40}", fix=fix)
    return Question(
        texts["task"], texts["context"], tuple(choices), int(answer), texts["delimiter"], "target" in record
    )


def prefixes(tasks: Sequence[Question], examples: Sequence[Question], shots: int) -> list[str]:
    """What stands before each task's context: the first `shots` examples of its name.

    Where a task is an example itself, the next one stands in its place.
    """
    by_name: dict[str, list[Question]] = {}
    for example in examples:
        by_name.setdefault(example.name, []).append(example)
    found = []
    for task in tasks:
        others = [other for other in by_name.get(task.name, [])[: shots + 1] if other != task][:shots]
        if len(others) < shots:
            fact = f"`{task.name}` has {len(others)} examples beside the task itself, and {shots} were asked for"
            raise EvaluationError(fact, fix="ask for fewer with --shots, or give more with --examples")
        found.append("".join(other.as_example + BETWEEN for other in others))
    return found


@dataclass(frozen=True)
class Request:
    """Ids before and ids whose log-probability is asked for, after at least one."""

    before: list[int]
    asked: list[int]


def encode(tokenizer: Tokenizer, prefix: str, task: Question, begin: int | None, ending: int) -> list[Request]:
    """The request of each choice; `begin` comes first, or `ending` of no context.

    Blanks at the context's end are the choice's, and a choice is what its tokens add to those of the context.
    """
    context = prefix + task.context
    kept = context.rstrip()
    before = tokenizer.encode(kept) if kept else []
    requests = []
    for choice in task.choices:
        whole = tokenizer.encode(kept + context[len(kept) :] + task.delimiter + choice)
        asked = whole[min(len(before), len(whole) - 1) :]
        first = [begin] if begin is not None else [] if before else [ending]
        requests.append(Request([*first, *before], asked))
    return requests
