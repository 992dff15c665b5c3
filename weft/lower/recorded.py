"""Every public op is `recorded`: it has an entry in its region's record."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from ..dims import UNSHOWN, Dim, list_dims
from ..errors import call, fold_frames
from ..kernels.choice import AttentionCase
from ..layout import Placement, Region, open_region
from ..record import Draft, NotedAttention, Placed, Record, Traits
from ..schedule import Schedule
from ..tensor import Tensor, is_tensor, placement
from . import eager

P = ParamSpec("P")
R = TypeVar("R")


_bring: contextvars.ContextVar[Callable[[Tensor, Region], Tensor] | None]
_bring = contextvars.ContextVar("brings what ops are given", default=None)


@contextlib.contextmanager
def bringing(bring: Callable[[Tensor, Region], Tensor]) -> Iterator[None]:
    """While ops get tensors that `bring` has brought into the region being traced."""
    token = _bring.set(bring)
    try:
        yield
    finally:
        _bring.reset(token)


def bring_in(tree: Any) -> Any:
    """The tree as an op gets it: where tensors are brought into the region, brought."""
    bring, region = _bring.get(), open_region()
    if bring is None or region is None:
        return tree
    return jax.tree.map(lambda leaf: bring(leaf, region) if is_tensor(leaf) else leaf, tree, is_leaf=is_tensor)


def axes_brought_to() -> frozenset[str]:
    """The axes over which a plain number may differ, as the tensors ops get do too."""
    region = open_region()
    return frozenset(region.taken) if region is not None and _bring.get() is not None else frozenset()


@overload
def recorded(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def recorded(
    *, name: str | None = None, is_compiled: bool = True, numbers_are_data: bool = False, **traits: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def recorded(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    is_compiled: bool = True,
    numbers_are_data: bool = False,
    **traits: Any,
) -> Any:
    """`fn`, an op, which leaves an entry in the record of the region it is called in.

    `traits` are what it says of itself (`weft.record.Traits`). Ops that it calls are part of it. Called on values, it
    is compiled as a whole (`eager`), which may treat its numbers as data; where its bits are those of a function of
    JAX's, as samples are, it is not.
    """
    run = functools.partial(eager.run_compiled, numbers_are_data=numbers_are_data) if is_compiled else None
    wrap: Any = functools.partial(_record_calls, name=name, traits=Traits(**traits), is_block=False, on_values=run)
    return wrap if fn is None else wrap(fn)


_BLOCK = "because it is the same on all of {axes} before, and differs there after"


def recorded_block(
    *, name: str | None = None, reason_else: str = _BLOCK, **traits: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `recorded`, for a loop or a branch: ops of its body have their own entries."""
    traits["reason_else"] = reason_else
    return functools.partial(_record_calls, name=name, traits=Traits(**traits), is_block=True)


def _record_calls(
    fn: Callable[P, R], *, name: str | None, traits: Traits, is_block: bool, on_values: Any = None
) -> Callable[P, R]:
    label = name or fn.__name__

    @fold_frames
    @functools.wraps(fn)
    def op(*args: P.args, **kwargs: P.kwargs) -> R:
        region = open_region()
        if region is None and on_values is not None:
            result = on_values(fn, args, kwargs)
            if result is not NotImplemented:
                return result
        if region is None or (not is_block and region.record.current is not None):
            return call(fn, args, kwargs)
        args, kwargs = bring_in((args, kwargs))
        with (region.record.block if is_block else region.record.op)(label, traits) as draft:
            result = call(fn, args, kwargs)
            _finish(draft, region, args, kwargs, result)
        return result

    return op


