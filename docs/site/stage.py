"""Lays the pages of the site out for MkDocs: the texts of the repository as they are, and the generated reference.

    python -m docs.site.stage build/site-pages     # lay out
    python -m docs.site.stage --check site         # what was built asks for nothing from elsewhere

Files keep their paths, so links between texts hold on the site as they do in the repository. A link to a file that is
no text becomes a link to a page that shows it.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from . import reference

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json", ".yml": "yaml"}
PICTURES = {".png", ".svg", ".gif"}
FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]+src=["']?(https?:)?//|<link[^>]+rel=["']?(?:stylesheet|preconnect)[^>]+//"""
)


def texts() -> list[Path]:
    """The texts that the site is made of."""
    tops = [
        "README.md",
        "CONTRIBUTING.md",
        "RELEASING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "examples/README.md",
        "benchmarks/README.md",
    ]
    return [*(ROOT / top for top in tops), *sorted((ROOT / "docs").rglob("*.md"))]


def lay_out(folder: Path) -> None:
    """Writes all pages, and the pictures they show, into a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in texts():
        _write(folder / path.relative_to(ROOT), _with_links(path, folder))
    errors = folder / "docs" / "errors.md"  # its long lines are read, not compared
    _write(errors, errors.read_text(encoding="utf-8").replace("\n```text\n", "\n``` { .text .wrap }\n"))
    _write(folder / "README.md", f"---\nhide: [navigation]\n---\n{(folder / 'README.md').read_text(encoding='utf-8')}")
    for path in (ROOT / "docs" / "site").glob("*.css"):
        _write(folder / "docs" / "site" / path.name, path.read_text(encoding="utf-8"))
    reference.write(folder / "reference")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _with_links(path: Path, folder: Path) -> str:
    """A text whose links lead to pages; what they need is put beside it."""

    def lead(link: re.Match[str]) -> str:
        target = _page_of(path, link[2], folder)
        return f"{link[1]}{target}{link[3] or ''}{link[4]}"

    text = path.read_text(encoding="utf-8")
    pieces, end = [], 0
    for fence in FENCE.finditer(text):  # a program's text is no prose
        pieces += [LINK.sub(lead, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(lead, text[end:])])


def _page_of(path: Path, link: str, folder: Path) -> str:
    """What a link to a file of the repository is on the site."""
    file = (path.parent / link).resolve()
    if "://" in link or link.startswith("mailto:") or not file.is_relative_to(ROOT) or file.suffix == ".md":
        return link
    if file.is_dir():
        if (file / "README.md").exists():
            return f"{link.rstrip('/')}/README.md"
        _write(folder / file.relative_to(ROOT) / "index.md", _list_files(file, folder))
        return f"{link.rstrip('/')}/index.md"
    if file.suffix in PICTURES:
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return link
    _show_file(file, folder)
    return f"{link}.md"


def _show_file(file: Path, folder: Path) -> None:
    """A page that shows a file of the repository."""
    name = file.relative_to(ROOT)
    if file.suffix == ".ipynb":
        if not (folder / f"{name}.md").exists():
            _write(folder / f"{name}.md", "")  # notebooks may link to each other in a circle
            _write(folder / f"{name}.md", _notebook_text(file, folder))
        return
    code = f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n````"
    _write(folder / f"{name}.md", f"# `{name}`\n\n{code}\n")


def _notebook_text(file: Path, folder: Path) -> str:
    """A notebook as a text: its words, its code, and what came out of it."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(LINK.sub(lambda link: f"{link[1]}{_page_of(file, link[2], folder)}{link[4]}", source))
            continue
        parts.append(f"````python\n{source}\n````")
        for output in cell["outputs"]:
            shown = output.get("data", {"text/plain": output.get("text", [])})
            text = "".join(shown["text/plain"]).rstrip()
            parts.append("".join(shown["text/html"]) if "text/html" in shown else f"````text\n{text}\n````")
    return "\n\n".join(parts) + "\n"


def _list_files(file: Path, folder: Path) -> str:
    lines = [f"# `{file.relative_to(ROOT)}`", ""]
    for inside in sorted(path for path in file.iterdir() if path.is_file()):
        _show_file(inside, folder)
        lines.append(f"- [{inside.name}]({inside.name}.md)")
    return "\n".join(lines) + "\n"


def external_links(site: Path) -> list[str]:
    """Pages of a built site that load something from elsewhere."""
    pages = sorted([*site.rglob("*.html"), *site.rglob("*.css")])
    pattern = re.compile(FROM_ELSEWHERE.pattern + r"|@import[^;]+//|url\(['\"]?(?:https?:)?//")
    return [str(page.relative_to(site)) for page in pages if pattern.search(page.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        if found := external_links(Path(sys.argv[2])):
            sys.exit(f"these pages load something from elsewhere: {', '.join(found)}")
    else:
        lay_out(Path(sys.argv[1]))
