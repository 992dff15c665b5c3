"""Perplexity by sliding window: how windows slide, fitted to a run and its mesh.

Imports the data and the configuration.
"""

import dataclasses
import math

from ..data import Sliding
from ..decode.prompts import round_up, round_up_batch, ways_of
from ..layout import Layout
from ..mesh import Mesh
from ..models import LMConfig, TransformerConfig
from .config import RunConfig
from .evaluation import EvaluationError

MOST_TOKENS = 1 << 16  # in a batch, unless said: weights that were imported name a batch that nobody tried


def slide(config: RunConfig, window: int, stride: int | None, mesh: Mesh, layout: Layout) -> Sliding:
    """Windows of so many tokens, half of one apart unless said, that fit the mesh."""
    model = config.model
    if not isinstance(model, LMConfig) or model.prefix:
        what = "a prefix language model" if isinstance(model, LMConfig) else "no language model"
        raise EvaluationError(
            f"windows slide over texts, and `{model.name}` is {what}", fix="leave out --window and --stride"
        )
    most = _config_of(config).max_positions
    if model.positions == "learned" and window > most:
        raise EvaluationError(
            f"the window has {window} tokens, and the model has learned {most} positions",
            fix=f"say `--window {most}` or less",
        )
    multiple = math.lcm(model.loss_chunks, *(ways_of(layout, mesh, name) for name in ("length", "stream")))
    length = round_up(max(window, 1), multiple)
    if model.positions == "learned" and length > most:
        raise EvaluationError(
            f"a window of {window} tokens does not divide by {multiple}, as the loss or the layout asks",
            fix=f"say a multiple: `--window {max(most // multiple, 1) * multiple}`",
        )
    return Sliding(window, max(window // 2, 1) if stride is None else stride, length)


def size_of_windows(
    config: RunConfig, sliding: Sliding, batch: int | None, mesh: Mesh, layout: Layout
) -> TransformerConfig:
    """The sizes for so many windows at once; if not said, for a training batch."""
    rows = batch or max(min(config.batch * config.length, MOST_TOKENS) // sliding.length, 1)
    sized = _config_of(config)
    return dataclasses.replace(sized, batch=round_up_batch(rows, mesh, layout), max_length=sized.max_positions)


def _config_of(config: RunConfig) -> TransformerConfig:
    """The run's model, which is one of tokens."""
    model = config.sized_model
    assert isinstance(model, TransformerConfig)
    return model