def _finish(draft: Draft, region: Region, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Notes of an op that has run what it was given and what it gives."""
    given, results = _tensors(args), _tensors(result)
    for x in (*given, *results):
        region.see(x.dims)
    draft.note(results=tuple(map(type_of, results)))
    if kwargs.get("over") is not None:
        over = [_name(dim) for dim in list_dims(kwargs["over"], "over")]
        draft.note(over=_leave_unshown(over) if draft.is_block else tuple(over))
    names = kwargs if draft.traits.is_rename else kwargs.get("rename") or {}
    draft.note(renamed={_name(old): _name(new) for old, new in names.items()})
    if not draft.is_block and not draft.noted.get("operands"):
        dims = {dim.name: axes for x in given for dim, axes in zip(x.dims, placement(x), strict=True)}
        _note(draft, given, [None] * len(given), stays_stored=any(x.kind.store is not None for x in results))
        draft.note(dims={**draft.noted.get("dims", {}), **dims})
    arrays = {id(x.raw) for x in given}
    draft.note(is_free=bool(results) and all(id(x.raw) in arrays for x in results))
    gradients = draft.noted.get("gradients", ())
    flows = any(gradients) or (None if draft.is_block or None in gradients else False)
    for x in results:
        x._memo.setdefault("entry", draft.id)
        if flows is not None:
            x._memo.setdefault("has_gradient", flows)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(leaf)]


def _leave_unshown(names: Iterable[str]) -> tuple[str, ...]:
    """The names of dims as programs show them; none for a dim that has none to show."""
    return tuple(name.removeprefix(UNSHOWN) for name in names if name != UNSHOWN)


@contextlib.contextmanager
def part_of_block() -> Iterator[None]:
    """While the loop being traced works by itself with ops: they are part of it."""
    record = region.record if (region := open_region()) is not None else Record()
    record.current, before = record.block_being_traced, record.current
    try:
        yield
    finally:
        record.current = before


def note_loop(over: str, *, examples: int = 1, schedule: Schedule | None = None) -> None:
    """Notes a loop's dim, how many examples run at once, and who works when."""
    if (region := open_region()) is not None and (draft := region.record.block_being_traced) is not None:
        known = {} if schedule is None else {"schedule": schedule}  # a loop inside leaves that of the pipeline
        draft.note(over=_leave_unshown([over]), examples=examples, **known)


def note_schedule(schedule: Schedule) -> None:
    """Notes of the op being traced who works on what when."""
    if (region := open_region()) is not None and (draft := region.record.current) is not None:
        draft.note(schedule=schedule)


def note_sharing(processors: int) -> None:
    """Notes that so many processors share the rows of the op being traced."""
    if (region := open_region()) is not None and (draft := region.record.current) is not None:
        draft.note(sharing=processors)


def note_over(dims: Sequence[Dim]) -> None:
    """Notes the dims the op being traced goes over, where no `over` of its own does."""
    if (region := open_region()) is not None and (draft := region.record.current) and not draft.noted.get("over"):
        draft.note(over=tuple(dim.name for dim in dims))


def note_choice(*choice: tuple[str, int]) -> None:
    """Notes what the op being traced sends, then what it could have, and their bytes."""
    if (region := open_region()) is not None and (draft := region.record.current):
        draft.note(choice=choice)


@contextlib.contextmanager
def note_attention(
    q: Tensor, k: Tensor, case: AttentionCase, *, block: int | None = None, kernel: str = ""
) -> Iterator[None]:
    """While a function writes out an attention, or calls the kernel that does it.

    With `block`, it is written as blocks of so many scores on one processor.
    """
    region = open_region()
    length, memory = (x.size(name) if x.dims.has(name) else 1 for x, name in ((q, "length"), (k, "memory_length")))
    attention = NotedAttention(length, memory, case, block, kernel)
    with region.record.attending(attention) if region is not None else contextlib.nullcontext():
        yield


def retrace(trace: Callable[[], R], previous: int | None) -> tuple[R, int]:
    """`trace()` of a body, and its mark; its entries from `previous` on are gone."""
    record = region.record if (region := open_region()) is not None else Record()
    if previous is not None:
        record.forget(previous)
    mark = record.mark
    return trace(), mark


def rehearse(trace: Callable[[], R]) -> R:
    """`trace()` of a body that is traced again next, under the same numbers."""
    record = region.record if (region := open_region()) is not None else Record()
    mark = record.mark
    made = trace()
    record.rewind(mark)
    return made


def note_operands(
    region: Region,
    dims: dict[str, Any],
    xs: Sequence[Any],
    wants: Sequence[Placement | None],
    *,
    stay_stored: bool = False,
) -> None:
    """Notes the operands of the op being traced, and how they are sharded to meet."""
    draft = region.record.current
    if draft is None:
        return
    if not draft.noted.get("operands"):
        _note(draft, xs, [None] * len(xs) if stay_stored else wants, stays_stored=stay_stored)
    draft.note(dims={**draft.noted.get("dims", {}), **dims}, taken=region.taken)


def _note(draft: Draft, xs: Sequence[Any], wants: Sequence[Placement | None], *, stays_stored: bool) -> None:
    draft.note(
        operands=tuple(type_of(x, want) if is_tensor(x) else None for x, want in zip(xs, wants, strict=True)),
        makers=tuple(x._memo.get("entry") if is_tensor(x) else None for x in xs),
        gradients=tuple(_has_gradient(x) if is_tensor(x) else False for x in xs),
        stays_stored=stays_stored,
    )


def _has_gradient(x: Tensor) -> bool | None:
    """Whether a gradient flows back to `x`; None where a function of JAX hides it."""
    if x.region is None or not jnp.issubdtype(x.dtype, jnp.inexact):
        return False
    return x._memo.get("has_gradient")


def type_of(x: Tensor, want: Placement | None = None) -> Placed:
    """The placed type of a tensor, with its store where that is finer than its use."""
    have = placement(x)
    is_finer = x.region is not None and have != x.region.placement(x.dims) and have != want
    return Placed(x.dtype, x.dims, have, x.kind.store if is_finer else None)


def _name(dim: Any) -> str:
    return dim.name if isinstance(dim, Dim) else str(dim)
