"""Muon: momentum made orthogonal for blocks' matrices, by Optax; Adam elsewhere.

Imports the models' blueprints, which say of every weight along which dims it sums, and along which it is stacked. All
layers, and all experts, are made orthogonal each by itself. Updates are as large as Adam's (Liu et al. 2025, "Muon is
Scalable for LLM Training"), so that one learning rate does for both.
"""

import fnmatch
from collections.abc import Callable
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from ..models import TransformerConfig
from ..nn.weights import Weight, path_text
from .own.model import OwnModel
from .tables import Optimizer

RMS = 0.2
"""The root mean square of an update, that of Adam's by experience."""
_BATCH = ("experts",)  # dims of which each place is a matrix of its own


def scale_by_muon_and_adam(options: Optimizer, model: TransformerConfig | OwnModel) -> optax.GradientTransformation:
    """The directions of an update: orthogonal ones of matrices, Adam's of all else."""
    matrices = dimension_numbers(model, options)

    def numbers(params: Any) -> Any:
        return _map_paths(lambda path: matrices.get(path), params)

    muon = optax.chain(scale_by_muon(beta=options.momentum, weight_dimension_numbers=numbers), _scale_to_rms(matrices))
    adam = optax.chain(optax.scale_by_adam(options.b1, options.b2, options.epsilon), optax.scale(options.adam_rate))
    labels: Callable[[Any], Any] = lambda params: _map_paths(  # noqa: E731
        lambda path: "muon" if path in matrices else "adam", params
    )
    return optax.partition({"muon": muon, "adam": adam}, labels)


def dimension_numbers(model: TransformerConfig | OwnModel, options: Optimizer) -> dict[str, MuonDimensionNumbers]:
    """For each matrix that Muon updates the axes it sums over and those it gives."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model.blueprint())
    weights = {path_text(path): leaf for path, leaf in leaves if isinstance(leaf, Weight) and leaf.is_trained}
    return {
        path: _axes(weight)
        for path, weight in weights.items()
        if len(weight.dims) > 1 and not any(fnmatch.fnmatch(path, one) for one in options.by_adam)
    }


def _axes(weight: Weight) -> MuonDimensionNumbers:
    """The axes of a map from `d_model`, or back to it, as it is stored."""
    first = len(weight.stack)
    axes = [first + at for at, dim in enumerate(weight.dims) if dim.name not in _BATCH or at == len(weight.dims) - 1]
    into = 1 if weight.dims[axes[0] - first].name == "d_model" else len(axes) - 1
    return MuonDimensionNumbers(tuple(axes[:into]), tuple(axes[into:]))


def _scale_to_rms(matrices: dict[str, MuonDimensionNumbers]) -> optax.GradientTransformation:
    """Orthogonal matrices of n x m are scaled by the root of the larger, times RMS."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def scale(path: Any, x: Any) -> Any:
            sizes = [_size(x.shape, axes) for axes in matrices[path_text(path)]]
            return x * (RMS * max(sizes) ** 0.5)

        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _size(shape: tuple[int, ...], axes: Any) -> int:
    size = 1
    for axis in axes:
        size *= shape[axis]
    return size


def _map_paths(fn: Callable[[str], Any], tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: fn(path_text(path)), tree)
