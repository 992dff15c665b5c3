"""`weft plot` draws what runs told: as PNG, as a page that needs nothing else, and in the terminal."""

import json
import math
import re
import struct
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from weft.train import curves
from weft.train.curves import moving_average, panels, step_ticks, text_chart, thin, tick_labels, ticks, to_ascii
from weft.train.metrics import Metrics, MetricsError

from .command import error_of, weft

BRAILLE = re.compile("[\u2801-\u28ff]")


def rows_of(count=300, rate=100.0, floor=2.0):
    """Losses that fall from `floor` + 2 with a little noise, and an evaluation at every tenth."""
    noise = np.random.default_rng(0).normal(0, 0.1, count + 1)
    found = []
    for step in range(1, count + 1):
        loss = floor + 2 * math.exp(-step / rate)
        found.append({"step": step, "loss": loss + noise[step], "tokens_per_s": 1e5 + step, "mfu": None})
        if step % (count // 10) == 0:
            found.append({"step": step, "eval": {"loss": loss + 0.05, "perplexity": math.exp(loss)}})
    return found


def made(folder, rows):
    with Metrics(folder, tensorboard=False) as note:
        for row in rows:
            note(row)
    return folder


@pytest.fixture
def run(tmp_path):
    return made(tmp_path / "first", rows_of())


@pytest.fixture
def other(tmp_path):
    return made(tmp_path / "second", rows_of(rate=30.0, floor=1.5))


# Files.


def test_png_is_the_default_and_another_run_is_another_picture(run, other):
    pictures = []
    for folder in (run, other):
        assert weft("plot", folder) == (f"{folder / 'curve.png'}\n", "")
        data = (folder / "curve.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 20_000
        assert struct.unpack(">II", data[16:24]) == (1350, 720)
        pictures.append(data)
    assert pictures[0] != pictures[1]


def test_several_runs_share_a_picture(run, other):
    assert weft("plot", run, other)[0] == f"{run / 'curves.png'}\n"
    weft("plot", run)
    assert (run / "curves.png").read_bytes() != (run / "curve.png").read_bytes()


SVG = "{http://www.w3.org/2000/svg}"


def page(run, *words):
    """The HTML of runs, its drawing, and what its script is told."""
    out = run / "curve.html"
    assert weft("plot", run, *words, "--out", out)[0] == f"{out}\n"
    text = out.read_text(encoding="utf-8")
    [drawing] = [xml.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]
    return text, drawing, json.loads(re.search(r'id="panels">(.*?)</script>', text, re.S)[1])


def points(drawing, group):
    """Where the marked points of a curve stand in its drawing."""
    return [
        (float(point.get("x")), float(point.get("y")))
        for found in drawing.iter(f"{SVG}g")
        if found.get("id") == group
        for point in found.iter(f"{SVG}use")
    ]


def test_html_needs_nothing_else_and_knows_the_dark(run):
    text, drawing, [panel] = page(run)
    assert not re.search(r'(src|href)="(?!#)|url\((?!#)|@import|fetch\(|https?://(?!www\.w3\.org/)', text)
    assert "prefers-color-scheme: dark" in text
    assert len(points(drawing, "evaluation-1")) == 10
    assert [curve["label"] for curve in panel["curves"]] == ["loss", "eval.loss"]
    assert panel["curves"][0]["steps"] == list(range(1, 301))


def test_a_picture_has_a_title_axes_with_units_and_a_legend(run):
    _, drawing, _ = page(run)
    texts = [" ".join(element.itertext()) for element in drawing.iter(f"{SVG}text")]
    assert {"first", "step", "loss (nats a token)"} <= set(texts)
    assert [text.split()[0] for text in texts[-2:]] == ["loss", "eval.loss"]


def test_html_shows_each_run_and_each_axis(run, other):
    _, drawing, told = page(run, other, "--keys", "loss,eval.loss,tokens_per_s")
    assert {"axes_1", "axes_2"} <= {part.get("id") for part in drawing.iter()}
    assert [curve["label"] for curve in told[0]["curves"]] == [
        "first loss",
        "second loss",
        "first eval.loss",
        "second eval.loss",
    ]
    colours = [curve["colour"] for curve in told[0]["curves"]]
    assert colours[:2] == colours[2:] and colours[0] != colours[1]


def test_what_the_page_tells_lies_where_it_is_drawn(run):
    _, drawing, [panel] = page(run)
    (left, top, right, bottom), (x0, x1), (y0, y1) = panel["box"], panel["x"], panel["y"]
    evaluation = panel["curves"][1]
    drawn = points(drawing, "evaluation-1")
    for (across, down), step, value in zip(drawn, evaluation["steps"], evaluation["values"], strict=True):
        assert across == pytest.approx(left + (step - x0) / (x1 - x0) * (right - left), abs=0.06)
        assert down == pytest.approx(top + (y1 - value) / (y1 - y0) * (bottom - top), abs=0.06)


def test_names_are_text_in_every_picture(tmp_path):
    bad = '_<script>alert("1")&$\\frac$'
    first = made(tmp_path / bad, rows_of(20))
    second = made(tmp_path / "b", [{**row, "</script>": 1.0} for row in rows_of(20)])
    text, _, told = page(second, first, "--keys", "loss,</script>")
    assert "<script>alert" not in text and text.count("</script>") == 2
    assert told[0]["curves"][1]["label"] == f"{bad} loss" and told[1]["curves"][0]["label"] == "b </script>"
    assert weft("plot", first)[0] == f"{first / 'curve.png'}\n"


def test_a_long_run_makes_a_small_page(tmp_path):
    run = made(tmp_path / "long", [{"step": step, "loss": 1 + math.sin(step)} for step in range(1, 20_001)])
    text, _, [panel] = page(run)
    assert len(text) < 150_000 and len(panel["curves"][0]["steps"]) <= 1602
    assert (panel["curves"][0]["steps"][0], panel["curves"][0]["steps"][-1]) == (1, 20_000)


def test_a_run_of_one_row_and_one_with_gaps_can_be_drawn(tmp_path):
    one = made(tmp_path / "one", [{"step": 1, "loss": 2.0}])
    gaps = made(tmp_path / "gaps", [{"step": n, "loss": math.nan if n % 3 == 0 else 1.0 * n} for n in range(1, 10)])
    for run in (one, gaps):
        _, drawing, _ = page(run)
        assert "nan" not in xml.tostring(drawing).decode().lower()
        assert weft("plot", run, "--terminal", "--out", run / "curve.png")[0].endswith("curve.png\n")


# The terminal.


def test_the_terminal_shows_a_falling_curve_with_its_axes(run):
    printed, said = weft("plot", run, "--terminal")
    lines = [line.ljust(80) for line in printed.splitlines()]
    assert said == "" and not (run / "curve.png").exists()
    assert 14 <= len(lines) <= 18 and max(map(len, lines)) <= 80
    first, last = (next(n for n, line in enumerate(lines) if BRAILLE.search(line[at])) for at in (8, 60))
    assert first < last  # the line is high on the left and low on the right
    assert sum(line.count("◆") for line in lines) == 11  # ten evaluations, and the legend
    assert re.search(r"⠒⠒ loss \d\.\d{3}   ◆ eval.loss \d\.\d{3} *$", lines[-1])
    assert re.search(r"^ +0 +100 +200 +300 *$", lines[-2])


def test_runs_in_the_terminal_stand_beneath_each_other_on_one_scale(run, other):
    printed, _ = weft("plot", run, other, "--terminal")
    assert re.findall(r"(\w+) loss", printed) == ["first", "second"]
    scales = re.findall(r"^ *([\d.]+) ┤", printed, re.M)
    assert scales[: len(scales) // 2] == scales[len(scales) // 2 :]


@pytest.mark.parametrize(("width", "height"), [(200, 40), (80, 16), (40, 10), (1, 1)])
def test_a_drawing_has_the_size_that_is_asked_for(width, height):
    lines = text_chart(panels({"run": rows_of()})["loss"], width, height).splitlines()
    assert len(lines) == max(height, 6) and max(map(len, lines)) <= max(width, 30)


def test_a_terminal_without_other_letters_gets_ascii():
    chart = to_ascii(text_chart(panels({"run": rows_of()})["loss"], 80, 16))
    assert chart.isascii() and "*" in chart and "o" in chart and "+" in chart


def test_a_straight_line_is_drawn_straight():
    rows = [{"step": step, "loss": float(step)} for step in (0, 10)]
    [loss] = panels({"run": rows}).values()
    cells = [line.partition("│")[2] or line.partition("┤")[2] for line in text_chart(loss, 40, 19).splitlines()[:16]]
    starts = [len(line) - len(line.lstrip()) for line in cells]
    assert starts == sorted(starts, reverse=True) and starts[-1] == 0
    assert np.allclose(starts, np.linspace(starts[0], 0, 16), atol=1.5)


# What is wrong.


def test_a_key_that_is_not_there_is_named_with_the_nearest(run):
    fact, _, fix = error_of("plot", run, "--keys", "loss,token_per_s")
    assert fact == "there is no number `token_per_s` in first" and fix == "did you mean `tokens_per_s`?"


def test_a_run_without_losses_says_what_there_is(tmp_path):
    run = made(tmp_path / "run", [{"step": 1, "speed": 2.0}])
    fact, _, fix = error_of("plot", run)
    assert fact == "run told of no loss" and fix == "name what to show with --keys: speed"


def test_a_loss_that_never_was_finite_is_said(tmp_path):
    run = made(tmp_path / "run", [{"step": 1, "loss": math.nan}])
    assert error_of("plot", run)[0] == "no `loss` in run is finite"


def test_a_run_that_is_not_there_is_said(tmp_path):
    assert error_of("plot", tmp_path / "none")[0] == f"there is no run in {tmp_path / 'none'}: no metrics.jsonl"


@pytest.mark.parametrize(
    ("out", "fact"),
    [
        ("curve.gif", "`curve.gif` is neither .png nor .html"),
        ("no/such/folder.html", "no/such/folder.html cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_said(run, out, fact):
    assert error_of("plot", run, "--out", out)[0] == fact


def test_without_matplotlib_the_terminal_is_offered(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    fact, _, fix = error_of("plot", run)
    assert fact.startswith("a picture needs `matplotlib`") and fix.endswith("`--terminal`")


# Curves.


def test_smoothing_keeps_a_line_a_line_and_its_steep_beginning():
    line = np.linspace(5.0, 1.0, 600)
    assert np.allclose(moving_average(line)[:569], line[:569])
    noisy = line + np.random.default_rng(0).normal(0, 0.3, 600)
    assert np.abs(moving_average(noisy) - line)[20:].max() < 0.2
    gaps = np.where(np.arange(600) % 5 == 0, np.nan, line)
    assert np.array_equal(np.isnan(moving_average(gaps)), np.isnan(gaps))


def test_thinning_keeps_the_extremes():
    steps, values = np.arange(10_000.0), np.zeros(10_000)
    values[5_432], values[7_777], values[100:120] = 9.0, -9.0, np.nan
    kept, found = thin(steps, values, 200)
    assert len(kept) <= 202 and np.nanmax(found) == 9.0 and np.nanmin(found) == -9.0
    assert (kept[0], kept[-1]) == (0, 9_999) and np.array_equal(values[kept.astype(int)], found, equal_nan=True)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (1.9, 4.2), (-3.0, 7.0), (1e-6, 3e-6), (0, 123_456), (2.0, 2.0001)]
)
@pytest.mark.parametrize("most", [2, 5, 9])
def test_ticks_are_round_few_and_inside(low, high, most):
    found = ticks(low, high, most)
    assert len(found) <= most and (most == 2 or len(found) > 1)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    assert len(set(tick_labels(found))) == len(found)


def test_there_is_no_tick_between_two_steps():
    assert step_ticks(1, 3, 9) == [1.0, 2.0, 3.0]


def test_the_same_number_everywhere_still_has_an_axis():
    assert curves.limits([np.array([2.0, 2.0])]) == (1.9, 2.1) and curves.limits([np.array([0.0])]) == (-1.0, 1.0)


def test_a_key_that_only_one_of_two_runs_has_is_shown_for_it():
    found = panels({"a": [{"step": 1, "loss": 1.0}], "b": [{"step": 1, "other": 1.0}]}, ["loss", "other"])
    assert [curve.label for curves in found.values() for curve in curves] == ["a loss", "b other"]
    with pytest.raises(MetricsError):
        panels({"a": [{"step": 1, "loss": 1.0}]}, ["other"])
