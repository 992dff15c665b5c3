"""Random programs: drawn step by step on small whole tensors, replayed under a mesh and a layout.

A program is a list of nodes: leaves, which are its arguments, and steps, each with two forms of one operation: weft's,
and plain jnp's on named arrays. It is drawn while it is traced on whole tensors with no mesh, so every step is legal
there; the replay must give the same values and gradients, or a WeftError that is right.
"""

import contextlib
import functools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf

# Names of one size can be renamed into each other; `f` and `g` follow others. Ops change the sizes.
SIZES = dict.fromkeys("abcpf", 8) | dict.fromkeys("deug", 4) | dict.fromkeys("hi", 6)
FOLLOWS = {"f": "a", "g": "d"}
MESHES = [
    *("x=1", "x=2", "x=3", "x=4", "x=8", "x=1,y=2", "x=2,y=2", "x=4,y=2", "x=2,y=4", "x=2,y=3"),
    *("x=2,y=2,z=2", "x=2,y=1,z=4", "x=4,y=1,z=2"),
    *("x=2|y=2", "x=2|y=4", "x=4|y=2", "x=2|y=2|z=2", "x=2|y=1|z=4"),
]
MOST_DIMS, MOST_VALUES, LARGEST = 4, 1024, 32

CASES = int(os.environ.get("WEFT_CASES", "0"))


def sampled(examples: int) -> Any:
    """So many cases, the same each time; or as many as WEFT_CASES says, drawn anew."""
    from hypothesis import HealthCheck, Phase, settings  # only the tests need it: programs are drawn without

    return settings(
        max_examples=CASES or examples,
        derandomize=not CASES,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def named(name: str, size: int | None = None) -> wf.Dim:
    return wf.Dim(name, SIZES[name] if size is None else size, follows=FOLLOWS.get(name))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["dims"])
@dataclass(frozen=True)
class Plain:
    """A named array: what the plain form of an op is made of."""

    array: Any
    dims: tuple[wf.Dim, ...]

    @property
    def names(self) -> list[str]:
        return [dim.name for dim in self.dims]

    def axis(self, name: str) -> int:
        return self.names.index(name)

    def along(self, dims: Sequence[wf.Dim]) -> Any:
        """The array with its axes in the order of `dims`, of size 1 for those it lacks."""
        order = [self.axis(dim.name) for dim in dims if dim.name in self.names]
        assert len(order) == len(self.dims), (self.dims, dims)
        sizes = [dim.size if dim.name in self.names else 1 for dim in dims]
        return jnp.transpose(self.array, order).reshape(sizes)

    def like(self, array: Any) -> "Plain":
        return Plain(array, self.dims)

    def replaced(self, array: Any, name: str, *new: wf.Dim) -> "Plain":
        """An array in which the dim `name` became others, or has gone."""
        at = self.axis(name)
        return Plain(array, (*self.dims[:at], *new, *self.dims[at + 1 :]))

    def resized(self, array: Any) -> "Plain":
        return Plain(array, tuple(dim.resized(size) for dim, size in zip(self.dims, array.shape, strict=True)))


def joined(*shapes: Sequence[wf.Dim]) -> list[wf.Dim]:
    """All dims, in the order in which they are first seen."""
    return list({dim.name: dim for dims in shapes for dim in dims}.values())


def elementwise(fn: Callable[..., Any], *xs: Plain) -> Plain:
    dims = tuple({dim.name: dim for x in xs for dim in x.dims}.values())
    return Plain(fn(*(x.along(dims) for x in xs)), dims)


@dataclass
class Form:
    """One operation on a tensor and some more nodes of the program: weft's form, and the plain one."""

    text: str
    weft: Callable[..., wf.Tensor]
    plain: Callable[..., Plain]
    more: list[int] = field(default_factory=list)
    # It orders values: they are first put on a grid, where rounding cannot change which of two is larger.
    is_ordering: bool = False
    # Dims it needs whole, so that layouts that split them are drawn seldom.
    whole: list[str] = field(default_factory=list)
    # The operations that run inside it, and what they make.
    words: list[str] = field(default_factory=list)
    shapes: list[Sequence[wf.Dim]] = field(default_factory=list)


FORMS: dict[str, Callable[..., Form | None]] = {}


def form(fn: Callable[..., Form | None]) -> Callable[..., Form | None]:
    """Lists an operation: `fn(rng, program, dims)` draws one on a tensor of these dims, or finds that it cannot."""
    FORMS[fn.__name__] = fn
    return fn


@dataclass
class Node:
    """A leaf, which has a value, or a step; `shape` says its dims and dtype."""

    shape: Any
    word: str
    value: wf.Tensor | None = None
    step: Form | None = None
    args: list[int] = field(default_factory=list)

    @property
    def dims(self) -> tuple[wf.Dim, ...]:
        return self.shape.dims

    @property
    def shapes(self) -> list[Sequence[wf.Dim]]:
        """The dims of all that the node makes, inside of it too."""
        return [self.dims, *(self.step.shapes if self.step is not None else [])]


