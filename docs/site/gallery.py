"""The pictures of docs/gallery.md, each drawn from what an example prints.

python -m docs.site.gallery            # run the examples and draw all pictures anew; ten minutes on two cores
python -m docs.site.gallery 04_mnist   # one of them
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures" / "gallery"
COLOURS = ["#3f51b5", "#c2571a", "#00897b", "#8e6bbf", "#6b7280"]
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "weft",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
}

Draw = Callable[[str, Any], None]


def number(text: str) -> float:
    """A number as examples print them, with commas between thousands."""
    return float(text.replace(",", ""))


def draw_layouts(text: str, axes: Any) -> None:
    """Bars of what each layout sends, by collective."""
    rows: dict[str, list[tuple[str, float]]] = {}
    for line in text.split("\n\n")[1].splitlines()[1:]:
        name = re.match(r"(\S.*?)\s+\d\.\d{6}", line)
        if name:
            rows[name[1]] = []
        rows[list(rows)[-1]] += [(kind, number(size)) for kind, size in re.findall(r"(\w+) x\d+ .*?([\d,]+)$", line)]
    kinds = list(dict.fromkeys(kind for sent in rows.values() for kind, _ in sent))
    left = dict.fromkeys(rows, 0.0)
    for kind in kinds:
        sizes = [sum(size for each, size in sent if each == kind) / 1024 for sent in rows.values()]
        axes.barh(list(rows), sizes, left=list(left.values()), label=kind, height=0.6)
        left = {name: left[name] + size for name, size in zip(rows, sizes, strict=True)}
    axes.invert_yaxis()
    axes.legend()
    axes.set_xlabel("KiB sent by each processor in a step")


def draw_curve(text: str, axes: Any) -> None:
    """The loss by step."""
    found = re.findall(r"step +(\d+)  loss (\S+)", text)
    axes.plot([int(step) for step, _ in found], [float(loss) for _, loss in found], marker="o", markersize=3)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)


def draw_halos(text: str, axes: Any) -> None:
    """Bars of halos in strips and in tiles."""
    found = re.findall(r"^  (\S.*?) +halos +([\d,]+) bytes$", text, re.MULTILINE)
    axes.barh([layout for layout, _ in found], [number(size) / 1024 for _, size in found], height=0.5)
    axes.invert_yaxis()
    axes.set_xlabel("KiB of halos a step, 2048 x 2048 on 256 processors")


def draw_experts(text: str, axes: Any) -> None:
    """Bytes sent where tokens stay and where they travel, by collective."""
    parts = text.split("\n\n")[1:3]
    sent = [re.findall(r"^  \w+ +(\w+) +([\d,]+) bytes$", part, re.MULTILINE) for part in parts]
    kinds = list(dict.fromkeys(kind for rows in sent for kind, _ in rows))
    for n, (part, rows) in enumerate(zip(parts, sent, strict=True)):
        sizes = [sum(number(size) for each, size in rows if each == kind) / 1024 for kind in kinds]
        axes.bar([at + 0.36 * n for at in range(len(kinds))], sizes, width=0.34, label=part.split(": ")[0])
    axes.set_xticks([at + 0.18 for at in range(len(kinds))], kinds)
    axes.legend()
    axes.set_ylabel("KiB a step")


def draw_bubbles(text: str, axes: Any) -> None:
    """Bars of the idle share of each pipeline, by its stages, microbatches and rounds."""
    heads = re.findall(r"^(\d+) stages, (\d+) microbatches, (\d+) rounds, on (\S+)", text, re.MULTILINE)
    idle = [float(share) for share in re.findall(r"by formula (\S+)%", text)]
    names = [
        f"{stages} stages, {micro} microbatches,\n{rounds} rounds, {mesh}" for stages, micro, rounds, mesh in heads
    ]
    axes.barh(names, idle, height=0.5, color=COLOURS[1])
    axes.invert_yaxis()
    axes.set_xlabel("% of the work of a stage that it waits")


def draw_losses_of_layouts(text: str, axes: Any) -> None:
    """The same losses under three layouts, and their marks on top of each other."""
    for n, line in enumerate(text.split("\n\n")[0].splitlines()[1:]):
        losses = [float(value) for value in re.findall(r"\d\.\d{4}", line)]
        axes.plot(range(5, 5 * len(losses) + 1, 5), losses, marker="os^"[n], markersize=9 - 3 * n, alpha=0.8,
                  label=line.strip().split("  ")[0])  # fmt: skip
    axes.legend()
    axes.set_xlabel("step")
    axes.set_ylabel("nats a byte")


PICTURES: dict[str, tuple[str, Draw]] = {
    "02_same_answer": ("One net, one answer; what each layout sends", draw_layouts),
    "04_mnist": ("A classifier of digits learns", draw_curve),
    "07_split_image": ("An image split in strips, and in tiles", draw_halos),
    "08_transformer_lm": ("A language model under three layouts: one curve", draw_losses_of_layouts),
    "10_experts": ("Experts: tokens stay, or travel", draw_experts),
    "15_pipeline": ("Pipelines and their bubbles", draw_bubbles),
    "17_unet": ("A U-Net learns to segment a volume split over four processors", draw_curve),
}


def print_of(name: str) -> str:
    """What an example prints."""
    command = [sys.executable, f"examples/{name}.py"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def draw(name: str, text: str, file: Path) -> None:
    """Draws the picture of an example from what it printed."""
    title, how = PICTURES[name]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 2.8))
        axes.set_title(title)
        how(text, axes)
        if not (axes.patches or any(len(line.get_xdata()) for line in axes.lines)):
            raise ValueError(f"{name} printed nothing that its picture shows")
        figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        draw(name, print_of(name), FOLDER / f"{name}.svg")
