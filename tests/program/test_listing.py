"""The printed program, as a user reads it: an op a line, collectives standing out, loops once, layers folded."""

# ruff: noqa: E501 -- programs stand here as wide as they are printed

import jax
import optax
import pytest

import weft as wf
from tests.program.cases import B, D, F, L, S, T, shape, weight

ROWS_COLS = "rows=2,cols=4"


def traced(fn, *args, mesh=ROWS_COLS, layout):
    return wf.trace(fn, *args, mesh=mesh, layout=layout)


def printed(fn, *args, mesh=ROWS_COLS, layout):
    """The program with functions in place of lines, between line breaks."""
    return f"\n{traced(fn, *args, mesh=mesh, layout=layout).text(lines=False)}\n"


def flat(lines):
    for line in lines:
        yield line
        yield from flat(line.lines)


def listed(program, kind="op"):
    return [line for line in flat(program.lines) if line.kind == kind]


# ---- whole programs


def net(x, w, v):
    h = wf.relu(wf.einsum(x, w, out=[B, F]))
    y = wf.einsum(h, v, out=[B, D])
    return y


NET = shape(B, D), weight(D, F), weight(F, D)


def test_a_net_is_an_op_a_line_and_a_line_for_what_it_sends():
    assert (
        printed(net, *NET, layout="batch:rows,d_ff:cols")
        == """
net on rows=2,cols=4 (8 processors) under batch:rows,d_ff:cols
batch=8 d_model=24 d_ff=40

forward
     f32[batch/rows d_ff/cols]  einsum(x, w)  net
  h  f32[batch/rows d_ff/cols]  relu(...)     net
  y  f32[batch/rows d_model]    einsum(h, v)  net
     >> all_reduce over cols    384 B x1      net  because d_ff is summed and split over cols

over rows: nothing
over cols: 384 B in 1 call
work: 3.84 kFLOP on each processor; no work is done twice
"""
    )


def test_with_lines_every_line_ends_where_it_was_written():
    program = traced(net, *NET, layout="batch:rows,d_ff:cols")
    at = net.__code__.co_firstlineno
    lines = str(program).replace("tests/program/test_listing.py", "net.py").splitlines()
    assert [line.rstrip().split()[-1] for line in lines[4:7]] == [
        f"net.py:{at + 1}",
        f"net.py:{at + 1}",
        f"net.py:{at + 2}",
    ]
    assert f"net.py:{at + 2}  because d_ff is summed and split over cols" in lines[7]


def loss(params, x, key=None):
    y = net(x, *params)
    return wf.mean(wf.square(y - x), over=[B, D])


PARAMS = weight(D, F), weight(F, D)


def test_the_backward_pass_says_of_what_each_line_is_the_gradient():
    found = printed(wf.value_and_grad(loss), PARAMS, shape(B, D), layout="batch:rows,d_ff:cols")
    assert (
        found
        == """
loss on rows=2,cols=4 (8 processors) under batch:rows,d_ff:cols
batch=8 d_model=24 d_ff=40

forward
         f32[batch/rows d_ff/cols]  einsum(x, w)              net
  h      f32[batch/rows d_ff/cols]  relu(...)                 net
  y      f32[batch/rows d_model]    einsum(h, v)              net
         >> all_reduce over cols    384 B x1                  net   because d_ff is summed and split over cols
         f32[batch/rows d_model]    y - x                     loss
         f32[batch/rows d_model]    square(...)               loss
         f32[]                      mean(..., over=[B, D])    loss
         >> all_reduce over rows    4 B x1                    loss  because batch is summed and split over rows
backward
  d ...  f32[batch/rows d_model]    gradient of mean(...)     loss
  d ...  f32[batch/rows d_model]    gradient of square(...)   loss
  d h    f32[batch/rows d_ff/cols]  gradient of einsum(h, v)  net
  d v    f32[d_ff/cols d_model]     gradient of einsum(h, v)  net
         >> all_reduce over rows    960 B x1                  net   because v is whole over rows, used with data split there (batch)
  d ...  f32[batch/rows d_ff/cols]  gradient of relu(...)     net
  d w    f32[d_model d_ff/cols]     gradient of einsum(x, w)  net
         >> all_reduce over rows    960 B x1                  net   because w is whole over rows, used with data split there (batch)

over rows: 1.879 KiB in 3 calls
over cols: 384 B in 1 call
work: 9.6 kFLOP on each processor; no work is done twice
"""
    )


