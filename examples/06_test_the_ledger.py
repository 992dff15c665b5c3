"""Tests on what a program sends: run them by `pytest examples/06_test_the_ledger.py`, or as a script.

A change that adds a collective, or sends one in the wrong dtype, fails here on a laptop, before it costs a cluster.
"""

import jax

import weft as wf

batch, length, d_model, heads, d_kv = wf.dims(batch=64, length=128, d_model=512, heads=16, d_kv=32)
memory = length.renamed("memory_length")
MESH = "rows=4, cols=8"


def attention(w, x):
    q = wf.einsum(x, w["q"], over=d_model)
    k = wf.einsum(x, w["k"], over=d_model).rename(length=memory)
    v = wf.einsum(x, w["v"], over=d_model).rename(length=memory)
    share = wf.softmax(wf.einsum(q, k, over=d_kv) / d_kv.size**0.5, over=memory)
    return wf.einsum(wf.einsum(share, v, over=memory), w["o"], over=[heads, d_kv])


def loss(w, x):
    y = x + attention(w, x)
    return wf.mean(y * y, over=[batch, length, d_model])


def program(layout):
    def shape(make, *dims):
        return make(jax.ShapeDtypeStruct([dim.size for dim in dims], "bfloat16"), dims)

    w = {name: shape(wf.parameter, d_model, heads, d_kv) for name in "qkv"}
    w["o"] = shape(wf.parameter, heads, d_kv, d_model)
    return wf.trace(wf.value_and_grad(loss, argnums=(0, 1)), w, shape(wf.tensor, batch, length, d_model),
                    mesh=MESH, layout=layout)  # fmt: skip


def test_heads_cost_one_sum_forward_and_one_backward():
    ledger = program("batch:rows, heads:cols").ledger
    activations = batch.size // 4 * length.size * d_model.size * 2  # bytes of bf16 on one processor
    assert ledger.bytes(axis="cols", phase="forward") == activations
    assert ledger.bytes(axis="cols", phase="backward") == activations  # x fans out to q, k and v, and is summed once


def test_each_weight_is_summed_once_over_the_rows():
    sums = [row for row in program("batch:rows, heads:cols").ledger if row.axes == ("rows",) and row.dims]
    assert [(row.collective, row.dtype, row.count) for row in sums] == [("all_reduce", "bfloat16", 1)] * 4


def test_nothing_is_gathered_unless_parameters_are_stored_split():
    kinds = {row.collective for row in program("batch:rows, heads:cols").ledger}
    stored = {row.collective for row in program("batch:rows, heads:cols, params.d_model:rows").ledger}
    assert kinds == {"all_reduce"}
    assert stored == {"all_reduce", "all_gather", "reduce_scatter"}


def test_no_work_is_done_twice():
    assert program("batch:rows, heads:cols").flops_duplicated == 0
    assert program("batch:rows, d_model:cols").flops_duplicated > 0  # d_model is not in the scores


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed:", name[5:].replace("_", " "))
    print()
    print(program("batch:rows, heads:cols").ledger)
