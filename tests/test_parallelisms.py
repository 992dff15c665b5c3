"""docs/parallelisms.md: its formulas hold for other sizes too, and its pictures show what its lines place."""

import contextlib
import io
import re

import numpy as np
import pytest

import weft as wf
from tests.pictures import FOLDER, TENSORS, TEXT, draw_all, facts_in, sections
from tests.plan.browser import why_not
from tests.test_docs import blocks_of
from weft.ops.dispatch import dispatch

PAGE = TEXT.read_text(encoding="utf-8")
# Sizes that share no factor by which one letter could stand for another.
OTHER = {
    "SIZES": dict(layers=4, d_model=48, heads=8, d_kv=10, d_ff=112, vocab=704, batch=24, length=32),
    "IMAGES": dict(levels=3, channels=16, height=64, width=48, classes=5, batch=3),
}


def run_page(change):
    """The text's programs, each changed first; `show` itself holds each formula to the ledger."""
    namespace = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in blocks_of(TEXT):
            if block.language == "python":
                exec(compile("\n" * block.line + change(block.text), TEXT.name, "exec"), namespace)
    return printed.getvalue()


@pytest.mark.slow
def test_every_formula_holds_for_a_model_of_other_sizes():
    printed = run_page(
        lambda text: re.sub(r"^(SIZES|IMAGES) = .*$", lambda m: f"{m[1]} = {OTHER[m[1]]}", text, flags=re.M)
    )
    held, shown = (
        re.findall(r"^  (\w+ over .*) B in .* calls = (.*)$", text, re.MULTILINE) for text in (printed, PAGE)
    )
    assert [formula for _, formula in held] == [formula for _, formula in shown]
    assert all(one != other for (one, _), (other, _) in zip(held, shown, strict=True))  # the sizes are others


def test_a_formula_that_does_not_hold_is_an_error():
    first = next(block.text for block in blocks_of(TEXT) if block.text.startswith("show("))
    with pytest.raises(AssertionError):
        run_page(lambda text: text.replace("= 4*P", "= 8*P") if text == first else text)


@pytest.mark.parametrize("section", sections(PAGE), ids=lambda section: section.picture)
def test_a_picture_shows_the_slices_that_its_line_gives(section):
    picture = (FOLDER / f"{section.picture}.svg").read_text(encoding="utf-8")
    assert facts_in(picture) == section.facts(), "fix: python -m tests.pictures"


def test_every_section_has_a_picture_and_says_when_to_use_it():
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    for part in filter(lambda part: re.search(r"^(\w+ = )?show\(", part, re.M), parts):
        title, *lines = part.splitlines()
        assert "pictures/parallelisms/" in part, title
        assert "Use it" in " ".join(lines), title
    assert (
        {section.picture for section in sections(PAGE)} == set(TENSORS) == {file.stem for file in FOLDER.glob("*.svg")}
    )


@pytest.mark.slow
def test_the_pictures_are_what_the_page_draws(tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    fix = "fix: python -m tests.pictures"
    assert draw_all(tmp_path) == {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.svg")}, fix


def test_experts_over_the_outer_of_two_axes_are_given_the_rows_of_their_own_place_on_the_inner():
    x = wf.tensor(np.arange(8).repeat(8).reshape(8, 8), [wf.Dim("batch", 8), wf.Dim("dispatch", 8, "experts")])
    names = {"batch": wf.Dim("expert_batch", 8, "batch"), "dispatch": wf.Dim("experts", 8)}
    z = wf.spmd(lambda x: dispatch(x, **names), mesh="x=4,y=2", layout="batch:x+y,experts:x")(x)
    given = {tuple(np.asarray(shard.data)[..., 0].ravel()) for shard in z.array.addressable_shards}
    assert given == {(0, 2, 4, 6), (1, 3, 5, 7)}
