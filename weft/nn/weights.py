"""Parameters before they have values, and their initialisation under any layout.

Imports the language. They are made as shapes, whole, or each processor its own slice. A module made without a key holds
a `Weight` in the place of each parameter; `init` gives them values. These follow from the key and the weight's path
alone: no layout changes them, and a weight of stacked layers holds what the layers' own weights would. A layer computes
in the dtype of its activations (mixed precision): `cast_weight`.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .. import ops as wf
from ..checks import is_real
from ..dims import Dim, Dims, Shape, list_dims, new_dims
from ..dtypes import is_key
from ..errors import DimError, RegionError, TensorError, public
from ..layout import Layout, LayoutLike, Region, as_layout, open_region
from ..mesh import Mesh, MeshLike, as_mesh
from ..ops.counter_dropout import drop
from ..spmd.border import SpmdFunction
from ..spmd.place import put
from ..tensor import Tensor, is_tensor, parameter, tensor, with_kind

STACKED = ("rounds", "stage", "layers")
"""The names of the dims along which layers are stacked."""


@public(form="nn.Weight([d_model, d_ff], stddev=0.02)")
@dataclass(frozen=True)
class Weight:
    """A parameter without values: its dims, and what its first values are drawn from.

    `nn.init` gives it values, each processor its own slice of them; until then it stands in the layer's place for it.
    """

    dims: Shape
    stddev: float = 0.0
    """Of the normal distribution its first values are drawn from."""
    mean: float = 0.0
    """Of that distribution; without a `stddev` the value of all."""
    stack: tuple[Dim, ...] = ()
    """The dims along which the weights of several layers are stacked: their numbers count row by row."""
    layers: int | None = None
    """How many layers there are, where the stack has room for more: those are zero."""
    dtype: str = "float32"
    is_trained: bool = True
    """Whether it is trained; else it is kept and saved with the weights, and has no gradient."""
    init: Callable[..., Tensor] | None = None
    """What draws its first values instead, called as `wf.random.uniform` is: `init(key, dims, like=like)`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", Shape(new_dims(self.dims, what="dims")))
        for name in ("stddev", "mean"):
            if not is_real(getattr(self, name)):
                fix = f"give a number: `nn.Weight(dims, {name}=0.02)`"
                raise TensorError(f"`{name}` of a weight [{self.dims}] is {getattr(self, name)!r:.60}", fix=fix)
        if self.stddev < 0:
            raise TensorError(f"`stddev` of a weight [{self.dims}] is {self.stddev}", fix="give a number from 0 on")
        if self.init is not None and (not callable(self.init) or self.stddev or self.mean):
            fact = f"`init` of a weight [{self.dims}] is {self.init!r:.60}"
            fact += f" beside stddev={self.stddev} and mean={self.mean}" if callable(self.init) else ""
            raise TensorError(fact, fix="give a function alone, e.g. `init=wf.random.uniform`, or `stddev` and `mean`")

    @property
    def lacks(self) -> tuple[str, str]:
        """What an op that is given it in place of a tensor says: the fact, and the fix."""
        return f"a weight [{self.stored_dims}] of a layer without values", "make them: `nn.init(layer, key)`"

    @property
    def stored_dims(self) -> Shape:
        """Its dims as they are stored: those of the stack first."""
        return Shape([*self.stack, *self.dims])

    @property
    def size(self) -> int:
        """How many numbers it holds, padding left out."""
        layers = math.prod(dim.count for dim in self.stack) if self.layers is None else self.layers
        return layers * math.prod(dim.count for dim in self.dims)


class LoraWeight(eqx.Module):
    """A weight with a LoRA adapter: to it the product of two of low rank is added."""

    weight: Tensor
    down: Tensor
    up: Tensor
    scale: float = eqx.field(static=True)

    @property
    def dims(self) -> Shape:
        return self.weight.dims


def cast_weight(weight: Any, dtype: Any) -> Tensor:
    """A weight in the dtype it is computed with, its LoRA adapter added."""
    if isinstance(weight, Weight):
        raise TensorError("a layer was called before its weights have values", fix="make them: `nn.init(layer, key)`")
    if not isinstance(weight, LoraWeight):
        return wf.cast(weight, dtype)
    low_rank = wf.einsum(wf.cast(weight.down, dtype), wf.cast(weight.up, dtype), out=weight.dims)
    return wf.cast(weight.weight, dtype) + weight.scale * low_rank


def cast_weights(module: Any, dtype: Any) -> Any:
    """The module with what its layers multiply with cast once, LoRA adapters added.

    A layer says by `computed` which of its weights it computes with in the dtype of its data; others stay as they are.
    """
    names = getattr(type(module), "computed", ())
    parts = {field.name: getattr(module, field.name, None) for field in dataclasses.fields(module)}
    new = {}
    for name, part in parts.items():
        if name in names and part is not None:
            new[name] = cast_weight(part, dtype)
        elif isinstance(part, eqx.Module) and not isinstance(part, LoraWeight):
            new[name] = cast_weights(part, dtype)
    if not new:
        return module
    return eqx.tree_at(lambda m: [getattr(m, name) for name in new], module, list(new.values()), is_leaf=is_tensor)


