"""Foresight in the trainer: a layout that is searched for, a plan at the start, and a warning where it was far off."""

import dataclasses

import pytest

from weft.layout import Layout
from weft.plan import HARDWARE, Plan
from weft.train import foresight
from weft.train.config import CONFIG, ConfigError, parse, read
from weft.train.keys import lines_of
from weft.train.trainer import Options, Trainer

from .running import MODEL, Heard, config_of, run

SMALL = {"train": {"steps": 2}}


def read_again(config):
    return parse(config.to_dict(), lines_of("run.toml", ""))


@pytest.fixture(scope="module")
def auto(text):
    return config_of(text, **SMALL, mesh="rows=2", layout="auto")


@pytest.mark.slow
def test_a_layout_is_searched_for(auto, tmp_path, monkeypatch):
    monkeypatch.setattr(foresight, "_list_searched", lambda config: ["batch", "d_ff"])
    heard = Heard()
    found = Trainer(auto, tmp_path, heard).config
    (told,) = [message for message in heard.messages if message.startswith("layout = auto:")]
    assert found.mesh == "rows=2" and Layout(found.layout).axes == {"rows"}
    assert "best: rows=2 under " in told and "legal layouts" in told
    assert read_again(found).layout == found.layout


@pytest.mark.slow
def test_a_run_whose_layout_was_searched_for_learns_as_any(auto, text, tmp_path):
    outcome, heard = run(auto, tmp_path / "auto")
    assert outcome.is_finished
    layout = read(tmp_path / "auto" / CONFIG).layout
    _, again = run(config_of(text, **SMALL, mesh="rows=2", layout=layout), tmp_path / "again")
    assert [row["loss"] for row in again.rows] == [row["loss"] for row in heard.rows]


def test_a_run_that_goes_on_keeps_its_layout(auto, text, tmp_path, monkeypatch):
    known = config_of(text, **SMALL, mesh="rows=2", layout="batch:rows")
    (tmp_path / CONFIG).write_text(known.to_toml())
    monkeypatch.setattr(foresight, "search", None)  # it would fail
    assert Trainer(auto, tmp_path).config.layout == "batch:rows"
    both = config_of(text, **SMALL, mesh="auto", layout="auto")
    monkeypatch.setattr(foresight.jax, "device_count", lambda: 2)
    assert Trainer(both, tmp_path).config.mesh == "rows=2"


def test_on_one_processor_there_is_nothing_to_search(text, tmp_path, monkeypatch):
    monkeypatch.setattr(foresight.jax, "device_count", lambda: 1)
    found = foresight.choose_layout(config_of(text, mesh="auto", layout="auto"), tmp_path, Heard())
    assert (found.mesh, found.layout) == ("all=1", "batch:all")


def test_every_shape_of_mesh_is_searched(text, tmp_path, monkeypatch):
    asked = {}

    def search(*args, **how):
        asked.update(how)
        raise KeyboardInterrupt

    monkeypatch.setattr(foresight, "search", search)
    with pytest.raises(KeyboardInterrupt):
        foresight.choose_layout(config_of(text, mesh="auto", layout="auto"), tmp_path, Heard())
    assert asked["processors"] == foresight.jax.device_count() and "mesh" not in asked


def test_a_mesh_that_is_open_needs_a_layout_that_is():
    values = {"model": MODEL, "mesh": "auto", "layout": "batch:rows"}
    with pytest.raises(ConfigError, match="`layout` names axes it may not have"):
        parse(values, lines_of("run.toml", ""))


def test_the_plan_is_a_line(forecast):
    told = str(forecast)
    assert told.startswith("plan (h100): ") and "a step" in told and "tokens/s" in told
    assert "of memory on each processor" in told and "over cols" in told


@pytest.mark.slow
def test_the_plan_is_shown_at_the_start(text, tmp_path):
    _, heard = run(config_of(text, **SMALL), tmp_path, options=Options(plan=True))
    (told,) = [message for message in heard.messages if message.startswith("plan (this): ")]
    assert "a step" in told and "of memory on each processor" in told and "over cols" in told


def test_a_run_may_name_its_hardware(text, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('like = "h100"\nmemory_gb = 64\n')
    config = config_of(text, **SMALL, hardware=str(file))
    assert (foresight.machine(config).name, foresight.machine(config).memory) == ("mine", 64 * 10**9)
    assert config.to_dict()["hardware"] == str(file) and "hardware" not in config_of(text, **SMALL).to_dict()
    with pytest.raises(ConfigError, match="`hardware`: there is no hardware `h10`"):
        foresight.machine(config_of(text, **SMALL, hardware="h10"))


@pytest.fixture
def forecast(text):
    found = foresight.Forecast(config_of(text, **SMALL), Heard())
    found.plan = Plan(found.plan.program, HARDWARE["h100"])
    return found


def test_a_step_far_from_the_plan_is_told_once(forecast):
    planned = forecast.plan.seconds
    forecast.compare(planned * 4)
    forecast.compare(planned * 4)
    (told,) = forecast.listener.messages
    assert told.startswith("warning: a step takes ") and "4.0 times as long as planned" in told


def test_a_step_near_the_plan_is_not(forecast):
    forecast.compare(forecast.plan.seconds * 1.2)
    assert forecast.listener.messages == []


def test_a_step_faster_than_planned_and_memory_beyond_it(forecast, monkeypatch):
    class Device:
        def memory_stats(self):
            return {"peak_bytes_in_use": 10**12}

    monkeypatch.setattr(foresight.jax, "local_devices", lambda: [Device()])
    forecast.compare(forecast.plan.seconds / 4)
    fast, memory = forecast.listener.messages
    assert "4.0 times as fast as planned" in fast and memory.startswith("warning: 931.3 GiB of memory were used")


def test_what_may_not_fit_is_told(forecast):
    tiny = dataclasses.replace(HARDWARE["h100"], memory=1000)
    forecast.plan = Plan(forecast.plan.program, tiny)
    assert "IT MAY NOT FIT into 750 B" in str(forecast)
