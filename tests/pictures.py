"""The pictures in docs/parallelisms.md: who holds which slice, drawn by the page's own script in a headless Chromium.

    python -m tests.pictures    # writes docs/pictures/parallelisms/ anew

A section of that text has a call of `show` with a layout and a mesh, and a picture of two tensors under them. What a
picture shows stands in it as text too, so that a test without a browser can tell whether it is still true.
"""

import json
import math
import re
import tempfile
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import weft as wf
from tests.plan.browser import browser
from weft import models
from weft.layout import Region
from weft.program.array_type import named_type
from weft.text import size_text

DOCS = Path(__file__).parent.parent / "docs"
TEXT, FOLDER = DOCS / "parallelisms.md", DOCS / "pictures" / "parallelisms"
_WIDE, _APART, _CAPTION = 404, 28, 66
_STYLE = """text.caption { font: 600 13px var(--mono); fill: var(--ink) }
text.how { font: 12px var(--mono); fill: var(--quiet) }"""
_STREAM, _W_IN = ("activations", "batch stream d_model", None), ("w_in, as stored", "layers d_model d_ff", "params")
_MOMENT = ("Adam's moments of w_in", "layers d_model d_ff", "optimizer")
_INSIDE = ("activations inside", "batch length d_ff", None)
TENSORS: dict[str, list[tuple[str, str, str | None]]] = {
    "data": [_STREAM, _W_IN],
    "zero1": [_W_IN, _MOMENT],
    "fsdp": [_STREAM, _W_IN],
    "hsdp": [_STREAM, _W_IN],
    "tensor": [_INSIDE, _W_IN],
    "sequence": [_STREAM, _INSIDE],
    "context": [("queries", "batch length heads d_kv", None), ("keys", "batch memory_length heads d_kv", None)],
    "ring": [("queries", "batch length heads d_kv", None), ("keys", "batch memory_length heads d_kv", None)],
    "ulysses": [_STREAM, ("queries, while attending", "batch length queries d_kv", None)],
    "dropless": [_STREAM, ("w_in of experts", "layers experts d_model d_ff", "params")],
    "four": [("queries", "batch length heads d_kv", None), _W_IN],
    "pipeline": [("activations that wait", "batch microbatch stream d_model", None),
                 ("w_in, as stored", "stage layers d_model d_ff", "params")],
    "experts": [("what experts are given", "expert_batch experts slots d_model", None),
                ("w_in of experts", "layers experts d_model d_ff", "params")],
    "outer": [("what experts are given", "expert_batch experts slots d_model", None),
              ("w_in of experts", "layers experts d_model d_ff", "params")],
    "spatial": [("features", "batch height width channels", None), ("the kernels", "channels filters", "params")],
    "three": [_STREAM, _W_IN],
    "decoding": [("KV cache", "layers batch memory_length heads d_kv", None), _W_IN],
    "cache": [("KV cache", "layers batch memory_length heads d_kv", None), _W_IN],
}  # fmt: skip
"""The two tensors of each picture: what they are called, their dims, and by which rules they are stored."""


