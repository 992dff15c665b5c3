"""What earlier versions wrote is read, and what they promised is still there: `docs/compatibility.md`."""

import importlib
import json
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.train.steps import compile_each_step_once  # noqa: F401  (a fixture)
from weft import models
from weft.train import Run

from .make import PRINTED, keys_of, printed_keys, run

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "run.zip").is_file())
OF_RUNS = ("eval", "generate")
ROUNDING = 1e-4  # of a loss of a few sums of some thousand floats, in another order by another XLA


@pytest.fixture(params=VERSIONS)
def expected(request, tmp_path, monkeypatch):
    """What a version expects of those after it; its run lies in the working directory."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(HERE / request.param / "run.zip") as packed:
        packed.extractall()
    return json.loads((HERE / request.param / "expected.json").read_text())


def test_the_first_version_is_held_to():
    assert "0.1" in VERSIONS


def test_a_run_of_an_earlier_version_is_read(expected):
    opened = Run("run")
    model = opened.load(step=2)
    assert models.fields(model.config) == models.fields(opened.settings.sized_model)
    leaves = jax.tree.leaves(model)
    assert sum(leaf.size for leaf in leaves) == model.config.param_count
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves)


def test_public_names_of_an_earlier_version_are_there(expected):
    gone = {
        f"{room}.{name}"
        for room, names in expected["names"].items()
        for name in names
        if not hasattr(importlib.import_module(room), name)
    }
    assert not gone, f"removed without a deprecation: {sorted(gone)} (docs/compatibility.md)"


@pytest.mark.parametrize("name", [name for name in PRINTED if name not in OF_RUNS])
def test_json_keeps_its_keys(name, expected):
    gone = set(expected["keys"][name]) - set(printed_keys(name))
    assert not gone, f"`weft {name} --json` lost {sorted(gone)}: keep them, or raise its `version`"


@pytest.mark.slow
def test_a_run_of_an_earlier_version_is_judged_and_goes_on(expected):
    judged = json.loads(run(*PRINTED["eval"]))
    assert judged["loss"] == pytest.approx(expected["eval"], rel=ROUNDING)
    assert set(expected["keys"]["eval"]) <= set(keys_of(judged))
    assert set(expected["keys"]["generate"]) <= set(printed_keys("generate"))
    before = Path("run/metrics.jsonl").read_text().splitlines()
    run("train", "tiny.toml", "--run", "run")
    assert Path("run/metrics.jsonl").read_text().splitlines()[:2] == before  # it went on, and did not begin anew
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == pytest.approx(expected["losses"], rel=ROUNDING)
    assert set(expected["keys"]["metrics"]) <= set(keys_of(rows))
