"""Every model under every kind of layout: losses, gradients and weights after steps are those of one processor."""

import functools

import jax
import numpy as np
import optax
import pytest

import weft as wf
from weft import models

MODELS = {
    "lm": ("tiny-lm", {}),
    "modern lm": ("tiny-lm", dict(positions="rotary", heads=4, group=2, gated=True, activation="silu", norm="layer",
                                  bias="q k v o in out norm", softcap=20.0, window=9)),
    "lm with qk-norm": ("tiny-lm", dict(positions="rotary", heads=4, group=2, qk_norm="all")),
    "prefix lm": ("tiny-lm", dict(prefix=True, positions="relative", scale_scores=False, tied=True, loss_chunks=4)),
    "translation": ("tiny-mt", dict(smoothing=0.1)),
    "t5": ("tiny-mt", dict(positions="relative", scale_scores=False, tied=True, gated=True, z_loss=1e-3)),
    "masked lm": ("tiny-bert", {}),
    "classification": ("tiny-bert", {}),
    "experts": ("tiny-moe", dict(capacity=1.25, jitter=0.1, router_z_loss=1e-2)),
    "experts every second": ("tiny-moe", dict(capacity=1.0, every=2, gating="top2", remat=True)),
    "dropless experts": ("tiny-moe", dict(gating="dropless", shared_experts=1, jitter=0.1, remat=True)),
    "experts of an encoder-decoder": ("tiny-mt", dict(experts=8, every=2, gating="choice", gated=True)),
}  # fmt: skip
MESHES = {"two": "rows=2,cols=4", "three": "a=2,b=2,c=2"}
LAYOUTS = {
    "batch": ("two", "batch:rows+cols"),
    "model": ("two", "heads:cols,d_ff:cols,vocab:cols,d_model:rows"),
    "both": ("two", "batch:rows,heads:cols,d_ff:cols,vocab:cols"),
    "3-D": ("three", "batch:a,length:b,heads:c,d_ff:c,vocab:c,params.d_model:a"),
    "ring": ("two", "batch:rows,length:cols,memory_length:cols,params.d_model:rows"),
    "ulysses": ("two", "batch:rows,stream:cols,queries:cols,vocab:cols"),
    "ulysses within heads": ("three", "batch:a,stream:b,heads:c,queries:c+b,d_ff:c,params.d_model:a"),
    "experts": ("two", "batch:cols,experts:cols,d_ff:rows,params.layers:rows,optimizer.d_model:rows"),
}
QUICK = {("lm", "both")}  # every family of models under some layout is in the quick part of the grid
CASES = [
    pytest.param(model, layout, id=f"{model}, {layout}", marks=() if (model, layout) in QUICK else pytest.mark.slow)
    for model in MODELS
    for layout in LAYOUTS
    if layout != "experts" or "experts" in model
]
SGD = optax.sgd(0.05, momentum=0.9)
STEPS = 5


def config_of(model):
    preset, changes = MODELS[model]
    return models.preset(preset, layers=4 if "every" in changes else 2, **changes)


def batch_of(model):
    random = np.random.default_rng(0)
    ids = {name: random.integers(0, 64, (8, 16)) for name in ("inputs", "targets")}
    names = {
        "tokens": ids["targets"],
        "prefix": random.integers(1, 16, 8),
        "labels": random.integers(0, 8, 8),
        "weights": random.uniform(0, 1, (8, 16)).astype("float32"),
        "segments": np.sort(random.integers(0, 3, (8, 16)), axis=-1),
    } | ids
    wanted = {
        "modern lm": ["tokens", "weights", "segments"],
        "prefix lm": ["tokens", "prefix"],
        "translation": ["inputs", "targets", "weights"],
        "t5": ["inputs", "targets"],
        "classification": ["inputs", "labels"],
        "experts of an encoder-decoder": ["inputs", "targets"],
    }.get(model, ["tokens"])
    return {name: wf.tensor(names[name], "batch length" if names[name].ndim == 2 else "batch") for name in wanted}


def trained(model, optimizer, layout=None, steps=STEPS):
    """The state after the first step and after the last, and the loss of each, dropout on."""
    config = config_of(model)
    where = () if layout is None else (MESHES[LAYOUTS[layout][0]], LAYOUTS[layout][1])
    made = models.init(config, jax.random.key(1), *where)
    step = wf.train_step(lambda m, batch, key: m.loss(batch, key), optimizer)
    step = step if layout is None else wf.spmd(step, mesh=where[0], layout=where[1])
    state = step.init(made)
    losses, states = [], []
    for turn in range(steps):
        state, told = step(state, batch_of(model), jax.random.fold_in(jax.random.key(7), turn))
        losses.append(float(told["loss"]))
        states.append(wf.get(state) if turn in (0, steps - 1) else None)
    return states[0], states[-1], losses


