"""Ops of your own by `wf.local`: any JAX function, a Pallas kernel too, run on each processor's slices.

You say which dims come out, which must be whole and which come back as partial sums (`summed`); Weft checks that
against the layout and sends what is needed. `here` tells your function where its slices lie in the whole.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import weft as wf

batch, length, heads, d_kv = wf.dims(batch=4, length=64, heads=2, d_kv=16)
MESH = wf.Mesh("rows=4, cols=2")


def attend(start, q, k, v):
    """Attention of one head's queries, the first at position `start`, to the past: arrays of [length d_kv]."""
    scores = jnp.dot(q, k.T, precision="highest") / q.shape[-1] ** 0.5
    position = start + jax.lax.broadcasted_iota("int32", scores.shape, 0)
    scores = jnp.where(jax.lax.broadcasted_iota("int32", scores.shape, 1) <= position, scores, -1e30)
    weights = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    return jnp.dot(weights, v, precision="highest") / jnp.sum(weights, axis=1, keepdims=True)


@jax.custom_vjp
def kernel(start, q, k, v):
    """`attend` for all of [batch heads length d_kv] as a Pallas kernel; the scores never leave the chip."""

    def body(start, q, k, v, out):
        out[0, 0] = attend(start[0], q[0, 0], k[0, 0], v[0, 0])

    head, keys = (pl.BlockSpec((1, 1, *x.shape[2:]), lambda i, j: (i, j, 0, 0)) for x in (q, k))
    specs = dict(in_specs=[pl.BlockSpec((1,), lambda i, j: (0,)), head, keys, keys], out_specs=head)
    out, on_cpu = jax.ShapeDtypeStruct(q.shape, q.dtype), jax.default_backend() == "cpu"
    return pl.pallas_call(body, out, grid=q.shape[:2], **specs, interpret=on_cpu)(start, q, k, v)


def kernel_backward(kept, gradient):  # by plain JAX; it might be a kernel just as well
    each = jax.vmap(jax.vmap(lambda *arrays: attend(kept[0][0], *arrays)))
    return None, *jax.vjp(each, *kept[1:])[1](gradient)


kernel.defvjp(lambda *args: (kernel(*args), args), kernel_backward)


def causal_attention(q, k, v):
    def on_slices(q, k, v, here):  # plain arrays; `here` gives the global position of the slice, for the mask
        return kernel(jnp.full(1, here.start(length)), q, k, v)

    return wf.local(on_slices, q, k, v, out=q.dims, whole=[k.dims[2], d_kv])


def compare(what, fn, *args, layout):
    found = wf.get(wf.spmd(fn, mesh=MESH, layout=layout)(*args))
    difference = np.abs(found - wf.get(fn(*args))).max()
    rows = wf.trace(fn, *args, mesh=MESH, layout=layout).ledger
    sent = ", ".join(f"{row.collective} over {'+'.join(row.axes)}" for row in rows) or "nothing"
    print(f"{what}\n  {layout}: differs from one processor by {difference:.0e}, sends {sent}")


def main():
    q, k, v = (wf.random.normal(jax.random.key(i), [batch, heads, length, d_kv]) for i in range(3))
    k, v = k.rename(length="memory_length"), v.rename(length="memory_length")
    layout, split_memory = "length:rows, heads:cols", "heads:cols, memory_length:rows"
    compare("causal_attention, a Pallas kernel", causal_attention, q, k, v, layout=layout)
    slope = wf.grad(lambda k: wf.mean(wf.square(causal_attention(q, k, v)), over=q.dims))
    compare("its gradient by the keys, which queries of several processors look at", slope, k, layout=layout)
    try:
        wf.spmd(causal_attention, mesh=MESH, layout=split_memory)(q, k, v)
    except wf.LayoutError as error:
        print(f"with its memory split, which it said must be whole\n  {error}")
    mended = lambda q, *kv: causal_attention(q, *(x.rename(memory_length="memory_whole") for x in kv))  # noqa: E731
    compare("renamed as the error says: a name that no rule splits is whole", mended, q, k, v, layout=split_memory)


if __name__ == "__main__":
    main()
