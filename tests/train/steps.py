"""A training step is compiled once for all tests of a process that train with the same configuration."""

import pytest

from weft.train import trainer
from weft.train.step import make_step

NOT_OF_A_STEP = ("name", "data", "tokenizer", "init_from", "hardware", "eval", "checkpoint")
_made = {}


def _make_once(config, mesh, layout):
    key = repr({name: value for name, value in config.to_dict().items() if name not in NOT_OF_A_STEP})
    if key not in _made:
        _made[key] = make_step(config, mesh, layout)
    return _made[key]


@pytest.fixture(autouse=True, scope="module")
def compile_each_step_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "make_step", _make_once)
        yield
