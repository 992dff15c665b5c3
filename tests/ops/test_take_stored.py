"""A look-up in a table stored by `params.` rules: the ids go to the table where that sends less than gathering it.

Bytes are what ledgers count. With n processors along the axis, ids [batch/n length] and a table stored [vocab d/n]: the
ids are gathered, each processor finds its columns for all rows, and one all-to-all brings [batch/n length d]; the
gradient takes one back, and is added up in the stored slice.
"""

import jax
import numpy as np
import pytest

import weft as wf
from weft import nn

V, D, B, T = wf.dims(vocab=64, d_model=8, batch=8, length=4)
random = np.random.default_rng(0)
values = random.normal(size=(64, 8)).astype("float32")
places = random.integers(-2, 66, size=(8, 4)).astype("int32")  # some outside, which give zero
weight = wf.tensor(random.normal(size=(8, 4, 8)).astype("float32"), [B, T, D])
table, ids = wf.parameter(values, [V, D]), wf.tensor(places, [B, T])

IDS, ROWS, TABLE = 8 * 4 * 4, 8 * 4 * 8 * 4, 64 * 8 * 4  # bytes of all ids, of all that is found, of the table


def program(table, ids, weight):
    def loss(table):
        found = wf.take(table, ids, over="vocab")
        return wf.sum(wf.sin(found) * weight, over="batch length d_model"), found

    (_, found), gradient = wf.value_and_grad(loss, has_aux=True)(table)
    return found, gradient


def sent(mesh, layout, fn=program, args=(table, ids, weight)):
    ledger = wf.trace(fn, *args, mesh=mesh, layout=layout).ledger
    return [(row.phase, row.collective, "+".join(row.axes), row.bytes) for row in ledger if row.bytes > 4]