def stacked(ws, x):
    def layer(x, w):
        h = wf.relu(wf.einsum(x, w[0], over=D))
        return x + wf.einsum(h, w[1], over=F), None

    x, _ = wf.scan(wf.remat(layer), x, ws, over=L)
    return wf.sum(x, over=[B, D])


STACKED = weight(L, D, F), weight(L, F, D)


def test_a_loop_stands_once_with_its_turns_and_what_is_recomputed_apart():
    found = printed(wf.value_and_grad(stacked), STACKED, shape(B, D), layout="batch:rows,params.d_model:rows")
    assert (
        found
        == """
stacked on rows=2,cols=4 (8 processors) under batch:rows,params.d_model:rows
batch=8 d_model=24 d_ff=40

forward
  scan over layers x3  stacked
             f32[batch/rows d_ff]         einsum(x, w[0], over=D)      layer
             >> all_gather over rows      3.75 KiB x3                  layer    because ws[0] is stored split over rows (params.d_model)
    h        f32[batch/rows d_ff]         relu(...)                    layer
             f32[batch/rows d_model]      einsum(h, w[1], over=F)      layer
             >> all_gather over rows      3.75 KiB x3                  layer    because ws[1] is stored split over rows (params.d_model)
             f32[batch/rows d_model]      x + ...                      layer
           f32[]                        sum(x, over=[B, D])          stacked
           >> all_reduce over rows      4 B x1                       stacked  because batch is summed and split over rows
backward
  scan over layers x3, last to first  stacked
    recompute
               f32[batch/rows d_ff]         einsum(x, w[0], over=D)      layer
               >> all_gather over rows      3.75 KiB x3                  layer    because ws[0] is stored split over rows (params.d_model), and the gradient needs it again
      h        f32[batch/rows d_ff]         relu(...)                    layer
    backward
      d h      f32[batch/rows d_ff]         gradient of einsum(h, w[1])  layer
      d ws[1]  f32[d_ff d_model]            gradient of einsum(h, w[1])  layer
               >> all_gather over rows      3.75 KiB x3                  layer    because ws[1] is stored split over rows (params.d_model), and the gradient needs it again
               >> reduce_scatter over rows  3.75 KiB x3                  layer    because ws[1] is stored split over rows (params.d_model): each keeps its slice of the sum
      d ...    f32[batch/rows d_ff]         gradient of relu(...)        layer
      d x      f32[batch/rows d_model]      gradient of einsum(x, w[0])  layer
      d ws[0]  f32[d_model d_ff]            gradient of einsum(x, w[0])  layer
               >> reduce_scatter over rows  3.75 KiB x3                  layer    because ws[0] is stored split over rows (params.d_model): each keeps its slice of the sum

over rows: 67.5 KiB in 19 calls
over cols: nothing
work: 161.3 kFLOP on each processor; 100 % of the work is done 4 times: axis cols splits nothing in `layer`
"""
    )


def unrolled(ws, x):
    for w, v in ws:
        x = x + net(x, w, v)
    return wf.sum(x, over=[B, D])


