"""Pictures of curves: PNG by Matplotlib, and HTML as one file that needs nothing else.

Imports the curves. Names of runs and keys are text: in HTML they are escaped, in PNG they are not read as formulas.
"""

import html as escaping
import io
import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .curves import Curve, limits, short, step_limits, step_ticks, thinned, tick_labels, ticks
from .metrics import MetricsError

COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2", "#a16207", "#64748b")
DARK_COLOURS = ("#60a5fa", "#fb923c", "#34d399", "#c084fc", "#f472b6", "#22d3ee", "#facc15", "#94a3b8")
Panels = dict[str, list[Curve]]
WIDE, TALL, LEFT, RIGHT, TOP, BOTTOM = 960, 420, 64, 20, 16, 40


@dataclass(frozen=True)
class _Box:
    """Where steps and values lie in a drawing."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, step: float) -> float:
        return round(LEFT + (step - self.x[0]) / (self.x[1] - self.x[0]) * (WIDE - LEFT - RIGHT), 1)

    def down(self, value: float) -> float:
        return round(TOP + (self.y[1] - value) / (self.y[1] - self.y[0]) * (TALL - TOP - BOTTOM), 1)

    def points(self, steps: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
        """Places of the points, not a number where a value is none."""
        return [(self.across(step), self.down(value)) for step, value in zip(steps, values, strict=True)]


def _box(curves: list[Curve]) -> _Box:
    """What holds all curves, with some room above and beneath."""
    low, high = limits([curve.values for curve in curves])
    room = 0.05 * (high - low)
    first, last = step_limits(curves)
    return _Box((first, last + 0.01 * (last - first)), (low - room, high + room))


def png(panels: Panels, title: str = "") -> bytes:
    """The curves as a PNG, a panel for each axis."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        fix = "run `pip install matplotlib`, or write HTML: `--out curve.html`"
        raise MetricsError(f"a PNG needs `matplotlib`, which cannot be loaded: {error}", fix=fix) from None
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(9, 0.6 + 4.2 * len(panels)), dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    for axes, (name, curves) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        axes.set_title(title, loc="left", pad=10, fontsize=13, fontweight="bold", color="#1e293b", parse_math=False)
        title = ""  # above the first panel alone
        handles = [_plotted(axes, curve) for curve in curves]
        axes.set_ylabel(name, fontsize=11, color="#334155", parse_math=False)
        axes.set_xlabel("step", fontsize=11, color="#334155")
        box = _box(curves)
        axes.set(xlim=box.x, ylim=box.y)
        axes.set_xticks(marks := step_ticks(*box.x, 9), tick_labels(marks))
        axes.set_yticks(marks := ticks(*box.y, 8), tick_labels(marks))
        axes.grid(color="#e2e8f0", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=10, colors="#475569", length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#cbd5e1")
        # Labels are put in afterwards: Matplotlib leaves out one that begins with an underscore.
        legend = axes.legend(handles, ["."] * len(handles), fontsize=10, framealpha=0.9, edgecolor="#e2e8f0")
        for text, curve in zip(legend.get_texts(), curves, strict=True):
            text.set_parse_math(False)
            text.set_text(f"{curve.label}  {_last(curve)}")
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in letters the font has not
        figure.savefig(out, format="png")
    return out.getvalue()


def _plotted(axes: Any, curve: Curve) -> Any:
    """Draws a curve, and gives the line that stands for it in the legend."""
    colour, smooth = COLOURS[curve.colour % len(COLOURS)], curve.smooth
    if curve.is_evaluation:
        is_many = len(curve.steps) > 40
        style = dict(color=colour, linestyle="--", linewidth=1.1, marker="o", markeredgecolor="white")
        return axes.plot(curve.steps, curve.values, **style, markersize=3.5 if is_many else 6, zorder=4)[0]
    if smooth is None:
        few = dict(marker=".", markersize=4) if len(curve.steps) < 3 else {}
        return axes.plot(curve.steps, curve.values, color=colour, linewidth=1.6, zorder=3, **few)[0]
    axes.plot(curve.steps, curve.values, color=colour, linewidth=0.8, alpha=0.35, zorder=2)
    return axes.plot(curve.steps, smooth, color=colour, linewidth=1.8, zorder=3)[0]


def _last(curve: Curve) -> str:
    return short(float(curve.values[np.isfinite(curve.values)][-1]))


# HTML.

MOST = 1600  # points of a curve, about two for each column of dots


def html(panels: Panels, title: str = "") -> str:
    """The curves as one HTML file: drawn without a script, and with one that tells the values under the pointer."""
    parts = [_panel(number, name, curves) for number, (name, curves) in enumerate(panels.items())]
    shown = escaping.escape(title or "curves")
    told = json.dumps([told for _, told in parts], allow_nan=False).replace("<", "\\u003c")
    head = f"<h1>{shown}</h1>" if title else ""
    light, dark = (
        " ".join(f"--c{number}: {colour};" for number, colour in enumerate(colours))
        for colours in (COLOURS, DARK_COLOURS)
    )
    page = _PAGE.replace("/*light*/", light).replace("/*dark*/", dark)
    body = "\n".join([head, *(drawing for drawing, _ in parts)])
    before, _, after = page.partition("<!--body-->")
    begin, _, end = before.partition("<!--title-->")
    middle, _, rest = after.partition("/*told*/")
    return "".join([begin, shown, end, body, middle, told, rest])


def _panel(number: int, name: str, curves: list[Curve]) -> tuple[str, dict[str, Any]]:
    """The drawing of one axis, and what its script needs."""
    box = _box(curves)
    legend = "".join(
        f'<span class="{"points" if curve.is_evaluation else "line"}" style="--c: {_stroke(curve)}">'
        f"{escaping.escape(curve.label)} <b>{_last(curve)}</b></span>"
        for curve in curves
    )
    heading = escaping.escape(name)
    parts = [
        f'<figure><figcaption><h2>{heading}</h2><div class="legend">{legend}</div></figcaption>',
        f'<div class="panel" data-panel="{number}">'
        f'<svg viewBox="0 0 {WIDE} {TALL}" role="img" aria-label="{heading} by step">',
        *_axes(box),
        *(line for curve in curves for line in _drawn(curve, box)),
        '<g class="pointer"></g></svg><div class="tip" hidden></div></div></figure>',
    ]
    place = [LEFT, TOP, WIDE - RIGHT, TALL - BOTTOM]
    return "\n".join(parts), {"x": box.x, "y": box.y, "box": place, "curves": [_told(curve) for curve in curves]}


def _axes(box: _Box) -> list[str]:
    """The grid and its labels."""
    found: list[str] = []
    values, steps = ticks(*box.y, 7), step_ticks(*box.x, 9)
    for value, text in zip(values, tick_labels(values), strict=True):
        found.append(f'<path class="grid" d="M{LEFT} {box.down(value)}H{WIDE - RIGHT}"/>')
        found.append(f'<text x="{LEFT - 8}" y="{box.down(value) + 4:.1f}" text-anchor="end">{text}</text>')
    for step, text in zip(steps, tick_labels(steps), strict=True):
        found.append(f'<path class="grid" d="M{box.across(step)} {TOP}V{TALL - BOTTOM}"/>')
        found.append(f'<text x="{box.across(step)}" y="{TALL - BOTTOM + 18}" text-anchor="middle">{text}</text>')
    middle = (LEFT + WIDE - RIGHT) // 2
    return [*found, f'<text x="{middle}" y="{TALL - 4}" text-anchor="middle">step</text>']


def _drawn(curve: Curve, box: _Box) -> list[str]:
    """A curve as SVG: a line, a faint one beneath a smooth one, or a broken one with its points."""
    colour = f'stroke="{_stroke(curve)}"'
    points = box.points(*thinned(curve.steps, curve.values, MOST))
    if curve.is_evaluation:
        dots = "".join(f'<circle cx="{x}" cy="{y}" r="4"/>' for x, y in points if not math.isnan(y))
        line = f'<path class="eval" {colour} d="{_path(points)}"/>'
        return [line, f'<g class="dots" fill="{_stroke(curve)}">{dots}</g>']
    if curve.smooth is None:
        return [f'<path class="line" {colour} d="{_path(points)}"/>']
    smooth = box.points(*thinned(curve.steps, curve.smooth, MOST))
    return [
        f'<path class="raw" {colour} d="{_path(points)}"/>',
        f'<path class="line" {colour} d="{_path(smooth)}"/>',
    ]


def _told(curve: Curve) -> dict[str, Any]:
    """What is told of a curve under the pointer."""
    steps, values = thinned(curve.steps, curve.values, MOST)
    known = np.isfinite(values)
    return {
        "label": curve.label,
        "colour": _stroke(curve),
        "steps": [int(step) for step in steps[known]],
        "values": [float(f"{value:.6g}") for value in values[known]],
    }


def _stroke(curve: Curve) -> str:
    return f"var(--c{curve.colour % len(COLOURS)})"


def _path(points: Iterable[tuple[float, float]]) -> str:
    """An SVG path through points, broken where one is not a number."""
    found, is_down = [], False
    for x, y in points:
        if not math.isnan(y):
            found.append(f"{'L' if is_down else 'M'}{x:g} {y:g}")
        is_down = not math.isnan(y)
    return "".join(found)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title><!--title--></title>
<style>
:root { color-scheme: light dark; --back: #ffffff; --text: #1e293b; --quiet: #64748b; --grid: #e2e8f0; /*light*/ }
@media (prefers-color-scheme: dark) {
  :root { --back: #0f172a; --text: #e2e8f0; --quiet: #94a3b8; --grid: #273449; /*dark*/ }
}
body { margin: 0 auto; padding: 24px; max-width: 1040px; background: var(--back); color: var(--text);
  font: 15px/1.4 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 20px; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0; }
figure { margin: 0 0 28px; }
figcaption { display: flex; flex-wrap: wrap; gap: 4px 24px; align-items: baseline; margin-bottom: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--quiet); }
.legend b { color: var(--text); font-variant-numeric: tabular-nums; }
.legend span::before { content: ""; display: inline-block; vertical-align: middle; margin-right: 7px;
  background: var(--c); width: 18px; height: 3px; border-radius: 2px; }
.legend .points::before { width: 9px; height: 9px; border-radius: 50%; }
.panel { position: relative; }
svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
svg text { fill: var(--quiet); font-size: 13px; font-variant-numeric: tabular-nums; }
path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { stroke-width: 2; }
.raw { stroke-width: 1; opacity: 0.38; }
.eval { stroke-width: 1.4; stroke-dasharray: 5 4; }
.dots circle, .pointer circle { stroke: var(--back); stroke-width: 1.5; }
.pointer path { stroke: var(--quiet); stroke-width: 1; }
.tip { position: absolute; top: 12px; pointer-events: none; padding: 6px 10px; border-radius: 6px; font-size: 13px;
  background: var(--back); border: 1px solid var(--grid); box-shadow: 0 2px 10px #0003; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.tip[hidden] { display: none; }
</style>
</head>
<body>
<!--body-->
<script type="application/json" id="told">/*told*/</script>
<script>
"use strict";
const told = JSON.parse(document.getElementById("told").textContent);
const nearest = (steps, step) => {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
};
const drawn = (name, attributes) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) found.setAttribute(key, attributes[key]);
  return found;
};
for (const panel of document.querySelectorAll(".panel")) {
  const { x, y, box: [left, top, right, bottom], curves } = told[panel.dataset.panel];
  const svg = panel.querySelector("svg"), pointer = panel.querySelector(".pointer"), tip = panel.querySelector(".tip");
  const across = step => left + (step - x[0]) / (x[1] - x[0]) * (right - left);
  const down = value => top + (y[1] - value) / (y[1] - y[0]) * (bottom - top);
  svg.addEventListener("pointermove", event => {
    const place = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / place.width;
    const at = x[0] + ((event.clientX - place.left) * scale - left) / (right - left) * (x[1] - x[0]);
    const column = across(Math.min(Math.max(at, x[0]), x[1]));
    pointer.replaceChildren(drawn("path", { d: `M${column} ${top}V${bottom}` }));
    tip.replaceChildren(...curves.map(({ label, colour, steps, values }) => {
      const n = nearest(steps, at), line = document.createElement("div");
      pointer.append(drawn("circle", { cx: across(steps[n]), cy: down(values[n]), r: 5, fill: colour }));
      line.textContent = `step ${steps[n].toLocaleString("en")}  ${label} ${values[n].toLocaleString("en",
        { maximumSignificantDigits: 5 })}`;
      line.style.color = colour;
      return line;
    }));
    tip.hidden = false;
    const shift = column / scale > place.width / 2 ? -tip.offsetWidth - 14 : 14;
    tip.style.left = `${column / scale + shift}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; pointer.replaceChildren(); });
}
</script>
</body>
</html>
"""
