"""Loops, branches, microbatches and recomputation inside a mapped function: values and gradients on every layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from tests.ops.table_in_vmap import KINDS, LOOPS, TOUCHES, c, m, n, q

MESH = "x=2,y=2"
LAYOUTS = ["n:y,c:x", "n:x+y", "n:x,q:x", "n:x,params.c:x", "n:x,c:y,params.q:x", "c:x"]
ROOT = "a root of its sum"
# Outside a branch that guards it, a root that is not there makes the whole loss NaN, and gradients differ in where.
GUARDING = tuple(kind for kind in KINDS if "cond" in kind and kind != "cond by all")

_random = np.random.default_rng(3)
_ROWS = _random.normal(size=(4, 4)).astype("float32")
_ROWS[0], _ROWS[1] = abs(_ROWS[0]), -abs(_ROWS[1])  # both branches are taken, and loops turn up to four times
Z = wf.tensor(_ROWS, [n, c])
W = wf.parameter(_random.normal(size=(4, 4)).astype("float32"), [q, c])


def touches_of(kind):
    return [touch for touch in TOUCHES if touch != ROOT or kind in GUARDING]


def mapped(kind, touch):
    """The mapped function, its values alone or with the gradients by the rows and by `w`."""
    row = KINDS[kind][0](TOUCHES[touch][0])

    def loss(z, w):
        found = wf.vmap(lambda z: row(z, w), over="n")(z)
        return wf.sum(wf.sin(found), over="n c"), found

    if kind in LOOPS:
        return lambda z, w: [loss(z, w)[1]]
    with_slopes = wf.value_and_grad(loss, argnums=(0, 1), has_aux=True)

    def values(z, w):
        (_, found), slopes = with_slopes(z, w)
        return [found, *slopes]

    return values


def plainly(kind, touch):
    row = KINDS[kind][1](TOUCHES[touch][1])

    def loss(z, w):
        found = jax.vmap(lambda z: row(z, w))(z)
        return jnp.sum(jnp.sin(found)), found

    if kind in LOOPS:
        return [loss(Z.array, W.array)[1]]
    (_, found), slopes = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(Z.array, W.array)
    return [found, *slopes]


def check_rows(rows, layouts):
    """All these programs, compiled as one, under each layout."""

    def all_of_them(z, w):
        return [mapped(*row)(z, w) for row in rows]

    for layout in layouts:
        run = all_of_them if layout is None else wf.spmd(all_of_them, mesh=MESH, layout=layout)
        for row, found in zip(rows, run(Z, W), strict=True):
            for what, x, expected in zip(("value", "by z", "by w"), found, plainly(*row), strict=False):
                order = "q c" if what == "by w" else "n c"
                array = np.transpose(x.array, [x.dims.names.index(name) for name in order.split()])
                np.testing.assert_allclose(
                    array, expected, rtol=1e-4, atol=1e-5, err_msg=f"{row} under {layout}: {what}"
                )


FEW = [
    ("cond", "one of w"),
    ("cond", "w in a loop"),
    ("cond", "a map of w"),
    ("cond", ROOT),
    ("cond in cond", "w moved"),
    ("while_loop", "its row, moved"),
    ("fori_loop to a bound", "w summed"),
    ("accumulate of w", "w meets its row"),
    ("cond in two maps", "w in order"),
    ("cond of custom_vjp", "w summed in part"),
]


@pytest.mark.quick("n:x,params.c:x")
@pytest.mark.parametrize("layout", ["n:y,c:x", "n:x,params.c:x"])
def test_control_flow_in_a_map_does_not_depend_on_the_layout(layout):
    check_rows(FEW, [layout])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [None, *LAYOUTS])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_control_flow_in_a_map_does_not_depend_on_the_layout(kind, layout):
    check_rows([(kind, touch) for touch in touches_of(kind)], [layout])


def test_a_gradient_through_a_branch_by_row_is_summed_once():
    dims = wf.dims(n=4, c=2, q=2)
    rows = wf.tensor(np.repeat(np.array([[1], [-1], [2], [-2]], "float32"), 2, 1), dims[:2])

    def loss(r, w):
        def one(z):
            return wf.cond(wf.sum(z, over="c") > 0, lambda z: z * w["q", 1], lambda z: z, z)

        return wf.sum(wf.vmap(one, over="n")(r), over="n c")

    slope = wf.grad(loss, argnums=1)
    w = wf.parameter(np.ones((2, 2), "float32"), dims[2:0:-1])
    for layout in ("n:x", "n:x,params.c:x", "n:x,params.q:x"):
        np.testing.assert_array_equal(wf.spmd(slope, mesh="x=2", layout=layout)(rows, w).array, [[0, 0], [3, 3]])
    np.testing.assert_array_equal(wf.spmd(slope, mesh="x=4", layout="n:x")(rows, w).array, [[0, 0], [3, 3]])


def until_large(x):
    def one(z):
        return wf.while_loop(lambda s: wf.sum(s, over="c") < 60, lambda s: 2 * wf.roll(s, over="c", by=1) + 1, z)

    return wf.vmap(one, over="n")(x)


def as_often_as_it_says(x):
    def one(z):
        turns = wf.cast(z["c", 0], "int32")
        return wf.fori_loop(0, turns, lambda i, s: wf.shift(s, over="c", by=1) + i * wf.sum(z, over="c"), z)

    return wf.vmap(one, over="n")(x)


def counting(x):
    """A plain number in the carry, a loop in the loop, and a weight that is gathered for it."""

    def one(z):
        def inner(s):
            return wf.while_loop(lambda t: wf.sum(t * t, over="c") < 20, lambda t: 1.5 * wf.roll(t, over="c", by=1), s)

        def turn(s):
            return s[0] + 1, inner(s[1]) * 1.4 + 0.1 * s[0]

        return wf.while_loop(lambda s: wf.sum(s[1] * s[1], over="c") < 100, turn, (0, z + 1))[1]

    return wf.vmap(one, over="n")(x)


@pytest.mark.parametrize("net", [until_large, as_often_as_it_says, counting])
def test_processors_turn_a_loop_together_where_rows_end_it_at_different_turns(net):
    x = wf.tensor(np.arange(16, dtype="float32").reshape(4, 4), [n, c])
    np.testing.assert_allclose(wf.spmd(net, mesh=MESH, layout="n:y,c:x")(x).array, net(x).array, rtol=1e-6)


def test_a_loop_in_which_nothing_is_sent_waits_for_nobody():
    def one(z):
        start = (wf.zeros([], dtype="int32"), z)
        return wf.while_loop(lambda s: wf.sum(s[1], over="c") < 60, lambda s: (s[0] + 1, 2 * s[1] + 1), start)

    def sent(layout):
        return str(wf.trace(wf.vmap(one, over="n"), Z, mesh=MESH, layout=layout))

    assert ">>" not in sent("n:x+y")
    told = "because rows split over y end the loop at different turns, and all turn until the last does"
    assert told in sent("n:y,c:x")


def test_a_plain_number_that_a_loop_made_by_row_is_no_number_of_all():
    def net(x):
        def one(z):
            turns, _ = wf.while_loop(lambda s: wf.sum(s[1], over="c") < 60, lambda s: (s[0] + 1, 2 * s[1] + 1), (0, z))
            return z * turns

        return wf.vmap(one, over="n")(x)

    error = error_of(lambda: wf.spmd(net, mesh=MESH, layout="n:x")(Z), wf.RegionError)
    assert "a plain number that differs between processors (over x)" in error.fact


def test_a_map_of_a_constant_may_close_over_what_is_split():
    factors = wf.tensor(np.array([1, -2], "float32"), [m])

    def loss(z, w):
        def one(f):
            return wf.cond(f > 0, lambda: f * z * w["q", 1], lambda: wf.sum(w, over="q") * z - f)

        found = wf.vmap(one, over="m")(factors)
        return wf.sum(wf.sin(found), over=found.dims)

    both = wf.value_and_grad(loss, argnums=(0, 1))
    expected = jax.tree.leaves(both(Z, W))
    for layout in ("n:x,c:y", "m:x,params.c:y"):
        found = jax.tree.leaves(wf.spmd(both, mesh=MESH, layout=layout)(Z, W))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_rows_see_only_the_branch_and_the_turns_that_are_theirs(capfd):
    def shown(z):
        wf.check(wf.sum(z, over="c") > 0, "not positive", z=z)
        wf.print("row {:.0f}", wf.sum(z, over="c"))
        return 3 * z

    def one(z):
        z = wf.cond(wf.sum(z, over="c") > 0, shown, lambda z: z, z)

        def turn(s):
            wf.check(wf.max(s, over="c") < 20, "large", s=s)
            wf.print("turn of {:.0f}", wf.max(z, over="c"))
            return 2 * s

        return wf.while_loop(lambda s: wf.max(s, over="c") < 20, turn, wf.abs(z))

    rows = wf.tensor(np.repeat(np.array([[1], [-1], [2], [-20]], "float32"), 4, 1), [n, c])
    lines = ["row 4", "row 8", *["turn of -1"] * 5, *["turn of 3"] * 3, *["turn of 6"] * 2]
    for layout in (None, "n:y,c:x"):
        net = wf.vmap(one, over="n")
        found = net(rows) if layout is None else wf.spmd(net, mesh=MESH, layout=layout)(rows)
        np.testing.assert_array_equal(found.array[:, 0], [24, 32, 24, 20])
        jax.effects_barrier()
        assert sorted(capfd.readouterr().out.splitlines()) == sorted(lines)


# ---- padded dims: the rows of padding are nobody's


def logs(z, w):
    return wf.log(z) * w


def in_a_branch(z, w):
    return wf.cond(wf.sum(z, over="c") < 99, lambda z: logs(z, w), lambda z: z, z)


def in_a_loop(z, w):
    return wf.fori_loop(0, 2, lambda i, s: wf.log(s * s) * w, z)


@pytest.mark.quick("in_a_branch", "in_a_loop")
@pytest.mark.parametrize("row", [logs, in_a_branch, in_a_loop])
def test_rows_of_padding_give_a_map_no_gradient(row):
    whole = wf.tensor(abs(_ROWS[[0, 1, 2, 3, 0]]) + 0.1, "n c")
    padded, w = wf.pad_to(whole, "n", 8), W["q", 0]

    def loss(z, w):
        return wf.sum(wf.vmap(lambda z: row(z, w), over="n")(z), over="n c")

    slopes = wf.grad(loss, argnums=(0, 1))
    by_rows, by_w = slopes(whole, w)
    for layout in (None, "n:x+y"):  # the last of four processors has padding alone
        found = slopes(padded, w) if layout is None else wf.spmd(slopes, mesh=MESH, layout=layout)(padded, w)
        np.testing.assert_allclose(found[0].array, np.pad(by_rows.array, [(0, 3), (0, 0)]), rtol=1e-5)
        np.testing.assert_allclose(found[1].array, by_w.array, rtol=1e-5)


def test_rows_of_padding_keep_no_loop_going_and_fail_no_check():
    whole = wf.tensor(abs(_ROWS[:3]), "n c")
    padded = wf.pad_to(whole, "n", 4)

    def net(x):
        def one(z):
            wf.check(z > 0, "not positive", z=z)
            return wf.while_loop(lambda s: wf.sum(s, over="c") < 60, lambda s: s * 2, z)

        return wf.unpad(wf.vmap(one, over="n")(x).rename(n="n_whole"), "n_whole")

    expected = net(whole).array
    np.testing.assert_array_equal(net(padded).array, expected)
    np.testing.assert_array_equal(wf.spmd(net, mesh=MESH, layout="n:x,c:y")(padded).array, expected)


def test_padding_has_no_gradient_of_ones_own():
    @wf.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, x), lambda x, gradient: (gradient * 3 + wf.exp(x),))
    x = wf.pad_to(wf.tensor(_ROWS[:3], "n c"), "n", 4)
    slope = wf.grad(lambda x: wf.sum(double(x), over="n c"))
    expected = np.pad(3 + np.exp(_ROWS[:3]), [(0, 1), (0, 0)])
    for layout in (None, "n:x,c:y"):
        found = slope(x) if layout is None else wf.spmd(slope, mesh=MESH, layout=layout)(x)
        np.testing.assert_allclose(found.array, expected, rtol=1e-6)


# ---- microbatches and names


def test_microbatches_of_dims_that_no_tensor_has_together():
    i, o, h = wf.dims(i=4, o=4, h=4)
    x, y = (wf.tensor(_random.normal(size=(4, 4)).astype("float32"), [n, dim]) for dim in (i, o))
    weights = [wf.parameter(_random.normal(size=(4, 4)).astype("float32"), dims) for dims in ([i, h], [h, o])]

    def loss(weights, x, y):
        def part(weights, data):
            error = wf.einsum(wf.einsum(data[0], weights[0], over="i"), weights[1], over="h") - data[1]
            return wf.sum(error * error, over="n o"), 1.0

        return wf.accumulate(part, weights, (x, y), over="n", count=2)

    both = wf.value_and_grad(loss)
    found = jax.tree.leaves(wf.spmd(both, mesh=MESH, layout="i:x,o:x,params.h:y")(weights, x, y))
    for one, other in zip(found, jax.tree.leaves(both(weights, x, y)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_dim_may_be_called_microbatch():
    x = Z.rename(c="microbatch")

    def net(x):
        return wf.accumulate(lambda _, rows: (wf.sum(rows, over="n microbatch"), 1.0), None, x, over="n", count=2)

    np.testing.assert_allclose(net(x).array, _ROWS.sum() / 2, rtol=1e-5)
    np.testing.assert_allclose(wf.spmd(net, mesh=MESH, layout="n:x,microbatch:y")(x).array, _ROWS.sum() / 2, rtol=1e-5)


def test_a_dim_may_be_called_step_where_a_loop_counts():
    x = Z.rename(c="step")

    def net(x):
        def one(z):
            on_true = lambda z: wf.fori_loop(0, 2, lambda i, z: 2 * z + i, z)  # noqa: E731
            return wf.cond(wf.sum(z, over="step") > 0, on_true, wf.sin, z)

        return wf.vmap(one, over="n")(x)

    np.testing.assert_allclose(wf.spmd(net, mesh=MESH, layout="n:x,step:y")(x).array, net(x).array, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: wf.cast(wf.arange(t), "float32"),
        lambda t: wf.random.normal(jax.random.key(0), [t]),
        lambda t: wf.tensor(np.ones(4, "float32"), [t]),
    ],
)
def test_a_rule_may_name_a_dim_that_only_constants_have(make):
    def net(x):
        return x * wf.sum(make(wf.Dim("t", 4)), over="t")

    np.testing.assert_allclose(wf.spmd(net, mesh=MESH, layout="n:x,t:y")(Z).array, net(Z).array)


@pytest.mark.parametrize("layout", ["", "rows:x"])
def test_microbatches_of_short_floats_are_added_up_in_f32(layout):
    rows = wf.tensor(np.array([256, 1, 1, 1, 0, 0, 0, 0], jnp.bfloat16), [wf.Dim("rows", 8)])

    def mean(x):
        part = lambda _, x: (wf.sum(x, over="rows"), wf.full([], 2.0, dtype="bfloat16"))  # noqa: E731
        return wf.accumulate(part, (), x, over="rows", count=4)

    found = wf.spmd(mean, mesh="x=2", layout=layout)(rows)
    assert float(found.array) == 259 / 8  # in bf16 256 + 1 is 256
