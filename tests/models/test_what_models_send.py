"""What the models send, by the ledger: no more than their layouts make needful."""

import jax
import optax
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import models

PAPERS = "batch:m0,vocab:m1,heads:m1,d_ff:m1"
MESH = {"m0": 16, "m1": 32}


def ledger(config, mesh, layout):
    """The collectives of a step."""
    ids = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), "batch length")
    batch = {"tokens": ids} if config.name != "tiny-mt" else {"inputs": ids, "targets": ids}
    step = wf.train_step(lambda m, batch, key: m.loss(batch), optax.sgd(0.1))
    return wf.trace(step, step.init(models.shapes(config)), batch, mesh=mesh, layout=layout).ledger


def rows(found, *axes, phase=None, least=0):
    """The rows over these axes, with more than `least` bytes a call."""
    return [row for row in found if row.axes == axes and (phase is None or row.phase == phase) and row.bytes > least]


def wire_bytes(found):
    """What one processor sends in all, by ring algorithms."""
    return sum(row.wire_bytes * row.count for row in found)


@pytest.mark.parametrize(("remat", "recomputed"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("scanned", [True, False])
def test_the_papers_layout_sends_two_sums_a_layer_forward_and_two_backward(remat, recomputed, scanned):
    config = models.preset("lm-4.90b", remat=remat, scanned=scanned)
    found = ledger(config, MESH, PAPERS)
    assert {row.collective for row in found} == {"all_reduce"}  # the vocab is never gathered, nor is anything else
    tokens = config.batch // 16 * config.length
    activation = tokens * config.d_model * 2
    sent = {
        phase: sum(row.count for row in rows(found, "m1", phase=phase) if row.bytes == activation)
        for phase in ("forward", "recompute", "backward")
    }
    # Beside the layers': the embedding's vectors forward, and what flows back from the logits.
    assert sent == {
        "forward": 2 * config.layers + 1,
        "recompute": recomputed * config.layers,
        "backward": 2 * config.layers + 1,
    }
    # Of a token's logits the largest, then two sums together.
    assert {row.bytes for row in rows(found, "m1")} == {activation, 4 * tokens, 8 * tokens}


@pytest.mark.parametrize("scanned", [True, False])
def test_the_papers_layout_sums_every_gradient_once_over_the_batch(scanned):
    config = models.preset("lm-4.90b", remat=False, scanned=scanned)
    found = ledger(config, MESH, PAPERS)
    norms = (2 * config.layers + 1) * config.d_model
    matrices = config.param_count - norms
    over_batch = rows(found, "m0")
    scalars = sum(row.bytes * row.count for row in over_batch if row.bytes <= 4)
    # Matrices are used in bfloat16 and lie split over m1; scales of norms are whole, in float32.
    assert sum(row.bytes * row.count for row in over_batch) - scalars == 2 * matrices // 32 + 4 * norms
    assert scalars <= 16


def test_a_split_length_adds_nothing_at_the_border_of_a_block():
    config = models.preset("tiny-lm")
    found = ledger(config, "x=8", "length:x")
    forward = [row for row in found if row.phase == "forward" and row.bytes > 4]
    gathered = [(row.collective, row.count) for row in forward if row.count > 1]
    # Inside attention keys and values are gathered in each layer; beside that only the shift at the very start moves.
    assert gathered == [("all_gather", config.layers)] * 2
    assert [row.collective for row in forward if row.count == 1] == ["permute"]
    assert "recompute" not in {row.phase for row in found}


def test_a_stream_split_apart_from_length_gathers_before_and_scatters_after_each_part():
    config = models.preset("tiny-lm")
    layout = "stream:x,heads:x,d_ff:x,vocab:x"
    found = [row for row in ledger(config, "x=8", layout) if row.phase == "forward" and row.count == config.layers]
    assert sorted(row.collective for row in found) == ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "rotary"])
def test_a_split_stream_sends_what_the_sums_it_replaces_did_and_the_scales_of_norms(positions):
    config, ways, layout = models.preset("tiny-lm", positions=positions), 4, "heads:x,d_ff:x,vocab:x"
    sums, split = (ledger(config, f"x={ways}", rules) for rules in (layout, f"stream:x,{layout}"))
    tokens, width = config.batch * config.length, config.d_model
    # Two sums a layer and pass, that of the words forward, that of the logits' gradient back; three numbers a token.
    activations = (4 * config.layers + 2) * tokens * width * 4 + 3 * tokens * 4
    norms = (2 * config.layers + 1) * width * 4
    assert wire_bytes(sums) == activations * 2 * (ways - 1) // ways
    learned = config.length * width * 4 if positions == "learned" else 0  # their gradient comes together by a gather
    assert wire_bytes(split) == (2 * (activations + norms) + learned) * (ways - 1) // ways


