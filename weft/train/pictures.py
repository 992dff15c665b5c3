"""Pictures of loss curves by Matplotlib: PNG, and HTML that needs nothing else.

Names of runs and keys are text: they are escaped, and not read as formulas.
"""

import html as escaping
import io
import json
import warnings
from typing import Any

import numpy as np

from ..text import number_text
from .curves import Curve, limits, step_limits, step_ticks, thin, tick_labels, ticks
from .metrics import MetricsError

COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2", "#a16207", "#64748b")
MOST = 1600  # points of a curve, about two for each column of dots
_UNITS = {"loss": "nats a token", "mfu": "share of the peak"}
Panels = dict[str, list[Curve]]


def png(panels: Panels, title: str = "") -> bytes:
    """The curves as a PNG, a panel for each axis."""
    return _save(_figure(panels, title), "png", facecolor="white")


def html(panels: Panels, title: str = "") -> str:
    """The curves as one HTML file: an SVG, and values under the pointer."""
    figure = _figure(panels, title)
    svg = _save(figure, "svg", facecolor="none", metadata=dict.fromkeys(["Creator", "Date", "Format", "Type"])).decode()
    shown = [
        {"x": axes.get_xlim(), "y": axes.get_ylim(), "box": _box(axes), "curves": [_points(curve) for curve in curves]}
        for axes, curves in zip(figure.axes, panels.values(), strict=True)
    ]
    page = _PAGE.replace("<!--title-->", escaping.escape(title or "curves"))
    page = page.replace("<!--svg-->", svg[svg.index("<svg") :])
    return page.replace("<!--panels-->", json.dumps(shown, allow_nan=False).replace("<", "\\u003c"))


