"""The table of control flow inside `wf.vmap`: each kind of loop, branch and recomputation x what its body touches.

A row of the mapped tensor is `z[c]`; `w[q c]` is not mapped. A touch makes a `[c]` of both, a kind wraps a touch, and
both have a form in plain jnp.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import weft as wf

n, c, q, m = wf.dims(n=4, c=4, q=4, m=2)
STEPS = wf.Dim("steps", 2)

# What a body touches: the tensor form and the plain one.
TOUCHES = {
    "its row alone": (lambda z, w: wf.sin(z), lambda z, w: jnp.sin(z)),
    "its row, moved": (lambda z, w: wf.roll(z, over="c", by=1), lambda z, w: jnp.roll(z, 1)),
    "its row's sum": (lambda z, w: z * wf.sum(z, over="c"), lambda z, w: z * z.sum()),
    "one of w": (lambda z, w: z * w["q", 1], lambda z, w: z * w[1]),
    "w moved": (lambda z, w: z * wf.roll(w, over="q", by=1)["q", 0], lambda z, w: z * w[-1]),
    "w in order": (lambda z, w: z * wf.sort(w, over="c")["q", 0], lambda z, w: z * jnp.sort(w)[0]),
    "w summed": (lambda z, w: z * wf.sum(w, over="q c"), lambda z, w: z * w.sum()),
    "w summed in part": (lambda z, w: z + wf.sum(wf.sin(w), over="q"), lambda z, w: z + jnp.sin(w).sum(0)),
    "w twice": (lambda z, w: z * wf.max(w, over="q") + w["q", 0], lambda z, w: z * w.max(0) + w[0]),
    "w meets its row": (
        lambda z, w: wf.einsum(wf.tanh(wf.einsum(z, w, over="c")), w, over="q"),
        lambda z, w: jnp.tanh(w @ z) @ w,
    ),
    "w in a loop": (
        lambda z, w: wf.scan(lambda s, v: (s * v, None), z, w.rename(q="turns"), over="turns")[0],
        lambda z, w: z * w.prod(0),
    ),
    "a softmax of w": (
        lambda z, w: z * wf.softmax(wf.softmax(w, over="c"), over="q")["q", 2],
        lambda z, w: z * jax.nn.softmax(jax.nn.softmax(w, axis=1), axis=0)[2],
    ),
    "a row of w by number": (
        lambda z, w: z * wf.take(w, wf.argmax(wf.sum(w, over="c"), over="q"), over="q"),
        lambda z, w: z * w[jnp.argmax(w.sum(1))],
    ),
    "a constant": (
        lambda z, w: z * wf.cast(wf.arange(c), "float32") + w["q", 3],
        lambda z, w: z * jnp.arange(4.0) + w[3],
    ),
    "a gradient": (
        lambda z, w: wf.grad(lambda z: wf.sum(wf.sin(z) * w, over="q c"))(z),
        lambda z, w: jnp.cos(z) * w.sum(0),
    ),
    "a map of w": (
        lambda z, w: wf.sum(wf.vmap(lambda v: wf.sin(v) * z, over="q")(w), over="q"),
        lambda z, w: jnp.sin(w).sum(0) * z,
    ),
    "what is not defined": (
        lambda z, w: wf.sqrt(wf.sum(z, over="c") * wf.exp(w["q", 1])),
        lambda z, w: jnp.sqrt(z.sum() * jnp.exp(w[1])),
    ),
}  # fmt: skip


def _small(z):
    """Rows come back small from every turn, so that no loop overflows."""
    return wf.tanh(z)


def _branch(touch):
    return lambda z, w: wf.cond(wf.sum(z, over="c") > 0, lambda z: touch(z, w), lambda z: 0.5 * z, z)


def _branch_plain(touch):
    return lambda z, w: lax.cond(z.sum() > 0, lambda z: touch(z, w), lambda z: 0.5 * z, z)


def _other_branch(touch):
    return lambda z, w: wf.cond(wf.sum(z, over="c") <= 0, wf.sin, lambda z: touch(z, w))(z) if False else wf.cond(
        wf.sum(z, over="c") <= 0, lambda z, w: wf.sin(z), touch, z, w
    )


def _custom(touch):
    @wf.custom_vjp
    def own(z, w):
        return touch(z, w)

    def forward(z, w):
        return touch(z, w), (z, w)

    def backward(kept, gradient):
        return wf.grad(lambda z, w: wf.sum(touch(z, w) * gradient, over="c"), argnums=(0, 1))(*kept)

    own.defvjp(forward, backward)
    return own


def _custom_plain(touch):
    return touch


def _turns(z):
    return wf.cast(wf.sum(wf.cast(z > 0, "int32"), over="c"), "int32")


def _loop(touch):
    return lambda z, w: wf.while_loop(
        lambda s: s[0] < _turns(z), lambda s: (s[0] + 1, _small(touch(s[1], w))), (wf.zeros([], dtype="int32"), z)
    )[1]


def _loop_plain(touch):
    def run(z, w):
        stop = (z > 0).sum()
        return lax.fori_loop(0, 4, lambda i, s: jnp.where(i < stop, jnp.tanh(touch(s, w)), s), z)

    return run


KINDS = {
    "cond": (_branch, _branch_plain),
    "cond with operands": (
        lambda touch: lambda z, w: wf.cond(wf.sum(z, over="c") <= 0, lambda z, w: wf.sin(z), touch, z, w),
        lambda touch: lambda z, w: lax.cond(z.sum() <= 0, lambda z, w: jnp.sin(z), touch, z, w),
    ),
    "cond by all": (
        lambda touch: lambda z, w: wf.cond(wf.sum(w, over="q c") > -99, lambda z: touch(z, w), lambda z: z, z),
        lambda touch: touch,
    ),
    "cond in cond": (
        lambda touch: lambda z, w: wf.cond(wf.max(z, over="c") > 0, lambda z: _branch(touch)(z, w), lambda z: 2 * z, z),
        lambda touch: lambda z, w: lax.cond(z.max() > 0, lambda z: _branch_plain(touch)(z, w), lambda z: 2 * z, z),
    ),
    "while_loop": (_loop, _loop_plain),
    "fori_loop to a bound": (
        lambda touch: lambda z, w: wf.fori_loop(0, _turns(z), lambda i, s: _small(touch(s, w)), z),
        _loop_plain,
    ),
    "fori_loop": (
        lambda touch: lambda z, w: wf.fori_loop(0, 2, lambda i, s: _small(touch(s, w)), z),
        lambda touch: lambda z, w: jnp.tanh(touch(jnp.tanh(touch(z, w)), w)),
    ),
    "scan": (
        lambda touch: lambda z, w: wf.sum(
            wf.scan(lambda s, _: (_small(touch(s, w)), touch(s, w)), z, None, over=STEPS)[1], over=STEPS
        ),
        lambda touch: lambda z, w: touch(z, w) + touch(jnp.tanh(touch(z, w)), w),
    ),
    "scan of cond": (
        lambda touch: lambda z, w: wf.fori_loop(0, 2, lambda i, s: _small(_branch(touch)(s, w)), z),
        lambda touch: lambda z, w: jnp.tanh(
            _branch_plain(touch)(jnp.tanh(_branch_plain(touch)(z, w)), w)
        ),
    ),
    "accumulate": (
        lambda touch: lambda z, w: z * wf.accumulate(
            lambda w, rows: (wf.sum(touch(rows["m", 0], w), over="c"), 2.0), w,
            wf.stack([z, wf.cos(z)], m), over="m", count=2,
        ),
        lambda touch: lambda z, w: z * (touch(z, w).sum() + touch(jnp.cos(z), w).sum()) / 4,
    ),
    "accumulate of w": (
        lambda touch: lambda z, w: z * wf.accumulate(
            lambda z, rows: (wf.sum(touch(z, rows.rename(p="q")), over="c"), 1.0), z,
            w.rename(q="p"), over="p", count=1,
        ),
        lambda touch: lambda z, w: z * touch(z, w).sum(),
    ),
    "remat": (lambda touch: lambda z, w: wf.remat(touch)(z, w), lambda touch: touch),
    "remat closed over": (lambda touch: lambda z, w: wf.remat(lambda z: touch(z, w))(z), lambda touch: touch),
    "jax.checkpoint": (lambda touch: lambda z, w: jax.checkpoint(lambda z: touch(z, w))(z), lambda touch: touch),
    "remat of cond": (lambda touch: lambda z, w: wf.remat(_branch(touch))(z, w), _branch_plain),
    "cond of remat": (lambda touch: _branch(lambda z, w: wf.remat(touch)(z, w)), _branch_plain),
    "custom_vjp": (_custom, _custom_plain),
    "cond of custom_vjp": (lambda touch: _branch(_custom(touch)), _branch_plain),
    "nested": (
        lambda touch: lambda z, w: wf.sum(
            wf.vmap(lambda f: _branch(touch)(f * z, w), over="m")(wf.tensor(np.array([1.0, -2.0], "float32"), [m])),
            over="m",
        ),
        lambda touch: lambda z, w: _branch_plain(touch)(z, w) + _branch_plain(touch)(-2 * z, w),
    ),
}
