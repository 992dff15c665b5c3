"""Every collective says why it is there, and what it says is true of the dims and the layout."""

import jax
import optax
import pytest

import weft as wf
from tests.program.cases import B, D, F, L, M, S, T, V, shape, weight
from weft.lower.collectives import all_max
from weft.lower.recorded import recorded
from weft.ops.reduce import Reduction
from weft.record import SUMS

ROWS_COLS = "rows=2,cols=4"
A, C = wf.dims(a=8, c=16)
E = wf.Dim("d_out", D.size)


def reasons(fn, *args, mesh=ROWS_COLS, layout, least=5):
    """`collective over axes: why` for each row that carries more than one number, without the word because."""
    program = wf.trace(fn, *args, mesh=mesh, layout=layout)
    found = [row for row in program.ledger if row.bytes >= least]
    assert all(row.reason.startswith("because ") for row in found)
    return [f"{row.collective} over {'+'.join(row.axes)}: {row.reason.removeprefix('because ')}" for row in found]


def total(fn):
    """The gradients of a function's sum by all its arguments."""

    def summed(*args):
        y = fn(*args)
        return wf.sum(wf.square(y), over=y.dims)

    return lambda *args: wf.grad(summed, argnums=tuple(range(len(args))))(*args)


def multiply(x, w):
    return wf.einsum(x, w, over=D)


# ---- forward


def test_a_sum_over_a_split_dim():
    assert reasons(multiply, shape(B, D), weight(D, F), layout="batch:rows,d_model:cols") == [
        "all_reduce over cols: d_model is summed and split over cols"
    ]
    assert reasons(lambda x: wf.mean(x, over=[B, D]), shape(B, D, F), layout="batch:rows,d_model:cols") == [
        "all_reduce over rows+cols: batch and d_model are summed and split over rows+cols"
    ]


def test_a_sum_over_a_dim_that_follows_another():
    assert reasons(lambda x: wf.sum(x, over=S), shape(B, S, D), layout="length:cols") == [
        "all_reduce over cols: stream is summed and split over cols"
    ]


@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        ({}, "spread goes over d_model, split over cols"),
        ({"reason_along": SUMS}, "d_model is summed and split over cols"),
        ({"reason": "because {op} is asked over {axes}"}, "spread is asked over cols"),
    ],
)
def test_an_op_that_no_reader_knows_says_itself_why_it_sends(traits, reason):
    @recorded(**traits)
    def spread(x, *, over):
        r = Reduction(x, over, "spread")
        return r.finish(all_max(r.local(lambda a: a.max(r.positions), padding=0), r.axes))

    found = reasons(lambda x: spread(x, over=D), shape(B, D), layout="batch:rows,d_model:cols")
    assert found == [f"all_reduce over cols: {reason}"]


@pytest.mark.parametrize("op", ["max", "min", "prod", "var", "logsumexp", "softmax", "log_softmax"])
def test_an_op_that_goes_over_a_split_dim(op):
    found = reasons(lambda x: getattr(wf, op)(x, over=D), shape(B, D), layout="batch:rows,d_model:cols")
    assert {text.split(": ")[1] for text in found} == {f"{op} goes over d_model, split over cols"}


def test_a_table_looked_up_in_along_a_split_dim():
    ids = shape(B, T, dtype="int32")
    assert reasons(lambda e, i: wf.take(e, i, over=V), weight(V, D), ids, layout="batch:rows,vocab:cols") == [
        "all_reduce over cols: vocab is looked up in, and split over cols"
    ]


def test_a_sum_that_leaves_under_a_name_split_over_that_axis():
    def leave(x, w):
        return wf.einsum(x, w, over=F, rename={"length": S})

    assert reasons(leave, shape(B, T, F), weight(F, D), layout="d_ff:cols,stream:cols") == [
        "reduce_scatter over cols: d_ff is summed and split over cols, where stream of the result lies"
    ]


def test_a_sum_that_leaves_under_the_name_it_is_summed_over():
    def leave(x, w):
        return wf.einsum(x, w, over=D, rename={"d_out": D})

    assert reasons(leave, shape(B, D), weight(D, E), layout="d_model:cols") == [
        "reduce_scatter over cols: d_model is summed and split over cols, where d_model of the result lies"
    ]


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("a:rows", "all_gather over rows: a is split over rows and b is whole"),
        ("a:rows,b:cols", "all_gather over rows: a is split over rows and b lies over cols"),
        ("a:rows+cols,b:rows", "all_gather over cols: a is split over cols and b lies over rows"),
        ("a:rows,d:rows", "all_to_all over rows: rows goes from a to c (now d)"),
    ],
)
def test_a_dim_renamed_to_one_that_lies_otherwise(layout, why):
    assert reasons(lambda x: x.rename(a="b", c="d"), shape(A, C), layout=layout) == [why]