def test_layers_that_repeat_are_folded():
    found = printed(wf.value_and_grad(unrolled), [PARAMS] * 6, shape(B, D), layout="batch:rows,d_ff:cols")
    assert (
        found
        == """
unrolled on rows=2,cols=4 (8 processors) under batch:rows,d_ff:cols
batch=8 d_model=24 d_ff=40

forward
  repeated x6
           f32[batch/rows d_ff/cols]  einsum(x, w)              net
    h      f32[batch/rows d_ff/cols]  relu(...)                 net
    y      f32[batch/rows d_model]    einsum(h, v)              net
           >> all_reduce over cols    384 B x6                  net       because d_ff is summed and split over cols
    x      f32[batch/rows d_model]    x + net(x, w, v)          unrolled
         f32[]                      sum(x, over=[B, D])       unrolled
         >> all_reduce over rows    4 B x1                    unrolled  because batch is summed and split over rows
backward
  repeated x5
    d h    f32[batch/rows d_ff/cols]  gradient of einsum(h, v)  net
    d v    f32[d_ff/cols d_model]     gradient of einsum(h, v)  net
           >> all_reduce over rows    960 B x5                  net       because v is whole over rows, used with data split there (batch)
    d ...  f32[batch/rows d_ff/cols]  gradient of relu(...)     net
    d x    f32[batch/rows d_model]    gradient of einsum(x, w)  net
           >> all_reduce over cols    384 B x5                  net       because x is whole over cols, used with data split there (d_ff)
    d w    f32[d_model d_ff/cols]     gradient of einsum(x, w)  net
           >> all_reduce over rows    960 B x5                  net       because w is whole over rows, used with data split there (batch)
  d h    f32[batch/rows d_ff/cols]  gradient of einsum(h, v)  net
  d v    f32[d_ff/cols d_model]     gradient of einsum(h, v)  net
         >> all_reduce over rows    960 B x1                  net       because v is whole over rows, used with data split there (batch)
  d ...  f32[batch/rows d_ff/cols]  gradient of relu(...)     net
  d w    f32[d_model d_ff/cols]     gradient of einsum(x, w)  net
         >> all_reduce over rows    960 B x1                  net       because w is whole over rows, used with data split there (batch)

over rows: 11.25 KiB in 13 calls
over cols: 4.125 KiB in 11 calls
work: 67.2 kFLOP on each processor; no work is done twice
"""
    )


def recomputed(ws, x):
    layer = wf.remat(net)
    for w, v in ws:
        x = x + layer(x, w, v)
    return wf.sum(x, over=[B, D])


@pytest.mark.parametrize("net", [unrolled, recomputed])
def test_a_program_is_as_long_for_many_layers_as_for_few(net):
    def length(layers):
        return len(
            printed(wf.value_and_grad(net), [PARAMS] * layers, shape(B, D), layout="batch:rows,d_ff:cols").splitlines()
        )

    assert length(24) == length(6) < 50


def choose(is_long, x):
    y = wf.cond(is_long, lambda x: wf.softmax(x, over=D), lambda x: x, x)
    return wf.exp(y)


def test_both_sides_of_a_choice_are_shown():
    found = printed(choose, jax.ShapeDtypeStruct((), bool), shape(B, D), layout="batch:rows,d_model:cols")
    assert (
        found
        == """
choose on rows=2,cols=4 (8 processors) under batch:rows,d_model:cols
batch=8 d_model=24

forward
  cond  choose
    on_true, which sends more and is counted
        f32[batch/rows d_model/cols]  softmax(x, over=D)  choose
        >> all_reduce over cols       16 B x2             choose  because softmax goes over d_model, split over cols
    on_false
      nothing
    f32[batch/rows d_model/cols]  exp(y)              choose

over rows: nothing
over cols: 32 B in 2 calls
work: 0 FLOP on each processor; there are no products or convolutions
"""
    )


def grow(x):
    y = wf.while_loop(lambda x: wf.sum(x, over=[B, D]) < 10, lambda x: x * 2, x)
    z = wf.fori_loop(0, 5, lambda i, y: y + wf.mean(y, over=B), y)
    return wf.exp(z)


def test_a_loop_of_unknown_length_says_so():
    assert (
        printed(grow, shape(B, D), layout="batch:rows")
        == """
grow on rows=2,cols=4 (8 processors) under batch:rows
batch=8 d_model=24

forward
  while_loop, turns not known  grow
      f32[]                    sum(x, over=[B, D])  grow
      >> all_reduce over rows  4 B x1 a turn        grow  because batch is summed and split over rows
      bool[]                   ... < 10             grow
      f32[batch/rows d_model]  x * 2                grow
  fori_loop x5  grow
      f32[d_model]             mean(y, over=B)      grow
      >> all_reduce over rows  96 B x5              grow  because batch is summed and split over rows
      f32[batch/rows d_model]  y + ...              grow
    f32[batch/rows d_model]  exp(z)               grow

over rows: 484 B in 6 calls
over cols: nothing
a loop's length is not known: what is in it is counted for one turn
work: 0 FLOP on each processor; there are no products or convolutions
"""
    )


