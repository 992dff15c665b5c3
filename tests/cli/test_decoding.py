"""`weft generate` and `weft translate`: what a run writes, from any of its checkpoints."""

import json

import pytest
from typer.testing import CliRunner

from tests.train.toys import pairs, untrained
from weft.cli import app
from weft.cli.decoding import INTERRUPTED
from weft.decode.continuation import continue_texts
from weft.decode.translate import Translator

from .command import error_of, weft

LINES = [one for one, _ in pairs(12)]


@pytest.fixture(scope="module")
def mt(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("mt") / "run", "tiny-mt")


# Continuations.


def test_generate_prints_the_prompt_and_what_follows(lm):
    printed, said = weft("generate", lm.folder, "--prompt", "the cat", "--tokens", 20, "--seed", 3)
    (wanted,) = continue_texts(lm.load(), lm.tokenizer, ["the cat"], tokens=20, seed=3)
    assert printed == wanted.text.rstrip("\n") + "\n"
    assert said == ""


@pytest.mark.slow
def test_generate_goes_beyond_the_length_of_a_model(lm):
    found = json.loads(weft("generate", lm.folder, "--prompt", "the cat", "--tokens", 50, "--json")[0])
    (sample,) = found["samples"]
    assert found["step"] == 3 and sample["tokens"] == 50 and sample["text"].startswith("the cat")


def test_generate_takes_several_prompts_and_samples_from_any_checkpoint(lm):
    words = ["--prompt", "the", "--prompt", "and a dog", "--samples", 2, "--tokens", 4, "--temperature", 1]
    printed, _ = weft("generate", lm.folder, *words, "--step", 2)
    assert [line for line in printed.splitlines() if line.startswith("---")] == [
        f"--- prompt {prompt}, sample {sample} ---" for prompt in (1, 2) for sample in (1, 2)
    ]
    wanted = continue_texts(lm.load(step=2), lm.tokenizer, ["the", "and a dog"], tokens=4, samples=2, temperature=1.0)
    assert all(each.text in printed for each in wanted)
    found = json.loads(weft("generate", lm.folder, *words, "--step", 2, "--json")[0])
    assert [each["text"] for each in found["samples"]] == [each.text for each in wanted]


@pytest.mark.slow
def test_generate_says_how_much_of_a_draft_was_accepted(lm):
    words = ["--prompt", "the cat", "--tokens", 9, "--temperature", 0]
    printed, said = weft("generate", lm.folder, *words, "--draft", lm.folder, "--ahead", 2)
    assert printed == weft("generate", lm.folder, *words)[0]
    assert said == "100% of the tokens proposed were accepted\n"
    printed, said = weft("generate", lm.folder, *words, "--ngrams", 1, "--json")
    share = json.loads(printed)["samples"][0]["accepted"]
    assert said == f"{share:.0%} of the tokens proposed were accepted\n"


@pytest.mark.parametrize(
    ("words", "fact", "fix"),
    [
        (["--prompt", ""], "the prompt is empty", "--begin"),
        (["--prompt", "a", "--step", 9], "there is no checkpoint of step 9", "there are: 1, 2, 3"),
        (["--prompt", "a", "--step", 1, "--best"], "both --step and --best were given", "give one"),
        (["--prompt", "a", "--average", 9], "9 checkpoints were to be averaged, and there are 3", "average fewer"),
        (["--prompt", "a", "--mesh", "rows=2"], "only one of --mesh and --layout was given", "give both"),
    ],
)
def test_what_cannot_be_continued(lm, words, fact, fix):
    told, _, mends = error_of("generate", lm.folder, *words)
    assert fact in told and fix in mends


def test_an_encoder_decoder_is_sent_to_translate_and_a_language_model_to_generate(lm, mt):
    fact, _, fix = error_of("generate", mt.folder, "--prompt", "a")
    assert "is an encoder-decoder" in fact and f"`weft translate {mt.folder} < texts`" in fix
    fact, _, fix = error_of("translate", lm.folder)
    assert "is no encoder-decoder" in fact and f"`weft generate {lm.folder} " in fix


def test_a_folder_without_a_run(tmp_path):
    for command in (["generate", tmp_path, "--prompt", "a"], ["translate", tmp_path], ["eval", tmp_path]):
        assert error_of(*command)[0] == f"there is no run in {tmp_path}: no config.toml"


# Translations.


def translate(run, given, *words, status=0):
    words = ["translate", str(run.folder), "--beam", "2", "--tokens", "8", *map(str, words)]
    done = CliRunner().invoke(app, words, prog_name="weft", input=given)
    assert done.exit_code == status, done.stderr
    return done.stdout, done.stderr


def test_translate_writes_a_line_for_each_in_order(mt):
    given = "\n".join([*LINES[:5], "", *LINES[5:]]) + "\n"
    printed, said = translate(mt, given, "--batch", 4)
    wanted = Translator(mt.load(), mt.tokenizer, beams=2, batch=4, tokens=8)(LINES)
    assert printed.split("\n") == [*wanted[:5], "", *wanted[5:], ""]
    assert said.splitlines()[-1].startswith("13 lines in ")


def test_the_last_line_needs_no_end_and_ends_of_other_systems_are_none_of_the_text(mt):
    unix, _ = translate(mt, f"{LINES[0]}\n{LINES[1]}\n", "--batch", 4)
    assert translate(mt, f"{LINES[0]}\r\n{LINES[1]}", "--batch", 4)[0] == unix
    assert translate(mt, "") == ("", "0 lines in 0.0 s\n")


def test_lines_too_long_or_no_text_are_told_once_and_translated_all_the_same(mt):
    given = "\n".join(["a b c d " * 30] * 3).encode() + b"\na \xff b\n"
    printed, said = translate(mt, given, "--batch", 4)
    assert printed.count("\n") == 4
    assert said.count("lines of more than 32 tokens are cut there") == 1 and "3 of them cut" in said
    assert "line 4 is no UTF-8" in said


def test_what_was_translated_stays_when_it_is_interrupted(mt, monkeypatch):
    whole, turns = Translator.__call__, []

    def interrupted(self, texts):
        turns.append(texts)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return whole(self, texts)

    monkeypatch.setattr(Translator, "__call__", interrupted)
    monkeypatch.setattr("weft.cli.decoding.CHUNK", 1)
    printed, said = translate(mt, "\n".join(LINES), "--batch", 4, status=INTERRUPTED)
    assert printed.count("\n") == 4 and said.endswith("stopped after 4 lines\n")
    assert [len(texts) for texts in turns] == [4, 4]  # no more is read than a chunk


def test_a_person_at_a_terminal_gets_an_answer_to_every_line(mt, monkeypatch):
    sizes = []
    monkeypatch.setattr(Translator, "__call__", lambda self, texts: sizes.append(len(texts)) or texts)
    monkeypatch.setattr("weft.cli.decoding._is_typed", lambda: True)
    assert translate(mt, "a\nb\nc\n")[0] == "a\nb\nc\n"
    assert sizes == [1, 1, 1]
