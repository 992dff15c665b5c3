"""A profile of some steps of a run, under the names of Weft's ops.

Imports the program's names. Ops run in JAX scopes of their names (`jvp(wf18_scan)/.../wf43_softmax`), which XLA keeps
for every instruction and the profile for every event.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from ..compat import wait_for
from ..errors import WeftError
from ..program.profile import name_events
from ..program.profiling import keep_own_scopes, start_profile

PROFILE = "profile"


class ProfileError(WeftError):
    """A profile of steps that there are not."""


class Profile:
    """Profiles the steps from `wanted[0]` up to `wanted[1]` of a run; None for none.

    The run goes on from step `at`. While it is entered it is running; left early, it is closed with the steps there
    were. Of several processes the first one's processors are profiled.
    """

    def __init__(
        self, folder: Path, wanted: tuple[int, int] | None, *, at: int, steps: int, say: Callable[[str], None]
    ):
        self.folder, self.say = folder / PROFILE, say
        self.first = self.last = self.done = -1
        self.is_running = False
        if wanted is None:
            return
        keep_own_scopes()
        first, last = wanted
        if first >= steps:
            raise ProfileError(
                f"`--profile {first}:{last}` begins after the last step, {steps}",
                fix=f"name steps below {steps}, or raise `train.steps`",
            )
        if at >= last:
            self.say(f"nothing is profiled: the run is at step {at} already, past `--profile {first}:{last}`")
            return
        self.first, self.last = max(first, at), min(last, steps)
        if (self.first, self.last) != (first, last):
            self.say(f"steps {self.first} to {self.last} are profiled: of {first}:{last} there are no others to come")

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self._close()
        elif self.first > self.done:
            self.say(f"nothing is profiled: training ended before step {self.first}")

    @contextlib.contextmanager
    def step(self, at: int) -> Iterator[None]:
        """While step `at` runs."""
        if at == self.first and jax.process_index() == 0:
            self._open()
        with jax.profiler.StepTraceAnnotation("train", step_num=at) if self.is_running else contextlib.nullcontext():
            yield
        self.done = at + 1
        if self.is_running and self.done == self.last:
            self._close()

    def _open(self) -> None:
        try:
            start_profile(self.folder)
            self.is_running = True
        except Exception as error:  # a profile is not worth a run
            self.say(f"NOT PROFILED: {_first_line(error)}")

    def _close(self) -> None:
        self.is_running = False
        try:
            try:
                for array in jax.live_arrays():
                    wait_for(array)
            finally:  # another profile may be wanted in this process
                jax.profiler.stop_trace()
        except Exception as error:
            self.say(f"NOT PROFILED: {_first_line(error)}")
            return
        try:
            is_named = name_events(self.folder) > 0
        except (OSError, ValueError, LookupError):  # another form of profile than the one that is known
            is_named = False
        names = "" if is_named else ", under XLA's names"
        read = f"`weft profile {self.folder.parent}` reads them, ui.perfetto.dev shows them"
        self.say(f"steps {self.first} to {self.done} are profiled in {self.folder}{names}; {read}")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
