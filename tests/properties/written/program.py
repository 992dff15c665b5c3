"""A written program, whole: run by weft or plainly, cut down to what leads to one variable, printed by itself."""

import re
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf
from tests.properties.written import plain, plain_control, plain_moving
from tests.properties.written.drawing import Drawing, Leaf, Statement, is_complex, is_float, written_dim


class _Plain(types.ModuleType):
    """The plain language, out of the files it is in."""

    def __getattr__(self, name: str) -> Any:
        for module in (plain_control, plain_moving):
            if name in vars(module):
                return getattr(module, name)
        return getattr(plain, name)


PLAIN = _Plain("plain")


@dataclass
class Written:
    """Arguments, statements, and what is known of the variables they make: `made` has their shapes."""

    dims: dict[str, wf.Dim]
    leaves: list[Leaf]
    statements: list[Statement]
    exact: dict[str, bool]
    made: dict[str, Any]
    shapes: list[list[wf.Dim]]
    whole: set[str]
    mapped: set[str]
    words: set[tuple[str, str]]
    differentiable: bool
    fragile: bool
    style: str

    @property
    def outputs(self) -> list[str]:
        return [name for statement in self.statements for name in statement.makes]

    @property
    def body(self) -> str:
        return "\n".join(statement.text for statement in self.statements)

    @property
    def parameters(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.is_parameter]

    def inputs(self) -> list[wf.Tensor]:
        make = {True: wf.parameter, False: wf.tensor}
        return [make[leaf.is_parameter](jnp.asarray(leaf.array), list(leaf.dims)) for leaf in self.leaves]

    def plain_inputs(self) -> list[plain.Named]:
        return [
            plain.Named(jnp.asarray(trimmed(leaf.array, leaf.dims)), tuple(d.resized(d.count) for d in leaf.dims))
            for leaf in self.leaves
        ]

    def run(self, inputs: Sequence[Any], language: Any) -> list[Any]:
        """Every variable's value."""
        scope = {"wf": language, "jax": jax, "jnp": jnp}
        dims = {name: language.Dim(name, d.size, d.follows, d.valid) for name, d in self.dims.items()}
        scope |= dims | {leaf.name: x for leaf, x in zip(self.leaves, inputs, strict=True)}
        exec(compile(self.body, "<program>", "exec"), scope)
        return [scope[name] for name in self.outputs]

    @property
    def is_sloped(self) -> bool:
        """Whether gradients are asked for."""
        return (
            self.differentiable
            and self.style in ("small", "halves", "normal")
            and any(is_sloped(f) for f in self.leaves)
        )

    def leading_to(self, output: str) -> "Written":
        """The part of the program that one variable depends on."""
        wanted, kept = {output}, []
        for statement in reversed(self.statements):
            if wanted & set(statement.makes):
                kept.append(statement)
                wanted |= set(re.findall(r"\b[vx]\d+\b", statement.text))
        return replace(
            self, statements=kept[::-1], leaves=[leaf for leaf in self.leaves if leaf.name in wanted] or self.leaves[:1]
        )


def finished(drawing: Drawing) -> Written:
    return Written(
        drawing.dims,
        drawing.leaves,
        drawing.statements,
        {name: known.exact for name, known in drawing.known.items()},
        {name: known.shape for name, known in drawing.known.items()},
        drawing.shapes,
        drawing.whole,
        drawing.mapped,
        drawing.words,
        drawing.differentiable,
        drawing.fragile,
        drawing.style,
    )


def is_sloped(leaf: Leaf) -> bool:
    return is_float(np.dtype(leaf.dtype)) or is_complex(np.dtype(leaf.dtype))


def trimmed(array: Any, dims: Sequence[wf.Dim]) -> np.ndarray:
    """What an array holds besides padding."""
    return np.asarray(array)[tuple(slice(0, d.count) for d in dims)]


def weight(i: int, dims: Sequence[wf.Dim], dtype: Any = "float32") -> np.ndarray:
    """By how much each value of the variable number i counts in the loss."""
    sizes = [d.size for d in dims]
    return ((13 * np.arange(np.prod(sizes, dtype=int)) + 7 * i) % 5 - 2.0).astype("float32").reshape(sizes)


