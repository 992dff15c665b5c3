"""Weft costs nothing once compiled: what an expert writes by hand, attention in a scan, a region in a plain program.

Nothing here is timed; `benchmarks/overhead.py`, whose block is compared here, does that.
"""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import weft as wf
from benchmarks import overhead

# A block by hand and in Weft.


@pytest.fixture(scope="module")
def comparison():
    return functools.cache(overhead.compare)


@pytest.mark.quick("batch:rows", "batch:rows,heads:cols,d_ff:cols,params.d_model:rows")
@pytest.mark.parametrize("layout", overhead.LAYOUTS)
def test_a_block_sends_what_the_hand_written_one_sends(comparison, layout):
    found = comparison(layout)
    assert found.weft.sent == found.hand.sent
    assert found.weft.compiled_sent == found.hand.compiled_sent
    assert found.hand.sent


@pytest.mark.parametrize("layout", overhead.LAYOUTS)
def test_a_block_compiles_to_as_many_instructions_as_the_hand_written_one(comparison, layout):
    found = comparison(layout)
    assert found.hand.instructions > 100
    assert found.weft.instructions == pytest.approx(found.hand.instructions, rel=0.02)


@pytest.mark.parametrize("layout", overhead.LAYOUTS)
def test_a_block_gives_the_numbers_of_the_hand_written_one(comparison, layout):
    found = comparison(layout)
    assert found.largest_difference <= overhead.MOST_DIFFERENCE
    assert found.broken() == []


def test_a_broken_promise_is_reported(comparison):
    found = comparison("batch:rows")
    other = comparison("heads:cols,d_ff:cols")
    assert len(overhead.Comparison("", found.hand, other.weft).broken()) >= 2


def test_the_hand_written_block_sends_no_more_than_it_must(comparison):
    data = comparison("batch:rows").hand.sent
    model = comparison("heads:cols,d_ff:cols").hand.sent
    both = comparison("batch:rows,heads:cols,d_ff:cols").hand.sent
    assert sum(data.values()) == len(overhead.WEIGHTS) + 1  # one sum a weight, and the loss
    assert sum(model.values()) == 4  # attention and feed-forward, forward and backward
    assert sum(both.values()) == sum(data.values()) + sum(model.values())


# Tracing without devices.

SMALL = dict(layers=6, d_model=64, heads=128, d_kv=8, d_ff=128, vocab=128, batch=64, length=16)


@pytest.mark.parametrize("mesh", overhead.TRACE_MESHES)
def test_a_train_step_is_the_same_program_on_every_mesh(mesh):
    step, state, batch = overhead.language_model(**SMALL)
    program = wf.trace(step, state, batch, mesh=mesh, layout=overhead.TRACE_LAYOUT)
    small = wf.trace(step, state, batch, mesh=overhead.TRACE_MESHES[0], layout=overhead.TRACE_LAYOUT)
    calls = [[(row.collective, row.axes, row.count) for row in p.ledger] for p in (program, small)]
    assert calls[0] == calls[1]


@pytest.mark.slow
def test_a_traced_train_step_is_the_one_that_runs():
    model = dict(layers=2, d_model=8, heads=4, d_kv=4, d_ff=16, vocab=16, batch=4, length=8)
    step, state, batch = overhead.language_model(**model)
    random = np.random.default_rng(0)

    def filled(leaf):
        array = random.integers(0, 16, leaf.shape) if leaf.dtype == "int32" else random.normal(size=leaf.shape) / 4
        return jnp.asarray(array, leaf.dtype)

    params, batch = jax.tree.map(filled, (state.params, batch))
    losses = {}
    for mesh, layout in (("one=1", ""), ("rows=2,cols=4", overhead.TRACE_LAYOUT)):
        run = wf.spmd(step, mesh=mesh, layout=layout)
        now = run.init(params)
        for _ in range(3):
            now, metrics = run(now, batch)
        losses[layout] = float(metrics["loss"])
        assert wf.trace(run, now, batch).ledger.count() == (
            0 if not layout else wf.trace(run, state, batch).ledger.count()
        )
    assert losses[overhead.TRACE_LAYOUT] == pytest.approx(losses[""], rel=2e-2)  # bf16 compute: 8 bits


