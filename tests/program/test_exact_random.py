"""The ledger of random programs under random layouts is what their jaxpr and their compiled code send.

`WEFT_CASES=1000 pytest tests/program/test_exact_random.py` runs more of them, drawn anew each time.
"""

import warnings

import jax
import pytest
from hypothesis import given

import weft as wf
from tests.lower.on_all import in_steps
from tests.program.cases import ledger
from tests.program.independent import QUICKLY, compiled, difference, walk
from tests.properties.layouts import draw_case
from tests.properties.programs import differentiated, randoms, sampled

# These join equal collectives, or move one out of a loop; nothing else makes XLA's CPU send less.
JOINING = {"xla_disable_hlo_passes": "cse,while-loop-invariant-code-motion"}


@pytest.mark.slow
@sampled(60)
@given(randoms())
def test_a_random_program_sends_what_its_ledger_says(rng):
    program, axes, layout = draw_case(rng)
    mesh, run = wf.Mesh(axes), differentiated(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        try:
            with in_steps():
                traced = wf.trace(run, program.inputs, mesh=mesh, layout=layout)
        except wf.WeftError:
            return  # a layout this program cannot have
        args = wf.put((program.inputs,), mesh=mesh, layout=layout)
        with in_steps():
            lowered = jax.jit(wf.spmd(run, mesh=mesh, layout=layout)).lower(*args)
    said = ledger(traced)
    assert difference(said, walk(traced.jaxpr)) == {}
    less = difference(said, compiled(lowered.compile(QUICKLY).as_text(), mesh.axes))
    assert all(size > 0 for size in less.values())
    if less:
        assert difference(said, compiled(lowered.compile(QUICKLY | JOINING).as_text(), mesh.axes)) == {}
