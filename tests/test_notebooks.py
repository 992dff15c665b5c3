"""The notebooks run, and what is kept in them is what they show; what runs them shows what a notebook would."""

import json

import pytest

from tests.notebooks import NOTEBOOKS, ROOT, executed, run, text_of


def cell(source):
    return {"cell_type": "code", "source": source.splitlines(keepends=True), "outputs": []}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_kept_in_it(path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    again = executed(path)
    for old, new in zip(kept["cells"], again["cells"], strict=True):
        assert old.get("outputs") == new.get("outputs"), "".join(old["source"])


def test_there_are_notebooks_of_a_form_that_jupyter_reads_with_outputs_and_a_link_to_each():
    links = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        assert text == text_of(notebook) and (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        assert f"(notebooks/{path.name})" in links
        assert any(cell.get("outputs") for cell in notebook["cells"])
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_a_cell_shows_what_it_prints_and_its_last_value():
    ran = run(
        {
            "cells": [
                cell("x = 2\nprint(x)\nx + 1"),
                {"cell_type": "markdown", "source": []},
                cell("import weft as wf\nwf.Mesh('rows=2')"),
            ]
        }
    )
    first, _, second = ran["cells"]
    printed, shown = first["outputs"]
    assert printed["text"] == ["2\n"] and shown["data"] == {"text/plain": ["3"]}
    (mesh,) = second["outputs"]
    assert mesh["execution_count"] == 2 and mesh["data"]["text/plain"] == ["Mesh('rows=2')"]
    assert "Mesh" in mesh["data"]["text/html"][0]


def test_a_cell_that_fails_fails_the_notebook():
    with pytest.raises(ZeroDivisionError):
        run({"cells": [cell("1 / 0")]})
