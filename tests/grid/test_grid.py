"""Every parallelism, alone and mixed with others: losses, gradients and weights are those of one processor."""

import collections
from pathlib import Path

import pytest

import weft as wf
from tests.grid import compare
from tests.grid.draw import draw_rows
from tests.grid.rows import BATCH, CUBE, EXPERTS, IMAGES, KINDS, TALL, TWO, Row
from tests.grid.table import ROWS, expected_counts, show_counts

QUICK = {  # of every family of models, which together name most options and every kind of rule
    "lm, x=2,y=2,z=2, batch:x,stage:y,heads:z,d_ff:z,vocab:z,params.d_model:x stages=2 pipeline_microbatches=4 drop",
    "lm, x=2,y=4, batch:x,stream:y,queries:y drop",
    "tied lm, x=2,y=4, batch:x+y,params.d_model:x+y remat=True loss_chunks=4",
    "tied lm, x=2,y=4, batch:x+y,optimizer.vocab:y micro=2",
    "seq2seq, x=2,y=2,z=2, batch:x,length:y,heads:z,d_ff:z,vocab:z,params.d_model:x loss_chunks=4",
    "top2, x=2,y=4, batch:x+y,experts:x drop",
    "unet, x=2,y=4, height:x,width:y drop",
    "lm, x=2,y=4, batch:x,stage:y",
}


FIRST_DRAWN = "lm, x=2,y=4, length:y,d_ff:x,optimizer.vocab:x scanned=False loss_chunks=2 micro=2"


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=() if str(row) in QUICK else pytest.mark.slow) for row in ROWS]
)
def test_a_layout_changes_neither_loss_nor_gradients_nor_weights_or_is_refused(row):
    assert compare.verdict(row).wrong == ""


# The table itself.


def test_the_grid_has_every_kind_on_meshes_of_two_and_three_axes_and_a_third_is_drawn():
    assert len(ROWS) >= 120
    assert len({str(row) for row in ROWS}) == len(ROWS)
    assert 3 * sum(row.is_drawn for row in ROWS) >= len(ROWS)
    meshes = collections.defaultdict(set)
    for row in ROWS:
        if not row.refused:
            meshes[row.kind].add(row.mesh.count("="))
    assert all(meshes[kind] == {2, 3} for kind in KINDS)
    assert {str(row) for row in ROWS} >= QUICK
    quick = {row.kind for row in ROWS if str(row) in QUICK}
    assert quick > {"lm", "seq2seq"}
    assert quick & set(EXPERTS) and quick & set(IMAGES)


def test_the_table_in_the_docs_counts_the_rows():
    text = (Path(__file__).parents[2] / "docs" / "parallelisms.md").read_text(encoding="utf-8")
    assert f"<!-- grid -->\n\n{show_counts(expected_counts())}\n\n<!-- end of grid -->" in text


def test_the_same_layouts_are_drawn_each_time():
    for mesh in (TWO, TALL, CUBE):
        drawn = draw_rows("lm", mesh, 3)
        assert draw_rows("lm", mesh, 4)[:3] == drawn  # who wants more gets the same ones first
        assert set(ROWS) > set(drawn)
    assert str(draw_rows("lm", TWO, 1)[0]) == FIRST_DRAWN


def test_rows_that_are_computed_otherwise_share_one_processors_answer():
    said = Row("lm", TWO, "batch:x", (("scanned", False), ("remat", True), ("micro", 2)))
    assert said.alone == Row("lm", "", "")
    dropped = Row("lm", TWO, "batch:x", (("micro", 2), ("drop", True)))
    assert dropped.alone.options == (("drop", True), ("micro", 2))
    assert said.config.batch == BATCH


@pytest.mark.parametrize("part", ["losses", "gradients", "weights"])
def test_a_row_that_differs_in_one_number_is_wrong(monkeypatch, part):
    def answer(row):
        off = 1 + 2 * compare.TOLERANCE if row.mesh else 1.0
        factor = {name: off if name == part else 1.0 for name in ("losses", "gradients", "weights")}
        return compare.Answer(
            [1.0, 2.0 * factor["losses"]],
            {"w": [0.5, 3.0 * factor["gradients"]]},
            {"w": [0.5, 3.0 * factor["weights"]]},
        )

    monkeypatch.setattr(compare, "answer_of", answer)
    monkeypatch.setattr(compare, "answer_alone", answer)
    assert compare.verdict(Row("lm", TWO, "batch:x")).wrong.startswith("1 of 4 differ")


def test_a_refusal_is_right_only_where_it_is_expected_and_says_what_was_expected(monkeypatch):
    def refuse(row):
        raise wf.LayoutError("dim `heads` (size 4) does not divide", fix="give more heads")

    monkeypatch.setattr(compare, "answer_of", refuse)
    assert compare.verdict(Row("lm", TWO, "heads:x", refused="does not divide")) == compare.Verdict("refused")
    assert compare.verdict(Row("lm", TWO, "heads:x", refused="are both split")).wrong
    assert compare.verdict(Row("lm", TWO, "heads:x")).wrong
