"""What ordering, running along, reading and adding along a split dim send, read off the traced program."""

import jax
import jax.numpy as jnp
import pytest

import weft as wf

B, V, D, T, K = wf.dims(batch=16, vocab=1024, d_model=8, tokens=32, top=4)


def shape(*dims, dtype="float32"):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def sent(fn, *args, layout, mesh="x=4"):
    """Each collective, with the elements one processor gives to it."""
    program = wf.trace(fn, *args, mesh=mesh, layout=layout)
    return [
        (row.collective, "+".join(row.axes), row.dtype, row.bytes // jnp.dtype(row.dtype).itemsize)
        for row in program.ledger
        for _ in range(row.count)
    ]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: wf.argmax(x, over="batch"),
        lambda x: wf.top_k(x, over="batch", k=K),
        lambda x: wf.cumsum(x, over="batch"),
        lambda x: wf.cummax(x, over="batch"),
        lambda x: wf.sort(x, over="batch"),
        lambda x: wf.associative_scan(lambda a, b: a * b, x, over="batch"),
        lambda x: wf.random.categorical(jax.random.key(0), x, over="batch"),
    ],
)
def test_nothing_is_sent_along_a_dim_that_is_whole(fn):
    assert sent(fn, shape(B, V), layout="vocab:x") == []


@pytest.mark.parametrize("fn", [wf.argmax, wf.argmin])
def test_the_place_of_an_extreme_is_two_small_reductions(fn):
    rows = sent(lambda x: fn(x, over="vocab"), shape(B, V), layout="vocab:x")
    assert rows == [("all_reduce", "x", "int32", 16), ("all_reduce", "x", "int32", 16)]


def test_a_categorical_sample_sends_what_argmax_sends():
    rows = sent(lambda x: wf.random.categorical(jax.random.key(0), x, over="vocab"), shape(B, V), layout="vocab:x")
    assert rows == [("all_reduce", "x", "int32", 16), ("all_reduce", "x", "int32", 16)]


def test_the_k_largest_are_k_values_and_places_from_each_processor():
    def loss(x):
        return wf.sum(wf.top_k(x, over="vocab", k=K)[0], over="batch top")

    forward = [("all_gather", "x", "float32", 4 * 16 * 4), ("all_gather", "x", "int32", 4 * 16 * 4)]
    assert sent(lambda x: wf.top_k(x, over="vocab", k=K), shape(B, V), layout="vocab:x") == forward
    # The values alone, without their places, and nothing backward.
    assert sent(wf.grad(loss), shape(B, V), layout="vocab:x") == forward[:1]


def test_where_k_is_the_slice_only_values_are_gathered():
    rows = sent(lambda x: wf.top_k(x, over="tokens", k=wf.Dim("top", 8)), shape(B, T), layout="tokens:x")
    assert rows == [("all_gather", "x", "float32", 16 * 32)]


@pytest.mark.parametrize("fn", [wf.cumsum, wf.cumprod, wf.cummax])
def test_what_runs_along_sends_one_total(fn):
    def loss(x):
        return wf.sum(fn(x, over="vocab") * x, over="batch vocab")

    forward = [("all_gather", "x", "float32", 4 * 16)]
    assert sent(lambda x: fn(x, over="vocab"), shape(B, V), layout="vocab:x") == forward
    rows = [row for row in sent(wf.grad(loss), shape(B, V), layout="vocab:x") if row[3] > 1]
    assert rows == [*forward, ("reduce_scatter", "x", "float32", 4 * 16)]


def test_prefixes_send_one_total_of_each_leaf():
    def join(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    rows = sent(
        lambda a, x: wf.associative_scan(join, (a, x), over="vocab"), shape(V, B), shape(V, B), layout="vocab:x"
    )
    assert rows == [("all_gather", "x", "float32", 4 * 16)] * 2


def test_sorting_moves_the_split_to_another_dim_and_back():
    rows = sent(lambda x: wf.sort(x, over="vocab"), shape(B, V), layout="vocab:x")
    assert rows == [("all_to_all", "x", "float32", 16 * 256)] * 2
    rows = sent(lambda x: wf.sort(x, over="vocab"), shape(V), layout="vocab:x")
    assert rows == [("all_gather", "x", "float32", 1024)]


def test_many_processors_sort_by_merging_in_pairs():
    rows = sent(lambda x: wf.sort(x, over="vocab"), shape(V), layout="vocab:x", mesh="x=32")
    assert sorted(rows) == [("permute", "x", "float32", 32)] * 15 + [("permute", "x", "int32", 32)] * 15


def test_reading_few_sends_ids_and_values_and_reading_many_the_dim():
    few, many = V.resized(8), V.resized(4096)
    rows = sent(lambda x, i: wf.gather(x, i, over="vocab"), shape(V, D), shape(few, D, dtype="int32"), layout="vocab:x")
    assert rows == [("all_gather", "x", "int32", 8 * 8), ("reduce_scatter", "x", "uint32", 8 * 8)]  # the very bits
    rows = sent(
        lambda x, i: wf.gather(x, i, over="vocab"), shape(V, D), shape(many, D, dtype="int32"), layout="vocab:x"
    )
    assert rows == [("all_gather", "x", "float32", 1024 * 8)]


def test_adding_few_sends_ids_and_values_and_adding_many_the_dim():
    def add(x, i, u):
        return wf.scatter_add(x, i, u, over="vocab")

    few, many = V.resized(8), V.resized(4096)
    rows = sent(add, shape(V, D), shape(few, dtype="int32"), shape(few, D), layout="vocab:x")
    assert sorted(rows) == [("all_gather", "x", "float32", 8 * 8), ("all_gather", "x", "int32", 8)]
    rows = sent(add, shape(V, D), shape(many, dtype="int32"), shape(many, D), layout="vocab:x")
    assert rows == [("reduce_scatter", "x", "float32", 1024 * 8)]
    # Updates that lie elsewhere: each processor adds its own, and the sums are added up.
    rows = sent(add, shape(V, D), shape(B, dtype="int32"), shape(B, D), layout="batch:x")
    assert rows == [("all_reduce", "x", "float32", 1024 * 8)]
    assert sent(add, shape(V, D), shape(B, dtype="int32"), shape(B, D), layout="vocab:x") == []
