"""What cannot cross the border of a region, or be done inside one, and that each fix does what it says."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import weft as wf

from .raised import error_of, is_inside, on_rows

x = wf.tensor(np.arange(128, dtype="float32").reshape(8, 16), "batch d")
w = wf.tensor(np.ones((16, 32), "float32"), "d f")
key = jax.random.key(0)


def test_array_inside_a_region():
    error = error_of(lambda: on_rows(lambda x: x.array)(x), wf.TensorError)
    assert error.fact.startswith("`.array` of f32[batch/rows d] was asked for inside a region") and is_inside(error)
    assert "`.local_array`" in error.fix and "return the tensor" in error.fix


def test_array_inside_a_region_fix():
    np.testing.assert_array_equal(on_rows(lambda x: x)(x).array, x.array)
    shapes = []
    on_rows(lambda x: (shapes.append(x.local_array.shape), x)[1])(x)
    assert shapes == [(2, 16)]


def test_raw_array_as_argument():
    tree = {"layers": [{"w": np.ones((16, 32), "float32")}]}
    error = error_of(lambda: on_rows(lambda x, tree: x)(x, tree), wf.TensorError)
    assert error.fact == "argument 1['layers'][0]['w'] is a plain array of shape (16, 32), whose dims have no names"
    assert "wf.tensor(array, [..., ...])" in error.fix and is_inside(error)


def test_raw_array_as_keyword_and_in_a_module():
    error = error_of(lambda: on_rows(lambda x, *, w: x)(x, w=jnp.ones(3)), wf.TensorError)
    assert "['w']" in error.fact and "shape (3,)" in error.fact
    module = eqx.nn.Linear(4, 2, key=key)
    error = error_of(lambda: on_rows(lambda x, m: x)(x, module), wf.TensorError)
    assert "argument 1.weight is a plain array of shape (2, 4)" in error.fact


def test_raw_array_as_argument_fix():
    tree = {"layers": [{"w": wf.tensor(np.ones((16, 32), "float32"), ["d", "f"])}]}
    out = on_rows(lambda x, tree: wf.einsum(x, tree["layers"][0]["w"], over="d"))(x, tree)
    np.testing.assert_allclose(out.array, x.array @ w.array)


@pytest.mark.parametrize(
    "net",
    [
        lambda x: x + np.ones(16, "float32"),
        lambda x: np.ones(16, "float32") + x,
        lambda x: x * jnp.ones(16),
        lambda x: wf.einsum(x, np.ones((16, 32), "float32"), over="d"),
        lambda x: wf.where(np.ones(8) > 0, x, 0.0),
        lambda x: wf.take(np.ones((4, 2)), x, over="d"),
        lambda x: wf.sum(jnp.ones(3), over="d"),
        lambda x: wf.local(lambda a, b: a, x, np.ones(3), out="batch d"),
        lambda x: wf.full([x.dim("batch")], np.ones(8)),
        lambda x: wf.check(x.local_array > 0, "positive"),
    ],
)
def test_raw_array_as_operand(net):
    error = error_of(lambda: net(x), wf.TensorError)
    assert "plain array of shape" in error.fact and "no names" in error.fact and "wf.tensor(array" in error.fix
    inside = error_of(lambda: on_rows(net)(x), wf.TensorError)
    assert "plain array" in inside.fact and is_inside(inside)


def test_raw_array_on_the_left_of_a_tensor():
    error = error_of(lambda: on_rows(lambda x: jnp.ones(16) + x)(x), wf.TensorError)
    assert is_inside(error)


def test_raw_array_as_operand_fix():
    out = on_rows(lambda x: x + wf.tensor(np.ones(16, "float32"), ["d"]))(x)
    np.testing.assert_array_equal(out.array, x.array + 1)


def test_numbers_need_no_names():
    out = on_rows(lambda x, n: jnp.float32(2) * x * n + np.float32(1) + 1)(x, 3)
    np.testing.assert_array_equal(out.array, x.array * 6 + 2)


PLAIN = [
    ("jnp.sum", jnp.sum, lambda x: wf.sum(x, over="batch d")),
    ("jnp.exp", jnp.exp, wf.exp),
    ("jax.nn.relu", jax.nn.relu, wf.relu),
    ("jax.nn.softmax", jax.nn.softmax, lambda x: wf.softmax(x, over="d")),
    ("lax.exp", lax.exp, wf.exp),
    ("lax.rsqrt", lax.rsqrt, wf.rsqrt),
    ("np.exp", np.exp, wf.exp),
    ("np.sum", np.sum, lambda x: wf.sum(x, over="batch d")),
    ("jnp.matmul", lambda x: jnp.matmul(x, x), lambda x: wf.einsum(x, x, over="d")),
    ("jnp.where", lambda x: jnp.where(True, x, x), lambda x: wf.where(True, x, x)),
]


@pytest.mark.parametrize(("name", "plain", "named"), PLAIN, ids=[name for name, *_ in PLAIN])
def test_jnp_on_a_tensor(name, plain, named):
    y = x / 100 + 0.1
    inside = error_of(lambda: on_rows(plain)(y), wf.TensorError)
    assert is_inside(inside) and "wf.elementwise(fn, x)" in inside.fix
    if not name.startswith("lax."):  # outside, JAX alone is on the stack there
        assert "f32[batch/rows d]" in inside.fact
        outside = error_of(lambda: plain(y), wf.TensorError)
        assert "f32[batch d]" in outside.fact and "wf" in outside.fix
    np.testing.assert_allclose(on_rows(named)(y).array, named(y).array, rtol=1e-5)


def test_jnp_on_a_tensor_fix():
    found = on_rows(lambda x: (wf.elementwise(jnp.deg2rad, x), wf.local(jnp.deg2rad, x, out="batch d")))(x)
    for out in found:
        np.testing.assert_allclose(out.array, jnp.deg2rad(x.array), atol=1e-6)
    np.testing.assert_allclose(jnp.sum(x.array), 8128)


@pytest.mark.parametrize(
    ("what", "plain"),
    [("np.asarray()", np.asarray), ("float()", float), ("int()", int), ("bool()", bool), ("bool()", lambda x: not x)],
)
def test_values_are_not_known_inside_a_region(what, plain):
    net = lambda x: plain(wf.sum(x, over="batch d"))  # noqa: E731
    error = error_of(lambda: on_rows(net)(x), wf.TensorError)
    assert what in error.fact and "f32[]" in error.fact and is_inside(error)
    assert "wf.where" in error.fix and "wf.cond" in error.fix and "wf.print" in error.fix
    assert plain(wf.sum(x, over="batch d")) == plain(np.float32(8128))  # outside, a scalar has a value


def test_values_are_not_known_inside_a_region_fix():
    def net(x):
        total = wf.sum(x, over="batch d")
        return wf.cond(total > 0, lambda x: x * 2, lambda x: x, x), wf.where(total > 0, total, 0.0), total

    chosen, kept, total = on_rows(net)(x)
    np.testing.assert_array_equal(chosen.array, x.array * 2)
    assert float(total) == float(kept) == 8128


@pytest.mark.parametrize("what", [float, int, bool, lambda x: f"{x:.2f}"])
def test_a_tensor_with_dims_is_not_one_number(what):
    error_of(lambda: what(x), wf.TensorError)


@pytest.mark.parametrize("what", [float, np.asarray, bool])
def test_values_are_not_known_while_jax_traces(what):
    error = error_of(lambda: jax.jit(lambda x: what(wf.sum(x, over="batch d")))(x), wf.TensorError)
    assert "traced" in error.fact


@pytest.mark.parametrize("what", [len, list, lambda x: x @ w, lambda x: x[0], lambda x: w.array @ x])
def test_what_an_array_does_and_a_tensor_does_not(what):
    error = error_of(lambda: what(x), wf.TensorError)
    assert "wf." in error.fix or "x." in error.fix


STRIPPING = [
    ("jax.vmap", lambda x: jax.vmap(wf.exp)(x), lambda x: wf.vmap(wf.exp, over="length")(x), "`wf.vmap`"),
    (
        "lax.scan",
        lambda x: lax.scan(lambda c, row: (c + wf.sum(row, over="batch d"), None), wf.zeros([]), x)[0],
        lambda x: wf.scan(lambda c, row: (c + wf.sum(row, over="batch d"), None), wf.zeros([]), x, over="length")[0],
        "`wf.scan`",
    ),
    (
        "lax.map",
        lambda x: lax.map(wf.exp, x),
        lambda x: wf.scan(lambda c, row: (c, wf.exp(row)), None, x, over="length")[1],
        "`wf.scan`",
    ),
]


@pytest.mark.parametrize(("name", "plain", "named", "fix"), STRIPPING, ids=[name for name, *_ in STRIPPING])
def test_stripped_axes(name, plain, named, fix):
    y = wf.tensor(np.linspace(0, 1, 64, dtype="float32").reshape(2, 8, 4), "length batch d")
    outside = error_of(lambda: plain(y), wf.TensorError)
    assert "[length=2 batch=8 d=4]" in outside.fact and "(8, 4)" in outside.fact and fix in outside.fix
    inside = error_of(lambda: on_rows(plain)(y), wf.TensorError)
    assert "(2, 4)" in inside.fact and "(2, 2, 4) is due" in inside.fact and is_inside(inside) and fix in inside.fix
    np.testing.assert_allclose(on_rows(named)(y).array, named(y).array, rtol=1e-6)


def test_nested_region_of_another_mesh():
    inner = wf.spmd(lambda x: x * 2, mesh="rows=2,cols=2", layout="batch:rows+cols")
    error = error_of(lambda: on_rows(lambda x: inner(x))(x), wf.RegionError)
    assert error.fact == "a region of mesh rows=2,cols=2 was called inside a region of mesh rows=4"
    assert "`mesh='rows=4'`" in error.fix and is_inside(error)


@pytest.mark.parametrize("layout", ["batch:rows", "d:rows", ""])
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_nested_region_of_another_mesh_fix(layout):
    inner = wf.spmd(lambda x: x * 2, mesh="rows=4", layout=layout)
    np.testing.assert_array_equal(on_rows(lambda x: inner(x + 1))(x).array, x.array * 2 + 2)


def test_results_that_differ_between_processors():
    error = error_of(lambda: on_rows(lambda x: {"total": jnp.sum(x.local_array)})(x), wf.RegionError)
    assert "result ['total'] is a plain array that differs between processors (over rows)" in error.fact
    assert "wf.local(fn, x, out=..., summed=...)" in error.fix and is_inside(error)
    error_of(lambda: on_rows(lambda x: lax.axis_index("rows"))(x), wf.RegionError)


def test_results_that_differ_between_processors_fix():
    net = lambda x: {"total": wf.local(jnp.sum, x, out=[], summed="batch")}  # noqa: E731
    assert float(on_rows(net)(x)["total"]) == 8128


def test_a_number_that_differs_between_processors_as_operand():
    error = error_of(lambda: on_rows(lambda x: x * lax.axis_index("rows"))(x), wf.RegionError)
    assert "plain number that differs between processors (over rows)" in error.fact and "wf.local" in error.fix
    assert is_inside(error)
    fixed = on_rows(lambda x: x * wf.local(lambda a, here: a * 0 + here.start("batch"), x, out="batch d"))(x)
    np.testing.assert_array_equal(fixed.array, x.array * (np.arange(8) // 2 * 2)[:, None])


def test_a_tensor_made_of_one_slice():
    net = lambda x: wf.tensor(jnp.sum(x.local_array, 0), "d")  # noqa: E731
    error = error_of(lambda: on_rows(net)(x), wf.WeftError)
    assert "differ" in error.fact and "wf.local" in error.fix and is_inside(error)
    fixed = on_rows(lambda x: wf.local(lambda a: jnp.sum(a, 0), x, out="d", summed="batch"))(x)
    np.testing.assert_array_equal(fixed.array, x.array.sum(0))


def test_donating_one_array_twice():
    array = jnp.ones((8, 16))
    add = wf.spmd(lambda x, y: x + y, mesh="rows=4", layout="batch:rows", donate=(0, 1))
    act = lambda: add(wf.tensor(array, "batch d"), wf.tensor(array, "batch d"))  # noqa: E731
    error = error_of(act, wf.RegionError)
    assert error.fact == "one array is donated twice" and "jnp.copy(array)" in error.fix
    out = add(wf.tensor(array, "batch d"), wf.tensor(jnp.copy(array), "batch d"))
    np.testing.assert_array_equal(out.array, np.full((8, 16), 2))


@pytest.mark.parametrize("name", ["put", "get"])
def test_placing_inside_a_region(name):
    place = (lambda x: wf.put(x, mesh="rows=4", layout="batch:rows")) if name == "put" else wf.get
    error = error_of(lambda: on_rows(lambda x: place(x))(x), wf.RegionError)
    assert f"wf.{name} was called on f32[batch/rows d] inside a region" in error.fact and is_inside(error)
    assert error.fix == f"call wf.{name} outside of it"
    np.testing.assert_array_equal(wf.get(place(on_rows(lambda x: x)(x))), x.array)


def test_placing_while_jax_traces():
    error_of(lambda: jax.jit(lambda x: wf.get(x))(x), wf.WeftError)
    error_of(lambda: jax.jit(lambda x: wf.put(x, mesh="rows=4", layout="batch:rows"))(x), wf.WeftError)


PARAMS = {"w": wf.parameter(np.ones((16, 32), "float32") / 16, "d f"), "b": wf.parameter(np.ones(16, "float32"), "d")}
LAYOUT = "batch:rows,f:cols"


def two_weights(params, batch, key):
    y = wf.einsum(batch, params["w"], over="d") / 100
    return wf.mean(y * y, over="batch f") + wf.sum(params["b"] * params["b"], over="d")


def clipped(params, x):
    gradients = wf.grad(lambda params: two_weights(params, x, None))(params)
    clip = optax.clip_by_global_norm(0.5)
    return clip.update(gradients, clip.init(params), params)[0]


def test_an_optimizer_applied_to_slices():
    act = lambda: wf.spmd(clipped, mesh="rows=4,cols=2", layout=LAYOUT)(PARAMS, x)  # noqa: E731
    error = error_of(act, wf.TensorError)
    assert "slices" in error.fact and "`cols`" in error.fact and "behind the names" in error.fact
    assert is_inside(error, LAYOUT, "rows=4,cols=2") and "wf.train_step" in error.fix


def test_an_optimizer_applied_to_slices_fix():
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1.0))
    split = wf.train_step(two_weights, optimizer, mesh="rows=4,cols=2", layout=LAYOUT)
    whole = wf.train_step(two_weights, optimizer)
    found, expected = (step(step.init(PARAMS), x)[0].params for step in (split, whole))
    for name in PARAMS:
        np.testing.assert_allclose(found[name].array, expected[name].array, rtol=1e-5)
    updates = clipped(PARAMS, x)  # with no region the arrays are whole
    np.testing.assert_allclose(expected["w"].array, PARAMS["w"].array - updates["w"].array, rtol=1e-5)


def test_a_train_step_called_inside_a_region():
    step = wf.train_step(two_weights, optax.sgd(0.1))
    state = step.init(PARAMS)
    error = error_of(lambda: on_rows(lambda state, x: step(state, x)[1])(state, x), wf.RegionError)
    assert "train step was called inside a region" in error.fact and is_inside(error)
    assert "wf.spmd(step, mesh=..., layout=...)" in error.fix
    bound = wf.spmd(step, mesh="rows=4", layout="batch:rows")
    np.testing.assert_allclose(bound(bound.init(PARAMS), x)[1]["loss"].array, step(state, x)[1]["loss"].array)


class PlainModel:
    """A class that is no tree, as one would write for PyTorch."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


