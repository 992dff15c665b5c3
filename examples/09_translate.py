"""An encoder-decoder learns to translate numbers in words into digits, and beam search translates some it never saw.

Run it: `python examples/09_translate.py`. Try `--mesh all=8 --layout batch:all`, or `--steps 60` for a poor translator.
"""

import argparse

import jax
import numpy as np
import optax

import weft as wf
from weft import decode, models

UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORDS = ["<nothing>", "<end>", *"0123456789", *UNITS, *TENS, "hundred", "thousand"]  # a token each
END, MOST = WORDS.index("<end>"), 10_000


def in_words(number):
    """How a number is said: 4012 is four thousand twelve."""
    for size, name in (1000, "thousand"), (100, "hundred"):
        if number >= size:
            rest = in_words(number % size) if number % size else []
            return [*in_words(number // size), name, *rest]
    return [UNITS[number]] if number < 20 else [TENS[number // 10 - 2], *([UNITS[number % 10]] if number % 10 else [])]


def ids(words, length=None):
    """Tokens of some words with an end, filled up to a length if one is given."""
    found = [WORDS.index(word) for word in words] + [END]
    return found if length is None else found + [0] * (length - len(found))


def batch_of(numbers):
    inputs = np.array([ids(in_words(number), 8) for number in numbers])
    targets = np.array([ids(str(number), 8) for number in numbers])
    data = {"inputs": inputs, "targets": targets, "weights": targets > 0}  # what fills up does not count
    return {name: wf.tensor(np.int32(array), "batch length") for name, array in data.items()}


def main(mesh, layout, steps):
    random, mesh = np.random.default_rng(0), wf.Mesh(mesh)
    numbers = random.permutation(MOST)
    held_out, seen = numbers[:512], numbers[512:]
    config = models.preset("tiny-mt", layers=2, d_model=64, d_ff=256, vocab=len(WORDS), dropout=0.0)
    model = models.init(config, jax.random.key(0), mesh, layout)
    print(f"{config.param_count:,} parameters on {mesh.size} processors ({mesh}) under {layout}")
    print(f"{len(seen)} numbers to learn from, {len(held_out)} held out, such as {' '.join(in_words(held_out[0]))}")

    speed = optax.warmup_cosine_decay_schedule(0, 5e-3, steps // 10, steps)
    step = wf.train_step(lambda model, batch, key: model.loss(batch), optax.adam(speed), mesh=mesh, layout=layout)
    state = step.init(model)
    for i in range(1, steps + 1):
        state, metrics = step(state, batch_of(random.choice(seen, 128)))
        if i == 1 or i % max(1, steps // 5) == 0:
            print(f"step {i:4}  loss {metrics['loss']:.4f}", flush=True)

    found = decode.beam_search(state.params, [ids(in_words(n)) for n in held_out], beams=4, end=END, max_new_tokens=6)
    texts = [["".join(WORDS[id] for id in best if id != END) for best in row] for row in found.sequences]
    for number, row, scores in list(zip(held_out, texts, found.scores, strict=True))[:3]:
        print(f"\n{' '.join(in_words(number))}: log-probabilities over the penalty of length")
        print("\n".join(f"  {score:8.3f}  {text}" for text, score in zip(row, scores, strict=True)))
    right = np.mean([row[0] == str(number) for number, row in zip(held_out, texts, strict=True)])
    print(f"\nexactly right: {right:.1%} of {len(held_out)} numbers it never saw")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", default="rows=4, cols=2", help="axes and sizes (default: %(default)s)")
    parser.add_argument("--layout", default="batch:rows, heads:cols, d_ff:cols, vocab:cols", help="rules, dim:axis")
    parser.add_argument("--steps", type=int, default=250, help="steps of training (default: %(default)s)")
    main(**vars(parser.parse_args()))
