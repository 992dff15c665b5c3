"""From a folder to a model: all is checked, then each processor reads its slices."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from ..errors import WeftError, closest
from ..layout import Layout, Region
from ..mesh import Mesh
from ..nn.weights import Weight, path_text
from ..small_files import short
from ..spmd.place import sharding_of
from ..tensor import parameter
from .architecture import Architecture, Keys, find_foreign
from .files import CONFIG, Weights, WeightsError, read_json
from .mapping import Parameter, check_shapes, dtypes_of, parameters
from .table import ARCHITECTURES, DIFFERS, choose

_COMPARED = 2**24  # numbers of two tensors that are held at a time to compare them


class ModelFolder:
    """A folder that was opened: its architecture, its `config.json` and its tensors."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            fix = "give the folder that holds config.json"
            if not folder.is_absolute() and len(folder.parts) == 2 and not folder.parent.exists():
                fix = f"fetch it, and give that folder: `hf download {folder.as_posix()} --local-dir {folder.name}`"
            raise WeightsError(f"there is no folder {folder}", fix=fix)
        self.keys = Keys(read_json(folder / CONFIG), folder / CONFIG)
        name = self._model_type()
        self.weights = Weights(folder, ARCHITECTURES[name].unused)
        self.keys = Keys(self.keys.values, self.keys.path, len(self.weights.stored))
        self.architecture: Architecture = choose(name, self.weights.stored)

    def _model_type(self) -> str:
        name = self.keys.values.get("model_type")
        if not isinstance(name, str) or name not in ARCHITECTURES:
            said = f"says that it is {name!r:.60}" if "model_type" in self.keys.values else "has no `model_type`"
            known = ", ".join(f"`{family}`" for family in sorted(ARCHITECTURES))
            why = f" ({differs})" if (differs := self._find_difference(name)) else ""
            raise WeightsError(
                f"{self.keys.path} {said}, which weft cannot read{why}",
                fix=f"only these are read: {known}; another kind under one of these names computes wrong numbers",
            )
        return name

    def _find_difference(self, name: Any) -> str:
        """In what a family that is not read differs: as known, or as its file says."""
        if isinstance(name, str) and name in DIFFERS:
            return DIFFERS[name]
        foreign = [f"`{short(key)}`" for key in find_foreign(self.keys.values)]
        more = f" and {len(foreign) - 6} more" if len(foreign) > 6 else ""
        return f"its file says {', '.join(foreign[:6])}{more}, which change what is computed" if foreign else ""

    def config(self, changes: Mapping[str, Any]) -> Any:
        """The configuration that `config.json` stands for, with some fields changed."""
        made = self.architecture
        known = [field.name for field in dataclasses.fields(made.kind)]
        if (unknown := next((field for field in changes if field not in known), None)) is not None:
            raise WeightsError(
                f"this model has no `{unknown}` to change",
                state=f"folder: {self.weights.folder}, {unknown}={changes[unknown]!r}",
                fix=closest(unknown, known),
            )
        made.check_family(self.keys)
        self.keys = self.keys.resolve(made.aliases)
        fields: dict[str, Any] = {"name": self.weights.folder.resolve().name, "family": made.model_type}
        fields |= {**made.fixed, **self._dtypes()}
        fields |= made.fields(self.keys, self.weights.stored) | dict(changes)
        made.check_unread(self.keys)
        for field in ("layers", "experts"):
            self.keys.check_count(field, fields.get(field))
        try:
            return made.kind(**fields)
        except WeftError as error:  # of sizes that do not fit together, by our names for them
            raise type(error)(error.fact, state=f"config: {self.keys.path}", fix=error.fix) from None

    def _dtypes(self) -> dict[str, str]:
        """The largest tensor's dtype, and to compute in: bfloat16, or else float32."""
        stored = [x for x in self.weights.stored.values() if not re.fullmatch(self.architecture.unused, x.name)]
        if not stored:
            raise WeightsError(f"{self.weights.folder} holds no weights", fix="fetch them again")
        largest = max(stored, key=lambda x: x.bytes)
        is_wide = any(x.dtype == np.float16 for x in stored) or all(x.dtype == np.float32 for x in stored)
        return {"dtype": "float32" if is_wide else "bfloat16", "param_dtype": str(largest.dtype)}

    def names(self, params: Mapping[str, Parameter], copies: Mapping[str, str]) -> dict[str, str]:
        """What each tensor of the architecture is called in these files, if there."""
        stored, prefix = self.weights.stored, self.architecture.prefix
        originals = {original: copy for copy, original in copies.items() if copy in stored}
        names = {}
        for name in (name for param in params.values() for name in param.names()):
            older = self.architecture.older(name)
            candidates = (name, name.removeprefix(prefix), older, older.removeprefix(prefix), originals.get(name))
            if in_file := next((candidate for candidate in candidates if candidate in stored), None):
                names[name] = in_file
        return names


