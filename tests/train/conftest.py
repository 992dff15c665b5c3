"""What runs again with the same configuration is compiled once; a text, and a run of it that nothing stopped."""

import pytest

from weft.train import trainer
from weft.train.step import make_step

from .running import config_of, run, text_in

NOT_OF_A_STEP = ("name", "data", "tokenizer", "init_from", "eval", "checkpoint")


@pytest.fixture(autouse=True, scope="module")
def compile_each_step_once():
    made = {}

    def once(config, mesh, layout):
        key = repr({name: value for name, value in config.to_dict().items() if name not in NOT_OF_A_STEP})
        if key not in made:
            made[key] = make_step(config, mesh, layout)
        return made[key]

    patch = pytest.MonkeyPatch()
    patch.setattr(trainer, "make_step", once)
    yield
    patch.undo()


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
