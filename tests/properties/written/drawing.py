"""Drawing a written program: leaves, statements, and what is known of every variable while it is drawn.

Each statement is tried on shapes alone, with no mesh; one that weft refuses there is drawn anew, and one at which
anything but a WeftError comes up is a finding.
"""

import contextlib
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf

# One or two letters a dim; the long names are those that loops of weft's own go by.
SIZES = {"a": 4, "b": 8, "g": 4, "n": 4, "m": 4, "c": 4, "e": 4, "q": 2, "r": 2, "h": 6, "microbatch": 4, "step": 4}
FOLLOWS = {"g": "a"}
MOST_DIMS, MOST_VALUES, LARGEST = 4, 128, 16

FLOATS = ("float32", "bfloat16", "float16")
WHOLE_NUMBERS = ("int32", "int8", "int16", "uint8", "uint32")
DTYPES = (*FLOATS, *WHOLE_NUMBERS, "bool", "complex64")
WIDE = ("float64", "int64", "float32", "int32", "bool", "complex128")


# Of small whole numbers and halves these make such again; and these choose by values.
EVEN = {"add", "multiply", "subtract", "sum", "einsum", "scatter_add", "square", "0.5 *", "cumsum", "local", "relu"}
CHOOSING = {
    *("sign", "floor", "relu", "abs", "where", "maximum", "minimum", "less", "greater_equal", "equal", "cast", "max"),
    *("min", "argmax", "argmin", "sort", "top_k", "cummax", "isnan", "isfinite", "sum as", "mean as"),
}


class RawError(Exception):
    """Something other than a WeftError came up on whole tensors: a finding."""


def is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def is_whole(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def is_complex(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)


def is_bool(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.bool_)


@dataclass(frozen=True)
class Leaf:
    """An argument of the program: its values follow from a seed and a style."""

    name: str
    dims: tuple[wf.Dim, ...]
    dtype: str
    style: str
    seed: int
    is_parameter: bool = False
    between: tuple[int, int] | None = None

    @property
    def array(self) -> np.ndarray:
        rng = np.random.default_rng([self.seed, len(self.dims)])
        sizes = [dim.size for dim in self.dims]
        dtype = np.dtype(self.dtype)
        if self.between is not None:
            return np.asarray(rng.integers(*self.between, sizes), dtype)
        if is_bool(dtype):
            return np.asarray(rng.integers(0, 2, sizes), bool)
        if is_complex(dtype):
            return np.asarray(rng.integers(-2, 3, sizes) + 1j * rng.integers(-2, 3, sizes), dtype)
        return np.asarray(_styled(rng, sizes, dtype, self.style), dtype)

    @property
    def text(self) -> str:
        """The line that makes it, by itself."""
        array = self.array.astype("float32") if self.dtype in ("bfloat16", "float16") else self.array
        values = np.array2string(
            array.ravel(), threshold=10**6, separator=", ", floatmode="unique", max_line_width=10**6
        )
        values = (
            re.sub(r"\b(nan|inf)\b", r"np.\1", re.sub(" +", " ", values)).replace("True", "1").replace("False", "0")
        )
        sizes = f".reshape({', '.join(str(d.size) for d in self.dims)})" if self.dims else ".reshape(())"
        make = "parameter" if self.is_parameter else "tensor"
        array = f"np.array({values}).astype(jnp.{'bool_' if self.dtype == 'bool' else self.dtype}){sizes}"
        return f"{self.name} = wf.{make}({array}, [{', '.join(d.name for d in self.dims)}])"


SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 2.0, np.inf, -np.inf, np.nan)


def _styled(rng: np.random.Generator, sizes: Sequence[int], dtype: Any, style: str) -> Any:
    if is_whole(dtype):
        info = np.iinfo(dtype)
        if style == "special":
            return rng.choice(np.array([0, 1, 2, 2, info.max, info.min, info.max - 1], dtype), sizes)
        return rng.integers(max(info.min, -3), 4, sizes)
    if style == "special":
        return rng.choice(SPECIAL, sizes)
    if style == "zeros":
        return rng.choice([0.0, -0.0, -0.0, -1.0], sizes)
    if style == "huge":
        return rng.integers(1, 4, sizes) * 2.0**65 * rng.choice([1, 1, 1, -1])
    if style == "halves":
        return rng.integers(-6, 7, sizes) / 2
    if style == "normal":
        return rng.normal(size=sizes)
    return rng.integers(-3, 4, sizes)


