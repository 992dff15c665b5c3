"""Recipes of published results: runs, how they are judged, what was published.

Imports the errors and the reader of small files. A recipe is a TOML file beside the configurations it names; what its
runs gave is put together here as plain values and as a page of Markdown.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import WeftError, closest
from ..fields import one_of
from ..small_files import Reader, is_file
from . import metrics

FOLDER = Path("configs") / "reproduce"
FIRST = 100  # steps over which curves that should be one are compared


class RecipeError(WeftError):
    """A recipe that is not there, cannot be read, or whose runs failed."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """The figure to be reached: its value, its key in an evaluation, whose it is."""

    value: float
    key: str
    what: str
    better: str = one_of("less", "more")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A result: one configuration, several runs of it, and evaluations of each."""

    name: str
    path: Path
    title: str
    config: Path
    runs: Mapping[str, Sequence[str]]
    """By name, the changes of each: words for `--set`."""
    judge: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By name, words for `weft eval`; none where the run's own last evaluation is the result."""
    published: Published | None = None
    one_curve: bool = False
    """Whether all runs should have the same losses, up to rounding."""
    like: Mapping[str, str] = field(default_factory=dict)
    """By name, the run whose losses one should have, where that is not the first."""


_READER = Reader(RecipeError, fix="mend the recipe")
_SHAPE = {"title": str, "config": str, "runs": dict}


def recipes_in(folder: Path) -> dict[str, Path]:
    """The recipes of a folder by name."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_folder(said: Path | None) -> Path:
    """The folder of the recipes: the one said, or that of the repository."""
    tried = [said] if said is not None else [FOLDER, Path(__file__).parents[2] / FOLDER]
    if found := next((folder for folder in tried if recipes_in(folder)), None):
        return found
    raise RecipeError(f"there are no recipes in {tried[0]}", fix="stand in the repository, or say `--recipes FOLDER`")


def read_recipe(folder: Path, name: str, *, is_small: bool) -> Recipe:
    """The recipe of that name, or its small version of few steps."""
    known = recipes_in(folder)
    if name not in known:
        raise RecipeError(f"there is no recipe {name!r} in {folder}", fix=closest(name, known))
    path = known[name]
    values, _ = _READER.toml(path)
    _READER.check({key: values.get(key) for key in _SHAPE}, _SHAPE, str(path))
    config = Path(os.path.normpath(path.parent / values["config"]))
    if not is_file(config):
        raise RecipeError(f"{path} names {config}, which is not there", fix="name a TOML file beside the recipe")
    small = values.get("small", {}) if is_small else {}
    if is_small and not small:
        raise RecipeError(f"{path} has no small version", fix="leave --small out, or add a table `small`")
    own = _words(values.get("set", []), path) + _words(small.get("set", []), path)
    runs = {run: own + _words(changes, path) for run, changes in values["runs"].items()}
    kept = small.get("runs", list(runs))
    published = values.get("published")
    judged = {} if is_small else values.get("judge", {})
    return Recipe(
        name=name,
        path=path,
        title=values["title"],
        config=config,
        runs={run: runs[run] for run in kept},
        judge={each: _words(words, path) for each, words in judged.items()},
        published=None if published is None else Published(**published),
        one_curve=bool(values.get("one_curve", False)),
        like={one: other for one, other in values.get("like", {}).items() if {one, other} <= set(kept)},
    )


def _words(values: Any, path: Path) -> list[str]:
    """A list of texts; `{here}` in them is the recipe's folder."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RecipeError(f"{path} has {values!r:.60} where a list of texts is due", fix='write  ["seed=1"]')
    return [value.replace("{here}", str(path.parent)) for value in values]


# What came of it.