GRID = 4.0


def _on_grid(x: Any, floor: Any, stop: Any) -> Any:
    """The grid's value, with the gradient of `x`."""
    return stop(floor(x * GRID + 0.31) / GRID) + (x - stop(x))


ON_GRID = Form(
    "on a grid",
    lambda x: _on_grid(x, wf.floor, wf.stop_gradient),
    lambda x: x.like(_on_grid(x.array, jnp.floor, jax.lax.stop_gradient)),
)


@dataclass
class Program:
    """Leaves and steps; while it is drawn, also the names that stand outside of what is being drawn."""

    seed: int
    nodes: list[Node] = field(default_factory=list)
    outside: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)

    # ---- drawing

    def leaf(self, rng: random.Random, dims: Sequence[wf.Dim], ids: tuple[int, int] | None = None) -> int:
        """A new argument: floats, or integers in a range."""
        generator = np.random.default_rng([self.seed, len(self.nodes)])
        sizes = [dim.size for dim in dims]
        if ids is not None:
            value = wf.tensor(np.asarray(generator.integers(*ids, sizes, "int32")), dims)
        else:
            make = pick(rng, [wf.tensor, wf.parameter])
            value = make(np.asarray(generator.normal(size=sizes).astype("float32")), dims)
        shape = jax.ShapeDtypeStruct(value.array.shape, value.array.dtype)
        self.nodes.append(Node(wf.tensor(shape, dims), f"{'ids' if ids else 'x'}[{show(dims)}]", value))
        return len(self.nodes) - 1

    def partner(self, rng: random.Random, dims: Sequence[wf.Dim]) -> int | None:
        """Another tensor that can meet one of these dims."""
        found = [i for i, node in enumerate(self.nodes) if self._meets(node, dims)]
        return pick(rng, found) if found else None

    def _meets(self, node: Node, dims: Sequence[wf.Dim]) -> bool:
        sizes = {dim.name: dim.size for dim in dims}
        return (
            is_float(node)
            and all(sizes.get(dim.name, dim.size) == dim.size for dim in node.dims)
            and not {dim.name for dim in node.dims} & self.outside
            and fits(joined(dims, node.dims))
        )

    def fresh(self, rng: random.Random, size: int, taken: Sequence[wf.Dim] = ()) -> wf.Dim:
        """A dim of this size under a name that is not taken."""
        gone = {dim.name for dim in taken} | self.outside
        return named(pick(rng, [name for name in SIZES if name not in gone]), size)

    def add(self, step: Form, args: list[int], word: str) -> bool:
        """The step's result as a new node, if it is small enough."""
        shape = jax.eval_shape(step.weft, *(self.nodes[i].shape for i in args))
        if not fits(shape.dims):
            return False
        self.nodes.append(Node(shape, word, step=step, args=args))
        self.whole.update(step.whole)
        return True

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """While what is drawn runs in a loop or a map over a dim, which it must not name."""
        self.outside.add(name)
        yield
        self.outside.discard(name)

    # ---- reading

    @property
    def leaves(self) -> list[Node]:
        return [node for node in self.nodes if node.value is not None]

    @property
    def steps(self) -> list[Node]:
        return [node for node in self.nodes if node.step is not None]

    @property
    def inputs(self) -> list[wf.Tensor]:
        return [node.value for node in self.nodes if node.value is not None]

    @property
    def words(self) -> list[str]:
        """The operations that take part, those inside of others too."""
        return [word for node in self.nodes if node.step is not None for word in (node.word, *node.step.words)]

    def terms(self) -> int:
        """The most values that meet in one step, and so the most that are added up."""
        met = [joined(node.dims, *(self.nodes[i].dims for i in node.args)) for node in self.nodes]
        return max(math.prod(dim.size for dim in dims) for dims in met)

    def parts(self) -> list["Program"]:
        """For each step the program of what leads to it, the shortest first."""
        found = []
        for i, node in enumerate(self.nodes):
            if node.step is not None:
                kept = sorted(self._leading_to(i))
                nodes = [replace(self.nodes[k], args=[kept.index(j) for j in self.nodes[k].args]) for k in kept]
                found.append(Program(self.seed, nodes, whole=self.whole))
        return sorted(found, key=lambda part: len(part.nodes))

    def _leading_to(self, i: int) -> set[int]:
        return {i}.union(*(self._leading_to(j) for j in self.nodes[i].args))

    def show(self) -> str:
        lines = []
        for i, node in enumerate(self.nodes):
            text = node.word if node.step is None else f"{node.step.text} of {node.args} -> [{show(node.dims)}]"
            lines.append(f"  {i}: {text}")
        return "\n".join(lines)

    # ---- running

    def run(self, inputs: list[Any], kind: str) -> list[Any]:
        """Every node's value; `kind` is weft or plain."""
        left, found = list(inputs), []
        for node in self.nodes:
            if node.step is None:
                found.append(left.pop(0))
                continue
            made = getattr(node.step, kind)(*(found[i] for i in node.args))
            # Random bits depend on the order of the dims, which is weft's to choose.
            found.append(made if kind == "weft" else Plain(made.along(node.dims), node.dims))
        return found

    def weights(self) -> Iterator[tuple[int, wf.Tensor]]:
        """For every step that makes floats a weight for each of its values in the loss."""
        for i, node in enumerate(self.nodes):
            if node.step is not None:
                generator = np.random.default_rng([self.seed, 1000 + i])
                values = generator.normal(size=[dim.size for dim in node.dims]).astype("float32")
                yield i, wf.tensor(np.asarray(values), node.dims)

    def loss(self, inputs: list[wf.Tensor]) -> tuple[wf.Tensor, list[wf.Tensor]]:
        found = self.run(inputs, "weft")
        total = wf.zeros([])
        for i, weights in self.weights():
            total = total + wf.sum(found[i] * weights, over=found[i].dims)
        return total, [x for x, node in zip(found, self.nodes, strict=True) if node.step is not None]

    def plain_loss(self, floats: list[Plain], inputs: list[Plain]) -> Any:
        """The loss, every step's value, and how near the values put on the grid are to its edges."""
        given = iter(floats)
        inputs = [next(given) if is_float(node) else x for x, node in zip(inputs, self.leaves, strict=True)]
        found = self.run(inputs, "plain")
        total, near = jnp.zeros(()), jnp.ones(())
        for i, weights in self.weights():
            total = total + jnp.sum(found[i].along(weights.dims) * weights.array)
            if self.nodes[i].step is ON_GRID:
                places = found[self.nodes[i].args[0]].array * GRID + 0.31
                near = jnp.minimum(near, jnp.min(jnp.abs(places - jnp.round(places)) / GRID))
        return total, ([found[i] for i, _ in self.weights()], near)


