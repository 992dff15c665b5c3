"""`weft eval --harness`: log-likelihoods and the numbers made of them, as a plain loop finds them, on any mesh."""

import json
import math

import numpy as np
import pytest

from tests.train.toys import untrained
from weft.train import Run

from .command import error_of, weft

CHOICES = [
    {"task": "ends", "context": "the cat sat on the", "choices": ["mat and", "dog", "a"], "answer": 0},
    {"task": "ends", "context": "the dog ", "choices": ["sat", "äh", "mat on the cat"], "answer": 0},
    {"task": "ends", "context": "on the", "choices": ["cat", "matmat"], "answer": 0, "id": 7},
    {"context": "", "choices": ["the", "zzz"], "answer": 1, "delimiter": ""},
]
CLOZES = [
    {"task": "last", "context": "the cat sat on the", "target": "mat"},
    {"task": "last", "context": "the cat sat on the mat and the dog sat on", "target": "the"},
    {"task": "last", "context": "and", "target": "the", "delimiter": "  "},
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [*CHOICES, *CLOZES]))
    return path


def judged(lm, tasks, *words):
    return json.loads(weft("eval", lm.folder, "--harness", tasks, "--json", *words)[0])


@pytest.fixture(scope="module")
def found(lm, tasks):
    return judged(lm, tasks)


def by_a_plain_loop(lm, context, asked):
    """The log-likelihood of bytes after a context, one place after the other, and whether all are the likeliest."""
    model = Run(lm.folder).load()
    ids = [*(context.encode() or b"\0"), *asked.encode()][-(lm.settings.length + 1) :]
    logits = np.asarray(model.logits(np.array([ids[:-1]])).array, np.float64)[0, :, : lm.config.vocab]
    of = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    places = range(len(ids) - 1 - len(asked.encode()), len(ids) - 1)
    gains = [of[place, ids[place + 1]] for place in places]
    return sum(gains), all(of[place].argmax() == ids[place + 1] for place in places)


