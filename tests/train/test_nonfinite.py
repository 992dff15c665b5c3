"""Steps that are not finite: skipped, counted, and on request the operation is named."""

import json
import re

import jax
import numpy as np
import pytest

from weft.layout import Layout
from weft.mesh import Mesh
from weft.program.finite import NotFinite
from weft.train import nonfinite, saver, trainer
from weft.train.config import read
from weft.train.datasets import open_data
from weft.train.feeding import Feed
from weft.train.nonfinite import first_cause
from weft.train.runs import Run
from weft.train.step import arrays_of, first_model, make_step, optimizer_metrics, refill
from weft.train.trainer import Options, Trainer, TrainingError

from .running import Crash, Heard, config_of, run, text_in

COUNTERS = re.compile(r"\.(step|in_a_row|in_all|norm)$")
CONFIG = """
model = {preset = "tiny-lm", vocab = 256, layers = 2, d_model = 16, d_ff = 32, heads = 2, d_kv = 8}
data = {path = "text.txt", held_out = 0.0}
train = {steps = 6, batch = 2, length = 8, log_every = 1}
schedule = {kind = "constant", rate = 1e-3}
eval = {every = 0}
checkpoint = {every = 0}
"""
RATE = 'schedule = {kind = "constant", rate = 1e-3}'


class Silent:
    """Hears of a run and keeps quiet."""

    def __getattr__(self, name):
        return lambda *_: jax.named_scope(name)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A run's configuration by what is changed in it; the letter Z is in one place of its text."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("so it goes on and on, a" * 2 + "Z" + "nd on it goes as it did" * 2)
    (folder / "run.toml").write_text(CONFIG.replace("text.txt", str(folder / "text.txt")))
    return lambda *changes: read(folder / "run.toml", changes)


@pytest.fixture(scope="module")
def ready(settings, tmp_path_factory):
    """A configuration, its step on one processor, its feed and its data."""
    config = settings()
    learned = open_data(config, tmp_path_factory.mktemp("data"), lambda *_: None).training
    where = Mesh("all=1"), Layout("batch:all")
    return config, make_step(config, *where), Feed(config.sized_model, *where, seed=config.seed), learned


def with_weights(config, changed):
    """The first model with some of its weights replaced: `{path: (index, number)}`."""
    model = first_model(config)
    arrays = {path: np.array(x) for path, x in arrays_of(model).items()}
    for path, (index, number) in changed.items():
        arrays[path][index] = number
    return refill(model, arrays)


def learned_of(state):
    """The weights and what the optimizer keeps of them, counters aside; the step overwrites the arrays themselves."""
    return {path: np.array(x) for path, x in arrays_of(state).items() if not COUNTERS.search(f".{path}")}


def run_of(config, folder, **options):
    """What a run raises, if it does, and its metrics."""
    error = None
    try:
        Trainer(config, folder, Silent(), Options(**options)).run()
    except TrainingError as raised:
        error = raised
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return error, [json.loads(line) for line in lines]


# Skipped and counted.

BAD_IF_Z = {"embedding.table": (ord("Z"), np.inf)}  # a batch without that letter does not see it


def test_a_bad_step_changes_nothing_and_the_next_goes_on_as_if_it_had_not_been(ready):
    config, step, feed, learned = ready
    batches = feed.batches(learned)
    assert [at for at in range(7) if (batches.at(at)["inputs"] == ord("Z")).any()] == [5]
    good, bad = (lambda: feed.place(batches.at(0))), feed.place(batches.at(5))

    state = step.init(with_weights(config, BAD_IF_Z))
    before = learned_of(state)
    state, _ = step(state, bad, np.int32(0))
    after = learned_of(state)
    assert before.keys() == after.keys() and len(before) > 30
    assert [path for path in before if not np.array_equal(before[path], after[path])] == []
    assert [float(optimizer_metrics(state)[name]) for name in ("bad_in_a_row", "bad_steps")] == [1, 1]

    state, _ = step(state, good(), np.int32(0))
    assert [float(optimizer_metrics(state)[name]) for name in ("bad_in_a_row", "bad_steps")] == [0, 1]
    straight, _ = step(step.init(with_weights(config, BAD_IF_Z)), good(), np.int32(0))
    found, wanted = learned_of(state), learned_of(straight)
    assert [path for path in wanted if not np.array_equal(found[path], wanted[path])] == []
    assert not np.array_equal(found["params.softmax.table"], before["params.softmax.table"])


