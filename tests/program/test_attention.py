"""Attention in a program traced with no devices: which kernel would do it, and what that stores and takes."""

from typing import Any

import jax
import pytest
from jax._src.cudnn import fused_attention_stablehlo as module

import weft as wf
from weft import nn
from weft.compat import AttentionKernel
from weft.kernels import cudnn
from weft.kernels.choice import Chip
from weft.nn import attention, fused
from weft.ops import ring

B, T, H, K, D = wf.dims(batch=4, length=256, heads=4, d_kv=64, d_model=8)
M = T.renamed("memory_length")
KEY = jax.random.key(0)
SCORES = B.size * H.size * T.size * M.size


def shape(*dims: wf.Dim, dtype: str = "bfloat16") -> wf.Tensor:
    return wf.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


def traced(mask: Any, *given: wf.Tensor, bias: Any = None, dtype: str = "bfloat16", width: int = 64, **how: Any) -> Any:
    """The gradients of one attention."""
    d_kv, dropout = wf.Dim("d_kv", width), how.pop("dropout", 0.0)
    layer = nn.init(nn.Attention(D, H, d_kv, **how), KEY)

    def loss(q: wf.Tensor, k: wf.Tensor, v: wf.Tensor, bias: Any, *given: wf.Tensor) -> wf.Tensor:
        y = layer.attend(q, k, v, mask=mask(*given), bias=bias, dropout=dropout, key=KEY)
        return wf.sum(wf.cast(y, "float32"), over=y.dims)

    over = (0, 1, 2) if bias is None else (0, 1, 2, 3)
    args = shape(B, T, H, d_kv, dtype=dtype), *[shape(B, M, H, d_kv, dtype=dtype)] * 2, bias, *given
    return wf.trace(lambda *x: wf.grad(loss, argnums=over)(*x), *args, mesh="x=2", layout="batch:x")


def causal(**how: Any) -> nn.Mask:
    return nn.Mask.within(causal=True, **how)


IDS, ROWS = shape(B, T, dtype="int32"), shape(B, dtype="int32")
CASES: dict[str, Any] = {
    "causal": (lambda: traced(causal), "fused by cuDNN"),
    "wide": (lambda: traced(causal, width=256), "fused by cuDNN"),
    "window": (lambda: traced(lambda: causal(window=64)), "fused by cuDNN"),
    "packed": (
        lambda: traced(lambda s, p: causal(segments=s, positions=p, is_in_order=True), IDS, IDS),
        "Weft's flash",
    ),
    "prefix": (lambda: traced(lambda n: causal(prefix=n), ROWS), "fused by Weft's flash kernel"),
    "bias": (lambda: traced(causal, bias=shape(H, T, M, dtype="float32")), "fused by cuDNN"),
    "dropout": (lambda: traced(causal, dropout=0.1), "fused by Weft's flash kernel (cuDNN's dropout has bits"),
    "softcap": (lambda: traced(causal, softcap=30.0), "fused by Weft's flash kernel (cuDNN has no softcap)"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_stores_no_scores_whatever_attention_has(name):
    made, says = CASES[name]
    program = made()
    assert says in "".join(program.explain_attention()) and says in str(program)
    plan, written = wf.Plan(program, "h100"), wf.Plan(program, "h100", fused=False)
    assert says in str(plan) and says in "".join(plan.to_dict()["attention"])
    own = SCORES // 2  # the batch is split
    if name != "wide":  # where keys are as few as a head has channels, scores are as small as queries
        beside = [each for each in plan.memory.alive if each.array_type.names != ("heads", "length", "memory_length")]
        assert not any(each.bytes >= own for each in beside)  # not even in one byte each
        assert written.memory.peak - plan.memory.peak > 3 * own
    assert plan.kinds["attention"] > 0 and "attention" not in written.kinds
    assert plan.seconds < written.seconds


def test_a_bias_and_its_gradient_are_held_beside_a_fused_kernel():
    plain, biased = (wf.Plan(CASES[name][0](), "h100").memory.peak for name in ("causal", "bias"))
    assert biased - plain >= 2 * 4 * H.size * T.size * M.size


def test_an_older_gpu_takes_narrower_heads():
    program = CASES["wide"][0]()
    (line,) = program.explain_attention(Chip("gpu", (8, 0)))
    assert line.startswith("attention 256 x 256, heads of 256: ") and "at most 128 channels before Hopper" in line
    assert "at most 128" in str(wf.Plan(program, "a100")) and "fused by cuDNN" in str(wf.Plan(program, "b200"))


def test_what_is_not_fused_says_why():
    assert "this is float32" in traced(causal, dtype="float32").explain_attention()[0]
    assert "the layer is told so" in traced(causal, fused=False).explain_attention()[0]
    assert "its heads talk" in traced(causal, talking=True).explain_attention()[0]
    assert "a CPU has no fused kernel" in traced(causal).explain_attention("cpu")[0]


def test_traced_for_a_gpu_the_kernels_say_their_work(monkeypatch):
    for room in (attention, fused, ring):
        monkeypatch.setattr(room, "chip_of", lambda x: Chip("gpu"))
    monkeypatch.setattr(cudnn, "attention_kernel", lambda scale, **how: AttentionKernel(module, scale, **how))
    one = 2 * SCORES // 2 * K.size  # a product of one processor
    for name, kernel in (("causal", "cuDNN"), ("bias", "cuDNN"), ("dropout", "Weft's flash kernel")):
        program = CASES[name][0]()
        assert f"fused by {kernel}" in str(program)
        assert program.flops == 7 * one
        plan = wf.Plan(program, "h100")
        assert plan.kinds["attention"] > 0


@pytest.mark.parametrize(
    ("sizes", "how", "milliseconds"),
    [
        ((16, 1024, 16, 64), {}, 0.556),
        ((128, 256, 4, 256), {}, 0.595),
        ((128, 256, 16, 256), {}, 2.14),
        ((16, 1024, 16, 64), {"dropout": 0.1}, 0.729),
        ((128, 256, 4, 256), {"dropout": 0.1}, 0.796),
    ],
)
def test_kernels_take_about_what_was_measured_on_an_h200(sizes, how, milliseconds):
    """By benchmarks/attention_kernels.py, JAX 0.11.2; the second and the fourth are what constants were fitted to."""
    batch, length, heads, width = sizes
    dims = wf.dims(batch=batch, length=length, heads=heads, d_kv=width, d_model=8)
    layer = nn.init(nn.Attention(dims[4], *dims[2:4]), KEY)

    def loss(q: wf.Tensor, k: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
        y = layer.attend(q, k, v, mask=causal(), key=KEY, **how)
        return wf.sum(wf.cast(y, "float32"), over=y.dims)

    keys = dims[0], dims[1].renamed("memory_length"), *dims[2:4]
    args = shape(*dims[:4]), shape(*keys), shape(*keys)
    plan = wf.Plan(wf.trace(wf.grad(loss, argnums=(0, 1, 2)), *args, mesh="x=1", layout=""), "h200")
    assert plan.kinds["attention"] * 1e3 == pytest.approx(milliseconds, rel=0.15)
