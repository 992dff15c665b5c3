"""Plans against figures computed by hand on hardware with round ones: rooflines, rings, overlap, and what adds up."""

import json

import jax
import optax
import pytest

import weft as wf
from weft import models
from weft.plan import HARDWARE, Hardware, Link, links, roofline
from weft.plan.attention import FusedGroup
from weft.plan.kernel import Kernel
from weft.plan.traffic import kernels
from weft.program.ledger import Row

from .nets import STAGED_ARGS, staged

INNER = Link("inner", 100e9, latency=1e-6, reach=8, efficiency=0.5, call=10e-6)
OUTER = Link("outer", 10e9, latency=5e-6, reach=0, efficiency=1.0, call=20e-6)
# A CPU that is not shared: products run at the peak and bytes move at the bandwidth, with no share of either lost.
ROUND = Hardware(
    "round", "round figures", "cpu", flops={"float32": 1e12, "bfloat16": 2e12}, vector=1e11, cores=1,
    memory=10**9, bandwidth=1e11, links=(INNER, OUTER),
)  # fmt: skip
SHARED = Hardware(
    "shared", "shared", "cpu", flops={"float32": 1e12}, vector=1e11, cores=1, memory=8 * 10**9, bandwidth=1e11,
    links=(Link("memory", 1e9, latency=0.0, reach=0, efficiency=1.0, call=1e-4),), is_shared=True,
)  # fmt: skip


def shaped(dims, dtype="float32", **sizes):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(sizes[name] for name in dims.split()), dtype), dims)


def product_plan(hardware=ROUND, mesh="x=1", layout="", dtype="float32", m=1024, k=512, n=256):
    left, right = shaped("m k", dtype, m=m, k=k), shaped("k n", dtype, k=k, n=n)
    return wf.Plan(wf.trace(lambda x, w: wf.einsum(x, w, over="k"), left, right, mesh=mesh, layout=layout), hardware)


@pytest.fixture(scope="module")
def step_program():
    """A step of two layers on eight processors: its gradients are summed over `rows`, its products over `cols`."""

    def loss(params, x, key):
        hidden = wf.relu(wf.einsum(x, params["w_in"], over="d_model"))
        made = wf.einsum(hidden, params["w_out"], over="d_ff")
        return wf.sum(made * made, over="batch d_model")

    made = {"w_in": shaped("d_model d_ff", d_model=64, d_ff=128), "w_out": shaped("d_ff d_model", d_ff=128, d_model=64)}
    step = wf.train_step(loss, optax.adam(1e-3))
    x = shaped("batch d_model", batch=32, d_model=64)
    return wf.trace(step, step.init(made), x, mesh="rows=4,cols=2", layout="batch:rows,d_ff:cols")


def row(collective, size, axes, ways):
    return Row(collective, tuple(axes), (), "float32", size, 1, "forward", "", "", "", exact=True, ways=ways)


def test_a_product_takes_as_long_as_its_flops():
    plan = product_plan()
    assert plan.seconds == pytest.approx(2 * 1024 * 512 * 256 / 1e12)
    (op,) = plan.ops
    assert (op.bound_by, op.flops, op.bytes, op.count) == (
        "flops", 2 * 1024 * 512 * 256, 4 * (1024 * 512 + 512 * 256 + 1024 * 256), 1
    )  # fmt: skip


def test_a_product_in_a_narrower_dtype_takes_half_as_long():
    assert product_plan(dtype="bfloat16").seconds == pytest.approx(product_plan().seconds / 2)


def test_a_thin_product_takes_as_long_as_its_bytes():
    plan = product_plan(m=1, k=2048, n=2048)
    assert plan.ops[0].bound_by == "memory"
    assert plan.seconds == pytest.approx(4 * (2048 + 2048 * 2048 + 2048) / 1e11)


