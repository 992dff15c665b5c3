"""Sampling: temperature, top-k, top-p (nucleus) and repetition penalty on logits.

Imports the language. A vocab that is split stays so: the largest logits are found where they are. What is drawn
depends on the key alone, not on the layout.
"""

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
    """Takes the likeliest token, or draws one of the `top_k` best or of `top_p`."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    """Divides the chance of tokens that have been; 1 changes nothing."""

    def __post_init__(self) -> None:
        if not is_real(self.temperature) or self.temperature < 0:
            raise TensorError(f"`temperature` is {self.temperature!r}", fix="give 0 for the likeliest, or e.g. 0.8")
        if self.top_k is not None:
            check_count(self.top_k, "top_k")
        if self.top_p is not None and not (is_real(self.top_p) and 0 < self.top_p <= 1):
            raise TensorError(f"`top_p` is {self.top_p!r}", fix="give a share above 0 and at most 1, e.g. 0.9")
        if not is_real(self.repetition_penalty) or self.repetition_penalty <= 0:
            raise TensorError(f"`repetition_penalty` is {self.repetition_penalty!r}", fix="give e.g. 1.2; 1 is none")
        if not self.temperature and (self.top_k is not None or self.top_p is not None):
            raise TensorError(
                "`top_k` and `top_p` say what to draw from, and at temperature 0 nothing is drawn",
                fix="give a temperature, e.g. `temperature=1.0`",
            )

    @property
    def is_greedy(self) -> bool:
        return not self.temperature

    @property
    def is_plain(self) -> bool:
        """Whether the token it takes is the one the model has the largest logit for."""
        return self.is_greedy and self.repetition_penalty == 1

    def __call__(self, logits: Tensor, key: Any, seen: Tensor | None) -> Tensor:
        """The token chosen from f32[.. vocab]: i32[..]."""
        if seen is not None:
            lower = wf.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = wf.where(seen, lower, logits)
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
        return self._nucleus(logits, "vocab")

    def _draw_best(self, logits: Tensor, key: Any) -> Tensor:
        vocab = logits.dim("vocab")
        if self.top_k is None or self.top_k >= vocab.count:
            return wf.random.categorical(key, self._nucleus(logits, "vocab"), over="vocab")
        best = Dim(f"{UNSHOWN}best", self.top_k)
        logits, ids = wf.top_k(logits, over="vocab", k=best)
        chosen = wf.random.categorical(key, self._nucleus(logits, best.name), over=best)
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


def best_log_probability(logits: Tensor) -> Tensor:
    """The log-probability of the likeliest token: f32[..]."""
    return wf.max(logits, over="vocab") - wf.logsumexp(logits, over="vocab")


def log_probability(logits: Tensor, token: Tensor) -> Tensor:
    """The log-probability of a token: f32[..]."""
    is_it = wf.one_hot(token, logits.dim("vocab"), dtype=bool)
    return wf.sum(wf.where(is_it, logits, 0.0), over="vocab") - wf.logsumexp(logits, over="vocab")
