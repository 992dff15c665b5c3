"""Loss spikes: found by the steps before them, left out or gone back from, the same after a crash and on every mesh."""

import json

import jax
import numpy as np
import pytest

from weft.train.checkpoints import Checkpoints
from weft.train.config import ConfigError
from weft.train.datasets import open_data
from weft.train.feeding import Feed
from weft.train.spikes import LEAST, is_spike, no_history
from weft.train.start import first_weights
from weft.train.step import arrays_of, make_step
from weft.train.trainer import Options, Trainer, TrainingError

from .running import Crash, Heard, config_of, run, sums

SMALL = {"layers": 1, "dropout": 0.0}
STEPS, WINDOW = 24, 8


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A text of one letter, with other ones in one place."""
    path = tmp_path_factory.mktemp("odd") / "a.txt"
    path.write_bytes(b"a" * 896 + bytes(range(33, 49)) + b"a" * 592)
    return path


def spiky(odd, **train):
    """A run of which the odd place is in one batch of the first epoch, that of step 14."""
    own = {"steps": STEPS, "batch": 4, "spike_window": WINDOW, **train}
    where = {key: own.pop(key) for key in ("mesh", "layout") if key in own}
    return config_of(
        odd,
        **{"mesh": "", "layout": "", **where},
        model=SMALL,
        data={"held_out": 0},
        seed=3,
        train=own,
        optimizer={"name": "sgd", "clip": 0.0},
        schedule={"kind": "constant", "rate": 0.3, "warmup": 0},
        checkpoint={"every": 1 if own.get("spikes") == "skip" else 3, "keep": 100},
    )


def rows(folder):
    """All rows, but for what time says."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in row.items() if name not in ("tokens_per_s", "mfu")} for row in found]


def spikes_in(folder):
    return [row["spike"] for row in rows(folder) if "spike" in row]


def weights(folder, step):
    return {path: x for path, x in sums(folder, step).items() if path.startswith("params.")}


