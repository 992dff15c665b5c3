"""Small runs for tests: pairs whose translation is the same text in capitals, and a text to continue."""

import contextlib
import itertools
import random
from pathlib import Path

import jax

from weft import data, models
from weft.train import Run
from weft.train.config import read
from weft.train.trainer import Trainer

SIZES = {"vocab": 259, "layers": 1, "d_model": 32, "heads": 4, "d_kv": 8, "d_ff": 64, "dropout": 0.0}


class Quiet:
    """A listener that keeps what it hears."""

    def __init__(self):
        self.heard, self.rows = [], []

    def say(self, text):
        self.heard.append(text)

    def log(self, row):
        self.rows.append(row)

    def progress(self, what, done, whole): ...

    def stage(self, what):
        return contextlib.nullcontext()

    def step(self, at, steps): ...


def pairs(count, seed=0):
    """Short lines of letters and the same in capitals; no two are the same."""
    every = [" ".join(letters) for size in (3, 4, 5) for letters in itertools.product("abcd", repeat=size)]
    return [(line, line.upper()) for line in random.Random(seed).sample(every, count)]


def pairs_file(folder, count=1000):
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{one}\t{other}\n" for one, other in pairs(count)))
    return path


def text_file(folder):
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat\n" * 40)
    return path


def trained(folder, kind, path, *changes):
    """A run of a tiny model, trained on a file; and what was heard of it."""
    model = {"seq2seq": "tiny-mt", "lm": "tiny-lm", "encoder": "tiny-bert"}[kind]
    lines = [f'model = {{preset = "{model}", {", ".join(f"{name} = {size}" for name, size in SIZES.items())}}}']
    lines += [f'data = {{path = "{path}", held_out = 0.05}}', "train = {steps = 3, batch = 16, length = 32}"]
    lines += ["checkpoint = {every = 1}", "eval = {every = 0}", "schedule = {rate = 1e-2}"]
    config = Path(folder) / "config-as-written.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("\n".join(lines))
    quiet = Quiet()
    Trainer(read(config, changes), Path(folder) / "run", quiet).run()
    return Run(Path(folder) / "run"), quiet


def untrained(folder, preset):
    """A run of a tiny model as it begins, with the tokenizer of bytes that pairs have."""
    run = Run.create(folder, models.init(models.preset(preset, length=32, **SIZES), jax.random.key(0)))
    data.ByteTokenizer(specials=True).save(folder)
    return run
