"""Models cut into stages: losses, gradients and weights after steps are those of the uncut model on one processor."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

import weft as wf
from tests.models.test_every_model import MODELS, batch_of
from weft import interop, models

SGD = optax.sgd(0.05, momentum=0.9)
CUT = {"stages": 2, "pipeline_microbatches": 4}
LAYOUTS = {
    "whole": None,
    "batch": ("p=2,x=2", "stage:p,batch:x"),
    "model": ("p=2,x=2,y=2", "stage:p,batch:x,heads:y,d_ff:y,vocab:y"),
    "stream": ("p=2,x=2,y=2", "stage:p,batch:x,heads:y,d_ff:y,stream:y"),
    "stored": ("p=2,x=2", "stage:p,batch:x,params.d_model:x"),
    "optimizer": ("p=2,x=2", "stage:p,batch:x,optimizer.d_model:x+p"),
    "experts": ("p=2,x=2", "stage:p,batch:x,experts:x"),
}
CASES = [  # the mixed grid has stages in the fast suite
    pytest.param(model, layout, id=f"{model}, {layout}", marks=pytest.mark.slow)
    for model in MODELS
    for layout in LAYOUTS
    if layout != "experts" or "experts" in model
]


def config_of(model, **changes):
    preset, own = MODELS[model]
    layers = 4 if "every" in own else 3 if model == "modern lm" else 2
    return models.preset(preset, **{"layers": layers, "batch": 8, "length": 16, "dtype": "float32", **own, **changes})


def trained(config, batch, where=None):
    """The losses of two steps, and the weights and momentum after them, layers in a row."""
    model = models.init(config, jax.random.key(1), *(where or ()))
    step = wf.train_step(lambda m, batch, key: m.loss(batch, key), SGD)
    step = step if where is None else wf.spmd(step, mesh=wf.Mesh(where[0]), layout=where[1])
    state, losses = step.init(model), []
    for turn in range(2):
        state, told = step(state, batch, jax.random.fold_in(jax.random.key(7), turn))
        losses.append(float(told["loss"]))
    return losses, [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(wf.get(state))]


@functools.cache
def uncut(model):
    """The model without stages; experts' statistics are those of a microbatch, so theirs has stages, all on one."""
    return trained(config_of(model, **(CUT if "experts" in model else {})), batch_of(model))


