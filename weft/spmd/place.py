"""Placing global tensors on a mesh, and bringing them back."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ..compat import PINNED, has_host_memory
from ..dims import Shape
from ..dtypes import is_key, need_room
from ..errors import RegionError, public
from ..layout import Axes, LayoutLike, Region, as_layout, spec
from ..leaves import is_array
from ..mesh import MeshLike, as_mesh
from ..tensor import Tensor, check_not_donated, check_tensor, is_tensor, make


@public
def put(tree: Any, *, mesh: MeshLike, layout: LayoutLike) -> Any:
    """The tree with every tensor sharded over the mesh as the layout says.

    Parameters are placed as they are stored. With many processes each gives its own rows of a tensor that is split
    between them, and the result has the dims of all rows; parameters are given whole by all.
    """
    mesh = as_mesh(mesh)
    region = Region(mesh, as_layout(layout))
    devices = mesh.jax_mesh()

    def place(leaf: Any) -> Any:
        if is_tensor(leaf):
            leaf = _need_outside(leaf, "put")
            if jax.process_count() > 1 and leaf.kind.store is None and _is_local(leaf.raw):
                return _join_rows(leaf, region, devices)
            wanted = sharding_of(leaf.dims, leaf.kind.store, region)
            return make(put_array(leaf.raw, wanted), leaf.dims, None, leaf.kind)
        if is_array(leaf):
            check_not_donated(leaf)
            need_room(leaf)
            return put_array(leaf, NamedSharding(devices, PartitionSpec()))
        return leaf

    return jax.tree.map(place, tree, is_leaf=is_tensor)


def sharding_of(dims: Shape, store: str | None, region: Region, mesh: Any = None) -> NamedSharding:
    """The sharding of an array of these dims, stored so (`params`) or as any tensor.

    On the region's own mesh, or one without devices; its kind of memory is the host's where a rule says so and the
    devices have such.
    """
    mesh = region.mesh.jax_mesh() if mesh is None else mesh
    return NamedSharding(
        mesh, spec(region.placement(dims, store)), memory_kind=memory_kind(region.is_on_host(dims, store), mesh)
    )


def sharding_as_stored(x: Tensor, region: Region | None, dims: Shape | None = None) -> Sharding:
    """The sharding of a tensor as a layout stores it, or on the first device.

    Of one of other dims, where they are given.
    """
    if region is None:
        return SingleDeviceSharding(jax.devices()[0])
    return sharding_of(x.dims if dims is None else dims, x.kind.store, region)


def memory_kind(is_on_host: bool, mesh: Any) -> str | None:
    """The kind of memory of what a rule puts on the host, or of what none does."""
    return PINNED if is_on_host and has_host_memory(mesh) else None


def placed_shapes(tree: Any, region: Region, mesh: Any) -> Any:
    """The shapes of a tree's arrays with their shardings on any mesh."""

    def place(leaf: Any) -> Any:
        if not is_tensor(leaf):
            return placed_shape(leaf, NamedSharding(mesh, PartitionSpec()))
        fits = tuple(getattr(leaf.raw, "shape", ())) == leaf.dims.sizes
        sharding = (
            sharding_of(leaf.dims, leaf.kind.store, region, mesh) if fits else NamedSharding(mesh, PartitionSpec())
        )
        return make(placed_shape(leaf.raw, sharding), leaf.dims, None, leaf.kind)

    return jax.tree.map(place, tree, is_leaf=is_tensor)


def placed_shape(array: Any, sharding: NamedSharding) -> Any:
    """The array's shape with its sharding; what is no array as it is."""
    if not is_array(array):
        return array
    weak = getattr(array, "weak_type", False)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding, weak_type=weak)


@public
def get(tree: Any) -> Any:
    """The tree with NumPy arrays for tensors and arrays; padding is left out."""

    def fetch(leaf: Any) -> Any:
        array = _need_outside(leaf, "get").raw if is_tensor(leaf) else leaf
        if isinstance(array, jax.Array) and not is_key(array):
            array = np.asarray(array if array.is_fully_addressable else _whole(array))
        return array[leaf.dims.values] if is_tensor(leaf) and leaf.dims.is_padded else array

    return jax.tree.map(fetch, tree, is_leaf=is_tensor)


def put_array(array: Any, wanted: NamedSharding) -> Any:
    """One array where it is wanted; nothing happens if it is there already."""
    if isinstance(array, jax.Array):
        held = array.sharding
        if held == wanted or held.is_equivalent_to(wanted, array.ndim):  # the first is five times as fast
            return array
    if isinstance(array, int | float | complex):
        return array  # stays weakly typed
    if jax.process_count() > 1 and _is_local(array):
        if is_key(array):
            bits = put_array(jax.random.key_data(array), wanted)
            return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(array))
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, wanted, lambda index: whole[index])
    if isinstance(array, jax.Array) and len(array.sharding.device_set) == 1 and not is_key(array):
        array = np.asarray(array)  # JAX spreads a NumPy array over many devices hundreds of times faster
    return jax.device_put(array, wanted)


def _is_local(array: Any) -> bool:
    return not isinstance(array, jax.Array) or array.is_fully_addressable


def _join_rows(x: Tensor, region: Region, devices: Any) -> Tensor:
    """The global tensor of which each process holds some rows."""
    placed = region.axes(x.dims)
    dims = Shape(
        dim.resized(dim.size * region.ways(axes) // _local_ways(devices, axes))
        for dim, axes in zip(x.dims, placed, strict=True)
    )
    wanted = NamedSharding(devices, spec(region.placement(dims)))
    array = jax.make_array_from_process_local_data(wanted, np.asarray(x.raw), dims.sizes)
    return make(array, dims, None, x.kind)


def _local_ways(devices: Any, axes: Axes) -> int:
    """How many of the slices along these axes are on this process's devices."""
    names = list(devices.axis_names)
    here = [index for index, d in np.ndenumerate(devices.devices) if d.process_index == jax.process_index()]
    return len({tuple(index[names.index(axis)] for axis in axes) for index in here})


def check_values(arrays: Sequence[Any]) -> None:
    """Raises where a tensor holds only a shape."""
    for array in arrays:
        if isinstance(array, jax.ShapeDtypeStruct):
            raise RegionError(
                f"a tensor of shape {array.shape} holds no values (`jax.ShapeDtypeStruct`)",
                fix="give values, or read the program without them: `wf.trace(fn, ..., mesh=..., layout=...)`",
            )


def _whole(array: jax.Array) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(array, tiled=True)


def _need_outside(x: Tensor, what: str) -> Tensor:
    """`x`, which `wf.put` or `wf.get` can work on: with values, and in no region."""
    if x.region is not None or isinstance(x.raw, jax.core.Tracer):
        raise RegionError(
            f"wf.{what} was called on {x!r} inside a region or while it is traced", fix=f"call wf.{what} outside of it"
        )
    check_values([x.raw])
    return check_tensor(x)
