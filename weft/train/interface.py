"""One start of a run: its options, who listens to it, and its outcome."""

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import WeftError

NOTHING_LOST = "nothing saved, no step was taken"  # what is said of a start that ends before its first step
NONE_SINCE = "no step was taken since"  # and of one that would have gone on from a checkpoint


class TrainingError(WeftError):
    """A run that cannot go on: since which `step`, and what is `not_finite` of it."""

    def __init__(self, fact: str, *, fix: str, at: str | None = None, step: int | None = None, not_finite: str = ""):
        super().__init__(fact, fix=fix, at=at)
        self.step, self.not_finite = step, not_finite


class Listener(Protocol):
    """What a run tells of itself as it goes."""

    def say(self, text: str) -> None:
        """A message for people."""

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics."""

    def progress(self, what: str, done: int, whole: int) -> None:
        """How far something long has come."""

    def stage(self, what: str) -> contextlib.AbstractContextManager[Any]:
        """Something long that begins, and ends with the context."""

    def step(self, at: int, steps: int) -> None:
        """The end of a step."""


class NullListener:
    """A listener that ignores all; the base of one that takes some things only."""

    def say(self, text: str) -> None: ...

    def log(self, row: dict[str, Any]) -> None: ...

    def progress(self, what: str, done: int, whole: int) -> None: ...

    def stage(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def step(self, at: int, steps: int) -> None: ...


@dataclass(frozen=True)
class Options:
    """What a person asks of one start of a run, beside its configuration."""

    changed: bool = False
    """Whether it may go on with a configuration that learns otherwise."""
    find_nan: bool = False
    profile: tuple[int, int] | None = None
    """The steps that are profiled: from the first up to the second."""
    plan: bool = False
    """Whether it shows at the start what it will take, and says where that was far off."""
    is_own: bool = False
    """Whether the process is the run's alone, so that a signal which it cannot hear may end it."""
    command: str = ""
    """What goes on with the run, as it is said where a signal ends it."""


OPTIONS = Options()


@dataclass(frozen=True)
class Outcome:
    """How a run ended: at which step, of how many, and why if that was not the last."""

    step: int
    steps: int
    reason: str = ""
    is_saved: bool = True
    was_finished: bool = False
    """Whether there was nothing left to do."""
    is_begun: bool = True
    """Whether a step was taken; if not, there was nothing to save."""
    not_finite: str = ""
    """What is not finite at its end: `its last loss is nan`."""
    kept: int | None = None
    """The step of the last good checkpoint, where this one is not saved and there is one."""

    @property
    def is_finished(self) -> bool:
        """Whether it made all its steps."""
        return self.step >= self.steps


def before_a_step(at: int, steps: int, command: str = "") -> tuple[str, str]:
    """Where a start stands that is ended before its first step, and what is lost."""
    goes_on = f"; goes on with:\n  {command}" if command else ""
    return f"step {at} of {steps}", f"{NONE_SINCE if at else NOTHING_LOST}{goes_on}"
