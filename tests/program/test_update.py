"""The collectives XLA adds to an update are those its types imply: equal in bytes to the compiled code's."""

import functools
import re
from collections import Counter

import jax
import optax
import pytest

import weft as wf
from tests.program.independent import QUICKLY, Sent, compiled, difference, walk
from weft.program.update import Implied, find_implied
from weft.spmd import Traced, bind

B, IO, H = wf.dims(batch=16, io=32, hidden=24)
WEIGHTS = {"w": [IO, H], "v": [H, IO], "b": [IO]}

LAYOUTS = {
    "batch:all": "all=8",
    "batch:rows": "rows=2,cols=4",
    "batch:rows,hidden:cols": "rows=2,cols=4",
    "batch:rows,params.io:rows": "rows=2,cols=4",
    "batch:rows,optimizer.io:rows": "rows=2,cols=4",
    "batch:rows,hidden:cols,params.io:rows": "rows=2,cols=4",
    "batch:rows,hidden:cols,optimizer.io:rows": "rows=2,cols=4",
    "batch:x,hidden:y,params.io:z": "x=2,y=2,z=2",
    "batch:x,hidden:y,params.io:z,optimizer.io:x": "x=2,y=2,z=2",
    "batch:x,hidden:y+z": "x=2,y=2,z=2",
    "batch:x,optimizer.io:x+y,optimizer.hidden:z": "x=2,y=2,z=2",
}
QUICK_LAYOUT = "batch:x,hidden:y,params.io:z,optimizer.io:x"

PAPERS_ADAFACTOR = dict(min_dim_size_to_factor=4, decay_rate=0.8, clipping_threshold=1.0, momentum=None)
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1),
    "adafactor, nothing factored": optax.adafactor(0.1),
    "adafactor": optax.adafactor(0.1, **PAPERS_ADAFACTOR),
    "adafactor, updates not scaled": optax.adafactor(0.1, **PAPERS_ADAFACTOR, multiply_by_parameter_scale=False),
    "adafactor, updates not clipped": optax.adafactor(0.1, **PAPERS_ADAFACTOR | dict(clipping_threshold=None)),
    "lamb": optax.lamb(0.1),
    "lion": optax.lion(0.1),
    "adagrad": optax.adagrad(0.1),
    "adam, clipped by the global norm": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "sm3": optax.sm3(0.1),
    "only where finite": optax.apply_if_finite(optax.adam(0.1), 3),
    "every second step": optax.MultiSteps(optax.adam(0.1), 2),
}
QUICK = ["sgd", "adafactor", "lamb", "adam, clipped by the global norm"]
UNTYPED = {
    "adaptive_grad_clip": optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1)),
    "muon": optax.contrib.muon(0.1),
    "prodigy": optax.contrib.prodigy(0.1),
}


def loss(params, x, key=None):
    y = wf.einsum(wf.relu(wf.einsum(x, params["w"], over=IO)), params["v"], over=H) + params["b"]
    return wf.mean(wf.square(y - x), over=[B, IO])


def shapes(step):
    """The state and the batch, as shapes."""
    params = {name: wf.parameter(shape(*dims), dims) for name, dims in WEIGHTS.items()}
    return step.init(params), wf.tensor(shape(B, IO), [B, IO])


def shape(*dims):
    return jax.ShapeDtypeStruct([dim.size for dim in dims], "float32")


