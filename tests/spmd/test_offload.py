"""Offload: what rules put on the host lies there, and changes no value."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft.compat import PINNED
from weft.spmd import streamed

IDS = wf.tensor(jnp.arange(8) % 6, "batch")


def parameters():
    draw = iter(jax.random.split(jax.random.key(0), 4))

    def parameter(shape, dims):
        return wf.parameter(jax.random.normal(next(draw), shape) * 0.3, dims)

    return {
        "table": parameter((6, 4), "vocab d_model"),
        "up": parameter((2, 4, 8), "layers d_model d_ff"),
        "down": parameter((2, 8, 4), "layers d_ff d_model"),
        "scale": wf.parameter(jnp.float32(2.0), []),
    }


def loss_of(*, dtype="float32", prefetch=False):
    """A table used twice, outside the loop and after it, and a loop over layers, each of which is used twice."""

    def loss(params, ids, key):
        table = wf.cast(params["table"], dtype)

        @wf.remat
        def one(x, own):
            up, down = (wf.cast(w, dtype) for w in own)
            for _ in range(2):
                x = x + wf.einsum(wf.tanh(wf.einsum(x, up, over="d_model")), down, over="d_ff")
            return x

        own = params["up"], params["down"]
        x = wf.take(table, ids, over="vocab")
        x, _ = wf.scan(lambda x, own: (one(x, own), None), x, own, over="layers", prefetch=prefetch)
        logits = wf.cast(wf.einsum(x, table, over="d_model"), "float32") * params["scale"]
        return wf.mean(wf.square(logits - 1), over=["batch", "vocab"])

    return loss


def train(layout, optimizer=None, *, steps=2, donate=False, **options):
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)) if optimizer is None else optimizer
    step = wf.train_step(loss_of(**options), optimizer, mesh=wf.Mesh("x=2"), layout=layout, donate=donate)
    state = step.init(parameters())
    for _ in range(steps):
        state, metrics = step(state, IDS)
    return state, metrics


def kinds(tree):
    """Of arrays, numbers left out, the kinds of memory they lie in."""
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree) if leaf.shape}


def assert_same_bits(a, b):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), a, b)


@pytest.mark.quick("batch:x,params.d_ff:x-params.*:host-options1", "batch:x,optimizer.d_ff:x-optimizer.*:host-options3")
@pytest.mark.parametrize(
    "layout, rule, options",
    [
        ("batch:x", "params.*:host", {}),
        ("batch:x,params.d_ff:x", "params.*:host", {"dtype": "bfloat16", "prefetch": True}),
        ("batch:x,params.d_model:x", "params.d_ff:host", {"donate": True}),
        ("batch:x,optimizer.d_ff:x", "optimizer.*:host", {}),
    ],
)
def test_a_rule_that_ends_on_the_host_changes_no_bit_of_training(layout, rule, options):
    assert_same_bits(train(f"{layout},{rule}", **options), train(layout, **options))


def test_what_a_rule_puts_on_the_host_stays_there():
    state, _ = train("batch:x,optimizer.*:host")
    assert (kinds(state.params), kinds(state.optimizer)) == ({"device"}, {PINNED})
    state, _ = train("batch:x,params.layers:host")
    assert kinds(state.params["table"]) == {"device"} and kinds((state.params["up"], state.params["down"])) == {PINNED}
    moments = state.optimizer[1][0].mu
    assert kinds(moments["table"]) == {"device"} and kinds((moments["up"], moments["down"])) == {PINNED}
    assert state.params["scale"].array.sharding.memory_kind == "device"


@pytest.mark.slow
def test_pieces_of_any_size_give_the_same_bits(monkeypatch):
    whole = train("batch:x", optax.lamb(1e-2), steps=1)  # which looks along parameters, too
    for piece in (1, 2**20):
        monkeypatch.setattr(streamed, "PIECE", piece)
        assert_same_bits(train("batch:x,params.*:host", optax.lamb(1e-2), steps=1), whole)


def test_a_function_fetches_parameters_from_the_host():
    def of(layout):
        params = wf.put(parameters(), mesh="x=2", layout=layout)
        fn = wf.value_and_grad(lambda params, ids: loss_of()(params, ids, None))
        return params, wf.spmd(fn, mesh="x=2", layout=layout)(params, IDS)

    (params, made), (_, without) = of("batch:x,params.*:host"), of("batch:x")
    assert kinds(params) == kinds(made[1]) == {PINNED}  # a gradient is stored as what it is the gradient of
    assert_same_bits(made, without)
    assert_same_bits(wf.get(params), wf.get(parameters()))


def test_optimizer_state_in_finer_slices_than_parameters_on_the_host_is_an_error():
    with pytest.raises(wf.LayoutError, match=r"(?s)`d_ff` lie on the host.*fix: split both, `params.d_ff:x`"):
        train("batch:x,params.*:host,optimizer.d_ff:x")
