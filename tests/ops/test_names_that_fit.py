"""`names="subset"`: one operand of an elementwise operation has the dims of all, or a name does not fit."""

import equinox as eqx
import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of, is_inside, on_rows
from weft import models, nn

batch, hid = wf.dims(batch=8, hid=4)
key = jax.random.key(0)
x = wf.tensor(np.arange(32, dtype="float32").reshape(8, 4), [batch, hid])
bias = wf.tensor(np.ones(4, "float32"), [hid])
misnamed = bias.rename(hid="hidden")
mask = x > 3

FITTING = {
    "a subset": lambda: wf.add(x, bias, names="subset"),
    "a subset first": lambda: wf.add(bias, x, names="subset"),
    "the same dims in another order": lambda: wf.multiply(x, wf.broadcast(x, "hid batch"), names="subset"),
    "a number": lambda: wf.maximum(x, 0.0, names="subset"),
    "a tensor without dims": lambda: wf.divide(x, wf.full([], 2.0), names="subset"),
    "three operands": lambda: wf.where(mask, x, bias, names="subset"),
    "any function": lambda: wf.elementwise(lambda a, b: a + b, x, bias, names="subset"),
    "bounds": lambda: wf.clip(x, bias, 3.0, names="subset"),
}
UNFITTING = {
    "add": lambda: wf.add(x, misnamed, names="subset"),
    "add the other way": lambda: wf.add(misnamed, x, names="subset"),
    "compare": lambda: wf.less(x, misnamed, names="subset"),
    "where": lambda: wf.where(mask, x, misnamed, names="subset"),
    "where by a mask": lambda: wf.where(misnamed > 0, x, 0.0, names="subset"),
    "any function": lambda: wf.elementwise(lambda a, b: a + b, x, misnamed, names="subset"),
    "bounds": lambda: wf.clip(x, misnamed, names="subset"),
}


@pytest.mark.parametrize("name", FITTING)
def test_names_that_fit_are_as_without_asking(name):
    assert set(FITTING[name]().dims.names) == {"batch", "hid"}


@pytest.mark.parametrize("name", UNFITTING)
def test_a_name_that_does_not_fit_is_an_error_with_both_dims_and_the_nearest_name(name):
    error = error_of(UNFITTING[name], wf.DimError)
    assert "[batch=8 hid=4]" in error.fact and "[hidden=4]" in error.fact and "`hidden`" in error.fact
    assert "`x.rename(hidden='hid')`" in error.fix


def test_without_asking_the_dims_of_both_make_the_result():
    assert (x + misnamed).dims.names == ("batch", "hid", "hidden")
    assert wf.add(x, misnamed, names="any").dims.names == ("batch", "hid", "hidden")


def test_only_the_two_words_are_taken():
    error = error_of(lambda: wf.add(x, bias, names="strict"), wf.TensorError)
    assert "names='strict'" in error.fact and 'names="subset"' in error.fix


def test_inside_a_region_the_error_names_layout_and_mesh():
    error = error_of(lambda: on_rows(lambda x, b: wf.add(x, b, names="subset"))(x, misnamed), wf.DimError)
    assert is_inside(error)


def swapped(layer, where, name):
    """A layer of which one weight has its last dim under another name."""
    weight = where(layer)
    return eqx.tree_at(where, layer, weight.rename(**{weight.dims[-1].name: name}))


d_model, d_ff, heads, d_kv = wf.dims(d_model=4, d_ff=8, heads=2, d_kv=2)
h = wf.tensor(np.ones((8, 3, 4), "float32"), "batch length d_model")
feed_forward = nn.FeedForward(d_model, d_ff, bias=True, key=key)
LAYERS = {
    "linear": lambda: swapped(nn.Linear(hid, d_ff, bias=True, key=key), lambda n: n.bias, "d_fff")(x),
    "feed forward in": lambda: swapped(feed_forward, lambda n: n.in_bias, "ff")(h),
    "feed forward out": lambda: swapped(feed_forward, lambda n: n.out_bias, "model")(h),
    "attention in": lambda: swapped(
        nn.Attention(d_model, heads, d_kv, bias="q", key=key), lambda n: n.q_bias, "d_k")(h),
    "attention out": lambda: swapped(
        nn.Attention(d_model, heads, d_kv, bias="o", key=key), lambda n: n.o_bias, "model")(h),
    "a bias of scores": lambda: nn.Attention(d_model, heads, d_kv, key=key)(h, bias=wf.ones([heads.renamed("head")])),
    "a mask of segments": lambda: nn.Attention(d_model, heads, d_kv, key=key)(
        h, mask=nn.Mask.within(segments=wf.ones([wf.Dim("rows", 8), h.dim("length")], dtype="int32"))),
    "layer norm": lambda: swapped(nn.LayerNorm(hid, key=key), lambda n: n.bias, "hidden")(x),
    "group norm": lambda: swapped(nn.GroupNorm(hid, 2, key=key), lambda n: n.bias, "hidden")(x, over="batch"),
    "batch norm": lambda: swapped(nn.BatchNorm(hid, key=key), lambda n: n.bias, "hidden")(x, over="batch"),
    "rotations": lambda: nn.rope(h, wf.arange(wf.Dim("place", 3)), over="d_model"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_refuses_a_misnamed_weight(name):
    error_of(LAYERS[name], wf.DimError)


def test_a_model_refuses_misnamed_positions():
    model = models.init(models.preset("tiny-lm", layers=1, positions="learned"), key)
    model = swapped(model, lambda m: m.positions.table, "d_modl")
    tokens = np.zeros((2, 4), "int32")
    error = error_of(lambda: model.loss({"tokens": tokens}), wf.DimError)
    assert "`x.rename(d_modl='d_model')`" in error.fix
