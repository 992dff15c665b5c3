"""What a turn of a loop keeps for its backward pass, and what it makes again.

Imports the table of primitives. All that a turn keeps the loop stacks: it is written, held and read once more. What is
cheap to make of values that are there anyway is not kept: a slice of the weights in the dtype it is computed with, a
wide copy of a narrow activation, a product with a scale.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..graph import visits
from ..primitives import ELEMENTWISE, Role, kind_of, row_named, row_of

_FREE = frozenset({Role.RESHAPE, Role.VARY, Role.BROADCAST})
_CHEAP = 2
"""With how many operations an element a value is made again, at most: sums, products, comparisons, casts."""
_SLACK = 1.3
"""By how much what a value is made of may be larger than it is: by a mask, by a scale."""


def keep_little(turn: Callable[..., Any], jaxpr: Any, stacks: Sequence[Any]) -> Callable[..., Any]:
    """`turn`, which keeps little; it has a slice of each of `stacks`.

    A turn that says itself what is made again (remat, stored parameters that are gathered) is left as it is, and so is
    one that prints or checks, which would do it twice.
    """
    if any(kind_of(visit.eqn) in (Role.REMAT, Role.CALLBACK) for visit in visits(jaxpr)):
        return turn
    slices = {(x.shape[1:], x.dtype) for x in stacks}

    def is_kept(primitive: Any, *operands: Any, **params: Any) -> bool:
        return not _is_made_again(primitive.name, operands, params, slices)

    return jax.checkpoint(turn, policy=is_kept, prevent_cse=False)


def _is_made_again(
    name: str, operands: Sequence[Any], params: Mapping[str, Any], slices: Collection[tuple[Any, Any]]
) -> bool:
    """Whether a result is cheap, and no smaller than what it is made of."""
    called = params.get("call_jaxpr")
    rows = [row_named(name)] if called is None else [row_of(visit.eqn) for visit in visits(called.jaxpr)]
    kinds = {row.kind for row in rows}
    if not kinds <= ELEMENTWISE | _FREE | {Role.CALL} or sum(row.work for row in rows) > _CHEAP:
        return False
    if kinds <= _FREE:
        return True
    if kinds == {Role.CAST} and (operands[0].shape, operands[0].dtype) in slices:
        return True
    size = max(math.prod(x.shape) for x in operands)
    dtype = params["new_dtype"] if "new_dtype" in params else operands[-1].dtype
    width = 2 if kinds == {Role.COMPARE} else jnp.dtype(dtype).itemsize  # a mask of bfloat16 is made of it again
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in operands) <= _SLACK * size * width
