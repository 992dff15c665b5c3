"""Convolutions as layers: against plain lax, under split images and channels, what they send, what is refused."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft as wf
from tests.programs.everywhere import assert_close, outcome, values
from weft import nn

SPACE = ("depth", "height", "width")
B, C, F = wf.dims(batch=2, channels=4, filters=8)
KEY = jax.random.key(3)


def image(*sizes: int, channels: wf.Dim = C) -> wf.Tensor:
    dims = [B, *(wf.Dim(name, size) for name, size in zip(SPACE[-len(sizes) :], sizes, strict=True)), channels]
    return wf.tensor(values(dims, 1), dims)


def kernel(*sizes: int) -> dict[str, int]:
    return dict(zip(SPACE[-len(sizes) :], sizes, strict=True))


def numbers(dims: int) -> Any:
    letters = "DHW"[-dims:]
    return (f"N{letters}C", f"{letters}IO", f"N{letters}C")


LAYERS = {
    "1-D, to filters": (nn.Conv(C, F, kernel(3), bias=True), image(16)),
    "2-D, to itself": (nn.Conv(C, C, kernel(3, 5)), image(8, 16)),
    "2-D, strided": (nn.Conv(C, C.resized(8), kernel(3, 3), stride=2, bias=True), image(16, 16)),
    "2-D, dilated": (nn.Conv(C, F, kernel(3, 3), dilation={"height": 2}), image(16, 16)),
    "2-D, in groups": (nn.Conv(C, F, kernel(3, 3), groups=2), image(8, 16)),
    "2-D, depthwise": (nn.Conv(C, C, kernel(3, 3), groups=4, bias=True), image(8, 16)),
    "2-D, depthwise to more": (nn.Conv(C, C.resized(8), kernel(3, 3), groups=4), image(8, 16)),
    "3-D": (nn.Conv(C, F, kernel(3, 3, 3)), image(8, 8, 8)),
    "1-D, up": (nn.ConvTranspose(C, F, kernel(3), stride=2, bias=True), image(16)),
    "2-D, up to itself": (nn.ConvTranspose(C, C.resized(8), kernel(2, 2), stride=2), image(8, 16)),
    "3-D, up": (nn.ConvTranspose(C, F, kernel(2, 2, 2), stride=2), image(4, 4, 4)),
}


@functools.cache
def made() -> dict[str, Any]:
    return {
        name: (nn.init(layer, jax.random.fold_in(KEY, i)), x) for i, (name, (layer, x)) in enumerate(LAYERS.items())
    }


def plain(layer: Any, x: wf.Tensor) -> Any:
    dims, how = len(x.dims) - 2, layer.how
    w = jnp.asarray(layer.weight.array)
    groups = how["groups"]
    if w.ndim == dims + 1:
        w = w[..., None, :]
    dilation = how["dilation"]
    dilation = [dilation.get(name, 1) for name in SPACE[-dims:]] if isinstance(dilation, dict) else [dilation] * dims
    stride, shared = [how["stride"]] * dims, {"rhs_dilation": dilation, "dimension_numbers": numbers(dims)}
    if isinstance(layer, nn.ConvTranspose):
        y = lax.conv_transpose(x.array, w, stride, "SAME", **shared)
    else:
        y = lax.conv_general_dilated(x.array, w, stride, "SAME", feature_group_count=groups, **shared)
    return y if layer.bias is None else y + layer.bias.array


@pytest.mark.parametrize("name", LAYERS)
def test_a_convolution_is_that_of_lax_under_the_names_of_its_channels(name):
    layer, x = made()[name]
    y = layer(x)
    assert_close([y.array], [plain(layer, x)], math.prod(layer.weight.dims.sizes[:-1]))
    assert y.dims.names == tuple(layer.outs.name if n == "channels" else n for n in x.dims.names)
    assert y.dim(layer.outs.name).size == layer.outs.size


def program(given: Any) -> Any:
    return {name: layer(x) for name, (layer, x) in given.items()}


@functools.cache
def alone() -> Any:
    return outcome(None, program, made())


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("a=2,b=2", "width:a,filters:b"),
        pytest.param("a=2,b=2", "height:a,width:b", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "width:a+b", marks=pytest.mark.slow),
        pytest.param("a=2,b=2,c=2", "depth:a,height:b,width:c", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "batch:a,channels:b", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "channels:a,filters:b", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "batch:a,width:b,params.channels:a,params.filters:b", marks=pytest.mark.slow),
    ],
)
def test_no_layout_changes_a_convolution_or_its_gradients(mesh, layout):
    assert_close(outcome((mesh, layout), program, made()), alone(), 2 * 16 * 16 * 25)


def halos(layer: Any, x: wf.Tensor, mesh: str, layout: str) -> dict[str, int]:
    ledger = wf.trace(lambda layer, x: layer(x), layer, x, mesh=mesh, layout=layout).ledger
    assert {row.collective for row in ledger} <= {"permute"}
    return {axis: ledger.bytes(axis) for axis in wf.Mesh(mesh).axes}


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_convolution_sends_half_its_reach_each_way_and_no_more(size):
    x = image(8, 8, 16)
    plane = 4 * B.size * C.size  # bytes of one place
    reach = size - 1
    sent = halos(nn.Conv(C, F, kernel(size, size, size), key=KEY), x, "a=2,b=2,c=2", "depth:a,height:b,width:c")
    # One dim after the other: the second brings the corners of the first.
    assert sent == {
        "a": reach * (4 * 8) * plane,
        "b": reach * ((4 + reach) * 8) * plane,
        "c": reach * ((4 + reach) * (4 + reach)) * plane,
    }
    dilated = nn.Conv(C, F, kernel(size), dilation=2, key=KEY)
    assert halos(dilated, image(16), "a=2", "width:a") == {"a": 2 * reach * plane}


def test_a_stride_and_what_doubles_an_image_send_what_they_reach():
    place = 4 * B.size * C.size
    strided = nn.Conv(C, F, kernel(3, 3), stride=2, key=KEY)  # looks ahead by one row of 8 places
    assert halos(strided, image(16, 8), "a=4", "height:a") == {"a": 8 * place}
    assert halos(nn.Conv(C, F, kernel(2, 2), stride=2, key=KEY), image(16, 8), "a=4", "height:a") == {"a": 0}
    up = nn.ConvTranspose(C, F, kernel(2, 2), stride=2, key=KEY)
    assert halos(up, image(8, 8), "a=2,b=2", "height:a,width:b") == {"a": 0, "b": 0}
    wide = nn.ConvTranspose(C, F, kernel(4, 4), stride=2, key=KEY)  # reaches one row into each neighbour
    assert halos(wide, image(8, 8), "a=2", "height:a") == {"a": 2 * 8 * place}


def test_first_values_keep_the_spread_of_what_goes_in():
    wide, many = wf.dims(channels=64, filters=64)
    x = wf.tensor(
        np.random.default_rng(0).normal(size=(2, 32, 32, 64)).astype("float32"), "batch height width channels"
    )
    layers = [
        nn.Conv(wide, many, kernel(3, 3), key=KEY, padding="VALID"),
        nn.Conv(wide, many, kernel(3, 3), groups=4, key=KEY, padding="VALID"),
        nn.ConvTranspose(wide, many, kernel(2, 2), stride=2, key=KEY),
        nn.ConvTranspose(wide, many, kernel(4, 4), stride=2, key=KEY),
    ]
    for layer in layers:
        assert abs(float(np.std(layer(x).array)) - 1) < 0.06
    assert float(np.std(nn.Conv(wide, many, kernel(3, 3), key=KEY, stddev=0.1).weight.array)) == pytest.approx(
        0.1, 0.05
    )


def test_values_follow_from_the_key_and_the_path_alone():
    layer = nn.Conv(C, F, kernel(3, 3), bias=True)
    whole = nn.init(layer, KEY)
    split = nn.init(layer, KEY, "a=2,b=2", "filters:a,params.channels:b")
    np.testing.assert_array_equal(wf.get(whole.weight), wf.get(split.weight))


WRONG = {
    "no kernel": (lambda: nn.Conv(C, F, {}), "`kernel` is {}", "`kernel={'height': 3, 'width': 3}`"),
    "a number": (lambda: nn.Conv(C, F, 3), "`kernel` is 3", "`kernel={'height': 3, 'width': 3}`"),
    "no size": (lambda: nn.Conv(C, F, {"height": 0}), "`kernel` is {'height': 0}", "a size"),
    "groups": (lambda: nn.Conv(C, F, kernel(3), groups=3), "`groups` is 3, and `channels` has size 4", "divides 4"),
    "groups out": (
        lambda: nn.Conv(C, F.resized(6), kernel(3), groups=4), "`groups` is 4, and `filters` has size 6", "divides 6"
    ),
    "groups of three": (
        lambda: nn.Conv(C.resized(3), C, kernel(3), groups=3),
        "`groups` is 3, and `channels` has size 4", "divides 4 and 3, e.g. `groups=1`",
    ),
    "a dim": (lambda: nn.Conv("channels", F, kernel(3)), "`ins` is 'channels', which is no dim", "wf.Dim('ins', 8)"),
    "channels": (lambda: nn.Conv(F, C, kernel(3), key=KEY)(image(8)), "filters", "channels"),
    "space": (lambda: nn.Conv(C, F, kernel(3, 3), key=KEY)(image(8)), "height", "width"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_convolution_is_told_with_its_cure(name):
    act, fact, fix = WRONG[name]
    with pytest.raises(wf.WeftError) as raised:
        act()
    assert fact in raised.value.fact and fix in raised.value.fix


def test_the_dice_score_is_twice_what_is_common_over_the_sum_of_both():
    classes = wf.Dim("classes", 3)
    random = np.random.default_rng(2)
    labels, found = random.integers(0, 2, (2, 8)), random.integers(0, 2, (2, 8))
    weights = random.integers(0, 2, (2, 8)).astype("float32")
    shares = wf.one_hot(wf.tensor(found, "batch width"), classes)
    got = nn.dice(shares, wf.tensor(labels, "batch width"), weights=wf.tensor(weights, "batch width"))
    for i in range(2):
        a, b = (found == i) * weights, (labels == i) * weights
        np.testing.assert_allclose(got.array[i], 2 * (a * b).sum() / (a.sum() + b.sum()), rtol=1e-5)
    assert float(got.array[2]) == 1  # of a class that is nowhere, nothing is wrong
