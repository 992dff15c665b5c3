"""Legal layouts drawn at random, the same each time: no tensor has two dims on one axis, and all sizes divide.

Which dims stand together in a tensor is written here, not asked of the models: a layout that fits these must run.
"""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.grid.rows import EXPERTS, IMAGES, Row
from tests.properties.layouts import Rules, axes_of, placed
from tests.properties.programs import flip_coin, pick, shuffled, subset

SEED = 16
RING = "length memory_length"
FOLLOWS = {"stream": "length", "expert_batch": "batch", "queries": "heads"}


@dataclass(frozen=True)
class Family:
    """Kinds of models that hold tensors alike: those, the weights, the dims that may be split and stored split."""

    tensors: tuple[str, ...]
    weights: tuple[str, ...]
    split: tuple[str, ...]
    stored: tuple[str, ...]


_LM = Family(
    tensors=(
        "batch stream d_model",
        "batch length d_model",
        "batch length heads group d_kv",
        "batch memory_length heads d_kv",
        "batch heads group length memory_length",  # where both lie over the same axes keys go round a ring
        "batch length d_ff",
        "batch length vocab",
    ),
    weights=("layers d_model heads group d_kv", "layers d_model d_ff", "vocab d_model"),
    split=("batch", "length", "heads", "d_ff", "vocab", "d_model", "stream", "memory_length", RING),
    stored=("d_model", "d_ff", "heads", "vocab", "layers"),
)
_RELATIVE = replace(_LM, tensors=(*_LM.tensors, "batch memory_length d_model"))
_WITH_MEMORY = replace(_RELATIVE, tensors=(*_RELATIVE.tensors, "d_model queries d_kv"))
_WITH_EXPERTS = replace(
    _LM,
    tensors=(
        *_LM.tensors,
        "batch length router slots",
        "expert_batch experts slots d_model",
        "expert_batch experts slots d_ff",
    ),
    weights=(*_LM.weights, "layers experts d_model d_ff", "layers d_model router"),
    split=(*_LM.split, "experts", "experts"),  # as likely as two others
)
_OF_IMAGES = Family(
    tensors=(
        "batch depth height width channels",
        "batch depth height width filters",
        "batch height heads d_kv",  # the places of an image lie as its first dim does
        "batch heads height memory_length",
    ),
    weights=("channels filters", "channels heads d_kv"),
    split=("batch", "depth", "height", "width", "filters", "channels", "heads"),
    stored=("channels", "filters"),
)


_ALSO = {
    "queries": (
        "batch length queries group d_kv",
        "batch memory_length queries d_kv",
        "batch queries length memory_length",
    ),
    "stage": ("stage batch", "stage stream", "stage length", "stage memory_length"),
}
"""Dims that are split only where they are asked for, and what they stand together with."""


def family_of(kind: str, also: str = "") -> Family:
    """The family of a kind of model; `also` is a dim that is split besides, as likely as three others."""
    if also:
        family = family_of(kind)
        stacked = [f"stage {text}" for text in family.weights if "layers" in text] if also == "stage" else []
        tensors, weights = (*family.tensors, *_ALSO[also]), (*family.weights, *stacked)
        return replace(family, tensors=tensors, weights=weights, split=(*family.split, *[also] * 3))
    if kind in IMAGES:
        return _OF_IMAGES
    own = {"relative lm": _RELATIVE, "seq2seq": _WITH_MEMORY, "t5": _WITH_MEMORY}
    return own.get(kind, _WITH_EXPERTS if kind in EXPERTS else _LM)


def draw_rows(kind: str, mesh: str, count: int, also: str = "") -> list[Row]:
    """So many different rows of a kind on a mesh; each has a rule of the dim `also`, if one is named."""
    rng = random.Random(" ".join(filter(None, [str(SEED), kind, mesh, also])))
    rows: dict[str, Row] = {}
    while len(rows) < count:
        layout = draw_layout(rng, kind, mesh, also)
        options = draw_options(rng, kind) + ((("stages", 2),) if also == "stage" else ())
        if f"{also}:" in layout or not also:
            rows.setdefault(layout, Row(kind, mesh, layout, options, is_drawn=True))
    return list(rows.values())


