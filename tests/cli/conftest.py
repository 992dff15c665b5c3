"""A language model that was trained for three steps, for all commands that use a run."""

import pytest

from tests.train.toys import text_file, trained


@pytest.fixture(scope="session")
def lm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    return trained(folder, "lm", text_file(folder), "model.positions=learned")[0]
