"""The guard: no plain JAX function may take a slice for the whole.

A tensor is a pytree, so inside a region `jax.tree.map(jax.nn.softmax, x)` or an Optax transformation reaches its
slice. What works on each value alone is right on slices too; a sum, a sort or a product would be that of one slice,
and numbers by place (`jnp.arange`, `jax.random`) would begin anew on each; a `psum` adds up what is summed already, or
columns that are not of one sum. The traced region is read once, before it is compiled, for such work on slices outside
every op of Weft. Who asks for a slice, by `.local_array` or `wf.local`, knows of slices, and is let be.
"""

import os
from typing import Any

from jax.extend.core import Literal

from ..compat import backward_depth, frames_of, is_function_of_jax, varying
from ..errors import TensorError, short_path
from ..graph import Visit, visits
from ..primitives import Role, given_name, is_elementwise, kind_of, row_of
from ..record import is_source, is_within_op
from ..tensor import SLICE

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def check_slices(closed: Any, state: str) -> None:
    """Raises, with the region's `state`, where a plain function looks along slices."""
    for visit in visits(closed.jaxpr):
        if kind_of(visit.eqn) is Role.REGION:
            (region,), visit.bodies = visit.bodies, []
            check = _Check()
            check.read(region)
            if check.offence:
                raise _error(*check.offence, state)


class _Check:
    """Looks in a region for the first equation that works along slices unnamed."""

    def __init__(self) -> None:
        self.offence: tuple[str, str] | None = None
        """What it does, and where."""
        self.uniform: set[Any] = set()
        """Arrays whose numbers are all the same, so that their slices are too."""
        self.asked: set[Any] = set()
        """What was made of slices that were asked for."""

    def read(self, region: Any) -> None:
        """Reads the equations of a region."""
        for visit in visits(region):
            if is_within_op(visit.scopes) or backward_depth(visit.scopes):  # a gradient is right where what it is of is
                visit.bodies = []
            elif given_name(visit.eqn) == SLICE or any(
                x in self.asked for x in visit.eqn.invars if not isinstance(x, Literal)
            ):
                self.asked.update(visit.eqn.outvars)
                visit.bodies = []
            elif not visit.bodies and (work := self._work_on_slices(visit.eqn)) and (line := _foreign_line(visit)):
                self.offence = self.offence or (work, line)

    def _work_on_slices(self, eqn: Any) -> str:
        """What an equation does otherwise on slices than on the whole, if anything."""
        row = row_of(eqn)
        arrays = [x for x in eqn.invars if not isinstance(x, Literal) and x.aval.shape]
        if row.kind is Role.COLLECTIVE:
            return f"sends slices between processors (`{row.name}`)"
        if row.kind is Role.VARY:
            if any(x not in self.uniform for x in arrays):
                return "brings an array that is the same on every processor to slices"
        elif not is_elementwise(eqn) and row.kind is not Role.KEY:
            if any(varying(x.aval) for x in arrays):
                return f"looks along one processor's slice (`{row.name}`)"
            return ""
        if all(x in self.uniform for x in arrays):
            self.uniform.update(eqn.outvars)
        return ""


def _foreign_line(visit: Visit) -> str:
    """The line of a user or a library that made an equation; empty for Weft's ops."""
    # A function of JAX's own keeps what it traced for one caller for all others: its lines say nothing.
    eqn = next((caller for caller, body in visit.callers if is_function_of_jax(body)), visit.eqn)
    frames = list(frames_of(eqn))
    if not frames or (frames[0].file.startswith(_HERE) and not is_source(frames[0].file)):
        return ""
    frame = next((frame for frame in frames if is_source(frame.file)), frames[0])
    return f"{short_path(frame.file)}:{frame.line} in {frame.function}"


def _error(work: str, line: str, state: str) -> TensorError:
    return TensorError(
        f"a plain JAX function {work} behind the names: its result would depend on the layout",
        state=state,
        at=line,
        fix="use the wf function of that name (`wf.sum` and `wf.grad` have sent what is to be sent), "
        "`wf.local(fn, x, out=..., whole=...)`, or for an optimizer `wf.train_step`, whose update sees whole arrays",
    )
