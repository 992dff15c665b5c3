"""Attention by a fused kernel gives what the plain one does, under every layout."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.nn.stand_in import StandIn, pretend
from tests.nn.test_ring import (
    K1,
    K2,
    KEY,
    MEMORY_SEGMENTS,
    POSITIONS,
    PREFIX,
    SEGMENTS,
    UNMET,
    V1,
    V2,
    B,
    D,
    G,
    H,
    K,
    Q,
    T,
)
from tests.programs.everywhere import outcome
from weft import nn
from weft.kernels.choice import AttentionCase, Chip, choose, read_chip
from weft.kernels.flash import flash_attention
from weft.kernels.splash import splash_attention
from weft.nn import attention, fused

SAME = T.renamed("memory_length")
RELATIVE = nn.init(nn.RelativeBias(wf.Dim("buckets", 8), [H, G], is_causal=False, farthest=12), KEY)
BIAS = wf.tensor(np.random.default_rng(3).normal(size=(2, 2, 32, 32)).astype("float32"), [H, G, T, SAME])
ALIBI = wf.tensor(-np.abs(np.arange(32)[:, None] - np.arange(32)).astype("float32"), [T, SAME])
PACKED = wf.tensor(np.array([[0, 1, 2, 3, 4] * 7, [*range(20), *range(15)]], "int32")[:, :32], [B, T])
DOCUMENTS = wf.tensor(np.array([[i // 5 for i in range(32)], [i // 20 for i in range(32)]], "int32"), [B, T])


def attend(mask: Any, *, dropout: float = 0.0, softcap: float | None = None) -> Any:
    layer = nn.init(nn.Attention(D, H, K, group=G, softcap=softcap), KEY)

    def program(q: wf.Tensor, k: wf.Tensor, v: wf.Tensor, bias: Any, *given: wf.Tensor) -> wf.Tensor:
        return layer.attend(q, k, v, mask=mask(*given), bias=bias, dropout=dropout, key=KEY)

    return program


def in_order(positions: wf.Tensor, segments: wf.Tensor, **how: Any) -> nn.Mask:
    return nn.Mask.within(causal=True, positions=positions, segments=segments, is_in_order=True, **how)


SELF, CROSS = (Q, K1, V1), (Q, K2, V2)
CASES: dict[str, Any] = {
    "all": (nn.Mask, *SELF, None),
    "causal": (lambda: nn.Mask(causal=True), *SELF, None),
    "cross": (nn.Mask, *CROSS, None),
    "window": (lambda: nn.Mask(causal=True, window=5), *SELF, None),
    "window both ways": (lambda: nn.Mask(window=5), *SELF, None),
    "window past the keys": (lambda: nn.Mask(causal=True, window=5), *CROSS, None),
    "prefix": (lambda n: nn.Mask(causal=True, prefix=n), *SELF, None, PREFIX),
    "segments": (lambda s: nn.Mask.within(causal=True, segments=s), *SELF, None, SEGMENTS),
    "packed": (in_order, *SELF, None, PACKED, DOCUMENTS),
    "packed, window": (lambda *x: in_order(*x, window=3), *SELF, None, PACKED, DOCUMENTS),
    "positions": (lambda p: nn.Mask.within(causal=True, window=9, positions=p), *SELF, None, POSITIONS),
    "cross, segments": (
        lambda a, b: nn.Mask(segments=a, memory_segments=b), *CROSS, None, UNMET, MEMORY_SEGMENTS,
    ),
    "bias": (lambda: nn.Mask(causal=True), *SELF, BIAS),
    "bias of all heads": (nn.Mask, *SELF, ALIBI),
    "bias, window both ways": (lambda: nn.Mask(window=5), *SELF, BIAS),
    "relative": (lambda: nn.Mask(causal=True), *SELF, RELATIVE),
}  # fmt: skip
QUICK = {"causal": 1, "packed": 2, "positions": 1, "cross, segments": 1, "bias": 3}  # and at which place
PLACES = [None, ("x=2,y=2", "batch:x,heads:y"), ("x=4", "length:x"), ("x=2,y=2", "batch:x,group:y")]


def assert_near(found: Any, want: Any, of_largest: float) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, "float32"), np.asarray(b, "float32")
        np.testing.assert_allclose(a, b, rtol=0, atol=of_largest * max(np.abs(b).max(), 1e-3))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=[] if QUICK.get(name) == i else pytest.mark.slow)
        for name in CASES
        for i, place in enumerate(PLACES)
    ],
)
def test_a_fused_kernel_gives_what_the_plain_one_does(name, place, monkeypatch):
    mask, *given = CASES[name]
    want = outcome(None, attend(mask), *given)
    pretend(monkeypatch, "cudnn")
    found = outcome(place, attend(mask), *given)
    is_in_blocks = name in ("all", "causal", "cross") and place is not None and "length" in place[1]
    assert StandIn.calls or is_in_blocks  # blocks of a slice of queries have a kernel of their own
    assert_near(found, want, 2e-5)


@pytest.mark.parametrize("name", ["causal", *(pytest.param(x, marks=pytest.mark.slow) for x in CASES if x != "causal")])
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_in_short_floats_a_fused_kernel_is_as_near_as_the_plain_one(name, dtype, monkeypatch):
    mask, *given = CASES[name]
    exact = outcome(None, attend(mask), *given)
    short = [wf.cast(x, dtype) for x in given[:3]]
    pretend(monkeypatch, "cudnn")
    found = outcome(None, attend(mask), *short, *given[3:])
    assert_near(found, exact, 2**-5 if dtype == "bfloat16" else 2**-7)  # a few roundings to 8 or 11 bits


def test_padding_of_packed_rows_sees_the_padding_before_it_on_every_path(monkeypatch):
    segments = wf.tensor(np.array([[1] * 20 + [0] * 12, [1] * 10 + [2] * 22], "int32"), [B, T])
    positions = wf.tensor(np.array([[*range(20)] + [0] * 12, [*range(10), *range(22)]], "int32"), [B, T])
    want = outcome(None, attend(in_order), *SELF, None, positions, segments)
    for kernel in ("cudnn", "flash"):
        pretend(monkeypatch, kernel)
        assert_near(outcome(None, attend(in_order), *SELF, None, positions, segments), want, 2e-5)


FLASH: dict[str, Any] = {
    "dropout": (attend(lambda: nn.Mask(causal=True), dropout=0.3), *SELF, None),
    "dropout, packed": (attend(in_order, dropout=0.3), *SELF, None, PACKED, DOCUMENTS),
    "softcap": (attend(lambda: nn.Mask(causal=True), softcap=2.0), *SELF, None),
    "softcap, prefix": (attend(lambda n: nn.Mask(causal=True, prefix=n), softcap=2.0), *SELF, None, PREFIX),
    "softcap, window": (attend(lambda: nn.Mask(causal=True, window=5), softcap=2.0), *SELF, None),
    "softcap, positions": (
        attend(lambda p: nn.Mask.within(causal=True, positions=p), softcap=2.0), *SELF, None, POSITIONS,
    ),
    "dropout, bias": (attend(nn.Mask, dropout=0.3), *SELF, BIAS),
    "bias, segments": (attend(lambda s: nn.Mask.within(segments=s)), *SELF, BIAS, SEGMENTS),
    "dropout, cross, segments": (
        attend(lambda a, b: nn.Mask(segments=a, memory_segments=b), dropout=0.3), *CROSS, None, UNMET, MEMORY_SEGMENTS,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=[] if (name, i) == ("dropout", 1) else pytest.mark.slow)
        for name in FLASH
        for i, place in enumerate(PLACES)
    ],
)
def test_the_flash_kernel_gives_what_plain_attention_does_and_drops_the_same(name, place, monkeypatch):
    program, *given = FLASH[name]
    want = outcome(None, program, *given)
    pretend(monkeypatch, "flash")
    calls = []
    monkeypatch.setattr(fused, "flash_attention", lambda *x, **how: calls.append(how) or flash_attention(*x, **how))
    found = outcome(place, program, *given)
    is_in_blocks = name in ("as all", "as causal", "as cross") and place is not None and "length" in place[1]
    assert (calls or is_in_blocks) and not StandIn.calls
    assert_near(found, want, 2e-5)


LONG = wf.Dim("length", 128)
SPLASH: dict[str, Any] = {
    "causal": (lambda *_: nn.Mask(causal=True), {}),
    "packed": (lambda p, s: in_order(p, s), {}),
    "window both ways": (lambda *_: nn.Mask(window=20), {}),
    "softcap": (lambda *_: nn.Mask(causal=True), {"softcap": 2.0}),
}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=[] if (name, i) == ("packed", 1) else pytest.mark.slow)
        for name in SPLASH
        for i, place in enumerate(PLACES[:2])
    ],
)
def test_splash_attention_gives_what_plain_attention_does(name, place, monkeypatch):
    mask, how = SPLASH[name]
    random = np.random.default_rng(7)
    dims = [B, LONG, H, G, K], *[[B, LONG.renamed("memory_length"), H, K]] * 2
    given = [wf.tensor(random.normal(size=[dim.size for dim in own]).astype("float32"), own) for own in dims]
    segments = np.sort(random.integers(0, 3, (2, 128))).astype("int32")
    starts = np.diff(segments, axis=1, prepend=-1) > 0
    positions = np.arange(128) - np.maximum.accumulate(np.where(starts, np.arange(128), 0), axis=1)
    said = (wf.tensor(x.astype("int32"), [B, LONG]) for x in (positions, segments))
    program, given = attend(mask, **how), (*given, None, *said)
    want = outcome(None, program, *given)
    monkeypatch.setattr(attention, "chip_of", lambda x: Chip("tpu"))
    calls = []
    monkeypatch.setattr(fused, "splash_attention", lambda *x, **how: calls.append(how) or splash_attention(*x, **how))
    found = outcome(place, program, *given)
    assert calls
    assert_near(found, want, 2e-5)


# ---- which kernel, and why not another

PLAIN = AttentionCase("bfloat16", 256, 256, 64, causal=True)


@pytest.mark.parametrize(
    ("change", "chip", "says"),
    [
        ({}, Chip("gpu"), "fused by cuDNN"),
        ({"width": 256}, Chip("gpu"), "fused by cuDNN"),
        ({"width": 256}, Chip("gpu", (8, 0)), "at most 128 channels before Hopper, and these have 256"),
        ({"width": 264}, Chip("gpu"), "cuDNN takes heads of at most 256 channels, and these have 264"),
        ({"width": 60}, Chip("gpu"), "cuDNN takes heads of a multiple of 8 channels, and these have 60"),
        ({}, Chip("gpu", (7, 5)), "from compute capability 8.0 on, and this is a GPU of compute capability 7.5"),
        ({}, Chip("gpu", (0, 0)), "and this is no CUDA"),
        ({}, Chip("gpu", has_cudnn=False), "fused by Weft's flash kernel (JAX finds no cuDNN here"),
        ({}, Chip("cpu"), "plain, because a CPU has no fused kernel"),
        ({"dtype": "float32"}, Chip("gpu"), "plain, because fused kernels take bfloat16 and float16, and this"),
        ({"softcap": True}, Chip("gpu"), "fused by Weft's flash kernel (cuDNN has no softcap)"),
        ({"dropout": True}, Chip("gpu"), "cuDNN's dropout has bits of its own, which a layout would change"),
        ({"bias": "shared", "length": 255}, Chip("gpu"), "even lengths, and these are 255 and 256"),
        ({"tensors": ("segments",)}, Chip("gpu"), "fused by Weft's flash kernel"),
        ({"tensors": ("segments",), "bias": "shared"}, Chip("gpu"), "one array as large as all scores"),
        ({"bias": "each"}, Chip("gpu"), "one array as large as all scores"),
        ({"bias": "shared"}, Chip("gpu"), "fused by cuDNN"),
        ({"tensors": ("positions",), "is_in_order": True}, Chip("gpu"), "fused by cuDNN"),
        ({"tensors": ("segments",), "width": 264}, Chip("gpu"), "of at most 256 channels; cuDNN takes heads"),
        ({}, Chip("tpu"), "fused by JAX's splash attention"),
        ({"softcap": True, "tensors": ("segments",), "is_within": True}, Chip("tpu"), "fused by JAX's splash"),
        ({"length": 100}, Chip("tpu"), "plain, because splash attention takes multiples of 128 queries"),
        ({"dtype": "float16"}, Chip("tpu"), "splash attention takes bfloat16 and float32, and this is float16"),
        ({"dropout": True}, Chip("tpu"), "splash attention has no dropout"),
        ({"bias": "shared"}, Chip("tpu"), "splash attention has no bias"),
        ({"tensors": ("prefix",)}, Chip("tpu"), "the mask by positions or a prefix"),
        ({"is_offset": True}, Chip("tpu"), "these are a slice"),
        ({"tensors": ("segments",)}, Chip("tpu"), "segments of queries that are the keys"),
        ({"window": 8, "length": 512}, Chip("tpu"), "past the window of every key"),
        ({"is_in_blocks": True}, Chip("tpu"), "does no blocks apart"),
        ({"refusal": "the layer is told so"}, Chip("gpu"), "plain, because the layer is told so"),
    ],
)  # fmt: skip
def test_the_choice_says_which_kernel_and_why_not_another(change, chip, says):
    assert says in str(choose(dataclasses.replace(PLAIN, **change), chip))


@pytest.mark.parametrize(
    ("change", "by_place", "mask"),
    [
        ({}, True, False),
        ({"window": 8}, True, False),
        ({"causal": False, "window": 8}, False, True),
        ({"window": 8, "length": 512}, False, True),  # some queries see no key
        ({"tensors": ("segments",)}, True, True),
        ({"tensors": ("positions",)}, False, True),
        ({"tensors": ("positions",), "is_in_order": True}, True, False),
        ({"tensors": ("prefix",)}, False, True),
        ({"is_offset": True}, False, True),
        ({"is_offset": True, "causal": False}, False, False),
    ],
)
def test_a_kernel_is_told_causal_where_places_say_it_and_a_mask_else(change, by_place, mask):
    case = dataclasses.replace(PLAIN, **change)
    assert case.needs_mask == mask
    assert not case.causal or case.goes_by_place == by_place


def test_a_device_says_what_chip_it_is():
    cpu, gpu = SimpleNamespace(platform="cpu"), SimpleNamespace(platform="gpu", compute_capability="8.6")
    assert read_chip(cpu) == Chip("cpu")
    assert read_chip(gpu) == Chip("gpu", (8, 6), has_cudnn=False)  # there is none on this machine
    assert read_chip(SimpleNamespace(platform="gpu", compute_capability="gfx942")).capability == (0, 0)