# Attention with grouped queries, as a user writes it, in a scan over layers.

T, M, D, L = wf.dims(length=8, memory_length=8, d_model=16, layers=3)
H, G, K = wf.dims(heads=4, group=4, d_kv=4)
MESH = "a=2,b=4"


def attention(p, x, pos):
    q = wf.einsum(x, p["q"], over=D)
    k, v = (wf.einsum(x, p[n], over=D) for n in "kv")
    k, v, where = k.rename(length=M), v.rename(length=M), pos.rename(length=M)
    scores = wf.where(where <= pos, wf.einsum(q, k, over=K) / K.size**0.5, -1e9)
    return wf.einsum(wf.einsum(wf.softmax(scores, over=M), v, over=M), p["o"], over=[H, G, K])


def norm(x):
    return x * wf.rsqrt(wf.mean(x * x, over=D) + 1e-6)


def decoder(remat):
    def loss(weights, x, pos):
        def layer(x, p):
            return x + attention(p, norm(x), pos), None

        y, _ = wf.scan(wf.remat(layer) if remat else layer, x, weights, over=L)
        return wf.mean(y * y, over=["batch", T, D])

    return wf.value_and_grad(loss, argnums=(0, 1))


def decoder_arguments(batch):
    random = np.random.default_rng(0)
    B = wf.Dim("batch", batch)

    def normal(make, dims, scale):
        return make((random.normal(size=[d.size for d in dims]) * scale).astype("float32"), dims)

    shapes = {"q": [D, H, G, K], "k": [D, H, K], "v": [D, H, K], "o": [H, G, K, D]}
    weights = {name: normal(wf.parameter, [L, *dims], 0.25) for name, dims in shapes.items()}
    return weights, normal(wf.tensor, [B, T, D], 1.0), wf.tensor(np.arange(T.size, dtype="int32"), [T])


def plain_decoder(arrays, x):
    """The oracle: the same in plain jnp on one processor."""
    seen = jnp.tril(jnp.ones((T.size, T.size), bool))
    for i in range(L.size):
        p = {name: array[i] for name, array in arrays.items()}
        h = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        q, k, v = jnp.einsum("btd,dhgk->bthgk", h, p["q"]), *(jnp.einsum("btd,dhk->bthk", h, p[n]) for n in "kv")
        scores = jnp.where(seen, jnp.einsum("bthgk,bmhk->bhgtm", q, k) / K.size**0.5, -1e9)
        mixed = jnp.einsum("bhgtm,bmhk->bthgk", jax.nn.softmax(scores, axis=-1), v)
        x = x + jnp.einsum("bthgk,hgkd->btd", mixed, p["o"])
    return jnp.mean(x * x)


DECODER_CASES = [
    pytest.param("batch:a,heads:b", 6, id="data and model"),
    pytest.param("heads:a,group:b", 6, id="heads and group"),
    pytest.param("length:a", 6, id="length"),
    pytest.param("heads:a", 1, id="batch of one"),
    pytest.param("", 6, id="one processor", marks=pytest.mark.slow),
]


def quiet_spmd(fn, mesh, layout):
    with overhead.quiet():
        return wf.spmd(fn, mesh=mesh, layout=layout)


@pytest.mark.quick("heads and group-remat", "length-remat")
@pytest.mark.parametrize(
    "remat", [pytest.param(False, id="kept", marks=pytest.mark.slow), pytest.param(True, id="remat")]
)
@pytest.mark.parametrize("layout, batch", DECODER_CASES)
def test_attention_in_a_scan_has_the_values_and_gradients_of_one_processor(layout, batch, remat):
    weights, x, pos = decoder_arguments(batch)
    arrays = {name: weight.array for name, weight in weights.items()}
    expected = jax.tree.leaves(jax.value_and_grad(plain_decoder, argnums=(0, 1))(arrays, x.array))
    found = jax.tree.leaves(quiet_spmd(decoder(remat), MESH, layout)(weights, x, pos))
    assert len(found) == len(expected) == 1 + len(weights) + 1
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.max(np.abs(b)))


