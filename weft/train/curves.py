"""Loss curves of runs: numbers by step, moving averages, a chart for terminals.

Imports the metrics. A number that is not finite is a gap in its curve, never a point of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import closest
from ..text import number_text
from .metrics import MetricsError, Row, numbers

KEYS = ("loss", "eval.loss")
MANY = 100  # points from which on a smooth line shows more than the points do


@dataclass(frozen=True)
class Curve:
    """The values of one key of a run by step; `colour` counts from 0."""

    run: str
    label: str
    key: str
    colour: int
    steps: np.ndarray
    values: np.ndarray

    @property
    def is_evaluation(self) -> bool:
        """Whether its points are few and stand for themselves."""
        return self.key.startswith("eval.")

    @property
    def last(self) -> float:
        """The last value that is finite."""
        return float(self.values[np.isfinite(self.values)][-1])

    @property
    def smooth(self) -> np.ndarray | None:
        """The values with their noise averaged out, where there are many."""
        return None if self.is_evaluation or len(self.values) < MANY else moving_average(self.values)


def panels(runs: dict[str, list[Row]], keys: Sequence[str] = ()) -> dict[str, list[Curve]]:
    """The curves of runs by their axis: `loss` and `eval.loss` under `loss`."""
    tables = {name: [(row["step"], numbers(row)) for row in rows] for name, rows in runs.items()}
    known = {key for table in tables.values() for _, values in table for key in values}
    wanted = list(dict.fromkeys(keys)) or [key for key in KEYS if key in known]
    if not wanted:
        raise MetricsError(f"{_list(runs)} told of no loss", fix=f"name what to show with --keys: {_list(known)}")
    by_axis: dict[str, list[Curve]] = {}
    for key in wanted:
        if key not in known:
            raise MetricsError(f"there is no number `{key}` in {_list(runs)}", fix=closest(key, known))
        curves = by_axis.setdefault(key.rpartition(".")[2], [])
        for number, (name, table) in enumerate(tables.items()):
            points = [(step, values[key]) for step, values in table if key in values]
            if any(math.isfinite(value) for _, value in points):
                label, colour = (f"{name} {key}", number) if len(runs) > 1 else (key, wanted.index(key))
                steps, values = np.array(points, np.float64).T
                curves.append(Curve(name, label, key, colour, steps, np.where(np.isfinite(values), values, np.nan)))
        if not any(curve.key == key for curve in curves):
            raise MetricsError(f"no `{key}` in {_list(runs)} is finite", fix="show other keys with --keys")
    return by_axis


def _list(names: Sequence[str] | dict[str, list[Row]] | set[str]) -> str:
    return ", ".join(sorted(names))


def moving_average(values: np.ndarray) -> np.ndarray:
    """Three moving averages over a fiftieth of the values, one after the other.

    >>> moving_average(np.array([4.0, 2.0, 2.0, np.nan]))
    array([ 4.,  2.,  2., nan])
    """
    count, reach = len(values), len(values) // 100
    at = np.arange(count)
    begin = np.maximum(at - reach, 0)
    end = np.minimum(at + np.minimum(reach, at), count - 1) + 1  # no further ahead than back, so that 4 2 2 begins at 4
    is_known = np.isfinite(values)
    average = np.where(is_known, values, 0.0)
    known = np.concatenate([[0], np.cumsum(is_known)])
    for _ in range(3):
        sums = np.concatenate([[0.0], np.cumsum(np.where(is_known, average, 0.0))])
        average = (sums[end] - sums[begin]) / np.maximum(known[end] - known[begin], 1)
    return np.where(is_known, average, np.nan)


def thin(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """About `most` points that look the same: the ends, and the extremes in between."""
    if len(steps) <= most:
        return steps, values
    kept = [np.array([0, len(steps) - 1])]
    for part in np.array_split(np.arange(len(steps)), most // 2):
        among = values[part]
        kept.append(part[:1] if np.isnan(among).all() else part[[np.nanargmin(among), np.nanargmax(among)]])
    at = np.unique(np.concatenate(kept))
    return steps[at], values[at]


def limits(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """The least and the greatest number, or one around them where they are the same."""
    low = min(float(np.nanmin(array)) for array in arrays)
    high = max(float(np.nanmax(array)) for array in arrays)
    if low == high:
        room = abs(low) * 0.05 or 1.0
        return low - room, high + room
    return low, high


def step_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """The first and the last step; from 0 where the first is near it."""
    low, high = limits([curve.steps for curve in curves])
    return (0.0 if 0 < low < 0.05 * high else low), high


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers from `low` to `high`, evenly apart.

    >>> ticks(1.9, 4.2, 5)
    [2.0, 2.5, 3.0, 3.5, 4.0]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / max(most, 2)))
    for apart in (unit * power for unit in (1, 2, 5, 10, 20, 50, 100)):
        first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
        if last - first < most:
            break
    return [round(n * apart, 12) for n in range(first, last + 1)]


def step_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round steps from `low` to `high`; there is no half a step.

    >>> step_ticks(1, 3, 6)
    [1.0, 2.0, 3.0]
    """
    return [tick for tick in ticks(low, high, most) if tick == round(tick)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Ticks as text, short and alike.

    >>> tick_labels([2.0, 2.5]), tick_labels([0.0, 50000.0]), tick_labels([1e-5, 2e-5])
    (['2.0', '2.5'], ['0', '50k'], ['1e-05', '2e-05'])
    """
    most = max((abs(value) for value in values), default=0.0)
    if 0 < most < 1e-3:
        return [f"{value:g}" for value in values]
    power = next((power for power in (1e12, 1e9, 1e6, 1e3) if most >= max(power, 1e4)), 1.0)
    unit = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: ""}[power]
    scaled = [value / power for value in values]
    places = next((n for n in range(6) if all(abs(x - round(x, n)) < 1e-6 for x in scaled)), 6)
    return [f"{x:.{places}f}{unit}" if x else "0" if places == 0 or unit else f"{x:.{places}f}" for x in scaled]


_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a Braille letter, by row and column
_POINT = "◆"
_ASCII = str.maketrans({_POINT: "o", "│": "|", "┤": "+", "└": "+", "─": "-", "┬": "+"})


def text_chart(curves: list[Curve], width: int, height: int, beside: Sequence[Curve] = ()) -> str:
    """Curves that share an axis in `height` lines, with their last values beneath.

    Evaluations are the points marked. The scale is that of the charts `beside` it too.
    """
    width, tall = max(width, 30), max(height, 6) - 3
    y_low, y_high = limits([curve.values for curve in (*curves, *beside)])
    x_low, x_high = step_limits([*curves, *beside])
    marks = ticks(y_low, y_high, max(2 * tall // 5, 2))
    margin = max(map(len, tick_labels(marks))) + 1
    wide = width - margin - 1
    dots, points = np.zeros((4 * tall, 2 * wide), bool), np.zeros((tall, wide), bool)

    def rows(values: np.ndarray) -> np.ndarray:
        """Dots from the top."""
        return (y_high - values) / (y_high - y_low) * (4 * tall - 1)

    for curve in curves:
        steps, values = thin(curve.steps, curve.values if curve.smooth is None else curve.smooth, 4 * wide)
        columns = (steps - x_low) / (x_high - x_low) * (2 * wide - 1)
        known = np.isfinite(values)
        if curve.is_evaluation:
            points[rows(values[known]).round().astype(int) // 4, columns[known].round().astype(int) // 2] = True
        else:
            _draw_line(dots, columns, rows(values))
    letters = 0x2800 + (dots.reshape(tall, 4, wide, 2) * _DOTS[:, None]).sum((1, 3))
    cells = np.where(points, _POINT, np.where(letters > 0x2800, letters, ord(" ")).astype(np.uint32).view("<U1"))
    labels = dict(zip(rows(np.array(marks)).round().astype(int) // 4, tick_labels(marks), strict=True))
    lines = [
        f"{labels.get(n, ''):>{margin - 1}} {'┤' if n in labels else '│'}{''.join(line)}"
        for n, line in enumerate(cells)
    ]
    return "\n".join(
        line.rstrip() for line in [*lines, *_step_axis(x_low, x_high, margin, wide), _legend(curves, width)]
    )


def to_ascii(chart: str) -> str:
    """A chart for terminals that have no other letters."""
    plain = "".join("*" if "\u2801" <= letter <= "\u28ff" else letter for letter in chart)
    return plain.translate(_ASCII)


def _draw_line(dots: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> None:
    """Sets the dots on a line through points; a gap where one is not a number."""
    for n in np.flatnonzero(np.isfinite(rows)):
        before = n - 1 if n and np.isfinite(rows[n - 1]) else n
        count = int(max(abs(columns[n] - columns[before]), abs(rows[n] - rows[before]))) + 2
        between = [np.linspace(ends[before], ends[n], count).round().astype(int) for ends in (rows, columns)]
        dots[tuple(between)] = True


def _step_axis(low: float, high: float, margin: int, wide: int) -> list[str]:
    """The axis of steps and its labels, each beneath its tick."""
    marks = step_ticks(low, high, max(wide // 12, 2))
    axis, labels = ["─"] * wide, [" "] * (wide + margin + 1)
    free = 0
    for mark, name in zip(marks, tick_labels(marks), strict=True):
        column = round((mark - low) / (high - low) * (wide - 1))
        axis[column] = "┬"
        begin = min(max(margin + 1 + column - len(name) // 2, free), len(labels) - len(name))
        if begin >= free:
            labels[begin : begin + len(name)] = name
            free = begin + len(name) + 1
    return [f"{' ' * margin}└{''.join(axis)}", "".join(labels)]


def _legend(curves: list[Curve], width: int) -> str:
    names = [f"{_POINT if curve.is_evaluation else '⠒⠒'} {curve.label} {number_text(curve.last)}" for curve in curves]
    return ("  " + "   ".join(names))[:width]
