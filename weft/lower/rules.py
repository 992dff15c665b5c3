"""What layers ask of the layout that their tensors are under.

A layer says nothing about processors. A few choose between two ways to compute the same by what a rule says, and ask
here, so that they need not know what a region is.
"""

from collections.abc import Sequence

from ..dims import Dim
from ..tensor import Tensor


def ways_under(x: Tensor, dim: Dim) -> int:
    """Into how many slices the layout of `x` splits a dim, which `x` need not have."""
    return 1 if x.region is None else x.region.ways(x.region.axes([dim])[0])


def has_rule(x: Tensor, dim: Dim) -> bool:
    """Whether a rule names the dim, which errors then offer for one."""
    if x.region is None:
        return False
    x.region.see([dim])
    return dim.name in x.region.layout.rules


def can_be(x: Tensor, dims: Sequence[Dim]) -> bool:
    """Whether the layout of `x` can split all these dims in one tensor."""
    return x.region is not None and x.region.can_meet(dims)


def stores_parameters(x: Tensor) -> bool:
    """Whether rules store parameters otherwise than they are used (FSDP)."""
    return x.region is not None and bool(x.region.layout.params or x.region.layout.host["params"])


def state_of(x: Tensor) -> str:
    """The layout and the mesh of `x`, as an error shows them."""
    return "" if x.region is None else x.region.state
