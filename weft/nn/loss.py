"""Cross-entropy with label smoothing and z-loss, over a vocab that may be split.

The vocab is never gathered, and its logits need not all be held at one time either.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from .. import ops as wf
from ..checks import is_whole
from ..dims import UNSHOWN, Dim, Shape
from ..errors import DimError, TensorError, public
from ..lower.meet import keeping_gathered, need_tensor
from ..ops.cross_entropy import cross_entropy_terms
from ..ops.index import need_integers
from ..tensor import Tensor, has_values
from .arguments import check_divisor, check_number


@public
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    over: str = "vocab",
    ignore_index: int | None = None,
    check_labels: bool = False,
) -> tuple[Tensor, Tensor]:
    """Minus the log-probability of each target; and the loss.

    The loss has label smoothing and the z-loss, `z_loss` times log(sum)**2. Targets equal to `ignore_index` give 0 and
    no gradient. One outside the vocab is an error where its value is known; in a traced program both results are NaN
    there, and `check_labels` raises after the call.
    """
    vocab = _classes(need_tensor(logits, "cross_entropy"), over)
    targets = need_integers(targets, "cross_entropy")
    _check_labels(targets, vocab, ignore_index, check_labels)
    nll, loss, _ = _losses(logits, targets, vocab, smoothing=smoothing, z_loss=z_loss)
    if ignore_index is None:
        return nll, loss
    counts = targets != ignore_index
    return wf.where(counts, nll, 0.0), wf.where(counts, loss, 0.0)


def _classes(logits: Tensor, over: Any) -> Dim:
    """The dim of the classes; an error where the one taken by default is not there."""
    if over == "vocab" and logits.dims and not logits.dims.has(over):
        fact = f"the classes are along `vocab` unless said, and the logits have dims [{logits.dims}]"
        raise DimError(fact, fix=f"say along which they are: `over='{logits.dims[-1].name}'`")
    return logits.dim(over)


def _losses(
    logits: Tensor, targets: Tensor, vocab: Dim, *, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Minus the log-probability of each target, the loss, and whether it is a hit."""
    check_number(smoothing, "smoothing", least=0, below=1, example=0.1)
    check_number(z_loss, "z_loss", least=0, below=math.inf, example=1e-4)
    logits = _with_all_dims(logits, targets, vocab)
    terms = cross_entropy_terms(logits, targets, over=vocab, smoothing=smoothing)
    is_label = _is_label(targets, vocab)
    nll = wf.where(is_label, terms.log_sum - terms.target, math.nan)
    loss = wf.where(is_label, terms.log_sum - terms.smoothed, math.nan) if terms.smoothed is not None else nll
    if z_loss:
        loss = loss + z_loss * terms.log_sum * terms.log_sum
    return nll, loss, terms.is_hit & is_label


def _with_all_dims(logits: Tensor, targets: Tensor, vocab: Dim) -> Tensor:
    """The logits with the dims of the targets; one of them must have those of both."""
    if not (stray := [dim for dim in targets.dims if not logits.dims.has(dim)]):
        return logits
    wanted = Shape([*targets.dims, vocab])
    if lacking := next((dim for dim in logits.dims if not wanted.has(dim)), None):
        raise DimError(
            f"cross_entropy of logits [{logits.dims}] and targets for [{wanted}]: the first have no `{stray[0].name}`, "
            f"the second no `{lacking.name}`",
            fix=f"rename it: `targets.rename({stray[0].name}='{lacking.name}')`; if all these dims are meant, "
            "`wf.broadcast` the logits to them first",
        )
    return wf.broadcast(logits, wanted)


def _is_label(targets: Tensor, vocab: Dim) -> Tensor:
    """Whether each target is an id of the vocab."""

    def is_within(ids: Any) -> Any:
        return (ids >= 0) & (ids < vocab.count)

    return wf.elementwise(is_within, targets)


_all_labels = contextvars.ContextVar("whether labels are checked also where nobody asks for it", default=False)


@contextlib.contextmanager
def checking_labels() -> Iterator[None]:
    """Losses traced in this context check their labels."""
    token = _all_labels.set(True)
    try:
        yield
    finally:
        _all_labels.reset(token)


def _check_labels(targets: Tensor, vocab: Dim, ignore_index: int | None, check_labels: bool) -> None:
    """Raises where a target that counts is outside the vocab: now, or after the call."""
    if ignore_index is not None and not is_whole(ignore_index):
        raise TensorError(f"`ignore_index` is {ignore_index!r}", fix="give a whole number, e.g. `ignore_index=-100`")
    if has_values(targets.local_array):
        return _check_known(np.asarray(targets.local_array), targets.dims, vocab, ignore_index)
    if check_labels or _all_labels.get():
        fits = _is_label(targets, vocab)
        fits = fits if ignore_index is None else fits | (targets == ignore_index)
        wf.check(fits, f"a label lies outside `{vocab.name}`, which has {vocab.count}", label=targets)


