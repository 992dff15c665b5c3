"""Batches for a mesh: each process reads the rows its processors hold, and each processor gets its slice of them.

Imports the data, decoding and the language.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .. import data
from ..decode.prompts import rounded_up, ways_of
from ..dims import Dim, Shape
from ..layout import Layout, Region
from ..mesh import Mesh
from ..models import EncoderConfig, TransformerConfig
from ..spmd.place import put, sharding_of
from ..tensor import Tensor, make, tensor


def whole_batch(batch: int, mesh: Mesh, layout: Layout) -> int:
    """The batch, or the next larger one that divides over the processors its rows are split between."""
    return rounded_up(batch, ways_of(layout, mesh, "batch"))


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