@dataclass(frozen=True)
class Section:
    """A picture of the text, with the line of the `show` above it."""

    picture: str
    layout: str
    mesh: str
    model: str
    changes: dict[str, int]

    def facts(self) -> dict[str, Any]:
        """What is drawn: the mesh, and of each tensor its dims with their sizes and axes."""
        layers = {} if "unet" in self.model else {"layers": 2}
        config = models.preset(self.model, **layers, **self.changes)
        region = Region(wf.Mesh(self.mesh), wf.Layout(self.layout))
        tensors = []
        for title, names, store in TENSORS[self.picture]:
            dims = [config.dim(name) for name in names.split()]
            if "microbatch" in names:  # the batch is dealt out among them
                dims[0] = dims[0].resized(dims[0].size // config.microbatch.size)
            placement = region.placement(dims, store)
            whole = 4 * math.prod(dim.size for dim in dims)
            local = 4 * math.prod(region.local_sizes(dims, placement))
            type_ = named_type("f32", dims, placement)
            shown = [{"name": dim.name, "size": dim.size, "axes": list(dim.axes)} for dim in type_.dims]
            about = {"type": str(type_), "dims": shown, "whole": size_text(whole), "local": size_text(local)}
            tensors.append({"title": title} | about)
        mesh = wf.Mesh(self.mesh)
        return {"mesh": list(map(list, mesh.axes.items())), "slow": list(mesh.slow), "tensors": tensors}


def sections(text: str) -> list[Section]:
    """The pictures of the text, in its order."""
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        for picture in re.findall(r"\]\(pictures/parallelisms/(\w+)\.svg\)", part):
            shown = re.search(r'^(?:\w+ = )?show\("([^"]+)", "([^"]+)"(.*?)\)$', part, re.MULTILINE | re.DOTALL)
            assert shown is not None, f"no `show` beside the picture {picture}"
            model = re.search(r'model="([\w-]+)"', shown[3])
            changes = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", shown[3])}
            found.append(Section(picture, shown[1], shown[2], model[1] if model else "tiny-lm", changes))
    return found


_DRAW = """
const [facts, most] = arguments, colours = Object.fromEntries(facts.mesh.map(([name], i) => [name, i]));
return facts.tensors.map(tensor => {
  const picture = new MeshPicture(facts, colours, most, "");
  picture.showTensor(tensor);
  for (const each of [picture.svg, ...picture.svg.querySelectorAll("*")])
    for (const name of ["tabindex", "role", "aria-label", "data-p", "data-slice"]) each.removeAttribute(name);
  picture.svg.removeAttribute("style");
  const { width, height } = picture.shape, inner = new XMLSerializer().serializeToString(picture.svg);
  return { inner, width, height, how: picture.how.textContent };
});
"""


def draw(window: Any, section: Section) -> str:
    """The picture of a section as SVG: its tensors beside each other, and their captions."""
    facts = section.facts()
    parts, tallest = [], 0.0
    for i, (tensor, drawn) in enumerate(zip(facts["tensors"], window.run(_DRAW, facts, 200), strict=True)):
        x, tallest = i * (_WIDE + _APART), max(tallest, drawn["height"])
        size = f'x="{x}" y="{_CAPTION}" width="{drawn["width"]:g}" height="{drawn["height"]:g}"'
        for y, kind, line in (
            (14, "caption", tensor["title"]),
            (33, "caption", tensor["type"]),
            (52, "how", drawn["how"]),
        ):
            parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(line)}</text>')
        parts.append(drawn["inner"].replace("<svg ", f"<svg {size} ", 1))
    box = f"0 0 {len(facts['tensors']) * (_WIDE + _APART) - _APART} {_CAPTION + tallest:g}"
    told = escape(json.dumps(facts, sort_keys=True))
    title = f"<title>{escape(section.layout)} on {escape(section.mesh)}</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">{title}<desc>{told}</desc>'
    return "\n".join([head, f"<style>{_style()}</style>", *parts, "</svg>", ""])


def _style() -> str:
    """What of the page's style the mesh needs, and the captions'."""
    style = resources.files("weft.plan.page").joinpath("page.css").read_text(encoding="utf-8")
    root = re.search(r"^:root \{.*?^\}", style, re.MULTILINE | re.DOTALL)
    assert root is not None
    rules = re.findall(r"^(?:\.grid (?:text|\.word|\.tick|\.axis-name)|\.a[024]) .*$", style, re.MULTILINE)
    return escape("\n".join([root[0], *rules, _STYLE]), quote=False)


def facts_in(picture: str) -> Any:
    """What a picture says it shows."""
    told = re.search(r"<desc>(.*?)</desc>", picture, re.DOTALL)
    assert told is not None
    return json.loads(told[1].replace("&quot;", '"').replace("&#x27;", "'").replace("&amp;", "&"))


def draw_all(folder: Path) -> dict[str, str]:
    """Every picture of the text, by name; the browser keeps its profile in `folder`."""
    script = resources.files("weft.plan.page").joinpath("mesh.js").read_text(encoding="utf-8")
    (folder / "mesh.html").write_text(f"<!doctype html><meta charset=utf-8><script>{script}</script>")
    with browser(folder) as window:
        window.open(folder / "mesh.html")
        return {each.picture: draw(window, each) for each in sections(TEXT.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, picture in draw_all(Path(scratch)).items():
            (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