def per_example(w, x):
    def loss(w, row):
        y = wf.einsum(row, w, over=D)
        return wf.sum(wf.square(y), over=F)

    return wf.vmap(wf.grad(loss), over=B)(w, x)


def test_a_mapped_function_stands_under_the_dim_it_is_mapped_over():
    found = printed(per_example, weight(D, F), shape(B, D), layout="batch:rows,d_ff:cols")
    assert (
        found
        == """
per_example on rows=2,cols=4 (8 processors) under batch:rows,d_ff:cols
batch=8 d_model=24 d_ff=40

forward
  vmap over batch  per_example
    y    f32[d_ff/cols]          einsum(row, w, over=D)      loss
         f32[d_ff/cols]          square(y)                   loss
backward
  vmap over batch  per_example
    d y  f32[d_ff/cols]          gradient of square(y)       loss
    d w  f32[d_model d_ff/cols]  gradient of einsum(row, w)  loss

nothing is sent
work: 3.84 kFLOP on each processor; no work is done twice
"""
    )


def test_the_update_is_a_section_of_its_own():
    step = wf.train_step(loss, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))
    program = traced(step, step.init(PARAMS), shape(B, D), layout="batch:rows,d_ff:cols,optimizer.d_model:rows")
    assert [line.text for line in program.lines] == ["forward", "backward", "update"]
    sent = [(line.type, line.text, line.count) for line in flat(program.lines[-1].lines) if line.kind == "collective"]
    whole = f"{D.size * F.size // 4 * 4} B"
    assert sent == [
        (">> all_reduce over rows", "4 B", 2),
        (">> all_reduce over cols", "4 B", 2),
        (">> all_gather over rows", whole, 2),
    ]


def attention(x, w):
    a = x.rename(stream="length")
    return wf.einsum(wf.relu(wf.einsum(a, w, over=D)), w, over=F, rename={"length": S})


def test_a_sequence_parallel_block_gathers_and_scatters():
    found = printed(attention, shape(B, S, D), weight(D, F), layout="batch:rows,d_ff:cols,stream:cols")
    assert (
        found
        == """
attention on rows=2,cols=4 (8 processors) under batch:rows,d_ff:cols,stream:cols
batch=8 stream=16 d_model=24 length=16 d_ff=40

forward
  a  f32[batch/rows length d_model]       x.rename(stream='length')                     attention
     >> all_gather over cols              6 KiB x1                                      attention  because stream is split over cols and length is whole
     f32[batch/rows length d_ff/cols]     einsum(a, w, over=D)                          attention
     f32[batch/rows length d_ff/cols]     relu(...)                                     attention
     f32[batch/rows stream/cols d_model]  einsum(..., w, over=F, rename={'length': S})  attention
     >> reduce_scatter over cols          6 KiB x1                                      attention  because d_ff is summed and split over cols, where stream of the result lies

over rows: nothing
over cols: 12 KiB in 2 calls
work: 61.44 kFLOP on each processor; no work is done twice
"""
    )


def test_a_program_of_nothing_says_so():
    assert (
        printed(lambda x: x, shape(B, D), layout="batch:rows")
        == """
<lambda> on rows=2,cols=4 (8 processors) under batch:rows

nothing runs

nothing is sent
work: 0 FLOP on each processor; there are no products or convolutions
"""
    )


# ---- lines


def test_what_stands_after_a_loop_or_a_fold_is_not_indented_as_if_in_it():
    lines = printed(wf.value_and_grad(unrolled), [PARAMS] * 6, shape(B, D), layout="batch:rows").splitlines()
    inside, after = (next(line for line in lines if text in line) for text in ("x + net(x, w, v)", "sum(x, over=[B"))
    assert inside.index("f32[") > after.index("f32[")


def test_a_type_shows_dtype_dims_and_the_axes_each_is_split_over():
    def cast(x, ids):
        y = wf.cast(x, "bfloat16")
        return y, ids == 3

    args = shape(wf.Dim("batch", 16), D), shape(T, dtype="int32")
    program = traced(cast, *args, layout="batch:rows+cols")
    assert [line.type for line in listed(program)] == ["bf16[batch/rows+cols d_model]", "bool[length]"]


