"""Where operands meet: one placement, stored parameters gathered (FSDP).

Every op goes through `meet` and `Meeting.run`. Parameters stored split are gathered here, values that are equal over an
axis are made to vary here (which is where their gradients are summed), once per value however often it is used.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checks import is_whole
from ..compat import to_device
from ..dims import Dim, Shape, union
from ..dtypes import need_room
from ..errors import LayoutError, RegionError, TensorError
from ..layout import Axes, Placement, Region
from ..record import operand_scope
from ..tensor import (
    PLAIN,
    Kind,
    Tensor,
    as_dtype,
    check_tensor,
    is_tensor,
    make,
    marks_of,
    placement,
    with_kind,
    with_marks,
)
from . import fetch, padding
from .collectives import as_varying, is_level_of, level_of, varying
from .move import relocate, result
from .recorded import axes_brought_to, note_operands
from .stored import (
    as_operand,
    as_operand_on_host,
    fetch_whole,
    gather_stored,
    hoist,
    is_kept,
    is_stored,
    stand_in,
    sum_in,
)

_rematted: contextvars.ContextVar[bool] = contextvars.ContextVar("inside remat", default=False)
_keeping: contextvars.ContextVar[bool] = contextvars.ContextVar("what is gathered is kept", default=False)


@contextlib.contextmanager
def inside_remat(is_whole: bool = True) -> Iterator[None]:
    """While a function is traced that is recomputed as a whole (remat).

    Gathers then need no recomputation of their own. A loop inside it keeps what each turn needs while it is
    recomputed: in its body gathers do (`is_whole=False`).
    """
    token = _rematted.set(is_whole)
    try:
        yield
    finally:
        _rematted.reset(token)


@contextlib.contextmanager
def keeping_gathered() -> Iterator[None]:
    """While stored parameters are gathered once for both passes, but in loops.

    For what ends the forward pass, whose gradient is the first that is made: nothing is held longer than it is used.
    """
    token = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(token)


def is_rematted() -> bool:
    """Whether what is traced now is recomputed as a whole."""
    return _rematted.get()


class Meeting:
    """The region, dims, placement and `kind` that the operands of one op agree on."""

    def __init__(
        self, region: Region | None, dims: Shape, kind: Kind = PLAIN, *, split: Mapping[str, Axes] | None = None
    ):
        self.region, self.dims, self.kind = region, dims, kind
        if split is None or kind.store is not None:
            axes = region.placement(dims, kind.store) if region is not None else ((),) * len(dims)
            split = dict(zip(dims.names, axes, strict=True))
        self._axes = dict(split)

    def placement(self, dims: Sequence[Dim]) -> Placement:
        return tuple(self._axes[dim.name] for dim in dims)

    def local_sizes(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        """The shape of a local array with these dims."""
        if self.region is None:
            return tuple(dim.size for dim in dims)
        return self.region.local_sizes(dims, self.placement(dims))

    def axes(self, dims: Sequence[Dim]) -> Axes:
        """All axes these dims are split over."""
        return tuple(axis for dim in dims for axis in self._axes[dim.name])

    def ways(self, dim: Dim) -> int:
        """Into how many slices a dim is split."""
        return self.region.ways(self._axes[dim.name]) if self.region is not None else 1

    def run(self, compute: Callable[..., Any], xs: Sequence[Any], *, vary: Axes = ()) -> Any:
        """`compute` of the operands' local arrays, placed as they agreed.

        Plain numbers are passed on as they are. The arrays vary over the axes `vary` too, of an operand that they
        meet later.
        """
        if self.dims.is_padded:
            compute = self._guard_operands(compute, [x.dims if is_tensor(x) else () for x in xs])
        wants = [self.placement(x.dims) if is_tensor(x) else () for x in xs]
        if self.region is not None:
            note_operands(self.region, self._axes, xs, wants, stay_stored=self.kind.store is not None)
        if self.kind.cast_to is not None:
            xs = [
                with_kind(x, cast_to=None) if is_tensor(x) else x for x in xs
            ]  # the result is cast where it meets data
        if self.region is None:
            return compute(*(x.local_array if is_tensor(x) else x for x in xs))
        stored = [is_tensor(x) and is_stored(x, want) for x, want in zip(xs, wants, strict=True)]
        moved = [
            x if not is_tensor(x) else x.raw if stored[i] else _move(x, i, wants[i], self.region)
            for i, x in enumerate(xs)
        ]
        over = frozenset(vary).union(*map(_still_varying, xs, wants, moved))
        steps: list[Callable[[Any], Any]] = [_identity] * len(xs)
        for i, x in enumerate(xs):
            if stored[i]:
                moved[i], steps[i] = _gather_step(x, i, wants[i], self.region, over)
                if (fetched := fetch.take(x.raw, functools.partial(steps[i], moved[i]))) is not None:
                    steps[i], stored[i] = functools.partial(fetched.adopt, gather=steps[i]), False
            elif is_tensor(x):
                moved[i] = _vary(x, i, moved[i], wants[i], over)

        def gather_and_compute(*arrays: Any) -> Any:
            return compute(*(step(array) for step, array in zip(steps, arrays, strict=True)))

        # A gathered parameter is not kept for the backward pass: it is gathered again there.
        keeps = is_rematted() or all(
            not is_gathered or (_keeping.get() and is_level_of(x.raw))
            for x, is_gathered in zip(xs, stored, strict=True)
        )
        return (gather_and_compute if keeps else jax.checkpoint(gather_and_compute))(*moved)

    def _guard_operands(self, compute: Callable[..., Any], shapes: Sequence[Sequence[Dim]]) -> Callable[..., Any]:
        def guarded_compute(*arrays: Any) -> Any:
            return compute(*(self.guard(array, dims) for array, dims in zip(arrays, shapes, strict=True)))

        return guarded_compute

    def guard(self, array: Any, dims: Sequence[Dim]) -> Any:
        """The local array of these dims; no gradient flows back to its padding."""
        return padding.guard(array, dims, self.placement(dims))

    def fill(self, array: Any, dims: Sequence[Dim], value: Any, over: Sequence[Dim] | None = None) -> Any:
        """The local array with `value` in the padding, of the dims `over` where given."""
        return padding.fill(array, dims, self.placement(dims), value, over)


def _gather_step(
    x: Tensor, i: int, want: Placement, region: Region, over: frozenset[str]
) -> tuple[Any, Callable[[Any], Any]]:
    """What stands for a stored parameter among arrays, and what makes it whole."""
    lies = stand_in(x)
    vary = functools.partial(_vary, lies, i, lies.raw, placement(x), over)
    with operand_scope(i):
        array = as_operand(x, want, over, vary) if lies is x else as_operand_on_host(x, lies, want, over, vary)
    return array, functools.partial(gather_stored, x=lies, i=i, want=want, region=region, over=over)


def _still_varying(x: Any, want: Placement, array: Any) -> frozenset[str]:
    """The axes an operand varies over once it is gathered, if it is stored."""
    if not is_tensor(x):
        return frozenset()
    leaving = set().union(*placement(x)) - set().union(*want) if is_stored(x, want) else set()
    return varying(array) - leaving


def meet(
    xs: Sequence[Any],
    more: Sequence[Dim] = (),
    first: Sequence[Dim] = (),
    *,
    into: Sequence[Dim] | None = None,
    along: Dim | None = None,
    split: Mapping[str, Axes] | None = None,
) -> Meeting:
    """What the tensors among `xs` agree on.

    The op adds the dims `more`; the dims `first` come first. An op that only rearranges values says `into` which
    dims, and `along` which dim it goes, if it needs that one as it is used: its result is a parameter, stored so,
    where its operands are and these dims can be. An op that takes them split otherwise than the layout has it says
    how (`split`).
    """
    tensors = [check_tensor(x) for x in xs if is_tensor(x)]
    without = [x for x in tensors if isinstance(x.raw, jax.ShapeDtypeStruct)]
    if without:
        raise TensorError(
            f"{without[0]!r} holds a shape and no values",
            fix="give it to `wf.trace` among the arguments of the function, not closed over; or give it values",
        )
    region = common_region(tensors)
    kind = PLAIN if into is None else _kind_after(tensors, region, into, along)
    return Meeting(region, union(first, *(x.dims for x in tensors), more), kind, split=split)


def meet_apart(xs: Sequence[Tensor]) -> Meeting:
    """As `meet`, each tensor placed by itself: an axis may split a dim of each.

    For an op that brings such dims together itself, piece by piece (ring attention).
    """
    region = common_region(xs)
    axes: dict[str, Axes] = {}
    for x in xs:
        placed = region.placement(x.dims) if region is not None else ((),) * len(x.dims)
        for dim, own in zip(x.dims, placed, strict=True):
            if axes.setdefault(dim.name, own) != own:
                first, second = ("+".join(a) or "no axis" for a in (axes[dim.name], own))
                raise LayoutError(
                    f"`{dim.name}` is split over {first} in one operand, over {second} in another",
                    state="" if region is None else region.state,
                    fix=f"give `{dim.name}` a rule of its own",
                )
    meeting = Meeting(None, union(*(x.dims for x in xs)))
    meeting.region, meeting._axes = region, axes
    return meeting


def _kind_after(xs: Sequence[Tensor], region: Region | None, into: Sequence[Dim], along: Dim | None) -> Kind:
    """What is left of the kind of tensors that are only rearranged."""
    named = [x for x in xs if x.dims] or list(xs)  # one number says where, and is no part of the result
    frozen = all(x.kind.frozen for x in named)
    first = replace(named[0].kind, equal=frozenset(), frozen=frozen)
    alike = all(replace(x.kind, equal=frozenset(), frozen=frozen) == first for x in named)
    if first.sums is None:
        first = replace(first, cast_to=None)  # it lies on the host, and is cast where it is fetched
    if not alike or first.store is None or not _can_stay_stored(named, region, first.store, into, along):
        return Kind(frozen=frozen)
    return first


def _can_stay_stored(
    xs: Sequence[Tensor], region: Region | None, store: str, into: Sequence[Dim], along: Dim | None
) -> bool:
    if region is None:
        return True
    if any(x.region is not region or varying(x.raw) != varying(xs[0].raw) for x in xs):
        return False
    if along is not None and any(_axes_along(along, x, store) != _axes_along(along, x, None) for x in xs):
        return False
    return region.can_store(into, store)


def _axes_along(dim: Dim, x: Tensor, store: str | None) -> Axes:
    assert x.region is not None
    return x.region.placement(x.dims, store)[x.dims.position(dim.name)]


def note_together(xs: Sequence[Tensor]) -> None:
    """Records tensors as the op's operands, before it moves or renames some."""
    if (region := common_region(xs)) is not None:
        note_operands(region, {}, xs, [None if x.region is None else region.placement(x.dims) for x in xs])


