"""Running jitted programs: slices guarded, failed checks raised."""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..compat import wait_for
from ..mesh import Mesh
from ..ops.debug import failures
from .compiling import compiler_options
from .guard import check_slices
from .partition import Partition


class Jitted:
    """A jitted function that gives a partition; errors say `state` of its region.

    Profiles and compiled code call it by `name`.
    """

    def __init__(
        self,
        fn: Callable[..., Partition],
        name: str,
        mesh: Mesh | None,
        state: str,
        *,
        donate: int | tuple[int, ...] = (),
    ):
        def run(*args: Any) -> Partition:
            return fn(*args)

        run.__name__ = name
        self.run, self.donate, self.mesh, self.state = run, donate, mesh, state
        self._is_read = self._has_checks = False

    @functools.cached_property
    def jitted(self) -> Any:
        """The function as `jax.jit` has it, compiled as its processors want it."""
        return jax.jit(self.run, donate_argnums=self.donate, compiler_options=compiler_options(self.mesh))

    def __call__(self, *args: Any) -> Any:
        """The result as a tree; once it has run, failed checks (`wf.check`) raise.

        What is differentiated by someone else runs here too; in someone's own jit there is nothing to wait for yet.
        """
        with failures.raised_after():
            before = failures.checks_traced
            results = self._run(*args)
            self._has_checks = self._has_checks or failures.checks_traced > before
            if self._is_on_virtual_processors:
                _wait_for_earlier_calls(results.arrays)
            if self._has_checks:
                jax.effects_barrier()
        return results.combine()

    @functools.cached_property
    def _is_on_virtual_processors(self) -> bool:
        return self.mesh is not None and self.mesh.size > 1 and self.mesh.jax_mesh().devices.flat[0].platform == "cpu"

    def lower(self, *args: Any) -> Any:
        """As `jax.jit`'s."""
        return self.jitted.lower(*args)

    def _run(self, *args: Any) -> Partition:
        if not self._is_read:  # before it runs for the first time
            check_slices(self.jitted.trace(*args).jaxpr, self.state)
            self._is_read = True
        return self.jitted(*args)


_in_flight: collections.deque[Any] = collections.deque()
_MOST_IN_FLIGHT = 8


def _wait_for_earlier_calls(results: Sequence[Any]) -> None:
    """Keeps few calls in flight on virtual processors, given the last one's results.

    XLA's CPU client launches at most 32 programs a device ahead; past that some processors of a program are launched
    and others are not, and its collectives wait for each other until the process is aborted.
    """
    if not results or isinstance(results[0], jax.core.Tracer):
        return
    _in_flight.append(results[0])
    if len(_in_flight) > _MOST_IN_FLIGHT:
        wait_for(_in_flight.popleft())
