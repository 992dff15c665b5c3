"""Sampling: temperature, top-k, top-p (nucleus) and min-p on logits.

Imports the language. A vocab that is split stays so: the largest logits are found where they are. What is drawn
depends on the key alone, not on the layout.
"""

import math
from dataclasses import dataclass
from typing import Any

from .. import ops as wf
from ..checks import is_real
from ..dims import UNSHOWN, Dim
from ..errors import TensorError
from ..nn.arguments import check_count
from ..tensor import Tensor


@dataclass(frozen=True)
class Sampler:
    """Takes the likeliest token, or draws one of `top_k`, of `top_p`, above `min_p`."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    """The least chance of a token, as a share of the largest."""

    def __post_init__(self) -> None:
        if not is_real(self.temperature) or self.temperature < 0:
            raise TensorError(f"`temperature` is {self.temperature!r}", fix="give 0 for the likeliest, or e.g. 0.8")
        if self.top_k is not None:
            check_count(self.top_k, "top_k")
        if self.top_p is not None and not (is_real(self.top_p) and 0 < self.top_p <= 1):
            raise TensorError(f"`top_p` is {self.top_p!r}", fix="give a share above 0 and at most 1, e.g. 0.9")
        if self.min_p is not None and not (is_real(self.min_p) and 0 <= self.min_p <= 1):
            raise TensorError(f"`min_p` is {self.min_p!r}", fix="give a share of the largest chance, e.g. 0.05")
        if not self.temperature and not self.top_k is self.top_p is self.min_p is None:
            raise TensorError(
                "`top_k`, `top_p` and `min_p` say what to draw from, and at temperature 0 nothing is drawn",
                fix="give a temperature, e.g. `temperature=1.0`",
            )

    @property
    def is_greedy(self) -> bool:
        return not self.temperature

    def __call__(self, logits: Tensor, key: Any) -> Tensor:
        """The token chosen from f32[.. vocab]: i32[..]."""
        if self.is_greedy:
            return wf.argmax(logits, over="vocab")
        return self._draw_best(logits / self.temperature, key)

    def draw(self, logits: Tensor, key: Any) -> Tensor:
        """The token chosen, where it is drawn by the chances of `filter`."""
        if self.is_greedy:
            return wf.argmax(logits, over="vocab")
        return wf.random.categorical(key, self.filter(logits), over="vocab")

    def filter(self, logits: Tensor) -> Tensor:
        """The logits that tokens are drawn by: very small for those that cannot be."""
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.dim("vocab").count:
            best = Dim(f"{UNSHOWN}best", self.top_k)
            largest, _ = wf.top_k(logits, over="vocab", k=best)
            logits = wf.where(logits >= wf.min(largest, over=best), logits, -1e9)
        return self._likely(self._nucleus(logits, "vocab"), "vocab")

    def _draw_best(self, logits: Tensor, key: Any) -> Tensor:
        vocab = logits.dim("vocab")
        if self.top_k is None or self.top_k >= vocab.count:
            return wf.random.categorical(key, self._likely(self._nucleus(logits, "vocab"), "vocab"), over="vocab")
        best = Dim(f"{UNSHOWN}best", self.top_k)
        logits, ids = wf.top_k(logits, over="vocab", k=best)
        logits = self._likely(self._nucleus(logits, best.name), best.name)
        chosen = wf.random.categorical(key, logits, over=best)
        return wf.sum(wf.where(wf.one_hot(chosen, best, dtype=bool), ids, 0), over=best)

    def _nucleus(self, logits: Tensor, over: str) -> Tensor:
        """The logits, very small outside the likeliest that make up `top_p`."""
        if self.top_p is None or self.top_p == 1:
            return logits
        share = wf.softmax(logits, over=over)
        rising = wf.sort(share, over=over)
        is_kept = wf.cumsum(rising, over=over) > 1 - self.top_p
        least = wf.min(wf.where(is_kept, rising, 1.0), over=over)
        return wf.where(share >= least, logits, -1e9)

    def _likely(self, logits: Tensor, over: str) -> Tensor:
        """The logits, very small for less than `min_p` of the largest chance."""
        if not self.min_p:
            return logits
        return wf.where(logits >= wf.max(logits, over=over) + math.log(self.min_p), logits, -1e9)


def best_log_probability(logits: Tensor) -> Tensor:
    """The log-probability of the likeliest token: f32[..]."""
    return wf.max(logits, over="vocab") - wf.logsumexp(logits, over="vocab")


def log_probability(logits: Tensor, token: Tensor) -> Tensor:
    """The log-probability of a token: f32[..]."""
    is_it = wf.one_hot(token, logits.dim("vocab"), dtype=bool)
    return wf.sum(wf.where(is_it, logits, 0.0), over="vocab") - wf.logsumexp(logits, over="vocab")
