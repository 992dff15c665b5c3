"""`weft generate` and `weft translate`: what a run writes, from any of its checkpoints."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tests.train.toys import pairs, untrained
from weft.cli import app
from weft.cli.decoding import INTERRUPTED
from weft.cli.decoding import _write_piece as write_piece
from weft.decode.continuation import Pieces, continue_texts
from weft.decode.translate import Translator
from weft.small_files import summed

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


def test_what_of_a_prompt_is_not_seen_is_said(lm):
    length = lm.settings.length
    _, said = weft("generate", lm.folder, "--prompt", "a" * 2 * length, "--tokens", 1)
    assert said.startswith(f"warning: the model reads {length} tokens: the first {length + 1} of 'aaa")


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


# Texts as they come, and prompts of a file.


def test_a_text_is_printed_as_it_comes(lm, monkeypatch):
    words = ["--prompt", "the cat", "--tokens", 9, "--seed", 3, "--temperature", 0.9]
    pieces = []
    monkeypatch.setattr("weft.cli.decoding._write_piece", lambda text: pieces.append(text) or write_piece(text))
    printed, said = weft("generate", lm.folder, *words, "--stream")
    assert printed == weft("generate", lm.folder, *words)[0] and said == ""
    assert pieces[0] == "the cat" and len(pieces) > 5


def test_no_character_is_parted():
    letters, told = "aé€𝄞b", []
    ids = list(letters.encode())
    pieces = Pieces(lambda some: bytes(some).decode("utf-8", errors="replace"), len(ids), told.append)
    for each in [*ids, 99]:  # a window may hold one more than was asked for
        pieces([each])
    pieces.close()
    assert told == list(letters)
    broken = []
    pieces = Pieces(lambda some: bytes(some).decode("utf-8", errors="replace"), 2, broken.append)
    for each in b"a\xe2":
        pieces([each])
    pieces.close()
    assert broken == ["a", "\ufffd"]


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    texts = ["the", "and the dog", "the cat sat on", "a", "mat"]
    path.write_text("".join(json.dumps({"id": n, "prompt": text}) + "\n" for n, text in enumerate(texts)) + "\n")
    return path


def test_prompts_of_a_file_go_on_after_the_last_whole_line(lm, prompt_file, tmp_path):
    words = ["generate", lm.folder, "--prompts", prompt_file, "--tokens", 6, "--batch", 2, "--out"]
    whole = tmp_path / "whole.jsonl"
    printed, said = weft(*words, whole)
    assert printed == "" and said.startswith(f"5 lines in {whole}, ")
    rows = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(5))
    assert all(row["text"].startswith(row["prompt"]) and row["tokens"] == 6 for row in rows)
    lines = whole.read_bytes().splitlines(keepends=True)
    for kept in (3, 4):
        part = tmp_path / f"part{kept}.jsonl"
        shutil.copy(f"{whole}.options.json", f"{part}.options.json")
        part.write_bytes(b"".join(lines[:kept]) + lines[kept][:-1])
        _, said = weft(*words, part)
        assert f"5 lines in {part}, {kept} of them before" in said
        assert part.read_bytes() == whole.read_bytes()
    before = whole.stat().st_mtime_ns
    assert "5 of them before" in weft(*words, whole)[1]
    assert whole.stat().st_mtime_ns == before


def test_prompts_of_a_file_are_not_gone_on_with_otherwise(lm, prompt_file, tmp_path):
    out, copy = tmp_path / "out.jsonl", tmp_path / "copy"
    words = ["generate", lm.folder, "--prompts", prompt_file, "--tokens", 3, "--batch", 2, "--out", out]
    weft(*words)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:2]))
    before = out.read_bytes()
    for more, told in [
        (["--temperature", 1.2], "--temperature was 0.8 and is 1.2"),
        (["--seed", 1, "--end", 7], "--end was [] and is [7]; --seed was 0 and is 1"),
        (["--samples", 2], "--samples was 1 and is 2"),
        (["--top-k", 3], "--top-k was not said and is 3"),
        (["--batch", 3], "--batch was 2 and is 3"),
    ]:
        fact, _, fix = error_of(*words, *more)
        assert fact == f"{out} was begun otherwise: {told}" and "name another file with --out" in fix
    shutil.copytree(lm.folder, copy)
    metadata = next(copy.glob("checkpoints/*/checkpoint.json"))
    told = json.loads(metadata.read_bytes())
    told["sums"]["params.final_norm.scale"] = 7
    metadata.write_bytes(summed({key: value for key, value in told.items() if key != "sum"}))
    assert "the print of the weights was" in error_of("generate", copy, *words[2:])[0]
    assert out.read_bytes() == before
    (tmp_path / "out.jsonl.options.json").unlink()
    assert "with which options they were made is not known" in error_of(*words)[0]
    out.unlink()
    assert "5 lines in" in weft(*words)[1]


@pytest.mark.slow
def test_what_a_file_gets_does_not_depend_on_the_mesh(lm, prompt_file, tmp_path):
    words = ["generate", lm.folder, "--prompts", prompt_file, "--tokens", 6, "--samples", 2, "--batch", 2, "--out"]
    weft(*words, tmp_path / "one.jsonl")
    weft(*words, tmp_path / "split.jsonl", "--mesh", "rows=2,cols=4", "--layout", "batch:rows,heads:cols,vocab:cols")
    one, split = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("one.jsonl", "split.jsonl")
    )
    assert one == split and [len(row["samples"]) for row in one] == [2] * 5


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_written_and_says_how_to_go_on(lm, prompt_file, tmp_path, monkeypatch):
    def stop_at_second(*args, part=None, **how):
        if part:
            raise KeyboardInterrupt
        return continue_texts(*args, part=part, **how)

    monkeypatch.setattr("weft.cli.decoding.continue_texts", stop_at_second)
    out = tmp_path / "out.jsonl"
    words = ["generate", lm.folder, "--prompts", prompt_file, "--tokens", 3, "--batch", 2, "--out", out]
    _, said = weft(*words, status=INTERRUPTED)
    assert "stopped after 2 of 5 lines; the same command goes on with them" in said
    assert len(out.read_text().splitlines()) == 2


def test_a_file_of_prompts_that_cannot_be(lm, prompt_file, tmp_path):
    out = tmp_path / "out.jsonl"
    words = ["generate", lm.folder, "--tokens", 3, "--prompts", prompt_file]
    assert error_of("generate", lm.folder)[0] == "there is no prompt"
    assert error_of(*words, "--out", out, "--prompt", "a")[0] == "both --prompt and --prompts were given"
    assert error_of(*words)[0] == "only one of --prompts and --out was given"
    assert "are continued into a file" in error_of(*words, "--out", out, "--stream")[0]
    assert error_of(*words, "--out", prompt_file)[0] == f"{prompt_file} is the file of prompts itself"
    assert "texts are written at once" in error_of(
        "generate", lm.folder, "--prompt", "a", "--prompt", "b", "--stream"
    )[0]  # fmt: skip
    weft(*words, "--out", out)
    out.write_text('{"id": 0, "prompt": "another", "text": "another one"}\n')
    fact, state, _ = error_of(*words, "--out", out)
    assert fact == f"line 1 of {out} is not of line 1 of the prompts in {prompt_file}" and "another" in state
    assert out.read_text().endswith('one"}\n')
    bad = tmp_path / "bad.jsonl"
    for line, told in [
        ('{"text": "a"}', "has no `prompt`"),
        ('{"prompt": 3}', "has a `prompt` that is 3"),
        ("[1]", "is a list"),
        ("{", "is not JSON"),
        ("", "there is no prompt in"),
    ]:
        bad.write_text(line + "\n")
        assert told in error_of("generate", lm.folder, "--prompts", bad, "--out", tmp_path / "no.jsonl")[0]
    assert not list(tmp_path.glob("no.jsonl*"))
