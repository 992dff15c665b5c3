"""More of windows over split dims: dilated transposes, integers and narrow floats, fine slices, shared images.

The reference is plain lax on the global arrays. All cases of a placement compile as one region.
"""

import itertools
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft as wf

EPS = float(jnp.finfo("float32").eps)
NUMBERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}
OVER = {1: {"width": "kw"}, 2: {"height": "kh", "width": "kw"}}
CHANNELS = ("channels", "channels_out")


def values(shape: Any, seed: str, dtype: str = "float32") -> Any:
    numbers = np.random.default_rng(zlib.crc32(seed.encode()))
    made = numbers.integers(-5, 6, shape) if dtype.startswith("int") else numbers.uniform(-1, 1, shape)
    return jnp.asarray(made, dtype)


def image(*sizes: int, dtype: str = "float32") -> wf.Tensor:
    names = "height width" if len(sizes) == 2 else "width"
    return wf.tensor(values((2, *sizes, 4), f"image {sizes}", dtype), f"batch {names} channels")


def kernel(*sizes: int, dtype: str = "float32", seed: str = "") -> wf.Tensor:
    names = "kh kw" if len(sizes) == 2 else "kw"
    return wf.tensor(values((*sizes, 4, 8), f"kernel {sizes}{seed}", dtype), f"{names} channels channels_out")


def conv(x: wf.Tensor, w: wf.Tensor, **how: Any) -> wf.Tensor:
    return wf.conv(x, w, over=OVER[len(w.dims) - 2], channels=CHANNELS, **how)


def plain_conv(x: Any, w: Any, stride: int = 1, dilation: int = 1, padding: Any = "SAME") -> Any:
    dims = x.ndim - 2
    how = {"rhs_dilation": (dilation,) * dims, "dimension_numbers": NUMBERS[dims]}
    return lax.conv_general_dilated(x, w, (stride,) * dims, padding, **how)


