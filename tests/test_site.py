"""The site: every public name has an entry in the reference, and every page it links to is laid out."""

import dataclasses
import functools
import inspect
import re

import pytest
import typer
import yaml

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


@pytest.mark.parametrize("room", reference.ROOMS)
def test_every_public_member_of_a_class_is_told_of_or_its_base_is_named(room):
    kinds = (property, functools.cached_property, classmethod, staticmethod)
    for name in reference.public_names(room):
        cls = vars(reference.ROOMS[room]).get(name)
        if not inspect.isclass(cls):
            continue
        entry = reference._entry(room, name)
        own = [key for key, member in vars(cls).items() if inspect.isfunction(member) or isinstance(member, kinds)]
        for member in [*own, *getattr(cls, "_fields", ())]:
            assert member.startswith("_") or re.search(rf"[`.]{member}\b", entry), f"{room}.{name}.{member}"


def test_what_a_class_shows_is_what_users_ask_it_for():
    said = dict(Program=".ledger", Plan=".tokens_per_s", Tensor=".dims", Mesh="`axes`", TrainState="`params`")
    for name, member in said.items():
        assert member in reference._entry("wf", name)
    assert ".encode(text)" in reference._entry("data", "Tokenizer") and "`vocab`" in reference._entry("data", "Dataset")
    assert "all of [`TransformerConfig`]" in reference._entry("models", "LMConfig")
    assert "raw" not in reference._entry("wf", "Tensor")  # the lowering's


def test_the_build_is_strict_and_hears_its_warnings():
    # With `--quiet` MkDocs drops warnings before `--strict` counts them.
    (line,) = [line for line in (stage.ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in line]
    assert line.endswith("mkdocs build --strict")


def test_every_page_of_the_navigation_stands_under_its_own_title():
    # Material's `navigation.indexes` makes a README among other pages the link of their heading, and hides its title.
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    config = yaml.load((stage.ROOT / "mkdocs.yml").read_text(), Loader)
    assert "navigation.indexes" not in config["theme"]["features"]

    def titles(pages):
        for page in pages:
            ((title, target),) = page.items()  # a page without a title is no mapping
            yield from titles(target) if isinstance(target, list) else [(title, target)]

    listed = dict(map(reversed, titles(config["nav"])))
    written = {f"reference/{name}" for name in reference.pages()}
    notebooks = {f"docs/notebooks/{path.name}.md" for path in (stage.ROOT / "docs/notebooks").glob("*.ipynb")}
    texts = {path.relative_to(stage.ROOT).as_posix() for path in stage.texts()}
    assert set(listed) == texts | written | notebooks


def test_every_command_and_every_key_of_a_run_stands_in_it(pages):
    commands = typer.main.get_command(app).commands
    assert commands
    assert re.findall(r"^## `weft (\S+)`", pages["command-line.md"], re.MULTILINE) == list(commands)
    tables = re.findall(r"^## `\[(\w+)\]`", pages["run-file.md"], re.MULTILINE)
    assert set(tables) == {"model", *reference.tables.TABLES, *reference.tables.OPEN_TABLES}
    keys = set(re.findall(r"^\| `(\w+)` \|", pages["run-file.md"], re.MULTILINE))
    shown = [reference.wf.models.LMConfig, reference.wf.models.Seq2SeqConfig, *reference.tables.TABLES.values()]
    assert {field.name for table in shown for field in dataclasses.fields(table)} | {"mesh", "layout", "path"} <= keys


def test_every_key_of_a_run_says_what_it_is(pages, monkeypatch):
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", pages["run-file.md"], re.MULTILINE)
    assert len(rows) > 150 and all(len(said) > 10 for _, said in rows)
    monkeypatch.setattr(reference, "attribute_docs", lambda cls: {})
    with pytest.raises(reference.MissingError, match="nothing says what the key `name`"):
        reference.run_file()


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