def decoder_sums(layout, batch, remat):
    """How often each all-reduce of [batch length d_model] runs, by the axes it goes over; and a copy of x's bytes."""
    weights, x, pos = decoder_arguments(batch)
    with overhead.quiet():
        program = wf.trace(decoder(remat), weights, x, pos, mesh=MESH, layout=layout)
    rows_of_batch = 2 if "batch:a" in layout else 1
    size = batch * T.size * D.size * 4 // rows_of_batch
    found = collections.Counter()
    for row in program.ledger:
        if row.collective == "all_reduce" and row.bytes == size:
            found[tuple(sorted(row.axes))] += row.count
    return found


@pytest.mark.parametrize("remat", [False, True], ids=["kept", "remat"])
@pytest.mark.parametrize("layout, batch, axis", [("batch:a,heads:b", 6, "b"), ("heads:a", 1, "a")])
def test_the_fan_out_to_q_k_and_v_is_one_gradient_sum_a_layer(layout, batch, axis, remat):
    # The result of attention is summed forward, the gradient of h backward; recomputed, the first sum's result is
    # not needed again, for nothing in the layer comes after it.
    assert decoder_sums(layout, batch, remat) == {(axis,): 2 * L.size}


@pytest.mark.parametrize("remat", [False, True], ids=["kept", "remat"])
def test_a_fan_out_to_more_and_fewer_axes_has_no_sum_twice(remat):
    # q varies over heads and group, k and v over heads alone: h's gradient is two sums, each over other axes.
    sums = decoder_sums("heads:a,group:b", 6, remat)
    backward = sums - collections.Counter({("a", "b"): L.size})  # forward: the result of attention
    assert len(backward) == 2
    assert set(backward.values()) == {L.size}


@pytest.mark.parametrize("remat", [False, True], ids=["kept", "remat"])
def test_a_split_length_moves_keys_and_values_and_sums_weights(remat):
    weights, x, pos = decoder_arguments(6)
    with overhead.quiet():
        program = wf.trace(decoder(remat), weights, x, pos, mesh=MESH, layout="length:a")
    kinds = collections.Counter()
    for row in program.ledger:
        if row.dtype == "float32":
            kinds[row.collective] += row.count
    gathers = 2 * L.size  # k and v
    assert kinds["all_gather"] == (2 * gathers if remat else gathers)
    assert kinds["reduce_scatter"] == gathers
    assert kinds["all_reduce"] == len(weights) * L.size + 1  # each layer's weights, and the loss
    assert set(kinds) == {"all_gather", "reduce_scatter", "all_reduce"}


# A region inside a plain JAX program.

B2, I2, N2 = wf.dims(batch=8, d_io=16, hidden=32)


def two_layers(x, w, v):
    h = wf.relu(wf.einsum(x, w, over=I2))
    return h, wf.einsum(h, v, over=N2)


def plain_program(run):
    def program(x, w, v):
        h, y = run(wf.tensor(2 * x, [B2, I2]), wf.parameter(w, [I2, N2]), wf.parameter(v, [N2, I2]))
        return h.array, y.array + 1

    return program


