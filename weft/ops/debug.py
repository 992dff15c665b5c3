"""Looking at values while a program runs, and checking them.

`print` shows a global value once, wherever its slices lie; `check` raises after the call, with the first bad index.
"""

import builtins
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..dims import Shape
from ..errors import CheckError, TensorError, user_line
from ..layout import Region, open_region
from ..lower.collectives import all_gather_equal, as_varying, index, varying
from ..lower.meet import common_region, meet, need_tensor, operand, with_layout
from ..lower.move import equalize, relocate
from ..lower.recorded import recorded
from ..tensor import is_tensor, placement
from .uneven import or_padding

_LOOKS = "because {op} looks at the whole value"


@recorded(arguments_before=1, reason=_LOOKS)
def print(fmt: str, *xs: Any) -> None:
    """Prints `fmt.format(*xs)` with the global values of the tensors, once."""
    if not isinstance(fmt, str):
        raise TensorError(
            f"print got {type(fmt).__name__} for its text", fix="give a format: `wf.print('loss {}', loss)`"
        )
    xs = tuple(operand(x, "print") for x in xs)
    try:
        fmt.format(*(np.zeros(x.dims.sizes if is_tensor(x) else ()) for x in xs))
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise TensorError(
            f"print cannot put {len(xs)} values into {fmt!r}: {error}", fix="give one `{}` a value"
        ) from None
    region = common_region([x for x in xs if is_tensor(x)]) or open_region()
    _call_once(
        lambda *values: builtins.print(f"{fmt.format(*values)}\n", end="", flush=True),
        [whole_value(x) for x in xs],
        region,
    )


def whole_value(x: Any) -> Any:
    """The global array of a tensor, on every processor; a number as it is."""
    if not is_tensor(x) or x.region is None:
        return x.local_array if is_tensor(x) else x
    x = with_layout(x, x.region)
    array = relocate(x.raw, placement(x), ((),) * len(x.dims), x.region, all_gather_equal)
    return equalize(array, x.region)


_is_there: contextvars.ContextVar[tuple[Callable[[], Any], ...]]
_is_there = contextvars.ContextVar("whether what is traced is for this row", default=())


@contextlib.contextmanager
def only_where(is_there: Callable[[], Any]) -> Iterator[None]:
    """While a body is traced, run for all rows, that shows only those it is for."""
    token = _is_there.set((*_is_there.get(), is_there))
    try:
        yield
    finally:
        _is_there.reset(token)


def _call_once(fn: Any, arrays: list[Any], region: Region | None, also_where: Any = None) -> None:
    """Calls `fn` with the values when the program runs, on one processor alone.

    Where `also_where` is true, an array alike on all of them, each processor calls it.
    """
    if asked := [is_there() for is_there in _is_there.get()]:
        shown, arrays = fn, [functools.reduce(jnp.logical_and, asked), *arrays]
        fn = lambda is_there, *values: shown(*values) if is_there else None  # noqa: E731
    if region is None:
        jax.debug.callback(fn, *arrays)
        return
    axes = tuple(axis for axis in region.mesh.axes if axis not in region.taken)
    arrays = [as_varying(jnp.asarray(array), region.mesh.axes) for array in arrays]
    if not axes:  # a mapped dim has taken them all: every processor has examples of its own
        jax.debug.callback(fn, *arrays)
        return
    is_called = index(axes) == 0
    if also_where is not None:
        is_called = jnp.logical_or(is_called, _of_any_row(also_where))
    is_called = as_varying(is_called, region.mesh.axes)
    is_called = put_after(arrays, is_called)
    lax.cond(is_called, lambda *a: jax.debug.callback(fn, *a), lambda *a: None, *arrays)


@jax.custom_batching.custom_vmap
def _of_any_row(is_so: Any) -> Any:
    """A boolean that all rows of a mapped function share: true for any, true for all."""
    return is_so


