"""Chat templates: messages as one text, and where in it the answers stand.

Imports small_files alone. A template is a program that comes with somebody's weights: it runs in a process of its own,
in Jinja's sandbox (`sandbox`).
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..small_files import Reader, is_file, short
from . import sandbox
from .atomic import write_atomic
from .errors import DataError, import_library
from .files import content_key
from .messages import Message

CONFIG, FILE, SPECIALS = "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"
NAMED = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
}
"""Templates by name, for tokenizers that have none."""
Span = tuple[int, int]
_TOKENS = "bos_token eos_token unk_token sep_token pad_token cls_token mask_token".split()
_FIX = 'mend the template, or name another: `template = "chatml"`'


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja's language, with the special tokens that it may name."""

    text: str
    tokens: Mapping[str, str]
    name: str

    @property
    def key(self) -> str:
        """A name for what it writes."""
        return content_key("template", self.text, dict(self.tokens))

    @contextlib.contextmanager
    def running(self) -> Iterator["RunningTemplate"]:
        """While the process runs that the template is run in."""
        import_library("jinja2", f"the chat template of {self.name}")
        command = [sys.executable, "-I", str(Path(sandbox.__file__))]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C in a terminal does not reach it, which would print a traceback
        )
        try:
            yield RunningTemplate(self, process)
        finally:
            process.kill()
            process.communicate()

    def save(self, folder: Path) -> None:
        """Writes it into a folder, from which `open_template` reads it."""
        write_atomic(folder / CONFIG, json.dumps({"chat_template": self.text, **self.tokens}, indent=1).encode())

    @property
    def says_answers(self) -> bool:
        """Whether it marks them itself, by `{% generation %}`."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.text) is not None


class RunningTemplate:
    """A template in its process, which renders chats."""

    def __init__(self, template: ChatTemplate, process: "subprocess.Popen[str]"):
        self.template, self._process = template, process
        asked = {"template": template.text, "tokens": dict(template.tokens), "seconds": sandbox.SECONDS}
        begun = self._ask(asked, "")
        if "error" in begun:
            raise DataError(f"the chat template in {template.name} is no Jinja: {begun['error']}", fix=_FIX)

    def render(self, messages: Sequence[Message], *, for_answer: bool = False, place: str = "the call") -> str:
        """The messages as a text; `for_answer` with what an answer begins after."""
        return self._render(messages, [(len(messages), for_answer)], place)["texts"][0]

    def mark(self, messages: Sequence[Message], answers: str, place: str, since: int = 0) -> tuple[str, list[Span]]:
        """The messages as a text, and which letters of it are answers: all, or the last.

        Messages before `since` are none.

        They are what stands between `{% generation %}` and its end where the template says so. Elsewhere an answer
        begins where the text of the messages before it ends, once that is ready for an answer.
        """
        told = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= since]
        told = told if answers == "all" else told[-1:]
        if self.template.says_answers:
            made = self._render(messages, [(len(messages), False)], place)
            spans = [(begin, end) for begin, end in made["spans"]]
            return made["texts"][0], spans[len(spans) - len(told) :]
        cuts = [(len(messages), False), *(cut for i in told for cut in ((i, True), (i + 1, False)))]
        text, *parts = self._render(messages, cuts, place)["texts"]
        for i, before, after in zip(told, parts[::2], parts[1::2], strict=True):
            if not (text.startswith(before) and text.startswith(after) and len(before) <= len(after)):
                raise DataError(
                    f"where message {i + 1} of the chat in {place} begins and ends cannot be told: "
                    f"{self.template.name} writes it otherwise where more messages follow",
                    fix='learn from last answers alone: `answers = "last"`; or put `{% generation %}` and '
                    "`{% endgeneration %}` around answers in the template",
                )
        return text, [(len(before), len(after)) for before, after in zip(parts[::2], parts[1::2], strict=True)]

    def _render(self, messages: Sequence[Message], cuts: Sequence[tuple[int, bool]], place: str) -> dict[str, Any]:
        asked = {"messages": list(messages), "cuts": cuts, "options": {}}
        made = self._ask(asked, place)
        if "error" in made:
            verb = "refuses" if made["kind"] == "refused" else "fails for"
            fix = 'change the chat as it says, or name another template: `template = "chatml"`'
            raise DataError(
                f"the chat template in {self.template.name} {verb} the chat in {place}: {made['error']}",
                fix=fix if made["kind"] == "refused" else _FIX,
            )
        return made

    def _ask(self, value: Mapping[str, Any], place: str) -> dict[str, Any]:
        """What the process answers to a line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if line.endswith("\n"):
            return json.loads(line)
        status = self._process.wait()
        too_long = status == -getattr(signal, "SIGALRM", 0)
        why = f"it takes more than {sandbox.SECONDS} seconds" if too_long else f"its process ended with status {status}"
        raise DataError(
            f"the chat template in {self.template.name} fails for the chat in {place or 'no file'}: {why}", fix=_FIX
        )


def open_template(said: str | None, tokenizer: Path | str | None = None) -> ChatTemplate:
    """The template of this name, in this file or folder, or beside the tokenizer."""
    if said in NAMED:
        return ChatTemplate(NAMED[str(said)], _tokens_beside(tokenizer), str(said))
    if said is None and tokenizer is None:
        raise DataError(
            "the data are chats, and no template says how they are written",
            fix='say `template = "chatml"` in `data`, or a tokenizer with a tokenizer_config.json',
        )
    place = Path(str(said if said is not None else tokenizer)).expanduser()
    if is_file(place) and place.suffix in (".jinja", ".jinja2", ".txt"):
        return ChatTemplate(_text(place), _tokens_beside(tokenizer), str(place))
    folder = place.parent if is_file(place) else place
    if is_file(file := folder / FILE):
        return ChatTemplate(_text(file), _tokens_in(folder), str(file))
    config = Reader(DataError).json(folder / CONFIG) if is_file(folder / CONFIG) else {}
    text = config.get("chat_template")
    if isinstance(text, list):  # several by name
        named = {str(entry.get("name")): entry.get("template") for entry in text if isinstance(entry, dict)}
        text = named.get("default", next(iter(named.values()), None))
    if not isinstance(text, str):
        raise DataError(
            f"there is no chat template in {short(folder)}",
            state=f"looked for `chat_template` in {CONFIG}, and for {FILE}",
            fix='say `template = "chatml"` in `data`, or the file that holds it',
        )
    return ChatTemplate(text, _tokens_in(folder), str(folder / CONFIG))


def _tokens_beside(tokenizer: Path | str | None) -> dict[str, str]:
    if tokenizer is None:
        return {}
    place = Path(str(tokenizer)).expanduser()
    return _tokens_in(place.parent if is_file(place) else place)


def _tokens_in(folder: Path) -> dict[str, str]:
    """The special tokens that files beside a tokenizer name."""
    found: dict[str, str] = {}
    for name in (SPECIALS, CONFIG):
        values = Reader(DataError).json(folder / name) if is_file(folder / name) else {}
        for key in _TOKENS:
            value = values.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", fix="fetch or write the file again") from None
