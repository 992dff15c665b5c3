"""DPO (direct preference optimization): learning which answer is preferred.

Imports the language and the models' names of weights. What the policy is held against, the reference, are the weights
that the run began with: they lie where the policy's lie, and those that are frozen are the policy's own.

Rafailov et al. 2023, https://arxiv.org/abs/2305.18290
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .. import ops as wf
from ..data.preferences import SIDES
from ..leaves import is_trained
from ..nn.freezing import map_paths, tensors_by_path
from ..tensor import Tensor, with_kind

REFERENCE = "reference"


def reference_of(model: Any) -> dict[str, Tensor]:
    """The trained weights of a model by path, copied and frozen: a reference."""
    trained = {path: x for path, x in tensors_by_path(model).items() if is_trained(x)}
    return {path: with_kind(jax.tree.map(_copy, x), frozen=True) for path, x in trained.items()}


def _copy(x: Any) -> Any:
    return x if isinstance(x, jax.ShapeDtypeStruct) else jnp.copy(x)


def with_weights(model: Any, weights: Mapping[str, Tensor]) -> Any:
    """The model with other weights at these paths; all of it frozen."""
    return map_paths(lambda path, x: weights.get(path, x), model)


def dpo_loss(model: Any, batch: Mapping[str, Any], key: Any, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean of -log sigmoid(margin) over the pairs of a batch, and its metrics.

    A reward is `beta` times by how much likelier an answer is to the policy than to the reference; the margin is the
    chosen one's less the rejected one's.
    """
    reference = with_weights(model, batch[REFERENCE])
    rewards: dict[str, Tensor] = {}
    for i, side in enumerate(SIDES):
        rows = {name: batch[f"{side}_{name}"] for name in ("inputs", "targets", "weights")}
        policy = model.log_probs(rows, None if key is None else jax.random.fold_in(key, i))
        rewards[side] = beta * (policy - wf.stop_gradient(reference.log_probs(rows)))
    margin, weights = rewards["chosen"] - rewards["rejected"], batch["weights"]
    pairs = wf.sum(weights, over="batch")
    count = wf.where(pairs > 0, pairs, 1.0)

    def mean(x: Tensor) -> Tensor:
        return wf.sum(x * weights, over="batch") / count

    loss = -mean(wf.log_sigmoid(margin))
    metrics = {f"{side}_reward": mean(reward) for side, reward in rewards.items()}
    metrics |= {"margin": mean(margin), "accuracy": mean(wf.cast(margin > 0, "float32")), "pairs": pairs}
    return loss, metrics
