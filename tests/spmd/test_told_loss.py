"""An optimizer whose update names `value` is given the loss, on a mesh as without one."""

import jax
import jax.numpy as jnp
import optax
import pytest

import weft as wf
from weft.spmd.update import takes_loss

batch, hidden = wf.dims(batch=8, hidden=4)


def told_optimizer():
    """Gradient descent that keeps the loss it was told."""

    def change(gradients, state, params=None, *, value):
        return jax.tree.map(lambda x: -0.1 * x, gradients), state + value

    return optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), change)


def loss(params, x, key=None):
    return wf.mean(wf.square(wf.einsum(x, params, over="hidden")), over="batch")


@pytest.mark.parametrize("where", [{}, {"mesh": "rows=2,cols=2", "layout": "batch:rows,params.hidden:cols"}])
def test_an_optimizer_that_names_value_is_told_the_loss(where):
    params = wf.parameter(jnp.arange(4.0), [hidden])
    x = wf.tensor(jnp.ones((8, 4)), [batch, hidden])
    step = wf.train_step(loss, told_optimizer(), **where)
    state, metrics = step(step.init(params), x)
    assert float(state.optimizer) == float(wf.get(metrics["loss"])) == 36.0
    assert wf.trace(step, step.init(params), x, **({} if where else {"mesh": "rows=2", "layout": "batch:rows"}))


def test_an_optimizer_that_does_not_is_told_nothing():
    step = wf.train_step(loss, optax.adam(1e-3))
    assert not takes_loss(step.optimizer) and takes_loss(told_optimizer())
