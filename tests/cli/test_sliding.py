"""`weft eval --window`: every token but the first judged once, as a plain loop does it, on any mesh."""

import json

import numpy as np
import pytest

from weft.train import Run

from .command import error_of, weft

WINDOW = ("--window", 24, "--stride", 7)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "other.txt"
    path.write_text("a dog and a cat sat on one mat. " * 9)
    return path


def found(lm, *words):
    return json.loads(weft("eval", lm.folder, "--json", *words)[0])


def by_a_plain_loop(lm, ids, window, stride):
    """The summed loss of all tokens but the first, window by window as they begin."""
    model, scored, total = Run(lm.folder).load(), 0, 0.0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids) - 1)
        logits = np.asarray(model.logits(ids[None, begin:end]).array, np.float64)[0, :, : lm.config.vocab]
        of = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for place in range(max(scored, begin), end):  # the logits at a place are of the token after it
            total -= of[place - begin, ids[place + 1]]
        scored = end
        if end == len(ids) - 1:
            return total
    raise AssertionError


def by_the_guide(lm, ids, max_length, stride):
    """The same as the guide of `transformers` writes it, whose sequences hold their last target."""
    model, before, total = Run(lm.folder).load(), 0, 0.0
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        logits = np.asarray(model.logits(ids[None, begin:end]).array, np.float64)[0, :, : lm.config.vocab]
        of = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        labels = [-100] * (before - begin) + ids[max(before, begin) : end].tolist()
        total -= sum(of[i, label] for i, label in enumerate(labels[1:]) if label != -100)
        before = end
        if end == len(ids):
            return total
    raise AssertionError


def test_a_window_is_one_less_than_the_length_of_the_guide(lm):
    ids = np.random.default_rng(0).integers(0, 200, 120).astype(np.int32)
    assert by_the_guide(lm, ids, 25, 7) == pytest.approx(by_a_plain_loop(lm, ids, 24, 7), rel=1e-6)


def test_it_is_what_a_plain_loop_finds(lm, text):
    ids = np.frombuffer(text.read_bytes()[32:232], np.uint8).astype(np.int32)
    judged = found(lm, "--data", text, "--range", "32:2_3_2", *WINDOW)
    wanted = by_a_plain_loop(lm, ids, 24, 7)
    assert judged["tokens"] == 199 and judged["window"] == 24 and judged["stride"] == 7
    assert judged["loss"] == pytest.approx(wanted / 199, rel=1e-5)
    assert judged["bits_per_byte"] == pytest.approx(wanted / 199 / np.log(2), rel=1e-5)


@pytest.mark.quick("batch:rows,length:cols")
@pytest.mark.parametrize("layout", ["batch:rows,heads:cols", "batch:rows,length:cols", "vocab:cols,d_ff:rows"])
def test_a_layout_does_not_change_it(lm, text, layout):
    alone = found(lm, "--data", text, *WINDOW, "--mesh", "")
    split = found(lm, "--data", text, *WINDOW, "--batch", 4, "--mesh", "rows=2,cols=4", "--layout", layout)
    for name in ("loss", "accuracy", "tokens", "word_perplexity"):
        assert split[name] == pytest.approx(alone[name], rel=1e-5)


def test_what_a_run_holds_out_is_judged_so(lm):
    whole = found(lm)
    judged = found(lm, "--window", 32)
    assert judged["tokens"] == whole["tokens"] - 1 and judged["stride"] == 16
    assert judged["bits_per_byte"] == pytest.approx(whole["bits_per_byte"], rel=0.2)


def test_what_cannot_slide(lm, text):
    assert error_of("eval", lm.folder, "--stride", 4)[0] == "--stride was given, and no --window that it moves"
    assert error_of("eval", lm.folder, "--window", 64)[0] == (
        "the window has 64 tokens, and the model has learned 32 positions"
    )
    fact, _, fix = error_of("eval", lm.folder, "--window", 31, "--mesh", "x=3", "--layout", "length:x")
    assert fact == "a window of 31 tokens does not divide by 3, as the loss or the layout asks"
    assert "`--window 30`" in fix
    assert error_of("eval", lm.folder, "--range", "0:9")[0] == "--range was given, and no --data that it is of"
    assert error_of("eval", lm.folder, "--data", text, "--range", "9")[0] == "--range is '9'"
    assert "asks for 0 to 9,999" in error_of("eval", lm.folder, "--data", text, "--range", "0:9999")[0]
