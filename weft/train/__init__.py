"""Training: a run's TOML file, its folder, and the loop over its steps.

config = train.read("configs/tiny.toml", ["train.steps=1000"])
train.Trainer(config, "runs/tiny").run()
model = train.Run("runs/tiny").load()
"""

from ..namespace import namespace as _namespace
from ..record import show_as_source as _show_as_source
from .checkpoints import CheckpointError
from .config import ConfigError, RunConfig, read
from .interface import Options, Outcome, TrainingError
from .runs import Run, RunError
from .trainer import Trainer

_show_as_source(__path__[0])

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Options",
    "Outcome",
    "Run",
    "RunConfig",
    "RunError",
    "Trainer",
    "TrainingError",
    "read",
]

__dir__, __getattr__ = _namespace(globals(), called="train")
