"""How fast data are tokenised and served, in tokens a second; nothing of it needs an accelerator.

By default the text is Python's own standard library and the pairs are its neighbouring lines, so that the figures can
be had anywhere; `--text` and `--pairs` (a stem, with `--source` and `--target`) take others. Serving is timed alone and
with the batches put on the device, beside a step that takes no time: what a real step can at most ask for.
"""

import argparse
import contextlib
import itertools
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from weft import data

LENGTH, BATCH, VOCAB = 1024, 64, 8_000


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def report(what: str, tokens: float, seconds: float) -> None:
    print(f"{what:58} {tokens / seconds / 1e6:10.2f} M tokens/s   ({tokens / 1e6:.1f} M in {seconds:.2f} s)")


def serve(what: str, dataset: data.Dataset, seconds: float, full: float = 1.0) -> None:
    """Times batches as they are made, as a thread makes them ahead, and as they come to the device.

    `full` is how much of a row is tokens, not padding.
    """

    def count(batch: dict[str, Any]) -> int:
        return int(batch["targets"].size) + (int(batch["inputs"].size) if "target_segments" in batch else 0)

    def run(how: str, found: Iterator[dict[str, Any]]) -> None:
        next(found)
        begin, tokens = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            tokens += count(next(found))
        report(f"{what}, {how}", tokens * full, time.perf_counter() - begin)

    run("made when asked for", map(data.Batches(dataset, batch=BATCH).at, itertools.count()))
    for how, more in (("read ahead", {}), ("on the device", {"put": jax.device_put})):
        with contextlib.closing(data.Batches(dataset, batch=BATCH, **more)) as batches:
            run(how, batches)


def neighbouring_lines(path: Path) -> data.Source:
    """Lines of the standard library, each with the one after it, as pairs."""
    lines = [
        line.strip().replace("\t", " ") for text in data.open_source("python").texts() for line in text.split("\n")
    ]
    lines = [line for line in lines if line][:200_000]
    pairs = zip(lines[::2], lines[1::2], strict=False)
    path.write_text("".join(f"{one}\t{other}\n" for one, other in pairs), encoding="utf-8")
    return data.open_source(path)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="python", help="a file or folder")
    parser.add_argument("--pairs", help="the files of pairs without their last ending")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="fr")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long serving is timed")
    told = parser.parse_args(arguments)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {jax.devices()[0].device_kind}"
    )
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, JAX {jax.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        text = data.open_source({"path": told.text, "held_out": 0})
        for kind in ("bytes", "sentencepiece"):
            spec = {"kind": kind} | ({"vocab": VOCAB, "model": "bpe"} if kind == "sentencepiece" else {})
            tokenizer, seconds = timed(lambda: data.open_tokenizer(spec, text, cache))  # noqa: B023
            if kind == "sentencepiece":
                print(f"learning {VOCAB} pieces: {seconds:.1f} s")
            dataset, seconds = timed(lambda: data.lm_dataset(text, tokenizer, length=LENGTH, cache=cache))  # noqa: B023
            report(f"tokenising, {kind}", dataset.tokens, seconds)
        serve(f"windows of {LENGTH}, {BATCH} a batch", dataset, told.seconds)
        pairs = neighbouring_lines(cache / "pairs.tsv")
        if told.pairs:
            pairs = data.open_source({"path": told.pairs, "source": told.source, "target": told.target})
        shared = data.open_tokenizer({"kind": "sentencepiece", "vocab": VOCAB, "model": "bpe"}, pairs, cache)
        packed, seconds = timed(lambda: data.pair_dataset(pairs, shared, length=LENGTH // 4, cache=cache))
        report("tokenising and packing pairs", packed.tokens, seconds)
        full = packed.tokens / len(packed) / (LENGTH // 2)
        print(f"rows of pairs are full to {full:.1%}")
        serve(f"packed pairs of {LENGTH // 4}, {BATCH} a batch", packed, told.seconds, full)


if __name__ == "__main__":
    main(sys.argv[1:])
