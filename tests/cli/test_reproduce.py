"""`weft reproduce`: recipes are listed, run, judged and put on a page; each has a small version that works."""

import json
from pathlib import Path

import pytest

from weft.train.recipes import RecipeError, curve_differences, find_folder, page, read_recipe, recipes_in, summary_of

from .command import ROOT, error_of, weft

FOLDER = ROOT / "configs" / "reproduce"
RECIPES = recipes_in(FOLDER)


def test_all_recipes_are_listed_by_their_titles():
    listed, _ = weft("reproduce", "--recipes", FOLDER)
    assert [line.split()[0] for line in listed.splitlines()] == sorted(RECIPES)
    assert "MNIST by a convnet under four layouts" in listed


@pytest.mark.quick("parallelisms")
@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_names_can_be_read(name):
    """Every run of it is a configuration, also in its small version."""
    from weft.train.config import read

    for is_small in (False, True):
        recipe = read_recipe(FOLDER, name, is_small=is_small)
        for changes in recipe.runs.values():
            read(recipe.config, changes, trust=True)
        assert recipe.runs and not (is_small and recipe.judge)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_small_version_of_each_runs_and_is_told(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    printed, _ = weft("reproduce", name, "--small", "--run", tmp_path)
    result = json.loads((tmp_path / "results.json").read_text())
    assert (tmp_path / "results.md").read_text().strip() == printed[printed.index("# ") :].strip()
    assert set(result["runs"]) == set(read_recipe(FOLDER, name, is_small=True).runs)
    assert all(run["loss"] > 0 for run in result["runs"].values())
    for apart in result.get("differences", {}).values():
        assert apart["all"] < 1e-4


def written(folder: Path, name: str, rows) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def recipe_in(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "run.toml").write_text('[model]\npreset = "tiny-lm"\n')
    (folder / "mine.toml").write_text(text)
    return folder


MINE = """
title = "Mine"
config = "run.toml"
one_curve = true
runs = {first = ["seed=1"], second = ["seed=2"], third = ["seed=2"]}
like = {third = "second"}
published = {value = 1.5, key = "test.bits", what = "by somebody"}
set = ["train.steps=2", "data={here}/text"]
"""


def test_results_are_put_beside_what_was_published(tmp_path):
    folder = recipe_in(tmp_path / "recipes", MINE)
    recipe = read_recipe(folder, "mine", is_small=False)
    assert recipe.runs["second"] == ["train.steps=2", f"data={folder}/text", "seed=2"]
    losses = {"first": (5.0, 3.0), "second": (5.0, 4.0), "third": (5.25, 4.5)}
    folders = {
        name: written(
            tmp_path, name, [{"step": 1, "loss": a}, {"step": 200, "loss": b}, {"step": 200, "eval": {"loss": b}}]
        )
        for name, (a, b) in losses.items()
    }
    judged = {name: {"test": {"bits": value}} for name, value in zip(losses, (1.25, 1.5, 1.75), strict=True)}
    summary = summary_of(recipe, folders, judged)
    assert (summary["mean"], summary["spread"]) == (1.5, 0.5)
    assert summary["differences"] == {"third": {"first": 0.25, "all": 0.5, "last": 0.5}}
    assert curve_differences(folders, {})["second"] == {"first": 0.0, "all": 1.0, "last": 1.0}
    text = page(recipe, summary)
    assert "Published: 1.5 (by somebody)." in text and "| second | 200 | 4 |" in text


@pytest.mark.parametrize(
    ("text", "words", "fact", "fix"),
    [
        (MINE, ["their"], "there is no recipe 'their'", "use one of: `mine`"),
        (MINE, ["mine", "--small"], "has no small version", "leave --small out"),
        (MINE.replace("run.toml", "other.toml"), ["mine"], "which is not there", "name a TOML file"),
        (MINE.replace('["seed=1"]', '"seed=1"'), ["mine"], "where a list of texts is due", '["seed=1"]'),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(text, words, fact, fix, tmp_path):
    found = error_of("reproduce", *words, "--recipes", recipe_in(tmp_path / "recipes", text))
    assert fact in found[0] and fix in found[2]


def test_a_folder_without_recipes_is_refused(tmp_path):
    with pytest.raises(RecipeError) as caught:
        find_folder(tmp_path)
    assert "--recipes FOLDER" in caught.value.fix and find_folder(None) is not None


@pytest.mark.slow
def test_a_run_that_fails_is_named(tmp_path):
    folder = recipe_in(tmp_path / "recipes", MINE)
    _, said = weft("reproduce", "mine", "--recipes", folder, "--run", tmp_path / "runs", status=1)
    assert "error: the run first of mine ended with status 1" in said and "it goes on" in said