FORMULAS = {
    # columns: ids gathered, one all-to-all each way of what belongs to one processor
    ("x=4", "batch:x,params.d_model:x"): [
        ("forward", "all_gather", "x", IDS),
        ("forward", "all_to_all", "x", ROWS // 4),
        ("backward", "all_to_all", "x", ROWS // 4),
    ],
    # with a split vocab beside: what is found is summed over its axis, when it has come together
    ("x=4,y=2", "batch:x,params.d_model:x,vocab:y"): [
        ("forward", "all_gather", "x", IDS),
        ("forward", "all_to_all", "x", ROWS // 4),
        ("forward", "all_reduce", "y", ROWS // 4),
        ("backward", "all_to_all", "x", ROWS // 4),
    ],
    # HSDP: only ids of one group are gathered; the slices' gradients are summed over the other axis
    ("x=4,y=2", "batch:y+x,params.d_model:x"): [
        ("forward", "all_gather", "x", IDS // 2),
        ("forward", "all_to_all", "x", ROWS // 8),
        ("backward", "all_to_all", "x", ROWS // 8),
        ("backward", "all_reduce", "y", TABLE // 4),
    ],
    ("x=4,y=2", "batch:y+x,params.d_model:x+y"): [
        ("forward", "all_gather", "x+y", IDS),
        ("forward", "all_to_all", "x+y", ROWS // 8),
        ("backward", "all_to_all", "x+y", ROWS // 8),
    ],
    # over one axis of ids and one that they are whole over: what is found comes together over the minor one first
    ("x=4,y=2", "batch:x,params.d_model:x+y"): [
        ("forward", "all_gather", "x", IDS),
        ("forward", "all_gather", "y", ROWS // 4),
        ("forward", "all_to_all", "x", ROWS // 4),
        ("backward", "all_to_all", "x", ROWS // 4),
    ],
    # rows: what was found is reduce-scattered to whose it is, as from a table split by `vocab:x`
    ("x=4", "batch:x,params.vocab:x"): [
        ("forward", "all_gather", "x", IDS),
        ("forward", "reduce_scatter", "x", ROWS),
        ("backward", "all_gather", "x", ROWS),
    ],
    ("x=4,y=2", "batch:x+y,vocab:y,params.d_model:x"): [
        ("forward", "all_gather", "y+x", IDS),
        ("forward", "reduce_scatter", "y", ROWS // 4),
        ("forward", "all_to_all", "x", ROWS // 8),
        ("backward", "all_to_all", "x", ROWS // 8),
        ("backward", "all_gather", "y", ROWS // 4),
    ],
    # ids that all have: columns are gathered of what was found, and the gradient of each is its slice
    ("x=4", "params.d_model:x"): [("forward", "all_gather", "x", ROWS)],
}


@pytest.mark.parametrize(("mesh", "layout"), FORMULAS)
def test_what_is_found_is_sent_and_no_table(mesh, layout):
    assert sent(mesh, layout) == FORMULAS[mesh, layout]


def test_where_the_table_is_less_it_is_gathered():
    small = wf.parameter(values[:8], [V.resized(8), D])
    rows = sent("x=4", "batch:x,params.d_model:x", args=(small, ids, weight))
    assert rows == [("forward", "all_gather", "x", TABLE // 8), ("backward", "reduce_scatter", "x", TABLE // 8)]


def test_the_ledger_says_which_way_is_less():
    ledger = wf.trace(program, table, ids, weight, mesh="x=4", layout="batch:x,params.d_model:x").ledger
    exchange = next(row for row in ledger if row.collective == "all_to_all")
    assert exchange.dims == ("batch", "length", "d_model")
    assert exchange.reason == (
        "because d_model is stored split over x, and what is found there goes to whose ids they are: "
        "384 B for ids and what is found, 2 KiB for the whole table"
    )
    small = wf.parameter(values[:8], [V.resized(8), D])
    ledger = wf.trace(program, small, ids, weight, mesh="x=4", layout="batch:x,params.d_model:x").ledger
    assert ledger[0].reason == (
        "because table is stored split over x (params.d_model): "
        "256 B for the whole table, 384 B for ids and what is found"
    )


@pytest.mark.parametrize(("mesh", "layout"), list(FORMULAS)[1:7])
def test_values_and_gradients_are_those_of_one_processor(mesh, layout):
    found, gradient = wf.spmd(program, mesh=mesh, layout=layout)(table, ids, weight)
    want_found, want = program(table, ids, weight)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(want_found))
    np.testing.assert_allclose(np.asarray(gradient), np.asarray(want), rtol=0, atol=32 * 2.0**-23)


def test_a_narrow_table_is_summed_in_float32_and_sent_narrow():
    def loss(table, ids, weight):
        found = wf.take(wf.cast(table, "bfloat16"), ids, over="vocab")
        return wf.sum(wf.sin(wf.cast(found, "float32")) * weight, over=weight.dims)

    gradient = wf.grad(loss, sum_dtype="float32")
    rows = sent("x=4", "batch:x,params.d_model:x", fn=gradient)
    assert [row[3] for row in rows] == [IDS, ROWS // 8, ROWS // 8]
    made = wf.spmd(gradient, mesh="x=4", layout="batch:x,params.d_model:x")(table, ids, weight)
    np.testing.assert_allclose(np.asarray(made), np.asarray(gradient(table, ids, weight)), rtol=2.0**-8)


def test_an_embedding_in_a_loop_is_looked_up_where_it_is_stored():
    layer = nn.Embedding(V, D, key=jax.random.key(0))

    def loss(layer, ids):
        def turn(total, _):
            return total + wf.sum(wf.square(layer(ids)), over="batch length d_model"), None

        return wf.scan(turn, wf.zeros([]), wf.arange(wf.Dim("turns", 3)), over="turns")[0]

    run = wf.spmd(wf.value_and_grad(loss), mesh="x=4", layout="batch:x,params.d_model:x")
    assert all(row.bytes < TABLE // 4 for row in wf.trace(run, layer, ids).ledger)
    value, gradient = run(layer, ids)
    want_value, want = wf.value_and_grad(loss)(layer, ids)
    np.testing.assert_allclose(np.asarray(value), np.asarray(want_value), rtol=2.0**-20)
    np.testing.assert_allclose(np.asarray(gradient.table), np.asarray(want.table), rtol=0, atol=2.0**-18)
