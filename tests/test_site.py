"""The site: every public name has an entry in the reference, and every page it links to is laid out."""

import dataclasses
import re

import pytest
import typer

from docs.site import gallery, reference, stage
from weft.cli import app


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


@pytest.mark.parametrize("room", reference.ROOMS)
def test_every_public_name_has_an_entry(pages, room):
    page = pages[f"{room.replace('.', '-')}.md"]
    prefix = "wf" if room == "wf" else room
    entries = set(re.findall(rf"^### `{re.escape(prefix)}\.(\w+)`", page, re.MULTILINE))
    rooms = set(re.findall(r"^- \[`(?:weft|wf)\.(?:\w+\.)*(\w+)`\]", page, re.MULTILINE))
    assert entries | rooms == set(reference.public_names(room))


def test_a_public_name_without_a_docstring_or_a_family_ends_the_build(monkeypatch):
    def naked():
        pass

    monkeypatch.setitem(vars(reference.wf.nn), "naked", naked)
    monkeypatch.setattr(reference.wf.nn, "__all__", [*reference.wf.nn.__all__, "naked"])
    with pytest.raises(reference.MissingError, match=r"`nn\.naked` has no docstring"):
        reference.pages()
    monkeypatch.undo()
    monkeypatch.setattr(reference.wf, "__all__", [*reference.wf.__all__, "nowhere"])
    with pytest.raises(reference.MissingError, match="nowhere"):
        reference.pages()


def test_every_command_and_every_key_of_a_run_stands_in_it(pages):
    commands = typer.main.get_command(app).commands
    assert commands
    assert re.findall(r"^## `weft (\S+)`", pages["command-line.md"], re.MULTILINE) == list(commands)
    tables = re.findall(r"^## `\[(\w+)\]`", pages["run-file.md"], re.MULTILINE)
    assert set(tables) == {"model", *reference.tables.TABLES, *reference.tables.OPEN_TABLES}
    keys = set(re.findall(r"^\| `(\w+)` \|", pages["run-file.md"], re.MULTILINE))
    shown = [reference.wf.models.LMConfig, reference.wf.models.Seq2SeqConfig, *reference.tables.TABLES.values()]
    assert {field.name for table in shown for field in dataclasses.fields(table)} | {"mesh", "layout", "path"} <= keys


def test_links_of_every_page_lead_to_pages_that_are_laid_out(tmp_path):
    stage.lay_out(tmp_path / "pages")
    laid_out = sorted((tmp_path / "pages").rglob("*.md"))
    assert tmp_path / "pages" / "README.md" in laid_out
    for page in laid_out:
        if page.name.endswith((".py.md", ".toml.md")):
            continue
        for _, link, _, _ in stage.LINK.findall(stage.FENCE.sub("", page.read_text())):
            assert "://" in link or (page.parent / link).exists(), f"{page}: {link}"


def test_what_a_page_loads_from_elsewhere_is_found(tmp_path):
    (tmp_path / "good.html").write_text('<a href="https://example.org">there</a><script src="own.js"></script>')
    assert stage.external_links(tmp_path) == []
    (tmp_path / "bad.html").write_text('<script src="https://example.org/x.js"></script>')
    (tmp_path / "bad.css").write_text("body { background: url(//example.org/x.png) }")
    assert stage.external_links(tmp_path) == ["bad.css", "bad.html"]


def test_pictures_of_the_gallery_are_drawn_from_what_examples_print(tmp_path):
    printed = "\n".join(f"step {step:5}  loss {2 / step:.4f}" for step in (1, 30, 60))
    gallery.draw("04_mnist", printed, tmp_path / "picture.svg")
    assert gallery.PICTURES["04_mnist"][0] in (tmp_path / "picture.svg").read_text()
    with pytest.raises(ValueError, match="printed nothing"):
        gallery.draw("04_mnist", "killed before its first step", tmp_path / "nothing.svg")
    page = (stage.ROOT / "docs" / "gallery.md").read_text()
    drawn = sorted(gallery.FOLDER.glob("*.svg"))
    assert drawn and all(f"gallery/{file.name})" in page and file.stem in gallery.PICTURES for file in drawn)
    assert all(file.stat().st_size < 40_000 for file in drawn)


def test_what_experts_send_is_drawn_under_its_own_name():
    printed = (
        "sizes\n\nbatch:x: all stay\n  forward  all_reduce  1,024 bytes\n\n"
        "batch:x,experts:x: they travel\n  forward  all_to_all  2,048 bytes\n  backward  all_reduce  4,096 bytes\n"
    )
    _, axes = gallery.plt.subplots()
    gallery.draw_experts(printed, axes)
    names = [label.get_text() for label in axes.get_xticklabels()]
    stay, travel = ([bar.get_height() for bar in bars] for bars in axes.containers)
    gallery.plt.close(axes.figure)
    assert dict(zip(names, stay, strict=True)) == {"all_reduce": 1, "all_to_all": 0}
    assert dict(zip(names, travel, strict=True)) == {"all_reduce": 4, "all_to_all": 2}