@pytest.mark.parametrize("model, layout", CASES)
def test_a_model_in_stages_learns_what_the_whole_one_does(model, layout):
    losses, states = trained(config_of(model, **CUT), batch_of(model), LAYOUTS[layout])
    wanted_losses, wanted = uncut(model)
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-6)
    for found, want in zip(states, wanted, strict=True):
        assert not found[want.size :].any()  # layers that pad the last stage stay zero
        np.testing.assert_allclose(found[: want.size], want, rtol=0, atol=1e-5 * max(np.abs(want).max(), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout, remat",
    [
        ("batch", "attention"),
        ("model", "attention"),
        ("stream", "attention"),
        ("stream", "stream"),
        ("stored", "stream"),
    ],
)
def test_short_floats_flow_as_they_do_on_one_processor(layout, remat):
    config = config_of("lm", **CUT, layers=4, dtype="bfloat16", remat=remat)
    losses, states = trained(config, batch_of("lm"), LAYOUTS[layout])
    wanted_losses, wanted = trained(config, batch_of("lm"))
    exact = trained(dataclasses.replace(config, dtype="float32"), batch_of("lm"))[1]
    np.testing.assert_allclose(losses, wanted_losses, rtol=2**-8)
    for found, want, right in zip(states, wanted, exact, strict=True):
        # Both are rounded on their own: they lie apart by no more than the root of two times what one is off.
        assert np.linalg.norm(found - want) <= np.sqrt(2) * np.linalg.norm(want - right)


def program(config, mesh, layout, batch):
    model = models.shapes(config)
    grads = wf.value_and_grad(lambda m, batch: m.loss(batch))
    return wf.trace(grads, model, batch, mesh=wf.Mesh(mesh), layout=layout)


def lm(**changes):
    sizes = dict(layers=8, d_model=16, heads=2, d_kv=8, d_ff=32, vocab=64, batch=16, length=8, dtype="float32")
    return models.LMConfig(name="cut", **{**sizes, **changes})


TOKENS = {"tokens": wf.tensor(jax.ShapeDtypeStruct((16, 8), "int32"), "batch length")}


@pytest.mark.parametrize("stages, rounds", [(4, 1), (2, 2)])
def test_no_stage_does_what_another_does_and_the_bubble_is_what_it_must_be(stages, rounds):
    config = lm(stages=stages, pipeline_microbatches=8, pipeline_rounds=rounds)
    cut = program(config, f"p={stages},x=2", "stage:p,batch:x", TOKENS)
    assert cut.flops_duplicated == 0
    whole = program(config, "p=1", "", TOKENS)
    assert cut.flops_useful == whole.flops / (2 * stages)
    ticks = 8 * rounds + stages - 1
    logits = 3 * 2 * 16 * 8 * config.d_model * config.vocab_dim.size // (2 * stages)  # and the gradients of both sides
    assert cut.flops_idle / (cut.flops - logits) == (stages - 1) / ticks
    permutes = sum(row.bytes * row.count for row in cut.ledger if row.collective == "permute")
    assert permutes == 4 * ticks * (16 // 8 // 2) * 8 * 16 * 4  # two forward, two backward, of a microbatch's stream


def test_gradients_are_summed_once_and_stored_weights_gathered_a_layer_at_a_time():
    config = lm(stages=4, pipeline_microbatches=4)
    plain = program(config, "p=4,x=2", "stage:p,batch:x", TOKENS)
    assert all(row.count == 1 for row in plain.ledger if row.collective != "permute")
    stored = program(config, "p=4,x=2", "stage:p,batch:x,params.d_model:x", TOKENS)
    gathered = [row for row in stored.ledger if row.collective == "all_gather" and row.count > 1]
    assert {row.bytes for row in gathered} == {16 * 16 * 4, 16 * 32 * 4, 16 * 4}  # of one layer, and 2 layers a stage
    assert {row.count for row in gathered} == {2 * (4 + 4 - 1)}
    summed = [row for row in stored.ledger if row.collective == "all_reduce" and row.count > 1]
    assert not summed


@pytest.mark.parametrize("remat, gathers", [(True, 3), ("stream", 2)])
def test_what_goes_into_a_layer_may_be_kept_instead_of_gathering_its_weights_again(remat, gathers):
    config = lm(layers=4, stages=2, pipeline_microbatches=4, remat=remat)
    cut = program(config, "p=2,x=2", "stage:p,batch:x,params.d_model:x", TOKENS)
    ticks, layers, weights = 4 + 2 - 1, 2, 8
    counted = sum(row.count for row in cut.ledger if row.collective == "all_gather" and row.count > 1)
    assert counted == gathers * ticks * layers * weights


@pytest.mark.slow
def test_memory_of_a_step_falls_with_the_stages():
    peaks = [
        program(lm(stages=8), f"p={ways}", "stage:p" if ways > 1 else "", TOKENS).memory.peak for ways in (1, 2, 4, 8)
    ]
    assert sorted(peaks, reverse=True) == peaks and peaks[-1] < peaks[0] / 3, peaks


def test_layers_that_do_not_divide_are_padded_and_count_nowhere():
    config = lm(layers=5, stages=2, pipeline_rounds=2)
    assert config.dim("layers").size == 2 and config.param_count == lm(layers=5).param_count
    one = models.init(lm(layers=5), jax.random.key(0))
    cut = models.init(config, jax.random.key(0))
    for a, b in zip(jax.tree.leaves(one.decoder.layers), jax.tree.leaves(cut.decoder.layers), strict=True):
        flat = np.asarray(b).reshape(-1, *a.shape[1:])
        assert np.array_equal(flat[:5], a) and not flat[5:].any()


GPT2 = dict(positions="learned", norm="layer", bias="q k v o in out norm", activation="gelu", tied=True, d_kv=4)
UNCUT = models.preset("tiny-lm", layers=3, **GPT2, tied_scale=False, dtype="float32", epsilon=1e-5, vocab_multiple=8)
IN_STAGES = dataclasses.replace(UNCUT, stages=2)


DECODED = {
    "lm": (UNCUT, dict(stages=2)),
    "rounds of an lm": (lm(layers=5, positions="relative"), dict(stages=2, pipeline_rounds=2)),
    "experts": (models.preset("tiny-moe", layers=4, every=2, dtype="float32"), dict(stages=2)),
    "translation": (models.preset("tiny-mt", layers=2, dtype="float32"), dict(stages=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "rounds of an lm" else pytest.mark.slow) for name in DECODED]
)
def test_a_model_in_stages_decodes_as_the_whole_one(name):
    config, cut = DECODED[name]
    decode = wf.decode.beam_search if name == "translation" else wf.decode.generate
    how = dict(max_new_tokens=4) if name != "translation" else dict(max_new_tokens=4, beams=2)
    prompts = [[1, 2, 3], [4, 5]]
    wanted = decode(models.init(config, jax.random.key(0)), prompts, **how)
    config = dataclasses.replace(config, **cut)
    on_mesh = models.init(config, jax.random.key(0), wf.Mesh("p=2,x=2"), "stage:p,batch:x")
    np.testing.assert_array_equal(decode(on_mesh, prompts, **how).tokens, wanted.tokens)


def test_a_token_is_handed_on_from_stage_to_stage_and_nothing_else_moves():
    step, args = models.decode_step(lm(stages=4), context=32, batch=2)
    split = wf.trace(step, *args, mesh=wf.Mesh("p=4"), layout="stage:p")
    token = 2 * 16 * 4
    assert [(row.collective, row.count, row.bytes) for row in split.ledger] == [
        ("permute", 3, token),
        ("all_reduce", 1, token),
    ]
    whole = wf.trace(step, *args, mesh=wf.Mesh("p=1"), layout="")
    tables = 2 * 128 * 16 * 4 + 16 * 4  # embedding, softmax, last norm
    assert split.memory.arguments - tables < (whole.memory.arguments - tables) / 4 + 100


def test_a_model_in_stages_is_saved_as_the_whole_one_and_loaded_in_any_stages(tmp_path):
    cut = models.init(IN_STAGES, jax.random.key(0), wf.Mesh("p=2,x=2"), "stage:p,batch:x")
    interop.save(cut, tmp_path / "cut")
    for config, where in [(UNCUT, ()), (IN_STAGES, (wf.Mesh("p=2"), "stage:p"))]:
        loaded = interop.load(tmp_path / "cut", *where, dtype="float32", stages=config.stages, vocab_multiple=8)
        wanted = models.init(config, jax.random.key(0))
        for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(
    "act, fact",
    [
        (lambda: lm(pipeline_rounds=2), "there is no pipeline of one stage"),
        (lambda: lm(stages=0), "`stages` is 0"),
        (
            lambda: models.init(lm(stages=4, pipeline_microbatches=5), jax.random.key(0)).loss(
                {"tokens": np.zeros((16, 8), "int32")}
            ),
            "a batch of 16 does not divide into 5 microbatches",
        ),
        (
            lambda: program(lm(stages=4, pipeline_microbatches=2), "p=4", "stage:p", TOKENS),
            "2 microbatches of a pipeline do not divide over the 4 processors of `stage`",
        ),
        (
            lambda: program(lm(stages=2, pipeline_microbatches=8), "p=2,x=4", "stage:p,batch:x", TOKENS),
            "a batch of 16 split 4 ways does not divide into 8 microbatches",
        ),
    ],
)
def test_what_cannot_flow_is_told_with_its_cure(act, fact):
    with pytest.raises(wf.WeftError, match=fact) as error:
        act()
    assert error.value.fix


@pytest.mark.slow
def test_dropout_is_the_same_in_microbatches_of_every_kind():
    key = jax.random.key(2)
    plain, cut = (config_of("modern lm", dropout=0.3, **changes) for changes in ({}, CUT))
    batch = batch_of(plain)

    def of_rows(model, rows):
        value, metrics = model.loss_and_metrics(rows, key)
        return value * metrics["tokens"], metrics["tokens"]

    want = float(models.init(plain, jax.random.key(0)).loss(batch, key))
    for config, place in ((plain, {}), (cut, {"mesh": wf.Mesh("p=2,x=1"), "layout": "stage:p,batch:x"})):
        model = models.init(config, jax.random.key(0))
        loss = lambda model, batch: wf.accumulate(of_rows, model, batch, over="batch", count=2)  # noqa: E731
        got = wf.spmd(loss, **place)(model, batch) if place else loss(model, batch)
        assert float(got) == pytest.approx(want, rel=1e-5)
