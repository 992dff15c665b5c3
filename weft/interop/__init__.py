"""Hugging Face weights in safetensors, of the families in `table`.

Reading is streamed: each processor reads its own slices of the files and nothing else. Writing gathers one tensor of
the file at a time. Everything that can be wrong with a folder or a model is said before the first array is made.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RegionError
from ..layout import LayoutLike, as_layout, open_region
from ..mesh import MeshLike, as_mesh
from ..namespace import namespace as _namespace
from .by_path import load_weights, save_weights
from .companions import carry
from .files import SHARD_BYTES, FolderLike, WeightsError
from .loading import ModelFolder, load_model
from .saving import save_model


def read_config(folder: FolderLike, **changes: Any) -> Any:
    """The configuration of the model in a folder, with some fields changed."""
    return ModelFolder(Path(folder)).config(changes)


def load(folder: FolderLike, mesh: MeshLike | None = None, layout: LayoutLike | None = None, **changes: Any) -> Any:
    """The model in a folder, sharded as the layout stores it.

    On a mesh each processor reads only its own slices. `changes` are fields of its configuration (`remat=False`).
    Weights keep the type they have in the file, unless `param_dtype` says otherwise; it computes in bfloat16 where they
    are bfloat16, else in float32 (also float16 ones: `dtype="bfloat16"` is faster, and rounds their numbers).
    """
    if (mesh is None) != (layout is None):
        raise RegionError("load got only one of mesh and layout", fix="give both, or neither")
    if open_region() is not None:
        raise RegionError("load was called inside a region", fix="call it outside, and hand the model in")
    source = ModelFolder(Path(folder))
    config = source.config(changes)
    dtype = config.param_dtype if "param_dtype" in changes else None
    if mesh is None:
        return load_model(source, config, None, None, dtype)
    mesh, layout = as_mesh(mesh), as_layout(layout)
    layout.check_dims(config.dims)
    return load_model(source, config, mesh, layout, dtype)


def save(
    model: Any,
    folder: FolderLike,
    *,
    shard_bytes: int = SHARD_BYTES,
    keys: Mapping[str, Any] | None = None,
    like: FolderLike | None = None,
    tokenizer: bool = True,
) -> None:
    """Writes the model as `transformers` reads it.

    The folder is whole when it is there, and nothing may be in it before. A file holds at most `shard_bytes`, unless
    one tensor alone has more. `keys`, such as `{"eos_token_id": 2}`, are added to `config.json`: what weft has no field
    for. `like` is the folder the model was read from: what weft has no use for is taken from there, that is the other
    keys of its `config.json`, `generation_config.json`, and, unless `tokenizer` is false, the tokenizer's files.
    """
    if open_region() is not None:
        raise RegionError("save was called inside a region", fix="call it outside, on the model itself")
    save_model(model, Path(folder), shard_bytes, dict(keys or {}), None if like is None else Path(like), tokenizer)


__all__ = ["SHARD_BYTES", "WeightsError", "carry", "load", "load_weights", "read_config", "save", "save_weights"]

__dir__, __getattr__ = _namespace(globals(), called="interop")
