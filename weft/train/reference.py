"""The reference of a run that learns by preferences: its first weights.

Imports the first weights and the checkpoints. They follow from the configuration, so that no checkpoint holds them.
Sums of their bits are kept in the run's folder, and where they are others when the run goes on, it stops.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from ..data.atomic import write_atomic
from ..layout import Layout
from ..mesh import Mesh
from ..small_files import Reader, summed
from .checkpoints import sums_of_bits
from .config import ConfigError, RunConfig
from .preferences import REFERENCE, reference_of
from .start import first_weights
from .step import arrays_of

_FILE = "reference.json"


def beside_batches(
    config: RunConfig, mesh: Mesh, layout: Layout, folder: Path, *, is_begun: bool = True
) -> dict[str, Any]:
    """What goes with every batch of a run: the reference, where it learns by one."""
    if not config.is_dpo:
        return {}
    weights = reference_of(first_weights(config, mesh, layout))
    if is_begun and (folder / _FILE).exists():
        known = Reader(ConfigError).summed_json(folder / _FILE, {"sums": {str: int}})["sums"]
        now = _sums(weights)
        others = [path for path in sorted(known.keys() | now.keys()) if known.get(path) != now.get(path)]
        if others:
            what = f"the weights in {config.init_from}" if config.init_from else "the first weights"
            raise ConfigError(
                f"{what} are others than those the run in {folder} began with: `{others[0]}`",
                fix="put back the weights it began with, which it is held against; or begin another run with --run",
                at=config.place("init_from", "train.objective"),
            )
    return {REFERENCE: weights}


def keep_reference(beside: Mapping[str, Any], folder: Path) -> None:
    """Writes of which weights the reference is; called by all processes."""
    if REFERENCE in beside:
        content = summed({"sums": _sums(beside[REFERENCE])})
        if jax.process_index() == 0:
            write_atomic(folder / _FILE, content)


def _sums(weights: Mapping[str, Any]) -> dict[str, int]:
    return {path: int(value) for path, value in sums_of_bits(arrays_of(weights)).items()}
