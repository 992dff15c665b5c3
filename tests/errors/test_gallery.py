"""docs/errors.md shows the errors of today, and every mended program in it runs."""

import functools
import re

import pytest

import weft as wf

from . import gallery


@pytest.fixture(scope="module")
def names():
    return gallery.prelude()


def test_the_page_shows_what_every_program_prints_today():
    message = "write it anew: `python -m tests.errors.gallery`"
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(), message


def test_there_are_more_than_sixty_errors_each_a_fact_of_its_own_with_a_fix():
    shown = [block for block in gallery.PAGE.read_text(encoding="utf-8").split("```") if block.startswith("text\n")]
    facts = [block.splitlines()[1] for block in shown]
    assert len(facts) == len(gallery.CASES) > 60
    assert len(set(facts)) == len(facts)
    assert all("  fix: " in block for block in shown)


def test_every_error_is_named_as_it_can_be_caught():
    names = set(re.findall(r"^```text\n([\w.]+): ", gallery.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"weft.DimError", "weft.data.DataError", "weft.train.ConfigError"} <= names
    for name in names:
        _, *path = name.split(".")
        kind = functools.reduce(getattr, path, wf)
        assert issubclass(kind, (wf.WeftError, wf.WeftWarning))


@pytest.mark.slow
@pytest.mark.parametrize("case", gallery.CASES, ids=lambda case: case.title)
def test_a_mended_program_runs(case, names):
    gallery.run(case.mended, names)
