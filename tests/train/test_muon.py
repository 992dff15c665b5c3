"""Muon: orthogonal updates of each layer's matrices, Adam for the rest, the same on every layout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft import models
from weft.nn.weights import path_text
from weft.train.muon import RMS, dimension_numbers
from weft.train.optimizers import optimizer
from weft.train.step import first_model, make_step
from weft.train.tables import Optimizer

from .running import BOTH, config_of, losses, run, sums

RATE, BETA, DECAY = 0.01, 0.9, 0.1
ALONE = {"mesh": "", "layout": ""}


def settings(text="x", **changes):
    table = {"name": "muon", "momentum": BETA, "weight_decay": DECAY, "adam_rate": 0.5}
    return config_of(text, optimizer=table, schedule={"kind": "constant", "rate": RATE, "warmup": 0}, **changes)


def arrays_of(tree):
    return {path_text(path): np.asarray(x, "float64") for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


def orthogonal(matrix):
    """Five steps of Newton and Schulz as Jordan et al. 2024 write them, of the matrix or of its transpose."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def reference(path, shape, gradients):
    """The two directions of a weight, by hand: each layer's matrix orthogonal, or Adam's of the other weights."""
    first, second, found = 0.0, 0.0, []
    for step, g in enumerate(gradients, 1):
        if ".attention." not in path and ".feed_forward." not in path:
            first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g**2
            mean, square = first / (1 - 0.9**step), second / (1 - 0.95**step)
            found.append(0.5 * mean / (np.sqrt(square) + 1e-8))
            continue
        first = BETA * first + (1 - BETA) * g
        # Nesterov as Optax has it: the mean of the step after, and the gradient, each without its bias.
        ahead = BETA * first / (1 - BETA ** (step + 1)) + (1 - BETA) * g / (1 - BETA**step)
        inner = shape[1] if shape[1] == 16 and not path.endswith((".o", "w_out")) else shape[1:-1]
        rows = int(np.prod(inner))
        flat = ahead.reshape(shape[0], rows, -1)
        size = max(flat.shape[1:]) ** 0.5 * RMS
        found.append(size * np.stack([orthogonal(layer) for layer in flat]).reshape(shape))
    return found


def test_an_update_is_orthogonal_for_each_matrix_of_each_layer_and_adams_elsewhere():
    config = settings(**ALONE)
    params = jax.tree.map(lambda x: x, wf.get(first_model(config)))
    random = np.random.default_rng(0)
    gradients = [jax.tree.map(lambda x: jnp.float32(random.normal(size=x.shape)), params) for _ in range(2)]
    rule, found = optimizer(config), params
    state, changes = rule.init(params), []
    for given in gradients:
        updates, state = rule.update(given, state, found)
        changes.append(arrays_of(updates))
        found = optax.apply_updates(found, updates)
    before, given = arrays_of(params), [arrays_of(g) for g in gradients]
    assert sum(".attention." in path or ".feed_forward." in path for path in before) == 6
    for path, value in before.items():
        for step, wanted in enumerate(reference(path, value.shape, [g[path] for g in given])):
            wanted = -RATE * (wanted + (0 if "norm" in path else DECAY * value))
            np.testing.assert_allclose(changes[step][path], wanted, rtol=2e-4, atol=2e-6, err_msg=f"{path} {step}")
            value = value + wanted


def test_experts_are_matrices_of_their_own_and_biases_norms_and_routers_adams():
    config = models.preset("tiny-moe", bias="q k v o", qk_norm="all")
    found = dimension_numbers(config, Optimizer(name="muon"))
    assert {path.rpartition(".")[2] for path in found} == {"q", "k", "v", "o", "w_in", "w_out"}
    assert found["decoder.layers.feed_forward.w_in"] == ((2,), (3,))
    assert found["decoder.layers.attention.o"] == ((1, 2), (3,))
    assert not dimension_numbers(config, Optimizer(name="muon", by_adam=("*",)))


def after_steps(config, steps=3):
    mesh, layout = config.runs_on
    step = make_step(config, mesh, layout)
    state = step.init(first_model(config, mesh, layout))
    rows = [config.sized_model.dim("batch"), config.sized_model.dim("length")]
    ids = np.random.default_rng(2).integers(0, 256, (8, 17)).astype("int32")
    batch = {name: wf.tensor(part, rows) for name, part in (("inputs", ids[:, :-1]), ("targets", ids[:, 1:]))}
    batch["weights"] = wf.tensor(np.ones((8, 16), "float32"), rows)
    found = []
    for number in range(steps):
        state, metrics = step(state, batch, np.int32(number))
        found.append(float(metrics["loss"]))
    return found, arrays_of(wf.get(state.params))


@pytest.mark.quick("batch:rows,params.d_model:rows,optimizer.d_ff:cols")
@pytest.mark.parametrize(
    "layout",
    [
        BOTH["layout"],
        "batch:rows,params.d_model:rows,optimizer.d_ff:cols",
        "batch:rows+cols",
        "length:rows,stream:cols",
    ],
)
def test_a_run_by_muon_is_the_same_on_every_layout(layout):
    dropless = {"model": {"dropout": 0.0}}
    wanted, alone = after_steps(settings(**ALONE, **dropless))
    found, split = after_steps(settings(mesh=BOTH["mesh"], layout=layout, **dropless))
    assert found == pytest.approx(wanted, rel=2**-16) and wanted[-1] < wanted[0]
    for path, value in alone.items():
        # Five steps make the smallest directions of a gradient, and what was rounded in them, up to 3.4 ** 5 larger.
        np.testing.assert_allclose(split[path], value, rtol=0, atol=1e-4, err_msg=path)


@pytest.mark.slow
def test_a_run_by_muon_goes_on_bit_for_bit(text, tmp_path):
    for folder, crash in (("whole", None), ("broken", 5)):
        run(settings(text), tmp_path / folder, crash_at=crash)
    run(settings(text), tmp_path / "broken")
    assert sums(tmp_path / "whole", 8) == sums(tmp_path / "broken", 8)
    assert losses(tmp_path / "whole")[8] < losses(tmp_path / "whole")[1]