def on_mesh(mesh, *specs):
    random = np.random.default_rng(0)
    shapes = [(8, 16), (16, 32), (32, 16)]
    return [
        jax.device_put(random.normal(size=shape).astype("float32"), NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]


def auto_mesh():
    return jax.make_mesh((2, 4), ("rows", "cols"), axis_types=(AxisType.Auto,) * 2)


def own_mesh():
    return wf.Mesh("rows=2,cols=4").jax_mesh()


STORED = "batch:rows,hidden:cols,params.d_io:rows"
REGIONS = [
    # layout, specs of x, w, v, specs of h, y, compiled collectives forward, with bytes
    ("batch:rows", [P("rows"), P(), P()], [P("rows"), P("rows")], {}),
    ("hidden:cols", [P(), P(None, "cols"), P("cols")], [P(None, "cols"), P()], {"all-reduce": 8 * 16 * 4}),
    (
        "batch:rows,hidden:cols",
        [P("rows"), P(None, "cols"), P("cols")],
        [P("rows", "cols"), P("rows")],
        {"all-reduce": 4 * 16 * 4},
    ),
    (
        STORED,
        [P("rows"), P("rows", "cols"), P("cols", "rows")],
        [P("rows", "cols"), P("rows")],
        {"all-reduce": 4 * 16 * 4, "all-gather": 2 * 16 * 8 * 4},
    ),
]


def sent_bytes(compiled):
    found = collections.Counter()
    for (kind, _, what), count in overhead.compiled(compiled.as_text()).items():
        if what == "bytes":
            found[kind] += count
    return found


@pytest.mark.parametrize("make_mesh", [own_mesh, auto_mesh])
@pytest.mark.parametrize("layout, given, wanted, sent", REGIONS, ids=[case[0] for case in REGIONS])
def test_a_region_inside_a_plain_jit_keeps_the_shardings(layout, given, wanted, sent, make_mesh):
    run = quiet_spmd(two_layers, "rows=2,cols=4", layout)
    mesh = make_mesh()
    args = on_mesh(mesh, *given)
    compiled = jax.jit(plain_program(run)).lower(*args).compile()
    assert sent_bytes(compiled) == sent  # nothing but the program's own
    for sharding, spec in zip(compiled.output_shardings, wanted, strict=True):
        assert sharding.is_equivalent_to(NamedSharding(mesh, spec), 2), sharding
    x, w, v = map(np.asarray, args)
    h, y = compiled(*args)
    np.testing.assert_allclose(h, np.maximum(2 * x @ w, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y, np.maximum(2 * x @ w, 0) @ v + 1, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("layout, given, wanted, sent", REGIONS, ids=[case[0] for case in REGIONS])
def test_gradients_through_a_region_in_a_plain_program_lie_as_the_arguments(layout, given, wanted, sent):
    run = quiet_spmd(two_layers, "rows=2,cols=4", layout)
    args = on_mesh(own_mesh(), *given)

    def total(x, w, v):
        return jnp.sum(plain_program(run)(x, w, v)[1] ** 2)

    compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*args).compile()
    for sharding, spec in zip(compiled.output_shardings, given, strict=True):
        assert sharding.is_equivalent_to(NamedSharding(own_mesh(), spec), 2), sharding
    x, w, v = map(np.asarray, args)

    def oracle(x, w, v):
        return jnp.sum((jax.nn.relu(2 * x @ w) @ v + 1) ** 2)

    for a, b in zip(compiled(*args), jax.grad(oracle, argnums=(0, 1, 2))(x, w, v), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.max(np.abs(b)))
    local = {"x": 8 * 16 * 4, "w": 16 * 32 * 4, "v": 32 * 16 * 4}
    moved = sent_bytes(compiled)
    if layout == "batch:rows":
        assert moved == {"all-reduce": local["w"] + local["v"]}
    if layout == "hidden:cols":
        assert moved == {"all-reduce": 2 * local["x"]}
    if layout == "batch:rows,hidden:cols":
        assert moved == {"all-reduce": 2 * local["x"] // 2 + (local["w"] + local["v"]) // 4}
    if layout == STORED:
        gathered = (local["w"] + local["v"]) // 4
        assert moved["all-gather"] in (
            gathered,
            2 * gathered,
        )  # outside a loop XLA may join the two gathers of a weight
        assert set(moved) == {"all-gather", "all-reduce", "reduce-scatter"}