@dataclass
class Statement:
    """A few lines of the program and the variables they make."""

    text: str
    makes: list[str]
    word: str


@dataclass
class Known:
    """What is known of a variable: dims and dtype, and two things about its values.

    `exact`: its bits follow from the arguments' alone, in whatever order sums are taken. `even`: so do its values,
    being small multiples of one power of two, so that comparing them is safe.
    """

    shape: Any
    exact: bool
    even: bool = True

    @property
    def dims(self) -> tuple[wf.Dim, ...]:
        return self.shape.dims

    @property
    def dtype(self) -> Any:
        return self.shape.dtype


@dataclass
class Drawing:
    """A program while it is drawn, and after."""

    rng: random.Random
    dims: dict[str, wf.Dim]
    dtypes: Sequence[str]
    style: str
    parameters: float = 0.3
    nesting: float = 0.35
    leaves: list[Leaf] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    shapes: list[list[wf.Dim]] = field(default_factory=list)
    whole: set[str] = field(default_factory=set)
    mapped: set[str] = field(default_factory=set)
    words: set[tuple[str, str]] = field(default_factory=set)
    # Whether loops whose number of turns only the run knows may be drawn: they have no gradient.
    open_ended: bool = False
    differentiable: bool = True
    # Whether a choice is made by values that rounding may have changed.
    fragile: bool = False
    count: int = 0
    refusals: list[str] = field(default_factory=list)

    def fresh(self, letter: str = "v") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def leaf(self, dims: Sequence[wf.Dim], dtype: str, between: tuple[int, int] | None = None) -> str:
        """A new argument."""
        is_parameter = between is None and is_float(dtype) and self.rng.random() < self.parameters
        leaf = Leaf(self.fresh("x"), tuple(dims), dtype, self.style, self.rng.randint(0, 9999), is_parameter, between)
        self.leaves.append(leaf)
        make = wf.parameter if is_parameter else wf.tensor
        shape = make(jax.ShapeDtypeStruct([d.size for d in dims], jnp.dtype(dtype)), list(dims))
        self.known[leaf.name] = Known(shape, exact=True, even=self.style != "normal" or not is_float(dtype))
        self.shapes.append(list(dims))
        return leaf.name

    @contextlib.contextmanager
    def undone_unless_longer(self, lines: list[str]) -> Iterator[None]:
        """What is drawn inside stays only if it came to a line."""
        count = len(lines)
        counts = len(self.leaves), len(self.shapes)
        before = set(self.whole), set(self.words), self.differentiable, self.fragile
        yield
        if len(lines) == count:
            for leaf in self.leaves[counts[0] :]:
                del self.known[leaf.name]
            del self.leaves[counts[0] :], self.shapes[counts[1] :]
            self.whole, self.words, self.differentiable, self.fragile = before

    @property
    def padded(self) -> set[str]:
        return {name for name, dim in self.dims.items() if dim.is_padded}


