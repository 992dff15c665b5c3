"""The ledger: what each collective carries, how often it runs, and the totals a test can ask for."""

import jax
import optax
import pytest

import weft as wf
from tests.program.cases import ADAM, B, D, F, L, M, T, V, shape, weight
from tests.program.independent import walk
from weft.lower import levels
from weft.program import Ledger, Row

ROWS_COLS = "rows=2,cols=4"
X = 4  # bytes of a float32


def traced(fn, *args, mesh=ROWS_COLS, layout):
    return wf.trace(fn, *args, mesh=mesh, layout=layout)


def rows(program, *fields):
    return [tuple(getattr(row, field) for field in fields) for row in program.ledger]


def net(params, x):
    h = wf.relu(wf.einsum(x, params["w"], over=D))
    return wf.einsum(h, params["v"], over=F)


def loss(params, x, key=None):
    y = net(params, x)
    return wf.mean(wf.square(y - x), over=[B, D])


PARAMS = {"w": weight(D, F), "v": weight(F, D)}
MANY = wf.Dim("memory_length", 4 * B.size)  # divides over both axes


# ---- what a row says


def test_a_row_says_what_is_sent_over_what_how_often_where_and_why():
    program = traced(wf.value_and_grad(loss), PARAMS, shape(B, D), layout="batch:rows,d_ff:cols")
    forward = net.__code__.co_firstlineno
    row = program.ledger[0]
    assert (row.collective, row.axes, row.dims, row.dtype) == ("all_reduce", ("cols",), ("batch", "d_model"), "float32")
    assert (row.bytes, row.count, row.phase, row.exact) == (B.size // 2 * D.size * X, 1, "forward", True)
    assert (row.source, row.function) == (f"tests/program/test_ledger.py:{forward + 2}", "net")
    assert row.reason == "because d_ff is summed and split over cols"
    assert str(row) == f"all_reduce over cols  384 B x1  {row.source}  {row.reason}"


# What one call carries on one processor: what it gives, and for an all-gather what it gets.
a, c = wf.dims(a=8, c=16)
PAYLOADS = {
    "all_reduce": (lambda x: wf.sum(x, over="a"), "a:x", c.size),
    "reduce_scatter": (lambda x: wf.einsum(x, over="a", rename={"c": "d"}), "a:x,d:x", c.size),
    "all_gather": (lambda x: x.rename(a="b"), "a:x", a.size * c.size),
    "all_to_all": (lambda x: x.rename(a="b", c="d"), "a:x,d:x", a.size * c.size // 4),
}


@pytest.mark.parametrize("kind", PAYLOADS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_the_payload_of_one_call_on_one_processor(kind, dtype):
    fn, layout, elements = PAYLOADS[kind]
    program = traced(fn, shape(a, c, dtype=dtype), mesh="x=4", layout=layout)
    assert rows(program, "collective", "bytes") == [(kind, elements * (4 if dtype == "float32" else 2))]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all_reduce", 2 * 3 * 16 * X // 4),
        ("reduce_scatter", 3 * 16 * X // 4),
        ("all_gather", 3 * 8 * 16 * X // 4),
        ("all_to_all", 3 * 8 * 16 // 4 * X // 4),
    ],
)
def test_wire_bytes_are_what_a_ring_sends(kind, sent):
    fn, layout, _ = PAYLOADS[kind]
    (row,) = traced(fn, shape(a, c), mesh="x=4", layout=layout).ledger
    assert row.wire_bytes == sent


def test_a_permute_sends_what_it_carries():
    row = Row("permute", ("x",), ("a",), "float32", 64, 1, "forward", "net.py:1", "net", "because", True, 4)
    assert row.wire_bytes == 64


@pytest.mark.parametrize(
    ("layout", "dims"),
    [("batch:rows", ("d_ff",)), ("batch:rows,d_ff:cols", ("d_ff",)), ("d_ff:cols", ("batch",))],
)
def test_dims_are_those_of_what_is_carried(layout, dims):
    def reduced(x):
        return wf.sum(x, over="batch" if "batch" in layout else "d_ff")

    (row,) = traced(reduced, shape(B, F), layout=layout).ledger
    assert row.dims == dims


# ---- how often it runs


def layers(ws, x):
    def layer(x, w):
        return x + wf.mean(wf.einsum(x, w, over=D), over=F), None

    return wf.scan(layer, x, ws, over=L)[0]


def test_a_scan_multiplies_what_is_in_it():
    program = traced(layers, weight(L, D, F), shape(B, D), layout="d_ff:cols")
    assert rows(program, "collective", "count", "is_each_turn") == [("all_reduce", L.size, False)]


def test_loops_inside_loops_multiply():
    def outer(x, ws):
        return wf.fori_loop(0, 5, lambda _, x: layers(ws, x), x)

    (row,) = traced(outer, shape(B, D), weight(L, D, F), layout="d_ff:cols").ledger
    assert row.count == 5 * L.size


def test_backward_and_recomputation_are_counted_in_their_phases():
    def total(ws, x):
        def layer(x, w):
            return x + wf.einsum(wf.relu(wf.einsum(x, w["w"], over=D)), w["v"], over=F), None

        return wf.sum(wf.scan(wf.remat(layer), x, ws, over=L)[0], over=[B, D])

    stacked = {"w": weight(L, D, F), "v": weight(L, F, D)}
    program = traced(wf.value_and_grad(total), stacked, shape(B, D), layout="batch:rows,params.d_model:rows")
    ledger, whole = program.ledger, D.size * F.size * X
    assert ledger.count(phase="forward") == 2 * L.size + 1
    assert ledger.bytes(phase="recompute") == 2 * L.size * whole
    assert ledger.bytes(phase="backward") == 2 * L.size * whole
    assert ledger.bytes(phase="update") == 0


def test_a_loop_of_unknown_length_counts_one_turn_and_says_so():
    def grow(x):
        return wf.while_loop(lambda x: wf.sum(x, over=[B, D]) < 10, lambda x: x * 2, x)

    program = traced(grow, shape(B, D), layout="batch:rows")
    (row,) = program.ledger
    assert (row.count, row.is_each_turn) == (1, True)
    assert "x1 a turn" in str(row)
    assert "a loop's length is not known: what is in it is counted for one turn" in str(program)


def test_a_scan_inside_a_loop_of_unknown_length_counts_its_turns_in_one():
    def grow(x, ws):
        return wf.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, layers(ws, s[1])), (0, x))[1]

    (row,) = traced(grow, shape(B, D), weight(L, D, F), layout="d_ff:cols").ledger
    assert (row.count, row.is_each_turn) == (L.size, True)


def test_a_choice_counts_its_larger_branch():
    def chosen(is_long, x):
        once = lambda x: wf.sum(x, over=B)  # noqa: E731
        return wf.cond(is_long, lambda x: once(x) + wf.max(x, over=B), once, x)

    def sums(is_long, x):
        return wf.cond(is_long, lambda x: wf.sum(x, over=[B, D]), lambda x: wf.sum(wf.sum(x, over=B), over=D), x)

    is_long = jax.ShapeDtypeStruct((), bool)
    large = traced(lambda x: wf.sum(x, over=B) + wf.max(x, over=B), shape(B, D), layout="batch:rows").ledger.bytes()
    assert traced(chosen, is_long, shape(B, D), layout="batch:rows").ledger.bytes() == large
    assert traced(sums, is_long, shape(B, D), layout="batch:rows").ledger.bytes() == D.size * X


# ---- totals


def test_totals_are_of_all_calls():
    program = traced(wf.value_and_grad(loss), PARAMS, shape(B, D), layout="batch:rows,d_ff:cols")
    ledger, gradient = program.ledger, D.size * F.size // 4 * X
    assert ledger.bytes() == sum(row.bytes * row.count for row in ledger)
    assert ledger.bytes("rows") == 2 * gradient + X
    assert ledger.bytes(axis="rows", phase="backward") == 2 * gradient
    assert ledger.bytes(axis="cols") == ledger.bytes(phase="forward") - X == B.size // 2 * D.size * X
    assert (ledger.count(), ledger.count("rows"), ledger.count("rows", "backward")) == (4, 3, 2)


def test_what_goes_over_two_axes_counts_fully_for_each():
    program = traced(lambda x: wf.sum(x, over="batch"), shape(MANY.renamed("batch"), D), layout="batch:rows+cols")
    (row,) = program.ledger
    assert row.axes == ("rows", "cols")
    assert program.ledger.bytes("rows") == program.ledger.bytes("cols") == program.ledger.bytes() == D.size * X


def test_a_ledger_is_a_sequence_of_rows():
    ledger = traced(wf.value_and_grad(loss), PARAMS, shape(B, D), layout="batch:rows,d_ff:cols").ledger
    assert len(ledger) == len(list(ledger)) == 4
    assert ledger[0] is next(iter(ledger))
    assert ledger[-1] in ledger
    assert [row.phase for row in ledger[1:]] == ["forward", "backward", "backward"]


def test_axes_of_size_one_and_the_empty_layout_send_nothing():
    for mesh, layout in [("rows=1,cols=1", "batch:rows,d_ff:cols"), (ROWS_COLS, "")]:
        ledger = traced(wf.value_and_grad(loss), PARAMS, shape(B, D), mesh=mesh, layout=layout).ledger
        assert (len(ledger), ledger.bytes(), ledger.count(), str(ledger)) == (0, 0, 0, "nothing is sent")


def test_an_axis_of_size_one_beside_another_is_left_out():
    program = traced(lambda x: wf.sum(x, over=B), shape(B, D), mesh="one=1,x=4", layout="batch:one+x")
    assert rows(program, "axes", "ways") == [(("x",), 4)]


# ---- between hosts: what goes over several levels of a mesh goes level by level


WIDE = wf.Dim("width", 1024)


def test_a_sum_between_hosts_has_three_rows_and_its_gradient_none():
    def square(w, x):
        return wf.sum(wf.square(wf.sum(x * w, over=B)), over=WIDE)

    def sums(mesh):
        program = traced(wf.grad(square), weight(WIDE), shape(B, WIDE), mesh=mesh, layout="batch:hosts+x")
        return program, rows(program, "phase", "collective", "axes", "bytes", "reason")

    n = WIDE.size * X
    flat, flat_rows = sums("hosts=2,x=4")
    assert [row[:4] for row in flat_rows] == [
        ("forward", "all_reduce", ("hosts", "x"), n),
        ("backward", "all_reduce", ("hosts", "x"), n),  # of the gradient of w; that of the sum is a cast
    ]
    program, found = sums("hosts=2 | x=4")
    assert found == [
        row
        for phase, _, _, _, why in flat_rows
        for row in (
            (phase, "reduce_scatter", ("x",), n, f"{why}: scattered over x"),
            (phase, "all_reduce", ("hosts",), n // 4, f"{why}: summed over hosts"),
            (phase, "all_gather", ("x",), n, f"{why}: gathered over x"),
        )
    ]
    assert program.ledger.bytes("hosts") == flat.ledger.bytes("hosts") // 4
    assert sum(row.wire_bytes for row in program.ledger) == sum(row.wire_bytes for row in flat.ledger)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            "batch:pods+hosts+x",
            [("reduce_scatter", "x", 1), ("reduce_scatter", "hosts", 2), ("all_reduce", "pods", 4),
             ("all_gather", "hosts", 2), ("all_gather", "x", 1)],
        ),
        ("batch:x+pods", [("reduce_scatter", "x", 1), ("all_reduce", "pods", 2), ("all_gather", "x", 1)]),
        ("batch:pods+hosts", [("reduce_scatter", "hosts", 1), ("all_reduce", "pods", 2), ("all_gather", "hosts", 1)]),
        ("batch:x", [("all_reduce", "x", 1)]),
        (
            "batch:pods+hosts+x,params.width:pods+hosts+x",
            [("reduce_scatter", "x", 1), ("reduce_scatter", "hosts", 2), ("reduce_scatter", "pods", 4)],
        ),
        (
            "batch:pods+hosts+x,params.width:hosts+x",
            [("reduce_scatter", "x", 1), ("reduce_scatter", "hosts", 2), ("all_reduce", "pods", 4)],
        ),
    ],
)  # fmt: skip
def test_a_gradient_goes_between_hosts_and_pods_in_ever_smaller_parts(layout, expected):
    def loss(w, x):
        return wf.sum(wf.tanh(x * w), over=[B, WIDE])

    program = traced(wf.grad(loss), weight(WIDE), shape(B, WIDE), mesh="pods=2 | hosts=2 | x=2", layout=layout)
    sent = [row for row in program.ledger if row.phase == "backward"]
    assert [(row.collective, *row.axes, WIDE.size * X // row.bytes) for row in sent] == expected
    gathered = [row.axes[0] for row in program.ledger if row.phase == "forward"]  # the same way back
    assert gathered == [axis for collective, axis, _ in reversed(expected) if "params" in layout and "_s" in collective]


def test_few_bytes_go_between_hosts_in_one_step():
    few = wf.Dim("few", levels.FLAT_BELOW // X - 1)
    for dim, count in ((few, 1), (few.resized(few.size + 1), 3)):
        program = traced(lambda x: wf.sum(x, over=B), shape(B, dim), mesh="hosts=2 | x=4", layout="batch:hosts+x")
        assert len(program.ledger) == count


@pytest.mark.parametrize(("size", "steps"), [(64, 2), (levels.EXCHANGED_BELOW // 16, 1)])
def test_experts_all_to_all_goes_inside_hosts_first_unless_messages_are_large(size, steps):
    def dispatch(x):
        return x.rename(batch=wf.Dim("expert_batch", 8), router="experts")

    x = shape(B, wf.Dim("router", 8), wf.Dim("width", size * 4))
    program = traced(dispatch, x, mesh="hosts=2 | x=4", layout="batch:hosts+x,experts:hosts+x")
    n = 8 * size * 4 * X
    assert n // 8 == size * 16
    assert rows(program, "collective", "axes", "bytes") == (
        [("all_to_all", ("x",), n), ("all_to_all", ("hosts",), n)]
        if steps == 2
        else [("all_to_all", ("hosts", "x"), n)]
    )


@pytest.mark.parametrize(
    ("wrong", "fact", "fix"),
    [
        (dict(axis="row"), "the mesh has no axis `row`", "`rows`"),
        (dict(phase="forwards"), "a program has no phase `forwards`", "`forward`"),
    ],
)
def test_an_unknown_axis_or_phase_is_an_error(wrong, fact, fix):
    ledger = traced(net, PARAMS, shape(B, D), layout="batch:rows,d_ff:cols").ledger
    for ask in (ledger.bytes, ledger.count):
        with pytest.raises(wf.LayoutError) as error:
            ask(**wrong)
        assert error.value.fact == fact
        assert fix in error.value.fix


# ---- the update


def test_an_update_that_keeps_everything_in_place_sends_nothing():
    step = wf.train_step(loss, ADAM)
    ledger = traced(step, step.init(PARAMS), shape(B, D), layout="batch:rows,d_ff:cols").ledger
    assert ledger.count(phase="update") == 0


def test_state_stored_finer_is_gathered_in_the_update():
    step = wf.train_step(loss, ADAM)
    program = traced(step, step.init(PARAMS), shape(B, D), layout="batch:rows,optimizer.d_model:rows")
    update = [row for row in program.ledger if row.phase == "update"]
    assert [(row.collective, row.axes, row.bytes, row.exact) for row in update] == [
        ("all_gather", ("rows",), D.size * F.size * X, True)
    ] * 2
    scattered = [row for row in program.ledger if row.collective == "reduce_scatter"]
    assert len(scattered) == 2
    assert all(row.source and row.reason for row in program.ledger)


def test_state_stored_finer_along_two_dims_is_gathered_one_by_one():
    step = wf.train_step(loss, ADAM)
    layout = "batch:rows,optimizer.d_model:rows,optimizer.d_ff:cols"
    update = [
        row for row in traced(step, step.init(PARAMS), shape(B, D), layout=layout).ledger if row.phase == "update"
    ]
    whole = D.size * F.size * X
    # What is gathered first is still split along the other dim: w is [d_model d_ff], v is [d_ff d_model].
    assert sorted((row.axes, row.bytes) for row in update) == sorted(
        [(("rows",), whole // 4), (("cols",), whole), (("cols",), whole // 2), (("rows",), whole)]
    )


def test_what_your_own_function_sends_over_an_axis_of_size_one_is_nothing():
    program = traced(
        lambda x: wf.local(lambda a: jax.lax.psum(a, "one"), x, out=[B, D]), shape(B, D), mesh="one=1,x=4",
        layout="batch:x",
    )  # fmt: skip
    assert len(program.ledger) == 0


def test_an_update_whose_collectives_cannot_be_known_says_so():
    step = wf.train_step(loss, optax.contrib.muon(1e-3))
    program = traced(step, step.init(PARAMS), shape(B, D), layout="batch:rows,d_ff:cols")
    assert "not exact: " in str(program)


def test_an_update_whose_collectives_are_known_does_not_say_otherwise():
    step = wf.train_step(loss, ADAM)
    program = traced(step, step.init(PARAMS), shape(B, D), layout="batch:rows,optimizer.d_model:rows")
    assert "not exact" not in str(program)


# ---- the table


def test_the_table_has_a_line_for_each_row_and_totals_for_each_axis():
    program = traced(wf.value_and_grad(loss), PARAMS, shape(B, D), layout="batch:rows,d_ff:cols")
    at = net.__code__.co_firstlineno
    table = program.ledger.table().replace("tests/program/test_ledger.py", "net.py")
    assert table == str(program.ledger).replace("tests/program/test_ledger.py", "net.py")
    titles, first, *_, second_last, last = table.splitlines()
    assert titles.split() == "phase collective over carries bytes count total source reason".split()
    assert first.split("  ")[0] == "forward"
    assert f"384 B     x1  384 B  net.py:{at + 2}  because d_ff is summed and split over cols" in first
    assert (second_last, last) == ("over rows: 1.879 KiB in 3 calls", "over cols: 384 B in 1 call")


def test_a_ledger_made_of_rows_knows_its_axes():
    row = Row("permute", ("x",), (), "float32", 2048, 3, "forward", "net.py:1", "net", "because it is shifted", True, 4)
    ledger = Ledger([row])
    assert ledger.totals() == ["over x: 6 KiB in 3 calls"]
    assert ledger.bytes("x") == ledger.bytes() == 6144
    assert repr(ledger) == "Ledger(1 row, 6 KiB in 3 calls)"


# ---- the models agree with an independent reading


def lookup(table, ids):
    return wf.mean(wf.softmax(wf.take(table, ids, over=V), over=D), over=[B, T, D])


@pytest.mark.parametrize(
    ("fn", "args", "layout"),
    [
        (wf.value_and_grad(lookup), (weight(V, D), shape(B, T, dtype="int32")), "batch:rows,vocab:cols"),
        (wf.value_and_grad(lookup), (weight(V, D), shape(B, T, dtype="int32")), "length:rows,d_model:cols"),
        (lambda x: x.rename(length=M), (shape(B, T, D),), "batch:rows,length:cols"),
        (lambda x: (wf.max(x, over=D), wf.prod(x, over=D), wf.var(x, over=D)), (shape(B, D),), "d_model:cols"),
    ],
)
def test_the_ledger_equals_an_independent_reading(fn, args, layout):
    program = traced(fn, *args, layout=layout)
    found = walk(program.jaxpr)
    for kind, axes in found:
        mine = [row for row in program.ledger if (row.collective, frozenset(row.axes)) == (kind, axes)]
        assert sum(row.bytes * row.count for row in mine) == found[kind, axes]
    assert program.ledger.bytes() == found.total() > 0