def common_region(xs: Sequence[Tensor]) -> Region | None:
    """The innermost region of these tensors; each must stand in it or around it."""
    inner: Region | None = None
    for x in xs:
        if x.region is None or x.region.encloses(inner):
            continue
        if inner is not None and not inner.encloses(x.region):
            raise RegionError(
                f"{x!r} belongs to another region than the tensors it meets",
                state=x.region.state,
                fix="return it from its region and pass it into the other as an argument",
            )
        inner = x.region
    return inner


def operand(x: Any, what: str) -> Any:
    """`x`, if it can stand in an op: a tensor, or a number equal everywhere."""
    if is_tensor(x):
        return x
    if isinstance(x, bool | int | float | complex):
        if is_whole(x):
            need_room(x, as_dtype("uint64" if x >= 0 else "int64"))
        return x
    shape = getattr(x, "shape", None)
    if shape is None or not hasattr(x, "dtype"):
        raise _no_tensor(x, f"{what} got ", "", "give a tensor (`wf.tensor(array, dims)`) or a number")
    if shape != ():
        raise TensorError(
            f"{what} got a plain array of shape {tuple(shape)}, whose dims have no names",
            fix=f"name them: `wf.tensor(array, [{', '.join('...' for _ in shape)}])`",
        )
    need_room(x)
    if not isinstance(x, np.ndarray | np.generic) and (differing := varying(x) - axes_brought_to()):
        raise RegionError(
            f"{what} got a plain number that differs between processors (over {', '.join(sorted(differing))})",
            fix="make it a tensor by an op of its own: `wf.local(fn, ..., out=[...], summed=[...])`",
        )
    return x


