"""What tensors, meshes, layouts and tables show in a notebook: HTML.

Text and tables alone, with their style in them: no script and no network. Takes plain values and imports nothing of
Weft, so that what stands lowest can show itself too; `notebook` has the whole pages.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

COLOURS = 6
_LIGHT = ("#0062b1", "#b04600", "#006b4a", "#97386f", "#736000", "#4a5568")
_DARK = ("#6cb6ff", "#ff9d5c", "#4fd1a5", "#ec9bc8", "#dcc35c", "#b8c0cc")
_MOST_ROWS = 200
_MOST_VALUES, _FEW, _CORNER, _DIGITS = 1000, 64, 6, 4


def _colours(colours: Sequence[str], more: str) -> str:
    return f".weft{{{''.join(f'--a{i}:{colour};' for i, colour in enumerate(colours))}{more}}}"


# The colours of the page (weft/plan/page/page.css). A cell paints its own ground: a notebook may be light where the
# system is dark.
_STYLE = (
    "<style>"
    + _colours(_LIGHT, "--paper:#ffffff;--ink:#1d2430;--quiet:#5d6675;--line:#e3e6ea")
    + "@media (prefers-color-scheme:dark){"
    + _colours(_DARK, "--paper:#15181d;--ink:#e4e7ec;--quiet:#98a2b3;--line:#2d333d")
    + "}"
    + ".weft{background:var(--paper);color:var(--ink);padding:8px 12px;border-radius:6px;overflow-x:auto;"
    "font:13px/1.5 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".weft table{border-collapse:collapse;margin:4px 0;color:inherit;font:inherit}"
    ".weft th,.weft td{padding:1px 12px 1px 0;text-align:left;border:0;border-bottom:1px solid var(--line);"
    "background:none;white-space:nowrap}"
    ".weft th,.weft .quiet{color:var(--quiet);font-weight:400}.weft .right{text-align:right}"
    ".weft i{font-style:normal;font-weight:600}.weft summary{cursor:pointer}"
    ".weft pre{margin:4px 0;background:none;color:inherit;font:inherit}"
    + "".join(f".weft .a{i}{{color:var(--a{i})}}" for i in range(COLOURS))
    + "</style>"
)


def cell(*parts: str) -> str:
    """A cell of some parts, which are markup."""
    return f'{_STYLE}<div class="weft">{"".join(parts)}</div>'


def line(*parts: str) -> str:
    """A line of markup."""
    return f"<div>{''.join(parts)}</div>"


def quiet(text: str) -> str:
    """Text in the lesser colour."""
    return f' <span class="quiet">{html.escape(text)}</span>'


def preformat(text: str) -> str:
    """Text as it is, its lines and columns kept."""
    return f"<pre>{html.escape(text)}</pre>"


def fold(title: str, *parts: str, is_open: bool = False) -> str:
    """Markup under a line of text that opens and closes it."""
    return f"<details{' open' * is_open}><summary>{html.escape(title)}</summary>{''.join(parts)}</details>"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Rows of markup under titles of text; of very many, the first."""
    kinds = [' class="right"' if i in set(right) else "" for i in range(len(titles))]
    heads = "".join(f"<th{kind}>{html.escape(title)}</th>" for title, kind in zip(titles, kinds, strict=True))
    shown = [
        "".join(f"<td{kind}>{content}</td>" for content, kind in zip(row, kinds, strict=True))
        for row in rows[:_MOST_ROWS]
    ]
    more = f"{len(rows) - _MOST_ROWS:,} more" if len(rows) > _MOST_ROWS else ""
    body = "".join(f"<tr>{row}</tr>" for row in (heads, *shown))
    return f"<table>{body}</table>" + (line(quiet(more)) if more else "")


def colour_axes(names: Iterable[str], axes: Sequence[str]) -> str:
    """Axes that are taken together, each in the colour of its place among `axes`."""
    colours = {name: i % COLOURS for i, name in enumerate(axes)}
    return "+".join(
        f'<i class="a{colours[name]}">{html.escape(name)}</i>' if name in colours else html.escape(name)
        for name in names
    )


