"""A row of the grid run and compared with one processor: two losses, all gradients, the weights after two steps.

The steps are AdamW's. After the first of them its `mu` is the gradient times 1 - b1; its eps is large beside rounding,
so that a gradient of nothing but rounding moves no weight. All is float32, and everything is within `TOLERANCE` of the
largest number of its array.
"""

import functools
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

import weft as wf
from tests.grid.rows import BATCH, IMAGES, Row
from weft import models

TOLERANCE = 1e-5
ADAMW = optax.adamw(1e-3, eps=1e-3, weight_decay=0.1)


@dataclass(frozen=True)
class Answer:
    """What a row computes."""

    losses: list[float]
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


def answer_of(row: Row) -> Answer:
    """Two steps of a row, on its mesh or on one processor."""
    where = dict(mesh=row.mesh, layout=row.layout) if row.mesh else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)  # an axis that nothing lies on is no fault here
        step = wf.train_step(functools.partial(_loss, row), ADAMW, **where)
        state = step.init(first_weights(row.config))
        losses, states = [], []
        for turn in range(2):
            state, metrics = step(state, batch_of(row), jax.random.fold_in(jax.random.key(7), turn))
            losses.append(float(metrics["loss"]))
            states.append(wf.get(state))
    paths = wf.nn.paths(state.params)
    gradients = jax.tree.leaves(states[0].optimizer[0].mu)
    weights = jax.tree.leaves(states[1].params)
    return Answer(losses, dict(zip(paths, gradients, strict=True)), dict(zip(paths, weights, strict=True)))


def first_weights(config: Any) -> Any:
    """A model with weights that follow from their paths; those of `models.init` take as long to compile as a step."""
    model = models.shapes(config)
    shapes, structure = jax.tree.flatten(model)
    arrays = []
    for path, shape in zip(wf.nn.paths(model), shapes, strict=True):
        values = np.random.default_rng(zlib.crc32(path.encode())).normal(size=shape.shape) * 0.1
        arrays.append((values + path.endswith("scale")).astype(shape.dtype))
    return jax.tree.unflatten(structure, arrays)


@functools.cache
def answer_alone(row: Row) -> Answer:
    """The answer of one processor, computed once for all rows that share it."""
    return answer_of(row)


def differences(row: Row) -> Iterator[tuple[str, float]]:
    """Each number or array of a row's answer, and how far it is from one processor's, relative to its largest."""
    found, wanted = answer_of(row), answer_alone(row.alone)
    for turn, pair in enumerate(zip(found.losses, wanted.losses, strict=True)):
        yield f"loss {turn + 1}", _apart(*pair)
    for what, arrays, others in (
        ("gradient of", found.gradients, wanted.gradients),
        ("weights of", found.weights, wanted.weights),
    ):
        assert arrays.keys() == others.keys()
        for path in arrays:
            yield f"{what} {path}", _apart(arrays[path], others[path])


@dataclass(frozen=True)
class Verdict:
    """What came of a row: `equal` or `refused`, how far off it was, and what is wrong, if anything."""

    word: str
    apart: float = 0.0
    wrong: str = ""


def verdict(row: Row) -> Verdict:
    """Runs a row and judges it."""
    try:
        found = dict(differences(row))
    except wf.WeftError as error:
        if row.refused and row.refused in error.fact:
            return Verdict("refused")
        return Verdict("refused", wrong=f"refused: {error.fact}")
    if row.refused:
        return Verdict("equal", wrong=f"not refused, though {row.refused!r}")
    far = [f"{name} by {off:.1e}" for name, off in found.items() if not off <= TOLERANCE]
    word, wrong = ("different", f"{len(far)} of {len(found)} differ: {', '.join(far[:4])}") if far else ("equal", "")
    return Verdict(word, max(found.values()), wrong)


def _apart(found: Any, wanted: Any) -> float:
    found, wanted = (np.asarray(x, "float64").ravel() for x in (found, wanted))  # stages of layers are layers in order
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def _loss(row: Row, model: Any, batch: Any, key: Any) -> Any:
    key = key if row.is_dropping else None
    if row.microbatches == 1:
        return model.loss(batch, key)

    def part(model: Any, rows: Any) -> Any:
        value, metrics = model.loss_and_metrics(rows, key)
        return value * metrics["tokens"], metrics["tokens"]

    return wf.accumulate(part, model, batch, over="batch", count=row.microbatches)


def batch_of(row: Row) -> dict[str, wf.Tensor]:
    """A batch of the row's kind: images, or ids and for some kinds segments and weights."""
    random, shape = np.random.default_rng(0), (BATCH, 16)
    if row.kind in IMAGES:
        shapes = row.config.batch_shapes()
        images = random.normal(size=shapes["images"].dims.sizes).astype("float32")
        labels = random.integers(0, row.config.classes, shapes["labels"].dims.sizes)
        return {"images": wf.tensor(images, shapes["images"].dims), "labels": wf.tensor(labels, shapes["labels"].dims)}
    ids = {name: random.integers(1, row.config.vocab, shape) for name in ("inputs", "targets")}
    weights = random.uniform(0, 1, shape).astype("float32")
    segments = np.sort(random.integers(0, 3, shape), axis=-1)
    if row.kind in ("seq2seq", "t5"):
        ids["inputs"][:, 12:] = 0  # padding
        batch = ids | {"weights": weights}
    elif row.kind == "modern lm":
        batch = {"tokens": ids["targets"], "weights": weights, "segments": segments}
    else:
        batch = {"tokens": ids["targets"]}
    return {name: wf.tensor(array, "batch length") for name, array in batch.items()}
