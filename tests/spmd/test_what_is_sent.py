"""What programs send, read off the traced program: the paper's table, and one gradient sum where one is due."""

from collections import Counter

import jax
import jax.numpy as jnp
import optax
import pytest

import weft as wf

B, IO, H = wf.dims(batch=64, io=128, hidden=512)


def shape(*dims, dtype="float32"):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def weight(*dims, dtype="float32"):
    return wf.parameter(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def net(x, w, v):
    return wf.einsum(wf.relu(wf.einsum(x, w, out=[B, H])), v, out=[B, IO])


def net_loss(params, x, key=None):
    y = net(x, *params)
    return wf.sum(wf.square(y - x), over=[B, IO])


def sent(program, *, least=2):
    """How many calls there are of each collective over each axis with more than `least` elements."""
    found = Counter()
    for row in program.ledger:
        if row.bytes // jnp.dtype(row.dtype).itemsize >= least:
            found[row.collective, "+".join(row.axes)] += row.count
    return dict(found)


def elements(program, collective="all_reduce"):
    """Elements all-reduced on one processor, scalars of the loss aside."""
    sizes = [r.bytes // jnp.dtype(r.dtype).itemsize * r.count for r in program.ledger if r.collective == collective]
    return sum(size for size in sizes if size > 1)


# Measured from the original's own counters: forward, backward and SGD, without the gradient of x.
TABLE = [
    ("batch:all", "all=4", 131072),
    ("hidden:all", "all=4", 8192),
    ("batch:r;hidden:c", "r=2,c=2", 69632),
    ("batch:r;io:c", "r=2,c=2", 98304),
    ("hidden:r;io:c", "r=2,c=2", 36864),
    ("batch:x;hidden:y;io:z", "x=2,y=2,z=2", 51200),
]


@pytest.mark.parametrize(("layout", "mesh", "expected"), TABLE)
def test_the_two_layer_net_sends_what_the_paper_says(layout, mesh, expected):
    step = wf.train_step(net_loss, optax.sgd(0.1))
    params = weight(IO, H), weight(H, IO)
    program = wf.trace(step, step.init(params), shape(B, IO), mesh=mesh, layout=layout)
    assert {row.collective for row in program.ledger} == {"all_reduce"}
    assert elements(program) == expected


def test_fully_sharded_parameters_are_gathered_at_use_and_their_gradients_scattered():
    def both(params, x):
        return wf.value_and_grad(lambda p, x: net_loss(p, x), argnums=(0, 1))(params, x)

    program = wf.trace(both, (weight(IO, H), weight(H, IO)), shape(B, IO), mesh="x=4", layout="batch:x,params.io:x")
    # Two gathers (forward, and again backward for the gradient of what it multiplied) and one reduce-scatter each.
    assert sent(program) == {("all_gather", "x"): 4, ("reduce_scatter", "x"): 2}


def test_a_stored_gradient_is_scattered_before_it_is_summed_over_other_axes():
    def loss(w, x):
        return wf.sum(wf.square(wf.einsum(x, w, over=IO)), over=[B, H])

    program = wf.trace(wf.grad(loss), weight(IO, H), shape(B, IO), mesh="x=4,y=2", layout="batch:x+y,params.io:x")
    rows = [(row.collective, row.axes, row.bytes) for row in program.ledger if row.bytes > 4]
    assert rows[-2:] == [("reduce_scatter", ("x",), 4 * 128 * 512), ("all_reduce", ("y",), 128 * 512)]


def test_a_gather_is_not_repeated_where_the_backward_pass_does_not_need_it():
    program = wf.trace(
        wf.value_and_grad(net_loss),
        (weight(IO, H), weight(H, IO)),
        shape(B, IO),
        mesh="x=4",
        layout="batch:x,params.io:x",
    )
    # x needs no gradient, so the first weight is not needed again.
    assert sent(program) == {("all_gather", "x"): 3, ("reduce_scatter", "x"): 2}


def test_gradients_of_stored_optimizer_state_leave_by_one_reduce_scatter():
    step = wf.train_step(net_loss, optax.adam(0.1))
    params = weight(IO, H), weight(H, IO)
    program = wf.trace(step, step.init(params), shape(B, IO), mesh="x=4", layout="batch:x,optimizer.io:x")
    # In the update each processor makes its slice of a parameter new; all of them hold the whole afterwards.
    assert sent(program) == {("reduce_scatter", "x"): 2, ("all_gather", "x"): 2}
    assert program.ledger.bytes(phase="update") == 2 * 4 * IO.size * H.size


D, HEADS, K, F = wf.dims(d_model=16, heads=8, d_kv=4, d_ff=32)


def test_a_value_used_three_times_has_its_gradient_summed_once():
    def loss(h, q, k, v):
        parts = [wf.einsum(h, w, over=D) for w in (q, k, v)]
        return wf.sum(parts[0] * parts[1] * parts[2], over=[B, HEADS, K])

    args = shape(B, D), *(weight(D, HEADS, K) for _ in range(3))
    program = wf.trace(wf.value_and_grad(loss), *args, mesh="x=4", layout="heads:x")
    assert sent(program) == {("all_reduce", "x"): 1}


def test_a_parameter_cast_at_each_use_has_its_gradient_summed_once():
    def loss(w, x):
        first = wf.einsum(x, wf.cast(w, "bfloat16"), over=D)
        second = wf.einsum(x, wf.cast(w, "bfloat16"), over=D)
        return wf.sum(wf.cast(first * second, "float32"), over=[B, F])

    program = wf.trace(
        wf.value_and_grad(loss), weight(D, F), shape(B, D, dtype="bfloat16"), mesh="x=4", layout="batch:x"
    )
    rows = [row for row in program.ledger if row.bytes > 4]
    assert [(row.collective, row.dtype, row.count) for row in rows] == [("all_reduce", "bfloat16", 1)]


@pytest.mark.parametrize("sum_dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_slices_for_the_optimizer_are_scattered_in_the_dtype_asked_for(sum_dtype):
    step = wf.train_step(net_loss, optax.adam(1e-3), sum_dtype=sum_dtype)
    params = weight(IO, H), weight(H, IO)
    layout = "batch:x+y,optimizer.hidden:x"
    program = wf.trace(step, step.init(params), shape(B, IO), mesh="x=4,y=2", layout=layout)
    sums = [row for row in program.ledger if row.phase == "backward" and row.bytes > 4]
    assert {row.dtype for row in sums} == {sum_dtype}
    narrow = [("all_to_all", "x"), ("all_to_all", "y"), ("all_gather", "y")]
    wide = [("reduce_scatter", "x"), ("all_reduce", "y")]
    sent = Counter((row.collective, *row.axes) for row in sums)
    assert sent == Counter((narrow if sum_dtype.startswith("float8") else wide) * 2)  # of each weight


@pytest.mark.parametrize("sum_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["batch:x", "batch:x,params.d_model:x"])
def test_gradient_sums_travel_in_the_dtype_asked_for(sum_dtype, layout):
    def loss(w, x):
        return wf.sum(wf.cast(wf.einsum(x, wf.cast(w, "bfloat16"), over=D), "float32"), over=[B, F])

    gradients = wf.value_and_grad(loss, sum_dtype=sum_dtype)
    program = wf.trace(gradients, weight(D, F), shape(B, D, dtype="bfloat16"), mesh="x=4", layout=layout)
    sums = [row for row in program.ledger if row.collective in ("all_reduce", "reduce_scatter") and row.bytes > 4]
    assert [row.dtype for row in sums] == [sum_dtype]


def test_a_weight_tied_over_the_turns_of_a_scan_has_its_gradient_summed_once():
    turns = wf.Dim("turns", 5)

    def loss(w, x):
        def turn(x, _):
            return wf.tanh(wf.einsum(x, w, over=D).rename(d_out=D)), None

        last, _ = wf.scan(turn, x, None, over=turns)
        return wf.sum(last, over=[B, D])

    w = wf.parameter(jax.ShapeDtypeStruct((16, 16), "float32"), [D, wf.Dim("d_out", 16)])
    program = wf.trace(wf.value_and_grad(loss), w, shape(B, D), mesh="x=4", layout="batch:x")
    assert sent(program) == {("all_reduce", "x"): 1}


@pytest.mark.parametrize(("layout", "expected"), [("batch:x", {("all_reduce", "x"): 1})])
def test_microbatches_sum_their_gradients_once(layout, expected):
    def loss(w, x):
        def part(w, x):
            y = wf.einsum(x, w, over=D)
            return wf.sum(wf.square(y), over="batch d_ff"), wf.sum(wf.ones(x.dims, like=x), over="batch d_model")

        return wf.accumulate(part, w, x, over="batch", count=8)

    program = wf.trace(wf.value_and_grad(loss), weight(D, F), shape(B, D), mesh="x=4", layout=layout)
    assert sent(program) == expected


@pytest.mark.parametrize("count", [1, 2, 8])
def test_each_microbatch_gathers_stored_parameters_and_scatters_their_gradients(count):
    def loss(w, x):
        def part(w, x):
            return wf.sum(wf.square(wf.einsum(x, w, over=D)), over="batch d_ff"), 1.0

        return wf.accumulate(part, w, x, over="batch", count=count)

    program = wf.trace(
        wf.value_and_grad(loss), weight(D, F), shape(B, D), mesh="x=4", layout="batch:x,params.d_model:x"
    )
    assert sent(program) == {("all_gather", "x"): count, ("reduce_scatter", "x"): count}
    of_loss = 4
    assert program.ledger.bytes(axis="x") == count * (2 * D.size * F.size * 4 + of_loss)


def test_scanned_layers_gather_inside_the_loop():
    L = wf.Dim("layers", 6)
    G = wf.Dim("d_ff", 32)

    def loss(p, x):
        def layer(x, p):
            return x + wf.einsum(wf.relu(wf.einsum(x, p["w1"], over=D)), p["w2"], over=G), None

        return wf.sum(wf.scan(wf.remat(layer), x, p, over=L)[0], over=[B, D])

    params = {"w1": weight(L, D, G), "w2": weight(L, G, D)}
    program = wf.trace(wf.value_and_grad(loss), params, shape(B, D), mesh="x=4", layout="batch:x,params.d_model:x")
    assert sent(program) == {("all_gather", "x"): 24, ("reduce_scatter", "x"): 12}
    assert all(row.count == 6 for row in program.ledger if row.bytes > 4)


def test_a_result_that_leaves_under_a_split_name_is_one_reduce_scatter():
    T, S = wf.Dim("length", 8), wf.Dim("stream", 8, follows="length")

    def block(x, w):
        return wf.einsum(x, w, over=F, rename={"length": S})

    args = shape(B, T, F), weight(F, D)
    program = wf.trace(block, *args, mesh="c=4", layout="d_ff:c,stream:c")
    assert sent(program) == {("reduce_scatter", "c"): 1}
    program = wf.trace(block, *args, mesh="c=4", layout="d_ff:c")
    assert sent(program) == {("all_reduce", "c"): 1}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("a:x", {("all_gather", "x"): 1}),
        ("b:x", {}),
        ("a:x,b:x", {}),
        ("a:x,c:x", {("all_to_all", "x"): 1}),
    ],
)
def test_renames_move_no_more_than_they_must(layout, expected):
    a, e = wf.dims(a=8, e=8)

    def move(x):
        return x.rename(a="b", e="c") if "c:" in layout else x.rename(a="b")

    assert sent(wf.trace(move, shape(a, e), mesh="x=4", layout=layout)) == expected


def test_a_slice_of_something_whole_sends_its_gradient_as_a_gather():
    a, e = wf.dims(a=8, e=8)

    def loss(x, y):
        return wf.sum(wf.tanh(x).rename(a="b") * y, over="b e")

    program = wf.trace(wf.value_and_grad(loss), shape(a, e), shape(a.renamed("b"), e), mesh="x=4", layout="b:x")
    assert sent(program) == {("all_gather", "x"): 1}


def test_axes_of_size_one_send_nothing():
    step = wf.train_step(net_loss, optax.sgd(0.1))
    params = weight(IO, H), weight(H, IO)
    program = wf.trace(step, step.init(params), shape(B, IO), mesh="r=1,c=1", layout="batch:r,hidden:c")
    assert len(program.ledger) == 0


def test_the_ledger_is_flat_in_the_number_of_processors():
    args = (weight(IO, H), weight(H, IO)), shape(wf.Dim("batch", 4096), IO)

    def rows(mesh):
        loss = lambda p, x: wf.sum(wf.einsum(wf.einsum(x, p[0], over=IO), p[1], over=H), over="batch io")  # noqa: E731
        program = wf.trace(wf.value_and_grad(loss), *args, mesh=mesh, layout="batch:r,hidden:c")
        return [(row.collective, row.axes) for row in program.ledger]

    assert rows("r=2,c=4") == rows("r=4096,c=64") != []
