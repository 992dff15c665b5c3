"""Offload, read before it runs: transfers by closed formulas, the memory of the host, the plan's link."""

import jax
import jax.numpy as jnp
import optax
import pytest

import weft as wf
from weft.spmd import streamed

LAYERS, WIDE, ROWS = 4, 8, 16
BYTES = 4 * LAYERS * 2 * WIDE * WIDE  # of all parameters


def step_under(layout, *, remat=True, save=()):
    def loss(params, x, key):
        def one(x, own):
            up, down = own
            made = wf.name(wf.tanh(wf.einsum(x, up, over="d_model")), "made")
            return x + wf.einsum(made, down, over="d_ff")

        run = wf.remat(one, save=save) if remat else one
        x, _ = wf.scan(lambda x, own: (run(x, own), None), x, params, over="layers")
        return wf.mean(wf.square(x), over=["batch", "d_model"])

    return wf.train_step(loss, optax.adam(1e-2), mesh="x=2", layout=layout, donate=True)


def shapes():
    up = wf.parameter(jax.ShapeDtypeStruct((LAYERS, WIDE, WIDE), "float32"), "layers d_model d_ff")
    down = wf.parameter(jax.ShapeDtypeStruct((LAYERS, WIDE, WIDE), "float32"), "layers d_ff d_model")
    return up, down


def read(layout, **options):
    step = step_under(layout, **options)
    return wf.trace(
        step, step.init(shapes()), wf.tensor(jax.ShapeDtypeStruct((ROWS, WIDE), "float32"), "batch d_model")
    )


def moved(program, direction, phase=None):
    rows = [row for row in program.transfers if row.collective == direction and phase in (None, row.phase)]
    return sum(row.bytes * row.count for row in rows)


@pytest.mark.parametrize("remat", [True, False])
@pytest.mark.parametrize("split, ways", [("", 1), (",params.d_model:x", 2)])
def test_parameters_come_for_each_pass_and_all_is_updated_once(split, ways, remat):
    program, size = read(f"batch:x{split},params.*:host", remat=remat), BYTES // ways
    assert moved(program, "fetch", "forward") == moved(program, "fetch", "recompute") == size
    assert moved(program, "store", "backward") == size  # gradients
    assert moved(program, "fetch", "update") == 4 * size  # parameters, gradients, two moments
    assert moved(program, "store", "update") == 3 * size
    assert moved(program, "fetch") == program.transfers.bytes("host") - moved(program, "store") == 6 * size


@pytest.mark.parametrize("split, ways", [("", 1), (",optimizer.d_ff:x", 2), (",params.d_model:x", 2)])
def test_the_state_of_adam_comes_and_goes_once_a_step(split, ways):
    program = read(f"batch:x{split},optimizer.*:host")
    assert moved(program, "fetch") == moved(program, "store") == 2 * BYTES // ways
    assert {row.phase for row in program.transfers} == {"update"}


@pytest.mark.parametrize("rule", ["params.*:host", "optimizer.*:host"])
def test_a_rule_for_the_host_sends_nothing_more_between_processors(rule):
    for layout in ("batch:x", "batch:x,params.d_ff:x"):
        assert list(read(f"{layout},{rule}").ledger) == list(read(layout).ledger)
    assert len(read("batch:x").transfers) == 0


LAYOUTS = "batch:x", "batch:x,optimizer.*:host", "batch:x,params.*:host"


def test_memory_counts_the_host_apart(monkeypatch):
    monkeypatch.setattr(streamed, "PIECE", 64)
    without, state, both = (read(layout).memory for layout in LAYOUTS)
    assert without.host == 0 and without.arguments - state.arguments == 2 * BYTES
    assert without.arguments - both.arguments == 3 * BYTES
    piece = BYTES // LAYERS // 2
    assert state.host == 2 * BYTES + 2 * piece  # two new ones on their way
    assert both.host == 4 * BYTES + 3 * piece  # gradients lie there, too
    assert without.peak > state.peak > both.peak
    assert both.to_dict()["host"] == both.host and "on the host" in str(both) and "host" not in str(without)


def test_activations_kept_on_the_host_go_there_and_come_back():
    made = 4 * LAYERS * (ROWS // 2) * WIDE
    program = read("batch:x", save=["made@host"])
    assert moved(program, "store", "forward") == made
    assert 0 < moved(program, "fetch", "backward") + moved(program, "fetch", "recompute") <= made
    kept = read("batch:x", save=["made"])
    assert program.memory.host >= made and kept.memory.host == 0
    assert "because remat keeps it on the host" in str(program)


def test_a_plan_has_the_link_to_the_host_and_its_room():
    program = read("batch:x,optimizer.*:host")
    plan = wf.Plan(program, "h100")
    link = plan.hardware.host_link
    seconds = sum(row.count * (link.latency + row.bytes / link.rate) for row in program.transfers)
    assert (
        plan.communication["host"] == pytest.approx(seconds) and plan.seconds > wf.Plan(read("batch:x"), "h100").seconds
    )
    assert f"over {link.name}, of which" in str(plan) and "on the host" in plan.memory_text
    assert plan.to_dict()["memory"]["host"] == program.memory.host
    assert "host: 4 KiB fetched in 4 calls, 4 KiB stored in 4 calls" in str(program)


@pytest.mark.parametrize("save", [["made@host"], ["made@host", "more"]])
def test_what_remat_keeps_on_the_host_changes_no_value(save):
    def loss(w, x, save):
        def fn(x):
            made = wf.name(wf.tanh(wf.einsum(x, w, over="d_model")), "made")
            return wf.name(wf.einsum(made, w, over="d_ff"), "more") + x

        return wf.mean(wf.square(wf.remat(fn, save=save)(x)), over=["batch", "d_model"])

    w = wf.parameter(jnp.arange(64.0).reshape(8, 8) / 64, "d_model d_ff")
    x = wf.tensor(jnp.linspace(0, 1, 128).reshape(16, 8), "batch d_model")

    def gradients(save):
        fn = wf.value_and_grad(lambda w, x: loss(w, x, save), argnums=(0, 1))
        return jax.tree.leaves(wf.spmd(fn, mesh="x=2", layout="batch:x")(w, x))

    for a, b in zip(gradients(save), gradients([word.removesuffix("@host") for word in save]), strict=True):
        assert (a == b).all()


def test_remat_keeps_a_name_in_one_place():
    with pytest.raises(wf.TensorError, match=r"(?s)keep `made` twice.*fix: say `made` or `made@host`"):
        wf.remat(lambda x: x, save=["made", "made@host"])
