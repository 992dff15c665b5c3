"""What tokenizers share: ids of many texts, errors of their libraries."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import WeftError
from .errors import DataError
from .files import content_key
from .sources import as_text

FETCH = "fetch it again, or train one"
Places = tuple[Sequence[int], np.ndarray]
"""The ids of a text, and for each the letters where it begins and where it ends, [ids 2]."""


@contextlib.contextmanager
def library_errors(fact: str) -> Iterator[None]:
    """Turns what a library raises, panics too, into a DataError."""
    try:
        yield
    except WeftError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # somebody stops the program
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"{fact}: {why}", fix=FETCH) from None


def text_of(content: str | bytes) -> str:
    return content if isinstance(content, str) else as_text(content)


def id_or_none(token: int) -> int | None:
    return token if token >= 0 else None


def hash_of(content: bytes) -> str:
    return content_key(content.hex())


def join(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, lengths.sum()), lengths
