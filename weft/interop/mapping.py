"""Which tensors of a file hold which parameter: one table for both directions.

Imports the language and `files`. A parameter has the dims of the model, those of all layers stacked; the file has one
tensor for each layer, its dims in another order, some joined to one axis, some tensors joined to one.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from ..dims import Dim, Shape
from ..nn.weights import STACKED, Weight, path_text
from .files import Weights, WeightsError


class Share(NamedTuple):
    """A part of a file's tensor: of `total` numbers along `axis`, from `start`.

    So it is for each place of the first `outer` dims of that axis: in GPT-NeoX for each head.
    """

    axis: int
    start: int
    total: int
    outer: int = 0


@dataclass(frozen=True)
class FileEntry:
    """A parameter and the tensors that hold it.

    `dims` are the axes of one such tensor, `*` between dims that are joined to one axis; what the model has no dim for
    is left out. The other dims of the parameter are numbers in the name: `h.{layers}.mlp.weight`.
    """

    path: str
    name: str
    dims: str
    layers: tuple[int | None, ...] = ()
    """The number in the file of each of the stacked layers; None for one that has no such tensor."""
    share: "Share | None" = None
    """The part of the tensor that is this parameter, where it holds several side by side."""
    ones: int = 0
    """How many axes of size 1 the tensor begins with."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a model and how it is stored in a file."""

    entry: FileEntry
    dims: Shape

    @property
    def axes(self) -> list[list[Dim]]:
        """The dims of each axis of the file's tensor."""
        names = [axis.split("*") for axis in self.entry.dims.split()]
        axes = [[self.dims.find(name) for name in axis if self.dims.has(name)] for axis in names]
        return [axis for axis in axes if axis]

    @property
    def counted(self) -> list[Dim]:
        """The dims that are numbers in the names of tensors."""
        inside = {dim.name for axis in self.axes for dim in axis}
        return [dim for dim in self.dims if dim.name not in inside]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of each of the file's tensors."""
        sizes = [math.prod(dim.count for dim in axis) for axis in self.axes]
        if (share := self.entry.share) is not None:
            sizes[share.axis] = self._outer_count(share) * share.total
        return (*self._ones, *sizes)

    def _outer_count(self, share: Share) -> int:
        return math.prod(dim.count for dim in self.axes[share.axis][: share.outer])

    @property
    def _ones(self) -> tuple[int, ...]:
        return (1,) * self.entry.ones

    def name(self, places: Sequence[int]) -> str:
        """The tensor that holds these places of the counted dims."""
        numbers: dict[str, int | None] = dict(zip((dim.name for dim in self.counted), places, strict=True))
        if "layers" in numbers:
            numbers["layers"] = self.entry.layers[self._layer(places)]
        return self.entry.name.format(**numbers)

    def _layer(self, places: Sequence[int]) -> int:
        """The number of a layer, which stages and rounds of a pipeline count row by row."""
        number = 0
        for dim, place in zip(self.counted, places, strict=True):
            number = number * dim.size + place if dim.name in STACKED else number
        return number

    def _is_padding(self, places: Sequence[int]) -> bool:
        """Whether these are places that no layer has, or one without such a tensor."""
        if not any(dim.name == "layers" for dim in self.counted):
            return False
        number = self._layer(places)
        return number >= len(self.entry.layers) or self.entry.layers[number] is None

    def places(self) -> Iterator[tuple[int, ...]]:
        everywhere = itertools.product(*(range(dim.count) for dim in self.counted))
        return (places for places in everywhere if not self._is_padding(places))

    def names(self) -> list[str]:
        """All tensors that hold this parameter."""
        return [self.name(places) for places in self.places()]

    def read(self, index: Sequence[slice], weights: Weights, names: Mapping[str, str], dtype: np.dtype) -> np.ndarray:
        """A slice of the parameter; only what it holds is read. Padding is zero."""
        wanted = {dim.name: range(*part.indices(dim.size)) for dim, part in zip(self.dims, index, strict=True)}
        values = np.zeros([len(part) for part in wanted.values()], dtype)
        inside = [dim for axis in self.axes for dim in axis]
        order = [self.dims.names.index(dim.name) for dim in (*self.counted, *inside)]
        in_files_order = values.transpose(order)
        ranges = [list(_file_ranges(axis, [wanted[dim.name] for dim in axis])) for axis in self.axes]
        if (share := self.entry.share) is not None:
            axis = self.axes[share.axis]
            ranges[share.axis] = list(_shared_ranges(share, axis, [wanted[dim.name] for dim in axis]))
        held = [range(wanted[dim.name].start, min(wanted[dim.name].stop, dim.count)) for dim in self.counted]
        for places in itertools.product(*held):
            if self._is_padding(places):
                continue
            name = self.name(places)
            at = [place - wanted[dim.name].start for place, dim in zip(places, self.counted, strict=True)]
            for block in itertools.product(*ranges):
                index_there: tuple[Any, ...] = (*at, *(part for _, targets in block for part in targets))
                target = in_files_order[index_there]
                ranges_there = [*map(slice, self._ones), *(part for part, _ in block)]
                read = weights.read(names.get(name, name), ranges_there)
                target[...] = read.reshape(target.shape)
        return values

    def put(self, tensor: np.ndarray, layer: np.ndarray) -> None:
        """Puts values at some places into the part of a file's tensor that is theirs."""
        share, values = self.entry.share, self.to_file(layer)
        assert share is not None
        axis, outer = share.axis % values.ndim, self._outer_count(share)
        before, after = values.shape[:axis], values.shape[axis + 1 :]
        values = values.reshape(*before, outer, -1, *after)
        there = tensor.reshape(*before, outer, share.total, *after)  # a view: the tensor is new, and whole
        there[(*(slice(None),) * (axis + 1), slice(share.start, share.start + values.shape[axis + 1]))] = values

    def to_file(self, layer: np.ndarray) -> np.ndarray:
        """One tensor of the file, or its part of one, from values at some places."""
        left = [dim for dim in self.dims if dim not in self.counted]
        inside = [dim for axis in self.axes for dim in axis]
        values = layer[tuple(slice(dim.count) for dim in left)].transpose([left.index(dim) for dim in inside])
        return values.reshape([*self._ones, *(math.prod(dim.count for dim in axis) for axis in self.axes)])


