"""Parameters that are only rearranged stay parameters, and stay stored as the layout says."""

import functools
import random
from collections import Counter

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import weft as wf
from weft import models, nn

L, D, F, B = wf.dims(layers=4, d_model=8, d_ff=16, batch=8)
MESH = wf.Mesh("x=4,y=2")
FSDP = "batch:x,params.d_model:x"
HALF = wf.Dim("half", 2)


def numbers(*dims, seed=0):
    return wf.tensor(np.random.default_rng(seed).normal(size=[d.size for d in dims]).astype("float32"), dims)


W = wf.parameter(numbers(L, D, F))
X = numbers(B, D, seed=1)

# An op of W, and how its result lies under FSDP.
REARRANGED = {
    "unstack": (lambda w: wf.unstack(w, over="layers")[1], "d_model/x d_ff"),
    "stack": (lambda w: wf.stack(wf.unstack(w, over="layers"), wf.Dim("turns", 4)), "turns d_model/x d_ff"),
    "split": (lambda w: wf.split(w, d_ff=[wf.Dim("heads", 4), wf.Dim("d_kv", 4)]), "layers d_model/x heads d_kv"),
    "split stored": (lambda w: wf.split(w, d_model=[wf.Dim("d_model", 4), HALF]), "layers d_model/x half d_ff"),
    "merge": (lambda w: wf.merge(w, ["layers", "d_ff"], into=wf.Dim("rows", 64)), "rows d_model/x"),
    "merge stored": (lambda w: wf.merge(w, ["d_model", "d_ff"], into=wf.Dim("d_model", 128)), "layers d_model/x"),
    "slice": (lambda w: w["d_ff", 2:5], "layers d_model/x d_ff"),
    "slice from a traced start": (lambda w: wf.slice(w, over=L, start=jax.numpy.int32(1), size=2),
                                  "layers d_model/x d_ff"),
    "every second place": (lambda w: w["d_ff", ::2], "layers d_model/x d_ff"),
    "place": (lambda w: w["layers", 2], "d_model/x d_ff"),
    "cast": (lambda w: wf.cast(w, "bfloat16"), "layers d_model/x d_ff"),
    "rename": (lambda w: w.rename(layers="turns"), "turns d_model/x d_ff"),
    "flip": (lambda w: wf.flip(w, over="d_ff"), "layers d_model/x d_ff"),
    "roll": (lambda w: wf.roll(w, over="layers", by=1), "layers d_model/x d_ff"),
    "concat": (lambda w: wf.concat([w, w["layers", 0:2]], over="layers"), "layers d_model/x d_ff"),
}  # fmt: skip


@pytest.mark.parametrize("name", REARRANGED)
def test_a_parameter_that_is_rearranged_is_a_parameter_and_lies_as_stored(name):
    op, lies = REARRANGED[name]
    outside = op(W)
    assert repr(outside).startswith("param ")
    inside = []

    def look(w, x):
        inside.append(repr(op(w)))
        return wf.einsum(w, x, over=D)

    program = wf.trace(look, W, X, mesh=MESH, layout=FSDP)
    assert inside[-1].split("[")[1] == f"{lies}]" and inside[-1].startswith("param ")
    assert [row.collective for row in program.ledger] == ["all_gather"]  # of the product alone
    found = wf.spmd(op, mesh=MESH, layout="params.d_model:x")(W)
    assert repr(found) == repr(outside) and "x" in found.array.sharding.spec
    np.testing.assert_array_equal(wf.get(found), wf.get(outside))


@pytest.mark.parametrize("name", REARRANGED)
def test_what_is_frozen_stays_frozen_when_it_is_rearranged(name):
    frozen = nn.freeze({"w": W}, "w")["w"]
    assert REARRANGED[name][0](frozen).kind.frozen and not REARRANGED[name][0](W).kind.frozen


def test_arithmetic_gives_a_plain_tensor():
    assert repr(W) == "param f32[layers d_model d_ff]"
    for made in (
        W * 2,
        W + W,
        wf.exp(W),
        wf.sum(W, over="layers"),
        wf.pad(W, over=L, after=1),
        wf.tensor(W.array, W.dims),
    ):
        assert not repr(made).startswith("param")


