"""Weights of any module in safetensors, named by paths: `layers.attention.q`.

Read by what else reads safetensors. Writing gathers one weight at a time; reading, each processor reads its own slices.
`config.json` beside them says the dims of each.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..dims import Shape
from ..errors import RegionError, closest
from ..layout import LayoutLike, Region, as_layout, open_region
from ..leaves import with_array
from ..mesh import MeshLike, as_mesh
from ..nn import shapes
from ..nn.freezing import map_paths, tensors_by_path
from ..spmd.place import check_values, sharding_as_stored
from ..spmd.together import wait_for_all
from ..tensor import Tensor, is_tensor
from .files import DTYPES, SHARD_BYTES, FolderLike, Stored, Weights, WeightsError, check_free, write
from .saving import gather_whole


def save_weights(
    module: Any, folder: FolderLike, *, shard_bytes: int = SHARD_BYTES, note: Mapping[str, Any] | None = None
) -> None:
    """Writes all weights of a module into a new folder, named by their paths.

    `load_weights` reads them back, onto any mesh. `note` is added to `config.json`.
    """
    if open_region() is not None:
        raise RegionError("save_weights was called inside a region", fix="call it outside, on the module itself")
    folder, tensors = Path(folder), tensors_by_path(module)
    if not tensors:
        raise WeightsError(
            f"{type(module).__name__} has no weights with values", fix="make them: `nn.init(module, key)`"
        )
    check_values([x.array for x in tensors.values()])
    for path, x in tensors.items():
        if x.dtype not in DTYPES.values():
            fix = f"cast it to {', '.join(map(str, DTYPES.values()))}"
            raise WeightsError(f"weight `{path}` holds {x.dtype}", fix=fix)
    check_free(folder)
    wait_for_all(f"before saving {folder.name}")
    stored = [Stored(path, np.dtype(x.dtype), x.dims.sizes) for path, x in tensors.items()]
    values = (gather_whole(x.array) for x in tensors.values())
    if jax.process_index() == 0:
        dims = {path: " ".join(x.dims.names) for path, x in tensors.items()}
        write(folder, {**(note or {}), "format": "weft", "dims": dims}, stored, values, shard_bytes)
    else:
        for _ in values:  # takes its part in gathering
            pass
    wait_for_all(f"after saving {folder.name}")


def load_weights(
    module: Any, folder: FolderLike, mesh: MeshLike | None = None, layout: LayoutLike | None = None
) -> Any:
    """The module with the weights that `save_weights` wrote, sharded as stored.

    The module holds its weights without values, or others; it is what says their names and dims.
    """
    if (mesh is None) != (layout is None):
        raise RegionError("load_weights got only one of mesh and layout", fix="give both, or neither")
    if open_region() is not None:
        raise RegionError("load_weights was called inside a region", fix="call it outside, and hand the module in")
    region = None if mesh is None else Region(as_mesh(mesh), as_layout(layout))
    source = Weights(Path(folder))
    module = shapes(module)
    wanted = tensors_by_path(module)
    for name in sorted(wanted.keys() ^ source.stored.keys()):
        lacks, known = (folder, source.stored) if name in wanted else (f"`{type(module).__name__}`", wanted)
        raise WeightsError(f"{lacks} has no weight `{name}`", fix=f"{closest(name, known)}; make the same module")

    def read(path: str, x: Any) -> Any:
        if not is_tensor(x):
            return x
        have, want = source.stored[path], x.dims
        if have.shape != want.sizes:
            there = f"{list(have.shape)} in {source.where(path)}"
            fact = f"`{path}` has shape {there}, and is [{_list_sizes(want)}] in the module"
            raise WeightsError(fact, fix="make the module with the sizes it was saved with")
        return _read(source, path, x, region)

    return map_paths(read, module)


def _read(source: Weights, path: str, x: Tensor, region: Region | None) -> Tensor:
    dtype = np.dtype(x.dtype)
    sharding = sharding_as_stored(x, region)

    def slice_of(index: Any) -> np.ndarray:
        return np.asarray(source.read(path, index)).astype(dtype)

    return with_array(x, jax.make_array_from_callback(x.dims.sizes, sharding, slice_of))


def _list_sizes(dims: Shape) -> str:
    return " ".join(f"{dim.name}={dim.size}" for dim in dims)
