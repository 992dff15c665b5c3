"""Words looked up in a table that is split or stored in any way: steps are those of one processor."""

import functools

import jax
import numpy as np
import optax
import pytest

import weft as wf
from weft import models

LAYOUTS = {
    "columns stored": ("x=8", "batch:x,params.d_model:x"),
    "columns stored, vocab split": ("rows=2,cols=4", "batch:rows,vocab:cols,params.d_model:rows"),
    "columns stored over one of two": ("rows=2,cols=4", "batch:rows+cols,params.d_model:cols"),
    "rows stored": ("x=8", "batch:x,params.vocab:x"),
    "into the stream": ("rows=2,cols=4", "batch:rows,stream:cols,heads:cols,vocab:cols,params.d_model:rows"),
    "a sequence split": ("rows=2,cols=4", "batch:rows,length:cols,params.d_model:rows+cols"),
}
MODELS = {
    "lm": ("tiny-lm", dict(positions="learned")),
    "tied": ("tiny-lm", dict(tied=True, loss_chunks=2)),
    "translation": ("tiny-mt", {}),
}


def trained(model, *where):
    """The losses of two steps, the first gradient (what momentum holds) and the weights after, dropout on."""
    preset, changes = MODELS[model]
    config, random = models.preset(preset, layers=2, vocab=512, **changes), np.random.default_rng(0)
    batch = {name: wf.tensor(random.integers(0, 512, (8, 16)), "batch length") for name in ("inputs", "targets")}
    step = wf.train_step(lambda m, batch, key: m.loss(batch, key), optax.sgd(0.05, momentum=0.9))
    step = wf.spmd(step, mesh=where[0], layout=where[1]) if where else step
    state, losses, gradient = step.init(models.init(config, jax.random.key(1), *where)), [], None
    for turn in range(2):
        state, told = step(state, batch, jax.random.fold_in(jax.random.key(7), turn))
        losses.append(float(told["loss"]))
        gradient = gradient or wf.get(state.optimizer)
    return losses, gradient, wf.get(state.params)


@functools.cache
def alone(model):
    return trained(model)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_losses_gradients_and_weights_are_those_of_one_processor(model, layout):
    found, wanted = trained(model, *LAYOUTS[layout]), alone(model)
    np.testing.assert_allclose(found[0], wanted[0], rtol=2.0**-18)
    for a, b in zip(jax.tree.leaves(found[1:]), jax.tree.leaves(wanted[1:]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2.0**-15 * max(np.abs(b).max(), 1e-30))
