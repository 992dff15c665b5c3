"""`weft data`: the batches of a run as text, with segments and what counts; nothing is trained."""

import json

from tests.cli.command import error_of, weft

CHATS = [
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes\nno"}],
    [{"role": "user", "content": "bye"}, {"role": "assistant", "content": "so long"}],
]


def run_file(folder, data, more=""):
    path = folder / "run.toml"
    path.write_text(
        'name = "shown"\nmodel = {preset = "tiny-lm", vocab = 259}\n'
        'tokenizer = {kind = "bytes", specials = true}\n'
        f"train = {{batch = 2, length = 160{more}}}\ndata = {data}\n"
    )
    return path


def chats_file(folder):
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS * 2))
    return path


def test_batches_are_shown_as_text_with_what_counts_in_brackets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = f'{{path = "{chats_file(tmp_path)}", format = "chat", template = "chatml"}}'
    printed, _ = weft("data", run_file(tmp_path, data))
    lines = printed.splitlines()
    assert lines[0] == f"batch 0: 2 rows, {2 * (17 + 18)} tokens count"
    assert "inputs int32[2 160]" in lines[1] and lines[2] == "row 0"
    assert lines[3].startswith("  segment 1: ") and lines[3].endswith(" count")
    assert "<|im_start|>user⏎" in printed and "⟦yes⏎\n    no<|im_end|>⏎" in printed and "⟦so long<|im_end|>⏎" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chats.jsonl", "run.toml"]  # nothing was written


def test_rows_are_json_and_batches_those_of_the_steps(tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"line {i}\n" for i in range(200)))
    path = run_file(tmp_path, f'{{path = "{tmp_path}/lines.txt", documents = "lines"}}')
    printed, _ = weft("data", path, "--batches", "3", "--json", "--set", "train.length=32")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [(row["batch"], row["row"]) for row in rows] == [(i, j) for i in range(3) for j in range(2)]
    segment = rows[0]["segments"][0]
    assert set(segment) == {"name", "text", "counted", "ids", "weights"} and segment["counted"] == [segment["text"]]
    later, _ = weft("data", path, "--from", "2", "--json", "--set", "train.length=32")
    assert later.splitlines() == printed.splitlines()[4:]
    one, _ = weft("data", path, "--rows", "1", "--json", "--set", "train.length=32")
    assert one.splitlines() == printed.splitlines()[:1]


def test_preferences_and_pairs_have_two_sides(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "2+2=", "chosen": "4", "rejected": "5"}\n')
    data = f'{{path = "{tmp_path}/pairs.jsonl", format = "preferences"}}'
    printed, _ = weft("data", run_file(tmp_path, data, ', objective = "dpo"'), "--json", "--rows", "1")
    sides = json.loads(printed)["segments"]
    assert [(side["name"], side["text"], side["counted"]) for side in sides] == [
        ("chosen", "2+2=4", ["4"]), ("rejected", "2+2=5", ["5"])
    ]  # fmt: skip
    (tmp_path / "a.tsv").write_text("one\tun\n")
    path = tmp_path / "mt.toml"
    path.write_text(f'model = {{preset = "tiny-mt", vocab = 259}}\ndata = "{tmp_path}/a.tsv"\ntrain = {{batch = 1}}\n')
    printed, _ = weft("data", path, "--json")
    assert [(side["name"], side["text"], side["counted"]) for side in json.loads(printed)["segments"]] == [
        ("input 1", "one", []), ("target 1", "un", ["un"])
    ]  # fmt: skip


def test_a_part_that_is_not_there_is_told(tmp_path):
    path = run_file(tmp_path, f'{{path = "{chats_file(tmp_path)}", format = "chat", template = "chatml"}}')
    fact, _, fix = error_of("data", path, "--part", "evaluation")
    assert fact == "nothing is held out: there is no batch to show" and "--part train" in fix
    assert error_of("data", path, "--part", "tain")[2] == "did you mean `train`?"
    assert "there is no file" in error_of("data", tmp_path / "gone.toml")[0]