@_of_any_row.def_vmap
def _(axis_size: int, in_batched: list[bool], is_so: Any) -> tuple[Any, bool]:
    return _of_any_row(jnp.any(is_so, axis=0) if in_batched[0] else is_so), False


def put_after(values: Sequence[Any], choice: Any) -> Any:
    """`choice` of a branch that shows these values, known no earlier than they.

    In a loop that is differentiated, JAX drops what a branch shows where it knows the choice before the values.
    """
    arrays = [jnp.asarray(x) for x in (choice, *values)]
    axes = frozenset().union(*map(varying, arrays))
    return lax.optimization_barrier([lax.stop_gradient(as_varying(array, axes)) for array in arrays])[0]


class Failures:
    """Failed checks of running programs; the call that waits for one raises them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[CheckError] = []
        self._calls = 0
        self.checks_traced = 0

    def report(self, error: CheckError) -> None:
        """Keeps an error for the call that waits; without one, raises it in the program.

        A program that is stopped by an error on one processor leaves the others waiting for it.
        """
        with self._lock:
            if self._calls:
                self._found.append(error)
                return
        raise error  # inside someone's own jit: JAX raises it when the program's effects are waited for

    @contextlib.contextmanager
    def raised_after(self) -> Iterator[None]:
        """A call that waits for what it runs, and then raises the first error found."""
        with self._lock:
            self._calls += 1
        failed: list[CheckError] = []
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                failed, self._found = self._found, []
        if failed:
            raise failed[0]


failures = Failures()


@recorded(reason=_LOOKS)
def check(predicate: Any, message: str, **tensors: Any) -> None:
    """Raises after the call where the predicate is false, with index and values."""
    if not isinstance(message, str):
        raise TensorError(
            f"check got {message!r} for its message", fix="give a text: `wf.check(x > 0, 'x is negative')`"
        )
    predicate = need_tensor(predicate, "check")
    if predicate.dtype != bool:
        raise TensorError(
            f"check got {predicate!r}, which holds no booleans", fix="compare first: `wf.check(x > 0, ...)`"
        )
    tensors = {name: operand(x, "check") for name, x in tensors.items()}
    meeting = meet([predicate, *tensors.values()])
    region = meeting.region
    dims = predicate.dims
    state, at = region.state if region is not None else "", user_line()
    failures.checks_traced += 1

    is_eager = region is None and not isinstance(predicate.raw, jax.core.Tracer) and open_region() is None

    def report(ok: Any, *values: Any) -> None:
        if not np.all(ok):
            named = dict(zip(tensors, values, strict=True))
            failures.report(_failure(message, (state, at), dims, np.asarray(ok), named, tensors))

    ok = whole_value(or_padding(predicate))
    values = [ok, *(whole_value(x) for x in tensors.values())]
    with failures.raised_after() if is_eager else contextlib.nullcontext():
        _call_once(report, values, region, also_where=jnp.logical_not(jnp.all(ok)))
        if is_eager:
            jax.effects_barrier()


def _failure(
    message: str, place: tuple[str, str], dims: Shape, ok: np.ndarray, values: dict[str, Any], tensors: dict[str, Any]
) -> CheckError:
    bad = np.unravel_index(int(np.argmin(ok)), ok.shape) if dims else ()
    at = dict(zip(dims.names, (int(i) for i in bad), strict=True))
    where = f" at [{' '.join(f'{name}={i}' for name, i in at.items())}]" if at else ""
    shown = []
    for name, value in values.items():
        named = tensors[name].dims if is_tensor(tensors[name]) else Shape()
        picked = np.asarray(value)[tuple(at.get(dim.name, slice(None)) for dim in named)]
        shown.append(f"{name}={picked}")
    count = int(np.size(ok) - np.sum(ok))
    return CheckError(
        f"check failed: {message}{where}" + (f" ({', '.join(shown)})" if shown else ""),
        state="   ".join(part for part in (f"{count} of {np.size(ok)} values fail", place[0]) if part),
        at=place[1],
        fix="the condition is yours: mend the values, or the check",
    )
