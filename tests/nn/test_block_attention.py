"""Attention in blocks of an image: against plain numpy, under split images, and what neighbours send."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.programs.everywhere import assert_close, outcome, values
from weft import nn

B, HEIGHT, WIDTH, C, H, K = wf.dims(batch=2, height=8, width=12, channels=4, heads=2, d_kv=4)
X = wf.tensor(values([B, HEIGHT, WIDTH, C], 1), [B, HEIGHT, WIDTH, C])
BLOCKS = {"height": 2, "width": 3}
KEY = jax.random.key(4)
LAYERS = {
    neighbours: nn.BlockAttention(C, H, K, BLOCKS, neighbours=neighbours, key=KEY) for neighbours in (True, False)
}


def is_seen(neighbours: bool) -> np.ndarray:
    """Whether a place sees another: [height width, height width]."""
    blocks = np.array([(h // 2, w // 3) for h, w in itertools.product(range(8), range(12))])
    apart = np.abs(blocks[:, None] - blocks[None]).max(-1)
    return apart <= int(neighbours)


def plain(layer: Any, x: Any, neighbours: bool) -> Any:
    """All places see all, but for those that the mask hides."""
    w = {name: jnp.asarray(getattr(layer.attention, name).array) for name in "qkvo"}
    h = x.reshape(2, 96, 4)
    q, k, v = (jnp.einsum("blc,chd->bhld", h, w[name]) for name in "qkv")
    scores = jnp.where(is_seen(neighbours), jnp.einsum("bhld,bhmd->bhlm", q, k) * K.size**-0.5, -1e30)
    mixed = jnp.einsum("bhlm,bhmd->bhld", jax.nn.softmax(scores), v)
    return jnp.einsum("bhld,hdc->blc", mixed, w["o"]).reshape(x.shape)


@pytest.mark.parametrize("neighbours", [True, False])
def test_a_place_sees_its_block_and_those_around_it(neighbours):
    layer = LAYERS[neighbours]
    assert_close([layer(X).array], [plain(layer, X.array, neighbours)], 9 * 6)


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("a=2,b=2", "height:a,width:b"),
        pytest.param("a=4", "height:a", marks=pytest.mark.slow),
        pytest.param("a=2,b=4", "height:a,width:b,params.channels:a", marks=pytest.mark.slow),
        pytest.param("a=2,b=2,c=2", "batch:a,width:b,heads:c", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "height:b+a", marks=pytest.mark.slow),
        pytest.param("a=2,b=2", "channels:a,height:b", marks=pytest.mark.slow),
    ],
)
def test_no_layout_changes_it_or_its_gradients(mesh, layout):
    def program(layers: Any, x: wf.Tensor) -> Any:
        return {neighbours: layer(x) for neighbours, layer in layers.items()}

    assert_close(outcome((mesh, layout), program, LAYERS, X), outcome(None, program, LAYERS, X), 2 * 96 * 54)


def test_neighbours_send_a_block_of_keys_and_values_each_way_and_alone_nothing():
    def ledger(neighbours: bool) -> Any:
        layer = LAYERS[neighbours]
        return wf.trace(lambda m, x: m(x), layer, X, mesh="a=2,b=2", layout="height:a,width:b").ledger

    assert not list(ledger(False))
    sent = ledger(True)
    assert {row.collective for row in sent} == {"permute"}
    place = 4 * B.size * H.size * K.size  # bytes of a key
    rows, cols = HEIGHT.size // 2, WIDTH.size // 2
    assert sent.bytes("a") == 2 * 2 * 2 * cols * place  # two ways, keys and values, two rows
    # Of the width, three columns, the corners with them.
    assert sent.bytes("b") == 2 * 2 * 3 * (2 + rows + 2) * place


@pytest.mark.parametrize(
    ("act", "fact", "fix"),
    [
        (lambda: nn.BlockAttention(C, H, K, 4), "`blocks` is 4", "`blocks={'height': 8, 'width': 8}`"),
        (lambda: nn.BlockAttention(C, H, K, {"height": 3}, key=KEY)(X), "`blocks` is 3, and `height`", "divides 8"),
        (
            lambda: wf.trace(lambda x: LAYERS[True](x), X, mesh="a=8", layout="height:a"),
            "`height` (size 8) has 4 blocks of 2, which do not divide over 8 processors",
            "take blocks that divide 1, e.g. `blocks={'height': 1}`",
        ),
    ],
)
def test_what_are_no_blocks_is_told_with_its_cure(act, fact, fix):
    with pytest.raises(wf.WeftError) as raised:
        act()
    assert fact in raised.value.fact and fix in raised.value.fix