def _shared_ranges(share: Share, dims: Sequence[Dim], wanted: Sequence[range]) -> Iterator[tuple[slice, list[slice]]]:
    """As `_file_ranges`, of a part of an axis."""
    outer, inner = dims[: share.outer], dims[share.outer :]
    inside = list(_file_ranges(inner, wanted[share.outer :])) if inner else [(slice(0, 1), [])]
    held = [range(part.start, min(part.stop, dim.count)) for dim, part in zip(outer, wanted, strict=False)]
    for places in itertools.product(*held):
        start = 0
        for place, dim in zip(places, outer, strict=True):
            start = start * dim.count + place
        start = start * share.total + share.start
        targets = [slice(place - part.start, place - part.start + 1) for place, part in zip(places, held, strict=True)]
        for part, rest in inside:
            yield slice(part.start + start, part.stop + start), targets + rest


def _file_ranges(dims: Sequence[Dim], wanted: Sequence[range]) -> Iterator[tuple[slice, list[slice]]]:
    """The ranges of an axis that hold the wanted places of its dims; where each goes."""
    ends = [min(part.stop, dim.count) for dim, part in zip(dims, wanted, strict=True)]
    held = [range(part.start, max(end, part.start)) for part, end in zip(wanted, ends, strict=True)]
    if not all(held):
        return  # all of it is padding
    last = max((i for i, dim in enumerate(dims) if len(held[i]) < dim.count), default=0)
    inner = math.prod(dim.count for dim in dims[last + 1 :])
    rest = [slice(0, len(part)) for part in held[last:]]
    for outer in itertools.product(*held[:last]):
        start = 0
        for place, dim in zip(outer, dims, strict=False):
            start = start * dim.count + place
        start *= dims[last].count
        targets = [slice(place - part.start, place - part.start + 1) for place, part in zip(outer, held, strict=False)]
        yield slice((start + held[last].start) * inner, (start + held[last].stop) * inner), targets + rest


def parameters(blueprint: Any, entries: Sequence[FileEntry], model_type: str) -> dict[str, Parameter]:
    """The parameters of a model without values, by path; each has one entry."""
    leaves = jax.tree_util.tree_leaves_with_path(blueprint)
    dims = {path_text(path): leaf.stored_dims for path, leaf in leaves if isinstance(leaf, Weight)}
    named = {entry.path: entry for entry in entries}
    for path in sorted(dims.keys() ^ named.keys()):
        fact = "has a weight `{}` that a {} lacks" if path in dims else "lacks a weight `{}` that a {} has"
        raise WeightsError(
            f"with these changes the model {fact.format(path, model_type)}",
            fix="leave out the changes that make it another kind of model, like `bias`, `norm`, `gated`, `positions`",
        )
    return {path: Parameter(entry, dims[path]) for path, entry in named.items()}


def dtypes_of(params: Mapping[str, Parameter], weights: Weights, names: Mapping[str, str]) -> dict[str, np.dtype]:
    """The dtype of each parameter's tensors; all layers must have the same."""
    dtypes = {}
    for path, parameter in params.items():
        first, *others = (weights.stored[names.get(name, name)] for name in parameter.names())
        if other := next((tensor for tensor in others if tensor.dtype != first.dtype), None):
            raise WeightsError(
                f"tensor `{first.name}` holds {first.dtype} and `{other.name}` {other.dtype}; layers are stacked",
                state=f"file: {weights.where(other.name)}",
                fix="say which they shall have, e.g. `load(folder, param_dtype='float32')`",
            )
        dtypes[path] = first.dtype
    return dtypes


def check_shapes(params: Mapping[str, Parameter], weights: Weights, names: Mapping[str, str], state: str) -> None:
    """Raises where a tensor is missing or has another shape than the model's."""
    for parameter in params.values():
        for name in parameter.names():
            tensor = weights.stored.get(names.get(name, name))
            if tensor is None:
                raise WeightsError(
                    f"there is no tensor `{name}` in {weights.where(name)}",
                    state=state,
                    fix="fetch the weights again; or `config.json` belongs to another model",
                )
            if tensor.shape != parameter.shape:
                wanted = f"{list(parameter.shape)} ({parameter.entry.dims})"
                raise WeightsError(
                    f"tensor `{tensor.name}` in {weights.where(tensor.name)} has shape {list(tensor.shape)}, "
                    f"and the model wants {wanted}",
                    state=state,
                    fix="fetch the weights again; or `config.json` belongs to another model",
                )


def tensors_to_write(
    params: Mapping[str, Parameter], dtypes: Mapping[str, np.dtype]
) -> dict[str, list[tuple[str, Any]]]:
    """The parameters and places each tensor is made of."""
    made_of: dict[str, list[tuple[str, Any]]] = {}
    for path, parameter in params.items():
        for places in parameter.places():
            made_of.setdefault(parameter.name(places), []).append((path, places))
    in_files_order = sorted(made_of, key=lambda name: (-dtypes[made_of[name][0][0]].itemsize, _natural(name)))
    return {name: made_of[name] for name in in_files_order}


def _natural(name: str) -> list[Any]:
    """A key that sorts layer 10 behind layer 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]
