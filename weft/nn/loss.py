"""Cross-entropy over a vocab that may be split: never gathered, and need not be held whole in time either."""

import math
from collections.abc import Callable

from .. import ops as wf
from ..dims import UNSHOWN, Dim
from ..errors import DimError
from ..tensor import Tensor
from .given import number, whole_number


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, z_loss: float = 0.0, over: str = "vocab"
) -> tuple[Tensor, Tensor]:
    """Minus the log-probability of each target; and the loss, with label smoothing and `z_loss` times log(sum)**2."""
    vocab = logits.dim(over)
    number(smoothing, "smoothing", least=0, below=1, example=0.1)
    number(z_loss, "z_loss", least=0, below=math.inf, example=1e-4)
    is_target = wf.one_hot(targets, vocab, dtype=bool)
    target = wf.sum(wf.where(is_target, logits, 0.0), over=over)
    total = wf.logsumexp(logits, over=over)
    nll = total - target
    loss = nll
    if smoothing:
        others = total - wf.mean(logits, over=over)
        loss = (1 - smoothing) * nll + smoothing * others
    if z_loss:
        loss = loss + z_loss * total * total
    return nll, loss


def summed_cross_entropy(
    logits: Callable[[Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    chunks: int = 1,
    over: str = "length",
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> dict[str, Tensor]:
    """Sums of losses, of minus log-probabilities, of hits and of weights over all tokens.

    With `chunks` the logits of so many pieces of the dim `over` are made one after the other, and again in the
    backward pass: at no time are all of them held.
    """

    def part(x: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        y = logits(x)
        nll, loss = cross_entropy(y, targets, smoothing=smoothing, z_loss=z_loss)
        hit = wf.cast(wf.argmax(wf.stop_gradient(y), over="vocab") == targets, "float32")
        found = {"loss": loss, "nll": nll, "hits": hit}
        if weights is not None:
            weights = wf.cast(weights, "float32")
            found = {name: value * weights for name, value in found.items()} | {"weight": weights}
        return found

    weights = None if weights is None else wf.broadcast(weights, targets.dims)
    tokens = {} if weights is not None else {"weight": wf.full([], math.prod(dim.count for dim in targets.dims))}
    if chunks == 1:
        return _summed(part(x, targets, weights)) | tokens
    size = x.size(over)
    chunks = whole_number(chunks, "chunks", divides=size, of=over)
    if (size // chunks) % x.ways(over):
        raise DimError(
            f"a chunk of the loss has {size // chunks} of `{over}`, which is split over {x.ways(over)} processors",
            fix=f"make at most {size // x.ways(over)} chunks",
        )
    # Chunks are the fast part, so that a split dim stays as it lies.
    piece, turn = Dim(f"{UNSHOWN}{over}", size // chunks, follows=over), Dim(f"{UNSHOWN}chunk", chunks)
    cut = [wf.split(t, **{over: [piece, turn]}) for t in (x, targets, weights) if t is not None]

    def step(sums: dict[str, Tensor], pieces: list[Tensor]) -> tuple[dict[str, Tensor], None]:
        more = wf.remat(part)(*pieces, *([None] if weights is None else []))
        return {name: sums[name] + more[name] for name in sums}, None

    # Chunks are added token by token, and all tokens at the end: sums that are sent are sent once.
    summed = ["loss", "nll", "hits", *([] if weights is None else ["weight"])]
    zeros = wf.zeros(cut[1].dims.without([turn]), like=cut[1], dtype="float32")
    sums, _ = wf.scan(step, dict.fromkeys(summed, zeros), cut, over=turn)
    return _summed(sums) | tokens


def _summed(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: wf.sum(value, over=value.dims) for name, value in found.items()}