def test_words_stored_by_columns_are_exchanged_and_no_table_is_gathered_for_them():
    config, ways = models.preset("tiny-lm", vocab=512), 8
    found = ledger(config, f"x={ways}", "batch:x,params.d_model:x")
    ids, vectors = config.batch * config.length * 4, config.batch * config.length * config.d_model * 4
    looked_up = [(row.phase, row.collective, row.bytes) for row in found if row.function == "Embedding.__call__"]
    assert looked_up == [
        ("forward", "all_gather", ids),
        ("forward", "all_to_all", vectors // ways),
        ("backward", "all_to_all", vectors // ways),
    ]
    table = config.vocab * config.d_model * 4
    others = config.param_count * 4 - 2 * table
    kept = [row for row in found if row.function != "Embedding.__call__" and row.bytes > 4]
    gathered = sum(row.bytes * row.count for row in kept if row.collective == "all_gather")
    scattered = sum(row.bytes * row.count for row in kept if row.collective == "reduce_scatter")
    # The softmax's table once, for its gradient is the first that is made; all but these for the backward pass again.
    assert (gathered, scattered) == (table + 2 * others, table + others)


def test_a_vocab_over_the_axis_of_the_batch_can_be_stored_so():
    config = models.preset("tiny-lm", vocab=512, layers=1)
    error = error_of(lambda: ledger(config, "x=8", "batch:x,vocab:x"), wf.LayoutError)
    assert "`batch` and `vocab`" in error.fact  # of the logits; words are looked up under both
    assert "or only store parameters so: `params.vocab:x` for `vocab:x`" in error.fix
    found = ledger(config, "x=8", "batch:x,params.vocab:x")
    ids, vectors = config.batch * config.length * 4, config.batch * config.length * config.d_model * 4
    looked_up = [(row.collective, row.bytes) for row in found if row.function == "Embedding.__call__"]
    assert looked_up == [("all_gather", ids), ("reduce_scatter", vectors), ("all_gather", vectors)]


@pytest.mark.parametrize("gating", ["switch", "top2", "choice"])
def test_experts_that_share_the_axis_of_the_batch_get_their_tokens_by_one_all_to_all_each_way(gating):
    config = models.preset("tiny-moe", gating=gating, layers=1)
    found = ledger(config, "x=8", "batch:x,experts:x")
    sent = [(row.phase, row.count) for row in found if row.collective == "all_to_all"]
    assert sent == [("forward", 1)] * 2 + [("backward", 1)] * 2
    assert {row.collective for row in found} == {"all_to_all", "all_reduce"}


@pytest.mark.parametrize("gating", ["switch", "top2", "choice", "dropless"])
def test_experts_under_a_split_batch_move_no_token(gating):
    config = models.preset("tiny-moe", gating=gating, layers=3)
    found = ledger(config, "x=8", "batch:x")
    assert {row.collective for row in found} == {"all_reduce"}
    # Forward only numbers: the statistics of all layers' routers, once after the loop; and the loss.
    sent = [(row.bytes, row.count) for row in found if row.phase == "forward" and row.bytes > 4]
    assert sent == [(4 * 5 * config.experts * config.layers, 1)]


def test_an_encoder_decoder_sends_five_sums_for_a_layer_of_each():
    config = models.preset("tiny-mt")
    found = ledger(config, "m0=2,m1=4", PAPERS)
    activation = config.batch // 2 * config.length * config.d_model * 4
    counts = [row.count for row in rows(found, "m1", phase="forward") if row.bytes == activation]
    # Two in a layer of the encoder, three in one of the decoder, and the words of both.
    assert sum(counts) == 5 * config.layers + 2
    assert {row.collective for row in found} == {"all_reduce"}


def test_what_is_frozen_is_not_summed():
    config = models.preset("tiny-lm")
    ids = wf.tensor(jax.ShapeDtypeStruct((8, 16), "int32"), "batch length")
    model = wf.nn.freeze(models.shapes(config), "embedding.*", "decoder.*")
    step = wf.train_step(lambda m, batch, key: m.loss(batch), optax.adam(0.1))
    state = step.init(model)
    found = wf.trace(step, state, {"tokens": ids}, mesh="x=8", layout="batch:x").ledger
    assert [row.bytes for row in found if row.bytes > 4] == [config.vocab * config.d_model * 4]
    sizes = [leaf.size for leaf in jax.tree.leaves(state.optimizer) if leaf.size > 1]
    assert sizes == [config.vocab * config.d_model] * 2


def test_ulysses_sends_queries_keys_values_and_what_is_mixed_by_one_all_to_all_each():
    config = models.preset("tiny-lm", heads=4, group=2)
    found = ledger(config, "x=4", "stream:x,queries:x,vocab:x")
    exchanged = [row for row in found if row.collective == "all_to_all"]
    keys = 4 * config.batch * config.length * config.heads * config.d_kv
    layer = (2 * config.group + 2) * keys // 4  # queries and results, keys and values; each holds a fourth
    for phase in ("forward", "backward"):
        assert sum(row.bytes * row.count for row in exchanged if row.phase == phase) == config.layers * layer
    # The rest of a layer sends nothing forward: projections and feed-forward stay on slices of the stream.
    assert {row.collective for row in found if row.phase == "forward" and row.count > 1} == {"all_to_all"}


def test_heads_that_do_not_divide_over_queries_are_told_with_their_cure():
    with pytest.raises(wf.LayoutError, match=r"dim `queries` \(size 2\) does not divide over mesh axis `x`") as error:
        ledger(models.preset("tiny-lm", heads=2, group=4), "x=4", "stream:x,queries:x")
    assert "drop `queries:x`" in str(error.value)