def test_a_stack_of_parameters_is_one_and_with_anything_else_is_not():
    one, other = wf.unstack(W, over="layers")[:2]
    plain = wf.tensor(other.array, other.dims)
    frozen = nn.freeze({"w": one}, "w")["w"]
    for join in (lambda xs: wf.stack(xs, HALF), lambda xs: wf.concat(xs, over="d_ff")):
        assert repr(join([one, other])).startswith("param")
        assert not repr(join([one, plain])).startswith("param")
        assert repr(join([frozen, one])).startswith("param") and not join([frozen, one]).kind.frozen
        assert join([frozen, frozen]).kind.frozen
        mixed = wf.spmd(lambda a, b, join=join: join([a, b]), mesh=MESH, layout=FSDP.replace("batch:x,", ""))
        np.testing.assert_array_equal(wf.get(mixed(one, plain)), wf.get(join([one, other])))


def unrolled(w, x):
    y = sum(wf.einsum(x, one, over=D) for one in wf.unstack(w, over="layers"))
    return wf.mean(y * y, over=[B, F])


def scanned(w, x):
    y, _ = wf.scan(lambda y, one: (y + wf.einsum(x, one, over=D), None), wf.zeros([B, F]), w, over="layers")
    return wf.mean(y * y, over=[B, F])


def sent(program):
    found = Counter()
    for row in program.ledger:
        found[row.phase, row.collective, row.bytes] += row.count
    return dict(found)


@pytest.mark.parametrize("layout", [FSDP, "batch:x,d_ff:y,params.d_model:x", "batch:x+y,params.d_ff:x+y"])
def test_unrolled_layers_send_what_scanned_ones_do(layout):
    programs = [wf.trace(wf.value_and_grad(fn), W, X, mesh=MESH, layout=layout) for fn in (unrolled, scanned)]
    assert sent(programs[0]) == sent(programs[1])
    assert {row.collective for row in programs[0].ledger} == {"all_gather", "reduce_scatter", "all_reduce"}
    value, gradient = wf.spmd(wf.value_and_grad(unrolled), mesh=MESH, layout=layout)(W, X)
    expected = wf.value_and_grad(scanned)(W, X)
    np.testing.assert_allclose(wf.get((value, gradient))[0], wf.get(expected[0]), rtol=1e-6)
    np.testing.assert_allclose(wf.get(gradient), wf.get(expected[1]), rtol=1e-5, atol=1e-6)


def test_gradient_sums_of_rearranged_parameters_travel_in_the_dtype_asked_for():
    both = wf.grad(lambda w, x: unrolled(wf.cast(w, "bfloat16"), wf.cast(x, "bfloat16")), sum_dtype="float32")
    ledger = wf.trace(both, W, X, mesh=MESH, layout=FSDP).ledger
    assert {str(row.dtype) for row in ledger if row.collective == "all_gather"} == {"bfloat16"}
    assert {str(row.dtype) for row in ledger if row.collective == "reduce_scatter"} == {"float32"}
    narrow, wide = (wf.get(f(W, X)) for f in (both, wf.spmd(both, mesh=MESH, layout=FSDP)))
    np.testing.assert_allclose(narrow, wide, rtol=2**-6, atol=2**-8)


def step_of(config, layout=None):
    where = {} if layout is None else {"mesh": wf.Mesh("x=8"), "layout": layout}
    return wf.train_step(lambda model, batch, key: model.loss(batch), optax.adam(1e-2), **where)


