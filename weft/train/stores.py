"""Where checkpoints lie: what each kind of place can do, and the errors of all.

Imports errors and small_files alone. `local_store` writes into a folder of this machine, `cloud_store` to gs:// and
s3://. In both a checkpoint is whole from the moment its small file of JSON is there, which is written last.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import WeftError, closest
from ..small_files import Reader

METADATA = "checkpoint.json"
_NUMBERS = {str: int}
SHAPE = {"files": _NUMBERS, "sums": _NUMBERS, "dtypes": {str: str}, "loss": (float, None), "config": (dict, None)}
OLDER = frozenset({"step", *SHAPE})


_AROUND = re.compile(r"\s*\[[a-z_-]+='.*", re.DOTALL)  # what TensorStore adds: specs, headers


class CheckpointError(WeftError):
    """A checkpoint that is missing, broken, of another model, or cannot be written."""


class OtherModelError(CheckpointError):
    """A whole checkpoint of a model with other weights, or of another optimizer."""


READER = Reader(CheckpointError, fix="use another step")


class Store(Protocol):
    """A place of checkpoints, each known by its step.

    What cannot be done is an error, while writing of any kind.
    """

    has_set_aside: str
    """What is to be done to take back what was set aside."""

    def __str__(self) -> str: ...

    def name(self, step: int) -> str:
        """A checkpoint as errors name it."""
        ...

    def steps(self) -> list[int]:
        """The steps there are whole checkpoints of."""
        ...

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays."""
        ...

    def free(self, needed: int) -> int:
        """How many bytes there is room for, of those needed."""
        ...

    def begin(self, step: int) -> int:
        """Makes ready, by the first process; a number above 0, for `write` in each."""
        ...

    def write(self, step: int, number: int, arrays: dict[str, Any]) -> None:
        """Begins to write; the arrays may be overwritten afterwards."""
        ...

    def wait_written(self) -> None:
        """Until what was begun is written, in the first process that of all."""
        ...

    def commit(self, step: int, metadata: dict[str, Any]) -> None:
        """Makes what is written count, by the first process."""
        ...

    def discard(self, step: int) -> None:
        """Removes what was begun, by the first process."""
        ...

    def remove(self, step: int) -> None:
        """Removes a checkpoint that counts."""
        ...

    def remove_torn(self) -> None:
        """Removes what a killed process left half written or removed."""
        ...

    def set_aside(self, step: int) -> object | None:
        """Keeps a broken checkpoint from counting; where it is now, if that is done."""
        ...

    def aside(self) -> list[str]:
        """What was set aside, by name."""
        ...

    def explain(self, error: BaseException, fact: str) -> CheckpointError:
        """An error of what writes there, as one of the house."""
        ...

    def problem(self, step: int, metadata: Mapping[str, Any]) -> str | None:
        """What is wrong with a checkpoint, as far as that is seen without reading it."""
        ...

    def read(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays that `like` has the shapes of, sharded as these are."""
        ...

    def close(self) -> None:
        """Ends the threads."""
        ...


def first_line(error: BaseException) -> str:
    """What an error says, in a line: of TensorStore's, which say much, the point."""
    if of_system := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(of_system[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = _AROUND.sub("", str(error)).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def check_shapes(place: str, like: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Raises where what is stored, with shapes and dtypes, is of another model."""
    for path, wanted in like.items():
        if path not in stored:
            raise OtherModelError(
                f"the checkpoint {place} has no `{path}`", fix=f"{closest(path, stored)}; it is of another model"
            )
        have, want = tuple(stored[path].shape), tuple(wanted.shape)
        if have != want or stored[path].dtype != wanted.dtype:
            raise OtherModelError(
                f"`{path}` is {stored[path].dtype}{list(have)} in the checkpoint {place}, "
                f"and {wanted.dtype}{list(want)} in the model",
                fix="it is of another model",
            )
