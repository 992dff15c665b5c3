"""Ops of your own by `wf.local`: any JAX function, run on each processor's slices.

You say which dims come out, which must be whole and which come back as partial sums; Weft checks that against the
layout and sends what is needed. `here` tells your function where its slices lie in the whole.
"""

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf

batch, length, heads, d_kv, vocab = wf.dims(batch=4, length=16, heads=2, d_kv=8, vocab=10)
memory = wf.Dim("memory_length", 16)
MESH = wf.Mesh("rows=4, cols=2")


def histogram(ids):
    """How often each word occurs: every processor counts its own ids, and the counts are added up."""

    def count(ids):  # a plain array: this processor's slice
        return jnp.bincount(ids.ravel(), length=vocab.size)

    return wf.local(count, ids, out=[vocab], whole=[vocab], summed=[batch, length])


def causal_attention(q, k, v):
    """Attention to the past, in one piece: here plain JAX, and just as well a Pallas or cuDNN kernel of yours."""

    def kernel(q, k, v, here):  # q: [batch heads length d_kv], k and v with memory_length in place of length
        scores = jnp.einsum("bhld,bhmd->bhlm", q, k) / q.shape[-1] ** 0.5
        position = here.start(length) + jnp.arange(here.size(length))  # global positions of this slice
        is_past = jnp.arange(k.shape[2]) <= position[:, None]
        return jnp.einsum("bhlm,bhmd->bhld", jax.nn.softmax(jnp.where(is_past, scores, -jnp.inf)), v)

    return wf.local(kernel, q, k, v, out=q.dims, whole=[k.dims[2], d_kv])


def mended_attention(q, k, v):
    """The same where the layout splits the memory: a name that no rule splits is whole, by one gather each."""
    return causal_attention(q, *(t.rename(memory_length="memory_length_whole") for t in (k, v)))


def compare(fn, *args, layout):
    """Runs `fn` with no mesh and under the layout; prints the difference, and what was sent."""
    found = wf.get(wf.spmd(fn, mesh=MESH, layout=layout)(*args))
    difference = np.abs(found - wf.get(fn(*args))).max()
    rows = wf.trace(fn, *args, mesh=MESH, layout=layout).ledger
    sent = ", ".join(f"{row.collective} over {'+'.join(row.axes)}" for row in rows) or "nothing"
    print(f"  {layout}: differs from one processor by {difference:.0e}, sends {sent}")


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    ids = wf.tensor(jax.random.randint(keys[0], (4, 16), 0, vocab.size), [batch, length])
    q, k, v = (wf.random.normal(key, [batch, heads, length, d_kv]) for key in keys[1:])
    k, v = k.rename(length=memory), v.rename(length=memory)

    print("histogram: `summed` says that the counts of the slices are to be added up")
    compare(histogram, ids, layout="batch:rows, length:cols")
    print("causal_attention: `here` gives the global position of the slice, for the mask")
    compare(causal_attention, q, k, v, layout="length:rows, heads:cols")

    print("causal_attention with its memory split, which it said must be whole, is an error that names the mend:")
    try:
        wf.spmd(causal_attention, mesh=MESH, layout="heads:cols, memory_length:rows")(q, k, v)
    except wf.LayoutError as error:
        print("  " + str(error).replace("\n", "\n  "))
    print("mended_attention: renamed, as the error says")
    compare(mended_attention, q, k, v, layout="heads:cols, memory_length:rows")


if __name__ == "__main__":
    main()