@functools.cache
def alone(model, optimizer):
    return trained(model, optimizer)


def check_close(found, wanted, rtol):
    """Every array within `rtol` of the largest of its numbers."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(np.abs(b).max(), 1e-30))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize(("model", "layout"), CASES)
def test_losses_gradients_and_weights_are_those_of_one_processor(model, layout):
    first, last, losses = trained(model, SGD, layout)
    first_alone, last_alone, losses_alone = alone(model, SGD)
    np.testing.assert_allclose(losses, losses_alone, rtol=1e-5)
    # What momentum holds after one step is the gradient.
    check_close(first.optimizer, first_alone.optimizer, 1e-4)
    check_close(last.params, last_alone.params, 1e-4)
    assert any(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(first.optimizer))


OPTIMIZERS = {"adam": optax.adam(1e-3), "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize(
    ("model", "layout", "optimizer"),
    [
        pytest.param(model, layout, name, marks=() if (model, layout, name) in quick else pytest.mark.slow)
        for quick in [{("lm", "both", "adafactor")}]
        for model in MODELS
        for layout in ("both", "experts" if "experts" in model else "3-D")
        for name in OPTIMIZERS
    ],
)
def test_with_adam_and_adafactor_the_losses_agree(model, layout, optimizer):
    losses = trained(model, OPTIMIZERS[optimizer], layout)[2]
    np.testing.assert_allclose(losses, alone(model, OPTIMIZERS[optimizer])[2], rtol=1e-4)


# Execution.


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(dict(scanned=False), marks=pytest.mark.slow),
        pytest.param(dict(unroll=2), marks=pytest.mark.slow),
        pytest.param(dict(remat=True), marks=pytest.mark.slow),
        pytest.param(dict(remat="attention feed_forward"), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["lm", "experts every second"])
def test_how_layers_run_changes_neither_weights_nor_gradients(model, changes):
    batch, key = batch_of(model), jax.random.key(3)

    def of(**changes):
        preset, own = MODELS[model]
        made = models.init(models.preset(preset, **own | dict(layers=4) | changes), jax.random.key(1))
        return jax.jit(wf.value_and_grad(lambda m: m.loss(batch, key)))(made), made

    (value, gradients), made = of(**changes)
    (wanted, wanted_gradients), wanted_made = of()
    assert [str(p) for p in jax.tree.leaves(made)] == [str(p) for p in jax.tree.leaves(wanted_made)]
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-6)
    check_close(gradients, wanted_gradients, 1e-5)


def test_cross_attention_is_kept_of_the_blocks_that_have_it():
    ids = np.arange(16).reshape(2, 8) % 7 + 1

    def of(remat):
        model = models.init(models.preset("tiny-mt", layers=1, dropout=0.0, remat=remat), jax.random.key(0))
        return jax.jit(wf.grad(lambda m: m.loss({"inputs": ids, "targets": ids})))(model)

    check_close(of("memory_attention"), of(False), 1e-5)


def test_weights_are_stored_stacked_under_the_paths_of_their_modules():
    for scanned in (True, False):
        paths = wf.nn.paths(models.shapes(models.preset("tiny-mt", scanned=scanned)))
        assert "decoder.layers.attention.q" in paths
        assert "decoder.layers.memory_attention.o" in paths
        assert "encoder.layers.feed_forward.w_in" in paths
        shapes = models.shapes(models.preset("tiny-mt", scanned=scanned))
        assert str(shapes.decoder.layers.attention.q.dims) == "layers=8 d_model=32 heads=8 d_kv=8"


@pytest.mark.slow
def test_weights_gradients_and_activations_have_their_own_dtypes():
    config = models.preset("tiny-lm", layers=2, param_dtype="bfloat16", dtype="float32")
    model = models.init(config, jax.random.key(0))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(model)} == {"bfloat16"}
    wide = models.init(models.preset("tiny-lm", layers=2, dtype="bfloat16"), jax.random.key(0))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(wide)} == {"float32"}
    shapes = models.shapes(models.preset("tiny-lm", dtype="bfloat16"))
    ids = wf.tensor(jax.ShapeDtypeStruct((8, 16), "int32"), "batch length")
    for dtype, width in ((None, 2), ("float32", 4)):
        step = wf.train_step(lambda m, b, key: m.loss(b), SGD, sum_dtype=dtype)
        ledger = wf.trace(step, step.init(shapes), {"tokens": ids}, mesh="x=8", layout="batch:x").ledger
        sent = sum(row.bytes * row.count for row in ledger if row.bytes > 4)
        norms = 17 * 32  # their scales multiply in float32
        assert sent == width * (models.preset("tiny-lm").param_count - norms) + 4 * norms


# Parts that only some batches have.


def test_a_prefix_is_in_the_batch_where_the_model_has_one_and_nowhere_else():
    tokens = np.zeros((8, 16), int)
    with pytest.raises(wf.TensorError, match="the batch has no `prefix`") as raised:
        models.shapes(models.preset("tiny-lm", prefix=True)).loss({"tokens": tokens})
    assert "shape [batch]" in raised.value.fix
    with pytest.raises(wf.TensorError, match="the batch has `prefix`, and the model has none"):
        models.shapes(models.preset("tiny-lm")).loss({"tokens": tokens, "prefix": np.ones(8, int)})


@pytest.mark.slow
def test_words_are_hidden_but_for_padding_and_those_that_do_not_count():
    config = models.preset("tiny-bert", vocab=64, hidden_share=0.5)
    tokens = np.random.default_rng(0).integers(2, 64, (8, 16))
    tokens[:, 10:] = 0
    hidden = models.encoder.mask_tokens(wf.tensor(tokens, "batch length"), jax.random.key(0), config)
    inputs, weights = (np.asarray(hidden[name]) for name in ("inputs", "weights"))
    assert set(np.unique(weights)) == {0.0, 1.0}
    assert weights[:, 10:].sum() == 0
    assert 20 < weights.sum() < 60
    np.testing.assert_array_equal(inputs[weights == 0], tokens[weights == 0])
    assert 0.5 < (inputs == config.hidden_id)[weights == 1].mean() < 0.95
    model = models.init(config, jax.random.key(1))
    assert float(model.loss({"tokens": tokens, "weights": np.zeros((8, 16))}, jax.random.key(0))) == 0


@pytest.mark.slow
def test_a_window_counts_in_both_stacks_of_an_encoder_decoder():
    tokens = np.random.default_rng(0).integers(2, 64, (2, 16))
    made = [models.init(models.preset("tiny-mt", layers=1, window=w), jax.random.key(1)) for w in (None, 2, 16)]
    whole, narrow, wide = (np.asarray(wf.get(model.logits(tokens, tokens))) for model in made)
    np.testing.assert_allclose(wide, whole, rtol=1e-5, atol=1e-5)
    assert np.abs(narrow - whole).max() > 1e-2


def test_only_weights_of_products_are_adapted_and_adapters_are_folded_in_before_they_are_saved(tmp_path):
    model = models.init(
        models.preset("gpt2", layers=1, d_model=16, heads=2, d_kv=8, d_ff=16, vocab=64, length=16), jax.random.key(0)
    )
    with pytest.raises(wf.TensorError, match="no weight of a layer's product"):
        wf.nn.lora.add(model, rank=2, key=jax.random.key(0), where="embedding.*")
    adapted = wf.nn.lora.add(model, rank=2, key=jax.random.key(0))
    with pytest.raises(wf.WeftError, match="has an adapter") as raised:
        wf.interop.save(adapted, tmp_path / "out")
    assert "lora.merge" in raised.value.fix
    wf.interop.save(wf.nn.lora.merge(adapted), tmp_path / "out")


LORA = "*.attention.[qo] *.feed_forward.w_in"


@pytest.mark.slow
def test_adapters_change_nothing_at_first_and_alone_are_trained():
    batch, key = batch_of("lm"), jax.random.key(3)
    config = config_of("lm")
    model = models.init(config, jax.random.key(1))
    adapted = wf.nn.lora.add(model, rank=4, key=jax.random.key(2), where=LORA)
    assert float(adapted.loss(batch, key)) == pytest.approx(float(model.loss(batch, key)), rel=1e-6)
    step = wf.train_step(lambda m, batch, key: m.loss(batch, key), SGD, mesh=MESHES["two"], layout=LAYOUTS["both"][1])
    plain = wf.train_step(lambda m, batch, key: m.loss(batch, key), SGD)
    states = [step.init(adapted), plain.init(adapted)]
    for _ in range(2):
        states = [each(state, batch, key)[0] for each, state in zip((step, plain), states, strict=True)]
    split, whole = (wf.get(state.params) for state in states)
    check_close(split, whole, 1e-4)
    before = jax.tree.leaves(wf.get(adapted))
    after = zip(wf.nn.paths(adapted), before, jax.tree.leaves(whole), strict=True)
    changed = [path for path, a, b in after if (a != b).any()]
    assert changed == [p for p in wf.nn.paths(adapted) if p.endswith((".down", ".up"))]
    assert len(changed) == 6
    merged = wf.nn.lora.merge(states[1].params)
    assert wf.nn.paths(merged) == wf.nn.paths(model)
    assert float(merged.loss(batch)) == pytest.approx(float(states[1].params.loss(batch)), rel=1e-5)


def test_what_is_frozen_gets_no_gradient():
    model = wf.nn.freeze(models.init(config_of("lm"), jax.random.key(1)), "embedding.*", "decoder.layers.*")
    gradients = wf.grad(lambda m: m.loss(batch_of("lm")))(model)
    assert wf.nn.paths(gradients) == ["decoder.norm.scale", "softmax.table"]
    assert wf.nn.paths(wf.grad(lambda m: m.loss(batch_of("lm")))(wf.nn.unfreeze(model))) == wf.nn.paths(model)
    with pytest.raises(wf.TensorError, match=r"no parameter's path matches 'embeding\.\*'") as raised:
        wf.nn.freeze(model, "embeding.*")
    assert "embedding.table" in raised.value.fix


# Packed batches, and what is looked at before it runs.


@pytest.mark.quick("lm")
@pytest.mark.parametrize("model", ["lm", "translation"])
def test_packed_sequences_have_the_loss_they_have_apart(model):
    preset = "tiny-lm" if model == "lm" else "tiny-mt"
    made = models.init(models.preset(preset, layers=2), jax.random.key(1))
    tokens, inputs = np.random.default_rng(0).integers(1, 64, (2, 4, 16))
    segments = np.repeat([[1] * 10 + [2] * 6], 4, axis=0)
    places = np.repeat([[*range(10), *range(6)]], 4, axis=0)
    if model == "lm":
        packed = {"tokens": tokens, "segments": segments, "positions": places}
        apart = [{"tokens": tokens[:, :10]}, {"tokens": tokens[:, 10:]}]
    else:
        packed = {"inputs": inputs, "targets": tokens}
        packed |= {f"{side}_segments": segments for side in ("input", "target")}
        packed |= {f"{side}_positions": places for side in ("input", "target")}
        apart = [{"inputs": inputs[:, part], "targets": tokens[:, part]} for part in (slice(0, 10), slice(10, 16))]
    alone = [float(made.loss(batch)) for batch in apart]
    assert float(made.loss(packed)) == pytest.approx((10 * alone[0] + 6 * alone[1]) / 16, rel=1e-5)
    split = models.init(models.preset(preset, layers=2), jax.random.key(1), MESHES["two"], "batch:cols,length:rows")
    assert float(split.loss(packed)) == pytest.approx(float(made.loss(packed)), rel=1e-5)


def test_what_a_prefix_tells_of_itself_does_not_count():
    model = models.init(models.preset("tiny-lm", layers=2, prefix=True), jax.random.key(1))
    tokens = np.random.default_rng(0).integers(1, 64, (8, 16))
    prefix = np.full(8, 5)
    loss, told = model.loss_and_metrics({"tokens": tokens, "prefix": prefix})
    assert float(told["tokens"]) == 8 * 12
    inputs = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    logits = np.asarray(wf.get(model.logits(inputs, prefix=prefix)))[:, 4:]
    chances = np.asarray(jax.nn.log_softmax(logits))
    wanted = -np.take_along_axis(chances, tokens[:, 4:, None], axis=-1).mean()
    assert float(loss) == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(wf.TensorError, match="the batch has no `prefix`"):
        model.logits(inputs)


TOKENS = np.ones((8, 16), int)


@pytest.mark.parametrize(
    ("preset", "changes", "batch", "key", "fact", "fix"),
    [
        ("tiny-lm", {}, {"tokens": TOKENS * 64}, None, "`tokens` has the id 64, and the vocab has 64", "tokenizer"),
        (
            "tiny-lm",
            {},
            {"inputs": TOKENS, "targets": TOKENS * -100},
            None,
            "has the id -100",
            "the weight 0, in `weights`",
        ),
        ("tiny-mt", {}, {"inputs": TOKENS * 99, "targets": TOKENS}, None, "`inputs` has the id 99", "tokenizer"),
        ("tiny-lm", {}, {"tokens": TOKENS, "targets": TOKENS}, None, "has `tokens` and `targets`", "give `tokens`, or"),
        ("tiny-lm", {}, TOKENS, None, "the batch is ndarray", "give a dict: `{'tokens': tokens}`"),
        ("tiny-lm", {}, {}, None, "the batch has no `tokens`", "as `tokens`"),
        ("tiny-lm", {}, {"tokens": TOKENS}, 0, "the key is 0", "jax.random.key"),
        ("tiny-lm", {}, {"tokens": TOKENS, "segments": TOKENS / 2}, None, "not whole numbers", "astype"),
        (
            "tiny-lm",
            {"loss_chunks": 3},
            {"tokens": TOKENS},
            None,
            "`loss_chunks` is 3, and `length` has size 16",
            "divides",
        ),
        (
            "tiny-lm",
            {"positions": "learned", "length": 8},
            {"tokens": TOKENS},
            None,
            "a sequence has 16 tokens, and the model has learned 8 positions",
            "at most 8",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_told_with_its_cure(preset, changes, batch, key, fact, fix):
    model = models.init(models.preset(preset, layers=1, **changes), jax.random.key(0))
    with pytest.raises(wf.WeftError) as raised:
        model.loss(batch, key)
    assert fact in raised.value.fact
    assert fix in raised.value.fix
    assert "test_every_model.py" in raised.value.state


def test_a_chunk_of_the_loss_must_divide_as_its_length_does():
    model = models.init(models.preset("tiny-lm", layers=1, loss_chunks=8), jax.random.key(0), "x=8", "length:x")
    with pytest.raises(wf.DimError, match="a chunk of the loss has 2 of `length`, which is split over 8") as raised:
        model.loss({"tokens": TOKENS})
    assert raised.value.fix == "make at most 2 chunks"


def test_what_is_no_configuration_makes_no_model():
    with pytest.raises(wf.TensorError, match="'tiny-lm' is no ModelConfig"):
        models.init("tiny-lm", jax.random.key(0))
    with pytest.raises(wf.TensorError, match="freeze got no pattern"):
        wf.nn.freeze(models.shapes(models.preset("tiny-lm")))
    with pytest.raises(wf.TensorError, match="the model has no adapters to merge"):
        wf.nn.lora.merge(models.shapes(models.preset("tiny-lm")))


@pytest.mark.parametrize("name", ["tiny-lm", "tiny-mt", "tiny-moe"])
@pytest.mark.parametrize("rule", ["layers:cols", "params.layers:cols"])
def test_layers_that_do_not_divide_are_told_by_the_rule_that_was_written(name, rule):
    with pytest.raises(wf.LayoutError) as raised:
        models.init(models.preset(name, layers=2), jax.random.key(0), "rows=2,cols=4", f"batch:rows,{rule}")
    assert f"layout: batch:rows,{rule} " in raised.value.state and raised.value.fix.endswith(f"or drop `{rule}`")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_one_layout_may_name_dims_of_training_and_of_decoding():
    config = models.preset("tiny-moe", layers=2)
    model = models.init(config, jax.random.key(1), "x=2,y=2", "batch:y,beam:x,samples:x,layers:x,slots:x")
    assert model.layout == wf.Layout("batch:y,beam:x,samples:x,slots:x,params.layers:x")
    whole = models.init(config, jax.random.key(1))
    tokens = {"tokens": TOKENS}
    assert float(model.loss(tokens)) == pytest.approx(float(whole.loss(tokens)), rel=1e-5)
    prompts = [[1, 2, 3], [4, 5]]
    for how in (dict(), dict(samples=2, temperature=1.0, key=jax.random.key(0))):
        found, wanted = (wf.decode.generate(m, prompts, max_new_tokens=3, **how) for m in (model, whole))
        np.testing.assert_array_equal(found.tokens, wanted.tokens)
    found, wanted = (wf.decode.beam_search(m, prompts, beams=2, max_new_tokens=3) for m in (model, whole))
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
