"""The commands on a run whose model and data are one's own; code of somebody else's is asked about."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.cli import terminal

from .command import error_of, weft

OWN = Path(__file__).parent.parent / "train" / "own_net.py"
TOML = """name = "mine"
mesh = "x=2,y=2"
layout = "batch:x,hidden:y"

[model]
call = "own_net.py:make"
width = 8

[data]
call = "own_net.py:dataset"

[train]
steps = 2
batch = 8
log_every = 1

[eval]
every = 0
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The file of a run, and its folder when it was trained."""
    folder = tmp_path_factory.mktemp("mine")
    shutil.copy(OWN, folder)
    (folder / "run.toml").write_text(TOML)
    printed, said = weft("train", folder / "run.toml", "--run", folder / "run")
    assert "own_net.py:make, 104 parameters" in printed + said and "batch 8" in printed + said
    return folder


def test_it_is_planned_and_searched_from_its_file(mine):
    printed, _ = weft("plan", mine / "run.toml", "--json")
    planned = json.loads(printed)
    assert planned["fits"] and not planned["tokens_per_s"]
    printed, _ = weft("show", mine / "run.toml")
    assert "f32[batch/x hidden/y]" in printed and "own_net.py:" in printed


@pytest.mark.slow
def test_it_is_searched_and_profiled(mine):
    printed, _ = weft("search", mine / "run.toml", "--processors", "2", "--dims", "batch,hidden", "--json")
    assert {"batch:x", "hidden:x"} <= {plan["layout"] for plan in json.loads(printed)["plans"]}
    printed, _ = weft("profile", mine / "run.toml", "--steps", "2", "--top", "3")
    assert "2 steps" in printed and "weft/nn/linear.py" in printed


def test_it_is_evaluated_and_exported(mine, tmp_path):
    printed, _ = weft("eval", mine / "run", "--json")
    judged = json.loads(printed)
    assert judged["rows"] == 21 and 0 <= judged["accuracy"] <= 1 and judged["step"] == 2
    printed, _ = weft("eval", mine / "run", "--mesh", "")
    assert "accuracy  " in printed and "nats" not in printed
    printed, _ = weft("export", mine / "run", tmp_path / "out")
    assert "own_net.py:make: 104 parameters in float32" in printed
    assert json.loads((tmp_path / "out" / "config.json").read_text())["width"] == 8
    fact, _, fix = error_of("eval", mine / "run", "--data", "other.txt")
    assert fact.endswith("and --data names files") and fix == "give its options instead: `--set data.KEY=VALUE`"


def test_code_of_somebody_else_is_asked_about(mine, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = mine / "run"
    for words in (("eval", run), ("export", run, tmp_path / "out"), ("plan", run / "config.toml")):
        fact, _, fix = error_of(*words)
        assert fact.startswith(f"{run}/config.toml runs code that you have not run before: ")
        assert "say `--trust`" in fix and not (tmp_path / "out").exists()
    weft("plan", run / "config.toml", "--trust")


def test_who_sits_at_a_terminal_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(terminal.typer, "confirm", lambda text, err: asked.append(text) or True)
    monkeypatch.setattr(terminal.sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert not terminal.allow_code(False)("it runs code") and not asked
    monkeypatch.setattr(terminal.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert terminal.allow_code(False)("it runs code") and asked == ["it runs code\nRun it?"]
    assert terminal.allow_code(True) is True


def test_rows_of_ones_own_are_shown_with_their_dims(mine):
    printed, _ = weft("data", mine / "run.toml", "--rows", "1")
    assert printed.splitlines()[1] == "  points float32[batch=8 features=8], label int32[batch=8]"
    assert printed.splitlines()[2] == "row 0" and "  label: " in printed and printed.count("points: [") == 1
    arrays = json.loads(weft("data", mine / "run.toml", "--rows", "1", "--json")[0])["arrays"]
    assert len(arrays["points"]) == 8 and arrays["label"] in range(4)
    flow = ("data", mine / "run.toml", "--set", "data.call=own_net.py:flow", "--json")
    two = weft(*flow, "--batches", "2")[0].splitlines()
    assert len(two) == 16 and weft(*flow, "--from", "1")[0].splitlines() == two[8:]


def test_texts_are_not_continued_by_it(mine):
    fact, _, fix = error_of("generate", mine / "run", "--prompt", "a")
    assert "is your own, `own_net.py:make`: it has a loss alone" in fact and fix.endswith(".load()`")
    fact, _, fix = error_of("translate", mine / "run")
    assert "is your own, `own_net.py:make`" in fact and "does not translate" in fact and fix.endswith(".load()`")