# ---- the loss


def weft_loss(program: Written) -> Any:
    def loss(inputs: list[wf.Tensor]) -> Any:
        found, total = program.run(inputs, wf), wf.zeros([])
        for i, x in enumerate(found):
            if is_float(x.dtype) or is_complex(x.dtype):
                real = wf.real(x) if is_complex(x.dtype) else x
                total = total + wf.sum(real * wf.tensor(weight(i, x.dims), list(x.dims)), over=x.dims)
        return total, found

    return loss


def weft_run(program: Written) -> Any:
    """Values, and gradients where there are any, of a list of inputs."""
    if program.is_sloped:
        return lambda inputs: wf.value_and_grad(weft_loss(program), has_aux=True)(inputs)
    return lambda inputs: ((wf.zeros([]), program.run(inputs, wf)), [])


def plain_run(program: Written) -> Any:
    """The same of plain arrays; the weights have the order of dims that weft's variables have."""
    shapes = [program.made[name] for name in program.outputs]

    def loss(sloped: list[Any], inputs: list[Any]) -> Any:
        given = iter(sloped)
        inputs = [next(given) if is_sloped(leaf) else x for leaf, x in zip(program.leaves, inputs, strict=True)]
        found, total = program.run(inputs, PLAIN), 0.0
        for i, (x, shape) in enumerate(zip(found, shapes, strict=True)):
            if is_float(x.dtype) or is_complex(x.dtype):
                held = weight(i, shape.dims)[tuple(slice(0, d.count) for d in shape.dims)]
                real = jnp.real(x.array) if is_complex(x.dtype) else x.array
                total = total + jnp.sum(plain.Named(real, x.dims).along(shape.dims) * held)
        return total, [x.along(shape.dims) for x, shape in zip(found, shapes, strict=True)]

    def run(inputs: list[Any]) -> Any:
        sloped = [x for leaf, x in zip(program.leaves, inputs, strict=True) if is_sloped(leaf)]
        if program.is_sloped:
            return jax.value_and_grad(loss, has_aux=True)(sloped, inputs)
        return loss(sloped, inputs), []

    return run


# ---- printed


def reproduction(program: Written, mesh: str, layout: str) -> str:
    """The program as a file that shows both answers by itself."""
    lines = ["import jax, jax.numpy as jnp, numpy as np, weft as wf", ""]
    lines += [f"{name} = {written_dim(dim)}" for name, dim in program.dims.items() if _uses(program, name)]
    lines += [leaf.text for leaf in program.leaves]
    names = ", ".join(leaf.name for leaf in program.leaves)
    lines += ["", f"def f({names}):", *(f"    {line}" for line in program.body.splitlines())]
    lines += [f"    return {', '.join(program.outputs)},", ""]
    run = "f"
    if program.is_sloped:
        lines += [
            "def weights(i, x):",
            "    w = (13 * np.arange(np.prod([d.size for d in x.dims], dtype=int)) + 7 * i) % 5 - 2.0",
            "    return wf.tensor(w.astype('float32').reshape([d.size for d in x.dims]), list(x.dims))",
            f"def loss({names}):",
            f"    out = f({names})",
            "    kept = [(i, x) for i, x in enumerate(out) if jnp.issubdtype(x.dtype, jnp.inexact)]",
            "    real = [(i, wf.real(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x) for i, x in kept]",
            "    return sum((wf.sum(x * weights(i, x), over=x.dims) for i, x in real), wf.zeros([])), out",
            "def run(*xs):",
            "    return wf.value_and_grad(lambda xs: loss(*xs), has_aux=True)(list(xs))",
        ]
        run = "run"
    lines += ["", f"print({run}({names}))", f"print(wf.spmd({run}, mesh={mesh!r}, layout={layout!r})({names}))"]
    return "\n".join(lines)


def _uses(program: Written, name: str) -> bool:
    text = program.body + " ".join(d.name for leaf in program.leaves for d in leaf.dims)
    return re.search(rf"\b{name}\b", text) is not None