@pytest.mark.quick("x=8-None", "x=4,y=2-float32")
@pytest.mark.parametrize("sum_dtype", [None, "float32"])
@pytest.mark.parametrize("mesh", ["x=8", "x=4,y=2"])
def test_a_parameter_that_several_ops_use_is_scattered_once(mesh, sum_dtype):
    w, turns = wf.parameter(numbers(D, F)), wf.Dim("turns", 3)
    layout = "batch:x,params.d_model:x" if mesh == "x=8" else "batch:x+y,params.d_model:x"

    def loss(w, x):
        """Uses it twice in a row, once in a part that is computed again, and in each turn of a loop."""
        w = wf.cast(w, "bfloat16") if sum_dtype else w
        x = wf.cast(x, w.dtype)

        def back(h):
            return wf.tanh(wf.einsum(h, w, over=F))

        y = back(wf.einsum(wf.remat(back)(wf.tanh(wf.einsum(x, w, over=D))), w, over=D))
        y, _ = wf.scan(lambda y, _: (back(wf.einsum(y, w, over=D)), None), y, over=turns)
        return wf.mean(wf.cast(wf.square(y), "float32"), over=[B, D])

    both = wf.value_and_grad(loss, sum_dtype=sum_dtype)
    rows = [row for row in wf.trace(both, w, X, mesh=mesh, layout=layout).ledger if row.bytes > 4]
    scattered = [(row.count, row.bytes, str(row.dtype)) for row in rows if row.collective == "reduce_scatter"]
    assert scattered == [(1, 4 * D.size * F.size, "float32")]
    summed = [(row.axes, row.bytes) for row in rows if row.collective == "all_reduce"]
    assert summed == ([] if mesh == "x=8" else [(("y",), D.size * F.size)])
    found, expected = (wf.get(fn(w, X)) for fn in (wf.spmd(both, mesh=mesh, layout=layout), both))
    tolerance = 2**-5 if sum_dtype else 1e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 8), found, expected)


def test_an_unrolled_model_is_sharded_as_a_scanned_one_is():
    layout = "batch:x,params.d_model:x"
    found = []
    for is_scanned in (True, False):
        config = models.preset("tiny-lm", scanned=is_scanned, layers=2)
        ids = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), "batch length")
        step = step_of(config)
        batch = {"inputs": ids, "targets": ids}
        program = wf.trace(step, step.init(models.shapes(config)), batch, mesh="x=8", layout=layout)
        total = Counter()
        for row in program.ledger:
            total[row.phase, row.collective] += row.bytes * row.count
        found.append((dict(total), program.memory))
    assert found[0][0] == found[1][0] and ("backward", "reduce_scatter") in found[0][0]
    assert found[0][1].arguments == found[1][1].arguments and found[1][1].peak <= found[0][1].peak


@pytest.mark.slow
def test_an_unrolled_model_learns_what_a_scanned_one_does():
    ids = np.random.default_rng(0).integers(0, 32, (8, 16)).astype("int32")
    found = []
    for is_scanned, layout in ((True, None), (False, None), (False, "batch:x,params.d_model:x")):
        config = models.preset("tiny-lm", scanned=is_scanned, layers=2)
        step, batch = step_of(config, layout), {"tokens": wf.tensor(ids, "batch length")}
        state, metrics = step(step.init(models.init(config, jax.random.key(0))), batch)
        found.append(jax.tree.leaves((metrics["loss"], state.optimizer)))
    for a, b in [pair for other in found[1:] for pair in zip(found[0], other, strict=True)]:
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)


def test_layers_stored_split_are_found_where_the_stages_want_them():
    stages = wf.Dim("stage", 2)

    def loss(w, x):
        w = wf.split(w, layers=[stages, wf.Dim("layers", 2)])
        return wf.sum(wf.square(w * x), over="stage layers d_model d_ff")

    layout = "params.layers:y,stage:y"
    x = numbers(D, seed=2)
    program = wf.trace(wf.value_and_grad(loss), W, x, mesh="y=2", layout=layout)
    assert [(row.collective, row.bytes) for row in program.ledger] == [("all_reduce", 4)]  # the loss
    gradient = wf.spmd(wf.grad(loss), mesh="y=2", layout=layout)(W, x)
    assert gradient.array.sharding.spec == PartitionSpec("y", None, None)
    np.testing.assert_allclose(wf.get(gradient), wf.get(wf.grad(loss)(W, x)), rtol=1e-6)


