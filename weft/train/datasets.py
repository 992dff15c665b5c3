"""The data of a run: tokenizer, training and held-out datasets.

Imports the data and the configuration. What is wrong with data is said with the key of the run's file to blame.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from .. import data
from ..data.files import content_key
from ..data.streams import OwnStream
from ..models import LMConfig, Seq2SeqConfig
from .config import ConfigError, RunConfig
from .own.model import OwnModel
from .runs import CACHE


def dims_of(dataset: data.Dataset | OwnStream) -> Mapping[str, Sequence[str]]:
    """The names of what follows `batch` in each array, where a dataset has its own."""
    return getattr(dataset, "dims", {})


class RunData(NamedTuple):
    """What a run learns from and is evaluated by."""

    tokenizer: data.Tokenizer | None
    """None where the data are tokens already."""
    training: data.Dataset | OwnStream
    held_out: data.Dataset | OwnStream | None
    template: data.ChatTemplate | None = None
    """How chats are written, where the data are chats."""


def open_data(config: RunConfig, folder: Path, progress: data.Progress, sliding: data.Sliding | None = None) -> RunData:
    """Opens the data of a run, windows `sliding` over them if said.

    What is made of texts is kept in the folder's cache.
    """
    if config.own_data is not None:
        if config.is_dpo:
            fact = '`train.objective` is "dpo", and the data are your own'
            fix = 'give pairs as a file, with `format = "preferences"`; or write the loss yourself: `[model] call`'
            raise ConfigError(fact, fix=fix, at=config.place("train.objective"))
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
        is_text = any(part.format != "tokens" for part in source.parts or [source])
        tokenizer = data.open_tokenizer(config.tokenizer, source, cache, progress) if is_text else None
    _check_objective(config, source)
    template = _template_of(config, source)
    where = {"cache": cache, "progress": progress}
    dataset = functools.partial(_dataset, config, source, tokenizer, sliding, where)
    stride = _stride(config, source)
    with _in_file(config, "data"):
        training = dataset(part="train", **stride)
        held_out = dataset(part="evaluation") if source.has_evaluation else None
    with _in_file(config, "model", "vocab"):
        if not isinstance(config.model, OwnModel):
            _check_start(config, config.model.vocab, training)
            data.check_vocab_of(training, config.model.vocab)
    return RunData(tokenizer, training, held_out, template)


def _dataset(
    config: RunConfig,
    source: data.Source,
    tokenizer: Any,
    sliding: data.Sliding | None,
    where: Mapping[str, Any],
    *,
    part: str,
    **how: int,
) -> Any:
    """The dataset of a part of a source: texts, pairs of them, chats, or a mixture."""
    if source.parts:

        def open_each(each: data.Source, part: str) -> Any:
            return _dataset(config, each, tokenizer, sliding, where, part=part, **how)

        if part == "train":
            return data.Mixture([open_each(each, part=part) for each in source.parts], source.weights)
        if source.held_apart is not None:
            return open_each(source.held_apart, part="all")
        return data.Concatenated([open_each(each, part=part) for each in source.parts if each.has_evaluation])
    if source.grows and part == "train":
        return data.Growing(
            lambda: data.open_source(config.data),
            lambda some: _dataset(
                config, dataclasses.replace(some, grows=False), tokenizer, sliding, where, part=part, **how
            ),
            where["cache"] / f"epochs-{content_key(dict(config.data))}",
            is_first=jax.process_index() == 0,
            with_segments=config.train.pack and not config.train.across and not config.is_dpo,
        )
    options: dict[str, Any] = {"length": config.length, "pack": config.train.pack, "part": part, **where, **how}
    template = _template_of(config, source)
    if source.format in data.WITH_ANSWERS:
        if sliding is not None:
            fact = f"windows slide over texts, and {source.files[0]} holds chats"
            raise ConfigError(fact, fix="leave `--window` out: chats are judged by their answers")
        if source.format == "preferences":
            return data.preference_dataset(source, tokenizer, template, length=config.length, part=part, **where)
        assert template is not None
        return data.chat_dataset(source, tokenizer, template, **options)
    if source.is_pairs:
        return data.pair_dataset(source, tokenizer, buckets=config.train.buckets or None, **options)
    return data.lm_dataset(source, tokenizer, across=config.train.across, sliding=sliding, **options)


def _check_start(config: RunConfig, vocab: int, training: data.Dataset) -> None:
    """Raises where weights that are read know fewer tokens than the tokenizer has."""
    if (start := config.init_from) is not None and (training.vocab or 0) > vocab:
        raise ConfigError(
            f"the data's tokenizer has {training.vocab} ids, and the weights of {start} know {vocab}",
            fix=f'read the data with their own tokenizer: `[tokenizer]` with `path = "{start}"`',
            at=config.place("tokenizer", "init_from"),
        )


def _template_of(config: RunConfig, source: data.Source) -> data.ChatTemplate | None:
    """How messages are written, where there are some; preferences may be plain texts."""
    if source.format not in data.WITH_ANSWERS:
        return None
    try:
        with _in_file(config, "data", "template"):
            return data.open_template(source.template, config.tokenizer.get("path"))
    except data.DataError:
        if source.format == "chat" or source.template is not None:
            raise
        return None


def _check_objective(config: RunConfig, source: data.Source) -> None:
    """Raises where what is to be learned cannot be learned from such data."""
    if config.is_dpo != (source.format == "preferences"):
        objective, fix = f'`train.objective` is "{config.train.objective}"', 'say `format = "preferences"` in `data`'
        raise ConfigError(
            f"{objective}, and {source.files[0]} is read as {source.format}",
            fix=f"{fix}: prompt, chosen, rejected" if config.is_dpo else 'say `objective = "dpo"` in `train`',
            at=config.place("train.objective", "data.format", "data"),
        )
    if config.is_dpo and isinstance(config.model, OwnModel):
        fact = f'`train.objective` is "dpo", and `{config.model.name}` is your own model'
        raise ConfigError(fact, fix="write its loss yourself, or train one of the library's by preferences")
    if source.format not in data.WITH_ANSWERS:
        return
    if not isinstance(config.model, LMConfig | OwnModel) or getattr(config.model, "prefix", False):
        raise ConfigError(
            f"`{config.model.name}` does not continue texts from left to right, and {source.files[0]} holds chats",
            fix='train a language model by them, e.g. `model = "tiny-lm"`',
        )


def _stride(config: RunConfig, source: data.Source) -> dict[str, int]:
    """How far apart windows of training begin; pairs, chats and documents are none."""
    stride = config.train.stride
    if stride is None:
        return {}
    is_whole = source.is_pairs or source.format in data.WITH_ANSWERS
    if is_whole or not config.train.pack:
        rows = "pairs of texts" if source.is_pairs else "chats" if is_whole else "documents, each a row of its own"
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
