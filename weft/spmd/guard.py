"""The guard: plain JAX functions may not look along slices as if they were the whole.

A tensor is a pytree, so inside a region `jax.tree.map(jax.nn.softmax, x)` or an Optax transformation reaches its
slice. What works on each value alone is right on slices too; a sum, a sort or a product would be that of one slice,
and numbers by place (`jnp.arange`, `jax.random`) would begin anew on each. The traced region is read once, before
it is compiled, for such work on slices outside every op of Weft. Who asks for a slice by `.local_array`, or sends by
hand, knows of slices, and is let be.
"""

import os
import re
from typing import Any

import jax
from jax.extend import source_info_util
from jax.extend.core import Literal

from ..errors import TensorError, short_path
from ..graph import Visit, visits
from ..primitives import Kind, given_name, is_elementwise, row_of
from ..record import is_source, is_within_op
from ..tensor import SLICE

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


class Guarded:
    """A jitted function whose regions are read before it runs for the first time."""

    def __init__(self, jitted: Any, state: str):
        self.jitted, self.state, self.is_read = jitted, state, False

    def __call__(self, *args: Any) -> Any:
        if not self.is_read:
            check_slices(self.jitted.trace(*args).jaxpr, self.state)
            self.is_read = True
        return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        """As `jax.jit`'s."""
        return self.jitted.lower(*args)


def check_slices(closed: Any, state: str) -> None:
    """Raises where a region of a traced program, told by `state`, has a plain function look along slices."""
    for visit in visits(closed.jaxpr):
        if row_of(visit.eqn).kind is Kind.REGION:
            (region,), visit.bodies = visit.bodies, []
            reader = _Reader()
            reader.read(region)
            if reader.found and not reader.sends:
                raise _error(*reader.found, state)


class _Reader:
    """Reads a region's equations for the first that looks along slices behind the names."""

    def __init__(self) -> None:
        self.found: tuple[str, str] | None = None
        """What it does, and where."""
        self.sends = False
        self.uniform: set[Any] = set()
        """Arrays whose numbers are all the same, so that their slices are too."""
        self.asked: set[Any] = set()
        """What was made of slices that were asked for."""

    def read(self, region: Any) -> None:
        """Reads the equations of a region."""
        for visit in visits(region):
            if is_within_op(visit.scopes) or "transpose(" in visit.scopes:  # a gradient is right where what it is of is
                visit.bodies = []
            elif self._is_asked(visit.eqn):
                self.asked.update(visit.eqn.outvars)
                visit.bodies = []
            elif not visit.bodies and (work := self._work_on_slices(visit.eqn)) and (line := _foreign_line(visit)):
                self.sends = self.sends or row_of(visit.eqn).kind is Kind.COLLECTIVE
                self.found = self.found or (work, line)

    def _is_asked(self, eqn: Any) -> bool:
        return given_name(eqn) == SLICE or any(x in self.asked for x in eqn.invars if not isinstance(x, Literal))

    def _work_on_slices(self, eqn: Any) -> str:
        """What an equation does that is not the same on slices as on the whole; nothing if it is."""
        row = row_of(eqn)
        arrays = [x for x in eqn.invars if not isinstance(x, Literal) and x.aval.shape]
        if row.kind is Kind.COLLECTIVE:
            return "sends"
        if row.kind is Kind.VARY:
            if any(x not in self.uniform for x in arrays):
                return "brings an array that is the same on every processor to slices"
        elif not is_elementwise(eqn) and row.kind is not Kind.KEY:
            if any(x.aval.manual_axis_type.varying for x in arrays):
                return f"looks along one processor's slice (`{row.name}`)"
            return ""
        if all(x in self.uniform for x in arrays):
            self.uniform.update(eqn.outvars)
        return ""


def _is_function_of_jax(body: Any) -> bool:
    """Whether a call is of a function of JAX's own, which keeps what it traced for one caller for all others."""
    return _JAX in (getattr(body.debug_info, "func_src_info", None) or "")


def _foreign_line(visit: Visit) -> str:
    """Where someone's own code, or a library's, wrote an equation; nothing where an op of Weft did."""
    eqn = next((caller for caller, body in visit.callers if _is_function_of_jax(body)), visit.eqn)
    text = source_info_util.summarize(eqn.source_info, num_frames=100)
    frames = [found for line in text.splitlines()[::-1] if (found := _FRAME.match(line))]
    if not frames or (frames[0]["file"].startswith(_HERE) and not is_source(frames[0]["file"])):
        return ""
    frame = next((frame for frame in frames if is_source(frame["file"])), frames[0])
    return f"{short_path(frame['file'])}:{frame['line']} in {frame['function']}"


_FRAME = re.compile(r"(?P<file>.*?):(?P<line>\d+)(:\d+)? \((?P<function>.*)\)$")  # as JAX writes one


def _error(work: str, line: str, state: str) -> TensorError:
    return TensorError(
        f"a plain JAX function {work} behind the names: its result would depend on the layout",
        state=state,
        at=line,
        fix="use the wf function of that name, `wf.local(fn, x, out=..., whole=...)`, or for an optimizer "
        "`wf.train_step`, whose update sees whole arrays",
    )
