"""Weights before they have values, and how they get them: as shapes, whole, or each processor its own slice.

Imports what stands left of the models. Values follow from the key alone: no layout changes them, and a weight of
stacked layers holds what the layers' own weights would.
"""

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey, SequenceKey

from .. import ops as wf
from ..dims import Dim, Shape
from ..errors import TensorError
from ..layout import Layout, Region
from ..mesh import Mesh
from ..spmd.border import Spmd
from ..tensor import Tensor, parameter


@dataclass(frozen=True)
class Weight:
    """A weight to be made."""

    dims: Shape
    stddev: float | None = None
    """Of the normal distribution its first values are drawn from; without one they are all 1."""
    stack: Dim | None = None
    """The dim along which the weights of several layers are stacked."""

    @property
    def stored_dims(self) -> Shape:
        return self.dims if self.stack is None else Shape([self.stack, *self.dims])

    def stacked(self, along: Dim) -> "Weight":
        """The weights of several layers in one."""
        return replace(self, stack=along)


def normal(dims: Sequence[Dim], *, stddev: float) -> Any:
    """A `Weight` whose first values are normal, to stand where its tensor will."""
    return Weight(Shape(dims), stddev)


def ones(dims: Sequence[Dim]) -> Any:
    """A `Weight` whose first values are 1, to stand where its tensor will."""
    return Weight(Shape(dims))


def shape(weight: Weight) -> Tensor:
    """The weight as a parameter that holds a shape and no values."""
    return parameter(jax.ShapeDtypeStruct(weight.stored_dims.sizes, "float32"), weight.stored_dims)


def made(make: Callable[[Weight, Any], Tensor], blueprint: Any, key: Any) -> Any:
    """The tree with every `Weight` made, each with a key of its own: by its name, and its place in a list of layers."""
    is_key = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape != ():
        raise TensorError(f"a model was to be made with the key {key!r:.60}", fix="make one by `jax.random.key(seed)`")

    def at(path: Sequence[Any], weight: Weight) -> Tensor:
        name = ".".join(step.name for step in path if isinstance(step, GetAttrKey))
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        for turn in (step.idx for step in path if isinstance(step, SequenceKey)):
            own = jax.random.fold_in(own, turn)
        return make(weight, own)

    return jax.tree_util.tree_map_with_path(at, blueprint)


def whole(weight: Weight, key: Any) -> Tensor:
    """The weight as a parameter on one processor."""
    return parameter(_whole(weight.dims, weight.stack)(key, weight.stddev))


def in_place(weight: Weight, key: Any, *, region: Region) -> Tensor:
    """The weight as a parameter that lies as the region stores it; each processor makes its own slice."""
    stored = region.placement(weight.stored_dims, "params")
    rules = {dim.name: axes for dim, axes in zip(weight.stored_dims, stored, strict=True) if axes}
    make = _in_place(weight.dims, weight.stack, region.mesh, Layout(rules))
    return parameter(make(key, weight.stddev, wf.zeros([])))


# Weights of one shape share what was compiled. The deviation is an operand: folded into the sampler's own constants
# it could round otherwise in one program than in another.


@functools.cache
def _whole(dims: Shape, stack: Dim | None) -> Callable[..., Tensor]:
    return jax.jit(functools.partial(_first_values, dims, stack))


@functools.cache
def _in_place(dims: Shape, stack: Dim | None, mesh: Mesh, layout: Layout) -> Callable[..., Tensor]:
    return Spmd(functools.partial(_first_values, dims, stack), mesh, layout, quiet=True)


def _first_values(dims: Shape, stack: Dim | None, key: Any, stddev: Any, like: Tensor | None = None) -> Tensor:
    """Normal values, or ones; inside the region of `like`, this processor's slice of them."""

    def one_layer(key: Any, like: Tensor | None) -> Tensor:
        return wf.ones(dims, like=like) if stddev is None else wf.random.normal(key, dims, like=like) * stddev

    if stack is None:
        return one_layer(key, like)
    turns = wf.arange(stack, like=like)
    return wf.vmap(lambda turn: one_layer(jax.random.fold_in(key, turn.local_array), turn), over=stack)(turns)