def normal(dims: Sequence[Dim], *, stddev: float, key: Any = None, name: str = "") -> Any:
    """A weight whose first values are normal; with a key, the parameter itself."""
    return _first(Weight(Shape(dims), stddev), key, name)


def full(dims: Sequence[Dim], value: float, *, key: Any = None, name: str = "", is_trained: bool = True) -> Any:
    """A weight whose first values are one number; with a key, the parameter itself."""
    return _first(Weight(Shape(dims), mean=value, is_trained=is_trained), key, name)


def _first(weight: Weight, key: Any, name: str) -> Any:
    return weight if key is None else init_whole(weight, key_for(check_key(key), name))


@public
def stack(module: Any, along: Dim | Sequence[Dim], layers: int | None = None) -> Any:
    """A module without values as several of them, stacked along dims of layers.

    `wf.scan` goes through them: `wf.scan(lambda x, layer: (layer(x), None), x, stacked, over="layers")`. Each has the
    values that it would have alone. Where the dims have room for more than `layers`, what is left over is zero.
    """
    dims: Any = (along,) if isinstance(along, Dim) else along
    if not isinstance(dims, Sequence) or not dims or not all(isinstance(dim, Dim) for dim in dims):
        raise DimError(f"`along` is {along!r}, which is no dim", fix="give a dim: `wf.Dim('layers', 12)`")
    declared = [leaf for leaf in jax.tree.leaves(module) if isinstance(leaf, Weight)]
    if not declared:
        fix = "make it without a key, with weights declared by their dims"
        raise TensorError(f"stack got {type(module).__name__}, with no weight to be given values", fix=fix)
    for weight in declared:
        if twice := next((dim for dim in dims if weight.stored_dims.has(dim)), None):
            fact = f"a weight [{weight.stored_dims}] cannot be stacked along `{twice.name}`, which it has already"
            raise DimError(fact, fix=f"give a dim of another name: `wf.Dim('{twice.name}_2', {twice.size})`")
    return map_weights(lambda weight: replace(weight, stack=tuple(dims), layers=layers), module)


def map_weights(fn: Callable[[Weight], Any], module: Any) -> Any:
    """The module with `fn` of every `Weight` in it."""
    return jax.tree.map(lambda leaf: fn(leaf) if isinstance(leaf, Weight) else leaf, module)


def count(module: Any) -> int:
    """How many numbers the weights of a module hold."""
    return sum(leaf.size for leaf in jax.tree.leaves(module) if isinstance(leaf, Weight))


@public
def init(
    module: Any, key: Any, mesh: MeshLike | None = None, layout: LayoutLike | None = None, *, dims: Dims | None = None
) -> Any:
    """The module with values for its weights.

    On a mesh each processor makes only its own slices of them; the values do not depend on the layout. `dims` are those
    that rules of the layout may name beside those of the weights: `dims="batch length"`.
    """
    check_key(key)
    if (mesh is None) != (layout is None):
        raise RegionError("init got only one of mesh and layout", fix="give both, or neither")
    if mesh is None:
        return _init_each(init_whole, module, key)
    if open_region() is not None:
        raise RegionError("init was called on a mesh inside a region", fix="call it outside, or without a mesh")
    mesh, layout = as_mesh(mesh), as_layout(layout)
    stored = [dim for leaf in jax.tree.leaves(module) if isinstance(leaf, Weight) for dim in leaf.stored_dims]
    known = {dim.name: dim for dim in stored}
    more = [] if dims is None else list_dims(dims, "dims")
    layout.check_dims([*known.values(), *(dim for dim in more if getattr(dim, "name", dim) not in known)])
    return _init_each(functools.partial(init_sharded, region=Region(mesh, layout)), module, key)


@public
def shapes(module: Any) -> Any:
    """The module with shapes in place of values, for `wf.trace`: nothing is made."""

    def shape(weight: Weight) -> Tensor:
        dims = weight.stored_dims
        return _as_parameter(weight, tensor(jax.ShapeDtypeStruct(dims.sizes, weight.dtype), dims))

    return map_weights(shape, module)


def check_key(key: Any) -> Any:
    """The key, if it is one."""
    if not is_key(key) or key.shape != ():
        raise TensorError(f"the key is {key!r:.60}", fix="make one by `jax.random.key(seed)`")
    return key


def _init_each(make: Callable[[Weight, Any], Tensor], module: Any, key: Any) -> Any:
    """The tree with every `Weight` made, each with a key of its own, by its path."""

    def at(path: Sequence[Any], weight: Any) -> Any:
        if not isinstance(weight, Weight):
            return weight
        return make(weight, key_for(key, path_text(path)))

    return jax.tree_util.tree_map_with_path(at, module)


