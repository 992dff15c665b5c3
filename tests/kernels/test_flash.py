"""The kernels of flash attention, run step by step, give what plain attention gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.kernels import flash
from weft.kernels.blocks import GROUP, Blocks, Seen, Tile, bounds, parts

BLOCKS = Blocks(Tile(32, 32, 4, 2), Tile(16, 64, 4, 2), Tile(32, 64, 4, 2, is_paired=False))
LENGTH = 160
SEGMENTS = jnp.asarray([[0] * 60 + [1] * 50 + [2] * 50, [4] * 128 + [3] * 32])
POSITIONS = jnp.asarray([[*range(60), *range(50), *range(50)], [*range(128), *range(32)]])

CASES = {
    "all": {},
    "causal": {"causal": True},
    "causal and dropout": {"causal": True, "dropout": 0.2},
    "dropout of fewer keys, in part of a group": {"dropout": 0.2, "memory": 96},
    "window": {"causal": True, "window": 40},
    "window on both sides": {"window": 40, "dropout": 0.1},
    "softcap": {"softcap": 2.0, "causal": True},
    "packed": {"causal": True, "segments": SEGMENTS, "positions": POSITIONS, "dropout": 0.1},
    "prefix": {"causal": True, "prefix": jnp.asarray([70, 0])},
    "queries that see no key": {"segments": (SEGMENTS, SEGMENTS[:, ::-1] + 2), "dropout": 0.1},
    "a part of all, in the middle": {"causal": True, "dropout": 0.1, "origin": (3, jnp.arange(4) * 2, 160, 37)},
    "packed, said of both sides": {"causal": True, "segments": (SEGMENTS, SEGMENTS), "is_within": True, "dropout": 0.1},
    "a window that ends before some queries": {"window": 40, "memory": 96},
    "bias of all rows": {"bias": (1, 4), "causal": True, "dropout": 0.1},
    "bias of all heads, capped": {"bias": (2, 1), "softcap": 3.0},
    "one head of keys, width 24": {"heads_kv": 1, "width": 24, "causal": True, "dropout": 0.1},
}
QUICK = {"causal and dropout", "packed", "bias of all rows"}


@pytest.mark.quick("causal and dropout", "bias of all rows")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES])
def test_kernels_agree_with_plain_attention(name):
    """Values and gradients in f32, to a few roundings."""
    how = dict(CASES[name])
    bias, memory = how.pop("bias", None), how.pop("memory", LENGTH)
    heads_kv, width = how.pop("heads_kv", 2), how.pop("width", 16)
    keys = jax.random.split(jax.random.key(1), 6)
    q, gradient = (jax.random.normal(key, (2, LENGTH, 4, width)) for key in keys[:2])
    k, v = (jax.random.normal(key, (2, memory, heads_kv, width)) for key in keys[2:4])
    given = [q, k, v, *([] if bias is None else [jax.random.normal(keys[4], (*bias, LENGTH, memory))])]

    def run(backend):
        def attend(q, k, v, bias=None):
            words = jax.random.key_data(keys[5])
            more = {} if backend == "plain" else {"blocks": BLOCKS}
            return flash.flash_attention(q, k, v, scale=0.3, bias=bias, seed=words, backend=backend, **how, **more)

        def both(*given):
            result, pull_back = jax.vjp(attend, *given)
            return result, *pull_back(gradient)

        return jax.jit(both)(*given)

    for plain, fused in zip(run("plain"), run("interpret"), strict=True):
        error = jnp.abs(plain - fused).max() / jnp.abs(plain).max()
        assert error < 32 * np.finfo("float32").eps, f"{error:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_kernels_agree_with_plain_attention_in_random_cases(seed):
    """Sizes, masks, blocks and dtypes drawn at random; of bfloat16 to a few of its own roundings."""
    rng = np.random.default_rng(seed)

    def either(*choices):
        return choices[rng.integers(len(choices))]

    batch, length, heads_kv, width = (
        int(rng.integers(1, 3)),
        int(rng.integers(20, 200)),
        either(1, 2),
        either(8, 16, 32),
    )
    memory = either(length, int(rng.integers(20, 300)))
    shape = (batch, length, heads_kv * either(1, 2, 3), width)
    how = {"causal": either(True, False), "window": either(None, None, 30), "dropout": either(0.0, 0.3, 0.1)}
    how |= {"softcap": either(None, 3.0), "origin": (either(0, 5), either(0, 3), 0, either(0, 0, 64))}
    if memory == length and how["origin"][3] == 0:
        how["segments"] = either(None, jnp.asarray(np.sort(rng.integers(0, 3, (batch, length)))))
    tiles = [Tile(either(16, 32), either(32, 64), 4, 2, either(True, False)) for _ in range(3)]
    dtype = either("float32", "bfloat16")
    keys = jax.random.split(jax.random.key(seed), 6)
    q, gradient = (jax.random.normal(key, shape, dtype) for key in keys[:2])
    k, v = (jax.random.normal(key, (batch, memory, heads_kv, width), dtype) for key in keys[2:4])
    size = either(None, (1, shape[2]), (batch, 1))
    bias = [] if size is None else [jax.random.normal(keys[4], (*size, length, memory), dtype)]

    def run(backend, dtype, **more):
        def attend(q, k, v, bias=None):
            words = jax.random.key_data(keys[5])
            return flash.flash_attention(q, k, v, scale=0.4, bias=bias, seed=words, backend=backend, **how, **more)

        result, pull_back = jax.vjp(jax.jit(attend), *(x.astype(dtype) for x in (q, k, v, *bias)))
        return result, *pull_back(gradient.astype(dtype))

    plain, fused = run("plain", "float32"), run("interpret", dtype, blocks=Blocks(*tiles))
    for exact, found in zip(plain, fused, strict=True):
        error = jnp.abs(exact - found.astype("float32")).max() / jnp.abs(exact).max()
        assert error < (64 * np.finfo("float32").eps if dtype == "float32" else 4 * 2**-8), f"{error:.1e}"


def test_only_blocks_that_are_seen_are_visited():
    """Bounds of a causal mask: below the diagonal no mask is asked, above it nothing is done."""
    seen = Seen(True, None, None, None, None, True)
    by_queries, by_keys = bounds(seen, 512, 512, 512, size=64)
    np.testing.assert_array_equal(by_queries[0, :, 3], [1, 1, 2, 2, 3, 3, 4, 4])
    np.testing.assert_array_equal(by_queries[0, :, 2], [0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(by_keys[0, :, 0], [0, 2, 4, 6])
    np.testing.assert_array_equal(by_keys[0, :, 1], [2, 4, 6, 8])
    assert parts(by_queries) == (False, True, True) and parts(by_keys) == (True, True, False)


def test_bounds_hold_all_that_is_seen():
    """Of random masks: what is outside a range is unseen, what is inside the inner one is seen."""
    from weft.kernels.plain import is_seen

    rng, asked_nowhere = np.random.default_rng(0), []
    for causal, window in [(True, None), (True, 70), (False, 90), (True, 200)]:
        segments = jnp.asarray(np.sort(rng.integers(0, 4, (2, 512))))
        positions = jnp.asarray(np.broadcast_to(np.arange(512) // 2, (2, 512)))
        masks = {"causal": causal, "window": window}
        given = (positions, positions), (segments, segments), None
        seen = np.asarray(is_seen(*given, **masks))[:, 0]
        found = bounds(
            Seen(**masks, positions=given[0], segments=given[1], prefix=None, sees_itself=True), 512, 512, 500, size=64
        )
        for limits, tiles in zip(found, (seen, np.swapaxes(seen, 1, 2)), strict=True):
            rows, columns = (64, GROUP) if tiles is seen else (GROUP, 64)
            tiles = tiles.reshape(2, 512 // rows, rows, 512 // columns, columns)
            place = np.arange(512 // columns)
            some, whole = tiles.any((2, 4)), tiles.all((2, 4))
            first, start, end, last = (np.asarray(limits)[..., i, None] for i in range(4))
            assert not (some & ((place < first) | (place >= last))).any()
            inside = np.broadcast_to((place >= start) & (place < end), whole.shape)
            assert whole[inside].all()
            asked_nowhere.append(inside.any())
    assert any(asked_nowhere)


@pytest.mark.parametrize(
    "how", [{"causal": True, "dropout": 0.1}, {"softcap": 30.0, "window": 64}], ids=["dropout", "cap"]
)
def test_kernels_are_lowered_for_a_gpu(how):
    """Pallas makes Triton of all three kernels, with their gradients, without a GPU."""
    q = jax.ShapeDtypeStruct((2, 256, 4, 64), "bfloat16")

    def loss(q, k, v, seed):
        return flash.flash_attention(q, k, v, scale=0.1, seed=seed, **how).astype("float32").sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, q, q, jax.ShapeDtypeStruct((2,), "uint32"))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("__gpu$xla.gpu.triton") >= 3