def test_elementwise_ops_that_follow_each_other_read_once_and_write_once():
    x = shaped("m k", m=4096, k=1024)
    plan = wf.Plan(wf.trace(lambda x: wf.relu(x * 2.0) + 1.0, x, mesh="x=1", layout=""), ROUND)
    assert plan.seconds == pytest.approx(2 * 4 * 4096 * 1024 / 1e11)
    assert plan.kinds.keys() == {"elementwise"}


@pytest.mark.parametrize("hardware", ["h200", "v5p", ROUND], ids=str)
@pytest.mark.parametrize("larger", ["m", "k", "n"])
def test_a_larger_product_never_takes_less(hardware, larger):
    took = [product_plan(hardware, dtype="bfloat16", **{larger: size}).seconds for size in (64, 200, 256, 1000, 4096)]
    assert took == sorted(took)


def test_one_wave_of_tiles_takes_the_same_however_full_it_is():
    gpu = HARDWARE["h100"]
    few, all_cores, one_more = (
        roofline.seconds(Kernel("product", None, "", flops=1, dtype="bfloat16", shape=(many, 256, 128, 8192)), gpu, 1)[
            0
        ]
        for many in (gpu.cores - 4, gpu.cores, gpu.cores + 1)
    )
    assert few == all_cores
    assert one_more > all_cores


def test_no_kernel_beats_the_peak():
    gpu = HARDWARE["h200"]
    flops = 2 * 8192**3
    kernel = Kernel("product", None, "", flops=flops, dtype="bfloat16", shape=(1, 8192, 8192, 8192))
    took, bound_by = roofline.seconds(kernel, gpu, 1)
    assert flops / took < gpu.flops["bfloat16"]
    assert bound_by == "flops"


def test_a_gradient_that_nothing_waits_for_hides_under_a_share_of_the_compute(monkeypatch):
    def loss(w, x):
        return wf.sum(wf.einsum(x, w, over="k"), over="m n")

    args = shaped("k n", k=64, n=256), shaped("m k", m=1024, k=64)
    program = wf.trace(wf.grad(loss), *args, mesh="x=2", layout="m:x")
    monkeypatch.setitem(roofline.BESIDE, "cpu", 0.5)
    plan = wf.Plan(program, ROUND)
    sent = 10e-6 + 4 * 64 * 256 / 50e9 + 2 * 1e-6
    assert plan.communication == {"x": pytest.approx(sent)}
    assert plan.exposed == pytest.approx(max(sent - 0.5 * plan.compute_seconds, 0))
    assert plan.exposed < sent


def test_a_sum_at_the_end_of_a_forward_pass_is_waited_for(monkeypatch):
    monkeypatch.setitem(roofline.BESIDE, "cpu", 0.5)
    plan = product_plan(mesh="x=2", layout="k:x", k=64)
    sent = 10e-6 + 4 * 1024 * 256 / 50e9 + 2 * 1e-6
    assert plan.communication == {"x": pytest.approx(sent)} and plan.exposed == pytest.approx(sent)


def test_a_sum_that_the_next_op_waits_for_is_not_hidden(monkeypatch):
    monkeypatch.setitem(roofline.BESIDE, "cpu", 0.5)

    def two(x, w, v):
        return wf.einsum(wf.einsum(x, w, over="k"), v, over="n")

    args = shaped("m k", m=512, k=512), shaped("k n", k=512, n=512), shaped("n p", n=512, p=512)
    plan = wf.Plan(wf.trace(two, *args, mesh="x=2", layout="k:x"), ROUND)
    assert plan.exposed == pytest.approx(plan.communication["x"])


def test_what_is_split_takes_a_share_of_the_time():
    assert product_plan(mesh="x=4", layout="m:x").seconds == pytest.approx(product_plan().seconds / 4)


def test_virtual_processors_share_the_time_and_the_memory_of_one_machine():
    alone, split = product_plan(SHARED), product_plan(SHARED, mesh="x=4", layout="m:x")
    assert split.seconds == pytest.approx(alone.seconds)
    assert (alone.capacity, split.capacity) == (8 * 10**9, 2 * 10**9)


