"""A 3-D U-Net, depth and height split: convolutions with halos, group norm, and a name that gathers."""

import functools
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

import weft as wf

from .everywhere import assert_close, at_each, outcome, plain_outcome, sends, values, weights

B, DEPTH, HEIGHT, WIDTH, C = wf.dims(batch=2, depth=8, height=8, width=4, channels=4)
C2 = wf.Dim("channels_out", 8, follows="channels")  # of the kernel, which has both, `channels` takes the axis
KD, KH, KW, c = wf.dims(kd=3, kh=3, kw=3, c=4)
groups = wf.Dim("groups", 2, follows="channels")

# ---- as a user writes it


def down(x, w):
    y = wf.conv(x, w, over={"depth": "kd", "height": "kh", "width": "kw"}, channels=("channels", C2), stride=2).rename(channels_out="channels")  # fmt: skip  # noqa: E501
    return y


def normed(y):
    z = wf.split(y, channels=[groups, c])  # group norm over split dims: `mean` and `var` cost one all-reduce each
    z = (z - wf.mean(z, over=["depth", "height", "width", c])) * wf.rsqrt(wf.var(z, over=["depth", "height", "width", c]) + 1e-5)  # fmt: skip  # noqa: E501
    return z


def up(y, skip, v):
    u = wf.concat([skip, wf.conv_transpose(y, v, over={"depth": "kd", "height": "kh", "width": "kw"}, channels=("channels", C2), stride=2).rename(channels_out="channels")], over="channels")  # fmt: skip  # noqa: E501
    return u


def lowest(y):
    low = y.rename(depth="depth_low")  # too few slices left to split: a new name gathers, and the ledger says so
    return low


# ---- what it leaves out


def unet(p: Any, x: wf.Tensor) -> Any:
    y = down(x, p["w"])
    z = normed(y)
    y = wf.merge(z, [groups, c], into=y.dim("channels"))
    return {"up": up(y, x, p["v"]), "low": lowest(y)}


def plain(p: Any, x: Any) -> Any:
    how = {"padding": "SAME", "dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")}
    y = lax.conv_general_dilated(x, p["w"], (2, 2, 2), **how)
    parts = jnp.split(y, groups.size, axis=-1)
    space = (1, 2, 3, 4)
    parts = [(a - a.mean(space, keepdims=True)) / jnp.sqrt(a.var(space, keepdims=True) + 1e-5) for a in parts]
    y = jnp.concatenate(parts, axis=-1)
    return {"up": jnp.concatenate([x, lax.conv_transpose(y, p["v"], (2, 2, 2), **how)], axis=-1), "low": y}


P = weights(w=[KD, KH, KW, C, C2], v=[KD, KH, KW, C.resized(8), C2])
X = wf.tensor(values([B, DEPTH, HEIGHT, WIDTH, C], 5), [B, DEPTH, HEIGHT, WIDTH, C])
TERMS = B.size * DEPTH.size * HEIGHT.size * WIDTH.size


@functools.cache
def unsplit() -> Any:
    return outcome(None, unet, P, X)


def test_without_a_mesh_it_is_what_plain_jnp_gives():
    assert_close(unsplit(), plain_outcome(plain, P, X), TERMS)


@pytest.mark.quick(
    "a=2,b=2,c=2 depth:a,height:b+c",
    "a=2,b=2,c=2 height:a,channels:b,channels_out:c",
    "a=2,b=2,c=2 batch:a,depth:b,height:c,params.channels_out:a",
)
@at_each(
    ("a=4", "depth:a"),
    ("a=2,b=4", "depth:a,height:b"),
    ("a=2,b=2,c=2", "depth:a,height:b+c"),
    ("a=2,b=2,c=2", "depth:a,height:b,width:c"),
    ("a=2,b=2", "depth:a,channels:b"),
    ("a=2,b=2,c=2", "height:a,channels:b,channels_out:c"),
    ("a=2,b=2,c=2", "batch:a,depth:b,height:c,params.channels_out:a"),
)
def test_it_is_the_same_everywhere(place):
    assert_close(outcome(place, unet, P, X), unsplit(), TERMS)


PLACE = ("a=2,b=4", "depth:a,height:b")


def test_a_convolution_gets_a_row_of_its_neighbours_along_each_split_dim():
    # Windows of 3 at every second place reach one row past a slice, on one side alone.
    assert sends(PLACE, down, X, P["w"]) == {("permute", "a"): 1, ("permute", "b"): 1}


def test_mean_and_var_are_one_exchange_each_of_what_is_left():
    rows = wf.trace(normed, down(X, P["w"]), mesh=PLACE[0], layout=PLACE[1]).ledger.rows
    left = 4 * B.size * groups.size
    assert [(row.axes, row.count) for row in rows] == [(("a", "b"), 1)] * 2
    assert rows[0].collective == "all_reduce" and rows[0].bytes == left
    assert rows[1].bytes <= 3 * 8 * left  # of each of the 8 processors a variance, a mean, and what that lost


def test_channels_that_are_summed_leave_by_a_reduce_scatter():
    found = sends(("a=2,b=2", "height:a,channels:b"), down, X, P["w"])
    assert found == {("permute", "a"): 1, ("reduce_scatter", "b"): 1}


def test_channels_are_joined_and_grouped_where_they_lie():
    assert sends(("a=2", "channels:a"), normed, down(X, P["w"])) == {}


def test_a_new_name_gathers_and_the_ledger_says_so():
    (row,) = wf.trace(lowest, down(X, P["w"]), mesh=PLACE[0], layout=PLACE[1]).ledger
    assert (row.collective, row.axes) == ("all_gather", ("a",))
    assert row.reason == "because depth is split over a and depth_low is whole"