def _check_known(labels: np.ndarray, dims: Shape, vocab: Dim, ignore_index: int | None) -> None:
    labels = labels[tuple(slice(dim.count) for dim in dims)]
    is_wrong = (labels < 0) | (labels >= vocab.count)
    if ignore_index is not None:
        is_wrong &= labels != ignore_index
    if is_wrong.any():
        at = np.unravel_index(int(np.argmax(is_wrong)), labels.shape)
        place = " ".join(f"{name}={i}" for name, i in zip(dims.names, at, strict=True))
        other = f"say that it does not count: `ignore_index={labels[at]}`" if labels[at] < 0 else "check the tokenizer"
        raise TensorError(
            f"the label {labels[at]} at [{place}] lies outside `{vocab.name}`, which has {vocab.count}",
            fix=f"give labels from 0 to {vocab.count - 1}, or {other}",
        )


@public
def summed_cross_entropy(
    logits: Callable[[Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    chunks: int = 1,
    over: str = "length",
    vocab: str = "vocab",
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore_index: int | None = None,
    check_labels: bool = False,
) -> dict[str, Tensor]:
    """Sums over tokens: of losses, minus log-probabilities, hits and weights.

    Targets equal to `ignore_index`, and those of weight 0, count nothing; others are checked as in `cross_entropy`.
    `vocab` is what the logits' classes are called.
    With `chunks` the logits of so many pieces of the dim `over` are made one after the other, and again in the
    backward pass: at no time are all of them held.
    """
    x, targets = need_tensor(x, "summed_cross_entropy"), need_integers(targets, "summed_cross_entropy")
    if ignore_index is not None:
        counts = wf.cast(targets != ignore_index, "float32")
        weights = counts if weights is None else wf.multiply(counts, weights, names="subset")
    if weights is not None:
        weights = wf.broadcast(weights, targets.dims)
        targets = wf.where(weights == 0, 0, targets)  # whatever stands where nothing counts

    def part(x: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        y = logits(x)
        classes = y.dim(vocab)
        _check_labels(targets, classes, None, check_labels)
        nll, loss, is_hit = _losses(y, targets, classes, smoothing=smoothing, z_loss=z_loss)
        terms = {"loss": loss, "nll": nll, "hits": wf.cast(is_hit, "float32")}
        if weights is not None:
            weights = wf.cast(weights, "float32")
            terms = {name: value * weights for name, value in terms.items()} | {"weight": weights}
        return terms

    tokens = {} if weights is not None else {"weight": wf.full([], math.prod(dim.count for dim in targets.dims))}
    if chunks == 1:
        with keeping_gathered():
            return _sum_all(part(x, targets, weights)) | tokens
    size = x.size(over)
    chunks = check_divisor(chunks, "chunks", divides=size, of=over)
    if (size // chunks) % x.ways(over):
        raise DimError(
            f"a chunk of the loss has {size // chunks} of `{over}`, which is split over {x.ways(over)} processors",
            fix=f"make at most {size // x.ways(over)} chunks",
        )
    if has_values(targets.local_array):  # in the loop below they are not
        _check_labels(targets, jax.eval_shape(logits, x).dim(vocab), None, check_labels)
    # Chunks are the fast part, so that a split dim stays split as it is.
    piece, turn = Dim(f"{UNSHOWN}{over}", size // chunks, follows=over), Dim(f"{UNSHOWN}chunk", chunks)
    cut = [wf.split(t, **{over: [piece, turn]}) for t in (x, targets, weights) if t is not None]

    def step(sums: dict[str, Tensor], pieces: list[Tensor]) -> tuple[dict[str, Tensor], None]:
        more = wf.remat(part)(*pieces, *([None] if weights is None else []))
        return {name: sums[name] + more[name] for name in sums}, None

    # Chunks are added token by token, and all tokens at the end: sums that are sent are sent once.
    summed = ["loss", "nll", "hits", *([] if weights is None else ["weight"])]
    zeros = wf.zeros(cut[1].dims.without([turn]), like=cut[1], dtype="float32")
    sums, _ = wf.scan(step, dict.fromkeys(summed, zeros), cut, over=turn, prefetch=True)
    return _sum_all(sums) | tokens


def _sum_all(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: wf.sum(value, over=value.dims) for name, value in terms.items()}
