"""A dataset of the user's own as a run's: what the call gives of each part.

Imports the data. `dataset(part, **options)` is called with `train` and with `evaluation`, and gives None where nothing
is held out.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...data.own import OwnRows
from ...data.streams import OwnStream
from ...dims import Dim
from ...tensor import Tensor, tensor
from .code import CodeError, OwnCall, users_code, users_errors
from .trust import Trust, need_trust

Opened = OwnRows | OwnStream
RESUME = ("exact", "approximate")


class OwnData:
    """The data of a run that a call gives, opened when they are asked for."""

    def __init__(self, call: OwnCall, file: Path, trust: Trust, *, weighted: bool, resume: str = RESUME[0]):
        self.call, self._weighted, self._resume = call, weighted, resume
        self._file, self._trust = file, trust

    @functools.cached_property
    def training(self) -> Opened:
        """What is learned from."""
        opened = self._open("train")
        if opened is None:
            fix = "return rows for the part 'train', and None for what there is not of 'evaluation'"
            raise CodeError(f"`{self.call.name}` gave None for the part 'train'", fix=fix, at=self.call.at)
        return opened

    @functools.cached_property
    def held_out(self) -> Opened | None:
        """What is judged by; None where there is nothing."""
        return self._open("evaluation")

    def batch_shapes(self, batch: int) -> dict[str, Tensor]:
        """A batch as shapes."""
        data = self.training
        return {name: _shape(batch, data.dims[name], shape, dtype) for name, (shape, dtype) in data.form.of_row.items()}

    def _open(self, part: str) -> Opened | None:
        need_trust(self.call, self._file, self._trust)
        given = self.call(part)
        if given is None:
            return None
        if hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, Mapping | str):
            with users_code(f"`{self.call.name}` could not be read"):
                return OwnRows(given, self.call.name, weighted=self._weighted, reading=users_errors)
        if hasattr(given, "__iter__") and not isinstance(given, Mapping | str):
            with users_code(f"`{self.call.name}` could not be read"):
                return self._stream(part, given)
        fix = "give something with a length, and a dict of arrays for each number: a list of dicts, or a class"
        fact = f"`{self.call.name}` gave {given!r:.60} for the part {part!r}"
        raise CodeError(fact, fix=fix, at=self.call.at)

    def _stream(self, part: str, given: Any) -> OwnStream:
        """Rows that come one after the other; those learned from must be gone on with."""
        has_state = all(callable(getattr(given, name, None)) for name in ("state", "restore"))
        if part == "train" and not has_state and self._resume == RESUME[0]:
            fact = f"`{self.call.name}` gave {type(given).__name__}, which has no `state()` and `restore(state)`: "
            fact += "a run that is stopped could not go on with the same rows"
            fix = 'write both, or give rows by number; or say `resume = "approximate"` in `[data]`'
            raise CodeError(fact, fix=fix, at=self.call.at)
        is_exact = part == "train" and has_state and self._resume == RESUME[0]
        first = [given]  # what was made to look at is the first to be read

        def open() -> Any:
            return first.pop() if first else self.call(part)

        return OwnStream(open, self.call.name, is_exact=is_exact, weighted=self._weighted, reading=users_errors)


def _shape(batch: int, names: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    sizes = zip(("batch", *names), (batch, *shape), strict=True)
    return tensor(jax.ShapeDtypeStruct((batch, *shape), dtype), [Dim(name, size) for name, size in sizes])
