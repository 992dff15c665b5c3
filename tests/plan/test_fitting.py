"""What fits: JAX's share of memory, scores a fused kernel does not store, and the changes with which a program fits."""

import jax
import optax
import pytest

import weft as wf
from weft.cli.model import load_preset
from weft.plan.remedies import OPTIONS, find_remedies, rules_to_try

SIZES = dict(
    layers=4, d_model=64, heads=4, d_kv=16, d_ff=256, vocab=512, batch=16, length=64, dropout=0.0, dtype="bfloat16"
)


def shaped(make, dims, **sizes):
    return make(jax.ShapeDtypeStruct(tuple(sizes[name] for name in dims.split()), "float32"), dims)


def step_program(layout="batch:x", mesh="x=4"):
    def loss(params, x, key):
        return wf.sum(wf.square(wf.einsum(x, params, over="d_model")), over="batch d_ff")

    step = wf.train_step(loss, optax.adam(1e-3))
    w = shaped(wf.parameter, "d_model d_ff", d_model=512, d_ff=512)
    x = shaped(wf.tensor, "batch d_model", batch=8, d_model=512)
    args = step.init(w), x
    return step, args, wf.trace(step, *args, mesh=mesh, layout=layout)


def lm_program(**options):
    model = load_preset("tiny-lm", optimizer="sgd", **{**SIZES, **options})
    return model, model.traced(mesh="x=2", layout="batch:x")


# ---- how much there is


@pytest.mark.parametrize(
    ("given", "capacity"),
    [
        ({}, int(80e9 * 0.75)),
        ({"share": 0.9}, int(80e9 * 0.9)),
        ({"memory": 1000}, 1000),
        ({"memory": 1000, "share": 0.5}, 500),
    ],
)
def test_a_plan_counts_the_share_of_a_gpu_that_jax_takes(given, capacity):
    _, _, program = step_program()
    plan = wf.Plan(program, "h100", **given)
    assert plan.capacity == capacity
    assert plan.to_dict()["capacity"] == capacity


def test_a_tpu_is_used_whole():
    _, _, program = step_program()
    plan = wf.Plan(program, "v5p")
    assert plan.capacity == plan.hardware.memory


def test_the_plan_says_which_share_it_counts():
    _, _, program = step_program()
    assert "(75% of 74.51 GiB, JAX's share" in wf.Plan(program, "h100").memory_text
    assert "(90% of 74.51 GiB, as said)" in wf.Plan(program, "h100", share=0.9).memory_text


@pytest.mark.parametrize("share", [0, 1.5, "all"])
def test_a_share_is_a_part(share):
    _, _, program = step_program()
    with pytest.raises(wf.WeftError, match=r"(?s)`share` is .*fix: say which part"):
        wf.Plan(program, "h100", share=share)


# ---- attention by one kernel


def test_scores_that_a_gpu_does_not_store_are_not_counted():
    _, program = lm_program(remat=False)
    fused, written = wf.Plan(program, "h100").memory, wf.Plan(program, "h100", fused=False).memory
    layers, rows, heads, length = 4, 16 // 2, 4, 64
    in_float32 = layers * rows * heads * length * length * 4
    assert written.peak - fused.peak > in_float32
    assert not any("memory_length" in each.array_type.names and each.bytes > in_float32 / 8 for each in fused.alive)
    assert wf.Plan(program, "v5p").memory.peak == program.memory_on("tpu").peak


def test_attention_that_is_to_be_plain_is_counted_so():
    _, program = lm_program(remat=False, attention="plain")
    assert wf.Plan(program, "h100").memory.peak == wf.Plan(program, "h100", fused=False).memory.peak


def test_fused_scores_add_up_too():
    _, program = lm_program(remat=False)
    memory = wf.Plan(program, "h100").memory
    assert sum(each.bytes for each in memory.alive) == memory.peak


# ---- what would make it fit


def test_a_rule_that_stores_the_weights_in_slices_makes_a_function_fit():
    step, args, program = step_program()
    need = wf.Plan(program, "h100").memory.range[1]
    plan = wf.Plan(program, "h100", memory=need - 1)
    assert not plan.fits
    found = find_remedies(plan, lambda layout, options: wf.trace(step, *args, mesh="x=4", layout=layout))
    assert found.changes
    assert all(change.plan.fits and change.plan.memory.range[1] < need for change in found.changes)
    times = [change.plan.seconds for change in found.changes]
    assert times == sorted(times)
    first = found.changes[0]
    assert first.bytes_sent == first.plan.program.ledger.bytes() - program.ledger.bytes()
    assert str(found).startswith(f"it would fit with {first.text} (")
    assert found.to_dict()["changes"][0]["more_seconds"] == first.plan.seconds - plan.seconds


def test_rules_are_tried_over_the_axes_of_the_batch():
    _, _, program = step_program()
    rules = rules_to_try(program)
    assert "params.d_model:x" in rules
    assert "optimizer.d_ff:x" in rules


def test_recomputing_makes_a_model_fit():
    model, program = lm_program(remat=False)
    need, least = (wf.Plan(each, "h100").memory.range[1] for each in (program, lm_program(remat=True)[1]))
    plan = wf.Plan(program, "h100", memory=(need + least) // 2)

    def retrace(layout, options):
        return model.change(**options).traced(mesh="x=2", layout=layout)

    found = find_remedies(plan, retrace, [option for option in OPTIONS if "remat" in option])
    assert "remat=True" in [change.text for change in found.changes]


def test_where_nothing_is_enough_the_nearest_is_said():
    step, args, program = step_program()
    plan = wf.Plan(program, "h100", memory=1000)
    found = find_remedies(plan, lambda layout, options: wf.trace(step, *args, mesh="x=4", layout=layout))
    assert not found.changes
    assert found.nearest is not None
    assert found.nearest.plan.memory.range[1] < plan.memory.range[1]
    assert str(found).startswith("nothing that was tried makes it fit; nearest comes ")