@pytest.fixture
def bad_weights(ready, monkeypatch):
    """Runs begin with these weights, and take the step that is compiled already."""

    def change(weights):
        monkeypatch.setattr(saver, "first_weights", lambda config, *_: with_weights(config, weights))
        monkeypatch.setattr(trainer, "make_step", lambda *_: ready[1])

    return change


def test_one_bad_batch_is_skipped_and_counted(settings, bad_weights, tmp_path):
    bad_weights(BAD_IF_Z)
    error, rows = run_of(settings("train.steps=7"), tmp_path)
    assert error is None
    assert [(row["step"], row["bad_steps"]) for row in rows] == [*((at, 0) for at in range(1, 6)), (6, 1), (7, 1)]


def test_training_stops_after_so_many_bad_steps_in_a_row(settings, bad_weights, tmp_path):
    bad_weights({"decoder.norm.scale": (3, np.nan)})
    error, rows = run_of(settings("train.bad_steps=3"), tmp_path)
    assert error.fact == "3 steps in a row were not finite, up to step 3"
    assert "--find-nan" in error.fix
    assert [row["bad_in_a_row"] for row in rows] == [1, 2, 3]


def test_a_run_that_could_not_go_on_keeps_why_and_says_it_when_it_is_started_again(settings, bad_weights, tmp_path):
    bad_weights({"decoder.norm.scale": (3, np.nan)})
    config = settings("train.bad_steps=3")
    error, _ = run_of(config, tmp_path)
    assert error.state.endswith(f"run.toml:{1 + CONFIG.splitlines().index(RATE)}")
    ended = {"step": 3, "steps": 6, "is_saved": False, "kept": None, "reason": error.fact}
    outcome = json.loads((tmp_path / "run.json").read_text())
    assert outcome["not_finite"] == "the last 3 steps were left out"
    assert {key: outcome[key] for key in ended} == ended
    heard = Heard(crash_at=1)
    with pytest.raises(Crash):
        Trainer(config, tmp_path, heard).run()
    told = f"IT HAD TO STOP at step 3 of 6: {error.fact}; nothing was saved, and it begins anew"
    assert told in heard.messages and not (tmp_path / "run.json").exists()
    error, _ = run_of(config, tmp_path, find_nan=True)
    assert json.loads((tmp_path / "run.json").read_text())["reason"] == error.fact
    assert error.step == 1 and error.not_finite in error.fact


# Named.


@pytest.mark.slow
def test_a_run_whose_rate_is_far_too_high_names_the_operation_on_any_mesh(settings, tmp_path):
    on = "mesh=rows=2,cols=2", "layout=batch:rows,heads:cols,d_ff:cols,vocab:cols"
    error, rows = run_of(settings("schedule.rate=1e38", "train.bad_steps=1", *on), tmp_path, find_nan=True)
    assert re.match(
        r"step 2 is not finite: `\w+` at weft/\w+/\w+\.py:\d+ in [\w.]+ \((forward|backward)(, layers \d)?\) "
        r"gave (inf|NaN) in [\d,]+ of [\d,]+ values, the first at .+, given numbers up to \d\.\d+e\+\d\d",
        error.fact,
    )
    assert "`schedule.rate`" in error.fix
    assert [row["step"] for row in rows] == [1, 2]


