"""All that a run's file says, as values: checked when read, trusted afterwards."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .. import models
from ..errors import WeftError
from ..fields import bounded
from ..layout import Layout, as_layout
from ..libraries import import_library
from ..mesh import Mesh, as_mesh
from .own.data import OwnData
from .own.model import OwnModel
from .own.trust import Trust
from .tables import TABLES, Checkpoint, Evaluation, Lora, Optimizer, Schedule, Tracking, Train

CONFIG = "config.toml"
AUTO = "auto"  # a mesh or a layout that is to be searched for
ONE = ("all=1", "batch:all")  # where a run without a mesh runs
UNSAID_DATA, UNSAID_TOKENIZER = MappingProxyType({"path": "python"}), MappingProxyType({"kind": "bytes"})
"""What is taken where a run names none; known from the same said by being these very ones."""


class ConfigError(WeftError):
    """A run's configuration that cannot be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All of a run: what is trained, on what, where and how."""

    model: models.TransformerConfig | OwnModel
    name: str = "run"
    """The run's name; by default its folder is `runs/` and this."""
    seed: int = bounded(0, least=0, below=2**32)
    """Of first weights, of the order of examples and of dropout."""
    mesh: str = ""
    """Axes and sizes, like `rows=4,cols=2`; `auto`: searched with the layout. One processor if not said."""
    layout: str = ""
    """Rules, like `batch:rows, d_ff:cols`; `auto`: the cheapest that fits, by a search."""
    init_from: str | None = None
    """Weights to start with: a folder of Hugging Face's, or of another run."""
    hardware: str | None = None
    """What its plan and its search are for: a name of the table, or a TOML file; its devices unless said."""
    train: Train = dataclasses.field(default_factory=Train)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    tokenizer: Mapping[str, Any] = dataclasses.field(default_factory=lambda: UNSAID_TOKENIZER)
    """As `data.open_tokenizer` reads it."""
    data: Mapping[str, Any] = dataclasses.field(default_factory=lambda: UNSAID_DATA)
    """As `data.open_source` reads it."""
    own_data: OwnData | None = dataclasses.field(default=None, compare=False, repr=False)
    """The data that a call gives, where `data` names one."""
    eval: Evaluation = dataclasses.field(default_factory=Evaluation)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    lora: Lora = dataclasses.field(default_factory=Lora)
    metrics: Tracking = dataclasses.field(default_factory=Tracking)
    trust: Trust = dataclasses.field(default=False, compare=False, repr=False)
    """Whether code of somebody else's, which a run it begins with calls, may be run."""
    where: Any = dataclasses.field(default=None, compare=False, repr=False)
    """Where each key stands, for errors that come later."""

    def place(self, *keys: str) -> str | None:
        """The file and line of the first key, or of one that the command line sets."""
        return None if self.where is None else self.where(*keys)

    @property
    def is_data_said(self) -> bool:
        """Whether the run names its data."""
        return self.data is not UNSAID_DATA

    @property
    def is_dpo(self) -> bool:
        """Whether it learns which of two answers is preferred."""
        return self.train.objective == "dpo"

    @property
    def is_tokenizer_said(self) -> bool:
        """Whether the run names its tokenizer."""
        return self.tokenizer is not UNSAID_TOKENIZER

    @property
    def length(self) -> int:
        """Tokens in a sequence: what `train` says, or else the model's."""
        return self.train.length or self.model.length

    @property
    def batch(self) -> int:
        """Sequences in a batch."""
        if self.train.tokens is not None:
            return self.train.tokens // self.length
        return self.train.batch or self.model.batch

    @property
    def sized_model(self) -> models.TransformerConfig | OwnModel:
        """The model's configuration for the run's batches; old weights keep positions."""
        if isinstance(self.model, OwnModel):
            return dataclasses.replace(self.model, batch=self.batch)
        most = self.model.max_length
        if self.init_from is not None and self.model.max_positions > self.length:
            most = self.model.max_positions
        return dataclasses.replace(self.model, batch=self.batch, length=self.length, max_length=most)

    @property
    def is_open(self) -> bool:
        """Whether its mesh or layout is still to be found."""
        return AUTO in (self.mesh, self.layout)

    @property
    def runs_on(self) -> tuple[Mesh, Layout]:
        """Its mesh and layout; one processor where it names none."""
        mesh, layout = (self.mesh, self.layout) if self.mesh else ONE
        return as_mesh(mesh), as_layout(layout)

    def to_toml(self) -> str:
        """The whole configuration as it is read again."""
        return toml_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The whole configuration as plain values, None left out."""
        plain = {name: getattr(self, name) for name in ("name", "seed", "mesh", "layout", "init_from", "hardware")}
        tables = {name: dataclasses.asdict(getattr(self, name)) for name in TABLES}
        model = self.model.call.saved if isinstance(self.model, OwnModel) else models.fields(self.model)
        data = self.data if self.own_data is None else {**self.data, **self.own_data.call.saved}
        return _without_none({**plain, "model": model, "data": data, "tokenizer": self.tokenizer, **tables})


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: _without_none(v) if isinstance(v, Mapping) else v for name, v in values.items() if v is not None}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in said.items()}


def toml_text(values: Mapping[str, Any]) -> str:
    """Plain values as a file of TOML."""
    return str(import_library("tomli_w", "a run's configuration").dumps(values))
