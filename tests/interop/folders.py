"""What the tests of weights share: the fixtures, copies of them with something changed, and what is in a folder."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from weft import interop

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("gpt2", "llama", "llama-tied", "mt5", "switch", "t5", "t5.1.1", "umt5")
METADATA = {"format": "pt"}

# Logits are sums of 16 to 100 products of order 1 through four layers; float32 rounds each by 1e-7.
TOLERANCE = 1e-4


@functools.cache
def expected(name):
    return dict(np.load(FIXTURES / name / "expected.npz"))


def logits(model, given):
    """The logits of the words there are, without the padding of the vocab."""
    args = [given["tokens"]] if "tokens" in given else [given["inputs"], given["targets_in"]]
    return np.asarray(model.logits(*args).array)[..., : model.config.vocab]


def tensors(folder):
    """Every tensor of a folder, from however many files."""
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        found |= load_file(file)
    return found


def same_bits(a, b):
    """Whether two dicts of arrays hold the same names, dtypes, shapes and bits."""
    return set(a) == set(b) and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
        for name in a
    )


def config(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def changed(tmp_path, name, *, keys=None, without=(), change=None, cast=None):
    """A copy of a fixture: some keys of its config set or gone, its tensors as `change` and `cast` make them."""
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    written = {key: value for key, value in (config(FIXTURES / name) | (keys or {})).items() if key not in without}
    (folder / "config.json").write_text(json.dumps(written))
    found = tensors(FIXTURES / name)
    if change is not None:
        change(found)
    if cast is not None:
        found = {key: value.astype(cast(key)) for key, value in found.items()}
    save_file(found, folder / "model.safetensors", METADATA)
    return folder


def sharded(tmp_path, name, count=3):
    """A copy of a fixture in several files with an index."""
    folder = tmp_path / f"{name}-sharded"
    folder.mkdir()
    shutil.copy(FIXTURES / name / "config.json", folder)
    found = sorted(tensors(FIXTURES / name).items())
    weight_map = {}
    for i in range(count):
        file = f"model-{i + 1:05}-of-{count:05}.safetensors"
        part = dict(found[i::count])
        save_file(part, folder / file, METADATA)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@functools.cache
def loaded(name):
    """A fixture as it is, on one processor."""
    return interop.load(FIXTURES / name)
