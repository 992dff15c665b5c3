"""What runs again with the same configuration is compiled once."""

import pytest

from weft.train import trainer
from weft.train.step import make_step

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