def result_of_run(folder: Path, judged: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a run's metrics and evaluations say: plain values."""
    rows = metrics.read(folder)
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    evaluations = [(row["step"], row["eval"]) for row in rows if "eval" in row]
    result: dict[str, Any] = {"steps": losses[-1][0], "loss": losses[-1][1]}
    if evaluations:
        best = min(evaluations, key=lambda each: each[1].get("loss", math.inf))
        result |= {"best": {"step": best[0], **_plain(best[1])}, "last": _plain(evaluations[-1][1])}
    return result | {name: _plain(values) for name, values in judged.items()}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("run", "seconds")}


def list_reached(recipe: Recipe, results: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """The published figure's counterpart, of each run that has one."""
    if recipe.published is None:
        return []
    part, _, key = recipe.published.key.rpartition(".")
    found = [result.get(part, {}).get(key) for result in results.values()]
    return [value for value in found if value is not None]


def curve_differences(folders: Mapping[str, Path], like: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """How far losses are from those of the first run, or of the one it is like."""
    curves = {name: dict(_losses(folder)) for name, folder in folders.items()}
    first, *others = curves
    found = {}
    for name in others:
        if name in like.values():
            continue
        base = curves[like.get(name, first)]
        shared = sorted(base.keys() & curves[name].keys())
        apart = {step: abs(base[step] - curves[name][step]) for step in shared}
        begin = [value for step, value in apart.items() if step <= FIRST]
        found[name] = {"first": max(begin, default=math.nan), "all": max(apart.values()), "last": apart[shared[-1]]}
    return found


def _losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in metrics.read(folder) if "loss" in row]


def page(recipe: Recipe, summary: Mapping[str, Any]) -> str:
    """The results as Markdown: a table of the runs, and what was published."""
    keys = list(dict.fromkeys(key for result in summary["runs"].values() for key in _flat(result)))
    lines = [f"# {recipe.title}", "", f"`weft reproduce {recipe.name}`, by `{recipe.config}`.", ""]
    lines += [f"| run | {' | '.join(keys)} |", f"|---|{'---|' * len(keys)}"]
    for name, result in summary["runs"].items():
        cells = _flat(result)
        lines.append(f"| {name} | {' | '.join(_number(cells.get(key)) for key in keys)} |")
    if recipe.published is not None:
        lines += ["", f"Published: {recipe.published.value:g} ({recipe.published.what})."]
    if "mean" in summary:
        lines.append(
            f"Reached: {_number(summary['mean'])} on average, {_number(summary['spread'])} from least to most."
        )
    if "differences" in summary:
        lines += [
            "",
            f"| losses apart from those of {next(iter(summary['runs']))} | first {FIRST} steps | all | last |",
        ]
        lines += ["|---|---|---|---|"]
        for name, apart in summary["differences"].items():
            lines.append(f"| {name} | {' | '.join(f'{apart[key]:.2g}' for key in ('first', 'all', 'last'))} |")
    return "\n".join(lines) + "\n"


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a run's result, those of an evaluation by `last.loss`."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        inner = {f"{key}.{name}": x for name, x in value.items()} if isinstance(value, Mapping) else {key: value}
        flat |= {name: x for name, x in inner.items() if isinstance(x, int | float) and "perplexity" not in name}
    return flat


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def summary_of(recipe: Recipe, folders: Mapping[str, Path], judged: Mapping[str, Any]) -> dict[str, Any]:
    """All that a recipe's runs gave, as plain values."""
    results = {name: result_of_run(folder, judged.get(name, {})) for name, folder in folders.items()}
    summary: dict[str, Any] = {"recipe": recipe.name, "title": recipe.title, "runs": results}
    if recipe.published is not None:
        summary["published"] = {"value": recipe.published.value, "what": recipe.published.what}
    if found := list_reached(recipe, results):
        summary |= {"mean": sum(found) / len(found), "spread": max(found) - min(found)}
    if recipe.one_curve and len(folders) > 1:
        summary["differences"] = curve_differences(folders, recipe.like)
    return summary


def as_json(summary: Mapping[str, Any]) -> str:
    """The same as JSON, null in place of what is not finite."""

    def finite(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: finite(inner) for key, inner in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(summary), indent=1) + "\n"