def test_two_dims_that_change_names():
    assert reasons(lambda x: x.rename(a="c", c="a"), shape(A, wf.Dim("c", 8)), layout="a:rows") == [
        "all_to_all over rows: rows goes from a to c (now a)"
    ]


def test_a_whole_value_that_is_shown():
    def show(x):
        wf.print("{}", x)
        wf.check(x > 0, "not positive")
        return x

    assert set(reasons(show, shape(B, D), layout="batch:rows")) == {
        "all_gather over rows: print looks at the whole value",
        "all_gather over rows: check looks at the whole value",
    }


# ---- gradients


def test_the_gradient_of_what_is_whole_where_data_is_split():
    assert reasons(total(multiply), shape(B, D), weight(D, F), layout="batch:rows,d_ff:cols") == [
        "all_reduce over rows: w is whole over rows, used with data split there (batch)",
        "all_reduce over cols: x is whole over cols, used with data split there (d_ff)",
    ]


def test_the_gradient_of_what_is_whole_where_several_dims_of_the_data_are_split():
    found = reasons(total(multiply), shape(B, T, D), weight(D, F), layout="batch:rows,length:cols")
    assert found == ["all_reduce over rows+cols: w is whole over rows+cols, used with data split there (batch, length)"]


def test_the_gradient_of_a_gathered_dim():
    assert reasons(total(lambda x: x.rename(length=M)), shape(B, T, D), layout="length:cols") == [
        "all_gather over cols: length is split over cols and memory_length is whole",
        "reduce_scatter over cols: length is split over cols and memory_length is whole: "
        "the parts of the gradient are summed",
    ]


def test_the_gradient_of_a_dim_that_was_sliced():
    assert reasons(total(lambda x: wf.tanh(x).rename(length=M)), shape(B, T, D), layout="memory_length:cols") == [
        "all_gather over cols: memory_length is split over cols, and the gradient is needed whole"
    ]


def test_the_gradient_of_an_axis_that_moved():
    assert reasons(total(lambda x: x.rename(a="b", c="d")), shape(A, C), layout="a:rows,d:rows") == [
        "all_to_all over rows: rows goes from a to c (now d)",
        "all_to_all over rows: rows goes back from c (now d) to a",
    ]


def test_the_gradient_of_a_softmax():
    found = reasons(total(lambda x: wf.softmax(x, over=D)), shape(B, D), layout="d_model:cols")
    assert found[-1] == "all_reduce over cols: the gradient of softmax goes over d_model, split over cols"


def test_an_op_of_your_own_backward_rule_is_that_op():
    @jax.custom_vjp
    def scaled(x):
        return x * 2

    scaled.defvjp(lambda x: (x * 2, x), lambda x, g: (g * wf.max(x, over=D),))
    found = reasons(total(scaled), shape(B, D), layout="d_model:cols")
    assert {text.split(": ")[1] for text in found} == {"max goes over d_model, split over cols"}


# ---- how parameters and the optimizer's state are stored


def test_a_stored_parameter_is_gathered_gathered_again_and_its_gradient_scattered():
    assert reasons(total(multiply), shape(B, D), weight(D, F), layout="batch:rows,params.d_model:rows") == [
        "all_gather over rows: w is stored split over rows (params.d_model)",
        "all_gather over rows: w is stored split over rows (params.d_model), and the gradient needs it again",
        "reduce_scatter over rows: w is stored split over rows (params.d_model): each keeps its slice of the sum",
    ]


@pytest.mark.parametrize("stored", ["params.d_model:rows", "params.d_ff:rows", "params.d_ff:rows+cols"])
def test_a_sum_is_one_whether_or_not_its_weight_is_stored_split(stored):
    found = reasons(multiply, shape(B, D), weight(D, F), layout=f"batch:rows,d_model:cols,{stored}")
    rule = stored.split(":")[0]
    assert found == [
        f"all_gather over rows: w is stored split over rows ({rule})",
        "all_reduce over cols: d_model is summed and split over cols",
    ]


def test_stored_over_an_axis_that_also_splits_a_summed_dim():
    def both(x, w):
        return wf.einsum(x, w, over=[B, D])

    layout = "batch:rows,params.d_model:rows"
    assert reasons(both, shape(B, D), weight(D, F), layout=layout) == [
        "all_gather over rows: w is stored split over rows (params.d_model)",
        "all_reduce over rows: batch is summed and split over rows",
    ]


def test_what_is_computed_of_stored_parameters_alone_stays_stored():
    def tanh_first(x, w):
        v = wf.tanh(w)
        return wf.einsum(x, v, over=D)

    found = reasons(tanh_first, shape(B, D), weight(D, F), layout="batch:rows,params.d_model:rows")
    assert found == ["all_gather over rows: v is stored split over rows (params.d_model)"]


