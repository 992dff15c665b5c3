"""Every public op is `recorded`: it takes a number in its region's record, so that the printed program can name it."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from ..dims import UNSHOWN, Dim, listed
from ..errors import call, folded
from ..layout import Placement, Region, open_region
from ..record import Entry, Placed, Record
from ..tensor import Tensor, is_tensor, placement

P = ParamSpec("P")
R = TypeVar("R")


_bring: contextvars.ContextVar[Callable[[Tensor, Region], Tensor] | None]
_bring = contextvars.ContextVar("brings what ops are given", default=None)


@contextlib.contextmanager
def bringing(bring: Callable[[Tensor, Region], Tensor]) -> Iterator[None]:
    """While every op is given tensors that `bring` has brought into the region being traced."""
    token = _bring.set(bring)
    try:
        yield
    finally:
        _bring.reset(token)


def bring_in(tree: Any) -> Any:
    """The tree as an op is given it: as it is, but for where tensors are brought into the region first."""
    bring, region = _bring.get(), open_region()
    if bring is None or region is None:
        return tree
    return jax.tree.map(lambda leaf: bring(leaf, region) if is_tensor(leaf) else leaf, tree, is_leaf=is_tensor)


def axes_brought_to() -> frozenset[str]:
    """The axes over which a plain number may differ: ops are given tensors that do so too."""
    region = open_region()
    return frozenset(region.taken) if region is not None and _bring.get() is not None else frozenset()


def recorded(fn: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """`fn`, an op, which leaves an entry in the record of the region it is called in."""
    label = name or fn.__name__

    @folded
    @functools.wraps(fn)
    def op(*args: P.args, **kwargs: P.kwargs) -> R:
        region = open_region()
        if region is None or region.record.current is not None:
            return call(fn, args, kwargs)
        args, kwargs = bring_in((args, kwargs))
        with region.record.op(label) as entry:
            found = call(fn, args, kwargs)
            _finish(entry, region, args, kwargs, found)
        return found

    return op


def recorded_block(fn: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """`fn`, a loop or a branch, whose body's ops are entries of their own."""
    label = name or fn.__name__

    @folded
    @functools.wraps(fn)
    def op(*args: P.args, **kwargs: P.kwargs) -> R:
        region = open_region()
        if region is None:
            return call(fn, args, kwargs)
        args, kwargs = bring_in((args, kwargs))
        with region.record.block(label) as entry:
            found = call(fn, args, kwargs)
            _finish(entry, region, args, kwargs, found)
        return found

    return op


def _finish(entry: Entry, region: Region, args: Sequence[Any], kwargs: Any, found: Any) -> None:
    given = [leaf for leaf in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(leaf)]
    results = [leaf for leaf in jax.tree.leaves(found, is_leaf=is_tensor) if is_tensor(leaf)]
    for x in (*given, *results):
        region.see(x.dims)
    entry.results = [placed(x) for x in results]
    if kwargs.get("over") is not None:
        over = (_name(dim) for dim in listed(kwargs["over"], "over"))
        entry.over = tuple(name.removeprefix(UNSHOWN) if entry.is_block else name for name in over)
    names = kwargs if entry.op == "rename" else kwargs.get("rename") or {}
    entry.renamed = {_name(old): _name(new) for old, new in names.items()}
    if not entry.operands and not entry.is_block:
        _note(entry, given, [None] * len(given))
        entry.stays_stored = any(x.kind.store is not None for x in results)
        for x in given:
            entry.dims.update(zip(x.dims.names, placement(x), strict=True))
    arrays = {id(x.raw) for x in given}
    entry.is_free = bool(results) and all(id(x.raw) in arrays for x in results)
    flows = any(entry.gradients) or (None if entry.is_block or None in entry.gradients else False)
    for x in results:
        x._memo.setdefault("entry", entry.id)
        if flows is not None and "has_gradient" not in x._memo:
            x._memo["has_gradient"] = flows and entry.op != "stop_gradient"


@contextlib.contextmanager
def part_of_block() -> Iterator[None]:
    """While the loop being traced works by itself with ops: they are part of it."""
    record = region.record if (region := open_region()) is not None else Record()
    record.current, before = record.block_being_traced, record.current
    try:
        yield
    finally:
        record.current = before


def note_loop(turns: int | None, over: str) -> None:
    """Writes down how often the body of the loop being traced runs, and along which dim."""
    if (region := open_region()) is not None and (entry := region.record.block_being_traced) is not None:
        entry.turns, entry.over = turns, (over.removeprefix(UNSHOWN),)


def note_over(dims: Sequence[Dim]) -> None:
    """Writes down along which dims the op being traced goes, where no `over` of its own says so."""
    if (region := open_region()) is not None and (entry := region.record.current) is not None and not entry.over:
        entry.over = tuple(dim.name for dim in dims)


def forgetting(trace: Callable[[], R], previous: int | None) -> tuple[R, int]:
    """`trace()` of a body, and the mark where its entries start; those from the mark `previous` on no longer count."""
    record = region.record if (region := open_region()) is not None else Record()
    if previous is not None:
        record.forget(previous)
    mark = len(record.entries)
    return trace(), mark


def note_operands(
    region: Region,
    dims: dict[str, Any],
    xs: Sequence[Any],
    wants: Sequence[Placement | None],
    *,
    stay_stored: bool = False,
) -> None:
    """Writes down what the op being traced works on, and how its operands lie where they meet."""
    entry = region.record.current
    if entry is None:
        return
    if not entry.operands:
        _note(entry, xs, [None] * len(xs) if stay_stored else wants)
        entry.stays_stored = stay_stored
    entry.dims.update(dims)
    entry.taken = region.taken


def _note(entry: Entry, xs: Sequence[Any], wants: Sequence[Placement | None]) -> None:
    entry.operands = [placed(x, want) if is_tensor(x) else None for x, want in zip(xs, wants, strict=True)]
    entry.makers = [x._memo.get("entry") if is_tensor(x) else None for x in xs]
    entry.gradients = [_has_gradient(x) if is_tensor(x) else False for x in xs]


def _has_gradient(x: Tensor) -> bool | None:
    """Whether a gradient flows back to a tensor; None where a function of JAX's own hides it."""
    if x.region is None or not jnp.issubdtype(x.dtype, jnp.inexact):
        return False
    return x._memo.get("has_gradient")


def placed(x: Tensor, want: Placement | None = None) -> Placed:
    """The placed type of a tensor; where it is a parameter stored finer than it is used, both are told."""
    have = placement(x)
    is_finer = x.region is not None and have != x.region.placement(x.dims) and have != want
    return Placed(x.dtype, x.dims, have, x.kind.store if is_finer else None)


def _name(dim: Any) -> str:
    return dim.name if isinstance(dim, Dim) else str(dim)
