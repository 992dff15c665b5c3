"""A table and ids that lie over the same axis: ids are gathered, what is found is scattered back."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import nn

V, D, B, T = wf.dims(vocab=16, d=4, batch=8, length=4)
random = np.random.default_rng(0)
values = random.normal(size=(16, 4)).astype("float32")
places = random.integers(-2, 18, size=(8, 4)).astype("int32")  # some outside, which give zero
table, ids = wf.tensor(values, [V, D]), wf.tensor(places, [B, T])
weight = wf.tensor(random.normal(size=(8, 4, 4)).astype("float32"), [B, T, D])


def program(table, ids, weight):
    def loss(table):
        found = wf.take(table, ids, over="vocab")
        return wf.sum(found * weight, over="batch length d"), found

    (_, found), gradient = wf.value_and_grad(loss, has_aux=True)(table)
    return found, gradient


@pytest.mark.parametrize(
    "layout", ["vocab:x,batch:x", "vocab:x+y,batch:x", "vocab:x,batch:y+x", "vocab:y,batch:x,length:y"]
)
def test_values_and_gradients_are_those_of_one_processor(layout):
    found, gradient = wf.spmd(program, mesh="x=2,y=2", layout=layout)(table, ids, weight)
    inside = (places >= 0) & (places < 16)
    picked = np.where(inside[..., None], values[places % 16], 0)
    np.testing.assert_array_equal(np.asarray(found.array), picked)
    want = np.zeros((16, 4))
    np.add.at(want, places[inside], np.asarray(weight.array, "float64")[inside])
    np.testing.assert_allclose(np.asarray(gradient.array), want, rtol=0, atol=64 * 2.0**-23 * np.abs(want).max())


def test_ids_are_gathered_and_results_scattered():
    take = wf.trace(lambda t, i: wf.take(t, i, over="vocab"), table, ids, mesh="x=4", layout="vocab:x,batch:x")
    assert [(row.collective, row.axes) for row in take.ledger] == [("all_gather", ("x",)), ("reduce_scatter", ("x",))]
    assert take.ledger[0].bytes == places.nbytes


def test_a_result_that_leaves_under_another_name_is_scattered_to_it():
    stream = wf.Dim("stream", 4, follows="length")

    def loss(table, ids, weight):
        found = wf.take(table, ids, over="vocab", rename={"length": stream})
        assert found.dims.names == ("batch", "stream", "d")
        return wf.sum(wf.sin(found) * weight.rename(length="stream"), over="batch stream d")

    layout = "batch:y,vocab:x,stream:x"
    ledger = wf.trace(wf.value_and_grad(loss), table, ids, weight, mesh="x=4,y=2", layout=layout).ledger
    sent = [(row.phase, row.collective, row.bytes) for row in ledger if row.axes == ("x",) and row.bytes > 4]
    found = weight.array.nbytes // 2
    assert sent == [("forward", "reduce_scatter", found), ("backward", "all_gather", found)]
    value, gradient = wf.spmd(wf.value_and_grad(loss), mesh="x=4,y=2", layout=layout)(table, ids, weight)
    want_value, want = wf.value_and_grad(loss)(table, ids, weight)
    np.testing.assert_allclose(np.asarray(value), np.asarray(want_value), rtol=0, atol=128 * 2.0**-23)
    np.testing.assert_allclose(np.asarray(gradient), np.asarray(want), rtol=0, atol=128 * 2.0**-23)


@pytest.mark.parametrize(
    ("rows", "sent"),
    [
        (8, lambda rows: [("all_gather", 4 * rows), ("all_gather", 16 * rows)]),  # ids and updates come to the table
        (64, lambda rows: [("reduce_scatter", 16 * 4 * 4)]),  # fewer bytes: the whole table, of which each has a part
    ],
)
def test_what_is_added_to_a_table_may_lie_over_its_axis(rows, sent):
    batch = wf.Dim("batch", rows)
    at = wf.tensor(np.random.default_rng(1).integers(-2, 18, rows).astype("int32"), [batch])
    more = wf.tensor(np.random.default_rng(2).normal(size=(rows, 4)).astype("float32"), [batch, D])

    def add(table, at, more):
        return wf.scatter_add(table, at, more, over="vocab")

    ledger = wf.trace(add, table, at, more, mesh="x=4", layout="vocab:x,batch:x").ledger
    assert [(row.collective, row.bytes) for row in ledger] == sent(rows)
    found = wf.spmd(add, mesh="x=4", layout="vocab:x,batch:x")(table, at, more)
    np.testing.assert_allclose(np.asarray(found), np.asarray(add(table, at, more)), rtol=0, atol=rows * 2.0**-22)


def test_an_embedding_may_be_split_over_the_axis_of_the_batch():
    layer = nn.Embedding(V, D, key=jax.random.key(0))
    run = wf.spmd(lambda layer, ids: layer(ids), mesh="x=4", layout="vocab:x,batch:x")
    np.testing.assert_array_equal(np.asarray(run(layer, ids).array), np.asarray(layer(ids).array))


def test_a_result_that_would_have_two_dims_on_one_axis_is_still_refused():
    run = wf.spmd(lambda t, i: wf.take(t, i, over="vocab"), mesh="x=4", layout="d:x,batch:x")
    with pytest.raises(wf.LayoutError, match="`x`"):
        run(table, ids)


@pytest.mark.parametrize("layout", ["vocab:x+y,stream:x", "vocab:y+x,stream:x", "vocab:x+y,stream:y"])
def test_a_sum_that_is_scattered_over_one_axis_is_summed_over_the_others(layout):
    stream = wf.Dim("stream", 4, follows="length")

    def rows(table, ids):
        return wf.take(table, ids, over="vocab", rename={"length": stream})

    found = wf.spmd(rows, mesh="x=2,y=2", layout=layout)(table, ids)
    np.testing.assert_array_equal(np.asarray(found.array), np.asarray(rows(table, ids).array))