@pytest.mark.slow
def test_a_layer_whose_weights_are_bad_is_named(ready):
    config, _, feed, learned = ready
    model = with_weights(config, {"decoder.layers.attention.q": ((1, 2, 0, 3), np.nan)})
    said, _ = first_cause(config, model, feed, feed.batches(learned).at(0), 0)
    assert re.fullmatch(
        r"before it began, `decoder\.layers\.attention\.q` has NaN in 1 of 512 values, "
        r"the first at layers 1, d_model 2, heads 0, d_kv 3; "
        r"`einsum` at weft/nn/attention\.py:\d+ in _project \(forward, layers 1\) gave NaN in 16 of 256 values, "
        r"the first at .*",
        said,
    )


@pytest.mark.slow
def test_a_loss_scaled_too_far_for_its_dtype_is_told_by_its_gradients(settings, ready):
    config, (feed, learned) = settings("model.dtype=float16", "train.loss_scale=1e9"), ready[2:]
    said, _ = first_cause(config, first_model(config), feed, feed.batches(learned).at(0), 0)
    assert re.match(r"its loss is finite, its gradients are not; `\w+` at .* \(backward\) gave inf in ", said)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (lambda *_: NotFinite(), "done again on one processor it is finite; on mesh all=1 sums are of another order"),
        (lambda *_: raised(MemoryError()), "cannot be said: the model and its batch do not fit one processor"),
        (
            lambda *_: raised(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")),
            "cannot be said: the model and its batch do not fit one processor",
        ),
    ],
)
def test_what_cannot_be_named_is_said_to_be_so(ready, monkeypatch, found, sentence):
    config, _, feed, learned = ready
    monkeypatch.setattr(nonfinite, "not_finite", found)
    assert sentence in first_cause(config, first_model(config), feed, feed.batches(learned).at(0), 0)[0]


def raised(error):
    raise error


LABELS = """
import equinox as eqx
import numpy as np
import weft as wf
from weft import nn


class Net(eqx.Module):
    map: nn.Linear

    def loss(self, batch, key):
        losses, _ = nn.cross_entropy(self.map(batch["points"]), batch["label"], over="classes")
        return wf.mean(losses, over="batch")


def make():
    return Net(nn.Linear(*wf.dims(features=2, classes=3)))


class Rows(list):
    dims = {"points": "features"}


def dataset(part):
    return Rows({"points": np.ones(2, "float32"), "label": i % 4} for i in range(8)) if part == "train" else None
"""


def test_a_label_that_is_no_class_is_told_also_of_a_run_that_ended_so(tmp_path):
    (tmp_path / "own.py").write_text(LABELS)
    calls = '[model]\ncall = "own.py:make"\n[data]\ncall = "own.py:dataset"\n'
    (tmp_path / "run.toml").write_text(f"{calls}[train]\nsteps = 2\nbatch = 8\n[eval]\nevery = 0\n")
    config = read(tmp_path / "run.toml")
    outcome = Trainer(config, tmp_path / "run", Silent()).run()
    assert outcome.not_finite == "the last 2 steps were left out"
    with pytest.raises(TrainingError) as caught:
        Trainer(config, tmp_path / "run", Silent(), Options(find_nan=True)).run()
    assert re.fullmatch(
        r"step 2 is not finite: a label lies outside `classes`, which has 3 at \[batch=\d\] \(label=3\); "
        r"2 of 8 values fail",
        caught.value.fact,
    )
    assert caught.value.fix.startswith("mend the data: ")


def test_a_run_gone_wrong_stops_between_rows_and_keeps_what_was_saved_before(tmp_path):
    config = config_of(
        text_in(tmp_path),
        schedule={"rate": 1e30, "warmup": 0},
        optimizer={"clip": 0.0},
        train={"steps": 100, "log_every": 90, "bad_steps": 5},
        checkpoint={"every": 1, "keep": 2},
    )
    with pytest.raises(TrainingError, match=r"steps in a row were not finite, up to step (5|10)\b"):
        run(config, tmp_path / "run")
    assert max(Run(tmp_path / "run").checkpoints.steps) <= 4