def draw_options(rng: random.Random, kind: str) -> tuple[tuple[str, object], ...]:
    """How the model is computed."""
    options: dict[str, object] = {}
    if flip_coin(rng):
        options["scanned"] = False
    if flip_coin(rng):
        options["remat"] = pick(rng, [True, "attention feed_forward"])
    if flip_coin(rng, 3):
        options["loss_chunks"] = 2  # of which each must divide as the whole length does
    if flip_coin(rng, 3):
        options["micro"] = 2
    elif flip_coin(rng):
        options["drop"] = True
    if kind in IMAGES:  # the others are a Transformer's
        options = {name: bool(value) for name, value in options.items() if name in ("remat", "drop")}
    return tuple(options.items())


def draw_layout(rng: random.Random, kind: str, mesh: str, also: str = "") -> str:
    """One to three dims for each axis, then rules of storage."""
    sizes, family = axes_of(mesh), family_of(kind, also)
    rules: Rules = {}
    for axis in shuffled(rng, sorted(sizes)):
        for _ in range(rng.randint(1, 3)):
            options = [
                more
                for names in family.split
                if set(names.split()) <= set(_sizes_of(kind))
                and not any(axis in rules.get(name, ()) for name in names.split())
                and fits(
                    kind,
                    more := rules | {name: (*rules.get(name, ()), axis) for name in names.split()},
                    {},
                    sizes,
                    also,
                )
            ]
            rules = pick(rng, options) if options else rules
    stores = {store: draw_storage(rng, kind, rules, sizes, also) for store in ("params", "optimizer")}
    written = [f"{name}:{'+'.join(axes)}" for name, axes in rules.items()]
    written += [f"{store}.{name}:{'+'.join(axes)}" for store, held in stores.items() for name, axes in held.items()]
    return ",".join(written)


def draw_storage(rng: random.Random, kind: str, rules: Rules, sizes: dict[str, int], also: str) -> Rules:
    """A rule of storage every second time, of a dim that lies whole while it is computed with."""
    if flip_coin(rng):
        return {}
    names = [name for name in family_of(kind).stored if name not in rules and (name, also) != ("layers", "stage")]
    for name in shuffled(rng, names):
        stored = {name: tuple(subset(rng, sorted(sizes), 1, 1))}
        if fits(kind, rules, stored, sizes, also):
            return stored
    return {}


def fits(kind: str, rules: Rules, stored: Rules, sizes: dict[str, int], also: str = "") -> bool:
    """Whether every tensor has each axis once, and every size divides; weights as they are stored too."""
    family = family_of(kind, also)
    used = (*family.weights, *family.tensors)
    return all(_lies(kind, text.split(), rules, sizes) for text in used) and all(
        _lies(kind, text.split(), rules | stored, sizes) for text in family.weights
    )


def _lies(kind: str, names: Sequence[str], rules: Rules, sizes: dict[str, int]) -> bool:
    dims = _sizes_of(kind)
    split = placed([name for name in names if name in dims], rules, FOLLOWS)
    if split.get("length") == split.get("memory_length"):
        split.pop("memory_length", None)
    held = [axis for axes in split.values() for axis in axes]
    does_divide = all(dims[name] % math.prod(sizes[axis] for axis in axes) == 0 for name, axes in split.items())
    return does_divide and len(set(held)) == len(held)


@functools.cache
def _sizes_of(kind: str) -> dict[str, int]:
    """The smallest size of every dim: of a stack of layers where not all have experts, of an image halved."""
    config = Row(kind, "", "").config
    sizes = {dim.name: dim.size for dim in config.dims}
    if kind in IMAGES:
        return sizes | {dim.name: dim.size >> (config.levels - 1) for dim in config.space}
    stages = {"stage": 2, "queries": config.heads}
    return sizes | stages | {"layers": config.layers // (config.every if config.experts else 1)}