def test_an_axis_of_size_one_is_not_shown():
    program = traced(net, *NET, mesh="one=1,rows=2", layout="batch:one+rows")
    assert listed(program)[0].type == "f32[batch/rows d_ff]"


def test_what_costs_nothing_is_shown_too():
    program = traced(lambda x: wf.exp(x.rename(batch="rows")), shape(B, D), layout="batch:rows,rows:rows")
    assert [line.text for line in listed(program)] == ["x.rename(batch='rows')", "exp(...)"]


def test_an_op_with_several_results_shows_the_type_of_each():
    def take_apart(x):
        (a, b), c = wf.scan(lambda s, x: ((s[0] + x, s[1]), x), (wf.zeros([D]), wf.ones([D])), x, over=B)
        return a, b, c

    assert listed(traced(take_apart, shape(B, D), layout="d_model:rows"))


def test_the_house_s_own_ops_are_not_listed():
    def turns(n, x):
        return wf.fori_loop(0, n, lambda i, x: x + wf.mean(x, over=B), x)

    program = traced(turns, 3, shape(B, D), layout="batch:rows")
    assert [line.text for line in listed(program)] == ["mean(x, over=B)", "x + ..."]


def test_an_op_whose_result_nobody_uses_does_not_run_and_has_no_line():
    def forgetful(x):
        wf.sum(x, over=B)
        return x * 2

    program = traced(forgetful, shape(B, D), layout="batch:rows")
    assert [line.text for line in listed(program)] == ["x * 2"]
    assert len(program.ledger) == 0


def test_a_function_of_jax_is_walked_through():
    @jax.jit
    def inner(x):
        return wf.sum(wf.tanh(x), over=D)

    def outer(x):
        return jax.checkpoint(inner)(x) * 2

    program = traced(outer, shape(B, D), layout="d_model:cols")
    assert [line.text for line in listed(program)] == ["tanh(x)", "sum(..., over=D)", "jax.checkpoint(inner)(x) * 2"]
    assert program.ledger.count() == 1


def test_a_compiled_function_called_twice_is_counted_twice():
    inner = jax.jit(lambda x: wf.sum(x, over=D))
    program = traced(lambda x: inner(x) + inner(x * 2), shape(B, D), layout="d_model:cols")
    assert program.ledger.count() == 2
    assert sum(line.count for line in listed(program, "collective")) == 2


def test_a_scan_of_jax_s_own_has_its_turns():
    def turns(x):
        return jax.lax.scan(lambda x, _: (x + wf.mean(x, over=B), None), x, None, length=4)[0]

    program = traced(turns, shape(B, D), layout="batch:rows")
    assert [(line.text, line.count) for line in listed(program, "collective")] == [(f"{D.size * 4} B", 4)]
    assert [line.text for line in listed(program, "block")] == ["scan x4"]


# ---- gradients' lines


@pytest.mark.parametrize(("argnums", "names"), [((0,), ["d x"]), ((1,), ["d w"]), ((0, 1), ["d x", "d w"])])
def test_only_what_is_differentiated_has_a_gradient(argnums, names):
    def total(x, w):
        return wf.sum(wf.einsum(x, w, over=D), over=[B, F])

    program = traced(wf.grad(total, argnums=argnums), shape(B, D), weight(D, F), layout="batch:rows")
    assert [line.name for line in listed(program)[-len(names) :]] == names


def test_operands_of_one_size_are_told_apart_by_what_is_differentiated():
    def total(x, mask, y):
        a = x * mask
        b = wf.where(y > 0, a, y)
        c = y * b
        return wf.sum(wf.einsum(c, y, over=D), over=B)

    program = traced(wf.grad(total), *[shape(B, D)] * 3, layout="batch:rows")
    gradients = [(line.name, line.text) for line in listed(program) if line.text.startswith("gradient of")]
    assert gradients == [
        ("d c", "gradient of einsum(c, y)"),
        ("d b", "gradient of y * b"),
        ("d a", "gradient of where(..., a, y)"),
        ("d x", "gradient of x * mask"),
    ]


