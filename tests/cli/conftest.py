"""What tests of commands share: a language model trained for three steps, an empty working directory."""

import sys

import pytest

from tests.train.steps import compile_each_step_once  # noqa: F401  (a fixture)
from tests.train.toys import text_file, trained


@pytest.fixture(scope="session")
def lm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    return trained(folder, "lm", text_file(folder), "model.positions=learned")[0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; modules loaded from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