def need_tensor(x: Any, what: str) -> Tensor:
    """`x`, if it is a tensor."""
    if not is_tensor(x):
        if getattr(x, "shape", ()) != ():
            operand(x, what)  # raises, and says how to name the dims
        raise _no_tensor(x, f"{what} got ", ", which has no dims", "give a tensor: `wf.tensor(array, dims)`")
    return check_tensor(x)


def _no_tensor(x: Any, before: str, after: str, fix: str) -> TensorError:
    """The error of what is no tensor.

    A value that knows what it lacks to be one (`lacks`) says so itself.
    """
    if isinstance(x, tuple | list) and any(map(is_tensor, x)):
        after, fix = "", "give one of them, e.g. `[0]` of it, or call this for each"
    what, cure = getattr(x, "lacks", (f"{type(x).__name__} {x!r:.60}{after}", fix))
    return TensorError(f"{before}{what}", fix=cure)


def _vary(x: Tensor, i: int, array: Any, want: Placement, over: frozenset[str]) -> Any:
    """`x`'s array, split as `want`, varying over `over`: once, where `x` was made."""
    missing = over - varying(array)
    if not missing:
        return array if x.kind.cast_to is None else array.astype(x.kind.cast_to)
    if not is_kept(x):
        with operand_scope(i):
            return as_varying(array, missing)
    made = x._memo.setdefault(("varying", want), {})
    if missing not in made:
        base: frozenset[str] = max((axes for axes in made if axes < missing), key=len, default=frozenset())
        with level_of(x.raw), operand_scope(i):
            if x.kind.sums is None:
                made[missing] = as_varying(made.get(base, array), missing - base)
            else:
                made[missing] = sum_in(lambda a: as_varying(a, missing), x.kind, missing)(array)
    return made[missing]


