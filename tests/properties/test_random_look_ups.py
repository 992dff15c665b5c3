"""Look-ups under random layouts: tables stored and split in any way, ids in any way, values and gradients as in jnp.

The table and the ids may share dims and axes, the result may leave under another name, some ids lie outside, and the
vocab may have padding. What a layout refuses must have two dims of one tensor on one axis.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import weft as wf
from tests.properties.programs import randoms, sampled

MESH, AXES = "x=2,y=2", ("x", "y")
SIZES = {"vocab": 12, "d_model": 4, "heads": 4, "batch": 8, "length": 4}
STREAM = wf.Dim("stream", 4, follows="length")


def draw_dims(rng):
    """Dims of the table and of the ids, in any order; some in both."""
    table = ["vocab", *rng.sample(["d_model", "heads"], rng.randint(0, 2))]
    ids = rng.sample(["batch", "length"], rng.randint(0, 2)) + (["heads"] if rng.random() < 0.2 else [])
    rng.shuffle(table)
    rng.shuffle(ids)
    return table, ids


def draw_layout(rng, names, stored):
    """Rules for some of the names, and for how some are stored; an axis may be given to several."""
    rules = {}
    for prefix, pool in (("", names), ("params.", stored)):
        for axis in rng.sample(AXES, 2):
            for name in rng.sample(sorted(pool), min(len(pool), rng.choice([0, 1, 1, 2]))):
                rules.setdefault(prefix + name, []).append(axis)
    return ",".join(f"{name}:{'+'.join(axes)}" for name, axes in rules.items())


def is_legal(layout, *shapes):
    """Whether in no tensor of these dims, stored or not, two share an axis."""
    rules = wf.Layout(layout)

    def of(name):
        return rules.rules.get(name, rules.rules.get("length", ()) if name == "stream" else ())

    for names in shapes:
        held = [axis for name in names for axis in of(name)]
        more = [axis for name in names for axis in rules.params.get(name, ()) if axis not in held]
        if len(set(held)) < len(held) or (names is shapes[0] and len(set(more)) < len(more)):
            return False
    return True


def check_case(rng):
    table_names, ids_names = draw_dims(rng)
    names = {"length": STREAM} if "length" in ids_names and rng.random() < 0.5 else {}
    layout = draw_layout(rng, {*table_names, *ids_names, *(["stream"] if names else [])}, table_names)
    numbers = np.random.default_rng(rng.getrandbits(32))
    dims = {name: wf.Dim(name, size) for name, size in SIZES.items()}
    if rng.random() < 0.3:
        dims["vocab"] = wf.Dim("vocab", 12, valid=10)
    table = wf.parameter(
        numbers.normal(size=[SIZES[name] for name in table_names]).astype("float32"), [dims[n] for n in table_names]
    )
    ids = wf.tensor(
        numbers.integers(-2, 14, size=[SIZES[name] for name in ids_names]).astype("int32"), [dims[n] for n in ids_names]
    )
    plain = PlainLookUp(table, ids, dims["vocab"].count)
    found_names = plain.names
    weight = numbers.normal(size=[SIZES[name] for name in found_names]).astype("float32")
    weight = wf.tensor(weight, [names.get(name, dims[name]) for name in found_names])

    def loss(table, ids, weight):
        found = wf.take(table, ids, over="vocab", rename=names)
        return wf.sum(wf.sin(found) * weight, over=found.dims), found

    run = wf.spmd(wf.value_and_grad(loss, has_aux=True), mesh=MESH, layout=layout)
    after = [names[name].name if name in names else name for name in found_names]
    legal = is_legal(layout, table_names, ids_names, found_names, after)
    try:
        (_, found), gradient = run(table, ids, weight)
    except wf.LayoutError as error:
        assert not legal or "matches nothing" in error.fact, f"{layout}: {error}"
        return
    assert legal, f"{layout} ran"
    assert list(found.dims.names) == after
    np.testing.assert_array_equal(np.asarray(found), plain.value)
    want = jax.grad(lambda array: jnp.sum(jnp.sin(plain(array)) * weight.array))(table.array)
    np.testing.assert_allclose(gradient.array, want, rtol=0, atol=1e-5)


class PlainLookUp:
    """The look-up in plain jnp: the names of its dims, its value, and itself as a function of the table."""

    def __init__(self, table, ids, count):
        self.table, self.ids, self.count = table, ids, count
        new = [name for name in ids.dims.names if name not in table.dims.names]
        self.names = [x for name in table.dims.names for x in (new if name == "vocab" else [name])]
        self.value = np.asarray(self(table.array))

    def __call__(self, array):
        size = self.table.size("vocab")
        hot = jax.nn.one_hot(jnp.where(self.ids.array < self.count, self.ids.array, size), size)
        number = {name: i for i, name in enumerate(SIZES)}
        operands = ((array, self.table.dims.names), (hot, (*self.ids.dims.names, "vocab")))
        pairs = [x for one, names in operands for x in (one, [number[name] for name in names])]
        return jnp.einsum(*pairs, [number[name] for name in self.names], precision="highest")


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@sampled(6)
@given(randoms())
def test_a_layout_never_changes_what_is_looked_up(rng):
    check_case(rng)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@sampled(100)
@given(randoms())
def test_many_layouts_never_change_what_is_looked_up(rng):
    check_case(rng)