def test_on_virtual_processors_many_small_products_take_longer_than_one_as_large():
    one = Kernel("product", None, "forward", flops=1e9, dtype="float32", shape=(1, 1024, 512, 1024))
    many = Kernel("product", None, "forward", flops=1e9, dtype="float32", shape=(64, 128, 64, 1024))
    assert roofline.seconds(many, SHARED, 8)[0] > 2 * roofline.seconds(one, SHARED, 8)[0] > 2 * 8 * 1e9 / 1e12


def test_on_virtual_processors_the_update_moves_its_bytes_at_the_bandwidth_and_others_slower():
    update, forward = (Kernel("elementwise", None, phase, bytes=1e9) for phase in ("update", "forward"))
    assert roofline.seconds(update, SHARED, 8) == (pytest.approx(8 * 1e9 / 1e11), "memory")
    assert roofline.seconds(forward, SHARED, 8)[0] > 1.5 * 8 * 1e9 / 1e11


def test_on_virtual_processors_a_gather_takes_longer_than_a_sum_of_as_many_bytes():
    gather, summed = (
        links.seconds(row(name, 10**6, ["x"], 4), wf.Mesh("x=4,y=2"), SHARED) for name in ("all_gather", "all_reduce")
    )
    assert summed == pytest.approx(1e-4 + 8 * 1e6 / 1e9)
    assert gather > 2 * summed


@pytest.mark.parametrize("hardware", ["h100", "v5p", ROUND, SHARED], ids=str)
def test_ops_phases_and_kinds_each_add_up_to_the_step(step_program, hardware):
    plan = wf.Plan(step_program, hardware)
    assert plan.seconds == pytest.approx(plan.compute_seconds + plan.exposed)
    for parts in ([op.seconds for op in plan.ops], plan.phases.values(), plan.kinds.values()):
        assert sum(parts) == pytest.approx(plan.seconds)
    assert plan.exposed <= sum(plan.communication.values()) * (1 + 1e-9)
    assert set(plan.phases) == {"forward", "backward", "update"}


def test_what_a_plan_sends_is_what_the_ledger_says(step_program):
    plan = wf.Plan(step_program, ROUND)
    sent = sum(op.bytes for op in plan.ops if op.label.startswith("sending over"))
    assert sent == step_program.ledger.bytes() > 0
    assert set(plan.communication) == {"+".join(row.axes) for row in step_program.ledger}


def test_the_share_of_the_peak_is_the_models_flops_over_what_could_be_done():
    plan = product_plan()
    assert plan.mfu == pytest.approx(1.0)
    assert product_plan(mesh="x=4", layout="").mfu == pytest.approx(0.25)  # four do the same


def test_what_is_recomputed_is_no_use_to_the_model():
    def loss(x, w):
        layer = lambda x: wf.square(wf.einsum(wf.square(x), w, over="k", rename={"n": "k"}))  # noqa: E731
        return wf.sum(wf.remat(lambda x: wf.einsum(layer(x), w, over="k"))(x), over="m n")

    args = shaped("m k", m=512, k=512), shaped("k n", k=512, n=512)
    program = wf.trace(wf.grad(loss, argnums=(0, 1)), *args, mesh="x=1", layout="")
    assert program.flops_recomputed > 0
    plan = wf.Plan(program, ROUND)
    useful = program.flops - program.flops_recomputed
    assert plan.mfu == pytest.approx(useful / plan.seconds / 1e12)


def test_a_fused_kernel_of_causal_attention_leaves_out_the_tiles_above_the_diagonal():
    for length, share in ((128, 1.0), (256, 3 / 4), (1024, 9 / 16)):
        assert FusedGroup(length, length, 64, length**2, is_causal=True).seen_share == pytest.approx(share)
        assert FusedGroup(length, length, 64, length**2, is_causal=False).seen_share == 1.0


