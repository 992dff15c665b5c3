"""Learning to answer (SFT): packed chats, the loss on answers alone, LoRA beside frozen weights."""

import json

import jax
import numpy as np
import pytest

from weft import models
from weft.nn.freezing import tensors_by_path
from weft.train import Run
from weft.train.datasets import open_data
from weft.train.step import first_model

from .running import MODEL, config_of, losses, run

ANSWERS = {"warp": "weft", "loom": "cloth", "reed": "heddle", "yarn": "thread"}
LORA = {"rank": 4, "where": ["*.attention.q", "*.attention.v", "*.feed_forward.w_in"]}


def chat_config(folder, **changes):
    """A run that learns to answer a word by a word."""
    path = folder / "chats.jsonl"
    lines = [[{"role": "user", "content": ask}, {"role": "assistant", "content": say}] for ask, say in ANSWERS.items()]
    path.write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines * 16))
    model = dict(vocab=259, positions="rotary", layers=1)
    values = {
        "model": MODEL | model,
        "tokenizer": {"kind": "bytes", "specials": True},
        "data": {"path": str(path), "format": "chat", "template": "chatml", "held_out": 8},
        "train": {"steps": 30, "batch": 8, "length": 128},
        "schedule": {"rate": 5e-2},
        "eval": {"every": 30, "batches": 2},
        "checkpoint": {"every": 0},
    }
    return config_of(
        path, mesh="", layout="", **{key: values.get(key, {}) | changes.get(key, {}) for key in values | changes}
    )


@pytest.mark.slow
def test_adapters_learn_to_answer_and_nothing_else_changes(tmp_path):
    config = chat_config(tmp_path, lora=LORA)
    outcome, heard = run(config, tmp_path / "run")
    assert outcome.is_finished
    found, evaluation = losses(tmp_path / "run"), next(row["eval"] for row in heard.rows if "eval" in row)
    assert found[30] < 0.75 * found[1] and evaluation["loss"] < 0.75 * found[1]
    assert evaluation["tokens"] == 2 * sum(len(f"{answer}<|im_end|>\n") for answer in ANSWERS.values())
    before, after = tensors_by_path(first_model(config)), tensors_by_path(Run(tmp_path / "run").load())
    for path, x in before.items():
        assert np.array_equal(x, after[path]) == (not path.endswith((".down", ".up"))), path
    assert (tmp_path / "run/tokenizer_config.json").exists()  # how chats are written, for whoever asks it


def test_the_loss_is_that_of_the_answers_under_a_plain_model(tmp_path):
    """Packed rows: the mean over all answers' tokens, each conversation alone."""
    config = chat_config(tmp_path)
    opened = open_data(config, tmp_path / "run", None)
    batch = opened.training.take(np.arange(len(opened.training)))
    model = models.init(config.sized_model, jax.random.key(0))
    wanted, count = 0.0, 0
    for row in range(len(batch["inputs"])):
        for segment in range(1, batch["segments"][row].max() + 1):
            here = batch["segments"][row] == segment
            alone = np.zeros((1, 128), np.int32)
            alone[0, : here.sum()] = batch["inputs"][row][here]
            table = jax.nn.log_softmax(np.asarray(model.logits(alone))[0], axis=-1)
            learned = np.flatnonzero(batch["weights"][row][here])
            wanted -= np.asarray(table)[learned, batch["targets"][row][here][learned]].sum()
            count += len(learned)
    np.testing.assert_allclose(float(model.loss(batch)), wanted / count, rtol=1e-5)
