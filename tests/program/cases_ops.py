"""Programs of the rest of the language whose ledger is compared with the compiled code, on 8 processors.

Windows over split dims, a step of decoding, experts, prefixes, and what moves and orders along a split dim.
"""

from typing import Any

import jax

import weft as wf

Shaped = tuple[Any, tuple[Any, ...], str, str]
"""A function, the shapes it is called with, a mesh and a layout."""

B, T, M, D, V = wf.dims(batch=8, length=16, memory_length=24, d_model=12, vocab=56)
IMAGES, H, W, C, MID = wf.dims(batch=2, height=8, width=16, channels=4, channels_out=6)
KH, KW, UH, UW = wf.dims(kh=3, kw=3, uh=2, uw=2)
K, E, F, R, CAP = wf.dims(top=3, experts=8, d_ff=10, router=8, capacity=5)
EB = wf.Dim("expert_batch", B.size, follows="batch")
WINDOW = {"height": "kh", "width": "kw"}


def shape(*dims: wf.Dim, dtype: str = "float32") -> wf.Tensor:
    return wf.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


def weight(*dims: wf.Dim, dtype: str = "float32") -> wf.Tensor:
    return wf.parameter(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


def u_net(p: Any, x: Any) -> Any:
    """Down by a stride of 2, normalised, up again beside what was there, and a last convolution."""
    into, out = ("channels", "channels_out"), ("channels_out", "channels")
    y = wf.relu(wf.conv(x, p["first"], over=WINDOW, channels=into).rename(channels_out="channels"))
    low = wf.conv(y, p["down"], over=WINDOW, channels=into, stride=2)
    low = low - wf.mean(low, over="height width channels_out")
    low = low * wf.rsqrt(wf.var(low, over="height width channels_out") + 1e-5)
    up = wf.conv_transpose(low, p["up"], over={"height": "uh", "width": "uw"}, channels=out, stride=2)
    y = wf.concat([y, up], over="channels")
    y = wf.conv(y, p["last"], over=WINDOW, channels=("channels", "made"), dilation=2)
    return wf.mean(wf.square(y), over="batch height width made")


def u_net_params(dtype: str) -> dict[str, Any]:
    many, made = wf.Dim("channels", 2 * MID.size), wf.Dim("made", 3)
    wide = C.resized(MID.size)
    return {
        "first": weight(KH, KW, C, MID, dtype=dtype),
        "down": weight(KH, KW, wide, MID, dtype=dtype),
        "up": weight(UH, UW, MID, wide, dtype=dtype),
        "last": weight(KH, KW, many, made, dtype=dtype),
    }


def pooled(x: Any) -> Any:
    y = wf.max_pool(x, window={"height": 3, "width": 3}, stride=2, padding="SAME")
    y = wf.upsample(y, by={"height": 2, "width": 2}, method="linear") + wf.upsample(y, by={"height": 2, "width": 2})
    y = wf.avg_pool(y * x, window={"height": 3, "width": 3}, stride=1, padding="SAME")
    return wf.mean(wf.square(y), over="batch height width channels")


def decoded(p: Any, cache: Any, q: Any, at: Any, key: Any) -> Any:
    """One step: the new key into the cache, attention over it, and words chosen in three ways."""
    cache = wf.update(cache, q, over=M, at=at)
    share = wf.softmax(wf.where(wf.arange(M, like=cache) <= at, wf.einsum(q, cache, over=D), -1e9), over=M)
    logits = wf.einsum(wf.einsum(share, cache, over=M), p, over=D)
    _, words = wf.top_k(logits, over=V, k=K)
    return cache, words, wf.argmax(logits, over=V), wf.random.categorical(key, logits, over=V)


def routed(p: Any, x: Any) -> Any:
    """Each word to its best expert, up to a capacity."""
    gate = wf.softmax(wf.einsum(x, p["gate"], over=D), over=R)
    hot = wf.one_hot(wf.argmax(gate, over=R), R, dtype="int32")
    place = wf.cumsum(hot, over=T) - 1
    send = wf.cast(hot, x.dtype) * wf.one_hot(wf.sum(place * hot, over=R), CAP, dtype=x.dtype)
    z = wf.einsum(send, x, out=[B, R, CAP, D]).rename(batch=EB, router=E)
    h = wf.einsum(wf.relu(wf.einsum(z, p["w_1"], over=D)), p["w_2"], over=F)
    y = wf.einsum(send * wf.max(gate, over=R), h.rename(expert_batch=B, experts=R), out=[B, T, D])
    return wf.mean(wf.square(y), over=[B, T, D])


def recurrent(decay: Any, x: Any) -> Any:
    def join(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    _, y = wf.associative_scan(join, (wf.sigmoid(decay), x), over=T)
    return wf.mean(wf.square(y), over=[B, T, D])


def moved(x: Any, at: Any) -> Any:
    y = wf.shift(x, over=T, by=1) * wf.roll(x, over=T, by=-3) + wf.flip(x, over=T)
    y = wf.concat([y, wf.pad(x, over=T, before=8, after=8)], over=T)
    y = wf.slice(y, over="length", start=at, size=T.size) * y["length", 8:24]
    return wf.mean(wf.square(y), over=[B, T, D])


def ordered(x: Any, ids: Any) -> Any:
    y = wf.sort(x, over=T) + wf.cumsum(x, over=T) + wf.cummax(x, over=T, reverse=True)
    found = wf.gather(y, ids, over=T)
    return wf.mean(wf.square(wf.scatter_add(x, ids, wf.sin(found), over=T)), over=[B, T, D])


def regrouped(x: Any) -> Any:
    two, rest = wf.Dim("two", 2), wf.Dim("rest", 8)
    y = wf.split(wf.sin(x), length=[two, rest])
    y = wf.merge(wf.tanh(y), [D, two], into=wf.Dim("both", 24))
    a, b = wf.unstack(wf.stack([y, y * y], wf.Dim("pair", 2)), over="pair")
    return wf.mean(wf.sin(a * b), over=y.dims)


def whole_language(dtype: str) -> dict[str, Shaped]:
    image = shape(IMAGES, H, W, C, dtype=dtype)
    wide = image.dims.resized({"channels": 8})
    seq, number, key = shape(B, T, D, dtype=dtype), shape(dtype="int32"), jax.eval_shape(lambda: jax.random.key(0))
    experts = {
        "gate": weight(D, R, dtype=dtype),
        "w_1": weight(E, D, F, dtype=dtype),
        "w_2": weight(E, F, D, dtype=dtype),
    }
    step = weight(D, V, dtype=dtype), shape(B, M, D, dtype=dtype), shape(B, D, dtype=dtype), number, key
    net = wf.value_and_grad(u_net, argnums=(0, 1)), (u_net_params(dtype), image)
    few = seq, shape(B, T.resized(8), D, dtype="int32")
    prefixes = wf.value_and_grad(recurrent, argnums=(0, 1)), (seq, seq)
    split = "rows=2,cols=4"
    return {
        "u-net, height and width split": (*net, split, "height:rows,width:cols"),
        "u-net, width over two axes": (*net, split, "width:rows+cols"),
        "u-net, channels split": (*net, "x=2,y=2,z=2", "height:x,width:y,channels:z"),
        "pools": (wf.value_and_grad(pooled), (shape(*wide, dtype=dtype),), split, "height:rows,width:cols"),
        "a step of decoding": (decoded, step, split, "memory_length:rows,vocab:cols"),
        "a step of decoding, vocab over two axes": (decoded, step, split, "vocab:rows+cols"),
        "experts": (wf.value_and_grad(routed), (experts, seq), "all=8", "batch:all,experts:all"),
        "experts, length split": (wf.value_and_grad(routed), (experts, seq), split, "batch:rows,length:cols"),
        "prefixes": (*prefixes, split, "length:cols,batch:rows"),
        "prefixes, over two axes": (*prefixes, split, "length:rows+cols"),
        "moved": (wf.value_and_grad(moved), (seq, number), split, "length:cols,batch:rows"),
        "ordered": (wf.value_and_grad(ordered), few, split, "length:cols,batch:rows"),
        "regrouped": (wf.value_and_grad(regrouped), (seq,), split, "length:rows,both:cols"),
    }