def test_a_plan_becomes_json(step_program):
    told = wf.Plan(step_program, "h100").to_dict()
    read = json.loads(json.dumps(told))
    assert read["version"] == 1
    assert (read["hardware"], read["mesh"], read["fits"]) == ("h100", "rows=4,cols=2", True)
    assert sum(op["seconds"] for op in read["ops"]) == pytest.approx(read["seconds"])


def test_a_plan_that_needs_more_than_there_is_does_not_fit(step_program):
    assert wf.Plan(step_program, "h100").fits
    small = wf.Plan(step_program, "h100", memory=1000)
    assert small.capacity == 1000
    assert not small.fits


def test_tokens_are_counted_where_there_are_ids():
    def scored(table, ids):
        return wf.sum(wf.take(table, ids, over="vocab"), over="batch length d_model")

    table = shaped("vocab d_model", vocab=64, d_model=16)
    ids = shaped("batch length", "int32", batch=8, length=32)
    plan = wf.Plan(wf.trace(scored, table, ids, mesh="x=2", layout="batch:x"), ROUND)
    assert plan.tokens == 256
    assert plan.tokens_per_s == pytest.approx(256 / plan.seconds)
    assert product_plan().tokens is None
    assert product_plan().tokens_per_s is None


def test_a_loop_takes_as_long_as_all_its_turns():
    def looped(x, w):
        return wf.scan(lambda x, w: (wf.einsum(x, w, over="k", rename={"n": "k"}), None), x, w, over="layers")[0]

    args = shaped("m k", m=512, k=512), shaped("layers k n", layers=6, k=512, n=512)
    plan = wf.Plan(wf.trace(looped, *args, mesh="x=1", layout=""), ROUND)
    assert plan.kinds["product"] == pytest.approx(6 * 2 * 512**3 / 1e12)
    assert max(op.count for op in plan.ops) == 6


def test_a_loop_in_a_loop_takes_as_long_as_all_turns_of_both():
    def inner(x, w):
        return wf.scan(lambda x, w: (wf.einsum(x, w, over="k", rename={"n": "k"}), None), x, w, over="layers")[0]

    def looped(x, w):
        return wf.scan(lambda x, _: (inner(x, w), None), x, None, over=wf.Dim("rounds", 3))[0]

    args = shaped("m k", m=512, k=512), shaped("layers k n", layers=6, k=512, n=512)
    plan = wf.Plan(wf.trace(looped, *args, mesh="x=1", layout=""), ROUND)
    assert plan.kinds["product"] == pytest.approx(3 * 6 * 2 * 512**3 / 1e12)


def stacked_plan(hardware, looped):
    """Three layers of one stack: in a loop, or written out."""

    def run(x, w):
        if looped:
            return wf.scan(lambda x, w: (wf.einsum(x, w, over="k", rename={"n": "k"}), None), x, w, over="layers")[0]
        for one in wf.unstack(w, over="layers"):
            x = wf.einsum(x, one, over="k", rename={"n": "k"})
        return x

    args = shaped("m k", "bfloat16", m=1, k=4096), shaped("layers k n", "bfloat16", layers=3, k=4096, n=4096)
    return wf.Plan(wf.trace(run, *args, mesh="x=1", layout=""), hardware)


def test_outside_a_loop_a_gpu_reads_a_layer_of_a_stack_where_it_lies():
    looped, written_out = stacked_plan("h200", looped=True), stacked_plan("h200", looped=False)
    weights = 3 * 2 * 4096**2
    assert sum(op.bytes for op in written_out.ops) == pytest.approx(weights, rel=0.01)
    assert sum(op.bytes for op in looped.ops) == pytest.approx(3 * weights, rel=0.01)  # read, written, read again
    assert written_out.seconds < looped.seconds / 2


