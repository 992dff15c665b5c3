"""What a person sees of a run: lines in a log, a bar on a terminal, and neither stops it."""

import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from weft.cli import progress
from weft.cli.progress import Reporter, encodable, host_memory
from weft.text import count_text, duration_text, file_size_text, seconds_text

from .command import ROOT

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ROW = {"step": 20, "loss": 2.3449, "tokens_per_s": 1_234_567.0, "mfu": 0.4132}


def log():
    """A run's log, and what hears of the run."""
    out = io.StringIO()
    return out, Reporter(Console(file=out))


def terminal(width=120, **how):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, legacy_windows=False, _environ={}, **how)
    return out, Reporter(console)


def clock(monkeypatch):
    """Time that passes when it is told to."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def bar(shown):
    """The line at the bottom of the terminal as it is now."""
    console = Console(file=io.StringIO(), width=shown.console.width, force_terminal=True, color_system=None)
    console.print(shown._render())
    return console.file.getvalue().rstrip("\n")


# A log.


def test_a_row_is_a_line(monkeypatch):
    now = clock(monkeypatch)
    out, shown = log()
    shown.step(10, 1000)
    shown.log({**ROW, "step": 10})
    now[0] += 2.0
    shown.step(20, 1000)
    shown.log(ROW)
    first, second = out.getvalue().splitlines()
    assert re.fullmatch(r"step 10/1000  loss 2\.345  1\.2M tokens/s  mfu 41\.3 %  mem \d+\.\d [GM]B", first)
    assert re.fullmatch(
        r"step 20/1000  loss 2\.345  1\.2M tokens/s  mfu 41\.3 %  ETA 3 min 16 s  mem \d+\.\d [GM]B", second
    )
    assert "\x1b" not in out.getvalue()


def test_what_is_not_known_is_left_out():
    out, shown = log()
    shown.log({"step": 3, "loss": np.float32(1.0), "mfu": None})
    assert re.fullmatch(r"step 3  loss 1\.000  mem \S+ \S+\n", out.getvalue())


def test_a_loss_that_is_not_finite_and_steps_left_out_are_shown():
    out, shown = log()
    shown.log({"step": 3, "loss": float("nan"), "bad_steps": 2.0})
    assert "loss nan  " in out.getvalue() and "2 bad steps" in out.getvalue()


def test_an_evaluation_is_a_line_of_its_own():
    out, shown = log()
    shown.log({"step": 200, "eval": {"perplexity": 9.1249, "loss": 2.2108, "tokens": 512, "accuracy": 0.4}})
    assert out.getvalue() == "step 200  eval loss 2.211  perplexity 9.12  accuracy 0.4000\n"


def test_messages_are_lines_as_they_are():
    out, shown = log()
    shown.say("goes on from step 20 [bold]not markup[/bold] " + "x" * 300)
    assert out.getvalue() == "goes on from step 20 [bold]not markup[/bold] " + "x" * 300 + "\n"


def test_a_stage_is_there_when_it_begins_and_tells_its_seconds_when_it_ends(monkeypatch):
    now = clock(monkeypatch)
    out, shown = log()
    with shown.stage("compiling the step"):
        assert out.getvalue() == "compiling the step…"
        now[0] += 12.34
    assert out.getvalue() == "compiling the step… 12.3 s\n"


def test_a_stage_without_an_end_ends_with_the_next_step(monkeypatch):
    now = clock(monkeypatch)
    out, shown = log()
    shown.stage("compiling the step")
    now[0] += 3.0
    shown.step(1, 10)
    shown.step(2, 10)
    assert out.getvalue() == "compiling the step… 3.0 s\n"


def test_a_message_within_a_stage_has_its_own_line(monkeypatch):
    now = clock(monkeypatch)
    out, shown = log()
    with shown.stage("compiling the step"):
        shown.say("a message")
        now[0] += 1.0
    assert out.getvalue() == "compiling the step…\na message\ncompiling the step… 1.0 s\n"


def test_a_stage_that_failed_does_not_look_done():
    out, shown = log()
    with pytest.raises(KeyError), shown.stage("reading"):
        raise KeyError
    assert re.fullmatch(r"reading… stopped after 0\.\d s\n", out.getvalue())


def test_something_long_tells_now_and_then_how_far_it_is(monkeypatch):
    now = clock(monkeypatch)
    out, shown = log()
    for done in range(0, 101):
        shown.progress("tokenising", done, 100)
        now[0] += 0.3
    assert out.getvalue().splitlines() == [
        "tokenising… 34 %  ETA 20 s",
        "tokenising… 68 %  ETA 10 s",
        "tokenising… 30.0 s",
    ]


def test_something_long_that_is_over_soon_says_nothing():
    out, shown = log()
    for done in (0, 5, 10):
        shown.progress("tokenising", done, 10)
    shown.progress("of nothing", 0, 0)
    assert out.getvalue() == ""


def test_what_nobody_knows_the_end_of_tells_by_its_note(monkeypatch):
    now = clock(monkeypatch)
    out, shown = log()
    for done in range(1, 30):
        shown.progress("translating", done, 0, f"{done} lines")
        now[0] += 1.0
    shown.progress("searching", 1, 4, "best 3 ms")
    now[0] += 10.0
    shown.progress("searching", 2, 4, "best 2 ms")
    assert out.getvalue().splitlines() == [
        "translating… 11 lines",
        "translating… 21 lines",
        "searching… 50 %  ETA 10 s  best 2 ms",
    ]


def test_other_processes_print_nothing(capsys):
    with Reporter(is_writer=False) as shown:
        shown.say("a message")
        shown.step(1, 10)
        shown.log(ROW)
        shown.progress("tokenising", 1, 2)
        with shown.stage("compiling"):
            pass
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_all_goes_to_stdout_whatever_forces_colour(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Reporter() as shown:
        shown.say("a message")
        shown.step(20, 1000)
        shown.log(ROW)
    printed, said = capsys.readouterr()
    assert said == "" and "\x1b" not in printed
    assert printed.startswith("a message\nstep 20/1000  loss 2.345  ")


def test_a_file_of_few_letters_gets_them():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert encodable("compiling… ü", file) == "compiling... ?"
    assert encodable("compiling… ü", io.StringIO()) == "compiling… ü"


PRINTING = """
from weft.cli.progress import Reporter
with Reporter() as shown:
    for step in range(1, 20001):
        shown.step(step, 20000)
        shown.log({"step": step, "loss": 1.0})