def _move(x: Tensor, i: int, want: Placement, region: Region) -> Any:
    have = placement(x)
    if have == want:
        return to_device(x.raw)

    def move() -> Any:
        with operand_scope(i):
            return relocate(to_device(x.raw), have, want, region)

    return hoist(x, ("moved", want), move)


def make_once(x: Tensor, key: Any, make: Callable[[], Tensor]) -> Tensor:
    """What `make` makes of `x`, once for all uses where `x` was made; anew in a loop."""
    if not is_kept(x) or not is_level_of(x.raw):
        return make()
    if key not in x._memo:
        x._memo[key] = make()
    return x._memo[key]


def _identity(array: Any) -> Any:
    return array


def vary_before_loop(x: Tensor, over: frozenset[str]) -> Tensor:
    """`x` varying as a loop's data does: its gradient is summed once, after the loop."""
    x = fetch_whole(x)
    missing = over - varying(x.raw)
    if x.region is None or not missing or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    kind = x.kind
    if kind.sums is None:
        array = as_varying(x.raw, missing)
    else:
        stored = replace(kind, cast_to=None) if kind.store is not None else kind  # it is cast where it is gathered
        array = sum_in(lambda a: as_varying(a, missing), stored, missing)(x.raw)
        kind = kind if kind.store is not None else replace(kind, cast_to=None)
    return make(array, x.dims, x.region, replace(kind, equal=kind.equal | missing))


def bring(x: Tensor, region: Region) -> Tensor:
    """`x` in this region, varying over the axes taken; made once, where `x` was."""
    if x.region is region and (x.kind.is_plain or x.kind.store) and varying(x.raw).issuperset(region.taken):
        return x  # a parameter stored in the region stays so until it is used
    if x.region is not None and not x.region.encloses(region):
        return x  # of no region around this one: the op it is given to says so

    def bring() -> Tensor:
        with region.record.unasked("whole"):
            array = Meeting(region, x.dims).run(_identity, [check_tensor(x)], vary=region.taken)
            return with_marks(result(array, x.dims, region), marks_of(x))

    return hoist(x, ("brought", region), bring)


def with_layout(x: Tensor, region: Region | None) -> Tensor:
    """`x` as a tensor of this region: a constant sliced, a parameter gathered."""
    if region is None or (x.region is region and x.kind.is_plain):
        return x
    meeting = Meeting(region, x.dims)
    with region.record.unasked("whole"):
        return result(meeting.run(_identity, [check_tensor(x)]), x.dims, region)
