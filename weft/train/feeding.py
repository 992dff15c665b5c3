"""Batches on a mesh: each process reads the rows that its processors hold.

Imports the data, the models and the language. Every processor gets its slice of every row it holds.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from .. import data
from ..data.streams import OwnStream, StreamBatches
from ..dims import Dim, Shape
from ..layout import Layout, Region
from ..mesh import Mesh
from ..models import EncoderConfig, TransformerConfig
from ..spmd.place import sharding_of
from ..tensor import Tensor, make
from .own.model import OwnModel


class Feed:
    """Makes batches of a dataset and places them on a mesh; `dims` follow `batch`."""

    def __init__(
        self,
        model: TransformerConfig | OwnModel,
        mesh: Mesh,
        layout: Layout,
        *,
        seed: int,
        dims: Mapping[str, Sequence[str]] = MappingProxyType({}),
        beside: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.model, self.mesh, self.layout, self.seed, self.dims = model, mesh, layout, seed, dims
        self.beside = beside
        """What goes with every batch, and lies on the mesh already."""
        self.region = Region(mesh, layout)
        self.rows = self._rows_here()

    def batches(
        self, dataset: data.Dataset | OwnStream, rows: np.ndarray | None = None
    ) -> data.Batches | StreamBatches:
        """This process's rows of every batch, or those named, read ahead and placed."""
        rows = self.rows if rows is None else rows
        if isinstance(dataset, OwnStream):
            return StreamBatches(dataset, batch=self.model.batch, rows=rows, put=self.place)
        return data.Batches(dataset, batch=self.model.batch, seed=self.seed, rows=rows, put=self.place)

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The batch of all processes on the mesh, given this one's rows."""
        if isinstance(self.model, EncoderConfig) and "inputs" in batch:  # it masks words of whole texts itself
            batch = {"tokens" if name == "targets" else name: x for name, x in batch.items() if name != "inputs"}
        placed = {name: self._place(rows, self.dims.get(name, ("length",))) for name, rows in batch.items()}
        return {**placed, **self.beside}

    def _place(self, rows: np.ndarray, names: Sequence[str]) -> Tensor:
        """The tensor of all rows, of which each process holds some and reads no others."""
        size = self.model.batch
        sizes = dict(zip(("batch", *names), (size, *rows.shape[1:]), strict=False))
        dims = Shape(Dim(name, size) for name, size in sizes.items())

        def slice_of(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(size)
            begin = int(np.searchsorted(self.rows, first))
            return rows[(slice(begin, begin + last - first), *index[1:])]

        sharding = sharding_of(dims, None, self.region)
        return make(jax.make_array_from_callback(dims.sizes, sharding, slice_of), dims, None)

    def _rows_here(self) -> np.ndarray:
        """The rows of a batch that this process's processors hold."""
        size = self.model.batch
        sharding = sharding_of(Shape([Dim("batch", size)]), None, self.region)
        slices = sharding.addressable_devices_indices_map((size,)).values()
        held = {index[0].indices(size)[:2] for index in slices if index is not None}
        return np.concatenate([np.arange(*part) for part in sorted(held)])
