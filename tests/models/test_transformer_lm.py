"""The language model: the same numbers under every layout, made in place, traced with nothing allocated."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

import weft as wf
from weft import models, nn
from weft.layout import Region, spec

MESH = wf.Mesh("rows=2,cols=4")
TINY = models.preset("tiny-lm", layers=2)
BOTH = "batch:rows,heads:cols,d_ff:cols,vocab:cols"
SHARDED = "batch:rows,params.d_model:rows"

# The longest sum has batch x length terms; in another order each addition rounds by half an ulp of the total.
TOLERANCE = 8 * 16 / 2 * float(np.finfo("float32").eps)


def data(batch=8, length=16, seed=0):
    random = np.random.default_rng(seed)
    return {name: random.integers(0, TINY.vocab, (batch, length)) for name in ("inputs", "targets")}


def named(batch):
    return {name: wf.tensor(array, "batch length") for name, array in batch.items()}


BATCH = data()


@functools.cache
def tiny(**changes):
    return models.init(models.preset("tiny-lm", **dict(layers=2) | changes), jax.random.key(1))


def loss(model, batch):
    return model.loss(batch)


@functools.cache
def expected(**changes):
    """The loss and the gradients with no mesh, as arrays by name."""
    value, gradients = jax.jit(wf.value_and_grad(loss))(tiny(**changes), BATCH)
    return float(value), by_name(gradients)


def by_name(model):
    """The arrays of a model by their paths."""
    return dict(zip(nn.paths(model), map(np.asarray, jax.tree.leaves(wf.get(model))), strict=True))


def check_same(value, gradients, reference, tolerance=TOLERANCE):
    assert float(value) == pytest.approx(reference[0], rel=tolerance)
    found = by_name(gradients)
    assert found.keys() == reference[1].keys()
    for name, array in found.items():
        largest = np.max(np.abs(reference[1][name]))
        assert largest > 0, name
        np.testing.assert_allclose(array, reference[1][name], rtol=0, atol=tolerance * largest, err_msg=name)


# Values.


def in_plain_jnp(w, inputs, targets, *, heads_size=TINY.d_kv, width=TINY.d_model):
    """The same model written once more, without names."""

    def norm(x, scale):
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    length = inputs.shape[1]
    angle = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, width, 2) / width)
    waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, width)
    x = w["embedding.table"][inputs] + waves
    for i in range(TINY.layers):
        layer = {name.removeprefix("decoder.layers."): array[i] for name, array in w.items() if ".layers." in name}
        h = norm(x, layer["attention_norm.scale"])
        q, k, v = (jnp.einsum("btd,dhk->bhtk", h, layer[f"attention.{name}"]) for name in "qkv")
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(heads_size)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        x = x + jnp.einsum("bhtk,hkd->btd", jax.nn.softmax(scores) @ v, layer["attention.o"])
        h = norm(x, layer["feed_forward_norm.scale"])
        x = x + jax.nn.relu(h @ layer["feed_forward.w_in"]) @ layer["feed_forward.w_out"]
    x = norm(x, w["decoder.norm.scale"])
    tied = w["embedding.table"] / math.sqrt(width)
    logits = x @ w.get("softmax.table", tied).T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))


def test_loss_and_gradients_are_those_of_plain_jnp():
    value, gradients = jax.jit(jax.value_and_grad(in_plain_jnp))(by_name(tiny()), **BATCH)
    assert expected()[0] == pytest.approx(float(value), rel=TOLERANCE)
    for name, array in expected()[1].items():
        atol = TOLERANCE * float(jnp.max(jnp.abs(gradients[name])))
        np.testing.assert_allclose(array, gradients[name], rtol=0, atol=atol, err_msg=name)


def test_a_tied_models_loss_is_that_of_plain_jnp():
    value = jax.jit(in_plain_jnp)(by_name(tiny(tied=True)), **BATCH)
    assert expected(tied=True)[0] == pytest.approx(float(value), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("batch:rows", marks=pytest.mark.slow),
        "heads:cols,d_ff:cols,vocab:cols",
        pytest.param("batch:rows,length:cols,params.layers:rows", marks=pytest.mark.slow),
        "memory_length:cols,heads:rows,d_ff:rows+cols,vocab:cols+rows",
        pytest.param("batch:rows,d_model:cols,params.d_ff:rows", marks=pytest.mark.slow),
        pytest.param("batch:rows+cols,params.vocab:rows+cols", marks=pytest.mark.slow),
    ],
)
def test_a_layout_changes_neither_loss_nor_gradients(layout):
    run = wf.spmd(wf.value_and_grad(loss), mesh=MESH, layout=wf.Layout(layout, dims=TINY.dims))
    check_same(*run(tiny(), named(BATCH)), expected())


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        pytest.param({"tied": True}, BOTH, marks=pytest.mark.slow),
        ({"scanned": False}, SHARDED),
        pytest.param({"remat": True, "scanned": False}, "heads:rows,d_kv:cols,d_ff:cols", marks=pytest.mark.slow),
        pytest.param({"remat": True, "tied": True}, SHARDED, marks=pytest.mark.slow),
    ],
)
def test_how_the_layers_run_changes_neither_loss_nor_gradients(changes, layout):
    reference = expected(tied=True) if "tied" in changes else expected()
    run = wf.spmd(wf.value_and_grad(loss), mesh=MESH, layout=layout)
    check_same(*run(tiny(**changes), named(BATCH)), reference)


@pytest.mark.parametrize("layout", [pytest.param(BOTH, marks=pytest.mark.slow), SHARDED])
def test_a_model_made_on_a_mesh_runs_there_by_itself(layout):
    model = models.init(TINY, jax.random.key(1), MESH, layout)
    check_made_in_place(model, layout)
    value, gradients = wf.value_and_grad(lambda model: model.loss(BATCH))(model)
    check_same(value, gradients, expected())
    for gradient, weight in zip(jax.tree.leaves(gradients), jax.tree.leaves(model), strict=True):
        assert gradient.shape == weight.shape
        assert gradient.sharding.is_equivalent_to(weight.sharding, weight.ndim)


def test_a_second_call_compiles_nothing(caplog):
    model = models.init(TINY, jax.random.key(1), "rows=2,cols=4", BOTH)
    assert float(model.loss(BATCH)) == pytest.approx(expected()[0], rel=TOLERANCE)
    again = models.init(TINY, jax.random.key(2), "rows=2,cols=4", BOTH)
    with jax.log_compiles():
        again.loss(data(seed=1))
    assert [record for record in caplog.records if "Compiling" in record.getMessage()] == []


def test_inside_a_region_the_regions_layout_counts():
    here = nn.shapes(TINY.blueprint().on(MESH, wf.Layout(BOTH)))
    program = wf.trace(loss, here, named(BATCH), mesh="all=8", layout="batch:all")
    assert [(row.collective, row.axes, row.bytes, row.count) for row in program.ledger] == [
        ("all_reduce", ("all",), 4, 1)
    ]


def test_where_a_model_runs_is_no_part_of_its_description_and_changes_no_path():
    plain = TINY.blueprint()
    there = plain.on(MESH, wf.Layout(BOTH))
    assert (plain.mesh, plain.layout) == (None, None) and (there.mesh, there.layout) == (MESH, wf.Layout(BOTH))
    assert nn.paths(nn.shapes(there)) == nn.paths(nn.shapes(plain))
    assert jax.tree.leaves(there) == jax.tree.leaves(plain)
    again = jax.tree.map(lambda leaf: leaf, there)
    assert jax.tree.structure(again) == jax.tree.structure(there) != jax.tree.structure(plain)


def test_batch_and_length_are_those_of_the_data():
    batch = data(batch=2, length=24)
    value = jax.jit(in_plain_jnp)(by_name(tiny()), **batch)
    assert float(tiny().loss(batch)) == pytest.approx(float(value), rel=TOLERANCE)
    on_mesh = wf.spmd(lambda model: model.loss(batch), mesh=MESH, layout=BOTH)  # a batch closed over, without names
    assert float(on_mesh(tiny())) == pytest.approx(float(value), rel=TOLERANCE)


def test_a_frequent_words_gradient_is_not_lost_in_bfloat16():
    batch = {"inputs": np.full((16, 64), 3), "targets": np.full((16, 64), 5)}
    gradient = jax.jit(wf.grad(loss))
    small = [tiny(dtype=dtype, layers=1, scanned=False) for dtype in ("float32", "bfloat16")]
    gradients = [gradient(model, batch).embedding.table.array[3] for model in small]
    # A few dozen roundings of 2^-9 on the way; 1024 terms added up in bfloat16 lose two fifths.
    assert np.linalg.norm(gradients[0] - gradients[1]) < 32 * 2**-9 * np.linalg.norm(gradients[0])


# Weights.


def check_made_in_place(model, layout):
    """The weights are bit for bit those made with no mesh, and lie as the layout stores them."""
    region = Region(MESH, wf.Layout(layout))
    made, whole = (jax.tree.leaves(m, is_leaf=lambda x: isinstance(x, wf.Tensor)) for m in (model, tiny()))
    for a, b in zip(made, whole, strict=True):
        wanted = NamedSharding(MESH.jax_mesh(), spec(region.placement(a.dims, "params")))
        assert a.array.sharding.is_equivalent_to(wanted, a.array.ndim), repr(a)
        np.testing.assert_array_equal(a.array, b.array, strict=True)


def test_first_values_do_not_depend_on_where_they_are_made():
    layout = "vocab:rows+cols,d_ff:cols+rows,params.heads:cols,params.layers:rows"
    check_made_in_place(models.init(TINY, jax.random.key(1), MESH, layout), layout)


def test_first_values_do_not_depend_on_how_the_layers_are_held():
    stacked, listed = by_name(tiny()), by_name(tiny(scanned=False))
    assert stacked.keys() == listed.keys()
    for name, array in stacked.items():
        np.testing.assert_array_equal(array, listed[name], err_msg=name)
    everything = np.concatenate([array.ravel() for name, array in stacked.items() if "norm" not in name])
    assert len(np.unique(everything)) > 0.99 * everything.size  # no weight repeats another's values


@pytest.mark.parametrize("scanned", [True, False])
def test_no_processor_ever_makes_more_than_its_slices(scanned):
    config = models.preset("lm-4.90b", scanned=scanned, layers=2)
    layout = "batch:rows+cols,params.d_model:rows+cols"
    key = jax.random.key(0)
    program = jax.make_jaxpr(lambda key: models.init(config, key, MESH, layout))(key)
    largest = max(leaf.size for leaf in jax.tree.leaves(models.shapes(config)))
    assert max(sizes_inside_regions(program.jaxpr)) == largest // 8


def sizes_inside_regions(jaxpr, inside=False):
    """The sizes of all values made inside the regions of a program."""
    for eqn in jaxpr.eqns:
        if inside:
            yield from (var.aval.size for var in eqn.outvars)
        for sub in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from sizes_inside_regions(getattr(sub, "jaxpr", sub), inside or eqn.primitive.name == "shard_map")


# Training.


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        pytest.param(optax.adafactor(1e-2, min_dim_size_to_factor=8), {}, marks=pytest.mark.slow),
        pytest.param(optax.adam(1e-2), {"scanned": False, "layers": 1}, marks=pytest.mark.slow),
    ],
)
def test_training_lowers_the_loss_as_it_does_with_no_mesh(optimizer, changes):
    def run(**where):
        step = wf.train_step(lambda params, batch, key: params.loss(batch, key), optimizer, **where)
        state, losses = step.init(tiny(**changes)), []
        for _ in range(24):
            state, metrics = step(state, named(BATCH), jax.random.key(0))
            losses.append(float(metrics["loss"]))
        return losses

    plain, split = run(), run(mesh=MESH, layout=BOTH + ",params.d_model:rows")
    assert plain[-1] < plain[0] - 1
    # An update divides by the gradient's own size, so what rounds there is carried on by every step that follows.
    np.testing.assert_allclose(split, plain, rtol=24 * TOLERANCE)


# Reading the program.


def test_the_papers_largest_is_traced_for_512_processors_with_nothing_allocated():
    config = models.preset("lm-4.90b")
    words = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), "batch length")
    step = wf.train_step(lambda params, batch, key: params.loss(batch, key), optax.adam(1e-3))
    before = jax.live_arrays()  # held, so that none of other tests goes meanwhile
    state = step.init(models.shapes(config))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))
    layout = wf.Layout(BOTH, dims=config.dims)
    ledger = wf.trace(step, state, {"inputs": words, "targets": words}, mesh="rows=16,cols=32", layout=layout).ledger
    assert len(jax.live_arrays()) == len(before)
    # Nothing is gathered; of the vocab the largest logit of a token is sent, then two sums of it together.
    assert {row.collective for row in ledger} == {"all_reduce"}
    tokens = config.batch // 16 * config.length
    small = [(row.bytes, row.count) for row in ledger if row.axes == ("cols",) and row.bytes <= 8 * tokens]
    assert small == [(4 * tokens, 1), (8 * tokens, 1)]
    # Activations: the embedding's, then each layer's two forward, two backward and one that is computed again, and
    # the one behind the logits.
    sizes = [row.bytes for row in ledger for _ in range(row.count) if row.axes == ("cols",) and row.bytes > 8 * tokens]
    assert sizes == [2 * tokens * config.d_model] * (5 * config.layers + 2)


def test_shapes_are_those_of_the_weights():
    for changes in ({}, {"scanned": False}, {"tied": True}):
        config = models.preset("tiny-lm", **dict(layers=2) | changes)
        made = jax.eval_shape(lambda key, config=config: models.init(config, key), jax.random.key(0))
        shapes = models.shapes(config)
        assert jax.tree.structure(made) == jax.tree.structure(shapes)
        assert jax.tree.leaves(made) == jax.tree.leaves(shapes)


# What cannot be.


@pytest.mark.parametrize(
    ("batch", "fact", "fix"),
    [
        ([1, 2], "the batch is list", "give a dict"),
        ({"inputs": BATCH["inputs"]}, "the batch has no `targets`", "as `targets`"),
        (
            BATCH | {"target": 3},
            "the batch has 'target', which this model does not take",
            "did you mean `targets`?",
        ),
        (BATCH | {"inputs": "abc"}, "`inputs` is str 'abc', no array of token ids", "of shape [batch, length]"),
        (BATCH | {"inputs": np.zeros(8, int)}, "`inputs` has shape (8,)", "of shape [batch, length]"),
        (
            BATCH | {"inputs": wf.tensor(np.zeros((8, 16), "float32"), "batch length")},
            "`inputs` holds float32, not token ids",
            "wf.cast(inputs, 'int32')",
        ),
        (BATCH | {"inputs": np.zeros((8, 16))}, "`inputs` holds float32, not token ids", "inputs.astype('int32')"),
        (
            BATCH | {"inputs": np.zeros((4, 16), int)},
            "dim `batch` has size 4 in one tensor and 8 in another",
            "same size",
        ),
        (
            BATCH | {"targets": wf.tensor(BATCH["targets"], "batch time")},
            "`targets` has dims [batch=8 time=16], and the model reads `batch` and `length`",
            "wf.tensor(targets, 'batch length')",
        ),
    ],
)
def test_what_cannot_be_a_batch_is_told_with_its_cure(batch, fact, fix):
    with pytest.raises(wf.WeftError) as raised:
        models.shapes(TINY).loss(batch)
    assert raised.value.fact == fact
    assert fix in raised.value.fix
    assert "test_transformer_lm.py" in raised.value.state


def test_what_cannot_be_made_is_told_with_its_cure():
    key = jax.random.key(0)
    with pytest.raises(wf.RegionError, match="only one of mesh and layout"):
        models.init(TINY, key, mesh=MESH)
    with pytest.raises(wf.TensorError, match=r"fix: make one by `jax.random.key\(seed\)`"):
        models.init(TINY, 3)
    with pytest.raises(wf.TensorError, match=r"fix: make one by `jax.random.key\(seed\)`"):
        models.init(TINY, jax.random.PRNGKey(3))
    with pytest.raises(wf.LayoutError, match="did you mean `heads`"):
        models.init(TINY, key, MESH, "haeds:cols")
    with pytest.raises(wf.LayoutError, match="did you mean `cols`"):
        models.init(TINY, key, MESH, "heads:colls")
    with pytest.raises(wf.LayoutError, match=r"dim `d_ff` \(size 66\) does not divide"):
        models.init(models.preset("tiny-lm", d_ff=66), key, MESH, "d_ff:cols")
    with pytest.raises(wf.RegionError, match="init was called on a mesh inside a region"):
        wf.spmd(lambda x: models.init(TINY, key, MESH, "heads:cols").norm, mesh=MESH, layout="")(wf.ones([]))
    with pytest.raises(wf.RegionError, match="holds no values"):
        models.shapes(TINY).loss(BATCH)
