"""No layout changes an answer: random programs x random meshes x random layouts, values and gradients.

`WEFT_CASES=1000 pytest tests/properties` runs more of them, drawn anew each time.
"""

import collections
import warnings

import jax
import numpy as np
from hypothesis import Phase, given
from hypothesis import strategies as st

import weft as wf
from tests.properties.programs import differentiated, draw_case, sampled

outcomes: collections.Counter = collections.Counter()


def close(got, expected, what):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, what
    # Every step ends in values of order 1 and sums at most 4096 of them; float32 sums in another order.
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4 * scale, err_msg=what)


@sampled(40, Phase.shrink)
@given(st.data())
def test_a_layout_never_changes_values_or_gradients(data):
    program, mesh, layout = draw_case(data.draw)
    (expected, values), gradients = differentiated(program)(program.inputs, program.ids)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        try:
            run = wf.spmd(differentiated(program), mesh=mesh, layout=layout)
            (got, got_values), got_gradients = run(program.inputs, program.ids)
        except wf.WeftError as error:
            outcomes[error.fact.split("`")[0][:40]] += 1
            return
    outcomes["equal"] += 1
    close(got, expected, "loss")
    for i, (a, b) in enumerate(zip(got_values, values, strict=True)):
        assert [d.name for d in a.dims] == [d.name for d in b.dims]
        close(a, b, f"value {i}")
    for i, (a, b) in enumerate(zip(got_gradients, gradients, strict=True)):
        close(a, b, f"gradient {i}")


def test_most_random_programs_run():
    """The property above would hold of a library that refused everything."""
    jax.clear_caches()
    total = sum(outcomes.values())
    print(dict(outcomes))
    assert outcomes["equal"] > total / 3, dict(outcomes)
