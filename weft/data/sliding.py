"""Sliding windows: a stream of tokens, each predicted once from much before it.

Imports nothing of other rooms. Windows begin `stride` tokens apart; of each but the first only the last `stride`
targets count, those that no window before it had. So a token is predicted from at least `window - stride` others.
"""

from dataclasses import dataclass

import numpy as np

from .errors import DataError
from .tokens import Tokens


@dataclass(frozen=True)
class Sliding:
    """How windows slide: how many tokens one has, and how many the next begins later.

    Rows have `length` places, where those of a window do not divide over a mesh.
    """

    window: int
    stride: int
    length: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise DataError(f"the window has {self.window} tokens", fix="say a window of 1 or more")
        if not 1 <= self.stride <= self.window:
            fix = f"say a stride of 1 to {self.window}; a smaller one lets tokens see more, and takes longer"
            raise DataError(f"the stride is {self.stride}, and the window has {self.window} tokens", fix=fix)


class SlidingWindows:
    """Rows of windows that slide over documents joined to one stream.

    Every token but the first has weight 1 in one row. `ending` is what closes documents: the last one's is left out, as
    a text that is judged need not end there.
    """

    bucket_of = None

    def __init__(self, tokens: Tokens, sliding: Sliding, ending: int | None = None):
        ids = tokens.ids
        self._ids = ids[:-1] if ending is not None and len(ids) and ids[-1] == ending else ids
        self._sliding = sliding
        self.vocab: int | None = tokens.vocab
        if len(self._ids) < 2:
            raise DataError("there is one token, and the first is predicted from nothing", fix="give a longer text")

    def __len__(self) -> int:
        return 1 + max(0, -(-(self.tokens - self._sliding.window) // self._sliding.stride))

    @property
    def tokens(self) -> int:
        """How many tokens are predicted."""
        return len(self._ids) - 1

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        """Rows of `inputs`, the `targets` that follow each, and `weights`."""
        window, stride = self._sliding.window, self._sliding.stride
        inputs = np.zeros((len(numbers), self._sliding.length), np.int32)
        targets, weights = np.zeros_like(inputs), np.zeros(inputs.shape, np.float32)
        for row, number in enumerate(numbers):
            if number < 0:
                continue
            begin = int(number) * stride
            ids = self._ids[begin : begin + window + 1]
            size = len(ids) - 1
            inputs[row, :size], targets[row, :size] = ids[:-1], ids[1:]
            weights[row, (window - stride if number else 0) : size] = 1
        return {"inputs": inputs, "targets": targets, "weights": weights}
