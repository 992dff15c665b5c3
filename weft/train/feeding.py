"""The data of a run, and batches for a mesh: each process reads the rows its processors hold, each processor its slice.

Imports the data, decoding, the configuration and the language.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import data
from ..dims import Dim, Shape
from ..layout import Layout, Region
from ..mesh import Mesh
from ..models import EncoderConfig, Seq2SeqConfig, TransformerConfig
from ..spmd.place import put, sharding_of
from ..tensor import Tensor, make, tensor
from .config import ConfigError, RunConfig
from .runs import CACHE


class Feed:
    """Makes batches of a dataset and places them on a mesh."""

    def __init__(self, model: TransformerConfig, mesh: Mesh, layout: Layout, *, seed: int):
        self.model, self.mesh, self.layout, self.seed = model, mesh, layout, seed
        self.region = Region(mesh, layout)
        self.rows = self._own_rows()

    def batches(self, dataset: data.Dataset, rows: np.ndarray | None = None) -> data.Batches:
        """This process's rows of every batch, or those named."""
        rows = self.rows if rows is None else rows
        return data.Batches(dataset, batch=self.model.batch, seed=self.seed, rows=rows)

    def placed(self, batch: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """The batch of all processes on the mesh, given this one's rows."""
        batch = self._of_model(batch)
        if jax.process_count() == 1:
            named = {name: tensor(array, self._dims(array)) for name, array in batch.items()}
            return put(named, mesh=self.mesh, layout=self.layout)
        return {name: self._joined(array) for name, array in batch.items()}

    def _of_model(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the model reads: an encoder hides words of whole texts itself."""
        if not isinstance(self.model, EncoderConfig) or "inputs" not in batch:
            return batch
        return {"tokens" if name == "targets" else name: x for name, x in batch.items() if name != "inputs"}

    def _dims(self, array: np.ndarray) -> Shape:
        return Shape(Dim(name, size) for name, size in zip(("batch", "length"), array.shape, strict=False))

    def _own_rows(self) -> np.ndarray:
        """The rows of a batch that lie on this process's processors."""
        size = self.model.batch
        lies = sharding_of(Shape([Dim("batch", size)]), None, self.region)
        found = lies.addressable_devices_indices_map((size,)).values()
        held = {index[0].indices(size)[:2] for index in found if index is not None}
        return np.concatenate([np.arange(*part) for part in sorted(held)])

    def _joined(self, array: np.ndarray) -> Tensor:
        """The tensor of all rows, of which each process holds some."""
        size = self.model.batch
        dims = Shape([Dim("batch", size), *list(self._dims(array))[1:]])

        def part(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(size)
            begin = int(np.searchsorted(self.rows, first))
            return array[(slice(begin, begin + last - first), *index[1:])]

        lies = sharding_of(dims, None, self.region)
        return make(jax.make_array_from_callback(dims.sizes, lies, part), dims, None)


# Opening.


def open_data(config: RunConfig, folder: Path, progress: data.Progress) -> tuple[Any, Any, Any]:
    """The tokenizer of a run, what it learns from, and what is held out; None for what there is not."""
    cache = folder / CACHE
    with _in_file(config, "data"):
        source = data.open_source(config.data)
    is_pair_model = isinstance(config.model, Seq2SeqConfig)
    if is_pair_model != source.is_pairs:
        needs, has = ("pairs of texts", "texts") if is_pair_model else ("texts", "pairs of texts")
        raise ConfigError(
            f"`{config.model.name}` learns from {needs}, and {source.files[0]} holds {has}",
            fix="choose a model of the other kind, or other data (`data.format` says how they are read)",
        )
    with _in_file(config, "tokenizer"):
        is_text = source.format != "tokens"
        tokenizer = data.open_tokenizer(config.tokenizer, source, cache, progress) if is_text else None
    how: dict[str, Any] = {"length": config.length, "pack": config.train.pack, "cache": cache, "progress": progress}
    make: Any = data.pair_dataset if source.is_pairs else data.lm_dataset
    how |= {"buckets": config.train.buckets or None} if source.is_pairs else {"across": config.train.across}
    is_held_out = bool(source.held_out) or source.held_apart is not None
    with _in_file(config, "data"):
        learned = make(source, tokenizer, part="train", **how)
        held_out = make(source, tokenizer, part="evaluation", **how) if is_held_out else None
    with _in_file(config, "model", "vocab"):
        data.check_vocab_of(learned, config.model.vocab)
    return tokenizer, learned, held_out


@contextlib.contextmanager
def _in_file(config: RunConfig, table: str, *keys: str) -> Iterator[None]:
    """Says of what is wrong with data where in the run's file, or on the command line, they are named.

    To blame are these `keys` of the table, or those that the error names or tells the values of.
    """
    try:
        yield
    except data.DataError as error:
        values = getattr(config, table)
        named = keys or [key for key, value in values.items() if f"`{key}`" in error.fact or _tells(error.fact, value)]
        at = config.place(table, *(f"{table}.{key}" for key in named))
        fact = f"in `{table}`: {error.fact}"
        raise data.DataError(fact, state=error.given_state, fix=error.fix, at=at) from error


def _tells(fact: str, value: Any) -> bool:
    """Whether a value stands in a text by itself.

    >>> _tells("there is no a/b.txt", "a/b.txt"), _tells("there is no a/b2.txt", 2)
    (True, False)
    """
    return re.search(rf"(?<![\w.]){re.escape(str(value))}(?![\w])", fact) is not None
