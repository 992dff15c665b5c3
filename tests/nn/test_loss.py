"""Cross-entropy against numpy; a split vocab is never gathered, and chunks never hold all logits."""

from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS, arrays, assert_same
from tests.programs.everywhere import with_gradients
from weft import nn
from weft.ops.cross_entropy import cross_entropy_terms

from .cases import IDS, WEIGHTS, B, D, T, V, X, made, normal

TABLE = made(nn.Embedding(V, D))
x, ids, weights = (np.asarray(t.array) for t in (X, IDS, WEIGHTS))
LOGITS = np.einsum("btd,vd->btv", x.astype("float64"), np.asarray(TABLE.table.array)[: V.count])


def reference(smoothing: float, z_loss: float) -> tuple[np.ndarray, np.ndarray]:
    """A token at a time: the cross-entropy with the smoothed distribution."""
    nll, loss = np.zeros((2, B.size, T.size))
    for at in np.ndindex(B.size, T.size):
        chances = np.exp(LOGITS[at]) / np.exp(LOGITS[at]).sum()
        wanted = np.full(V.count, smoothing / V.count)
        wanted[ids[at]] += 1 - smoothing
        nll[at] = -np.log(chances[ids[at]])
        loss[at] = -np.sum(wanted * np.log(chances)) + z_loss * np.log(np.exp(LOGITS[at]).sum()) ** 2
    return nll, loss


@pytest.mark.parametrize("how", [{}, {"smoothing": 0.1}, {"z_loss": 0.01}, {"smoothing": 0.2, "z_loss": 1e-4}], ids=str)
def test_it_is_the_cross_entropy_with_smoothed_labels_and_a_z_loss_over_the_valid_vocab(how):
    got = nn.cross_entropy(TABLE.logits(X), IDS, **how)
    want = reference(how.get("smoothing", 0.0), how.get("z_loss", 0.0))
    for mine, due in zip(got, want, strict=True):
        np.testing.assert_allclose(mine.array, due, rtol=0, atol=64 * EPS * np.abs(due).max())


def test_huge_logits_neither_overflow_nor_cancel():
    vocab = wf.Dim("vocab", 4)
    logits = wf.tensor(
        np.array([[1e4, 0, 0, 0], [-1e4, 0, 0, 0], [3e38, 0, 0, -3e38]], "float32"), [wf.Dim("length", 3), vocab]
    )
    nll, _ = nn.cross_entropy(logits, wf.tensor(np.array([0, 0, 0]), "length"))
    np.testing.assert_allclose(nll.array, [0, 1e4 + np.log(3), 0], rtol=4 * EPS)


def test_gradients_are_chances_less_targets():
    logits = normal([B, T, wf.Dim("vocab", 64)], 9)
    gradient = wf.grad(lambda a: wf.sum(nn.cross_entropy(a, IDS)[1], over="batch length"))(logits)
    chances = np.exp(np.asarray(logits.array, "float64"))
    want = chances / chances.sum(-1, keepdims=True) - np.eye(64)[ids]
    np.testing.assert_allclose(gradient.array, want, rtol=0, atol=16 * EPS)


def summed(chunks: int, **how: Any) -> Any:
    def program(table: Any, x: wf.Tensor, ids: wf.Tensor, weights: wf.Tensor | None) -> Any:
        sums = nn.summed_cross_entropy(table.logits, x, ids, weights, chunks=chunks, **how)
        return {name: value / (B.size * T.size) for name, value in sums.items()}

    return program


@pytest.mark.parametrize("given", [WEIGHTS, None, normal([B], 3)], ids=["weights", "no weights", "weights of rows"])
def test_sums_are_those_of_numpy_with_and_without_chunks(given):
    how = {"smoothing": 0.1, "z_loss": 1e-3}
    nll, loss = reference(**how)
    factor = np.ones(ids.shape) if given is None else np.broadcast_to(np.asarray(given.array).T, ids.shape[::-1]).T
    factor = np.asarray(given.array) if given is WEIGHTS else factor
    hits = LOGITS.argmax(-1) == ids
    parts = {"loss": loss * factor, "nll": nll * factor, "hits": hits * factor, "weight": factor}
    want = {name: part.sum() / (B.size * T.size) for name, part in parts.items()}
    for chunks in (1, 4):
        got = {name: float(value.array) for name, value in summed(chunks, **how)(TABLE, X, IDS, given).items()}
        assert got == pytest.approx(want, rel=128 * EPS, abs=128 * EPS)


