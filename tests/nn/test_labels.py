"""Labels that do not count, and labels that cannot be: the same under every layout, in one piece and in chunks."""

from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import nn

B, T, D, V = wf.dims(batch=4, length=8, d_model=6, vocab=16)
PADDED = wf.Dim("vocab", 16, valid=13)
LAYOUTS = ["batch:x", "vocab:x", "length:x", "batch:x,vocab:y", "batch:x,params.vocab:x"]
EPS = 2.0**-23

random = np.random.default_rng(0)
vectors = random.normal(size=(4, 8, 6)).astype("float32")
labels = random.integers(0, 13, size=(4, 8)).astype("int32")
some_ignored = np.where(random.uniform(size=(4, 8)) < 0.4, -100, labels).astype("int32")
out_of_range = labels.copy()
out_of_range[1, 2] = 99
x = wf.tensor(vectors, [B, T, D])
TABLES = {"whole": nn.Embedding(V, D, key=jax.random.key(0)), "padded": nn.Embedding(PADDED, D, key=jax.random.key(0))}


def named(ids: np.ndarray) -> wf.Tensor:
    return wf.tensor(ids, [B, T])


def mean_and_gradient(chunks: int = 1, **how: Any) -> Any:
    """The mean loss over the labels that count, and its gradient by the table."""

    def program(table: nn.Embedding, x: wf.Tensor, ids: wf.Tensor) -> Any:
        def loss(table: nn.Embedding) -> wf.Tensor:
            sums = nn.summed_cross_entropy(table.logits, x, ids, chunks=chunks, **how)
            return sums["loss"] / sums["weight"]

        value, gradient = wf.value_and_grad(loss)(table)
        return value, gradient.table

    return program


def reference(table: nn.Embedding, ids: np.ndarray) -> tuple[float, np.ndarray]:
    """In float64, of the labels that are not -100 alone."""
    weight = np.asarray(table.table.array, "float64")
    count = table.table.dims[0].count
    logits = np.einsum("btd,vd->btv", vectors.astype("float64"), weight[:count])
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    counts = ids != -100
    hot = np.eye(count)[np.where(counts, ids, 0)]
    loss = -np.log((chances * hot).sum(-1))[counts].mean()
    slope = (chances - hot) * counts[..., None] / counts.sum()
    gradient = np.zeros(weight.shape)
    gradient[:count] = np.einsum("btv,btd->vd", slope, vectors)
    return loss, gradient


@pytest.mark.quick("whole-1", "padded-4")
@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("table", TABLES)
def test_ignored_labels_count_nothing_in_value_weight_and_gradient(table, chunks):
    want = reference(TABLES[table], some_ignored)
    run = mean_and_gradient(chunks, ignore_index=-100)
    given = TABLES[table], x, named(some_ignored)
    for layout in [None, *LAYOUTS[:: 1 if table == "whole" and chunks == 1 else 3]]:
        fn = jax.jit(run) if layout is None else wf.spmd(run, mesh="x=2,y=2", layout=layout)
        loss, gradient = fn(*given)
        assert float(loss) == pytest.approx(want[0], rel=64 * EPS)
        np.testing.assert_allclose(np.asarray(gradient.array), want[1], rtol=0, atol=64 * EPS * np.abs(want[1]).max())


def test_single_losses_of_ignored_labels_are_zero_and_their_logits_get_no_gradient():
    logits = TABLES["whole"].logits(x)
    how = {"ignore_index": -100, "smoothing": 0.1, "z_loss": 0.01}
    for part in nn.cross_entropy(logits, named(some_ignored), **how):
        assert np.all(np.asarray(part.array)[some_ignored == -100] == 0)
        assert np.all(np.asarray(part.array)[some_ignored != -100] > 0)
    total = wf.grad(lambda a: wf.sum(nn.cross_entropy(a, named(some_ignored), **how)[1], over="batch length"))
    assert np.all(np.asarray(total(logits).array)[some_ignored == -100] == 0)


def test_labels_of_weight_zero_may_be_anything():
    weights = wf.tensor((some_ignored != -100).astype("float32"), [B, T])
    sums = nn.summed_cross_entropy(TABLES["whole"].logits, x, named(some_ignored), weights)
    want, _ = reference(TABLES["whole"], some_ignored)
    assert float(sums["loss"] / sums["weight"]) == pytest.approx(want, rel=64 * EPS)
    assert float(sums["weight"]) == (some_ignored != -100).sum()


@pytest.mark.parametrize(("chunks", "layout"), [*((1, layout) for layout in LAYOUTS), (4, "batch:x,vocab:y")])
def test_a_traced_label_out_of_range_makes_the_loss_nan_on_every_layout(chunks, layout):
    run = wf.spmd(lambda *a: mean_and_gradient(chunks)(*a)[0], mesh="x=2,y=2", layout=layout)
    assert np.isnan(float(run(TABLES["whole"], x, named(out_of_range))))


def test_a_label_in_the_padding_of_the_vocab_is_out_of_range():
    run = wf.spmd(lambda *a: mean_and_gradient()(*a)[0], mesh="x=2", layout="vocab:x")
    inside = np.where(labels == labels[0, 0], 14, labels).astype("int32")
    assert np.isnan(float(run(TABLES["padded"], x, named(inside))))


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_known_label_out_of_range_raises(chunks):
    error = error_of(lambda: mean_and_gradient(chunks)(TABLES["whole"], x, named(out_of_range)), wf.TensorError)
    assert "the label 99 at [batch=1 length=2] lies outside `vocab`, which has 16" in error.fact
    assert "from 0 to 15" in error.fix


def test_a_known_negative_label_that_is_not_ignored_names_the_argument():
    error = error_of(lambda: nn.cross_entropy(TABLES["whole"].logits(x), named(some_ignored)), wf.TensorError)
    assert "`ignore_index=-100`" in error.fix


@pytest.mark.parametrize(("chunks", "layout"), [(1, "batch:x,vocab:y"), (4, "length:x")])
def test_checked_labels_raise_after_the_call(chunks, layout):
    run = wf.spmd(mean_and_gradient(chunks, check_labels=True), mesh="x=2,y=2", layout=layout)
    with pytest.raises(wf.CheckError, match="label=99"):
        run(TABLES["whole"], x, named(out_of_range))
    assert np.isfinite(float(run(TABLES["whole"], x, named(labels))[0]))


def test_checked_labels_may_be_those_that_do_not_count():
    run = wf.spmd(mean_and_gradient(ignore_index=-100, check_labels=True), mesh="x=2", layout="batch:x")
    assert np.isfinite(float(run(TABLES["whole"], x, named(some_ignored))[0]))


@pytest.mark.parametrize(("given", "fact"), [(True, "is True"), ("a", "is 'a'"), (0.5, "is 0.5")])
def test_ignore_index_is_a_whole_number(given, fact):
    logits = TABLES["whole"].logits(x)
    error = error_of(lambda: nn.cross_entropy(logits, named(labels), ignore_index=given), wf.TensorError)
    assert fact in error.fact and "`ignore_index=-100`" in error.fix


def test_targets_under_another_name_than_the_logits_are_an_error():
    ids = named(labels).rename(length="len")
    error = error_of(lambda: nn.cross_entropy(TABLES["whole"].logits(x), ids), wf.DimError)
    assert "[batch=4 len=8 vocab=16]" in error.fact and "[batch=4 length=8 vocab=16]" in error.fact