@pytest.fixture(scope="module")
def skipping(odd, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skipping")
    return folder, *run(spiky(odd, spikes="skip"), folder)


@pytest.fixture(scope="module")
def rolling(odd, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rolling")
    return folder, *run(spiky(odd, spikes="rollback"), folder)


# Which steps are one.


def test_a_spike_is_what_leaps_above_the_mean_of_the_steps_before_by_so_many_deviations():
    drawn = np.random.default_rng(0)
    losses = 2 + 0.1 * drawn.standard_normal(60).astype("float32")
    norms = 1 + 0.1 * drawn.standard_normal(60).astype("float32")
    losses[[30, 45]] *= 2
    norms[50] *= 3
    losses[3], norms[5] = 9.0, 9.0  # when too few are known to tell
    state, found = no_history(WINDOW), []
    for at, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        is_one, state = is_spike(state, loss, norm, 6.0)
        before = slice(at - WINDOW, at)
        wanted = at >= WINDOW and any(
            x[at] > x[before].mean() + 6 * max(x[before].std(), LEAST * abs(x[before].mean())) for x in (losses, norms)
        )
        assert bool(is_one) == wanted, at
        found += [at] if is_one else []
    assert found == [30, 45, 50] and int(state.in_all) == 3


@pytest.mark.parametrize(("steps", "is_one"), [(WINDOW - 1, False), (WINDOW, True), (WINDOW + 1, True)])
def test_a_leap_is_a_spike_as_soon_as_a_window_of_steps_is_known(steps, is_one):
    state = no_history(WINDOW)
    for _ in range(steps):
        _, state = is_spike(state, 2.0, 1.0, 6.0)
    assert bool(is_spike(state, 9.0, 1.0, 6.0)[0]) == is_one


def test_what_lasts_is_a_spike_only_in_its_first_steps():
    state, found = no_history(32), []
    for at in range(100):
        is_one, state = is_spike(state, 2.0 if at < 50 else 3.0, 1.0, 6.0)
        found += [at] if is_one else []
    assert found[0] == 50 and len(found) < 4


@pytest.mark.parametrize(("loss", "norm", "is_one"), [(np.nan, 1.0, True), (np.inf, 1.0, True), (1.0, np.nan, False)])
def test_what_is_not_finite_is_not_counted_and_gradients_that_are_not_are_no_spike(loss, norm, is_one):
    found, state = is_spike(no_history(WINDOW), loss, norm, 6.0)
    assert bool(found) == is_one and int(state.seen) == 0


def test_spikes_are_kept_unless_told_otherwise(odd):
    kept = config_of(odd, mesh="", layout="")
    assert kept.train.spikes == "keep"
    state = jax.eval_shape(lambda: make_step(kept).init(first_weights(kept, *kept.runs_on)))
    assert not [path for path in arrays_of(state) if "spike" in path]


def test_a_policy_that_there_is_not_and_a_rollback_to_nothing_are_refused(odd):
    with pytest.raises(ConfigError) as caught:
        spiky(odd, spikes="skipp")
    assert "`train.spikes` is 'skipp'" in caught.value.fact and "did you mean `skip`?" in caught.value.fix
    with pytest.raises(ConfigError) as caught:
        config_of(odd, train={"spikes": "rollback"}, checkpoint={"every": 0})
    assert "nothing to go back to" in caught.value.fact and "`checkpoint.every = 200`" in caught.value.fix


# Left out.


def test_a_spike_that_is_skipped_changes_no_weight_and_is_told_in_a_line_and_in_the_metrics(skipping):
    folder, outcome, heard = skipping
    (spike,) = spikes_in(folder)
    at = spike["step"]
    assert outcome.is_finished and WINDOW < at < STEPS and spike["loss"] > spike["highest_loss"]
    told = [message for message in heard.messages if "spike" in message]
    assert len(told) == 1 and told[0].startswith(f"step {at} is a spike: its loss is ")
    assert told[0].endswith("it is left out")
    found = {row["step"]: row for row in rows(folder) if "loss" in row}
    assert [row["spikes"] for row in found.values()] == [int(step >= at) for step in range(1, STEPS + 1)]
    assert weights(folder, at) == weights(folder, at - 1) != weights(folder, at - 2)


def test_a_run_that_crashed_after_a_spike_ends_with_the_same_bits(odd, skipping, tmp_path):
    folder, *_ = skipping
    at = spikes_in(folder)[0]["step"]
    run(spiky(odd, spikes="skip"), tmp_path, crash_at=at + 1)
    run(spiky(odd, spikes="skip"), tmp_path)
    assert sums(tmp_path, STEPS) == sums(folder, STEPS) and rows(tmp_path) == rows(folder)


@pytest.mark.slow
def test_on_another_mesh_the_same_steps_are_spikes(odd, skipping, tmp_path):
    run(spiky(odd, spikes="skip", mesh="rows=2", layout="batch:rows"), tmp_path)
    found, wanted = spikes_in(tmp_path), spikes_in(skipping[0])
    assert [each["step"] for each in found] == [each["step"] for each in wanted]
    assert found[0]["loss"] == pytest.approx(wanted[0]["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_run_that_kept_spikes_may_go_on_without_them(odd, tmp_path):
    run(spiky(odd), tmp_path, crash_at=4)
    with pytest.raises(ConfigError, match=r"train\.spikes: keep, now skip"):
        run(spiky(odd, spikes="skip"), tmp_path)
    outcome, heard = run(spiky(odd, spikes="skip"), tmp_path, options=Options(changed=True))
    assert outcome.is_finished and "goes on from step 3" in heard.messages and len(spikes_in(tmp_path)) == 1


# Gone back from.


def test_a_rollback_goes_on_from_the_last_checkpoint_with_the_batches_after_the_spike(odd, rolling, tmp_path):
    folder, outcome, heard = rolling
    (spike,) = spikes_in(folder)
    at, back = spike["step"], spike["back_to"]
    assert outcome.is_finished and back == (at - 1) // 3 * 3 and at - back > 1
    assert any(f"goes back to step {back}, and past {at - back} batches" in message for message in heard.messages)
    config = spiky(odd, spikes="rollback")
    step = make_step(config, *config.runs_on)
    learned = open_data(config, tmp_path, lambda *_: None).training
    feed = Feed(config.sized_model, *config.runs_on, seed=config.seed)
    batches, state = feed.batches(learned), step.init(first_weights(config, *config.runs_on))
    for number in range(STEPS):
        batch = batches.at(number if number < back else number + at - back)
        state, _ = step(state, feed.place(batch), np.int32(number))
    wanted = Checkpoints(tmp_path / "by hand")
    wanted.save(STEPS, arrays_of(state), {})
    wanted.close()
    assert weights(folder, STEPS) == {
        path: x for path, x in wanted.metadata(STEPS)["sums"].items() if path.startswith("params.")
    }
    told = [row["step"] for row in rows(folder) if "loss" in row]
    assert told == list(range(1, STEPS + 1))


class Crashing(Heard):
    """Fails at a step that is reached again, after another one."""

    def __init__(self, at, after):
        super().__init__()
        self.at, self.after, self.is_back = at, after, False

    def step(self, at, steps):
        self.is_back = self.is_back or at >= self.after
        if self.is_back and at == self.at:
            raise Crash


@pytest.mark.quick("4")
@pytest.mark.parametrize("later", [1, 4])
def test_a_run_that_crashed_after_a_rollback_ends_with_the_same_bits(later, odd, rolling, tmp_path):
    folder, *_ = rolling
    spike = spikes_in(folder)[0]
    with pytest.raises(Crash):
        listener = Crashing(at=spike["back_to"] + later, after=spike["step"])
        Trainer(spiky(odd, spikes="rollback"), tmp_path, listener).run()
    outcome, _ = run(spiky(odd, spikes="rollback"), tmp_path)
    assert outcome.is_finished
    assert sums(tmp_path, STEPS) == sums(folder, STEPS) and rows(tmp_path) == rows(folder)


@pytest.mark.slow
def test_spikes_that_follow_one_checkpoint_again_and_again_stop_the_run(text, tmp_path):
    with pytest.raises(TrainingError) as caught:
        run(spiky(text, spikes="rollback", spike_sigmas=1e-9, spike_window=2), tmp_path)
    assert "is a spike" in caught.value.fact and "4th that follows step" in caught.value.fact
    assert "`schedule.rate`" in caught.value.fix
