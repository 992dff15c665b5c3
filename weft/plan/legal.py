"""The layouts that can be, from the sets of rules that one axis can hold."""

from collections.abc import Container

import numpy as np

from .choices import RINGS, Choices, MeshShape


class Legal:
    """The layouts that some sets of rules make, without what they cost."""

    def __init__(self, choices: Choices, known: Container[int]):
        """`known` has the numbers of the sets that an axis may hold beside the empty one."""
        self.choices = choices
        self._known = [bool(rules) and index in known for index, rules in enumerate(choices.sets)]
        self._rules = np.array([[rule in rules for rule in choices.rules] for rules in choices.sets], bool)
        self._divisors = np.array([choices.divisor(rule) for rule in choices.rules])
        self._in_ring = [np.array([sum(dim in rules for dim in ring) for rules in choices.sets]) for ring in RINGS]

    def layouts(self, shape: MeshShape, *, all_axes: bool = False, having: str | None = None) -> np.ndarray:
        """A row each: the number of the set on each axis, where dims divide.

        With `all_axes` they use every axis, no two neighbours alike; `having` is a rule that one axis must hold.
        """
        rows, ways = np.zeros((1, 0), int), np.ones((1, len(self.choices.rules)), int)
        for size in shape:
            sets = self._sets_of(size, all_axes and size > 1)
            pairs = np.indices((len(rows), len(sets))).reshape(2, -1)
            if all_axes and rows.shape[1]:
                pairs = pairs[:, rows[pairs[0], -1] != sets[pairs[1]]]
            more = np.where(self._rules[sets], size, 1)
            cut = ways[pairs[0]] * more[pairs[1]]
            fits = (self._divisors % cut == 0).all(axis=1)
            rows = np.column_stack([rows[pairs[0, fits]], sets[pairs[1, fits]]])
            ways = cut[fits]
        rows = rows[self._keeps_rings(rows)]
        has = np.array([having is None or having in rules for rules in self.choices.sets])
        return rows[has[rows].any(axis=1)]

    def _sets_of(self, size: int, is_used: bool) -> np.ndarray:
        """The sets that an axis of this size can hold; the empty one unless it is used."""
        divides = np.where(self._rules, self._divisors % size == 0, True).all(axis=1)
        known = [known or not (rules or is_used) for known, rules in zip(self._known, self.choices.sets, strict=True)]
        return np.flatnonzero(divides & np.array(known))

    def _keeps_rings(self, rows: np.ndarray) -> np.ndarray:
        """Which layouts split a ring's dims over the same axes, or each over its own."""
        keeps = np.ones(len(rows), bool)
        for ring, in_set in zip(RINGS, self._in_ring, strict=True):
            count = in_set[rows]
            goes_round = (count == len(ring)).any(axis=1)
            keeps &= ~(goes_round & ((count > 0) & (count < len(ring))).any(axis=1))
        return keeps
