"""What runs again with the same configuration is compiled once."""

import pytest

from weft.train import trainer
from weft.train.step import make_step


@pytest.fixture(autouse=True, scope="module")
def compile_each_step_once():
    made = {}

    def once(config, mesh, layout):
        key = config.to_toml()
        if key not in made:
            made[key] = make_step(config, mesh, layout)
        return made[key]

    patch = pytest.MonkeyPatch()
    patch.setattr(trainer, "make_step", once)
    yield
    patch.undo()
