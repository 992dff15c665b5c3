"""An LSTM of one's own in the trainer, by `[model] call` and `[data] call` of 19_lstm.toml.

Run it: `python examples/19_lstm.py`, or `weft train examples/19_lstm.toml`. It learns whether a row's first letter
comes again at its end: the same under two layouts as on one processor. A run that is cut off goes on, bit for bit.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

import weft as wf
from weft import nn, train
from weft.train.interface import NullListener
from weft.train.metrics import read


class Remember(eqx.Module):
    letters: nn.Embedding
    lstm: nn.LSTM
    answer: nn.Linear

    def __init__(self, letters=3, hidden=32):
        letter, width, state, answers = wf.dims(letter=letters, width=8, hidden=hidden, answers=2)
        self.letters, self.lstm = nn.Embedding(letter, width, stddev=0.5), nn.LSTM(width, state)
        self.answer = nn.Linear(state, answers)

    def loss(self, batch, key):
        _, (last, _) = self.lstm(self.letters(batch["row"]))
        logits = self.answer(last)
        is_right = wf.cast(wf.argmax(logits, over="answers") == batch["again"], "float32")
        nll, _ = nn.cross_entropy(logits, batch["again"], over="answers")
        return wf.mean(nll, over="batch"), {"accuracy": wf.mean(is_right, over="batch")}


class Rows:
    def __init__(self, part, letters=3):
        self.rows = np.random.default_rng(len(part)).integers(0, letters, [512 if part == "train" else 90, 6])
        self.dims = {"row": "length"}  # what follows `batch`

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"row": self.rows[i], "again": int(self.rows[i, 0] == self.rows[i, -1])}


class PowerCut(NullListener):
    def step(self, at, steps):
        if at == 70:
            raise OSError("no power")


def main(steps=100):
    file, wanted, folders = Path(__file__).with_suffix(".toml"), None, Path(tempfile.mkdtemp())
    for mesh, layout in [("x=4", "batch:x"), ("x=2,y=2", "batch:x,hidden:y"), ("", "")]:
        config = train.read(file, [f"mesh={mesh!r}", f"layout={layout!r}", f"train.steps={steps}"])
        train.Trainer(config, folder := folders / (mesh or "one")).run()
        *rows, judged = read(folder)
        losses = [row["loss"] for row in rows]
        learned = f"{losses[0]:.4f} to {losses[-1]:.4f}, accuracy on new rows {judged['eval']['accuracy']:.1%}"
        print(f"{layout or 'one processor':17} loss {learned}")
        if not np.allclose(losses, wanted := wanted or losses, rtol=1e-3):
            sys.exit(f"FAILED: the loss differs under {layout}")
    with contextlib.suppress(OSError):
        train.Trainer(config, folders / "cut", PowerCut()).run()
    print("cut off at step 70; the same goes on from step 50")
    train.Trainer(config, folders / "cut").run()
    one, again = (jax.tree.leaves(train.Run(folders / name).load()) for name in ("one", "cut"))
    print("the same bits at the end:", all(map(np.array_equal, one, again)))


if __name__ == "__main__":
    main()
