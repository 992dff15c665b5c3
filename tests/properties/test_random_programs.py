"""No layout changes an answer: random programs x random meshes x random layouts, values and gradients.

The empty layout is compared with plain jnp, and every layout with the empty one. `WEFT_CASES=1000 pytest
tests/properties --hypothesis-seed=1` runs more of them; WEFT_CASE_COUNTS names a file for the figures.
"""

import warnings

import jax
from hypothesis import given, note

import weft as wf
from tests.lower.on_all import in_steps
from tests.properties.agreement import all_close, arrays, on_one_processor, tolerance
from tests.properties.counts import Counts
from tests.properties.layouts import draw_case, stored_names, wrong_in
from tests.properties.programs import differentiated, randoms, sampled

counts = Counts("values and gradients")


def check_case(program, mesh, layout):
    here, plain, near = on_one_processor(program)
    if near < tolerance(program) / 8:
        counts.ran("too near another order to tell", [])
        return
    all_close(program, here, plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        try:
            with in_steps():
                result = wf.spmd(differentiated(program), mesh=mesh, layout=layout)(program.inputs)
        except wf.WeftError as error:
            assert not (wrong := wrong_in(error, program, mesh, layout)), f"{wrong}: {error}"
            counts.was_refused(error.fact, program.words)
            return
    for node, x in zip(program.steps, result[0][1], strict=True):
        assert x.dims == node.dims
    all_close(program, arrays(result), here)
    counts.ran("equal" if layout else "equal, nothing split", program.words)


def note_smaller(program, mesh, layout):
    """Notes the shortest part of a program that fails by itself."""
    for part in program.parts():
        kept = ",".join(rule for rule in layout.split(",") if rule and has_dim(part, rule))
        try:
            check_case(part, mesh, kept)
        except Exception as error:
            note(f"alone fails: mesh {mesh}  layout {kept}\n{part.show()}\n{error}")
            return


def has_dim(program, rule):
    name = rule.split(":")[0].removeprefix("params.")
    return name in (stored_names(program) if "params." in rule else {d.name for n in program.nodes for d in n.dims})


@sampled(12)
@given(randoms())
def test_a_layout_never_changes_values_or_gradients(rng):
    program, mesh, layout = draw_case(rng)
    try:
        check_case(program, mesh, layout)
    except Exception:
        note_smaller(program, mesh, layout)
        raise
    if counts.outcomes.total() % 50 == 0:
        jax.clear_caches()


def test_most_random_programs_run():
    """The property above would hold of a library that refused everything."""
    jax.clear_caches()
    counts.report()
    assert counts.share("equal", "equal, nothing split") > 0.6, counts.outcomes
