"""Writes what a version of Weft wrote, for later versions to read: `python -m tests.compat.make`, before it is bumped.

A run that stopped half way, what it went on to, what `weft eval` said of it, the keys of every JSON that is printed and
the public names. `tests/compat/VERSION/` is committed and never written again.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOMS = "data decode interop models nn optim plan program train".split()
CONFIG = """name = "tiny"
data = {path = "text.txt", held_out = 0.1}
tokenizer = "bytes"
mesh = "rows=2"
layout = "batch:rows"

[model]
preset = "tiny-lm"
vocab = 256
layers = 1
d_model = 4
heads = 1
d_kv = 4
d_ff = 8
dropout = 0.0

[train]
steps = 4
batch = 4
length = 16
log_every = 1

[schedule]
rate = 1e-2

[eval]
every = 0

[checkpoint]
every = 2
"""
ON = ("--mesh", "rows=2,cols=2", "--layout", "batch:rows,hidden:cols")
PRINTED = {
    "show": ("show", "NET", *ON, "--json"),
    "plan": ("plan", "NET", *ON, "--json"),
    "search": ("search", "NET", "--mesh", "rows=2", "--top", "2", "--json"),
    "hardware": ("hardware", "h100", "--json"),
    "eval": ("eval", "run", "--step", "2", "--json"),
    "generate": ("generate", "run", "--step", "2", "--prompt", "the ", "--tokens", "4", "--json"),
}
"""The commands that print JSON, as they are asked here; NET stands for the function below."""
NAMED_BY_USERS = frozenset("mesh communication sources flops choices phases".split())
"""Objects whose keys are axes, dtypes and the like: what lies below is no part of the form."""


def example() -> Any:
    """A small net and its arguments, as `weft show file.py:example` asks for them."""
    import numpy as np

    import weft as wf

    batch, d_io, hidden = wf.dims(batch=8, d_io=4, hidden=16)

    def net(x: Any, w: Any) -> Any:
        return wf.sum(wf.relu(wf.einsum(x, w, over=d_io)), over=[batch, hidden])

    x = wf.tensor(np.ones((8, 4), np.float32), [batch, d_io])
    return net, (x, wf.tensor(np.ones((4, 16), np.float32), [d_io, hidden]))


def keys_of(value: Any, at: str = "") -> Iterator[str]:
    """The paths of all keys in a JSON value; what repeats inside itself stands once.

    >>> sorted(keys_of({"a": [{"b": 1}, {"c": 2}], "mesh": {"rows": 2}}))
    ['.a', '.a[].b', '.a[].c', '.mesh']
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{at}.{key}"
            if key not in NAMED_BY_USERS:
                yield from keys_of(inner, at if at.endswith(f".{key}[]") else f"{at}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, at if at.endswith("[]") else f"{at}[]")


def public_names() -> dict[str, list[str]]:
    """The public names of every room that has some, `wf` itself among them."""
    rooms = {"weft": importlib.import_module("weft")}
    rooms |= {f"weft.{room}": importlib.import_module(f"weft.{room}") for room in ROOMS}
    return {name: sorted(getattr(room, "__all__", [])) for name, room in rooms.items()}


def run(*words: str) -> str:
    """What `weft WORDS` prints, from this process."""
    from weft.cli import app

    words = tuple(f"{Path(__file__)}:example" if word == "NET" else word for word in words)
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        app(list(words), prog_name="weft")
    return printed.getvalue()


def printed_keys(name: str) -> list[str]:
    """The keys of the JSON that a command of `PRINTED` prints."""
    return sorted(set(keys_of(json.loads(run(*PRINTED[name])))))


def main() -> None:
    """Makes the folder of this version."""
    import weft as wf

    folder = HERE / wf.__version__.rpartition(".")[0]
    if folder.exists():
        sys.exit(f"{folder} is there already, and is never written again")
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        Path("text.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 40)
        Path("tiny.toml").write_text(CONFIG)
        run("train", "tiny.toml", "--run", "run")
        rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        judged = json.loads(run(*PRINTED["eval"]))
        written = {name: printed_keys(name) for name in PRINTED} | {"metrics": sorted(set(keys_of(rows)))}
        expected = {"losses": [row["loss"] for row in rows], "eval": judged["loss"], "keys": written}
        folder.mkdir()
        (folder / "expected.json").write_text(json.dumps(expected | {"names": public_names()}, indent=1) + "\n")
        # As if the run had been stopped after two steps: what came later, and what is made anew, is left out.
        Path("run/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
        with zipfile.ZipFile(folder / "run.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in sorted(Path().rglob("*")):
                later = ("run/checkpoints/4", "run/cache", "run/tensorboard", "run/.lock", "run/run.json")
                if path.is_file() and not str(path).startswith(later):
                    packed.write(path, os.fspath(path))


if __name__ == "__main__":
    main()