def path_text(path: Sequence[Any]) -> str:
    """A path in a tree as text: `decoder.layers.attention.q`."""
    return ".".join(str(getattr(step, "name", getattr(step, "idx", getattr(step, "key", "")))) for step in path)


def fold_key(key: Any, part: int) -> Any:
    """The key of one part of what has a key; None of None."""
    return None if key is None else jax.random.fold_in(key, part)


def apply_dropout(x: Tensor, rate: float, key: Any) -> Tensor:
    """`x` with dropout by the counter generator, where a key is given."""
    return x if key is None or not rate else drop(x, rate, key)


def key_for(key: Any, name: str) -> Any:
    """The key of the weight of that name."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def init_whole(weight: Weight, key: Any) -> Tensor:
    """The weight as a parameter on one processor."""
    make = _compile_whole(_Form.of(weight))
    return _as_parameter(weight, make(key, weight.stddev, weight.mean))


def init_sharded(weight: Weight, key: Any, *, region: Region) -> Tensor:
    """The weight as a parameter sharded as stored; each makes its own slice."""
    store = "params" if weight.is_trained else None
    stored = region.placement(weight.stored_dims, store)
    rules = {dim.name: axes for dim, axes in zip(weight.stored_dims, stored, strict=True) if axes}
    make = _compile_sharded(_Form.of(weight), region.mesh, Layout(rules))
    values = _as_parameter(weight, make(key, weight.stddev, weight.mean, wf.zeros([], dtype="float32")))
    is_made = not isinstance(values.array, jax.core.Tracer)
    if not is_made or not region.is_on_host(weight.stored_dims, store):
        return values
    return put(values, mesh=region.mesh, layout=region.layout)  # at once: the next one needs the room


def _as_parameter(weight: Weight, values: Tensor) -> Tensor:
    """The values as a parameter; what is not trained is a frozen tensor."""
    return parameter(values) if weight.is_trained else mark_frozen(values)


def mark_frozen(x: Tensor) -> Tensor:
    """The tensor marked as one that no gradient is taken of."""
    return with_kind(x, frozen=True)


# Weights of one shape share what was compiled. The deviation is an operand: folded into the sampler's own constants
# it could round otherwise in one program than in another.


class _Form(NamedTuple):
    """What of a weight a compiled program depends on."""

    dims: Shape
    stack: tuple[Dim, ...]
    layers: int | None
    dtype: str
    init: Callable[..., Tensor] | None

    @classmethod
    def of(cls, weight: Weight) -> "_Form":
        return cls(weight.dims, weight.stack, weight.layers, weight.dtype, weight.init)


@functools.cache
def _compile_whole(form: _Form) -> Callable[..., Tensor]:
    return jax.jit(functools.partial(_first_values, form))


@functools.cache
def _compile_sharded(form: _Form, mesh: Mesh, layout: Layout) -> Callable[..., Tensor]:
    return SpmdFunction(functools.partial(_first_values, form), mesh, layout)


def _first_values(form: _Form, key: Any, stddev: Any, mean: Any, like: Tensor | None = None) -> Tensor:
    """First values; inside the region of `like`, this processor's slice of them."""

    def one_layer(key: Any, like: Tensor | None) -> Tensor:
        if form.init is not None:
            return _draw(form, key, like)
        return wf.cast(wf.random.normal(key, form.dims, like=like, dtype="float32") * stddev + mean, form.dtype)

    if not form.stack:
        return one_layer(key, like)

    def of_number(number: Tensor) -> Tensor:
        values = one_layer(jax.random.fold_in(key, number.local_array), number)
        return values if form.layers is None else wf.where(number < form.layers, values, 0)

    each = of_number
    for dim in reversed(form.stack):
        each = wf.vmap(each, over=dim)
    return each(number_along(form.stack, like))


def _draw(form: _Form, key: Any, like: Tensor | None) -> Tensor:
    """The values that a function of the user's draws, if they are of the weight."""
    assert form.init is not None
    values = form.init(key, form.dims, like=like)
    if not is_tensor(values) or set(values.dims) != set(form.dims):
        raise TensorError(
            f"the `init` of a weight [{form.dims}] gave {values!r:.80}",
            fix="draw all its dims, as `wf.random.uniform(key, dims, like=like)` does",
        )
    values = wf.broadcast(wf.cast(values, form.dtype), form.dims)
    if like is None:
        return values
    return values * wf.ones(form.dims, like=like, dtype=form.dtype)  # a slice, though all were drawn


def number_along(stack: Sequence[Dim], like: Tensor | None = None) -> Tensor:
    """The number of each place along these dims, counted row by row."""
    numbers = wf.arange(stack[-1], like=like)
    for i in range(len(stack) - 2, -1, -1):
        inside = math.prod(dim.size for dim in stack[i + 1 :])
        numbers = wf.arange(stack[i], like=like) * inside + numbers
    return numbers