@pytest.mark.parametrize("chunks", [2, 16])
def test_chunks_change_neither_values_nor_gradients(chunks):
    how = {"smoothing": 0.1, "z_loss": 1e-3}
    whole, cut = (arrays(jax.jit(with_gradients(summed(n, **how)))(TABLE, X, IDS, WEIGHTS)) for n in (1, chunks))
    assert_same(cut, whole, 128 * EPS)


def largest(jaxpr: Any) -> int:
    """How many numbers the largest value of a program holds, those of inner programs too."""
    sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size")]
    inner = [leaf for eqn in jaxpr.eqns for leaf in jax.tree.leaves(list(eqn.params.values())) if _is_jaxpr(leaf)]
    return max([0, *sizes, *(largest(getattr(j, "jaxpr", j)) for j in inner)])


def _is_jaxpr(leaf: Any) -> bool:
    return hasattr(leaf, "eqns") or hasattr(getattr(leaf, "jaxpr", None), "eqns")


@pytest.mark.parametrize("layout", ["", "batch:x", "vocab:x", "length:x"])
def test_with_chunks_no_value_is_as_large_as_the_logits(layout):
    ways = 8 if layout else 1
    chunks = 2 if layout == "length:x" else 8
    for n in (1, chunks):
        program = wf.trace(with_gradients(summed(n)), TABLE, X, IDS, WEIGHTS, mesh="x=8", layout=layout)
        found = largest(program.jaxpr.jaxpr)
        logits = B.size * T.size * V.size // ways
        inputs = max(X.array.size, TABLE.table.array.size)
        assert found >= logits if n == 1 else found <= max(logits // n, inputs), (n, found)


def test_a_split_vocab_is_never_gathered_and_only_numbers_of_tokens_are_summed():
    def program(table: Any, x: wf.Tensor) -> Any:
        return nn.cross_entropy(table.logits(x), IDS, smoothing=0.1, z_loss=1e-3)

    for run in (program, with_gradients(program)):
        rows = wf.trace(run, TABLE, X, mesh="x=8", layout="vocab:x").ledger.rows
        assert {row.collective for row in rows} == {"all_reduce"}
        tokens = 4 * B.size * T.size
        per_token = D.size if run is not program else 1  # the gradient of what the logits are made of
        assert all(row.bytes <= 4 * tokens * per_token for row in rows), [row.bytes for row in rows]
    forward = wf.trace(program, TABLE, X, mesh="x=8", layout="vocab:x").ledger.rows
    assert all(row.bytes % tokens == 0 and row.bytes <= 3 * tokens for row in forward), [row.bytes for row in forward]


# Against the same made of other ops: each logit read as often as there are ops.


def made_of_ops(logits: wf.Tensor, targets: wf.Tensor, smoothing: float, z_loss: float) -> tuple[wf.Tensor, ...]:
    vocab = logits.dim("vocab")
    target = wf.sum(wf.where(wf.one_hot(targets, vocab, dtype=bool), logits, 0.0), over=vocab)
    total = wf.logsumexp(logits, over=vocab)
    nll = total - target
    loss = (1 - smoothing) * nll + smoothing * (total - wf.mean(logits, over=vocab)) + z_loss * total * total
    return nll, loss, wf.cast(wf.argmax(wf.stop_gradient(logits), over=vocab) == targets, "float32")


def made_by_one(logits: wf.Tensor, targets: wf.Tensor, smoothing: float, z_loss: float) -> tuple[wf.Tensor, ...]:
    nll, loss = nn.cross_entropy(logits, targets, smoothing=smoothing, z_loss=z_loss)
    terms = cross_entropy_terms(logits, targets, over="vocab")
    return nll, loss, wf.cast(terms.is_hit, "float32")


TIED = wf.tensor(np.round(np.asarray(normal([B, T, V], 4).array) * 2), [B, T, V])
"""Logits of which many are equal, and with padding."""


@pytest.mark.quick(
    "(0.0, 0.0)-vocab:x+y",
    "(0.0, 0.0)-length:y,vocab:x",
    "(0.1, 0.001)-",
    "(0.1, 0.001)-vocab:x,batch:y",
    "(0.1, 0.001)-vocab:x+y",
    "(0.1, 0.001)-length:y,vocab:x",
)
@pytest.mark.parametrize("layout", ["", "vocab:x", "batch:x", "vocab:x,batch:y", "vocab:x+y", "length:y,vocab:x"])
@pytest.mark.parametrize("how", [(0.0, 0.0), (0.1, 1e-3)], ids=str)
def test_under_every_layout_it_is_what_other_ops_make_of_the_logits_in_value_and_gradient(how, layout):
    def both(make: Any) -> Any:
        def summed(logits: wf.Tensor, targets: wf.Tensor) -> Any:
            nll, loss, hits = make(logits, targets, *how)
            return wf.sum(loss * loss + nll, over=loss.dims) / loss.dims[0].size, (nll, loss, hits)

        return wf.value_and_grad(summed, has_aux=True)

    want = arrays(both(made_of_ops)(TIED, IDS))
    got = arrays(wf.spmd(both(made_by_one), mesh="x=4,y=2", layout=layout)(TIED, IDS))
    assert_same(got, want, 64 * EPS)


@pytest.mark.parametrize("layout", ["", "vocab:x"])
def test_bfloat16_logits_are_summed_in_float32_and_their_gradient_is_rounded_once(layout):
    narrow = wf.cast(normal([B, T, V], 5) * 4, "bfloat16")

    def slope(logits: wf.Tensor) -> Any:
        return wf.value_and_grad(lambda a: wf.sum(nn.cross_entropy(a, IDS)[1], over="batch length"))(logits)

    wide_loss, wide = slope(wf.cast(narrow, "float32"))
    loss, found = wf.spmd(slope, mesh="x=8", layout=layout)(narrow)
    assert loss.dtype == "float32" and found.dtype == "bfloat16"
    assert float(loss.array) == pytest.approx(float(wide_loss.array), rel=16 * EPS)
    want = np.asarray(wide.array)
    np.testing.assert_allclose(np.asarray(found.array, "float32"), want, rtol=2.0**-8, atol=2 * EPS)


@pytest.mark.parametrize(("name", "numbers"), [("loss", 1 + 2), ("hits", 1 + 1 + 2)])
def test_of_a_split_vocab_each_token_sends_its_largest_logit_and_its_sums(name, numbers):
    def program(logits: wf.Tensor) -> Any:
        return nn.summed_cross_entropy(lambda x: x, logits, IDS)[name]

    for run in (program, wf.grad(program)) if name == "loss" else (program,):  # backward nothing is sent
        ledger = wf.trace(run, normal([B, T, V], 5), mesh="x=8", layout="vocab:x").ledger
        assert ledger.bytes("x") == numbers * 4 * B.size * T.size


@pytest.mark.slow
def test_the_gradient_of_the_gradient_is_that_of_other_ops():
    logits = normal([B, wf.Dim("vocab", 8)], 6)
    targets = wf.tensor(np.arange(B.size) % 8, [B])

    def twice(make: Any) -> Any:
        def once(a: wf.Tensor) -> wf.Tensor:
            slope = wf.grad(lambda a: wf.sum(make(a, targets, 0.1, 1e-2)[1], over="batch"))(a)
            return wf.sum(slope * slope, over="batch vocab")

        return wf.grad(once)(logits).array

    np.testing.assert_allclose(twice(made_by_one), twice(made_of_ops), rtol=0, atol=256 * EPS)


def test_a_hit_of_narrow_logits_is_one_also_where_xla_keeps_what_was_not_rounded():
    """Logits of a product in bfloat16: the largest of a row and the target's are of the same rounding."""
    random = np.random.default_rng(0)
    x, table = (random.normal(size=shape).astype("float32") for shape in ((64, 32), (40, 32)))
    x, table = wf.tensor(x, "batch d_model"), wf.tensor(table, "vocab d_model")
    narrow = [wf.cast(t, "bfloat16") for t in (x, table)]

    def logits(x):
        return wf.einsum(x, narrow[1], over="d_model", dtype="bfloat16")

    best = np.asarray(jax.jit(logits)(narrow[0]).array, "float32").argmax(-1)
    targets = wf.tensor(best.astype("int32"), "batch")
    for how in (jax.jit, lambda fn: fn):
        sums = how(lambda x, ids: nn.summed_cross_entropy(logits, x, ids, chunks=1))(narrow[0], targets)
        assert float(sums["hits"]) == 64