def test_a_train_step_that_lacks_something():
    error = error_of(lambda: wf.train_step(two_weights, optax.sgd(0.1), mesh="rows=4"), wf.RegionError)
    assert "only one of mesh and layout" in error.fact
    assert "optax.adam(1e-3)" in error_of(lambda: wf.train_step(two_weights, 3), wf.TensorError).fix
    step = wf.train_step(two_weights, optax.adam(1e-3))
    assert "step.init(params)" in error_of(lambda: step(PARAMS, x), wf.TensorError).fix
    error = error_of(lambda: step.init({"w": np.ones(3)}), wf.TensorError)
    assert "plain array of shape (3,)" in error.fact and "wf.parameter" in error.fix
    error = error_of(lambda: step.init({"ids": wf.cast(x, "int32")}), wf.TensorError)
    assert "no float tensor" in error.fact and "wf.parameter" in error.fix
    for plain in (PlainModel(w=PARAMS), [PlainModel(layers=[PlainModel(w=PARAMS)])]):
        assert "class PlainModel(eqx.Module)" in error_of(lambda: step.init(plain), wf.TensorError).fix  # noqa: B023
        assert "class PlainModel(eqx.Module)" in error_of(lambda: wf.grad(two_weights)(plain, x), wf.TensorError).fix  # noqa: B023
    assert np.isfinite(step(step.init(PARAMS), x)[1]["loss"].array)


