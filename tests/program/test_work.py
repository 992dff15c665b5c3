"""The work of a program equals formulas worked out by hand, and what is done more than once is said."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from tests.program.cases import B, D, F, H, K, L, M, T, V, shape, weight
from weft import models
from weft.text import flops_text

ROWS_COLS = "rows=2,cols=4"


def traced(fn, *args, mesh=ROWS_COLS, layout=""):
    return wf.trace(fn, *args, mesh=mesh, layout=layout)


def product(*dims):
    """The multiplications and additions of a product that goes over these dims."""
    return 2 * int(np.prod([dim.size for dim in dims]))


def net(params, x):
    return wf.einsum(wf.relu(wf.einsum(x, params["w"], over=D)), params["v"], over=F)


def loss(params, x):
    return wf.sum(wf.square(net(params, x)), over=[B, D])


PARAMS = {"w": weight(D, F), "v": weight(F, D)}


# ---- how much


@pytest.mark.parametrize(
    ("fn", "args", "flops"),
    [
        (lambda x, w: wf.einsum(x, w, over=D), (shape(B, D), weight(D, F)), product(B, D, F)),
        (lambda x, w: wf.einsum(x, w, over=[]), (shape(B), shape(D)), product(B, D)),  # as XLA counts an outer product
        (lambda x, y: wf.einsum(x, y, out=[]), (shape(B, D), shape(B, D)), product(B, D)),
        (lambda q, k: wf.einsum(q, k, over=K), (shape(B, T, H, K), shape(B, M, H, K)), product(B, T, M, H, K)),
        (lambda x: wf.sum(wf.exp(x), over=D), (shape(B, D),), 0),
        (lambda e, i: wf.take(e, i, over=V), (weight(V, D), shape(B, T, dtype="int32")), 0),
    ],
    ids=["matmul", "outer", "dot", "attention", "sum", "take"],
)
def test_products_are_counted_and_nothing_else(fn, args, flops):
    assert traced(fn, *args).flops == flops


def test_a_product_of_three_is_what_its_two_products_are():
    def three(x, w, v):
        return wf.einsum(x, w, v, out=[B, K])

    program = traced(three, shape(B, D), weight(D, F), weight(F, K))
    assert program.flops in (product(B, D, F) + product(B, F, K), product(D, F, K) + product(B, D, K))


def test_a_gradient_is_two_products_where_both_are_differentiated_and_one_where_only_the_weight_is():
    each = product(B, D, F)
    assert traced(net, PARAMS, shape(B, D)).flops == 2 * each
    assert traced(wf.value_and_grad(loss, argnums=(0, 1)), PARAMS, shape(B, D)).flops == 6 * each
    assert traced(wf.value_and_grad(loss), PARAMS, shape(B, D)).flops == 5 * each  # x has no gradient


def scanned(remat):
    def layer(x, w):
        return net(w, x), None

    def total(ws, x):
        return wf.sum(wf.scan(wf.remat(layer) if remat else layer, x, ws, over=L)[0], over=[B, D])

    return total


STACKED = {"w": weight(L, D, F), "v": weight(L, F, D)}


def test_a_loop_counts_every_turn():
    program = traced(scanned(remat=False), STACKED, shape(B, D))
    assert program.flops == L.size * 2 * product(B, D, F)


def test_recomputation_is_counted_and_told():
    each = L.size * product(B, D, F)
    kept = traced(wf.value_and_grad(scanned(remat=False)), STACKED, shape(B, D))
    again = traced(wf.value_and_grad(scanned(remat=True)), STACKED, shape(B, D))
    assert (kept.flops, kept.flops_recomputed) == (6 * each, 0)
    assert (again.flops, again.flops_recomputed) == (7 * each, each)  # the last product of a layer is not needed again


def test_what_a_recomputed_function_keeps_by_name_is_not_made_again():
    def kept_at(name):
        def loss(params, x):
            h = wf.name(wf.einsum(x, params["w"], over=D), name)
            return wf.sum(wf.square(wf.einsum(wf.square(h), params["v"], over=F)), over=[B, D])

        return traced(wf.value_and_grad(wf.remat(loss, save=[name] if name == "kept" else [])), PARAMS, shape(B, D))

    assert kept_at("made again").flops_recomputed == kept_at("kept").flops_recomputed + product(B, D, F)


def test_a_loop_of_unknown_length_counts_one_turn():
    def grow(x, params):
        return wf.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, net(params, s[1])), (0, x))[1]

    assert traced(grow, shape(B, D), PARAMS).flops == 2 * product(B, D, F)


def test_a_choice_counts_its_larger_branch():
    def chosen(is_long, x, w):
        return wf.cond(is_long, lambda x: wf.einsum(x, w, over=D), lambda x: wf.zeros([B, F]), x)

    assert traced(chosen, jax.ShapeDtypeStruct((), bool), shape(B, D), weight(D, F)).flops == product(B, D, F)


def test_a_mapped_function_counts_every_example():
    def mapped(x, w):
        return wf.vmap(lambda row: wf.einsum(row, w, over=D), over=B)(x)

    assert traced(mapped, shape(B, D), weight(D, F)).flops == product(B, D, F)
    split = traced(mapped, shape(B, D), weight(D, F), layout="batch:rows,d_ff:cols")
    assert (split.flops, split.flops_duplicated) == (product(B, D, F) // 8, 0)


def test_your_own_kernel_counts_what_it_multiplies():
    def kernel(x, w):
        return wf.local(lambda a, b: a @ b, x, w, out=[B, F], whole=[D])

    program = traced(kernel, shape(B, D), weight(D, F), layout="batch:rows,d_ff:cols")
    assert (program.flops, program.flops_duplicated) == (product(B, D, F) // 8, 0)


def test_your_own_convolution_counts_its_kernel_at_every_place():
    C_IN, C_OUT, W = wf.dims(c_in=3, c_out=5, width=16)

    def kernel(x, w):
        def conv(a, b):
            return jax.lax.conv_general_dilated(a, b, (1,), "SAME", dimension_numbers=("NCW", "OIW", "NCW"))

        return wf.local(conv, x, w, out=[B, C_OUT, W], whole=[C_IN, W])

    taps = wf.Dim("taps", 7)
    args = shape(B, C_IN, W), weight(C_OUT, C_IN, taps)
    assert traced(kernel, *args).flops == product(B, C_OUT, W, C_IN, taps)
    assert traced(kernel, *args, layout="batch:rows").flops == product(B, C_OUT, W, C_IN, taps) // 2


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_spread_out_convolution_counts_no_zeros(stride):
    C_IN, C_OUT, W, TAPS = wf.dims(c_in=4, c_out=8, width=16, taps=8)

    def spread(x, w):
        return wf.conv_transpose(x, w, over={"width": "taps"}, channels=(C_IN, C_OUT), stride=stride)

    program = traced(spread, shape(B, C_IN, W), weight(C_IN, C_OUT, TAPS))
    assert program.flops == product(B, C_OUT, W, C_IN, TAPS)  # as many more places as there are taps less


def test_the_products_of_an_update_are_divided_as_its_arrays_are():
    def of_update(layout):
        steps = [wf.train_step(lambda params, x, key: loss(params, x), o(1e-3)) for o in (with_product, optax.sgd)]
        one, other = (traced(s, s.init(PARAMS), shape(B, D), layout=layout).flops for s in steps)
        return one - other

    def with_product(rate):
        """Adds to each update its product with a whole matrix."""

        def update(gradients, state, params=None):
            made = jax.tree.map(lambda g: g - rate * jnp.einsum("ab,bc->ac", g, jnp.eye(g.shape[1])), gradients)
            return made, state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    each = product(D, F, F) + product(F, D, D)
    assert of_update("") == each
    assert of_update("d_ff:cols") < each


def test_the_products_of_an_update_are_counted():
    step = wf.train_step(lambda params, x, key: loss(params, x), optax.contrib.muon(1e-3))
    plain = wf.train_step(lambda params, x, key: loss(params, x), optax.sgd(1e-3))
    with_products, without = (traced(s, s.init(PARAMS), shape(B, D)).flops for s in (step, plain))
    assert without == 5 * product(B, D, F)
    assert with_products > without


# ---- by how many it is divided


@pytest.mark.parametrize(
    ("layout", "useful"),
    [
        ("", 8),
        ("batch:rows", 4),
        ("d_ff:cols", 2),
        ("batch:rows,d_ff:cols", 1),
        ("batch:rows,params.d_model:rows", 4),
        ("batch:rows,d_ff:cols,params.d_model:rows", 1),
    ],
)
def test_work_is_duplicated_over_the_axes_that_split_none_of_its_dims(layout, useful):
    program = traced(wf.value_and_grad(loss, argnums=(0, 1)), PARAMS, shape(B, D), layout=layout)
    everything = 6 * product(B, D, F)
    assert program.flops == everything // 8 * useful
    assert program.flops_useful == everything // 8
    assert program.flops_duplicated == program.flops - program.flops_useful


def test_useful_work_is_the_same_under_every_layout():
    for mesh, layout in [("x=2", "batch:x"), ("x=8", "d_ff:x"), ("x=2,y=2,z=2", "batch:x,d_ff:y,d_model:z")]:
        program = traced(loss, PARAMS, shape(B, D), mesh=mesh, layout=layout)
        assert program.flops_useful * program.mesh.size == 2 * product(B, D, F)


def test_experts_work_on_the_rows_that_even_routing_gives_them():
    config = models.preset("tiny-moe", gating="dropless", layers=1)
    model, batch = models.shapes(config), config.batch_shapes()

    def run(layout, mesh="x=4"):
        return wf.trace(lambda model, batch: model.loss(batch, None), model, batch, mesh=mesh, layout=layout)

    alone = run("", "x=1").flops
    for layout in ("batch:x", "batch:x,experts:x"):
        program = run(layout)
        assert program.flops_useful * 4 == alone
        assert program.flops == program.flops_useful


# A block of a Transformer with heads of their own size; the ratios are of the work of one processor alone.
BATCH, LENGTH, MODEL, HEADS, FF = wf.dims(batch=16, length=64, d_model=64, heads=4, d_ff=256)
MEMORY, KV = LENGTH.renamed("memory_length"), wf.Dim("d_kv", 16)


def attention(p, x):
    q, k, v = (wf.einsum(x, p[name], over=MODEL) for name in "qkv")
    scores = wf.einsum(q, k.rename(length=MEMORY), over=KV)
    return wf.einsum(wf.einsum(wf.softmax(scores, over=MEMORY), v.rename(length=MEMORY), over=MEMORY), p["o"],
                     over=[HEADS, KV])  # fmt: skip


def feed_forward(p, x):
    return wf.einsum(wf.relu(wf.einsum(x, p["in"], over=MODEL)), p["out"], over=FF)


def block(p, x):
    x = x + attention(p, x)
    return x + feed_forward(p, x)


BLOCK = {
    **{name: weight(MODEL, HEADS, KV) for name in "qkv"},
    "o": weight(HEADS, KV, MODEL),
    "in": weight(MODEL, FF),
    "out": weight(FF, MODEL),
}
ATTENTION = 4 * product(BATCH, LENGTH, MODEL, HEADS, KV) + 2 * product(BATCH, LENGTH, MEMORY, HEADS, KV)
SCORES = 2 * product(BATCH, LENGTH, MEMORY, HEADS, KV)
FEED_FORWARD = 2 * product(BATCH, LENGTH, MODEL, FF)
ALL = ATTENTION + FEED_FORWARD


@pytest.mark.parametrize(
    ("layout", "times"),
    [
        ("batch:rows", 4),
        ("batch:rows,heads:cols,d_ff:cols", 1),
        ("batch:rows,d_ff:cols", (4 * ATTENTION + FEED_FORWARD) / ALL),
        ("batch:rows,d_model:cols", (4 * SCORES + ALL - SCORES) / ALL),
        ("heads:cols,d_ff:cols", 2),
    ],
)
def test_a_block_does_as_many_times_the_work_of_one_processor_as_its_layout_leaves_it(layout, times):
    program = traced(block, BLOCK, shape(BATCH, LENGTH, MODEL), layout=layout)
    assert program.flops * 8 == pytest.approx(times * ALL)
    assert program.flops_useful == pytest.approx(ALL / 8)
    assert program.flops / program.flops_useful == pytest.approx(times)


def test_gradients_are_duplicated_as_their_ops_are():
    def total(p, x):
        return wf.sum(block(p, x), over=[BATCH, LENGTH, MODEL])

    program = traced(wf.value_and_grad(total, argnums=(0, 1)), BLOCK, shape(BATCH, LENGTH, MODEL), layout="batch:rows")
    assert program.flops * 8 == pytest.approx(4 * 3 * ALL)
    assert program.flops_useful == pytest.approx(3 * ALL / 8)


# ---- in words


X = shape(BATCH, LENGTH, MODEL)


def sentence(layout, fn=block, args=(BLOCK, X), mesh=ROWS_COLS):
    return traced(fn, *args, mesh=mesh, layout=layout).flops_duplicated.reason


def test_a_sentence_says_how_much_is_done_how_often_and_which_axis_leaves_it_so():
    share = round(100 * 4 * ATTENTION / (4 * ATTENTION + FEED_FORWARD))
    assert sentence("batch:rows,heads:cols,d_ff:cols") == "no work is done twice"
    assert (
        sentence("batch:rows,d_ff:cols")
        == f"{share} % of the work is done 4 times: axis cols splits nothing in `attention`"
    )
    assert (
        sentence("heads:cols,d_ff:cols")
        == "100 % of the work is done twice: axis rows splits nothing in `feed_forward`, `attention`"
    )
    assert (
        sentence("")
        == "100 % of the work is done 8 times: axes rows and cols split nothing in `feed_forward`, `attention`"
    )


def penalty(p):
    return wf.sum(wf.square(wf.einsum(p["in"], p["out"].rename(d_model="d_out"), over=FF)), over=["d_model", "d_out"])


def test_several_shares_are_told_the_largest_first():
    share = 4 * FEED_FORWARD / (4 * FEED_FORWARD + ATTENTION + 8 * product(MODEL, MODEL, FF))
    text = sentence("batch:rows,heads:cols", fn=lambda p, x: (block(p, x), penalty(p)))
    first, second = text.split("; ")
    assert first == f"{100 * share:.0f} % of the work is done 4 times: axis cols splits nothing in `feed_forward`"
    assert second.endswith("% of the work is done 8 times: axes rows and cols split nothing in `penalty`")


def test_a_program_without_products_says_so():
    assert sentence("batch:rows", lambda x: wf.exp(x), (shape(B, D),)) == "there are no products or convolutions"


def test_axes_of_size_one_duplicate_nothing():
    assert sentence("batch:rows", mesh="rows=2,cols=1") == "no work is done twice"


def test_duplicated_work_is_a_number():
    found = traced(block, BLOCK, shape(BATCH, LENGTH, MODEL), layout="batch:rows").flops_duplicated
    assert found == found + 0.0 == float(found)
    assert found > 0


@pytest.mark.parametrize(
    ("flops", "text"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (2048, "2.048 kFLOP"), (1.5e12, "1.5 TFLOP"), (4e17, "400 PFLOP")],
)
def test_flops_are_printed_as_people_read_them(flops, text):
    assert flops_text(flops) == text


def test_the_count_agrees_with_xla_on_one_processor():
    def step(w, v, x):
        return jnp.sum(jnp.square(jnp.maximum(x @ w, 0) @ v))

    arrays = [jax.ShapeDtypeStruct([d.size for d in dims], "float32") for dims in ([D, F], [F, D], [B, D])]
    compiled = jax.jit(jax.grad(step, argnums=(0, 1, 2))).lower(*arrays).compile()
    xla = compiled.cost_analysis()["flops"]
    program = traced(wf.grad(loss, argnums=(0, 1)), PARAMS, shape(B, D), mesh="x=1")
    assert program.flops == 6 * product(B, D, F)
    assert program.flops <= xla < 1.1 * program.flops  # XLA counts elementwise work too
