"""Chat templates run in a process of their own, which can do little harm.

A template is a program that comes with somebody's weights. Imports nothing of the house: `templates` starts this file
as a program, in Jinja's sandbox, with limits on memory, on the time of a chat, and on files: it can write none. It
reads a line of JSON for each chat and writes one: the texts that were asked for, or what went wrong.
"""

import json
import re
import secrets
import signal
import sys
from collections.abc import Mapping
from typing import Any

MEMORY = 2 << 30
SECONDS = 20  # for one chat
LONGEST = 16 << 20  # letters
_BEGIN, _END = (f"\0{secrets.token_hex(8)}{mark}\0" for mark in "<>")  # no text holds them


def main() -> None:
    """Compiles the template of the first line, and then answers line by line."""
    import jinja2

    asked = json.loads(sys.stdin.readline())
    _limit()
    try:
        template = _environment().from_string(asked["template"])
    except jinja2.TemplateSyntaxError as error:
        _answer({"error": f"{error.message}, in its line {error.lineno}", "kind": "syntax"})
        return
    except Exception as error:
        _answer({"error": _why(error), "kind": "syntax"})
        return
    _answer({})
    for line in sys.stdin:
        try:
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, asked["seconds"])  # nobody handles it: the process ends
            _answer(_render(template, asked["tokens"], json.loads(line)))
        except RefusedByTemplate as error:
            _answer({"error": _why(error), "kind": "refused"})
        except Exception as error:  # a template calls what it likes, and raises as many kinds
            _answer({"error": _why(error), "kind": "failed"})


class RefusedByTemplate(Exception):
    """What a template itself says is wrong with the messages."""


def _render(template: Any, tokens: Mapping[str, str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of some first messages each, and where in the first answers are."""
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    for count, for_answer in asked["cuts"]:
        messages = json.loads(json.dumps(asked["messages"][:count]))  # a template may change them
        values = {**tokens, "messages": messages, "tools": None, "documents": None, **asked["options"]}
        text, marked = _take_marks(template.render(values, add_generation_prompt=for_answer))
        if len(text) > LONGEST:
            raise ValueError(f"it writes {len(text):,} letters")
        spans = spans if texts else marked
        texts.append(text)
    return {"texts": texts, "spans": spans}


def _take_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its marks, and what stood between them."""
    plain, size, spans = [], 0, []
    for i, piece in enumerate(re.split(f"{re.escape(_BEGIN)}|{re.escape(_END)}", text)):
        if i % 2:
            spans.append((size, size + len(piece)))
        plain.append(piece)
        size += len(piece)
    return "".join(plain), spans


def _environment() -> Any:
    """Jinja's sandbox as templates of chats expect it."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag `{% generation %}` around an answer."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    class Namespace(jinja2.utils.Namespace):
        """A namespace without the names that Python keeps for itself."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace keeps no {name!r}")
            super().__setitem__(name, value)

    def refuse(message: Any) -> None:
        raise RefusedByTemplate(str(message))

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    # There is no `strftime_now`: data must not be others tomorrow. Templates say what they write without it.
    made.globals |= {"raise_exception": refuse, "namespace": Namespace, "dict": lambda *a, **more: dict(*a, **more)}
    return made


def _limit() -> None:
    """Limits what this process may hold and write, where the system can."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(kind, (most, most))


def _why(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _answer(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