def test_outside_a_loop_a_kernel_takes_as_long_as_starting_it():
    small = Kernel("elementwise", None, "forward", bytes=64)
    inside = Kernel("elementwise", None, "forward", bytes=64, is_looped=True)
    gpu = HARDWARE["h100"]
    assert roofline.seconds(small, gpu, 1)[0] == pytest.approx(3e-6)
    assert roofline.seconds(inside, gpu, 1)[0] == pytest.approx(gpu.call, rel=0.01)


def test_a_ragged_product_is_dense_but_on_a_tpu():
    def run(x, w, sizes):
        return wf.local(lambda x, w, n: jax.lax.ragged_dot(x, w, n), x, w, sizes, out="m n")

    args = shaped("m k", m=4096, k=1024), shaped("g k n", g=8, k=1024, n=1024), shaped("g", "int32", g=8)
    program = wf.trace(run, *args, mesh="x=1", layout="")
    own = 2 * 4096 * 1024 * 1024
    flops = {name: sum(k.flops for k in kernels(program.reading, HARDWARE[name])) for name in ("h100", "v5p")}
    assert flops == {"h100": 8 * own, "v5p": own}


def dropless_plan(hardware, layout):
    config = models.preset("tiny-moe", gating="dropless", top_k=2, dtype="bfloat16", batch=16)
    loss = lambda model, batch: model.loss(batch)  # noqa: E731
    args = models.shapes(config), config.batch_shapes()
    return wf.Plan(wf.trace(wf.value_and_grad(loss), *args, mesh="x=4", layout=layout), hardware)


@pytest.mark.parametrize("hardware", ["h100", "v5p"])
def test_dropless_experts_compute_what_even_routing_gives_a_processor(hardware):
    whole, split = (dropless_plan(hardware, layout) for layout in ("batch:x", "batch:x,experts:x"))
    own = {
        plan: sum(k.flops for k in kernels(plan.program.reading, plan.hardware) if k.kind == "product")
        for plan in (whole, split)
    }
    assert own[split] == pytest.approx(own[whole])
    assert split.mfu * split.seconds == pytest.approx(whole.mfu * whole.seconds)


def test_a_tpu_does_elementwise_work_inside_products():
    def run(x, w, v):
        h = wf.silu(wf.einsum(x * 2.0, w, over="k"))
        return x + wf.einsum(h, v, over="n", rename={"p": "k"})

    args = (shaped(names, m=8192, k=1024, n=1024, p=1024) for names in ("m k", "k n", "n p"))
    program = wf.trace(run, *args, mesh="x=1", layout="")
    moved = {
        name: sum(k.bytes for k in kernels(program.reading, HARDWARE[name]) if k.kind == "elementwise")
        for name in ("h100", "v5p")
    }
    one = 4 * 8192 * 1024
    assert moved == {"h100": (2 + 2 + 3) * one, "v5p": one}  # the sum reads x once more; all else is in products


def test_a_gradient_added_as_a_slice_among_zeros_is_added_in_place():
    def loss(w, x):
        y, _ = wf.pipeline(
            lambda x, w, key: (wf.einsum(x, w, over="k", rename={"n": "k"}), {}), x, w, micro=4, rounds=8
        )
        return wf.sum(y, over="batch k")

    args = shaped("rounds stage k n", rounds=8, stage=2, k=256, n=256), shaped("batch k", batch=16, k=256)
    program = wf.trace(wf.grad(loss), *args, mesh="p=2", layout="stage:p")
    stack = 4 * 8 * 256 * 256
    ticks = 4 * 8 + 1
    moved = [k.bytes for k in kernels(program.reading, ROUND) if k.count == ticks and k.phase == "backward"]
    assert sum(moved) < 1.5 * stack  # of eight parts one a tick; all at once would be three times the stack


