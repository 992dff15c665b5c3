"""Control flow inside `wf.vmap`: each kind of loop, branch and recomputation x what its body touches.

A row of the mapped tensor is `z[c]`; `w[q c]`, a parameter, is not mapped. A touch makes a `[c]` of both, a kind is a
touch under control flow; both stand beside their forms in plain jnp.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import weft as wf

n, c, q, m = wf.dims(n=4, c=4, q=4, m=2)
STEPS = wf.Dim("steps", 2)
FACTORS = wf.tensor(np.array([1.0, -2.0], "float32"), [m])

Row = Callable[[Any, Any], Any]
"""A function of a row and `w` that gives a row."""
Kind = Callable[[Row], Row]

TOUCHES: dict[str, tuple[Row, Row]] = {
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
        lambda z, w: z * jnp.take(w, jnp.argmax(w.sum(1)), axis=0),
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
    "a root of its sum": (  # in some rows there is none
        lambda z, w: wf.sqrt(wf.sum(z, over="c") * wf.exp(w["q", 1])),
        lambda z, w: jnp.sqrt(z.sum() * jnp.exp(w[1])),
    ),
}


def branch(touch: Row) -> Row:
    return lambda z, w: wf.cond(wf.sum(z, over="c") > 0, lambda z: touch(z, w), lambda z: 0.5 * z, z)


def branch_plain(touch: Row) -> Row:
    return lambda z, w: lax.cond(z.sum() > 0, lambda z: touch(z, w), lambda z: 0.5 * z, z)


def in_two_turns(touch: Row) -> Row:
    return lambda z, w: wf.fori_loop(0, 2, lambda i, s: wf.tanh(touch(s, w)), z)


def in_two_turns_plain(touch: Row) -> Row:
    return lambda z, w: jnp.tanh(touch(jnp.tanh(touch(z, w)), w))


def with_its_own_gradient(touch: Row) -> Row:
    @wf.custom_vjp
    def own(z: Any, w: Any) -> Any:
        return touch(z, w)

    def backward(kept: Any, gradient: Any) -> Any:
        return wf.grad(lambda z, w: wf.sum(touch(z, w) * gradient, over="c"), argnums=(0, 1))(*kept)

    own.defvjp(lambda z, w: (touch(z, w), (z, w)), backward)
    return own


def _turns(z: Any) -> Any:
    return wf.sum(wf.cast(z > 0, "int32"), over="c")


def until_done(touch: Row) -> Row:
    def run(z: Any, w: Any) -> Any:
        start = (wf.zeros([], dtype="int32"), z)
        return wf.while_loop(lambda s: s[0] < _turns(z), lambda s: (s[0] + 1, wf.tanh(touch(s[1], w))), start)[1]

    return run


def until_done_plain(touch: Row) -> Row:
    def run(z: Any, w: Any) -> Any:
        stop = (z > 0).sum()
        for i in range(4):
            z = jnp.where(i < stop, jnp.tanh(touch(z, w)), z)
        return z

    return run


def in_microbatches(touch: Row) -> Row:
    def run(z: Any, w: Any) -> Any:
        def part(w: Any, rows: Any) -> Any:
            return wf.sum(touch(rows["m", 0], w), over="c"), 2.0

        return z * wf.accumulate(part, w, wf.stack([z, wf.cos(z)], m), over="m", count=2)

    return run


def in_microbatches_of_w(touch: Row) -> Row:
    def run(z: Any, w: Any) -> Any:
        def part(z: Any, rows: Any) -> Any:
            return wf.sum(touch(z, rows.rename(p="q")), over="c"), 1.0

        return z * wf.accumulate(part, z, w.rename(q="p"), over="p", count=1)

    return run


def same(touch: Row) -> Row:
    return touch


LOOPS = ("while_loop", "fori_loop to a bound")  # they have no reverse gradient
KINDS: dict[str, tuple[Kind, Kind]] = {
    "cond": (branch, branch_plain),
    "cond with operands": (
        lambda touch: lambda z, w: wf.cond(wf.sum(z, over="c") <= 0, lambda z, w: wf.sin(z), touch, z, w),
        lambda touch: lambda z, w: lax.cond(z.sum() <= 0, lambda z, w: jnp.sin(z), touch, z, w),
    ),
    "cond by all": (
        lambda touch: lambda z, w: wf.cond(wf.sum(w, over="q c") > -99, lambda z: touch(z, w), lambda z: z, z),
        same,
    ),
    "cond in cond": (
        lambda touch: lambda z, w: wf.cond(wf.max(z, over="c") > 0, lambda z: branch(touch)(z, w), lambda z: 2 * z, z),
        lambda touch: lambda z, w: lax.cond(z.max() > 0, lambda z: branch_plain(touch)(z, w), lambda z: 2 * z, z),
    ),
    "while_loop": (until_done, until_done_plain),
    "fori_loop to a bound": (
        lambda touch: lambda z, w: wf.fori_loop(0, _turns(z), lambda i, s: wf.tanh(touch(s, w)), z),
        until_done_plain,
    ),
    "fori_loop": (in_two_turns, in_two_turns_plain),
    "scan": (
        lambda touch: (
            lambda z, w: wf.sum(
                wf.scan(lambda s, _: (wf.tanh(touch(s, w)), touch(s, w)), z, None, over=STEPS)[1], over=STEPS
            )
        ),
        lambda touch: lambda z, w: touch(z, w) + touch(jnp.tanh(touch(z, w)), w),
    ),
    "fori_loop of cond": (
        lambda touch: in_two_turns(branch(touch)),
        lambda touch: in_two_turns_plain(branch_plain(touch)),
    ),
    "accumulate": (
        in_microbatches,
        lambda touch: lambda z, w: z * (touch(z, w).sum() + touch(jnp.cos(z), w).sum()) / 4,
    ),
    "accumulate of w": (in_microbatches_of_w, lambda touch: lambda z, w: z * touch(z, w).sum()),
    "remat": (lambda touch: wf.remat(touch), same),
    "remat closed over": (lambda touch: lambda z, w: wf.remat(lambda z: touch(z, w))(z), same),
    "jax.checkpoint": (lambda touch: lambda z, w: jax.checkpoint(lambda z: touch(z, w))(z), same),
    "remat of cond": (lambda touch: wf.remat(branch(touch)), branch_plain),
    "cond of remat": (lambda touch: branch(wf.remat(touch)), branch_plain),
    "custom_vjp": (with_its_own_gradient, same),
    "cond of custom_vjp": (lambda touch: branch(with_its_own_gradient(touch)), branch_plain),
    "cond in two maps": (
        lambda touch: lambda z, w: wf.sum(wf.vmap(lambda f: branch(touch)(f * z, w), over="m")(FACTORS), over="m"),
        lambda touch: lambda z, w: branch_plain(touch)(z, w) + branch_plain(touch)(-2 * z, w),
    ),
}