def _figure(panels: Panels, title: str) -> Any:
    """The curves as a figure of Matplotlib's, a panel for each axis."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        fix = "run `pip install matplotlib`, or draw in the terminal: `--terminal`"
        raise MetricsError(f"a picture needs `matplotlib`, which cannot be loaded: {error}", fix=fix) from None
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(9, 0.6 + 4.2 * len(panels)), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    for axes, (name, curves) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        _draw_panel(axes, name, curves)
    style: dict[str, Any] = dict(fontsize=13, fontweight="bold", color="#1e293b", parse_math=False)
    figure.axes[0].set_title(title, loc="left", pad=10, **style)
    return figure


def _draw_panel(axes: Any, name: str, curves: list[Curve]) -> None:
    handles = [_draw_curve(axes, curve) for curve in curves]
    axes.set_ylabel(
        f"{name} ({_UNITS[name]})" if name in _UNITS else name, fontsize=11, color="#334155", parse_math=False
    )
    axes.set_xlabel("step", fontsize=11, color="#334155")
    (low, high), (first, last) = limits([curve.values for curve in curves]), step_limits(curves)
    left, right = first, last + 0.01 * (last - first)
    bottom, top = low - 0.05 * (high - low), high + 0.05 * (high - low)
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_xticks(marks := step_ticks(left, right, 9), tick_labels(marks))
    axes.set_yticks(marks := ticks(bottom, top, 8), tick_labels(marks))
    axes.grid(color="#e2e8f0", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10, colors="#475569", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#cbd5e1")
    # Labels are put in afterwards: Matplotlib leaves out one that begins with an underscore.
    legend = axes.legend(handles, ["."] * len(handles), fontsize=10, framealpha=0.9, edgecolor="#e2e8f0")
    for text, curve in zip(legend.get_texts(), curves, strict=True):
        text.set_parse_math(False)
        text.set_text(f"{curve.label}  {number_text(curve.last)}")


def _draw_curve(axes: Any, curve: Curve) -> Any:
    """Draws a curve, and gives the line that stands for it in the legend."""
    colour, smooth = _colour(curve), curve.smooth
    steps, values = thin(curve.steps, curve.values, MOST)
    if curve.is_evaluation:
        size = 3.5 if len(curve.steps) > 40 else 6
        style = dict(linestyle="--", linewidth=1.1, marker="o", markersize=size, markeredgecolor="white")
        return axes.plot(steps, values, color=colour, gid=f"evaluation-{curve.colour}", zorder=4, **style)[0]
    if smooth is None:
        few = dict(marker=".", markersize=4) if len(steps) < 3 else {}
        return axes.plot(steps, values, color=colour, linewidth=1.6, zorder=3, **few)[0]
    axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35, zorder=2)
    return axes.plot(*thin(curve.steps, smooth, MOST), color=colour, linewidth=1.8, zorder=3)[0]


def _save(figure: Any, form: str, **options: Any) -> bytes:
    from matplotlib import rc_context

    out = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none", "svg.hashsalt": "weft"}):
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in letters the font has not
        figure.savefig(out, format=form, **options)
    return out.getvalue()


def _box(axes: Any) -> list[float]:
    """Left, top, right and bottom of a panel in its SVG, from the upper left."""
    place, (wide, tall) = axes.get_position(), 72 * axes.figure.get_size_inches()
    return [place.x0 * wide, (1 - place.y1) * tall, place.x1 * wide, (1 - place.y0) * tall]


def _points(curve: Curve) -> dict[str, Any]:
    """What the page shows of a curve under the pointer."""
    steps, values = thin(curve.steps, curve.values, MOST)
    known = np.isfinite(values)
    return {
        "label": curve.label,
        "colour": _colour(curve),
        "steps": [int(step) for step in steps[known]],
        "values": [float(f"{value:.6g}") for value in values[known]],
    }


def _colour(curve: Curve) -> str:
    return COLOURS[curve.colour % len(COLOURS)]


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title><!--title--></title>
<style>
main { position: relative; margin: 0 auto; max-width: 1040px; background: #fff; }
svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
.tip { position: absolute; pointer-events: none; padding: 6px 10px; border: 1px solid #e2e8f0; border-radius: 6px;
  background: #fff; white-space: nowrap; font: 13px/1.4 system-ui, "DejaVu Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  html { background: #141414; }
  main { filter: invert(0.92) hue-rotate(180deg); }
}
</style>
</head>
<body>
<main>
<!--svg-->
<div class="tip" hidden></div>
</main>
<script type="application/json" id="panels"><!--panels--></script>
<script>
"use strict";
const panels = JSON.parse(document.getElementById("panels").textContent);
const svg = document.querySelector("svg"), tip = document.querySelector(".tip");
const draw = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  return element;
};
const pointer = svg.appendChild(draw("g", {}));
const nearest = (steps, step) =>
  steps.reduce((best, at, n) => Math.abs(at - step) < Math.abs(steps[best] - step) ? n : best, 0);
svg.addEventListener("pointermove", event => {
  const place = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / place.width;
  const down = (event.clientY - place.top) * scale;
  const panel = panels.find(({ box }) => down <= box[3]) ?? panels.at(-1);
  const { x, y, box: [left, top, right, bottom], curves } = panel;
  const column = Math.min(Math.max((event.clientX - place.left) * scale, left), right);
  const at = x[0] + (column - left) / (right - left) * (x[1] - x[0]);
  pointer.replaceChildren(draw("path", { d: `M${column} ${top}V${bottom}`, stroke: "#64748b" }));
  tip.replaceChildren(...curves.map(({ label, colour, steps, values }) => {
    const n = nearest(steps, at), line = document.createElement("div");
    pointer.append(draw("circle", { r: 3.5, fill: colour, cx: left + (steps[n] - x[0]) / (x[1] - x[0]) * (right - left),
      cy: bottom - (values[n] - y[0]) / (y[1] - y[0]) * (bottom - top) }));
    line.textContent = `step ${steps[n].toLocaleString("en")}  ${label} ${values[n].toLocaleString("en",
      { maximumSignificantDigits: 5 })}`;
    line.style.color = colour;
    return line;
  }));
  tip.hidden = false;
  tip.style.top = `${top / scale + 12}px`;
  tip.style.left = `${column / scale + (column > (left + right) / 2 ? -tip.offsetWidth - 14 : 14)}px`;
});
svg.addEventListener("pointerleave", () => { tip.hidden = true; pointer.replaceChildren(); });
</script>
</body>
</html>
"""
