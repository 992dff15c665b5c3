"""The classes of layouts: which parallelisms one is made of.

An axis that splits `batch` is data parallelism, with stored parameters on it FSDP; one that splits `heads` or `d_ff`
tensor parallelism, `stream` sequence, `length` context, `experts` expert and `stage` pipeline parallelism. A layout
belongs to the class of all that its axes do: `FSDP + tensor`.
"""

import numpy as np

from .choices import Choices, RuleSet, stores_in

KNOWN = {
    "batch": "data",
    "length": "context",
    "stream": "sequence",
    "queries": "Ulysses",
    "memory_length": "cache",
    "stage": "pipeline",
    "experts": "experts",
}
"""What it is called to split a dim; of other dims those of parameters are `tensor`, the rest by their names."""


class Techniques:
    """The parallelisms of the layouts of one program."""

    def __init__(self, choices: Choices):
        self._of_weights = {dim.name for tensor in choices.tensors if tensor.is_parameter for dim in tensor.dims}
        names = [self.of_axis(rules) for rules in choices.sets]
        self._all = sorted({name for of_set in names for name in of_set}, key=str.lower)
        bits = {name: 1 << at for at, name in enumerate(self._all)}
        self._masks = np.array([sum(bits[name] for name in of_set) for of_set in names], np.int64)

    def of_axis(self, rules: RuleSet) -> set[str]:
        """What an axis with these rules does."""
        names = {self._name(rule) for rule in rules if "." not in rule}
        stored = stores_in(rules)
        if {"length", "memory_length"} <= set(rules):
            names = names - {"context", "cache"} | {"ring"}
        if {"stream", "queries"} <= set(rules):
            names -= {"sequence"}
        if stored:
            names = names - {"data"} | {"FSDP" if "params" in stored else "ZeRO"}
        return names

    def _name(self, rule: str) -> str:
        return KNOWN.get(rule) or ("tensor" if rule in self._of_weights else rule)

    def of(self, layouts: np.ndarray) -> np.ndarray:
        """The class of each layout, a row of the numbers of its sets, as bits."""
        masks = np.zeros(len(layouts), np.int64)
        for axis in range(layouts.shape[1]):
            masks |= self._masks[layouts[:, axis]]
        return masks

    def names(self, mask: int) -> tuple[str, ...]:
        """The parallelisms of a class."""
        return tuple(name for at, name in enumerate(self._all) if mask >> at & 1)
