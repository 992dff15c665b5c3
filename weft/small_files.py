"""Small files of JSON and TOML, read with limits on size, depth and digits.

Imports checks and errors alone. Whatever is in such a file, the outcome is plain values of the shape that was asked
for, or an error of the caller's kind that names the file, the place in it where that is known, and the fix.
"""

import json
import os
import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import is_real, is_whole
from .errors import WeftError

MOST_BYTES = {"JSON": 64 << 20, "TOML": 1 << 20}
DEEPEST = 64
MOST_DIGITS = 40  # of a whole number; Hugging Face writes 10**30 for "no limit"
_LARGEST = 10**MOST_DIGITS
_MOST_DOTS = 256  # in a line of TOML: what a dotted key takes to read grows with their square
SUM = "sum"
_KINDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "an object", list: "a list",
    None: "null",
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """Reads small files; what is wrong is an error of this kind, with this fix."""

    error: type[WeftError]
    fix: str = "fetch or write the file again"

    def json(self, path: Path, shape: Any = dict) -> Any:
        """What a file of JSON holds, if it has the shape."""
        value = self.parse_json(self._text(path, "JSON"), str(path))
        self.check(value, shape, str(path))
        return value

    def parse_json(self, text: str | bytes, where: str) -> Any:
        """What a text of JSON holds; no key stands twice in an object."""
        try:
            value = json.loads(text, object_pairs_hook=_without_repeats)
        except _RepeatedKey as error:
            raise self._wrong(f"{where} has the key {str(error)!a:.60} twice in one object") from None
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"{where} is not JSON: {_why(error)}") from None
        self.check_limits(value, where)
        return value

    def summed_json(self, path: Path, shape: Any = dict, *, older: frozenset[str] = frozenset()) -> dict[str, Any]:
        """What `summed` made of an object, without its checksum, which is compared.

        A file without a sum, and with none but these `older` keys, was written before there were sums.
        """
        return self.parse_summed(self._text(path, "JSON"), str(path), shape, older=older)

    def parse_summed(
        self, text: str | bytes, where: str, shape: Any = dict, *, older: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """What a text of `summed` holds, as `summed_json` reads it of a file."""
        value = self.parse_json(text, where)
        self.check(value, dict, where)
        wanted = value.pop(SUM, None)
        if wanted is None and not (older and value.keys() <= older):
            raise self._wrong(f"{where} has no sum of its bits")
        if wanted is not None and wanted != _sum_of(value):
            raise self._wrong(f"{where} is not what was written: the sum of its bits is another")
        self.check(value, shape, where)
        return dict(value)

    def toml(self, path: Path) -> tuple[dict[str, Any], str]:
        """What a file of TOML holds, and its text."""
        text = self._text(path, "TOML")
        return self.parse_toml(text, str(path)), text

    def parse_toml(self, text: str, where: str) -> dict[str, Any]:
        """What a text of TOML holds."""
        for number, line in enumerate(text.split("\n"), 1):
            if line.count(".") > _MOST_DOTS:
                raise self._wrong(f"{where} has {line.count('.'):,} dots in line {number}", at=f"{where}:{number}")
        try:
            value = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # numbers of too many digits are no TOMLDecodeError
            line = f":{place[1]}" if (place := re.search(r"at line (\d+)", str(error))) else ""
            raise self._wrong(f"{where} is not TOML: {_why(error)}", at=f"{where}{line}") from None
        self.check_limits(value, where)
        return value

    def check_limits(self, content: Any, where: str) -> None:
        """Raises for values nested too deep, too many digits, and text that is none."""
        for path, depth, value in () if _is_within_limits(content) else _walk(content):
            inside = f" (at `{path[:60]}`)" if path else ""
            if depth > DEEPEST:
                raise self._wrong(f"{where} is nested more than {DEEPEST} deep")
            if isinstance(value, int) and abs(value) >= _LARGEST:
                raise self._wrong(f"{where} has a number of more than {MOST_DIGITS} digits{inside}")
            if isinstance(value, str) and not is_text(value):
                raise self._wrong(f"{where} has a text with half a character, {value[:20]!a}{inside}")

    def check(self, content: Any, shape: Any, where: str) -> None:
        """Raises unless a value has a shape.

        A shape is a type, None, a tuple of shapes of which one will do, `[shape]` for a list, `{str: shape}` for an
        object with any keys, or an object that names its keys; a key may be missing where its value may be null.
        """
        if wrong := _misfit(content, shape):
            path, value, wanted = wrong
            named = f"`{path}` in {where}" if path else where
            is_missing = value is _MISSING
            is_object = isinstance(value, dict | list)
            held = "is missing" if is_missing else f"is {_KINDS[type(value)]}" if is_object else f"is {value!r:.60}"
            raise self._wrong(f"{named} {held}, and {wanted} is due")

    def _text(self, path: Path, kind: str) -> str:
        try:
            with open(path, "rb") as file:
                content = file.read(MOST_BYTES[kind] + 1)
        except FileNotFoundError:
            raise self._wrong(f"there is no {path}") from None
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            why = getattr(error, "strerror", None) or error
            raise self._wrong(f"{short(path)} cannot be read: {why}") from None
        if len(content) > MOST_BYTES[kind]:
            raise self._wrong(f"{path} has more than {MOST_BYTES[kind] >> 20} MiB, too much for a small file of {kind}")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            bad = content[error.start : error.end]
            at = (
                f"{path}:{line}" if kind == "TOML" else None
            )  # what the user wrote; JSON is read by some line of theirs
            raise self._wrong(f"{path}:{line} is not {kind}: {bad!r} is no UTF-8", at=at) from None

    def _wrong(self, fact: str, *, at: str | None = None) -> WeftError:
        return self.error(fact, fix=self.fix, at=at)


def summed(values: Mapping[str, Any]) -> bytes:
    """An object as JSON with a sum of its bits, which `Reader.summed_json` reads."""
    assert SUM not in values
    return json.dumps({**values, SUM: _sum_of(values)}).encode()


def _sum_of(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return os.path.isfile(path)
    except (OSError, ValueError):
        return False


def short(name: object) -> str:
    """A name as errors show it: the middle of a very long one is left out.

    >>> short("a" * 300)
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaa'
    """
    text = str(name)
    return text if len(text) <= 160 else f"{text[:60]}...{text[-20:]}"


class _RepeatedKey(Exception):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        raise _RepeatedKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return values


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"it is nested more than {DEEPEST} deep"
    if "digits" in str(error):
        return f"it has a number of more than {MOST_DIGITS} digits"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _is_within_limits(value: Any) -> bool:
    """Whether `_walk` would find nothing to complain about; much faster."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if not is_text(value):
                    return False
            elif isinstance(value, int):
                if not -_LARGEST < value < _LARGEST:
                    return False
            elif isinstance(value, dict):
                if not all(map(is_text, value)):
                    return False
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return True
        level = inner
    return False


def _walk(value: Any) -> Iterator[tuple[str, int, Any]]:
    """Every value and key inside a value, with its path and depth, without recursion."""
    left = [("", 0, value)]
    while left:
        path, depth, value = left.pop()
        yield path, depth, value
        if depth > DEEPEST:
            continue
        if isinstance(value, dict):
            for key, inner in value.items():
                yield path, depth, key
                left.append((f"{path}.{key}" if path else key, depth + 1, inner))
        elif isinstance(value, list):
            left += [(path, depth + 1, inner) for inner in value]


_MISSING = object()


def _misfit(value: Any, shape: Any, path: str = "") -> tuple[str, Any, str] | None:
    """The path, value and wanted shape of what does not fit, if something does not."""
    if isinstance(shape, tuple):
        misfits = [_misfit(value, each, path) for each in shape]
        if None in misfits:
            return None
        deepest = max((found for found in misfits if found), key=lambda found: len(found[0]))
        return deepest if deepest[0] != path else (path, value, " or ".join(_KINDS[_kind(each)] for each in shape))
    kind = _kind(shape)
    if kind in (int, float):
        fits = is_whole(value) if kind is int else is_real(value)
    else:
        fits = value is None if kind is None else isinstance(value, kind)
    if not fits:
        return path, value, _KINDS[kind]
    if isinstance(shape, list):
        inner = [(f"{path}[{place}]", each, shape[0]) for place, each in enumerate(value)]
    elif isinstance(shape, dict):
        inner = _inner(value, shape, path)
    else:
        return None
    return next((found for place, each, wanted in inner if (found := _misfit(each, wanted, place))), None)


def _kind(shape: Any) -> Any:
    return type(shape) if isinstance(shape, dict | list) else shape


def _inner(value: dict[str, Any], shape: dict[Any, Any], path: str) -> list[tuple[str, Any, Any]]:
    before = f"{path}." if path else ""
    if str in shape:
        return [(f"{before}{key}", each, shape[str]) for key, each in value.items()]
    may_miss = {key for key, wanted in shape.items() if isinstance(wanted, tuple) and None in wanted}
    return [
        (f"{before}{key}", value.get(key, _MISSING), wanted)
        for key, wanted in shape.items()
        if key in value or key not in may_miss
    ]
