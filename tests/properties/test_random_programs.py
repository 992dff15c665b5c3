"""No layout changes an answer: random programs x random meshes x random layouts, values and gradients.

The empty layout is compared with plain jnp, and every layout with the empty one. `WEFT_CASES=1000 pytest
tests/properties --hypothesis-seed=1` runs more of them; WEFT_CASE_COUNTS names a file for the figures.
"""

import math
import warnings

import jax
import numpy as np
from hypothesis import given, note

import weft as wf
from tests.properties.counts import Counts
from tests.properties.layouts import draw_case, stored_names, wrong_in
from tests.properties.programs import Plain, differentiated, is_float, randoms, sampled

counts = Counts("values and gradients")


def tolerance(program):
    """How far two orders of summation may lie apart, relative to the largest value.

    Each step adds up at most so many float32 terms; roundings go either way, so they grow by the root of that. No step
    makes a difference in what it is given more than a few times as large.
    """
    return 8 * np.finfo("float32").eps * (len(program.steps) + 1) * math.sqrt(program.terms())


def close(got, expected, allowed, what):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, what
    np.testing.assert_allclose(got, expected, rtol=0, atol=allowed, err_msg=what)


def all_close(program, got, expected):
    """Loss, values and gradients of two runs."""
    (loss, values), gradients = got
    (wanted_loss, wanted_values), wanted_gradients = expected
    given = tolerance(program)
    largest = max([1.0, *(float(np.max(np.abs(x))) for x in wanted_values)])
    for x, wanted, node in zip(values, wanted_values, program.steps, strict=True):
        close(x, wanted, given * largest, f"value of {node.step.text}")
    terms = sum(math.prod(np.shape(x)) for x in wanted_values)
    close(loss, wanted_loss, given * largest * math.sqrt(terms), "loss")
    steepest = max([1.0, *(float(np.max(np.abs(x))) for x in wanted_gradients)])
    for i, (x, wanted) in enumerate(zip(gradients, wanted_gradients, strict=True)):
        close(x, wanted, given * max(largest, steepest), f"gradient {i}")


def arrays(result):
    """Loss, values and gradients of floats as arrays."""
    (loss, values), gradients = result
    return (np.asarray(loss), [np.asarray(x) for x in values]), [np.asarray(x) for x in gradients if x is not None]


def on_one_processor(program):
    """The program with no mesh and its plain form, compiled as one; and how near an order was to another."""
    inputs = program.inputs
    plain = [Plain(x.array, x.dims) for x in inputs]
    floats = [x for x, node in zip(plain, program.leaves, strict=True) if is_float(node)]

    def both(inputs, floats, plain):
        return differentiated(program)(inputs), jax.value_and_grad(program.plain_loss, has_aux=True)(floats, plain)

    result, ((loss, (values, near)), gradients) = jax.jit(both)(inputs, floats, plain)
    wanted = (np.asarray(loss), [np.asarray(x.array) for x in values]), [np.asarray(x.array) for x in gradients]
    return arrays(result), wanted, float(near)


def check_case(program, mesh, layout):
    here, plain, near = on_one_processor(program)
    if near < tolerance(program) / 8:
        counts.ran("too near another order to tell", [])
        return
    all_close(program, here, plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        try:
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
