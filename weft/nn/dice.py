"""The Dice score of segmented images, over places that may be split."""

from .. import ops as wf
from ..errors import public
from ..lower.meet import need_tensor
from ..ops.index import need_integers
from ..tensor import Tensor


@public
def dice(
    shares: Tensor, labels: Tensor, *, over: str = "classes", weights: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """The Dice score (F1) of each class: [classes], 1 where prediction is label.

    `shares` say how much each place belongs to each class: probabilities (soft Dice, for a loss), or a one-hot of the
    class predicted. It is twice what they share with the labels over the sum of both, each place counted by its weight.
    """
    shares, labels = need_tensor(shares, "dice"), need_integers(labels, "dice")
    classes = shares.dim(over)
    truth = wf.one_hot(labels, classes, dtype=shares.dtype)
    common, both = shares * truth, shares + truth
    if weights is not None:
        weights = wf.cast(weights, shares.dtype)
        common, both = (wf.multiply(x, weights, names="subset") for x in (common, both))
    places = common.dims.without([classes])
    return (2 * wf.sum(common, over=places) + epsilon) / (wf.sum(both, over=places) + epsilon)
