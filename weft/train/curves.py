"""Curves of runs: numbers by step, a smooth line through many of them, ticks for axes, a drawing in characters.

Imports the metrics. A number that is not finite is a gap in its curve, never a point of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import closest
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
    def smooth(self) -> np.ndarray | None:
        """The values with their noise averaged out, where there are many."""
        return None if self.is_evaluation or len(self.values) < MANY else smoothed(self.values)


def panels(runs: dict[str, list[Row]], keys: Sequence[str] = ()) -> dict[str, list[Curve]]:
    """The curves of runs, those that share an axis together: `loss` and `eval.loss` under `loss`."""
    tables = {name: [(row["step"], numbers(row)) for row in rows] for name, rows in runs.items()}
    known = {key for table in tables.values() for _, found in table for key in found}
    wanted = list(dict.fromkeys(keys)) or [key for key in KEYS if key in known]
    if not wanted:
        raise MetricsError(f"{_listed(runs)} told of no loss", fix=f"name what to show with --keys: {_listed(known)}")
    found: dict[str, list[Curve]] = {}
    for key in wanted:
        if key not in known:
            raise MetricsError(f"there is no number `{key}` in {_listed(runs)}", fix=closest(key, known))
        curves = found.setdefault(key.rpartition(".")[2], [])
        for number, (name, table) in enumerate(tables.items()):
            points = [(step, values[key]) for step, values in table if key in values]
            if any(math.isfinite(value) for _, value in points):
                label, colour = (f"{name} {key}", number) if len(runs) > 1 else (key, wanted.index(key))
                steps, values = np.array(points, np.float64).T
                curves.append(Curve(name, label, key, colour, steps, np.where(np.isfinite(values), values, np.nan)))
        if not any(curve.key == key for curve in curves):
            raise MetricsError(f"no `{key}` in {_listed(runs)} is finite", fix="show other keys with --keys")
    return found


def _listed(names: Sequence[str] | dict[str, list[Row]] | set[str]) -> str:
    return ", ".join(sorted(names))


def smoothed(values: np.ndarray) -> np.ndarray:
    """Three running means over about a fiftieth of the values; the steep beginning of a curve is not flattened.

    >>> smoothed(np.array([4.0, 2.0, 2.0, np.nan]))
    array([ 4.,  2.,  2., nan])
    """
    count, reach = len(values), len(values) // 100
    at = np.arange(count)
    begin = np.maximum(at - reach, 0)
    end = np.minimum(at + np.minimum(reach, at), count - 1) + 1  # no further ahead than back, so that 4 2 2 begins at 4
    is_known = np.isfinite(values)
    found = np.where(is_known, values, 0.0)
    known = np.concatenate([[0], np.cumsum(is_known)])
    for _ in range(3):
        sums = np.concatenate([[0.0], np.cumsum(np.where(is_known, found, 0.0))])
        found = (sums[end] - sums[begin]) / np.maximum(known[end] - known[begin], 1)
    return np.where(is_known, found, np.nan)


def thinned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points that look the same: the first, the last, and the extremes in between."""
    if len(steps) <= most:
        return steps, values
    kept = [np.array([0, len(steps) - 1])]
    for part in np.array_split(np.arange(len(steps)), most // 2):
        among = values[part]
        kept.append(part[:1] if np.isnan(among).all() else part[[np.nanargmin(among), np.nanargmax(among)]])
    at = np.unique(np.concatenate(kept))
    return steps[at], values[at]


# Axes.


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


# A drawing in characters.

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a Braille letter, by column and row
_POINT = "◆"
_ASCII = str.maketrans({_POINT: "o", "│": "|", "┤": "+", "└": "+", "─": "-", "┬": "+"})


def drawn(rows: list[Row], width: int = 80, height: int = 16, keys: Sequence[str] = ()) -> str:
    """The curves of a run in `height` lines of at most `width` characters; evaluations are the points marked."""
    return drawn_curves(next(iter(panels({"the run": rows}, keys).values())), width, height)


def drawn_curves(curves: list[Curve], width: int, height: int, beside: Sequence[Curve] = ()) -> str:
    """Curves that share an axis, with the last value of each beneath; on the same scale as those drawn `beside`."""
    width, height = max(width, 30), max(height, 6)
    tall = height - 3
    y_low, y_high = limits([curve.values for curve in (*curves, *beside)])
    x_low, x_high = step_limits([*curves, *beside])
    y_ticks = ticks(y_low, y_high, max(2 * tall // 5, 2))
    names = tick_labels(y_ticks)
    margin = max(map(len, names)) + 1
    wide = width - margin - 1
    cells = [[" "] * wide for _ in range(tall)]

    def place(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Dots from the left and from the top."""
        across = (steps - x_low) / (x_high - x_low) * (2 * wide - 1)
        return across, (y_high - values) / (y_high - y_low) * (4 * tall - 1)

    for curve in sorted(curves, key=lambda curve: curve.is_evaluation):
        values = curve.values if curve.smooth is None else curve.smooth
        across, down = place(*thinned(curve.steps, values, 4 * wide))
        if curve.is_evaluation:
            for x, y in zip(across, down, strict=True):
                if not math.isnan(y):
                    cells[round(y) // 4][round(x) // 2] = _POINT
        else:
            _dot(cells, across, down)
    _, tick_dots = place(np.zeros(len(y_ticks)), np.array(y_ticks))
    labelled = {round(y) // 4: name for y, name in zip(tick_dots, names, strict=True)}
    lines = [
        f"{labelled.get(n, ''):>{margin - 1}} {'┤' if n in labelled else '│'}{''.join(line)}"
        for n, line in enumerate(cells)
    ]
    return "\n".join(line.rstrip() for line in [*lines, *_foot(x_low, x_high, margin, wide), _legend(curves, width)])


def as_ascii(drawing: str) -> str:
    """A drawing for terminals that have no other letters."""
    plain = "".join("*" if "\u2801" <= letter <= "\u28ff" else letter for letter in drawing)
    return plain.translate(_ASCII)


def _dot(cells: list[list[str]], across: np.ndarray, down: np.ndarray) -> None:
    """Draws a line through points given in dots; a gap where one is not a number."""
    for x, y in _along(across, down):
        line, column = y // 4, x // 2
        before = ord(cells[line][column]) - 0x2800 if cells[line][column] > "\u2800" else 0
        cells[line][column] = chr(0x2800 + (max(before, 0) | _DOTS[x % 2][y % 4]))


def _along(across: np.ndarray, down: np.ndarray) -> Iterator[tuple[int, int]]:
    for n, (x, y) in enumerate(zip(across, down, strict=True)):
        if math.isnan(y):
            continue
        x0, y0 = (x, y) if n == 0 or math.isnan(down[n - 1]) else (across[n - 1], down[n - 1])
        count = int(max(abs(x - x0), abs(y - y0))) + 1
        for part in range(count + 1):
            yield round(x0 + (x - x0) * part / count), round(y0 + (y - y0) * part / count)


def _foot(low: float, high: float, margin: int, wide: int) -> list[str]:
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
    parts = []
    for curve in curves:
        last = curve.values[np.isfinite(curve.values)][-1]
        parts.append(f"{_POINT if curve.is_evaluation else '⠒⠒'} {curve.label} {short(last)}")
    return ("  " + "   ".join(parts))[:width]


def short(value: float) -> str:
    """A number in a few digits: three decimals where they count.

    >>> short(2.34567), short(123456.7), short(0.000123456)
    ('2.346', '123,457', '0.0001235')
    """
    if value and abs(value) < 0.01:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3f}"
