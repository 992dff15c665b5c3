"""Datasets of the user's own: rows by number, a dict of arrays each.

Imports errors alone. What a row is like is learned from the first one, and every other is held to it.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import closest
from .errors import DataError

_NARROW = {np.dtype("float64"): np.dtype("float32"), np.dtype("int64"): np.dtype("int32"),
           np.dtype("uint64"): np.dtype("uint32")}  # fmt: skip
_TOKENS = ("targets", "tokens")  # the names of what library models count the loss of
_OF_LENGTH = ("inputs", "targets", "tokens", "weights", "segments", "positions")
Row = dict[str, np.ndarray]
Reading = Callable[[str, str], contextlib.AbstractContextManager[None]]
"""What a row is read in, given the fact and the state of the error that code of the user's may end with."""


def plain_reading(failed: str, state: str) -> contextlib.AbstractContextManager[None]:
    """Reads a row of one's own code, whose errors are left as they are."""
    return contextlib.nullcontext()


class RowForm:
    """What every row is like: its arrays' names, dims, shapes and dtypes.

    With `weighted`, rows of tokens get `weights`, 0 in rows that only fill a batch, as models of the library read them.
    """

    def __init__(self, first: Any, dims: Any, *, name: str, weighted: bool = False):
        self.name = name
        row = _read_row(first, name, 0)
        self.shapes = {key: array.shape for key, array in row.items()}
        self.dtypes = {key: _narrow(array.dtype) for key, array in row.items()}
        self._names = self._name_dims(dims, _OF_LENGTH if weighted else ())
        counted = [key for key in _TOKENS if key in self.shapes and "weights" not in self.shapes]
        self._counted = counted[0] if weighted and counted else None

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of what follows `batch` in each array."""
        return self._names if self._counted is None else {**self._names, "weights": self._names[self._counted]}

    @property
    def of_row(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """The shape and the dtype of each array of a row."""
        shapes = {key: (shape, self.dtypes[key]) for key, shape in self.shapes.items()}
        if self._counted is not None:
            shapes["weights"] = self.shapes[self._counted], np.dtype("float32")
        return shapes

    def _name_dims(self, dims: Any, length_of: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The names of what follows `batch`, of each array."""
        if not isinstance(dims, Mapping):
            fix = 'write which dims follow `batch`: `dims = {"images": "height width"}`'
            raise DataError(f"the `dims` of `{self.name}` are {dims!r:.60}", fix=fix)
        if (stray := next((key for key in dims if key not in self.shapes), None)) is not None:
            fact = f"the `dims` of `{self.name}` name `{stray}`, which a row does not have"
            raise DataError(fact, fix=closest(str(stray), self.shapes))
        named, sizes = {}, dict[str, tuple[str, int]]()
        for key, shape in self.shapes.items():
            given = dims.get(key, "length" if key in length_of and len(shape) == 1 else "")
            names = tuple(given.replace(",", " ").split() if isinstance(given, str) else given)
            if len(names) != len(shape) or "batch" in names or len(set(names)) < len(names):
                example = " ".join(("length", "width", "channels", "depth")[: len(shape)])
                has = f"named `{' '.join(names)}`" if names else "without names"
                raise DataError(
                    f"`{key}` in a row of `{self.name}` has shape {shape}, {has}",
                    fix=f'name what follows `batch`, once each: `dims = {{"{key}": "{example}"}}`',
                )
            for dim, size in zip(names, shape, strict=True):
                other, before = sizes.setdefault(dim, (key, size))
                if before != size:
                    fact = f"`{dim}` is {before} in `{other}` and {size} in `{key}` of a row of `{self.name}`"
                    raise DataError(fact, fix="give them two names in `dims`")
            named[key] = names
        return named

    def check(self, given: Any, number: int | None = None) -> Row:
        """A row, if it is like the first."""
        row = _read_row(given, self.name, number)
        at = "a row" if number is None else f"row {number}"
        if row.keys() != self.shapes.keys():
            odd = sorted(row.keys() ^ self.shapes.keys())[0]
            fact = f"{at} of `{self.name}` {'has' if odd in row else 'lacks'} `{odd}`, and the first does not"
            raise DataError(fact if odd in row else fact.replace("does not", "has it"), fix="give all rows the same")
        for key, array in row.items():
            if array.shape != self.shapes[key]:
                raise DataError(
                    f"`{key}` has shape {array.shape} in {at} of `{self.name}`, and {self.shapes[key]} in the first",
                    fix="make all rows of one shape: cut or pad them, and say by another array what counts",
                )
            if _narrow(array.dtype) != self.dtypes[key] and not np.can_cast(array.dtype, self.dtypes[key], "same_kind"):
                raise DataError(
                    f"`{key}` is {array.dtype} in {at} of `{self.name}`, and {self.dtypes[key]} in the first",
                    fix=f"give it one dtype: `.astype('{self.dtypes[key]}')`",
                )
        return row

    def join(self, rows: Iterable[Row | None]) -> Row:
        """Rows one above the other; zeros for None."""
        listed = list(rows)
        joined = {}
        for key, shape in self.shapes.items():
            joined[key] = np.zeros((len(listed), *shape), self.dtypes[key])
            for number, row in enumerate(listed):
                if row is not None:
                    joined[key][number] = row[key]
        if self._counted is not None:
            joined["weights"] = np.zeros((len(listed), *self.shapes[self._counted]), np.float32)
            joined["weights"][[row is not None for row in listed]] = 1
        return joined


def _read_row(given: Any, name: str, number: int | None) -> Row:
    at = "a row" if number is None else f"row {number}"
    if not isinstance(given, Mapping) or not given or not all(isinstance(key, str) for key in given):
        fix = "give a dict of arrays by name: `{'images': image, 'labels': label}`"
        raise DataError(f"{at} of `{name}` is {given!r:.60}", fix=fix)
    row = {key: np.asarray(value) for key, value in given.items()}
    for key, array in row.items():
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            fix = "give numbers: token ids for a text, class numbers for names"
            raise DataError(f"`{key}` in {at} of `{name}` holds {array.dtype}", fix=fix)
    return row


def _narrow(dtype: np.dtype) -> np.dtype:
    """The dtype an array has on a processor."""
    return _NARROW.get(dtype, dtype)


class OwnRows:
    """A dataset by number: `len(rows)`, and `rows[i]`, a dict of arrays."""

    vocab: int | None = None
    bucket_of: np.ndarray | None = None

    def __init__(self, rows: Any, name: str, *, weighted: bool = False, reading: Reading = plain_reading):
        self._rows, self.name, self._reading = rows, name, reading
        if (count := len(rows)) < 1:
            raise DataError(f"`{name}` gave a dataset without rows", fix="give it some")
        self._count = int(count)
        self.form = RowForm(self._row(0), getattr(rows, "dims", {}), name=name, weighted=weighted)

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of what follows `batch` in each array."""
        return self.form.dims

    def __len__(self) -> int:
        return self._count

    def take(self, numbers: np.ndarray, bucket: int = 0) -> Row:
        """The rows with these numbers, one above the other; -1 gives zeros."""
        return self.form.join(self.form.check(self._row(int(n)), int(n)) if n >= 0 else None for n in numbers)

    def _row(self, number: int) -> Any:
        with self._reading(f"row {number} of `{self.name}` could not be read", f"it has {self._count} rows"):
            try:
                return self._rows[number]
            except (IndexError, KeyError) as error:
                if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                    raise  # from within what a row is made by
                fact = f"`{self.name}` has {self._count} rows, and none of number {number}: {error!r}"
                raise DataError(fact, fix="let `len(rows)` say how many there are, from 0 on") from error
