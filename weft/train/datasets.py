"""The data of a run: tokenizer, training and held-out datasets.

Imports the data and the configuration. What is wrong with data is said with the key of the run's file to blame.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import data
from ..models import Seq2SeqConfig
from .config import ConfigError, RunConfig
from .own.model import OwnModel
from .runs import CACHE


def dims_of(dataset: data.Dataset) -> Mapping[str, Sequence[str]]:
    """The names of what follows `batch` in each array, where a dataset has its own."""
    return getattr(dataset, "dims", {})


class RunData(NamedTuple):
    """What a run learns from and is evaluated by."""

    tokenizer: data.Tokenizer | None
    """None where the data are tokens already."""
    training: data.Dataset
    held_out: data.Dataset | None


def open_data(config: RunConfig, folder: Path, progress: data.Progress, sliding: data.Sliding | None = None) -> RunData:
    """Opens the data of a run, windows `sliding` over them if said.

    What is made of texts is kept in the folder's cache.
    """
    if config.own_data is not None:
        with _in_file(config, "data"):
            return RunData(None, config.own_data.training, config.own_data.held_out)
    cache = folder / CACHE
    if isinstance(config.model, OwnModel) and config.train.length is None:
        fact = f"`train.length` is not said, and texts are cut to it: `{config.model.name}` brings none"
        raise ConfigError(fact, fix="say it: `length = 256` in `[train]`", at=config.place("train"))
    with _in_file(config, "data"):
        source = data.open_source(config.data)
    is_pair_model = isinstance(config.model, Seq2SeqConfig)
    if is_pair_model != source.is_pairs and not isinstance(config.model, OwnModel):
        needs, has = ("pairs of texts", "texts") if is_pair_model else ("texts", "pairs of texts")
        raise ConfigError(
            f"`{config.model.name}` learns from {needs}, and {source.files[0]} holds {has}",
            fix="choose a model of the other kind, or other data (`data.format` says how they are read)",
        )
    with _in_file(config, "tokenizer"):
        is_text = source.format != "tokens"
        tokenizer = data.open_tokenizer(config.tokenizer, source, cache, progress) if is_text else None
    options: dict[str, Any] = {"length": config.length, "pack": config.train.pack, "cache": cache, "progress": progress}
    options |= (
        {"buckets": config.train.buckets or None}
        if source.is_pairs
        else {"across": config.train.across, "sliding": sliding}
    )
    dataset: Any = data.pair_dataset if source.is_pairs else data.lm_dataset
    is_held_out = bool(source.held_out) or source.held_apart is not None
    stride = _stride(config, source.is_pairs)
    with _in_file(config, "data"):
        training = dataset(source, tokenizer, part="train", **options, **stride)
        held_out = dataset(source, tokenizer, part="evaluation", **options) if is_held_out else None
    with _in_file(config, "model", "vocab"):
        if not isinstance(config.model, OwnModel):
            data.check_vocab_of(training, config.model.vocab)
    return RunData(tokenizer, training, held_out)


def _stride(config: RunConfig, is_pairs: bool) -> dict[str, int]:
    """How far apart windows of training begin; pairs and documents are none."""
    stride = config.train.stride
    if stride is None:
        return {}
    if is_pairs or not config.train.pack:
        rows = "pairs of texts" if is_pairs else "documents, each a row of its own"
        fact = f"`train.stride` is {stride}, and the data are {rows}, which do not overlap"
        raise ConfigError(fact, fix="leave it out", at=config.place("train.stride"))
    if stride > config.length:
        fact = f"`train.stride` is {stride}, and a sequence has {config.length} tokens: some would be left out"
        raise ConfigError(fact, fix=f"say {config.length} or less", at=config.place("train.stride"))
    return {"stride": stride}


@contextlib.contextmanager
def _in_file(config: RunConfig, table: str, *keys: str) -> Iterator[None]:
    """Says of what is wrong with data where they are named, in a file or `--set`.

    To blame are these `keys` of the table, or those that the error names or tells the values of.
    """
    try:
        yield
    except data.DataError as error:
        values = getattr(config, table)
        named = keys or [key for key, value in values.items() if f"`{key}`" in error.fact or _names(error.fact, value)]
        at = config.place(table, *(f"{table}.{key}" for key in named))
        fact = f"in `{table}`: {error.fact}"
        raise data.DataError(fact, state=error.given_state, fix=error.fix, at=at) from error


def _names(fact: str, value: Any) -> bool:
    """Whether a value stands in a text by itself.

    >>> _names("there is no a/b.txt", "a/b.txt"), _names("there is no a/b2.txt", 2)
    (True, False)
    """
    return re.search(rf"(?<![\w.]){re.escape(str(value))}(?![\w])", fact) is not None
