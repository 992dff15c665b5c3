"""What `wf.elementwise` takes: functions of each value alone, whatever JAX calls their parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf


def test_what_no_table_knows_to_look_at_one_value_at_a_time_is_not_elementwise():
    x = wf.tensor(jnp.arange(8.0), "batch")

    def centred(a):
        return jax.pure_callback(lambda a: a - a.mean(), jax.ShapeDtypeStruct(a.shape, a.dtype), a)

    def solved(a):
        return jax.lax.linalg.tridiagonal_solve(a, a + 9.0, a, a[:, None])[:, 0]

    for fn, primitive in ((centred, "pure_callback"), (solved, "tridiagonal_solve")):
        with pytest.raises(wf.TensorError, match=f"is not elementwise: it uses `{primitive}`"):
            wf.spmd(lambda x, fn=fn: wf.elementwise(fn, x), mesh="rows=4", layout="batch:rows")(x)


def test_special_functions_are_elementwise():
    x = wf.tensor(jnp.linspace(0.5, 3.0, 8), "batch")

    def special(a):
        jax.debug.callback(lambda: None)
        return jax.scipy.special.gammainc(a, a + 1) + jax.scipy.special.i0e(a) + jax.scipy.special.zeta(a + 1, a)

    found = wf.spmd(lambda x: wf.elementwise(special, x), mesh="rows=4", layout="batch:rows")(x)
    np.testing.assert_allclose(found.array, special(x.array), rtol=1e-6)