def test_what_only_the_next_turn_needs_hides_under_all_of_this_ones_work(monkeypatch):
    monkeypatch.setitem(roofline.BESIDE, "cpu", 0.5)
    monkeypatch.setitem(roofline.AHEAD, "cpu", 1.0)

    def plan(prefetch):
        def run(x, w):
            layer = lambda x, w: (wf.einsum(x, w, over="k", rename={"n": "k"}), None)  # noqa: E731
            return wf.scan(layer, x, w, over="layers", prefetch=prefetch)[0]

        stack = wf.parameter(jax.ShapeDtypeStruct((8, 512, 512), "float32"), "layers k n")
        args = shaped("batch k", batch=64, k=512), stack
        return wf.Plan(wf.trace(run, *args, mesh="x=2", layout="batch:x,params.n:x"), ROUND)

    waits, ahead = plan(prefetch=False), plan(prefetch=True)
    assert ahead.communication["x"] >= waits.communication["x"]
    assert ahead.exposed < waits.exposed


@pytest.mark.parametrize(("length", "on_tpu"), [(256, True), (192, False)])
def test_attention_is_fused_where_the_hardware_has_a_kernel_or_it_is_said(length, on_tpu):
    config = models.preset("tiny-lm", dtype="bfloat16", length=length)
    args = models.shapes(config), config.batch_shapes()
    program = wf.trace(lambda model, batch: model.loss(batch), *args, mesh="x=1", layout="")
    assert "attention" in wf.Plan(program, "h100").kinds
    assert ("attention" in wf.Plan(program, "v5p").kinds) == on_tpu
    assert "attention" in wf.Plan(program, "v5p", fused=True).kinds
    assert "attention" not in wf.Plan(program, "h100", fused=False).kinds


def test_a_kv_cache_is_not_called_scores():
    fn, args = models.decode_step(models.preset("tiny-lm"), 64, 2)
    text = wf.Plan(wf.trace(fn, *args), "h100").memory_text
    assert "KV cache" in text and "scores" not in text


def test_the_text_says_how_long_and_why(step_program):
    text = str(wf.Plan(step_program, ROUND))
    assert text.splitlines()[0].startswith("train_step on rows=4,cols=2 under batch:rows,d_ff:cols")
    assert "a step" in text
    assert "waiting for" in text


@pytest.mark.parametrize(("mesh", "layout", "ways"), [("p=4", "stage:p", 4), ("p=2,x=2", "batch:x,stage:p", 2)])
def test_the_bubble_of_a_pipeline_is_its_share_of_the_turns(mesh, layout, ways):
    plan = wf.Plan(wf.trace(staged, *STAGED_ARGS, mesh=mesh, layout=layout), ROUND)
    (bubble,) = plan.bubbles
    micro = 8
    assert (bubble.over, bubble.idle, bubble.turns) == ("stage", ways - 1, micro + ways - 1)
    program = plan.program
    assert bubble.share == pytest.approx(program.flops_idle / program.flops)
    assert 0 < bubble.seconds <= plan.seconds * bubble.share
    assert f"bubble: {ways - 1}/{micro + ways - 1} of the work of `stage`, (p - 1) / (m r + p - 1), " in str(plan)
    assert plan.to_dict()["bubbles"] == [bubble.to_dict()]


def test_what_is_no_pipeline_has_no_bubble(step_program):
    assert wf.Plan(step_program, ROUND).bubbles == [] and "bubble" not in str(wf.Plan(step_program, ROUND))
    assert wf.Plan(wf.trace(staged, *STAGED_ARGS, mesh="p=1", layout=""), ROUND).bubbles == []


def test_axes_in_another_order_are_one_group():
    plan = wf.Plan(wf.trace(staged, *STAGED_ARGS, mesh="p=2,x=2", layout="batch:x,stage:p"), ROUND)
    assert sorted(plan.communication) == ["p", "x"]
    plan.sending = {("p", "x"): 1.0, ("x",): 2.0, ("x", "p"): 4.0}
    assert plan.communication == {"p+x": 5.0, "x": 2.0}