def update_rows(jaxpr, mesh_axes) -> list[Implied]:
    """The rows of the part in global view; the larger branch of a choice."""
    found = []
    for eqn in jaxpr.eqns:
        inner = [getattr(sub, "jaxpr", sub) for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
        if eqn.primitive.name == "shard_map":
            continue
        if eqn.primitive.name == "cond":
            branches = [update_rows(sub, mesh_axes) for sub in inner]
            found += max(branches, key=lambda rows: sum(row.bytes for row in rows))
        elif inner:
            found += [row for sub in inner for row in update_rows(sub, mesh_axes)]
        else:
            found += find_implied(eqn, mesh_axes)
    return found


def totals(rows) -> Sent:
    found: Sent = Counter()
    for row in rows:
        found[row.collective, frozenset(row.axes)] += row.bytes
    return found


@functools.cache
def sent_by_gradients(layout) -> Sent:
    """What the compiled region sends alone, with no update behind it."""
    step = wf.train_step(loss, optax.sgd(0.1), mesh=LAYOUTS[layout], layout=layout)
    state, x = shapes(step)
    gradients = bind(step._gradients, step.mesh, layout)
    return compiled(gradients.lower(state.params, x, None).compile(QUICKLY).as_text(), step.mesh.axes)


def sent_by_update(optimizer, layout) -> Sent:
    """What the whole compiled step sends, less what its region does."""
    step = wf.train_step(loss, optimizer, mesh=LAYOUTS[layout], layout=layout)
    text = step.lower(*shapes(step)).compile(QUICKLY).as_text()
    found, region = compiled(text, step.mesh.axes), sent_by_gradients(layout)
    return Counter({key: found[key] - region[key] for key in found | region})


def traced(optimizer, layout):
    step = wf.train_step(loss, optimizer, mesh=LAYOUTS[layout], layout=layout)
    return step, step.abstract(*shapes(step))


CASES = [
    pytest.param(name, layout, marks=() if layout == QUICK_LAYOUT and name in QUICK else pytest.mark.slow)
    for name in OPTIMIZERS
    for layout in LAYOUTS
]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_the_update_sends_what_its_types_imply(name, layout):
    step, found = traced(OPTIMIZERS[name], layout)
    assert found.update_known
    rows = update_rows(found.jaxpr.jaxpr, step.mesh.axes)
    assert all(row.exact for row in rows)
    assert difference(totals(rows), sent_by_update(OPTIMIZERS[name], layout)) == {}


@pytest.mark.parametrize("name", UNTYPED)
def test_an_optimizer_that_cannot_be_typed_is_said_to_be_unknown(name):
    layout = "batch:rows,hidden:cols,optimizer.io:rows"
    step, found = traced(UNTYPED[name], layout)
    assert not found.update_known
    assert update_rows(found.jaxpr.jaxpr, step.mesh.axes) == []


@pytest.mark.parametrize(
    "layout", ["batch:rows,hidden:cols,params.io:rows", "batch:rows,hidden:cols,optimizer.io:rows"]
)
@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_the_region_inside_is_the_one_that_is_compiled(name, layout):
    def region(jaxpr):
        found = next(eqn.params["jaxpr"] for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map")
        return re.sub(r", device_kind=\w+, num_cores=\w+, platform=\w+", "", str(found))

    step, found = traced((OPTIMIZERS | UNTYPED)[name], layout)
    arrays, run = step.flat(*shapes(step))
    run = Traced.of(run, *arrays).jaxpr
    assert region(found.jaxpr.jaxpr) == region(run.jaxpr)
    assert walk(found.jaxpr) == walk(run)


def test_an_optimizer_that_fails_on_any_mesh_raises_its_own_error():
    def update(updates, state, params=None):
        raise ValueError("no such schedule")

    step = wf.train_step(loss, optax.GradientTransformation(optax.sgd(0.1).init, update), mesh="x=8", layout="batch:x")
    state, x = shapes(step)
    with pytest.raises(ValueError, match="no such schedule"):
        step.abstract(state, x)


def test_rows_say_why():
    _, found = traced(OPTIMIZERS["adafactor"], layout := "batch:rows,hidden:cols,optimizer.io:rows")
    rows = update_rows(found.jaxpr.jaxpr, wf.Mesh(LAYOUTS[layout]).axes)
    assert {(row.collective, row.axes, row.dtype, row.reason) for row in rows} == {
        ("all_reduce", ("rows",), "float32", "because the update sums over a dim split over rows"),
        ("all_reduce", ("cols",), "float32", "because the update sums over a dim split over cols"),
        (
            "all_gather",
            ("rows",),
            "float32",
            "because optimizer state is stored finer than the parameter (`optimizer.` rules)",
        ),
    }


def test_where_no_rule_is_known_the_row_is_a_guess():
    mesh = wf.Mesh("rows=2,cols=4")
    explicit = mesh.abstract(jax.sharding.AxisType.Explicit)
    lying = jax.sharding.NamedSharding(explicit, jax.sharding.PartitionSpec("cols", None))
    with jax.sharding.use_abstract_mesh(explicit):
        x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=lying)
        jaxpr = jax.make_jaxpr(lambda x: jax.numpy.cumsum(x, axis=1))(x)
    (row,) = update_rows(jaxpr.jaxpr, mesh.axes)
    assert (row.exact, row.axes, row.bytes) == (False, ("cols",), 8 * 4 * 4)
    assert "`cumsum`" in row.reason
