"""The ledger of random programs under random layouts is what their jaxpr and their compiled code send.

`WEFT_CASES=1000 pytest tests/program/test_exact_random.py` runs more of them, drawn anew each time.
"""

import os
import warnings

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import weft as wf
from tests.program.cases import ledger
from tests.program.independent import QUICKLY, compiled, difference, walk
from tests.properties.programs import MESHES, draw_layout, draw_program

CASES = int(os.environ.get("WEFT_CASES", "0"))

# These join equal collectives, or move one out of a loop; nothing else makes XLA's CPU send less.
JOINING = {"xla_disable_hlo_passes": "cse,while-loop-invariant-code-motion"}


@pytest.mark.slow
@settings(
    max_examples=CASES or 60,
    derandomize=not CASES,
    deadline=None,
    database=None,
    print_blob=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_a_random_program_sends_what_its_ledger_says(data):
    program = draw_program(data.draw)
    mesh = wf.Mesh(data.draw(st.sampled_from(MESHES)))
    layout = draw_layout(data.draw, program, str(mesh))
    note(f"mesh {mesh}  layout {layout}  inputs {program.inputs}  ids {program.ids}  steps {program.words}")

    def run(inputs, ids):
        return wf.value_and_grad(program.loss, has_aux=True)(inputs, ids)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        try:
            traced = wf.trace(run, program.inputs, program.ids, mesh=mesh, layout=layout)
        except wf.WeftError:
            return  # a layout this program cannot have
        args = wf.put((program.inputs, program.ids), mesh=mesh, layout=layout)
        lowered = jax.jit(wf.spmd(run, mesh=mesh, layout=layout)).lower(*args)
    said = ledger(traced)
    assert difference(said, walk(traced.jaxpr)) == {}
    less = difference(said, compiled(lowered.compile(QUICKLY).as_text(), mesh.axes))
    assert all(size > 0 for size in less.values())
    if less:
        assert difference(said, compiled(lowered.compile(QUICKLY | JOINING).as_text(), mesh.axes)) == {}