def is_float(node: Node) -> bool:
    return jnp.issubdtype(node.shape.dtype, jnp.floating)


def fits(dims: Sequence[wf.Dim]) -> bool:
    sizes = [dim.size for dim in dims]
    return len(sizes) <= MOST_DIMS and math.prod(sizes) <= MOST_VALUES and max(sizes, default=1) <= LARGEST


def show(dims: Sequence[wf.Dim]) -> str:
    return " ".join(f"{dim.name}={dim.size}" for dim in dims)


# ---- drawing


def randoms() -> Any:
    """Where cases are drawn from. Hypothesis would draw what it finds simple again and again."""
    from hypothesis import strategies as st

    return st.randoms(use_true_random=True)


def pick(rng: random.Random, items: Iterable[Any]) -> Any:
    return rng.choice(list(items))


def shuffled(rng: random.Random, items: Iterable[Any]) -> list[Any]:
    return rng.sample(items := list(items), len(items))


def subset(rng: random.Random, items: Iterable[Any], least: int = 1, most: int | None = None) -> list[Any]:
    items = list(items)
    return rng.sample(items, rng.randint(least, len(items) if most is None else min(most, len(items))))


def flip_coin(rng: random.Random, one_in: int = 2) -> bool:
    return rng.randint(1, one_in) == one_in


def draw_program(rng: random.Random, most_steps: int = 5) -> Program:
    program = Program(rng.randint(0, 1000))
    for _ in range(rng.randint(1, 2)):
        dims = [named(name) for name in subset(rng, SIZES, pick(rng, [1, 2, 3]), 4)]
        program.leaf(rng, dims if fits(dims) else dims[:2])
    wanted, tries = rng.randint(1, most_steps), 0
    while len(program.steps) < wanted and tries < 4 * most_steps:
        tries += 1
        draw_step(rng, program, pick(rng, sorted(FORMS)))
    if not program.steps:
        draw_step(rng, program, "unary")  # which always can
    return program


def draw_step(rng: random.Random, program: Program, word: str) -> None:
    floats = [i for i, node in enumerate(program.nodes) if is_float(node)]
    # The latest more often, so that steps follow on each other.
    i = floats[-1] if flip_coin(rng) else pick(rng, floats)
    count = len(program.nodes)
    step = FORMS[word](rng, program, program.nodes[i].dims)
    if step is not None:
        if step.is_ordering:
            program.add(ON_GRID, [i], "on_grid")
            i = len(program.nodes) - 1
        if program.add(step, [i, *step.more], word):
            return
    del program.nodes[count:]  # what was drawn for it


def differentiated(program: Program) -> Callable[..., Any]:
    def run(inputs: list[wf.Tensor]) -> Any:
        return wf.value_and_grad(program.loss, has_aux=True)(inputs)

    return run
