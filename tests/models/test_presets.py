"""Configurations: the paper's numbers, and what cannot be one."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import weft as wf
from weft import models

PAPER = {  # heads: parameters in 10^9
    "lm-0.14b": (4, 0.14),
    "lm-0.22b": (8, 0.22),
    "lm-0.37b": (16, 0.37),
    "lm-0.67b": (32, 0.67),
    "lm-1.28b": (64, 1.28),
    "lm-2.48b": (128, 2.48),
    "lm-4.90b": (256, 4.90),
}
SIZES = [field.name for field in dataclasses.fields(models.LMConfig) if field.type is int]


@pytest.mark.parametrize("name", PAPER)
def test_a_preset_has_the_sizes_of_the_paper(name):
    heads, billions = PAPER[name]
    config = models.preset(name)
    assert (config.name, config.layers, config.d_model, config.heads, config.d_kv) == (name, 6, 1024, heads, 256)
    assert (config.d_ff, config.vocab, config.batch, config.length) == (1024 * heads, 32768, 256, 256)
    assert (config.tied, config.dtype) == (False, "bfloat16")
    assert round(config.param_count / 1e9, 2) == billions


def test_the_largest_has_the_papers_parameters_and_the_scales_of_its_norms():
    matrices = 6 * (4 * 1024 * 256 * 256 + 2 * 1024 * 262144) + 2 * 32768 * 1024
    assert models.preset("lm-4.90b").param_count == matrices + (6 * 2 + 1) * 1024


PUBLISHED = {
    "llama-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-0.6b": 596_049_920,
    "gemma3-1b": 999_885_952,
    "olmo2-1b": 1_484_916_736,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_as_many_parameters_as_the_model_it_is_named_after(name):
    assert models.preset(name).param_count == PUBLISHED[name]


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama-1b", marks=pytest.mark.slow), "qwen3-0.6b", "gemma3-1b"])
def test_a_tied_preset_begins_as_if_it_knew_nothing(name):
    small = dict(d_model=256, d_ff=64, layers=1, heads=1, vocab=512, batch=2, length=16, dtype="float32", dropout=0.0)
    model = models.init(models.preset(name, **small, param_dtype="float32"), jax.random.key(0))
    loss = model.loss({"tokens": np.arange(32).reshape(2, 16)})
    assert abs(float(loss) - math.log(512)) < 0.5


CHANGES = [{}, {"tied": True}, {"scanned": False}, {"layers": 3, "tied": True, "d_ff": 40}, {"levels": 3, "heads": 2}]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, changes, marks=pytest.mark.slow if changes in CHANGES[1:3] else ())
        for name in models.PRESETS
        for changes in CHANGES
        if changes.keys() <= models.fields(models.preset(name)).keys()
    ],
)
def test_param_count_is_that_of_the_weights(name, changes):
    config = models.preset(name, **changes)
    made = jax.eval_shape(lambda key: models.init(config, key), jax.eval_shape(lambda: jax.random.key(0)))
    assert numbers(made) == config.param_count
    assert numbers(models.shapes(config)) == config.param_count


def numbers(model):
    """How many numbers the weights hold, padding left out."""
    weights = jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, wf.Tensor))
    return sum(math.prod(dim.count for dim in weight.dims) for weight in weights)


def test_the_tiny_model_is_float32_and_splits_eight_ways():
    config = models.preset("tiny-lm")
    assert (config.dtype, config.remat, config.batch, config.length) == ("float32", False, 8, 16)
    assert config.vocab >= 64
    for name in ("tiny-lm", "tiny-mt", "tiny-moe", "tiny-bert"):
        assert all(dim.size % 8 == 0 for dim in models.preset(name).dims), name


def test_dims_are_all_the_names_a_layout_may_use():
    config = models.preset("lm-0.14b")
    names = "batch length memory_length stream d_model d_ff heads queries d_kv vocab layers beam samples"
    assert set(config.dims.names) == set(names.split())
    assert config.dims.find("memory_length").size == config.length
    wf.Layout("batch:rows;vocab:cols;heads:cols;d_ff:cols;params.d_model:rows", dims=config.dims)
    with pytest.raises(wf.LayoutError, match="did you mean `heads`"):
        wf.Layout("haeds:cols", dims=config.dims)
    more = models.preset("tiny-moe", group=2, positions="relative").dims.names
    assert set(more) - set(names.split()) == {
        "experts",
        "router",
        "dispatch",
        "expert_batch",
        "slots",
        "group",
        "buckets",
    }


def test_changes_are_made_field_by_field_and_a_configuration_cannot_be_changed_later():
    config = models.preset("lm-0.14b", heads=np.int64(8), length=512, remat=False, dtype="float32", name="mine")
    assert (config.heads, config.d_ff, config.length, config.remat) == (8, 4096, 512, False)
    assert config == models.preset("lm-0.14b", heads=8, length=512, remat=False, dtype="float32", name="mine")
    assert hash(config) is not None
    assert type(config.heads) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.heads = 4


@pytest.mark.parametrize(
    ("name", "changes", "fact", "fix"),
    [
        ("lm-4.9b", {}, "there is no preset 'lm-4.9b'", "did you mean `lm-4.90b`?"),
        ("gpt", {}, "there is no preset 'gpt'", "did you mean `gpt2`?"),
        (3, {}, "there is no preset 3", "`gpt2`, `gpt2-large`"),
        ("lm-0.14b", {"lenght": 3}, "this model has no `lenght` to change", "did you mean `length`?"),
        ("llama-8b", {"kv_heads": 8}, "this model has no `kv_heads` to change", "`heads`, which counts heads of keys"),
        ("lm-0.14b", {"hidden_size": 8}, "this model has no `hidden_size` to change", "write `d_model`"),
        ("lm-0.14b", {"length": -3}, "`length` is -3, which is no size", "give a whole number, e.g. `length=8`"),
        ("lm-0.14b", {"heads": 0}, "`heads` is 0, which is no size", "e.g. `heads=8`"),
        ("lm-0.14b", {"heads": 2.0}, "`heads` is 2.0, which is no size", "e.g. `heads=8`"),
        ("lm-0.14b", {"heads": True}, "`heads` is True, which is no size", "e.g. `heads=8`"),
        ("lm-0.14b", {"vocab": "32k"}, "`vocab` is '32k', which is no size", "e.g. `vocab=8`"),
        ("lm-0.14b", {"tied": 1}, "`tied` is 1, which is no bool", "say `tied=True` or `tied=False`"),
        ("lm-0.14b", {"name": None}, "`name` is None, which is no str", "say `name='my-lm'`"),
        ("lm-0.14b", {"bias": "qkv"}, "`bias` names 'qkv'", "name some of: q k v o in gate out norm"),
        ("lm-0.14b", {"bias": "out"}, "`bias` is 'out'", "name both of `in` and `out`"),
        ("lm-0.14b", {"bias": "norm"}, "`bias` names `norm`, and norms are 'rms'", "say norm='layer'"),
        ("tiny-moe", {"bias": "in out"}, "`bias` names `in` and `out`, and experts have none", "leave them out"),
        ("tiny-unet", {"groups": 3}, "`groups` is 3, and `channels` has size 8", "divides 8, e.g. `groups=2`"),
        ("tiny-unet", {"attention_block": 2}, "`attention_block` is 2, and there is no attention", "`heads`"),
        (
            "tiny-unet",
            {"attention_block": 3, "heads": 2},
            "`attention_block` is 3, and `height` has size 16",
            "`attention_block=2`",
        ),
        (
            "tiny-unet",
            {"height": 30, "levels": 3},
            "`height` has size 30, and 3 levels need a multiple of 4",
            "pad it to 32: `wf.pad(x, over='height', after=2)`",
        ),
        ("tiny-moe", {"every": 3}, "every 3 of 8 layers was to have experts", "divides 8"),
        ("tiny-lm", {"positions": "rotary", "d_kv": 5}, "`d_kv` is 5, and rotary positions turn pairs of it", "even"),
        ("tiny-moe", {"gating": "top1"}, "`gating` is 'top1'", "top-1 is `switch`"),
        (
            "tiny-moe",
            {"experts": 1, "gating": "top2"},
            "a token goes to 2 of 1 experts",
            "say `gating='switch'`, or give at least 2 `experts`",
        ),
        ("tiny-moe", {"gating": "top_k", "top_k": 9}, "a token goes to 9 of 8 experts", "`top_k=8` or less, or give"),
        ("tiny-lm", {"gating": "top2"}, "`gating` is 'top2', and there are no experts", "leave `gating` out"),
        ("tiny-lm", {"top_k": 3}, "`top_k` is 3, and there are no experts", "say how many `experts` there are"),
        ("tiny-lm", {"shared_experts": 1}, "`shared_experts` is 1, and there are no experts", "how many `experts`"),
        ("tiny-mt", {"experts_multiple": 4}, "`experts_multiple` is 4, and there are no experts", "how many `experts`"),
        (
            "tiny-lm",
            {"remat": "dots"},
            "`remat` names 'dots', and no block has it",
            "`attention` or `feed_forward` or `stream`",
        ),
        (
            "tiny-bert",
            {"remat": "memory_attention"},
            "`remat` names 'memory_attention', and no block has it",
            "`remat=",
        ),
        ("tiny-unet", {"remat": "attention"}, "`remat` names 'attention', and no block has it", "`convolution`"),
        ("tiny-lm", {"stages": 9}, "`stages` is 9, more than there are layers (8)", "say `stages=8`"),
        (
            "tiny-moe",
            {"layers": 2, "every": 2, "stages": 2},
            "`stages` is 2, more than there are groups of 2 layers (1)",
            "leave `stages` out, or give more `layers`",
        ),
        ("tiny-lm", {"positions": "rotery"}, "`positions` is 'rotery'", "did you mean `rotary`?"),
        ("tiny-lm", {"epsilon": -1.0}, "`epsilon` is -1.0", "give a number above 0"),
        ("tiny-lm", {"dropout": 1.0}, "`dropout` is 1.0", "from 0 and below 1"),
        ("tiny-lm", {"dropout": "a"}, "`dropout` is 'a', which is no float", "0.1"),
        ("tiny-lm", {"softcap": 0}, "`softcap` is 0", "above 0"),
        ("tiny-moe", {"capacity": 0.0}, "`capacity` is 0.0", "above 0"),
        ("lm-0.14b", {"dtype": "bfloat61"}, "'bfloat61' is no dtype", "give one such as 'float32'"),
        (
            "lm-0.14b",
            {"dtype": "int32"},
            "`dtype` is int32, and activations are floats",
            "give 'bfloat16' or 'float32'",
        ),
    ],
)
def test_what_cannot_be_a_configuration_is_told_with_its_cure(name, changes, fact, fix):
    with pytest.raises(wf.WeftError) as raised:
        models.preset(name, **changes)
    assert raised.value.fact == fact
    assert fix in raised.value.fix
    assert "test_presets.py" in raised.value.state


@pytest.mark.parametrize("name", ["tiny-lm", "tiny-mt", "tiny-bert", "tiny-moe"])
def test_a_field_may_be_given_the_value_it_has_unsaid(name):
    config = models.preset(name)
    said = {field.name: field.default for field in dataclasses.fields(config) if "expert" in field.name}
    assert models.preset(name, gating="switch", top_k=2, **said | {"experts": config.experts}) == config
    assert models.from_fields(models.fields(config), where="a file") == config


@pytest.mark.parametrize("name", SIZES)
def test_every_size_is_checked(name):
    with pytest.raises(wf.DimError, match=f"`{name}` is -1"):
        models.preset("tiny-lm", **{name: -1})


def test_the_models_are_reached_through_the_front_door():
    assert wf.models is models