def test_a_tensor_of_another_region():
    leaked = []
    on_rows(lambda x: (leaked.append(x * 2), x)[1])(x)
    error = error_of(lambda: on_rows(lambda x: x + leaked[0])(x), wf.RegionError)
    assert "belongs to another region" in error.fact and "as an argument" in error.fix
    error_of(lambda: on_rows(lambda x: leaked[0])(x), wf.WeftError)
    assert "region" in error_of(lambda: wf.exp(leaked[0]), wf.WeftError).fact
    kept = on_rows(lambda x: x * 2)(x)
    np.testing.assert_array_equal(on_rows(lambda x, kept: x + kept)(x, kept).array, x.array * 3)


def test_an_argument_that_cannot_be_compiled_in():
    error = error_of(lambda: on_rows(lambda x, words: x)(x, {"a", "b"}), wf.TensorError)
    assert "argument 1 is set" in error.fact and "hashable" in error.fix
    np.testing.assert_array_equal(on_rows(lambda x, words: x)(x, frozenset("ab")).array, x.array)


def test_a_static_argument_that_may_change():
    scale = wf.spmd(lambda x, by: x * by[0], mesh="rows=4", layout="batch:rows", static="by")
    error_of(lambda: scale(x, [2]), wf.WeftError)
    np.testing.assert_array_equal(scale(x, (2,)).array, x.array * 2)
    np.testing.assert_array_equal(scale(x, (3,)).array, x.array * 3)