def test_what_a_loop_is_given_is_told_apart_by_what_is_differentiated():
    def total(ws, x, masks):
        def turn(x, given):
            w, mask = given
            kept = x * mask
            return kept + wf.mean(wf.einsum(kept, w, over=D), over=F), None

        return wf.sum(wf.scan(turn, x, (ws, masks), over=L)[0], over=[B, D])

    program = traced(wf.grad(total), weight(L, D, F), shape(B, D), shape(L, B, D), layout="batch:rows")
    gradients = {line.text: line.name for line in listed(program)}
    assert gradients["gradient of x * mask"] == "d x"


def test_the_gradient_of_an_op_inside_another_has_no_name():
    def total(x):
        return wf.sum(wf.square(wf.einsum(x, x, over=D)) / wf.exp(wf.where(x > 0, x, -1e9)), over=[B, D])

    program = traced(wf.grad(total), shape(B, D), layout="batch:rows")
    names = [line.name for line in listed(program) if line.text.startswith("gradient of")]
    assert set(names) == {"d x", "d ..."}


def test_the_gradients_of_your_own_kernel_are_of_its_operands():
    def total(x, w):
        return wf.sum(wf.local(lambda a, b: a @ b, x, w, out=[B, F], whole=[D]), over=[B, F])

    program = traced(wf.grad(total, argnums=(0, 1)), shape(B, D), weight(D, F), layout="batch:rows")
    assert [line.name for line in listed(program) if "gradient" in line.text] == ["d x", "d w"]


def test_per_example_gradients_are_of_what_is_differentiated():
    program = traced(per_example, weight(D, F), shape(B, D), layout="batch:rows")
    assert [line.name for line in listed(program) if line.text.startswith("gradient of einsum")] == ["d w"]


def test_every_gradient_line_says_of_what():
    def total(ws, x):
        x, ys = wf.scan(lambda x, w: (x + wf.einsum(net(x, *w), over=[]), wf.mean(x, over=D)), x, ws, over=L)
        return wf.sum(x * x, over=[B, D]) + wf.mean(ys, over=ys.dims)

    program = traced(wf.value_and_grad(total), STACKED, shape(B, D), layout="batch:rows,d_ff:cols")
    gradients = [line for line in listed(program) if line.text.startswith("gradient of")]
    assert len(gradients) > 5
    assert all(line.name.startswith("d ") and line.type for line in gradients)


# ---- errors


def test_a_function_that_fails_raises_its_own_error_and_says_what_was_traced():
    def broken(x):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as error:
        traced(broken, shape(B, D), layout="batch:rows")
    assert error.value.__notes__[-1] == "while tracing broken on mesh rows=2,cols=4 under layout batch:rows"


def test_a_tensor_without_names_is_an_error():
    with pytest.raises(wf.TensorError, match=r"a plain array of shape \(3, 4\), whose dims have no names") as error:
        traced(net, jax.ShapeDtypeStruct((3, 4), "float32"), *NET[1:], layout="batch:rows")
    assert "wf.tensor" in error.value.fix


def test_a_program_needs_a_mesh():
    with pytest.raises(wf.RegionError, match="trace got no mesh"):
        wf.trace(net, *NET)


def test_a_bound_function_brings_its_own_mesh():
    bound = wf.spmd(net, mesh=ROWS_COLS, layout="batch:rows,d_ff:cols")
    assert wf.trace(bound, *NET).text() == traced(net, *NET, layout="batch:rows,d_ff:cols").text()


def test_repr_is_one_line():
    assert (
        repr(traced(net, *NET, layout="batch:rows,d_ff:cols"))
        == "Program(mesh='rows=2,cols=4', layout='batch:rows,d_ff:cols', 1 collective)"
    )


# ---- size


def test_a_mesh_of_any_size_is_traced_and_printed():
    def large(x, w, v):
        return wf.einsum(wf.einsum(x, w, over=D), v, over=F)

    many = wf.Dim("batch", 4096)
    text = printed(large, shape(many, D), *NET[1:], mesh="x=64,y=32,z=2", layout="batch:x+y,d_ff:z")
    assert "(4096 processors)" in text
    assert ">> all_reduce over z" in text