def test_choices_are_those_a_plain_loop_takes(lm, found):
    right = {name: [] for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")}
    for task in CHOICES[:3]:
        asked = [task.get("delimiter", " ") + choice for choice in task["choices"]]
        gains = np.array([by_a_plain_loop(lm, task["context"], each)[0] for each in asked])
        letters = [len(choice) for choice in task["choices"]]
        sizes = [[1] * len(asked), letters, [len(choice.encode()) for choice in task["choices"]]]
        if task["context"].endswith(" "):  # blanks at its end are the choice's
            asked = [" " + each for each in asked]
            context = task["context"].rstrip()
            gains = np.array([by_a_plain_loop(lm, context, each)[0] for each in asked])
        sizes.append([len(each.encode()) for each in asked])
        for name, size in zip(right, sizes, strict=True):
            right[name].append(int(np.argmax(gains / np.array(size))) == task["answer"])
    numbers = found["tasks"]["ends"]
    assert numbers["count"] == 3
    for name, each in right.items():
        assert numbers[name] == pytest.approx(np.mean(each))
        assert numbers[f"{name}_stderr"] == pytest.approx(np.std(each, ddof=1) / math.sqrt(3))


def test_clozes_are_those_a_plain_loop_finds(lm, found):
    gains, greedy = zip(
        *[by_a_plain_loop(lm, task["context"], task.get("delimiter", " ") + task["target"]) for task in CLOZES],
        strict=True,
    )
    numbers = found["tasks"]["last"]
    assert numbers["acc"] == pytest.approx(np.mean(greedy))
    assert numbers["perplexity"] == pytest.approx(math.exp(-np.mean(gains)), rel=1e-4)
    count = sum(len(task.get("delimiter", " ") + task["target"]) for task in CLOZES)
    assert numbers["token_perplexity"] == pytest.approx(math.exp(-sum(gains) / count), rel=1e-4)


def test_a_task_without_name_has_its_files_and_no_context_begins_as_a_text_does(lm, tasks, found, tmp_path):
    assert found["tasks"]["tasks"]["count"] == 1 and found["tasks"]["tasks"]["acc_stderr"] is None
    out = tmp_path / "out.jsonl"
    judged(lm, tasks, "--out", out)
    scored = json.loads(out.read_text().splitlines()[3])["scored"]
    assert scored[0][0] == pytest.approx(by_a_plain_loop(lm, "", "the")[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["batch:rows,vocab:cols", "length:cols,heads:rows", "batch:rows+cols"])
def test_a_mesh_does_not_change_what_is_found(lm, tasks, found, layout):
    split = judged(lm, tasks, "--mesh", "rows=2,cols=4", "--layout", layout)["tasks"]
    for name, numbers in found["tasks"].items():
        for key, value in numbers.items():
            assert split[name][key] == (value if value is None else pytest.approx(value, rel=1e-4))


def test_results_go_on_after_the_last_whole_line(lm, tasks, found, tmp_path):
    out = tmp_path / "results.jsonl"
    words = ["--out", out]
    assert judged(lm, tasks, *words)["tasks"] == found["tasks"]
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 7
    out.write_bytes(b"".join(lines[:5]) + lines[5][:9])
    assert judged(lm, tasks, *words)["tasks"] == found["tasks"]
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["key"] for each in again] == [json.loads(line)["key"] for line in lines]
    fact = error_of("eval", lm.folder, "--harness", tasks, "--shots", 1, "--out", out, "--examples", tasks)[0]
    assert "examples beside the task itself" in fact
    fact = error_of("eval", lm.folder, "--harness", tasks, "--step", 2, *words)[0]
    assert fact == f"line 1 of {out} is not of line 1 of the tasks"


def test_examples_stand_before_a_task(lm, tmp_path):
    path, examples = tmp_path / "tasks.jsonl", tmp_path / "examples.jsonl"
    path.write_text(json.dumps({"task": "t", "context": "on the", "target": "cat"}) + "\n")
    rows = [{"task": "t", "context": "a", "target": "b"}, {"task": "u", "context": "no", "target": "no"}]
    rows += [{"task": "t", "context": "on the", "target": "cat"}, {"task": "t", "context": "c", "target": "d"}]
    examples.write_text("".join(json.dumps(each) + "\n" for each in rows))
    numbers = judged(lm, path, "--examples", examples, "--shots", 2)["tasks"]["t"]
    gain, _ = by_a_plain_loop(lm, "a b\n\nc d\n\non the", " cat")
    assert numbers["perplexity"] == pytest.approx(math.exp(-gain), rel=1e-4)


def test_long_contexts_lose_their_begin_and_it_is_said(lm, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"context": "the cat sat on the mat " * 4 + "and the", "target": "dog"}) + "\n")
    printed, said = weft("eval", lm.folder, "--harness", path)
    assert said == "warning: 1 requests are longer than the model's sequences, and lost their begin\n"
    assert printed.splitlines()[0].split() == ["task", "count", "metric", "value", "±", "error"]
    assert printed.splitlines()[1].split()[:3] == ["long", "1", "acc"]
    path.write_text(json.dumps({"context": "the", "target": "dog" * 20}) + "\n")
    assert "a choice has 61 tokens" in error_of("eval", lm.folder, "--harness", path)[0]


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ({"context": "a", "target": "b", "anser": 1}, "has `anser`, which says nothing of a task"),
        ({"target": "b"}, "has no `context`"),
        ({"context": 3, "target": "b"}, "has a `context` that is 3"),
        ({"context": "a"}, "has neither `choices` nor `target`"),
        ({"context": "a", "target": "b", "choices": ["c", "d"]}, "has both `choices` and `target`"),
        ({"context": "a", "choices": ["c"], "answer": 0}, "has `choices` that are"),
        ({"context": "a", "target": " "}, "has `target` that are"),
        ({"context": "a", "choices": ["c", "d"], "answer": 2}, "has an `answer` that is 2"),
        ({"context": "a", "choices": ["c", "d"]}, "has an `answer` that is None"),
        (["a", "b"], "is a list"),
    ],
)
def test_tasks_that_cannot_be(lm, tmp_path, line, fact):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert error_of("eval", lm.folder, "--harness", path)[0].startswith(f"{path}:1 {fact}")


def test_options_that_do_not_go_together(lm, tasks, tmp_path):
    words = ["eval", lm.folder, "--harness", tasks]
    assert error_of("eval", lm.folder, "--shots", 2)[0] == "--shots was given, and no --harness"
    assert error_of(*words, "--window", 9)[0] == "--harness and --window were given"
    assert error_of(*words, "--begin", 999)[0] == "--begin is 999, and the vocab has 259"
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert error_of("eval", lm.folder, "--harness", empty)[0] == f"there is no task in {empty}"


@pytest.mark.slow
def test_models_that_do_not_go_on_with_texts_are_not_asked(tasks, tmp_path):
    run = untrained(tmp_path / "run", "tiny-mt")
    words = ("eval", run.folder, "--harness", tasks)
    assert error_of(*words)[0] == "`tiny-mt` is no language model, and tasks ask what follows"
    fact = error_of("eval", run.folder, "--data", tasks, "--window", 8)[0]
    assert fact == "windows slide over texts, and `tiny-mt` is no language model"


@pytest.mark.slow
def test_how_many_are_judged_at_once_changes_nothing(lm, tasks, found):
    few = judged(lm, tasks, "--batch", 2)["tasks"]
    for name, numbers in found["tasks"].items():
        for key, value in numbers.items():
            assert few[name][key] == (value if value is None else pytest.approx(value, rel=1e-4))