def test_layers_stored_split_stay_stored_as_stages():
    """Cut into stages that are stored so too nothing moves; each stage is gathered where it is used."""
    made = []

    def stages(w):
        made.append(wf.split(w, layers=[wf.Dim("stage", 2), wf.Dim("within", 2)]))
        return made[-1]

    layout = "params.layers:y,params.stage:y"
    program = wf.trace(stages, W, mesh="y=2", layout=layout)
    assert not list(program.ledger) and repr(made[-1]) == "param f32[stage/y within d_model d_ff]"
    found = wf.spmd(stages, mesh="y=2", layout=layout)(W)
    np.testing.assert_array_equal(wf.get(found), wf.get(W).reshape(2, 2, 8, 16))
    back = wf.spmd(lambda w: wf.merge(stages(w), ["stage", "within"], into=L), mesh="y=2", layout=layout)
    assert repr(back(W)) == repr(W) and not list(wf.trace(back, W).ledger)


def test_a_dim_that_is_stored_split_is_gathered_where_it_is_cut():
    loss = wf.value_and_grad(unrolled)
    layout = "batch:x,params.layers:x,params.d_model:y"
    rows = list(wf.trace(loss, W, X, mesh=MESH, layout=layout).ledger)
    assert (rows[0].collective, rows[0].axes, rows[0].reason) == (
        "all_gather",
        ("x",),
        "because layers is stored split over x (params.layers)",
    )
    assert {row.axes for row in rows if row.collective == "all_gather"} == {("x",), ("y",)}  # d_model where it is used
    found = wf.spmd(loss, mesh=MESH, layout=layout)(W, X)
    np.testing.assert_allclose(wf.get(found[1]), wf.get(loss(W, X)[1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["batch:x,params.d_model:x", "batch:x,params.layers:y,params.d_model:x"])
def test_parameters_that_a_loop_gives_back_lie_as_stored(layout):
    def loss(w, v, x):
        _, ws = wf.scan(lambda c, i: (c, wf.flip(w, over=F)), wf.zeros([]), wf.arange(L), over=L)
        assert repr(ws).startswith("param ")
        return wf.sum(wf.square(ws * x * wf.sum(v, over=D)), over=[*ws.dims, B])

    args = wf.parameter(numbers(D, F)), wf.parameter(numbers(L, D, seed=1)), numbers(B, seed=2)
    expected, found = (f(*args) for f in (wf.grad(loss), wf.spmd(wf.grad(loss), mesh=MESH, layout=layout)))
    np.testing.assert_allclose(wf.get(found), wf.get(expected), rtol=1e-4, atol=1e-4)


def test_a_loop_that_takes_its_layers_by_number_gathers_one_at_a_time():
    def by_number(w, x):
        y = wf.fori_loop(0, 4, lambda i, y: y + wf.einsum(x, w["layers", i], over=D), wf.zeros([B, F]))
        return wf.mean(wf.square(y), over=[B, F])

    programs = [wf.trace(wf.value_and_grad(fn), W, X, mesh=MESH, layout=FSDP) for fn in (by_number, scanned)]
    assert sent(programs[0]) == sent(programs[1])
    found = wf.spmd(wf.grad(by_number), mesh=MESH, layout=FSDP)(W, X)
    np.testing.assert_allclose(wf.get(found), wf.get(wf.grad(scanned)(W, X)), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_stored_as_the_rules_say_is_gathered():
    """`d_model` of 2 does not divide over 4, so its part is whole, and a tensor like others."""
    part = wf.spmd(lambda w: w["d_model", 2:4], mesh=MESH, layout="params.d_model:x")(W)
    assert repr(part) == "f32[layers d_model d_ff]"
    np.testing.assert_array_equal(wf.get(part), wf.get(W)[:, 2:4])
    pieces = wf.spmd(
        lambda w: wf.split(w, d_model=[wf.Dim("groups", 4), wf.Dim("d_model", 2)]), mesh=MESH, layout="params.d_model:x"
    )(W)
    np.testing.assert_array_equal(wf.get(pieces), wf.get(W).reshape(4, 4, 2, 16))


# Random chains.


def _split(w, dims, pick):
    dim = pick([d for d in dims if d.size % 2 == 0] or [None])
    if dim is None:
        return w
    size = pick([n for n in (2, 4, 8) if dim.size % n == 0])
    new = next(name for name in "acgh" if not w.dims.has(name))
    names, sizes = pick([(new, dim.name), (dim.name, new), (new, "i")]), (size, dim.size // size)
    return wf.split(w, **{dim.name: [wf.Dim(name, n) for name, n in zip(names, sizes, strict=True)]})


def _merge(w, dims, pick):
    first, second = dims[0], dims[-1]
    if first is second:
        return w
    return wf.merge(w, [first, second], into=wf.Dim(pick([first.name, second.name, "e"]), first.size * second.size))


def _slice(w, dims, pick):
    dim = pick(dims)
    size = pick([n for n in (dim.size, dim.size // 2, dim.size - 1) if n])
    return wf.slice(w, over=dim.name, start=pick([0, dim.size - size]), size=size)


def _restack(w, dims, pick):
    dim = pick(dims)
    if dim.size > 16:
        return w
    return wf.stack(wf.unstack(w, over=dim.name)[::-1], wf.Dim(pick([dim.name, "s"]), dim.size))


def _concat(w, dims, pick):
    dim = pick(dims)
    if dim.size == 1:
        return w
    return wf.concat([w[dim.name, 1 : dim.size], w[dim.name, 0:1]], over=dim.name)


def _rename(w, dims, pick):
    names = [name for name in ("d_model", "d_ff", "turns", "b") if not w.dims.has(name)]
    return w.rename(**{pick(dims).name: pick(names)})


def _roll(w, dims, pick):
    return wf.roll(w, over=pick(dims), by=1)


STEPS = [_split, _merge, _slice, _restack, _concat, _rename, _roll]
LAYOUTS = [
    "batch:x,params.d_model:x",
    "batch:x,params.d_model:x,params.d_ff:y",
    "batch:x,d_ff:y,params.d_model:x",
    "batch:x+y,params.layers:x",
    "batch:x,params.layers:y,params.d_model:x",
    "batch:y,params.d_ff:x+y",
]


def chain(seed, stored, w, x):
    """A loss by `w` after some steps, along any dims or (`stored`) none of those that are stored split."""
    pick = random.Random(seed).choice
    for _ in range(pick([1, 2, 3])):
        dims = [dim for dim in w.dims if dim.name not in stored]
        w = pick(STEPS)(w, dims, pick)
    return wf.sum(wf.square(w * x + x), over=[*w.dims, "batch"])


def gathered(seed, stored, w, x):
    """The same, of a parameter that is made whole first."""
    return chain(seed, stored, wf.einsum(w, wf.tensor(np.float32(1), []), out=w.dims), x)


def on_the_wire(program):
    """What a processor sends where collectives are rings."""
    total = 0.0
    for row in program.ledger:
        n = int(np.prod([MESH.axes[axis] for axis in row.axes]))
        rounds = {"all_reduce": 2 * (n - 1) / n, "permute": 1}.get(row.collective, (n - 1) / n)
        total += row.bytes * row.count * rounds
    return total


def check_chain(seed):
    layout = wf.Layout(random.Random(-seed).choice(LAYOUTS))
    stored = layout.params if seed % 2 else {}
    both, whole = (wf.value_and_grad(functools.partial(fn, seed, stored)) for fn in (chain, gathered))
    x = numbers(B, seed=3)
    expected, value = both(W, x), None
    try:
        value = wf.spmd(both, mesh=MESH, layout=layout)(W, x)
    except wf.LayoutError:  # a size that does not divide where it is used, or two dims of one axis: so without storage
        with pytest.raises(wf.LayoutError):
            wf.spmd(whole, mesh=MESH, layout=layout)(W, x)
        return False
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), wf.get(value), wf.get(expected))
    if not stored:  # what is cut along what is stored is gathered once for each cut
        return True
    least, most = (on_the_wire(wf.trace(fn, W, x, mesh=MESH, layout=layout)) for fn in (both, whole))
    assert least <= most, (seed, layout, least, most)
    return True


@pytest.mark.slow
def test_a_chain_of_rearrangements_gives_what_it_gives_unstored_and_sends_no_more():
    assert sum(check_chain(seed) for seed in range(6)) >= 4


@pytest.mark.slow
def test_many_chains_of_rearrangements_give_what_they_give_unstored_and_send_no_more():
    assert sum(check_chain(seed) for seed in range(6, 200)) > 150