class Scope:
    """Where statements are drawn: the program's own, or the body of a function in it."""

    def __init__(self, drawing: Drawing, outer: "Scope | None" = None, mapped: Sequence[wf.Dim] = ()):
        self.drawing, self.rng, self.outer = drawing, drawing.rng, outer
        self.mapped = [*(outer.mapped if outer else ()), *mapped]
        self.depth = outer.depth + 1 if outer else 0
        self.known: dict[str, Known] = drawing.known if outer is None else {}
        self.lines: list[str] = []

    @property
    def all_known(self) -> dict[str, Known]:
        return {**(self.outer.all_known if self.outer else {}), **self.known}

    def inner(self, mapped: Sequence[wf.Dim] = ()) -> "Scope":
        return Scope(self.drawing, self, mapped)

    def receives(self, name: str, shape: Any, like: Known, *, turns: bool = False) -> None:
        """A parameter of the function whose body this is; in a loop that turns, floats may have been rounded."""
        is_rounded = turns and not (is_whole(like.dtype) or is_bool(like.dtype))
        self.known[name] = Known(shape, like.exact and not is_rounded, like.even)
        self.drawing.shapes.append([*self.mapped, *shape.dims])

    def usable(self, condition: Callable[[Known], bool]) -> list[str]:
        """Variables at hand that name no mapped dim, those made here first."""
        outside = {d.name for d in self.mapped}
        return [
            name
            for name, known in self.all_known.items()
            if not outside & {d.name for d in known.dims} and condition(known)
        ]

    def partner(self, dims: Sequence[wf.Dim], dtype: Any = None) -> str | None:
        """A variable that can meet one of these dims."""
        sizes = {d.name: d for d in dims}
        found = self.usable(
            lambda k: (
                all(sizes.get(d.name, d) == d for d in k.dims)
                and fits([*dims, *(d for d in k.dims if d.name not in sizes)])
                and (dtype is None or k.dtype == dtype)
            )
        )
        return self.rng.choice(found) if found else None

    def bind(
        self,
        expression: str,
        word: str,
        exact: bool,
        *,
        before: str = "",
        count: int = 1,
        met: Sequence[str] = (),
        body: "Scope | None" = None,
    ) -> str | None:
        """A variable that holds what the expression gives; None where it is refused or too large."""
        results = self.shape_of(expression, before)
        if results is None:
            return None
        shapes = list(results) if count > 1 else [results]
        if not all(fits([*self.mapped, *shape.dims]) for shape in shapes):
            return None
        names = [self.drawing.fresh() for _ in shapes]
        all_known = self.all_known
        exact = exact and all(all_known[x].exact for x in met)
        even = all(all_known[x].even for x in met) and self._stays_even(word, exact, shapes, body)
        self.drawing.fragile |= word in CHOOSING and not all(all_known[x].even for x in met)
        for name, shape in zip(names, shapes, strict=True):
            self.known[name] = Known(shape, exact, even)
            self.drawing.shapes.append([*self.mapped, *shape.dims])
        together = {d.name: d for x in met for d in self.all_known[x].dims}
        self.drawing.shapes.append([*self.mapped, *together.values()])
        self.drawing.words.update((word, str(self.all_known[x].dtype)) for x in met)
        text = f"{before}{', '.join(names)} = {expression}"
        self.lines.append(text)
        if self.outer is None:
            self.drawing.statements.append(Statement(text, names, word))
        return names[0]

    def _stays_even(self, word: str, exact: bool, shapes: Sequence[Any], body: "Scope | None") -> bool:
        if body is not None:
            return all(k.even for k in body.known.values())
        return exact or (word in EVEN and all(shape.dtype == "float32" for shape in shapes))

    def shape_of(self, expression: str, before: str = "") -> Any:
        env = {name: known.shape for name, known in self.all_known.items()}

        def run(env: dict[str, Any]) -> Any:
            scope = {"wf": wf, "jax": jax, "jnp": jnp, **self.drawing.dims, **env}
            exec(before, scope)
            return eval(expression, scope)

        try:
            return jax.eval_shape(run, env)
        except wf.WeftError as error:
            self.drawing.refusals.append(error.fact)
            return None
        except Exception as error:
            raise RawError(f"{type(error).__name__}: {error}\n{before}{expression}") from error

    def written(self, indent: str = "    ") -> str:
        return "".join(f"{indent}{line}\n" for text in self.lines for line in text.splitlines())


def fits(dims: Iterable[wf.Dim]) -> bool:
    sizes = [dim.size for dim in dims]
    return len(sizes) <= MOST_DIMS and math.prod(sizes) <= MOST_VALUES and max(sizes, default=1) <= LARGEST


def names(dims: Iterable[wf.Dim]) -> str:
    return " ".join(d.name for d in dims)


def listed(dims: Iterable[wf.Dim]) -> str:
    """The dims as the program writes them, with their sizes where these are not the names' own."""
    return "[" + ", ".join(written_dim(d) for d in dims) + "]"


def written_dim(dim: wf.Dim) -> str:
    valid = f", valid={dim.valid}" if dim.is_padded else ""
    follows = f", follows={dim.follows!r}" if dim.follows else ""
    return f"wf.Dim({dim.name!r}, {dim.size}{follows}{valid})"
