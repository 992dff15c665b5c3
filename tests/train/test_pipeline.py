"""A run whose model is cut into stages, from its file: the losses, and the weights, of the uncut one."""

import jax
import numpy as np
import pytest

from weft.train import Run
from weft.train.config import ConfigError
from weft.train.start import first_weights
from weft.train.trainer import Trainer

from .running import MODEL, Heard, config_of, text_in

IN_STAGES = {"model": {**MODEL, "layers": 3, "stages": 2}, "mesh": "p=2,x=2", "layout": "stage:p,batch:x"}


def run(folder, text, **changes):
    heard = Heard()
    Trainer(config_of(text, **changes), folder, heard).run()
    return [row["loss"] for row in heard.rows if "loss" in row], Run(folder).load()


@pytest.mark.slow
def test_a_run_in_stages_learns_what_the_uncut_one_does(tmp_path):
    text = text_in(tmp_path)
    uncut, one = run(tmp_path / "uncut", text, model={**MODEL, "layers": 3})
    losses, model = run(tmp_path / "cut", text, **IN_STAGES)
    np.testing.assert_allclose(losses, uncut, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(one), strict=True):
        found, wanted = np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)
        np.testing.assert_allclose(found[: wanted.size], wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_run_starts_with_the_weights_of_one_in_other_stages(tmp_path):
    text = text_in(tmp_path)
    run(tmp_path / "uncut", text, model={**MODEL, "layers": 3}, train={"steps": 1})
    one = jax.tree.leaves(Run(tmp_path / "uncut").load())
    cut = config_of(text, **IN_STAGES, init_from=str(tmp_path / "uncut"))
    first = jax.tree.leaves(first_weights(cut, *cut.runs_on))
    for a, b in zip(first, one, strict=True):
        found, wanted = np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)
        assert np.array_equal(found[: wanted.size], wanted) and not found[wanted.size :].any()
    run(tmp_path / "cut", text, **IN_STAGES, init_from=str(tmp_path / "uncut"), train={"steps": 1})
    back = config_of(text, model={**MODEL, "layers": 3}, init_from=str(tmp_path / "cut"))
    shapes = [x.shape for x in jax.tree.leaves(first_weights(back, *back.runs_on))]
    assert shapes == [x.shape for x in one]


def test_microbatches_that_do_not_divide_are_told_before_anything_runs(tmp_path):
    text = text_in(tmp_path)
    cut = {**IN_STAGES, "model": {**IN_STAGES["model"], "pipeline_microbatches": 3}}
    with pytest.raises(ConfigError, match="3 microbatches flow through the pipeline"):
        config_of(text, **cut)
    with pytest.raises(ConfigError, match="1 x 4 = 4 microbatches, and on the mesh a batch is 4 parts of 2"):
        config_of(
            text,
            **{
                **IN_STAGES,
                "model": {**IN_STAGES["model"], "pipeline_microbatches": 4},
                "mesh": "p=2,x=4",
            },
        )


def test_the_microbatches_of_training_and_of_the_pipeline_multiply(tmp_path):
    text, cut = text_in(tmp_path), {**IN_STAGES, "mesh": "x=4", "layout": "batch:x"}
    flowing = {**cut, "model": {**cut["model"], "pipeline_microbatches": 4}}
    with pytest.raises(ConfigError) as caught:
        config_of(text, **flowing, train={"batch": 16, "microbatches": 2})
    assert "2 x 4 = 8 microbatches, and on the mesh a batch is 4 parts of 4" in caught.value.fact
    assert caught.value.fix == "make the product divide 4, or the batch a multiple of 32 (nearest: 32)"
    config_of(text, **cut, train={"batch": 16, "microbatches": 2})
    config_of(text, **flowing, train={"batch": 32, "microbatches": 2})