def test_parameters_in_a_tree_are_named_by_their_place_in_it():
    def net(x, params):
        return wf.einsum(wf.einsum(x, params["deep"][0], over=D), params["deep"][1], over=F)

    params = {"deep": [weight(D, F), weight(F, E)]}
    found = reasons(net, shape(B, D), params, layout="batch:rows,params.d_ff:rows")
    assert found == [
        "all_gather over rows: deep[0] is stored split over rows (params.d_ff)",
        "all_gather over rows: deep[1] is stored split over rows (params.d_ff)",
    ]


@pytest.mark.parametrize("closed_over", ["tensor", "number", "key"])
def test_what_a_function_closes_over_does_not_change_the_names_of_its_arguments(closed_over):
    held = {
        "tensor": wf.tensor(jax.numpy.ones(D.size), [D]),
        "number": jax.numpy.ones(()),
        "key": jax.random.key(0),
    }[closed_over]

    def net(w, x):
        y = wf.dropout(x, 0.5, held) if closed_over == "key" else x * held
        return wf.einsum(y, w, over=D)

    found = reasons(net, weight(D, F), shape(B, D), layout="batch:rows,params.d_model:rows")
    assert found == ["all_gather over rows: w is stored split over rows (params.d_model)"]


def test_stacked_weights_are_gathered_in_the_loop_because_they_are_stored():
    def net(x, ws):
        return wf.scan(lambda x, w: (x + wf.mean(wf.einsum(x, w, over=D), over=F), None), x, ws, over=L)[0]

    found = reasons(net, shape(B, D), weight(L, D, F), layout="batch:rows,params.d_model:rows")
    assert [text.split(" (")[-1] for text in found] == ["params.d_model)"]


def test_microbatches_gather_stored_parameters_because_they_are_stored():
    def loss(w, x):
        def part(w, x):
            return wf.sum(wf.square(multiply(x, w)), over="batch d_ff"), 1.0

        return wf.accumulate(part, w, x, over="batch", count=2)

    layout = "batch:rows,params.d_model:rows"
    gathered, scattered = reasons(wf.grad(loss), weight(D, F), shape(B, D), layout=layout)
    assert gathered == "all_gather over rows: w is stored split over rows (params.d_model)"
    assert scattered.startswith("reduce_scatter over rows: w is stored split over rows (params.d_model)")


def loss(params, x, key=None):
    return wf.mean(wf.square(multiply(x, params["w"])), over=[B, F])


def test_gradients_of_finer_optimizer_state_and_its_update():
    step = wf.train_step(loss, optax.adam(1e-3))
    state = step.init({"w": weight(D, F)})
    scattered, gathered = reasons(step, state, shape(B, D), layout="batch:rows,optimizer.d_model:rows")
    assert scattered.startswith("reduce_scatter over rows: ")
    assert "optimizer" in scattered
    assert gathered.startswith("all_gather over rows: ")
    assert "optimizer" in gathered


# ---- functions mapped, loops, regions in regions


def test_the_gradient_of_what_is_the_same_for_every_example():
    def per_example(x, w):
        return wf.vmap(lambda row: wf.einsum(row, w, over=D), over=B)(x)

    (found,) = reasons(total(per_example), shape(B, D), weight(D, F), layout="batch:rows")
    assert found.startswith("all_reduce over rows: ")
    assert "batch" in found


def test_the_gradient_of_a_weight_closed_over_by_two_mapped_functions():
    def per_word(x, w):
        inner = wf.vmap(lambda word: wf.einsum(word, w, over=D), over=T)
        return wf.vmap(inner, over=B)(x)

    (found,) = reasons(total(per_word), shape(B, T, D), weight(D, F), layout="batch:rows,length:cols")
    assert set(found.split("(")[1].strip(")").split(", ")) == {"batch", "length"}


def test_stored_weights_of_a_mapped_function_are_gathered_because_they_are_stored():
    def per_example(x, w):
        return wf.vmap(lambda row, w: wf.einsum(row, w, over=D), over=B)(x, w)

    (found,) = reasons(per_example, shape(B, D), weight(D, F), layout="batch:rows,params.d_model:rows")
    assert found == "all_gather over rows: w is stored split over rows (params.d_model)"


def test_a_region_inside_with_another_layout():
    inner = wf.spmd(multiply, mesh=ROWS_COLS, layout="d_model:cols")
    found = reasons(lambda x, w: inner(x, w), shape(B, D), shape(D, F), layout="batch:rows")
    assert found == [
        "all_gather over rows: the region called inside has another layout, which lays it otherwise over rows",
        "all_reduce over cols: d_model is summed and split over cols",
    ]


def test_a_copy_that_leaves_the_region():
    five, six = wf.dims(five=5, six=6)
    program = wf.trace(lambda x: x.rename(six="whole"), shape(five, six), mesh="x=3", layout="six:x")
    assert program.ledger[0].reason == "because six is split over x and whole is whole"
    program = wf.trace(lambda x: x.rename(six="whole"), shape(wf.Dim("six", 4)), mesh="x=4", layout="six:x")
    assert all(row.reason and row.source for row in program.ledger)
