"""Microbatches: the same loss and gradient with less memory, and one gradient sum at the end."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import Dim, Shape, union
from ..errors import DimError, TensorError
from ..tensor import Tensor, checked, is_tensor, make, placement
from .control import scan
from .create import zeros
from .elementwise import add, cast
from .meet import gathered_for, need_function, operand, with_layout
from .move import settle
from .remat import remat
from .trees import map_tensors


def accumulate(
    fn: Callable[[Any, Any], tuple[Any, Any]], params: Any, data: Any, *, over: Any = "batch", count: int
) -> Tensor:
    """Σsum / Σweight, where `fn(params, microbatch)` gives (sum, weight), over `count` microbatches.

    Global row i goes to microbatch i mod count, so no row moves. Differentiated, gradients are summed over
    processors once, at the end.
    """
    need_function(fn, "accumulate")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DimError(f"accumulate got count={count!r}", fix="give a whole number of at least 1, e.g. `count=8`")
    name = over.name if isinstance(over, Dim) else over
    tensors = [leaf for leaf in jax.tree.leaves(data, is_leaf=is_tensor) if is_tensor(leaf) and leaf.dims.has(name)]
    if not tensors:
        raise DimError(
            f"no tensor of the data has dim `{name}`", fix="name the dim that is cut into microbatches: `over=`"
        )
    for leaf in jax.tree.leaves(data, is_leaf=is_tensor):
        if not is_tensor(leaf) and hasattr(leaf, "shape") and leaf.shape:
            operand(leaf, "accumulate")  # raises: the rows of a plain array cannot be dealt out
    union(*([x.dims.find(name)] for x in tensors))
    turn = Dim("microbatch", count)
    params = map_tensors(lambda x: gathered_for(x, tensors), params)

    def part(carry: Any, pieces: Any) -> tuple[Any, None]:
        found = iter(pieces)
        microbatch = map_tensors(lambda x: next(found) if x.dims.has(name) else x, data)
        result = fn(params, microbatch)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TensorError("accumulate's function gave no pair", fix="return `(sum, weight)`, two scalars")
        return tuple(_added(total, _scalar(x)) for total, x in zip(carry, result, strict=True)), None

    pieces = [_cut(x, name, turn) for x in tensors]
    (total, weight), _ = scan(remat(part), (zeros([]), zeros([])), pieces, over=turn)
    return total / weight


def _cut(x: Tensor, name: str, turn: Dim) -> Tensor:
    """`x` with its rows dealt out to the microbatches in turn, which no row has to leave its processor for."""
    x = with_layout(checked(x), x._region)
    position = x.dims.position(name)
    dim, ways = x.dims[position], x.ways(name)
    if dim.size % (ways * turn.size):
        step = ways * turn.size
        raise DimError(
            f"`{name}` (size {dim.size}, split {ways} ways) does not divide into {turn.size} microbatches",
            state=x._region.state if x._region is not None else "",
            fix=f"make it a multiple of {step} (nearest: {-(-dim.size // step) * step}), or choose another `count`",
        )
    local = x._array.shape[position] // turn.size
    shape = (*x._array.shape[:position], local, turn.size, *x._array.shape[position + 1 :])
    pieces = jnp.moveaxis(x._array.reshape(shape), position + 1, 0)
    dims = Shape([turn, *(d.resized(d.size // turn.size) if d.name == name else d for d in x.dims)])
    have = ((), *placement(x))
    return settle(pieces, dims, have, x._region)


def _scalar(x: Any) -> Any:
    if is_tensor(x) and x.dims:
        raise TensorError(
            f"accumulate's function gave {x!r} where a scalar is due", fix="sum it: `wf.sum(x, over=[...])`"
        )
    return x if is_tensor(operand(x, "accumulate")) else make(jnp.asarray(x), (), None)


def _added(total: Tensor, x: Tensor) -> Tensor:
    return add(total, cast(x, jnp.promote_types(x.dtype, "float32"))) if x.dtype != total.dtype else add(total, x)