def check_folder(source: ModelFolder, config: Any) -> tuple[Any, dict[str, Parameter], dict[str, str]]:
    """The model without values, its parameters and tensors' names, if the files fit."""
    blueprint, weights = config.blueprint(), source.weights
    params = parameters(blueprint, source.architecture.entries(config), source.architecture.model_type)
    copies = source.architecture.copies(config)
    names = source.names(params, copies)
    check_shapes(params, weights, names, f"config: {source.keys.path}")
    _check_copies(weights, copies, names)
    _check_extra(source, {*names.values(), *copies})
    return blueprint, params, names


def load_model(source: ModelFolder, config: Any, mesh: Mesh | None, layout: Layout | None, dtype: str | None) -> Any:
    """The model with its weights; of `dtype`, if not of the files' own."""
    blueprint, params, names = check_folder(source, config)
    weights = source.weights
    dtypes = dict.fromkeys(params, np.dtype(dtype)) if dtype else dtypes_of(params, weights, names)
    region = None if mesh is None or layout is None else Region(mesh, layout)
    blueprint = blueprint if region is None else blueprint.on(region.mesh, region.layout)
    shardings = {path: _sharding(param, region) for path, param in params.items()}

    def load_weight(path: Sequence[Any], leaf: Any) -> Any:
        if not isinstance(leaf, Weight):
            return leaf
        name = path_text(path)
        param = params[name]

        def read(index: Sequence[slice]) -> np.ndarray:
            return param.read(index, weights, names, dtypes[name])

        return parameter(_read_sharded(param.dims.sizes, shardings[name], read), param.dims)

    return jax.tree_util.tree_map_with_path(load_weight, blueprint)


def _sharding(param: Parameter, region: Region | None) -> NamedSharding | None:
    """How the layout stores a parameter."""
    if region is None:
        return None
    return sharding_of(param.dims, "params", region)


def _read_sharded(
    shape: Sequence[int], sharding: NamedSharding | None, read: Callable[[Sequence[slice]], np.ndarray]
) -> Any:
    """An array of which each processor reads its slice; equal ones are read once."""
    if sharding is None:
        return jax.device_put(read([slice(0, size) for size in shape]))
    devices: dict[Any, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(tuple(shape)).items():
        ends = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
        devices.setdefault(ends, []).append(device)
    pieces = []
    for ends, holders in devices.items():
        values = read([slice(*part) for part in ends])
        pieces += [jax.device_put(values, device) for device in holders]
        del values  # no more than one slice is held beside what has been placed
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, pieces)


def _check_copies(weights: Weights, copies: Mapping[str, str], names: Mapping[str, str]) -> None:
    """Raises where a tensor that must equal another does not."""
    for copy, original in copies.items():
        original = names[original]
        if copy not in weights.stored or copy == original:
            continue
        one, other = weights.stored[copy], weights.stored[original]
        if one.shape != other.shape or not _is_equal(weights, copy, original):
            untie = "; or set `tie_word_embeddings` to false if the two are meant to differ"
            raise WeightsError(
                f"tensor `{copy}` in {weights.where(copy)} differs from `{original}`, with which it is tied",
                state=f"file: {weights.where(original)}",
                fix=f"take `{copy}` out{untie if copy == 'lm_head.weight' else ': weft has one table for both stacks'}",
            )


def _is_equal(weights: Weights, one: str, other: str) -> bool:
    rows, *columns = weights.stored[one].shape
    step = max(1, _COMPARED // max(1, int(np.prod(columns))))
    ranges = [[slice(at, min(at + step, rows))] + [slice(0, size) for size in columns] for at in range(0, rows, step)]
    return all(np.array_equal(weights.read(one, part), weights.read(other, part)) for part in ranges)


def _check_extra(source: ModelFolder, known: set[str]) -> None:
    """Raises where there is a tensor that no part of the model takes."""
    stored = source.weights.stored
    for name in stored:
        if name not in known and not re.fullmatch(source.architecture.unused, name):
            raise WeightsError(
                f"tensor `{short(name)}` in {source.weights.where(name)} has no place in a "
                f"{source.architecture.model_type}",
                state=f"config: {source.keys.path}",
                fix="take it out of the file; or `config.json` belongs to another model",
            )
