"""Written programs as the loss of train steps: two steps of Adam or Adafactor on a layout against none."""

import random
import re
import warnings
from typing import Any

import jax
import numpy as np
import optax

import weft as wf
from tests.properties.written import judging
from tests.properties.written.drawing import is_float
from tests.properties.written.families import draw_written
from tests.properties.written.layouts import draw_layout, wrong_in
from tests.properties.written.program import Written, reproduction, trimmed, weight

OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-2, eps=1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
}


def loss_of(program: Written) -> Any:
    """A loss of parameters and a batch: every float variable, tamed and weighed."""

    def loss(params: dict[str, Any], batch: dict[str, Any], key: Any) -> Any:
        found, total = program.run([{**params, **batch}[leaf.name] for leaf in program.leaves], wf), wf.zeros([])
        for i, x in enumerate(found):
            if is_float(x.dtype):
                weights = wf.tensor(weight(i, x.dims), list(x.dims))
                total = total + wf.mean(wf.tanh(0.2 * x) * weights, over=x.dims)
        return total

    return loss


class TrainCase:
    """A loss, an optimizer and two steps."""

    family = "train"

    def __init__(self, rng: random.Random, family: str):
        self.optimizer = rng.choice(sorted(OPTIMIZERS))
        while True:
            self.program = draw_written(rng, "train")
            if self.program.parameters and self.program.is_sloped and self._is_used():
                break
        self.words = sorted({*self.program.words, (self.optimizer, "float32")})

    def _is_used(self) -> bool:
        names = set(re.findall(r"\bx\d+\b", self.program.body))
        return all(leaf.name in names for leaf in self.program.parameters)

    def text(self, mesh: str, layout: str) -> str:
        return f"# two steps of {self.optimizer}\n{reproduction(self.program, mesh, layout)}"

    def layout(self, rng: random.Random, mesh: str) -> str:
        return draw_layout(rng, self.program, mesh, optimizer=True)

    def _trained(self, **where: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        tensors = dict(zip([leaf.name for leaf in self.program.leaves], self.program.inputs(), strict=True))
        params = {leaf.name: tensors.pop(leaf.name) for leaf in self.program.parameters}
        step = wf.train_step(loss_of(self.program), OPTIMIZERS[self.optimizer](), **where)
        state, losses = step.init(params), []
        for _ in range(2):
            state, metrics = step(state, tensors, jax.random.key(0))
            losses.append(float(metrics["loss"]))
        return losses, {name: trimmed(x.array, x.dims) for name, x in state.params.items()}

    def alone(self) -> list[tuple[str, str]]:
        self.here, self.plainly = judging.on_one_processor(self.program)
        if found := judging.differences(self.program, self.here, self.plainly):
            return found
        self.losses, self.after = self._trained()
        return []

    def is_near(self) -> bool:
        """Whether an optimizer would make much of a gradient that is hardly more than rounding."""
        if judging.is_too_near(self.program, self.plainly):
            return True
        run = jax.jit(wf.grad(lambda p, b: loss_of(self.program)(p, b, None)))
        tensors = dict(zip([leaf.name for leaf in self.program.leaves], self.program.inputs(), strict=True))
        params = {leaf.name: tensors.pop(leaf.name) for leaf in self.program.parameters}
        for leaf, slope in zip(self.program.parameters, run(params, tensors).values(), strict=True):
            size = np.abs(trimmed(slope.array, leaf.dims))
            if np.any((size > 0) & (size < 1e-4 * np.max(size, initial=0) + 1e-7)):
                return True
        return False

    def under(self, mesh: str, layout: str) -> list[tuple[str, str]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wf.WeftWarning)
            losses, after = self._trained(mesh=mesh, layout=layout)
        found = []
        if how := judging.differs(np.array(losses), np.array(self.losses), 1e-4):
            found.append(("loss", how))
        for name, x in after.items():
            if how := judging.differs(x, self.after[name], 2e-3):
                found.append((f"parameter {name} after training", how))
        return found

    def wrong_in(self, error: wf.WeftError, mesh: str, layout: str) -> str:
        return wrong_in(error, self.program, mesh, layout)

    def smaller(self, mesh: str, layout: str, about: str) -> str:
        return self.text(mesh, layout)