def typed_cell(dtype: str, dims: Sequence[str], placement: Sequence[Sequence[str]], axes: Sequence[str]) -> str:
    """A tensor's type, `f32[batch/rows d_model]`, with its axes in colours."""
    parts = [
        html.escape(name) + (f"/{colour_axes(over, axes)}" if over else "")
        for name, over in zip(dims, placement, strict=True)
    ]
    return f"{html.escape(dtype)}[{' '.join(parts)}]"


def mesh_cell(axes: Mapping[str, int], levels: Sequence[Sequence[str]]) -> str:
    """A mesh: its axes in their colours, slow levels first, and its size."""
    size = math.prod(axes.values())
    rows = [
        (colour_axes([name], list(axes)), str(axes[name]), "from host to host" if at < len(levels) - 1 else "")
        for at, level in enumerate(levels)
        for name in level
    ]
    head = line("<b>Mesh</b>", quiet("1 processor" if size == 1 else f"{size:,} processors"))
    titles = ("axis", "processors", "links")[: 3 if len(levels) > 1 else 2]
    return cell(head, table(titles, [row[: len(titles)] for row in rows], right=(1,)))


def layout_cell(rules: Mapping[str, Sequence[str]]) -> str:
    """A layout: a row for each rule, its axes in the order they appear."""
    axes = list(dict.fromkeys(axis for over in rules.values() for axis in over))
    if not rules:
        return cell(line("<b>Layout</b>", quiet("the empty layout: nothing is split")))
    rows = [(html.escape(rule), colour_axes(over, axes)) for rule, over in rules.items()]
    return cell(line("<b>Layout</b>"), table(("dim", "over"), rows))


def read_placement(array: Any, rank: int) -> tuple[tuple[tuple[str, ...], ...], Mapping[str, int]]:
    """Over which axes JAX has split each dim of an array, and the axes of its mesh."""
    sharding = None if isinstance(array, jax.core.Tracer) else getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return ((),) * rank, {}
    spec = (*sharding.spec, *(None,) * rank)[:rank]
    over = tuple(axes if isinstance(axes, tuple) else (axes,) if isinstance(axes, str) else () for axes in spec)
    return over, dict(sharding.mesh.shape)


def tensor_cell(
    kind: str,
    dtype: str,
    dims: Sequence[Any],
    placement: Sequence[Sequence[str]],
    axes: Mapping[str, int],
    values: Any = None,
) -> str:
    """A tensor: its type, its dims with their sizes and slices, and its first values."""
    head = line(f"<b>{typed_cell(dtype, [dim.name for dim in dims], placement, list(axes))}</b>", quiet(kind))
    rows = []
    for dim, over in zip(dims, placement, strict=True):
        size = f"{dim.count:,}" + (f", padded to {dim.size:,}" if dim.is_padded else "")
        local = dim.size // math.prod(axes[axis] for axis in over)
        rows.append((html.escape(dim.name), size, colour_axes(over, list(axes)), f"{local:,}"))
    titles = ("dim", "size", "over", "on each processor") if any(placement) else ("dim", "size")
    sizes = table(titles, [row[: len(titles)] for row in rows], right=(1, 3)) if rows else ""
    return cell(head, sizes, "" if values is None else _values(values, [dim.count for dim in dims]))


def _values(values: Any, sizes: Sequence[int]) -> str:
    """The values of an array; of a large one a corner, so that little is fetched."""
    is_whole = math.prod(sizes) <= _MOST_VALUES
    corner = [1 if at < len(sizes) - 2 else _CORNER for at in range(len(sizes))]
    values = values[tuple(slice(size if is_whole else min(size, few)) for size, few in zip(sizes, corner, strict=True))]
    try:
        text = np.array2string(np.asarray(values), precision=_DIGITS)
    except RuntimeError:  # what was to compute them has failed
        return line(quiet("its values could not be computed"))
    if not sizes:
        return preformat(text)
    return fold("values" if is_whole else "the first values", preformat(text), is_open=math.prod(sizes) <= _FEW)
