"""The rows of the grid: a kind of model, how it is computed, a mesh and a layout; written and drawn."""

import functools
from dataclasses import dataclass, field
from typing import Any

from weft import models

BATCH = 16
TWO, TALL, CUBE = "x=2,y=4", "x=4,y=2", "x=2,y=2,z=2"
HOSTS, PODS = "x=2|y=4", "x=2|y=2|z=2"

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lm": ("tiny-lm", {}),
    "modern lm": ("tiny-lm", dict(positions="rotary", heads=4, group=2, gated=True, activation="silu", norm="layer",
                                  bias="q k v o in out norm", softcap=20.0, window=9)),
    "relative lm": ("tiny-lm", dict(positions="relative", scale_scores=False, z_loss=1e-3)),
    "tied lm": ("tiny-lm", dict(tied=True, positions="learned")),
    "padded lm": ("tiny-lm", dict(heads=6, heads_multiple=8, vocab=60)),
    "seq2seq": ("tiny-mt", dict(smoothing=0.1)),
    "t5": ("tiny-mt", dict(positions="relative", scale_scores=False, tied=True, gated=True)),
    "switch": ("tiny-moe", dict(capacity=1.25, jitter=0.1, router_z_loss=1e-2)),
    "top2": ("tiny-moe", dict(capacity=1.0, gating="top2")),
    "choice": ("tiny-moe", dict(capacity=1.0, gating="choice", every=2)),
    "top3": ("tiny-moe", dict(capacity=1.0, gating="top_k", top_k=3)),
    "dropless": ("tiny-moe", dict(gating="dropless", top_k=2, router_z_loss=1e-2, gated=True, shared_experts=1)),
    "padded experts": ("tiny-moe", dict(experts=6, experts_multiple=8, capacity=1.25, gating="top2")),
    "unet": ("tiny-unet", dict(height=16, width=32, heads=4, d_kv=4, dropout=0.1)),
    "unet of volumes": ("tiny-unet-3d", dict(depth=16, height=8, width=8, dropout=0.1)),
}  # fmt: skip
EXPERTS = ("switch", "top2", "choice", "top3", "dropless", "padded experts")
IMAGES = ("unet", "unet of volumes")

_HOW = ("scanned", "unroll", "remat", "loss_chunks", "attention", "prefetch")
_PIPELINE = ("stages", "pipeline_microbatches", "pipeline_rounds")
"""Fields that say how a model is computed: one processor's answer stands for all of their values."""


@dataclass(frozen=True)
class Row:
    """One model under one layout, and what must come of it: one processor's numbers, or a refusal."""

    kind: str
    mesh: str
    layout: str
    options: tuple[tuple[str, Any], ...] = ()
    """Fields of the configuration; `drop`: dropout with a key; `micro`: so many microbatches."""
    refused: str = ""
    """A pattern of the error's fact, where the layout must be refused."""
    is_drawn: bool = False

    def __str__(self) -> str:
        said = [name if value is True and name == "drop" else f"{name}={value}" for name, value in self.options]
        return " ".join([f"{self.kind}, {self.mesh}, {self.layout}", *said])

    @property
    def config(self) -> Any:
        """The configuration of the row's model."""
        return _config(self.kind, tuple((k, v) for k, v in self.options if k not in ("drop", "micro")))

    @property
    def microbatches(self) -> int:
        return dict(self.options).get("micro", 1)

    @property
    def is_dropping(self) -> bool:
        return dict(self.options).get("drop", False)

    @property
    def is_padded(self) -> bool:
        """Whether the last stage of a pipeline has layers that are none."""
        config = self.config
        return self.kind not in IMAGES and bool(config.layers % (config.stages * config.pipeline_rounds))

    @property
    def alone(self) -> "Row":
        """The row that one processor computes: the same numbers, written in the plainest way."""
        # Experts' losses are those of a microbatch, and so are the bits of dropout where gradients are accumulated.
        own = ("micro",) if self.is_dropping or self.kind in EXPERTS else ()
        own += _PIPELINE if self.kind in EXPERTS or self.is_padded else ()
        kept = ((k, v) for k, v in self.options if k not in (*_HOW, *_PIPELINE, "micro") or k in own)
        return Row(self.kind, "", "", tuple(sorted(kept)))


@functools.cache
def _config(kind: str, options: tuple[tuple[str, Any], ...]) -> Any:
    preset, changes = KINDS[kind]
    layers = {} if kind in IMAGES else {"layers": 4 if "every" in changes else 2}
    return models.preset(preset, **layers | {"batch": BATCH} | changes | dict(options))


@dataclass
class Table:
    """Rows, in the order they were written."""

    rows: list[Row] = field(default_factory=list)

    def write(self, kind: str, mesh: str, text: str) -> None:
        """Adds a row for each line: `layout | options`, or `layout | options ! why it is refused`."""
        for line in filter(None, map(str.strip, text.splitlines())):
            said, _, refused = (part.strip() for part in line.partition("!"))
            layout, _, options = (part.strip() for part in said.partition("|"))
            self.rows.append(Row(kind, mesh, layout, read_options(options), refused))


def read_options(text: str) -> tuple[tuple[str, Any], ...]:
    """`drop micro=2 remat=attention+feed_forward` as pairs."""
    return tuple((name, _value(value)) for name, _, value in (word.partition("=") for word in text.split()))


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return text != "False"
    return int(text) if text.isdigit() else text.replace("+", " ")
