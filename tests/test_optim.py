"""8-bit Adam: codes as close as their law says, float32 leaves as Optax, the same on every layout, bytes by formula."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.errors import LayoutError, WeftError
from weft.optim import _decode, _encode

BATCH, MODEL, FF = wf.dims(batch=16, d_model=256, d_ff=256)
NAMED = {"w": (MODEL, FF), "v": (FF, MODEL), "bias": (FF,)}
N8, N32 = 2 * 256 * 256, 256  # numbers in 8 bits, and in float32


def draws(seed, sizes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=size).astype("float32") for name, size in sizes.items()}


def steps(rule, params, count):
    """The parameters after some steps on gradients that are drawn anew each time."""
    state, update = rule.init(params), jax.jit(rule.update)
    for seed in range(count):
        gradients = draws(seed + 1, {name: x.shape for name, x in params.items()})
        updates, state = update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


# Codes.


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(-30, 30), st.floats(0, 4), st.booleans())
def test_a_code_is_at_most_half_a_step_of_its_square_law_away(seed, size, spread, signed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(3, 64)) * 2.0**size * np.exp(rng.normal(size=(3, 64)) * spread)
    x = jnp.asarray(values if signed else values**2, "float32")
    codes, scale = _encode(x, 16, signed=signed)
    back = np.asarray(_decode(codes, scale, signed=signed), "float64")
    assert codes.dtype == ("int8" if signed else "uint8") and codes.shape == x.shape and scale.shape == (3, 4)
    top = np.repeat(np.asarray(scale, "float64"), 16, axis=-1)
    wanted, found = (np.sqrt(np.abs(a) if signed else np.sqrt(a)) for a in (np.asarray(x, "float64"), back))
    half = 0.5 / (127 if signed else 255) * np.sqrt(top)
    least = np.where((found > 0) & ~np.bool_(signed), 2 * half, 0)  # no positive second moment becomes zero
    assert (np.abs(found - wanted) <= np.maximum(half, least) * (1 + 1e-4)).all()
    assert signed or (back[np.asarray(x) > 0] > 0).all()
    assert not signed or (np.sign(back) * np.sign(np.asarray(x)) >= 0).all()


def test_blocks_lie_along_the_last_dim_and_each_has_its_largest_value_exactly():
    x = jnp.asarray(draws(0, {"x": (6, 96)})["x"])
    state = wf.optim.scale_by_adam8bit(0.0, 0.0, block_size=64, min_size=0)
    _, new = state.update({"x": x}, state.init({"x": x}))
    assert new.mu["x"].shape == (6, 96) and new.mu_scale["x"].shape == (6, 3)  # 32 is what divides 96
    np.testing.assert_array_equal(new.mu_scale["x"], np.abs(x).reshape(6, 3, 32).max(-1))
    np.testing.assert_allclose(new.nu_scale["x"], new.mu_scale["x"], rtol=1e-6)  # the root of the second moment


# As Optax.


def test_what_keeps_float32_is_updated_as_by_optax():
    params = draws(0, {"small": (40, 100), "odd": (64, 129), "named": (128, 128)})
    ours = wf.optim.adamw8bit(0.1, 0.8, 0.9, weight_decay=0.01, keep_float32=lambda p: {k: k == "named" for k in p})
    found, state = steps(ours, params, 3)
    wanted, _ = steps(optax.adamw(0.1, 0.8, 0.9, weight_decay=0.01), params, 3)
    for name in params:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6, atol=1e-7)
        assert state[0].mu[name].dtype == "float32" and state[0].nu_scale[name] is None


def test_the_first_step_is_adams_and_later_ones_stay_near():
    """Nothing is quantised before it is used; then an update is off by no more than its codes are."""
    params = draws(0, {"w": (128, 128)})
    for count, most in ((1, 1e-6), (8, 0.05)):
        found, state = steps(wf.optim.adam8bit(1.0), params, count)
        wanted, _ = steps(optax.adam(1.0), params, count)
        moved = np.abs(wanted["w"] - params["w"]).mean()
        assert np.abs(found["w"] - wanted["w"]).mean() <= most * moved
    assert state[0].mu["w"].dtype == "int8" and state[0].nu["w"].dtype == "uint8"


def test_bad_options_are_told():
    for own, fix in (({"block_size": 48}, "power of two"), ({"block_size": 8}, "16"), ({"min_size": -1}, "4096")):
        with pytest.raises(WeftError) as caught:
            wf.optim.adamw8bit(0.1, **own)
        assert fix in caught.value.fix


# On a mesh.

MESH = "rows=2,cols=2"
LAYOUTS = {
    "tensor parallel": "batch:rows,d_ff:cols",
    "fully sharded": "batch:rows+cols,params.d_model:rows+cols",
    "ZeRO-1": "batch:rows+cols,optimizer.d_ff:rows+cols",
}


def loss(params, x, key):
    hidden = wf.relu(wf.einsum(x, params["w"], over=MODEL) + params["bias"])
    return wf.mean(wf.square(wf.einsum(hidden, params["v"], over=FF) - x), over=[BATCH, MODEL])


def parameters():
    sizes = {name: [dim.size for dim in dims] for name, dims in NAMED.items()}
    return {name: wf.parameter(x / 16, list(NAMED[name])) for name, x in draws(0, sizes).items()}


def step_on(layout, rule):
    return wf.train_step(loss, rule, **({} if layout is None else {"mesh": MESH, "layout": layout}))


def trained(layout, rule, count):
    step, x = step_on(layout, rule), wf.tensor(draws(9, {"x": (16, 256)})["x"], [BATCH, MODEL])
    state = step.init(parameters())
    for _ in range(count):
        state, metrics = step(state, x)
    return state, float(wf.get(metrics["loss"]))


ON_HOST = {"on the host": "batch:rows+cols,params.d_model:rows,optimizer.*:host"}


@pytest.mark.parametrize(
    "layouts", [LAYOUTS, pytest.param(ON_HOST, marks=pytest.mark.slow)], ids=["here", "on the host"]
)
def test_a_layout_does_not_change_the_moments_nor_the_parameters(layouts):
    rule = wf.optim.adamw8bit(1e-2)
    wanted, reached = trained(None, rule, 3)
    for name, layout in layouts.items():
        found, own = trained(layout, rule, 3)
        assert own == pytest.approx(reached, rel=1e-5), name
        for mine, other in zip(*(jax.tree.leaves(wf.get(s.optimizer)) for s in (found, wanted)), strict=True):
            if mine.dtype in (np.int8, np.uint8):  # a rounding that falls the other way is one step of a code
                apart = np.abs(mine.astype(int) - other.astype(int))
                assert apart.max() <= 1 and (apart > 0).mean() < 1e-3, name
            else:
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-7, err_msg=name)
        for part, x in wanted.params.items():  # three steps of at most 0.01 each, of which such a code is a few percent
            apart = np.abs(wf.get(found.params[part]) - wf.get(x))
            assert apart.max() < 1e-3 and (apart > 1e-5).mean() < 1e-3, name


@pytest.mark.parametrize("name", LAYOUTS)
def test_state_lies_as_its_parameter_and_the_update_sends_what_adams_does(name):
    traced = {}
    for rule in (wf.optim.adam8bit(1e-2), optax.adam(1e-2)):
        step, shapes = step_on(LAYOUTS[name], rule), jax.eval_shape(parameters)
        x = wf.tensor(jax.ShapeDtypeStruct((16, 256), "float32"), [BATCH, MODEL])
        state = step.shapes(shapes)
        traced[rule] = wf.trace(step, step.init(shapes), x, mesh=MESH, layout=LAYOUTS[name]), state.optimizer[0]
    (ours, own), (adams, plain) = traced.values()
    rows = [[(r.collective, r.axes, r.bytes, r.count, r.exact) for r in p.ledger] for p in (ours, adams)]
    assert rows[0] == rows[1]
    for part in NAMED:
        assert own.mu[part].sharding.spec == plain.mu[part].sharding.spec == own.nu[part].sharding.spec
        if part != "bias":
            assert own.mu_scale[part].sharding.spec == own.mu[part].sharding.spec
    ways = {"tensor parallel": 2, "fully sharded": 4, "ZeRO-1": 4}[name]
    bias = {"tensor parallel": 2, "fully sharded": 1, "ZeRO-1": 4}[name]
    saved = 6 * N8 - 2 * 4 * N8 // 64  # 1 + 1 bytes for 4 + 4, less two float32 a block of 64
    assert adams.memory.arguments - ours.memory.arguments == saved // ways
    held = sum(a.bytes for a in ours.memory.given if a.name.startswith("optimizer"))
    assert held == (2 * N8 + 2 * 4 * N8 // 64) // ways + 2 * 4 * N32 // bias + 4


def test_a_slice_that_would_cut_blocks_is_told():
    with pytest.raises(LayoutError) as caught:
        wf.train_step(loss, wf.optim.adamw8bit(1e-2, block_size=128), mesh="x=4", layout="optimizer.d_ff:x").init(
            parameters()
        )
    assert "`w` have blocks of 128" in caught.value.fact and "64 long" in caught.value.fact
    assert "block_size=64" in caught.value.fix and "keep_float32" in caught.value.fix


@pytest.mark.slow
def test_a_small_language_model_learns_as_with_float32_moments():
    """40 steps: the losses of both stay within 2 % of each other, and both have fallen by a third."""
    config = wf.models.preset(
        "tiny-lm", layers=2, d_model=64, heads=2, d_kv=32, d_ff=128, vocab=64, batch=8, length=16, dtype="float32"
    )
    model = wf.models.init(config, jax.random.key(0))
    rows = [config.dim("batch"), config.dim("length")]
    ids = np.cumsum(np.random.default_rng(0).integers(1, 4, size=(8, 17)), axis=1) % 64
    batch = {"inputs": wf.tensor(ids[:, :-1], rows), "targets": wf.tensor(ids[:, 1:], rows)}
    curves = []
    for rule in (optax.adamw(3e-3), wf.optim.adamw8bit(3e-3, min_size=0)):
        step = wf.train_step(lambda model, batch, key: model.loss(batch, key), rule, donate=False)
        state, curve = step.init(model), []
        for _ in range(40):
            state, metrics = step(state, batch)
            curve.append(float(wf.get(metrics["loss"])))
        curves.append(np.array(curve))
    plain, ours = curves
    assert ours[-1] < ours[0] * 2 / 3 and np.abs(ours / plain - 1).max() < 0.02