open("done", "w").write("done")
"""


@pytest.mark.parametrize("where", ["| head -1", "> /dev/full"])
def test_a_reader_that_has_gone_and_a_full_disk_stop_nothing(tmp_path, where):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", f'"{sys.executable}" -c "$0" {where}', PRINTING]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (tmp_path / "done").exists()
    assert "Traceback" not in done.stderr


# A terminal.


def test_the_bar_shows_step_loss_speed_mfu_time_and_memory(monkeypatch):
    now = clock(monkeypatch)
    _, shown = terminal()
    monkeypatch.setattr(shown, "_show", lambda: None)
    shown.step(10, 1000)
    shown.log({**ROW, "step": 10})
    now[0] += 2.0
    shown.step(20, 1000)
    shown.log(ROW)
    shown.step(25, 1000)
    text = bar(shown)
    assert re.fullmatch(
        r"step 25/1000  [━╸]+ +loss 2\.345  1\.2M tokens/s  mfu 41\.3 %  ETA 3 min 15 s  mem \S+ [GM]B *", text
    )


@pytest.mark.parametrize("width", [12, 20, 30, 40, 60, 80, 120, 300])
def test_the_bar_takes_one_line_of_any_width(monkeypatch, width):
    _, shown = terminal(width)
    monkeypatch.setattr(shown, "_show", lambda: None)
    shown.step(20, 1000)
    shown.log(ROW)
    text = bar(shown)
    assert len(text) <= width and "\n" not in text
    assert text.startswith("step 20/1000"[: width - 1])
    assert ("loss 2.345" in text) == (width >= 30)
    shown.progress("tokenising", 1, 3)
    assert len(bar(shown)) <= width
    shown.stage("compiling the step")
    assert len(bar(shown)) <= width


def test_messages_and_evaluations_stand_above_the_bar_and_the_last_numbers_stay():
    out, shown = terminal()
    shown.step(1, 1000)
    shown.say("goes on from step 0 [bold]")
    shown.step(20, 1000)
    shown.log(ROW)
    shown.log({"step": 20, "eval": {"loss": 2.2108}})
    shown.close()
    shown.close()
    lines = CODES.sub("", out.getvalue()).replace("\r", "\n").splitlines()
    assert "goes on from step 0 [bold]" in lines and "step 20  eval loss 2.211" in lines
    assert [line for line in lines if line.strip()][-1].startswith(
        "step 20/1000  loss 2.345  1.2M tokens/s  mfu 41.3 %  mem"
    )
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1  # the cursor is there again


def test_a_stage_on_a_terminal_ticks_and_leaves_its_seconds(monkeypatch):
    now = clock(monkeypatch)
    out, shown = terminal()
    with shown.stage("compiling the step"):
        now[0] += 5.0
        assert bar(shown) == "compiling the step… 5.0 s"
        now[0] += 7.3
    shown.close()
    assert "compiling the step… 12.3 s\n" in CODES.sub("", out.getvalue())


def test_no_color_is_respected():
    out, shown = terminal(no_color=True)
    shown.step(20, 1000)
    shown.log(ROW)
    shown.close()
    assert "step 20/1000" in out.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", out.getvalue())


def test_a_dumb_terminal_gets_lines():
    out = io.StringIO()
    shown = Reporter(Console(file=out, force_terminal=True, _environ={"TERM": "dumb"}))
    shown.step(20, 1000)
    shown.log(ROW)
    assert out.getvalue().startswith("step 20/1000  loss 2.345  ") and "\x1b" not in out.getvalue()


@pytest.mark.parametrize("make", [log, terminal])
def test_a_step_makes_no_text(make, monkeypatch):
    _, shown = make()
    shown.step(1, 10**6)
    monkeypatch.setattr(shown, "_line", lambda: pytest.fail("a step made a line"))
    monkeypatch.setattr(shown, "_print", lambda *_: pytest.fail("a step printed"))
    monkeypatch.setattr(shown, "_show", lambda: pytest.fail("a step drew the bar anew"))
    for at in range(2, 2002):
        shown.step(at, 10**6)
    monkeypatch.undo()
    assert (shown.at, shown.steps) == (2001, 10**6)
    shown.close()


def test_device_memory_is_shown_where_devices_tell(monkeypatch):
    class Device:
        def __init__(self, used):
            self.used = used

        def memory_stats(self):
            return {"bytes_in_use": self.used, "bytes_limit": 141 * 10**9}

    monkeypatch.setattr("jax.local_devices", lambda: [Device(10**9), Device(61_200_000_000)])
    out, shown = log()
    shown.log(ROW)
    assert out.getvalue().endswith("  device 61.2 GB of 141.0 GB\n")


# Text.


def test_times_sizes_and_counts_are_short():
    assert [duration_text(value) for value in (0.2, 59.6, 200, 7500, 100_000)] == [
        "0 s",
        "1 min 0 s",
        "3 min 20 s",
        "2 h 5 min",
        "1 d 3 h",
    ]
    assert [seconds_text(value) for value in (12.34, 200)] == ["12.3 s", "3 min 20 s"]
    assert [count_text(value) for value in (950, 999.99, 12_345, 1.2e6, 3e9)] == [
        "950",
        "1.0k",
        "12.3k",
        "1.2M",
        "3.0G",
    ]
    assert [file_size_text(value) for value in (5_000, 1.2e9, 2e12)] == ["5 kB", "1.2 GB", "2.0 TB"]
    assert 10e6 < host_memory() < 1e12
