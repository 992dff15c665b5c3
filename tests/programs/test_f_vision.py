"""A vision transformer by names, no flattening: patches, attention over two dims, noise, a kernel of one's own."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

from .everywhere import assert_close, at_each, outcome, plain_outcome, sends, values, weights

B, HEIGHT, WIDTH, C, D, K = wf.dims(batch=2, height=16, width=8, channels=3, d_model=8, d_kv=4)
ph, pw = wf.dims(ph=2, pw=2)
rows, cols = wf.Dim("rows", 8, follows="height"), wf.Dim("cols", 4, follows="width")

# ---- as a user writes it


def patches(p, image):
    x = wf.einsum(wf.split(image, height=[rows, ph], width=[cols, pw]), p["patch"], over=[ph, pw, "channels"])  # [batch rows cols d_model]  # fmt: skip  # noqa: E501
    return x


def attention(q, k, v):
    s = wf.softmax(wf.einsum(q, k.rename(rows="rows_k", cols="cols_k"), over=K), over=["rows_k", "cols_k"])
    return wf.einsum(s, v.rename(rows="rows_k", cols="cols_k"), over=["rows_k", "cols_k"])


def noisy(key, image):
    noise = wf.random.normal(key, image.dims, like=image)
    return image + noise


def by_kernel(q, k, v):
    y = wf.local(kernel, q, *(t.rename(rows="rows_k", cols="cols_k") for t in (k, v)), out=q.dims, whole=["rows_k", "cols_k", K])  # your own Pallas kernel  # fmt: skip  # noqa: E501
    return y


# ---- what it leaves out


def kernel(q: Any, k: Any, v: Any) -> Any:
    """Attention on slices, [batch rows cols d_kv] each."""
    flat = [a.reshape(a.shape[0], -1, a.shape[-1]) for a in (q, k, v)]
    scores = jax.nn.softmax(flat[0] @ flat[1].swapaxes(1, 2))
    return (scores @ flat[2]).reshape(q.shape)


def vision(p: Any, image: wf.Tensor, key: Any) -> Any:
    x = patches(p, noisy(key, image))
    q, k, v = (wf.einsum(x, p[n], over=D) for n in "qkv")
    return attention(q, k, v), by_kernel(q, k, v)


def plain(p: Any, image: Any) -> Any:
    """Row after row of patches, flattened, on arrays."""
    image = image + jax.random.normal(jax.random.key(0), image.shape)
    each = [
        image[:, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].reshape(B.size, -1)
        for r in range(rows.size)
        for c in range(cols.size)
    ]
    x = jnp.stack(each, 1) @ p["patch"].reshape(-1, D.size)
    q, k, v = (x @ p[n] for n in "qkv")
    y = jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v
    y = y.reshape(B.size, rows.size, cols.size, K.size)
    return y, y


P = weights(patch=[ph, pw, C, D], **{n: [D, K] for n in "qkv"})
IMAGE = wf.tensor(values([B, HEIGHT, WIDTH, C], 11), [B, HEIGHT, WIDTH, C])
TERMS = B.size * HEIGHT.size * WIDTH.size


def program(p: Any, image: wf.Tensor) -> Any:
    return vision(p, image, jax.random.key(0))


@functools.cache
def unsplit() -> Any:
    return outcome(None, program, P, IMAGE)


def test_without_a_mesh_it_is_what_plain_jnp_gives():
    assert_close(unsplit(), plain_outcome(plain, P, IMAGE), TERMS)


@pytest.mark.quick("a=2,b=2,c=2 height:a+b,width:c", "a=2,b=2 batch:a,height:b", "a=4 rows:a")
@at_each(
    ("a=4", "height:a"),
    ("a=2,b=4", "height:a,width:b"),
    ("a=2,b=2,c=2", "height:a+b,width:c"),
    ("a=2,b=2", "batch:a,height:b"),
    ("a=2,b=2", "height:a,d_model:b"),
    ("a=4", "rows:a"),
)
def test_it_is_the_same_everywhere(place):
    assert_close(outcome(place, program, P, IMAGE), unsplit(), TERMS)


@pytest.mark.parametrize("layout", ["height:a,width:b", "width:a+b", "height:b,batch:a"])
def test_noise_is_that_of_jax_random_on_the_whole_image(layout):
    key = jax.random.key(3)
    made = wf.spmd(lambda key, image: wf.random.normal(key, image.dims, like=image), mesh="a=2,b=4", layout=layout)
    np.testing.assert_array_equal(made(key, IMAGE).array, jax.random.normal(key, IMAGE.dims.sizes))


PLACE = ("a=2,b=4", "height:a,width:b")


def test_patches_and_noise_are_made_where_the_image_lies():
    assert sends(PLACE, lambda p, image: patches(p, noisy(jax.random.key(0), image)), P, IMAGE) == {}


def test_attention_gathers_its_keys_and_values():
    given = [wf.zeros([B, rows, cols, K])] * 3
    expected = {("all_gather", "a"): 2, ("all_gather", "b"): 2}
    assert sends(PLACE, attention, *given) == sends(PLACE, by_kernel, *given) == expected


def test_a_kernel_is_told_what_it_may_not_be_given_split():
    with pytest.raises(wf.LayoutError, match="local needs `rows_k` whole") as caught:
        wf.trace(by_kernel, *[wf.zeros([B, rows, cols, K])] * 3, mesh="a=2,b=2", layout="rows:a,rows_k:b")
    assert "rename" in caught.value.fix and "rows_k:b" in caught.value.fix
