"""What `weft search` chooses of a preset beside its layout: `--choices`.

Each name stands for values of a field of the configuration, or of the train step; a function's own are written out.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import typer

from .. import models
from ..errors import closest
from ..plan import Choice
from .model import find_preset, is_function, load_preset

DEFAULT = "remat"
STAGES = (2, 4, 8, 16)


def known_choices(config: models.ModelConfig) -> dict[str, Choice]:
    """The choices there are for a configuration, by name, with their values."""
    fields = {field.name for field in dataclasses.fields(config)}
    known: dict[str, Choice] = {}
    if "remat" in fields:
        kept = " ".join(getattr(config, "kept_names", ()))
        known["remat"] = Choice([False, *([kept] if kept else []), True], is_slower=True)
    if "loss_chunks" in fields:
        known["loss_chunks"] = Choice([1, 4, 16], is_slower=True)
    if "prefetch" in fields:
        known["prefetch"] = Choice([True, False], is_slower=True)
    if isinstance(config, models.TransformerConfig):
        known["microbatches"] = Choice([1, 2, 4, 8], is_slower=True)
        known["pipeline"] = Choice([None, *_pipelines(config)], needs="stage")
    return known


def _pipelines(config: models.TransformerConfig) -> list[tuple[int, int, int]]:
    """Stages, microbatches and rounds of pipelines that have layers enough."""
    return [
        (stages, stages * times, rounds)
        for stages in STAGES
        for times in (2, 4)
        for rounds in (1, 2)
        if stages * rounds * config.group_size <= config.layers and config.batch % (stages * times) == 0
    ]


def read_choices(name: str, text: str | None, **sizes: int) -> dict[str, Choice]:
    """The choices that `--choices` names for MODEL: `remat,loss_chunks=1|8`."""
    known = {} if is_function(name) else known_choices(find_preset(name, **sizes))
    chosen = {}
    for part in (DEFAULT if text is None and known else text or "").replace(",", " ").split():
        named, _, values = part.partition("=")
        if named not in known and (known or not values):
            fix = closest(named, known) if known else "write the values out: `--choices chunks=1|4`"
            raise typer.BadParameter(f"`{named}` is no choice of {name}: {fix}", param_hint="--choices")
        usual = known.get(named, Choice([None]))
        if values:
            chosen[named] = dataclasses.replace(usual, values=[_read(value) for value in values.split("|")])
        elif text is not None or named in known:
            chosen[named] = usual
    return chosen


def _read(value: str) -> Any:
    """A value as it is written: a number, true, false, or a text."""
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    return int(value) if value.isdigit() else value


def build_preset(name: str, optimizer: str | None, sizes: Mapping[str, int], **values: Any) -> Any:
    """The train step of a preset with these values chosen, and its arguments."""
    pipeline = values.pop("pipeline", None)
    if pipeline is not None:
        stages, micro, rounds = pipeline
        values |= {"stages": stages, "pipeline_microbatches": micro, "pipeline_rounds": rounds}
    model = load_preset(name, optimizer=optimizer, **sizes, **values)
    return model.fn, model.args


def preset_builder(name: str, optimizer: str | None, sizes: Mapping[str, int]) -> Any:
    """What builds the program of a preset for values of its choices."""
    return functools.partial(build_preset, name, optimizer, sizes)
