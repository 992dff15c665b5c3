"""Rows of the contract table for convolution, pooling and upsampling: the spatial dims are those other rows split."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import weft as wf
from tests.ops.table import DIMS, floats, integers, row, weights

DIMS.update({dim.name: dim for dim in wf.dims(kb=3, kl=3, two=2)})

_NUMBERS = ("NHWC", "HWIO", "NHWC")
_image, _kernel = "layers batch length d_model", "kb kl d_model vocab"
_over, _channels = {"batch": "kb", DIMS["length"]: DIMS["kl"]}, ("d_model", DIMS["vocab"])


def _plain(x: Any, w: Any, stride: Any = (1, 1), padding: Any = "SAME", **how: Any) -> Any:
    return lax.conv_general_dilated(x, w, stride, padding, dimension_numbers=_NUMBERS, **how)


def _two_dims(x: wf.Tensor, w: wf.Tensor, **how: Any) -> wf.Tensor:
    return wf.conv(x, w, over=_over, channels=_channels, **how)


row("conv", "conv", (floats(_image), floats(_kernel)), _two_dims, _plain)
row("conv", "conv stored", (floats(_image), weights(_kernel)), _two_dims, _plain)
row("conv", "conv stride", (floats(_image), weights(_kernel)), lambda x, w: _two_dims(x, w, stride={"batch": 2}),
    lambda x, w: _plain(x, w, (2, 1)))  # fmt: skip
row("conv", "conv dilation", (floats(_image), weights(_kernel)), lambda x, w: _two_dims(x, w, dilation=2),
    lambda x, w: _plain(x, w, rhs_dilation=(2, 2)))  # fmt: skip
row("conv", "conv pads", (floats(_image), weights(_kernel)),
    lambda x, w: _two_dims(x, w, padding={"batch": (10, 0), "length": (0, 2)}),
    lambda x, w: _plain(x, w, padding=[(10, 0), (0, 2)]))  # fmt: skip
row("conv", "conv one dim", (floats("batch length d_model"), weights("kl d_model vocab")),
    lambda x, w: wf.conv(x, w, over={"length": "kl"}, channels=_channels),
    lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")))  # fmt: skip
row("conv", "conv each channel", (floats(_image), weights("kb kl d_model")),
    lambda x, w: wf.conv(x, w, over=_over, channels=("d_model", "d_model"), groups=8),
    lambda x, w: _plain(x, w[:, :, None], feature_group_count=8))  # fmt: skip
row("conv", "conv groups", (floats("layers batch length length_whole"),
    wf.parameter(floats("kb kl two heads_whole").array, [*floats("kb kl").dims, wf.Dim("length_whole", 2),
                                                         DIMS["heads_whole"]])),
    lambda x, w: wf.conv(x, w, over=_over, channels=("length_whole", "heads_whole"), groups=4),
    lambda x, w: _plain(x, w, feature_group_count=4), whole="length_whole heads_whole")  # fmt: skip
row("conv", "conv bf16", (floats(_image, dtype="bfloat16"), floats(_kernel, dtype="bfloat16")), _two_dims, _plain)
row("conv", "conv_transpose", (floats(_image), weights(_kernel)),
    lambda x, w: wf.conv_transpose(x, w, over=_over, channels=_channels, stride={"batch": 2}),
    lambda x, w: lax.conv_transpose(x, w, (2, 1), "SAME", dimension_numbers=_NUMBERS))  # fmt: skip


def _pooled(x: Any, start: Any, combine: Any, sizes: Any, strides: Any, padding: str) -> Any:
    return lax.reduce_window(x, start, combine, sizes, strides, padding)


def _plain_mean(x: Any, *how: Any) -> Any:
    return _pooled(x, 0.0, lax.add, *how) / _pooled(jnp.ones_like(x), 0.0, lax.add, *how)


_x = "batch length d_model"
row("conv", "max_pool", floats(_x), lambda x: wf.max_pool(x, window={"batch": 2}),
    lambda x: _pooled(x, -jnp.inf, lax.max, (2, 1, 1), (2, 1, 1), "VALID"))  # fmt: skip
row("conv", "max_pool halo", floats(_x), lambda x: wf.max_pool(x, window=dict(batch=3, length=3), stride=1,
    padding="SAME"), lambda x: _pooled(x, -jnp.inf, lax.max, (3, 3, 1), (1, 1, 1), "SAME"))  # fmt: skip
row("conv", "max_pool int", integers(_x), lambda x: wf.max_pool(x, window=dict(batch=3), stride=2, padding="SAME"),
    lambda x: _pooled(x, jnp.iinfo("int32").min, lax.max, (3, 1, 1), (2, 1, 1), "SAME"),
    is_differentiable=False)  # fmt: skip
row("conv", "avg_pool", floats(_x), lambda x: wf.avg_pool(x, window={"batch": 2}),
    lambda x: _plain_mean(x, (2, 1, 1), (2, 1, 1), "VALID"))  # fmt: skip
row("conv", "avg_pool halo", floats(_x), lambda x: wf.avg_pool(x, window=dict(batch=3, length=5), stride=1,
    padding="SAME"), lambda x: _plain_mean(x, (3, 5, 1), (1, 1, 1), "SAME"))  # fmt: skip
row("conv", "upsample", floats(_x), lambda x: wf.upsample(x, by=dict(batch=2, length=3)),
    lambda x: jax.image.resize(x, (32, 24, 8), "nearest"))  # fmt: skip
row("conv", "upsample linear", floats(_x), lambda x: wf.upsample(x, by=dict(batch=2, length=3), method="linear"),
    lambda x: jax.image.resize(x, (32, 24, 8), "linear"))  # fmt: skip


def _windows(x: Any, stride: int = 1) -> Any:
    """[batch length d_model kb kl]: what is around each place of the first two, zeros outside."""
    padded = jnp.pad(x, [(1, 1), (1, 1), (0, 0)])
    parts = [[padded[i : i + 16 : stride, j : j + 8 : stride] for j in range(3)] for i in range(3)]
    return jnp.stack([jnp.stack(row, axis=-1) for row in parts], axis=-2)


row("conv", "windows", floats(_x), lambda x: wf.windows(x, over={"batch": DIMS["kb"], "length": DIMS["kl"]}),
    _windows)  # fmt: skip
row("conv", "windows stride", floats(_x), lambda x: wf.windows(x, over={"batch": wf.Dim("two", 2)}, stride=2),
    lambda x: jnp.stack([x[::2], x[1::2]], axis=-1))  # fmt: skip