def check_all(cases: dict[str, Any], mesh: str, layout: str) -> None:
    """Each case's weft function equals its plain one, in value and in gradient."""

    def run(inputs: Any) -> Any:
        def total(given: Any, fn: Any) -> Any:
            y = fn(*given)
            return wf.sum(wf.sin(y), over=y.dims), y

        return {n: wf.value_and_grad(lambda g, fn=cases[n][0]: total(g, fn), has_aux=True)(inputs[n]) for n in cases}

    found = wf.spmd(run, mesh=mesh, layout=layout)({name: given for name, (_, _, given) in cases.items()})
    for name, (_, plain, given) in cases.items():
        want, pull = jax.vjp(plain, *(x.array for x in given))
        (_, y), gradients = found[name]
        due = pull(jnp.cos(want))
        # Sums in two orders: each addition rounds by at most eps/2 of a partial sum.
        terms = 16 + max(64, want.size // min(g.size for g in due) * 4)
        for got, wanted in zip([y, *gradients], [want, *due], strict=True):
            allowed = terms * EPS * max(1.0, float(jnp.abs(wanted).max()))
            np.testing.assert_allclose(got.array, wanted, rtol=0, atol=allowed, err_msg=name)


# ---- dilated transposes


def transposes(size: int, is_due: Any) -> dict[str, Any]:
    cases = {}
    for k, stride, dilation, padding in itertools.product((2, 3), (1, 2, 3), (2, 3), ("SAME", "VALID")):
        if k == 2 and (padding == "VALID" or stride != 2):
            continue
        how = {"stride": stride, "dilation": dilation, "padding": padding}

        def run(x: wf.Tensor, w: wf.Tensor, how: Any = how) -> wf.Tensor:
            return wf.conv_transpose(x, w, over=OVER[1], channels=CHANNELS, **how)

        def plain(x: Any, w: Any, s: int = stride, d: int = dilation, p: str = padding) -> Any:
            return lax.conv_transpose(x, w, (s,), p, rhs_dilation=(d,), dimension_numbers=NUMBERS[1])

        given = image(size), kernel(k)
        if is_due(jax.eval_shape(plain, *(x.array for x in given)).shape[1]):
            cases[f"kernel {k} {how}"] = run, plain, given
    return cases


@pytest.mark.quick("a=2,b=2-width:b+a-4")
@pytest.mark.parametrize(
    ("mesh", "layout", "ways"), [("x=8", "width:x", 8), ("x=4", "width:x", 4), ("a=2,b=2", "width:b+a", 4)]
)
def test_a_dilated_transposed_convolution_is_that_of_lax(mesh, layout, ways):
    cases = transposes(8, lambda made: made % ways == 0)
    assert len(cases) >= 8
    check_all(cases, mesh, layout)


# ---- fine slices


@pytest.mark.parametrize("how", [{}, {"dilation": 3}, {"padding": (5, 1)}])
def test_a_kernel_that_reaches_past_neighbours_has_its_gradients(how):
    pads = how.get("padding", "SAME")
    given = how if isinstance(pads, str) else {"padding": {"width": pads}}
    plain = how if isinstance(pads, str) else {"padding": [pads]}
    cases = {
        f"kernel {k}": (lambda x, w: conv(x, w, **given), lambda x, w: plain_conv(x, w, **plain), (image(8), kernel(k)))
        for k in ((5, 7) if isinstance(pads, str) else (7,))
    }
    check_all(cases, "x=8", "width:x")


def test_a_kernel_that_reaches_past_neighbours_in_two_dims_has_its_gradients():
    given = image(2, 4), kernel(3, 5)
    check_all({"one place each": (conv, plain_conv, given)}, "a=2,b=4", "height:a,width:b")
    given = image(8, 4), kernel(5, 3)
    stride = lambda x, w: conv(x, w, stride=2)  # noqa: E731
    case = stride, lambda x, w: plain_conv(x, w, 2), given
    check_all({"one place each, of a stride": case}, "a=4,b=2", "height:a,width:b")


# ---- one image for several


def test_an_image_that_several_convolutions_see_gets_the_sum_of_their_gradients():
    def several(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
        pool = wf.avg_pool(x, window={"width": 3}, stride=1, padding="SAME")
        return conv(x, w) * conv(x, v, dilation=2) + conv(pool, w)

    def plain(x: Any, w: Any, v: Any) -> Any:
        def total(a: Any) -> Any:
            return lax.reduce_window(a, 0.0, lax.add, (1, 3, 1), (1, 1, 1), "SAME")

        pool = total(x) / total(jnp.ones_like(x))
        return plain_conv(x, w) * plain_conv(x, v, dilation=2) + plain_conv(pool, w)

    given = image(16), kernel(3), kernel(5, seed="other")
    for mesh, layout in [("a=2,b=4", "width:b+a"), ("a=4,b=2", "width:a,channels_out:b")]:
        check_all({layout: (several, plain, given)}, mesh, layout)


# ---- integers and narrow floats


@pytest.mark.parametrize("dtype", ["int8", "int32", "bfloat16", "float16"])
def test_convolutions_and_pools_of_other_dtypes_are_those_of_lax(dtype):
    least = jnp.asarray(-jnp.inf if "float" in dtype else jnp.iinfo(dtype).min, dtype)
    x, w = image(8, 16, dtype=dtype), kernel(3, 3, dtype=dtype)
    window = {"height": 3, "width": 3}

    def run(x: wf.Tensor, w: wf.Tensor) -> Any:
        return conv(x, w), conv(x, w, stride=2), wf.max_pool(x, window=window, stride=1, padding="SAME")

    found = wf.spmd(run, mesh="a=2,b=4", layout="height:a,width:b")(x, w)
    plain = [
        plain_conv(x.array, w.array),
        plain_conv(x.array, w.array, 2),
        lax.reduce_window(x.array, least, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    ]
    for mine, due in zip(found, plain, strict=True):
        assert mine.dtype == due.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(np.asarray(mine.array, "float32"), np.asarray(due, "float32"))


def test_split_channels_of_integers_are_added_up_as_integers():
    x, w = image(8, dtype="int32"), kernel(3, dtype="int32")
    y = wf.spmd(conv, mesh="x=4,y=2", layout="channels:x,width:y")(x, w)
    np.testing.assert_array_equal(y.array, plain_conv(x.array, w.array))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_means_of_narrow_floats_are_made_in_float32(dtype):
    x = image(8, 16, dtype=dtype)
    wide = x.array.astype("float32")

    def total(a: Any) -> Any:
        return lax.reduce_window(a, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")

    def run(x: wf.Tensor) -> wf.Tensor:
        return wf.avg_pool(x, window={"height": 3, "width": 3}, stride=1, padding="SAME")

    y = wf.spmd(run, mesh="a=2,b=4", layout="height:a,width:b")(x)
    due = total(wide) / total(jnp.ones_like(wide))
    assert y.dtype == jnp.dtype(dtype)
    # Rounded once to the narrow dtype, of a float32 that sums in another order.
    step = float(jnp.finfo(dtype).eps) * float(jnp.abs(due).max())
    np.testing.assert_allclose(np.asarray(y.array, "float32"), due, rtol=0, atol=step)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("method", ["nearest", "linear"])
def test_upsampled_narrow_floats_are_those_of_float32_rounded_once(dtype, method):
    x = image(8, 16, dtype=dtype)
    by = {"height": 2, "width": 4}
    y = wf.spmd(lambda x: wf.upsample(x, by=by, method=method), mesh="a=2,b=4", layout="height:a,width:b")(x)
    due = jax.image.resize(x.array.astype("float32"), (2, 16, 64, 4), method)
    assert y.dtype == jnp.dtype(dtype)
    step = float(jnp.finfo(dtype).eps) * (method == "linear")
    np.testing.assert_allclose(np.asarray(y.array, "float32"), due, rtol=0, atol=step)


# ---- looking up in a map


@pytest.mark.parametrize("layout", ["", "vocab:x", "batch:x", "vocab:x,batch:y", "vocab:x+y"])
@pytest.mark.parametrize("count", [8, 40])
def test_a_gather_in_a_map_takes_ids_of_any_size(layout, count):
    batch, vocab, width = wf.dims(batch=4, vocab=16, d_model=3)
    x = wf.tensor(values((4, 16, 3), "table"), [batch, vocab, width])
    ids = wf.tensor(values((4, count, 3), "ids", "int32") * 4 + 2, [batch, vocab.resized(count), width])

    def total(x: wf.Tensor, ids: wf.Tensor) -> Any:
        found = wf.vmap(lambda x, ids: wf.gather(x, ids, over="vocab"), over=batch)(x, ids)
        return wf.sum(wf.sin(found), over=found.dims), found

    def plain(x: Any) -> Any:
        inside = (ids.array >= 0) & (ids.array < 16)
        return jnp.where(inside, jnp.take_along_axis(x, jnp.where(inside, ids.array, 0), axis=1), 0)

    gradient, found = wf.spmd(wf.grad(total, has_aux=True), mesh="x=4,y=2", layout=layout)(x, ids)
    want, pull = jax.vjp(plain, x.array)
    np.testing.assert_array_equal(found.array, want)
    np.testing.assert_allclose(gradient.array, pull(jnp.cos(want))[0], atol=count * EPS)
