"""Ways to break a file, each with a name: bits and bytes of anything, and tokens of texts (JSON, TOML, layouts).

A mutator is a function of a random generator and of bytes. It need not make the file wrong.
"""

import random
import re
from collections.abc import Callable

Mutator = Callable[[random.Random, bytes], bytes]
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[-+]?\d[\w.+-]*|[A-Za-z_][\w.]*|[\[\]{}:=,|+]')


def flip(rng: random.Random, content: bytes) -> bytes:
    """One to eight bits are others."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    """The end, the beginning or something in the middle is gone."""
    begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return rng.choice([content[:begin], content[end:], content[:begin] + content[end:]])


def splice(rng: random.Random, content: bytes) -> bytes:
    """A piece of it stands in another place, too."""
    begin = rng.randrange(len(content) + 1)
    piece = content[begin : begin + rng.choice([1, 4, 16, 200])]
    at = rng.randrange(len(content) + 1)
    over = rng.choice([0, len(piece)])
    return content[:at] + piece * rng.choice([1, 1, 1, 50]) + content[at + over :]


def overwrite(rng: random.Random, content: bytes) -> bytes:
    """Zeros, ones or anything over a piece of it, or between."""
    size = rng.choice([1, 2, 4, 8, 64])
    filled = rng.choice([b"\0" * size, b"\xff" * size, b"\x7f" * size, rng.randbytes(size), b" " * size, b"\n" * size])
    at = rng.randrange(len(content) + 1)
    return content[:at] + filled + content[at + rng.choice([0, size]) :]


def _on_token(replacement: Callable[[random.Random, bytes], bytes]) -> Mutator:
    def mutate(rng: random.Random, content: bytes) -> bytes:
        tokens = list(TOKEN.finditer(content))
        if not tokens:
            return replacement(rng, content)
        token = rng.choice(tokens)
        return content[: token.start()] + replacement(rng, token[0]) + content[token.end() :]

    return mutate


def _deep(rng: random.Random, token: bytes) -> bytes:
    depth = rng.choice([2, 65, 130, 1000, 20_000])
    begin, end = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"(", b")")])
    return begin * depth + token + end * rng.choice([0, depth])


def _number(rng: random.Random, token: bytes) -> bytes:
    numbers = [b"0", b"-1", b"1.5", b"1e308", b"1e999", b"-1e999", b"NaN", b"nan", b"inf", b"Infinity", b"1e-400"]
    large = [b"%d" % (2**n + d) for n in (7, 8, 15, 16, 31, 32, 33, 53, 62, 63, 64) for d in (-1, 0, 1)]
    long = [b"9" * n for n in (25, 41, 401, 4301, 30_000)] + [b"0x" + b"f" * 300, b"0." + b"1" * 400, b"-" + b"7" * 39]
    return rng.choice([*numbers, *large, *long])


def _type(rng: random.Random, token: bytes) -> bytes:
    return rng.choice(
        [b"null", b"true", b"false", b"[]", b"{}", b'""', b"''", b'"a"', b"a", b"[1]", b'["a"]', b'{"a": 1}', b"[[]]",
         b"3", b"-3", b"1979-05-27", b"07:32:00", b"\"\"\"", b"#"]
    )  # fmt: skip


def _letters(rng: random.Random, token: bytes) -> bytes:
    """Half characters, control characters, and what is not UTF-8."""
    escaped = [b"\\ud800", b"\\udc00x", b"\\ud83d\\ude00", b"\\u0000", b"\\", b'\\"']
    plain = [b"\0", b"\xed\xa0\x80", b"\xff", b"\xc3", b"\xe2\x80\xa8", b"\r", b"\x1b[31m", "é".encode(), "💥".encode()]
    odd = [*escaped, *plain, b"../..", b"/", b"~", b"%s", b"{0}"]
    letters = rng.choice(odd)
    return token[:1] + letters + token[1:] if rng.random() < 0.7 else b'"' + letters + b'"'


def _long(rng: random.Random, token: bytes) -> bytes:
    size = rng.choice([64, 255, 256, 300, 5000, 70_000])
    name = rng.choice([b"n", b"a.", b"a/", "é".encode(), b"0"]) * size
    return rng.choice([name, b'"' + name + b'"'])


def twice(rng: random.Random, content: bytes) -> bytes:
    """A line, or what stands between two commas, is there twice; or lines change places."""
    mark = rng.choice([b"\n", b",", b", "])
    parts = content.split(mark)
    at = rng.randrange(len(parts))
    if rng.random() < 0.7:
        parts.insert(rng.randrange(len(parts) + 1), parts[at])
    else:
        rng.shuffle(parts)
    return mark.join(parts)


def many(rng: random.Random, content: bytes) -> bytes:
    """Several others, one after the other."""
    for _ in range(rng.randrange(2, 6)):
        content = rng.choice([*BYTES.values(), *TEXT.values()])(rng, content)
    return content


BYTES: dict[str, Mutator] = {"flip": flip, "cut": cut, "splice": splice, "overwrite": overwrite}
TEXT: dict[str, Mutator] = {
    "deep": _on_token(_deep),
    "number": _on_token(_number),
    "type": _on_token(_type),
    "letters": _on_token(_letters),
    "long": _on_token(_long),
    "twice": twice,
}
ALL: dict[str, Mutator] = {**BYTES, **TEXT, "many": many}
