"""A model of the user's own as a run's: its weights and its loss.

Imports the language and the layers' weights. `make(**options)` gives an Equinox module whose weights are declared by
dims; `loss(batch, key)` of it gives a scalar, or a scalar and metrics by name. In evaluation the key is None.
"""

import linecache
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import equinox as eqx
import jax

from ... import nn
from ... import ops as wf
from ...dims import Dim
from ...errors import closest, short_path
from ...layout import Layout
from ...leaves import array_of, is_array
from ...mesh import Mesh
from ...nn import weights
from ...tensor import Tensor, is_tensor
from .code import CodeError, OwnCall, users_code

WEIGHT = "weight"
"""The metric that says how much a batch counts where losses of several are put together: its rows unless said."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """The configuration of a model that a call makes."""

    call: OwnCall
    module: Any = field(repr=False, compare=False)
    """What the call gave: the model without values."""
    batch: int = 32
    length: int = 1
    """What a row counts as, where the run does not say its `length`."""

    @classmethod
    def of(cls, call: OwnCall) -> "OwnModel":
        """The model that a call makes, checked."""
        return cls(call=call, module=_check_module(call, call()))

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def param_count(self) -> int:
        """How many numbers the weights hold, padding left out."""
        return weights.count(self.module)

    def dim(self, name: str) -> Dim:
        """The dim of rows, the only one that a run knows."""
        assert name == "batch"
        return Dim(name, self.batch)

    def blueprint(self) -> Any:
        """The model without values."""
        return self.module

    def init(self, key: Any, mesh: Mesh | None, layout: Layout | None) -> Any:
        """The model with its first weights; each processor makes its own slices."""
        rules = None if layout is None else [*layout.rules, *layout.params, *layout.optimizer]
        return nn.init(self.module, key, mesh, layout, dims=rules)

    def loss_and_metrics(self, model: Any, batch: Mapping[str, Tensor], key: Any) -> tuple[Any, dict[str, Any]]:
        """The loss of a batch, and its metrics."""
        with users_code(f"the loss of `{self.name}` failed"):
            try:
                returned = model.loss(dict(batch), key)
            except KeyError as error:
                if (missing := _of_missing(self.call, error, batch)) is not None:
                    raise missing from error
                raise
        pair = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        value, metrics = pair
        if not _is_scalar(value):
            fix = "give its mean over all dims, e.g. `wf.mean(losses, over=losses.dims)`"
            raise CodeError(
                f"the loss of `{self.name}` is {value!r:.80}, no scalar", fix=fix, at=_place(self.call, model)
            )
        if not isinstance(metrics, Mapping) or not all(map(_is_scalar, metrics.values())):
            named = metrics if not isinstance(metrics, Mapping) else _odd(metrics)
            fix = "return the loss and a dict of scalars by name: `return loss, {'accuracy': accuracy}`"
            fact = f"beside its loss `{self.name}` gives {named!r:.80}"
            raise CodeError(fact, fix=fix, at=_place(self.call, model))
        if "loss" in metrics:
            fix = "call it otherwise: `loss` is what is trained"
            raise CodeError(f"`{self.name}` has a metric called `loss`", fix=fix, at=_place(self.call, model))
        return value, dict(metrics)


def weight_of(metrics: Mapping[str, Any], batch: Mapping[str, Tensor]) -> Any:
    """How much a batch counts where losses of several are put together."""
    rows = max((x.size("batch") for x in batch.values() if x.dims.has("batch")), default=1)
    return metrics.get(WEIGHT, wf.full([], float(rows)))


def _check_module(call: OwnCall, module: Any) -> Any:
    """The module, if it is one whose weights are all declared, and which has a loss."""
    if not isinstance(module, eqx.Module):
        fix = "return an Equinox module: `class Model(equinox.Module)` with `nn` layers or `nn.Weight` for weights"
        raise CodeError(f"`{call.name}` gave {module!r:.60}, which is no module", fix=fix, at=call.at)
    if not callable(getattr(module, "loss", None)):
        methods = [name for name in dir(type(module)) if not name.startswith("_")]
        near = closest("loss", methods) if methods else ""
        hint = f"; {near}" if near.startswith("did you mean") else ""
        fix = f"write `def loss(self, batch, key)`, which gives a scalar{hint}"
        raise CodeError(f"what `{call.name}` gave, `{type(module).__name__}`, has no `loss`", fix=fix, at=call.at)
    leaves, _ = jax.tree_util.tree_flatten_with_path(module, is_leaf=is_tensor)
    for path, leaf in leaves:
        name = weights.path_text(path)
        if is_tensor(leaf):
            fix = "leave `key` out where layers are made: the run gives weights their values, each processor its slices"
            raise CodeError(f"`{name}` of `{call.name}` has values already", fix=fix, at=call.at)
        if is_array(leaf):
            fix = "declare a weight by its dims, `nn.Weight(dims, stddev=0.02)`; make what is constant in `loss`"
            fact = f"`{name}` of `{call.name}` is an array without dims, of shape {tuple(leaf.shape)}"
            raise CodeError(fact, fix=fix, at=call.at)
        if not isinstance(leaf, weights.Weight):
            kind = "function" if callable(leaf) else type(leaf).__name__
            fix = "say of that field that it is no weight: `eqx.field(static=True)`"
            raise CodeError(f"`{name}` of `{call.name}` is a {kind}", fix=fix, at=call.at)
    if not any(leaf.is_trained for _, leaf in leaves):
        fix = "declare some: layers of `weft.nn`, or `nn.Weight(dims, stddev=0.02)`"
        raise CodeError(f"what `{call.name}` gave has no weights", fix=fix, at=call.at)
    return module


def _is_scalar(value: Any) -> bool:
    array = array_of(value) if is_tensor(value) else value
    return getattr(array, "shape", None) == () or isinstance(value, int | float)


def _odd(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in metrics.items() if not _is_scalar(value)}


def _place(call: OwnCall, model: Any) -> str | None:
    """Where the loss is written."""
    code = getattr(getattr(type(model), "loss", None), "__code__", None)
    return call.at if code is None else f"{short_path(code.co_filename)}:{code.co_firstlineno} in loss"


def _of_missing(call: OwnCall, error: KeyError, batch: Mapping[str, Any]) -> CodeError | None:
    """The error of a loss that asks a batch for what rows do not have, or None."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    name = error.args[0] if error.args else None
    asked = _find_asked(error, frame)
    if not isinstance(name, str) or not isinstance(asked, Mapping) or asked.keys() != batch.keys():
        return None
    at = f"{short_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
    has = ", ".join(f"`{each} [{x.dims}]`" for each, x in batch.items())
    fact = f"the loss of `{call.name}` asks for `{name}`, and a batch has none"
    return CodeError(fact, state=f"it has {has}", fix=closest(name, batch), at=at)


def _find_asked(error: KeyError, frame: FrameType) -> Any:
    """What was asked for the key, if the line names it: `batch` of `batch["x"]`."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(place.filename, place.lineno or 0).encode()
    name = line[place.colno : place.end_colno].decode(errors="replace").partition("[")[0]
    return frame.f_locals.get(name, frame.f_globals.get(name))
