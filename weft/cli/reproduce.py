"""`weft reproduce`: the runs of a published result, judged, on one page."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data.atomic import write_atomic
from ..train.recipes import Recipe, RecipeError, as_json, find_folder, page, read_recipe, recipes_in, summary_of
from .terminal import COMMAND, reported, write
from .trained import say

EXAMPLES = """Examples:

\b
  weft reproduce
  weft reproduce shakespeare
  weft reproduce parallelisms --small
"""


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which result; without it they are listed.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A few steps of a small version, to see that all of it works.")
    ] = False,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of its runs; runs/reproduce/NAME if not said.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of all runs, like train.steps=1000.")
    ] = None,
    recipes: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of recipes; configs/reproduce if not said.")
    ] = None,
) -> None:
    """Make the runs of a published result, judge them and write what was reached.

    What was stopped is gone on with by the same command. DIR then has results.md, results.json and a picture.
    """
    with reported():
        folder = find_folder(recipes)
        if name is None:
            known = {each: read_recipe(folder, each, is_small=False) for each in recipes_in(folder)}
            width = max(map(len, known))
            return write("\n".join(f"{each:{width}}  {recipe.title}" for each, recipe in known.items()))
        recipe = read_recipe(folder, name, is_small=small)
        place = run or Path("runs") / "reproduce" / (f"{name}-small" if small else name)
        folders = {each: place / each for each in recipe.runs}
        judged: dict[str, Any] = {}
        for each, own in recipe.runs.items():
            say(f"--- {name}: {each}")
            sets = [word for change in [*own, *(changes or [])] for word in ("--set", change)]
            _run(["train", str(recipe.config), "--run", str(folders[each]), *sets], f"the run {each} of {name}")
            judged[each] = {key: _evaluate(folders[each], words, key) for key, words in recipe.judge.items()}
        summary = summary_of(recipe, folders, judged)
        text = page(recipe, summary)
        write_atomic(place / "results.json", as_json(summary).encode())
        write_atomic(place / "results.md", text.encode())
        _draw(recipe, place, list(folders.values()))
    write(text)


def _evaluate(folder: Path, words: Sequence[str], key: str) -> Any:
    """What `weft eval` says of a run."""
    printed = _run(["eval", str(folder), *words, "--json"], f"the evaluation `{key}` of {folder}", is_read=True)
    return json.loads(printed.splitlines()[-1])


def _run(words: Sequence[str], what: str, *, is_read: bool = False) -> str:
    """What a command of weft's printed, run in a process of its own, if that is read."""
    done = subprocess.run([*COMMAND, *words], stdout=subprocess.PIPE if is_read else None, text=True)
    if done.returncode:
        fix = "see what it says above, and give the same command again: it goes on"
        raise RecipeError(f"{what} ended with status {done.returncode}", fix=fix)
    return done.stdout or ""


def _draw(recipe: Recipe, place: Path, folders: Sequence[Path]) -> None:
    """Draws the curves of all runs, where Matplotlib is here."""
    try:
        _run(["plot", *map(str, folders), "--out", str(place / "curves.png")], "the picture")
    except RecipeError as error:
        say(f"there is no picture of {recipe.name}: {error.fact}")
