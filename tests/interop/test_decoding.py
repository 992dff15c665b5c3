"""Decoding as `transformers` has it: the same tokens, beams and chances, constrained in every way, on any mesh."""

import functools
import json

import numpy as np
import pytest

import weft as wf
from tests.interop.cases import BEAMS, CONSTRAINTS
from tests.interop.folders import FIXTURES
from weft import decode, interop
from weft.decode.sampling import Sampler

STEPS = 12
NAMES = {
    "no_repeat_ngram_size": "no_repeat_ngram",
    "length_penalty": "alpha",
    "eos_token_id": "end",
    "early_stopping": "early_stopping",
}
LAYOUTS = {"": "", "vocab": "heads:b,vocab:a+b,d_ff:b", "batch": "batch:a,heads:b", "memory": "batch:a,memory_length:b"}


@functools.cache
def reference():
    return json.loads((FIXTURES / "decoding.json").read_text())


@functools.cache
def model_of(name, layout=""):
    where = ("a=2,b=2", layout) if layout else ()
    return interop.load(FIXTURES / name, *where, dtype="float32")


def own(logits, tokens, step):
    """No id after the one before it; at every other step, small ids are likelier."""
    places = wf.arange(tokens.dim("place"), like=tokens)
    last = wf.max(wf.where(tokens >= 0, places, -1), over="place")
    before = wf.sum(wf.where(places == last, tokens, 0), over="place")
    ids = wf.arange(logits.dim("vocab"), like=logits)
    logits = wf.where(ids == before + 1, -1e9, logits)
    return logits + 2.0 * wf.cast(step % 2, "float32") * wf.cast(ids < 10, "float32")


def ours(how):
    how = {"eos_token_id": [7], **how}
    how["early_stopping"] = how.get("early_stopping") is True
    processors = [own] if how.pop("own", False) else []
    return {**{NAMES.get(key, key): value for key, value in how.items()}, "processors": processors}


def check_greedy(name, case, layout=""):
    made, how = reference()[name], ours(CONSTRAINTS[case])
    del how["early_stopping"]
    found = decode.generate(model_of(name, LAYOUTS[layout]), made["prompts"], max_new_tokens=STEPS, **how)
    assert found.sequences == made["greedy"][case]


@pytest.mark.quick("t5-penalty")
@pytest.mark.parametrize("case", CONSTRAINTS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_the_likeliest_tokens_are_those_of_transformers(name, case):
    check_greedy(name, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("layout", [key for key in LAYOUTS if key])
def test_they_are_so_under_every_layout(name, layout):
    check_greedy(name, "all", layout)


def check_beams(name, case, layout=""):
    made = reference()[name]
    how = ours({"early_stopping": "never"} | BEAMS[case])
    model = model_of(name, LAYOUTS[layout])
    found = decode.beam_search(model, made["prompts"][::2], beams=3, penalty="length", max_new_tokens=STEPS, **how)
    wanted = made["beams"][case]
    assert found.sequences == [row["tokens"] for row in wanted]
    np.testing.assert_allclose(found.scores, [row["scores"] for row in wanted], rtol=2e-4, atol=2e-4)


@pytest.mark.quick("gpt2-all")
@pytest.mark.parametrize("case", BEAMS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_beams_are_those_of_transformers(name, case):
    check_beams(name, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("layout", [key for key in LAYOUTS if key])
def test_beams_are_so_under_every_layout(name, layout):
    check_beams(name, "all", layout)
    check_beams(name, "short", layout)


def test_chances_after_filters_are_those_of_transformers():
    for case in reference()["filters"]:
        how = {"temperature": 1.0} | case["how"]
        kept = Sampler(**how).filter(wf.tensor(np.array(case["logits"], np.float32), "batch vocab"))
        np.testing.assert_allclose(wf.get(wf.softmax(kept, over="vocab")), case["chances"], rtol=1e-5, atol=1e-7)