@pytest.mark.parametrize("option", [{"static": "nn"}, {"static": 7}, {"static": 1.5}, {"donate": 7}, {"donate": 1.5}])
def test_static_and_donated_arguments_that_are_not_there(option):
    act = lambda: wf.spmd(lambda x, n: x * n, mesh="rows=4", layout="batch:rows", **option)(x, 2)  # noqa: E731
    error_of(act, wf.WeftError)


def test_a_key_of_the_old_kind_as_argument():
    region = on_rows(lambda x, key: wf.dropout(x, 0.5, key))
    error = error_of(lambda: region(x, jax.random.PRNGKey(0)), wf.TensorError)
    assert "shape (2,)" in error.fact and "`jax.random.key(seed)`" in error.fix
    expected = wf.dropout(x, 0.5, jax.random.key(0)).array
    np.testing.assert_array_equal(region(x, jax.random.key(0)).array, expected)


def test_abstract_tensors_cannot_be_run():
    abstract = wf.tensor(jax.ShapeDtypeStruct((8, 16), "float32"), "batch d")
    error_of(lambda: on_rows(lambda x: x)(abstract), wf.WeftError)
    error_of(lambda: wf.put(abstract, mesh="rows=4", layout="batch:rows"), wf.WeftError)
    error_of(lambda: np.asarray(abstract), wf.WeftError)
    assert wf.trace(lambda x: x * 2, abstract, mesh="rows=4", layout="batch:rows").jaxpr
