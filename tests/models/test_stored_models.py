"""What models send whose weights are stored split, by closed formulas; and that they learn what one processor does.

With P numbers in the weights, in float32: FSDP gathers each weight for the forward pass and again for the backward one,
the table of the logits once for both, and scatters each gradient once; of a table looked up in only what was found is
sent, there and back. HSDP sums slices of gradients over its copies; ZeRO-1 scatters gradients and gathers new weights.
"""

import jax
import numpy as np
import optax
import pytest

import weft as wf
from weft import models

FSDP = ("x=8", "batch:x,params.d_model:x")
HSDP = ("dp=2,fs=4", "batch:dp+fs,params.d_model:fs")
ZERO = ("x=8", "batch:x,optimizer.d_model:x")


def config_of(name="tiny-lm", **changes):
    return models.preset(name, layers=2, **changes)


def bytes_of(config):
    """The bytes of all weights, padding and all, and of one table of words."""
    leaves = jax.tree.leaves(models.shapes(config))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves), 4 * config.vocab_dim.size * config.d_model


def step_of(where=None):
    options = {} if where is None else {"mesh": where[0], "layout": where[1]}
    return wf.train_step(
        lambda model, batch, key: model.loss(batch), optax.adam(1e-2, eps=1e-3), **options
    )  # eps: no step by the sign of what rounds to 0


def program_of(config, where):
    ids = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), "batch length")
    step = step_of()
    state = step.init(models.shapes(config))
    return wf.trace(step, state, {"inputs": ids, "targets": ids}, mesh=where[0], layout=where[1])


def sent(program):
    """Bytes of each collective, numbers alone aside."""
    total = {}
    for row in program.ledger:
        if row.bytes > 4:
            total[row.collective] = total.get(row.collective, 0) + row.bytes * row.count
    return total


def expected(config, where):
    """The bytes sent, in closed form."""
    total, table = bytes_of(config)
    if where is ZERO:
        return {"all_gather": total, "reduce_scatter": total}
    ways, copies = (4, 2) if where is HSDP else (8, 1)
    tokens = config.batch * config.length // copies * (2 if config.name == "tiny-mt" else 1)  # looked up
    sends = {
        "all_gather": 2 * (total - (1 if config.tied else 2) * table) + table + 4 * tokens,
        "reduce_scatter": total - (0 if config.tied else table),
        "all_to_all": 2 * 4 * tokens * config.d_model // ways,
    }
    return sends | ({"all_reduce": total // ways} if where is HSDP else {})


def check_sent(name, how, where):
    config = config_of(name, **how)
    total, _ = bytes_of(config)
    program = program_of(config, where)
    assert sent(program) == expected(config, where)
    if where is HSDP:  # over the copies goes only what is scattered already
        assert {row.collective for row in program.ledger if row.bytes > 4 and row.axes == ("dp",)} == {"all_reduce"}
    # Weights and two moments, and the batch.
    held = {FSDP: 3 * total // 8, HSDP: 3 * total // 4, ZERO: total + 2 * total // 8}[where]
    assert held < program.memory.arguments < held + 2000


NAMES = ("tiny-lm", "tiny-mt")
HOW = [{}, {"scanned": False}, {"remat": True}, {"prefetch": True}, {"remat": True, "prefetch": True},
       {"loss_chunks": 4}, {"tied": True}, {"tied": True, "loss_chunks": 4, "scanned": False}]  # fmt: skip
QUICK = [("tiny-lm", HOW[1], FSDP), ("tiny-lm", HOW[4], HSDP), ("tiny-lm", HOW[7], FSDP), ("tiny-mt", HOW[5], FSDP),
         ("tiny-lm", HOW[0], ZERO)]  # fmt: skip


@pytest.mark.quick(
    "tiny-lm-{'remat': True, 'prefetch': True}-('dp=2,fs=4', 'batch:dp+fs,params.d_model:fs')",
    "tiny-lm-{'tied': True, 'loss_chunks': 4, 'scanned': False}-('x=8', 'batch:x,params.d_model:x')",
    "tiny-lm-{}-('x=8', 'batch:x,optimizer.d_model:x')",
)
@pytest.mark.parametrize(("name", "how", "where"), QUICK, ids=str)
def test_stored_weights_are_gathered_by_use_and_gradients_scattered_once(name, how, where):
    check_sent(name, how, where)


@pytest.mark.slow
@pytest.mark.parametrize("where", [FSDP, HSDP, ZERO], ids=str)
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_stored_weights_of_every_model_are_gathered_by_use_and_gradients_scattered_once(name, how, where):
    check_sent(name, how, where)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-lm", "tiny-mt", "tiny-moe"])
def test_prefetch_keeps_no_layer_gathered_for_the_backward_pass(name):
    plain, ahead = (program_of(models.preset(name, layers=8, remat=True, prefetch=p), FSDP) for p in (False, True))
    layer = max(row.bytes for row in plain.ledger) * 12
    assert plain.memory.peak < ahead.memory.peak < plain.memory.peak + layer


def learn(config, where):
    """The losses of two steps, and the weights and moments after them."""
    step = step_of(where)
    ids = np.random.default_rng(0).integers(0, 32, (config.batch, config.length)).astype("int32")
    batch = {name: wf.tensor(ids, "batch length") for name in ("inputs", "targets")}
    state, losses = step.init(models.init(config, jax.random.key(0))), []
    for _ in range(2):
        state, told = step(state, batch)
        losses.append(told["loss"])
    return jax.tree.map(np.asarray, jax.tree.leaves((wf.get(losses), wf.get(state.params), state.optimizer)))


def check_learns(name, how, where):
    alone = {key: value for key, value in how.items() if key in ("tied", "dropout")}
    for found, expected in zip(
        learn(config_of(name, **how), where), learn(config_of(name, **alone), None), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


LEARNED = [
    (name, how, where)
    for name in ("tiny-lm", "tiny-mt", "tiny-moe")
    for where in (FSDP, HSDP, ZERO)
    for how in ({}, {"scanned": False}, {"prefetch": True, "remat": True}, {"tied": True, "loss_chunks": 4})
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how", "where"), [LEARNED[6]], ids=str)
def test_two_steps_are_those_of_one_processor(name, how, where):
    check_learns(name, how, where)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how", "where"), LEARNED, ids=str)
def test_two_steps_of_every_model_and_storage_are_those_of_one_processor(name, how, where):
    check_learns(name, how, where)
