"""A text, and a run of it that nothing stopped; steps are compiled once."""

import pytest

from .running import config_of, run, text_in
from .steps import compile_each_step_once  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_in(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def straight(text, tmp_path_factory):
    """The folder of a run that went to its end at once."""
    folder = tmp_path_factory.mktemp("straight")
    outcome, _ = run(config_of(text), folder)
    assert outcome.is_finished
    return folder
