"""Random programs: drawn step by step on small whole tensors, replayed under a mesh and a layout.

A program is a list of steps on a growing list of tensors. It is drawn while it is traced on whole tensors with no
mesh, so every step is legal there; the replay must give the same values, or a WeftError.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st

import weft as wf

# Names of one size can be renamed into each other; `f` and `g` follow others.
EIGHTS = [wf.Dim(name, 8) for name in "abcpq"] + [wf.Dim("f", 8, follows="a")]
FOURS = [wf.Dim(name, 4) for name in "deru"] + [wf.Dim("g", 4, follows="d")]
ALL = EIGHTS + FOURS
MESHES = ["x=2", "x=4", "x=8", "x=1,y=2", "x=2,y=2", "x=4,y=2", "x=2,y=4", "x=2,y=2,z=2"]

CASES = int(os.environ.get("WEFT_CASES", "0"))


def sampled(examples: int, *more: Phase) -> settings:
    """So many cases, the same each time; or as many as WEFT_CASES says, drawn anew and not made smaller."""
    return settings(
        max_examples=CASES or examples,
        derandomize=not CASES,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.generate, *(() if CASES else more)),
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Program:
    """The inputs of a program, its steps, and every dim name that stands in it."""

    inputs: list[wf.Tensor]
    ids: list[wf.Tensor]
    steps: list[Callable[..., wf.Tensor]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def run(self, inputs: list[wf.Tensor], ids: list[wf.Tensor]) -> list[wf.Tensor]:
        found = list(inputs)
        for step in self.steps:
            found.append(step(found, ids))
        return found

    def loss(self, inputs: list[wf.Tensor], ids: list[wf.Tensor]) -> tuple[wf.Tensor, list[wf.Tensor]]:
        found = self.run(inputs, ids)
        total = wf.zeros([])
        for i, x in enumerate(found[len(inputs) :] or found):
            weights = wf.random.normal(jax.random.key(i), x.dims)
            total = total + wf.sum(wf.cast(x, "float32") * weights, over=x.dims)
        return total, found[len(inputs) :]


def subset(draw, items, least=1, most=None):
    items = list(items)
    chosen = draw(
        st.lists(st.sampled_from(range(len(items))), min_size=least, max_size=most or len(items), unique=True)
    )
    return [items[i] for i in chosen]


def draw_program(draw, most_steps=8) -> Program:
    count = draw(st.integers(1, 3))
    shapes = [subset(draw, ALL, 1, 3) for _ in range(count)]
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    make = [draw(st.sampled_from([wf.tensor, wf.parameter])) for _ in shapes]
    inputs = [
        kind(generator.normal(size=[d.size for d in dims]).astype("float32"), dims)
        for kind, dims in zip(make, shapes, strict=True)
    ]
    id_dims = subset(draw, ALL, 0, 2)
    values = generator.integers(-2, 10, [d.size for d in id_dims], "int32")
    program = Program(inputs, [wf.tensor(values, id_dims)])
    found = list(inputs)
    for _ in range(draw(st.integers(1, most_steps))):
        name = draw(st.sampled_from(sorted(STEPS)))
        step = STEPS[name](draw, found, program.ids)
        if step is None:
            continue
        result = jax.eval_shape(step, found, program.ids)
        if not 0 < len(result.dims) <= 4 and result.dims:
            continue
        program.steps.append(step)
        program.words.append(name)
        found.append(result)
    program.names = sorted({d.name for x in [*found, *program.ids] for d in x.dims})
    return program


def draw_layout(draw, program: Program, mesh: str) -> str:
    axes = [part.split("=")[0] for part in mesh.split(",")]
    rules = []
    for axis in axes:
        for name in subset(draw, program.names, 0, 2):
            rules.append((name, axis))
    joined: dict[str, list[str]] = {}
    for name, axis in rules:
        joined.setdefault(name, []).append(axis)
    text = [f"{name}:{'+'.join(over)}" for name, over in joined.items()]
    stored = sorted({d.name for x in program.inputs if x._kind.store for d in x.dims})
    if stored and draw(st.booleans()):
        text.append(f"params.{draw(st.sampled_from(stored))}:{draw(st.sampled_from(axes))}")
    return ",".join(text)


# ---- steps: each draws its choices on whole tensors and gives a function of the tensors so far ----
STEPS: dict[str, Callable[..., Any]] = {}


def step(fn):
    STEPS[fn.__name__] = fn
    return fn


def pick(draw, found):
    return draw(st.integers(0, len(found) - 1))


UNARY = {
    "tanh": wf.tanh,
    "sin": wf.sin,
    "relu": wf.relu,
    "gelu": wf.gelu,
    "half": lambda x: x * 0.5,
    "minus": lambda x: 1 - x,
    "square": lambda x: wf.square(wf.tanh(x)),
    "stopped": lambda x: x - 0.5 * wf.stop_gradient(x),
    "clipped": lambda x: wf.clip(x, -1.0, 1.0),
}


@step
def unary(draw, found, ids):
    i, name = pick(draw, found), draw(st.sampled_from(sorted(UNARY)))
    return lambda t, ids: UNARY[name](t[i])


@step
def binary(draw, found, ids):
    i, j = pick(draw, found), pick(draw, found)
    fn = draw(st.sampled_from([wf.add, wf.multiply, wf.subtract, wf.maximum]))
    if len({d.name for d in (*found[i].dims, *found[j].dims)}) > 4:
        return None
    return lambda t, ids: wf.tanh(fn(t[i], t[j]))


REDUCE = {
    "sum": wf.sum,
    "mean": wf.mean,
    "max": wf.max,
    "min": wf.min,
    "logsumexp": wf.logsumexp,
    "var": wf.var,
    "prod": lambda x, over: wf.prod(1 + 0.1 * wf.tanh(x), over=over),
}


@step
def reduce(draw, found, ids):
    i, name = pick(draw, found), draw(st.sampled_from(sorted(REDUCE)))
    if not found[i].dims:
        return None
    over = [d.name for d in subset(draw, found[i].dims)]
    return lambda t, ids: wf.tanh(REDUCE[name](t[i], over=over))


@step
def normalize(draw, found, ids):
    i, fn = pick(draw, found), draw(st.sampled_from([wf.softmax, wf.log_softmax]))
    if not found[i].dims:
        return None
    over = [d.name for d in subset(draw, found[i].dims)]
    return lambda t, ids: fn(t[i], over=over)


@step
def einsum(draw, found, ids):
    chosen = [pick(draw, found) for _ in range(draw(st.integers(1, 3)))]
    names = list(dict.fromkeys(d.name for i in chosen for d in found[i].dims))
    if not names or len(names) > 6:
        return None
    kept = subset(draw, names, 0, 3)
    rename = {}
    if kept and draw(st.booleans()):
        old = draw(st.sampled_from(kept))
        rename = new_name(draw, found, chosen, old, kept)
    return lambda t, ids: wf.tanh(wf.einsum(*(t[i] for i in chosen), out=kept, rename=rename))


def new_name(draw, found, chosen, old, taken):
    size = next(d.size for i in chosen for d in found[i].dims if d.name == old)
    free = [d for d in ALL if d.size == size and d.name not in taken]
    return {old: draw(st.sampled_from(free))} if free else {}


@step
def rename(draw, found, ids):
    i = pick(draw, found)
    if not found[i].dims:
        return None
    names = {}
    for old in subset(draw, [d.name for d in found[i].dims], 1, 2):
        taken = [d.name for d in found[i].dims] + [new.name for new in names.values()]
        names |= new_name(draw, found, [i], old, taken)
    return (lambda t, ids: t[i].rename(**names)) if names else None


@step
def swap(draw, found, ids):
    i = pick(draw, found)
    pairs = [(a, b) for a in found[i].dims for b in found[i].dims if a.name < b.name and a.size == b.size]
    if not pairs:
        return None
    a, b = draw(st.sampled_from(pairs))
    return lambda t, ids: t[i].rename(**{a.name: b, b.name: a})


@step
def broadcast(draw, found, ids):
    i = pick(draw, found)
    free = [d for d in ALL if not found[i].dims.has(d)]
    if len(found[i].dims) > 3:
        return None
    dims = draw(st.permutations([*found[i].dims, draw(st.sampled_from(free))]))
    return lambda t, ids: wf.broadcast(t[i], dims)


@step
def take(draw, found, ids):
    i = pick(draw, found)
    open_dims = [d for d in found[i].dims if not ids[0].dims.has(d)]
    if not open_dims or len({*found[i].dims, *ids[0].dims}) > 5:
        return None
    over = draw(st.sampled_from(open_dims)).name
    return lambda t, ids: wf.take(t[i], ids[0], over=over)


@step
def one_hot(draw, found, ids):
    i = pick(draw, found)
    free = [d for d in found[i].dims if not ids[0].dims.has(d)]
    if not free or len({*found[i].dims, *ids[0].dims}) > 4:
        return None
    dim = draw(st.sampled_from(free))
    return lambda t, ids: t[i] * wf.one_hot(ids[0], dim)


@step
def masked(draw, found, ids):
    i = pick(draw, found)
    if not found[i].dims:
        return None
    dim, like = draw(st.sampled_from(list(found[i].dims))), draw(st.booleans())
    return lambda t, ids: wf.where(wf.arange(dim, like=t[i] if like else None) % 3 == 1, t[i], -0.5)


@step
def made(draw, found, ids):
    i, like = pick(draw, found), draw(st.booleans())
    dims = subset(draw, ALL, 0, 2)
    if len({*dims, *found[i].dims}) > 4:
        return None
    fn = draw(st.sampled_from([wf.ones, functools.partial(wf.full, value=0.3)]))
    return lambda t, ids: t[i] + fn(dims, like=t[i] if like else None)


@step
def noise(draw, found, ids):
    i, seed, like = pick(draw, found), draw(st.integers(0, 9)), draw(st.booleans())
    kind = draw(st.sampled_from(["uniform", "bernoulli", "dropout"]))
    key = jax.random.key(seed)
    if kind == "dropout":
        return lambda t, ids: wf.dropout(t[i], 0.4, key)
    sample = getattr(wf.random, kind)
    return lambda t, ids: t[i] * wf.cast(sample(key, t[i].dims, like=t[i] if like else None), "float32")


@step
def scan(draw, found, ids):
    i, j = pick(draw, found), pick(draw, found)
    if not found[i].dims or len({*found[i].dims, *found[j].dims}) > 4:
        return None
    dim, reverse = draw(st.sampled_from(list(found[i].dims))), draw(st.booleans())
    if found[j].dims.has(dim):
        return None
    rest = list({d.name: d for d in (*found[i].dims, *found[j].dims) if d.name != dim.name}.values())

    def run(t, ids):
        def turn(carry, x):
            carry = wf.tanh(0.5 * carry + x * t[j])
            return carry, carry

        last, all_turns = wf.scan(turn, wf.zeros(rest), t[i], over=dim, reverse=reverse)
        return last + all_turns

    return run


@step
def vmap(draw, found, ids):
    i, j = pick(draw, found), pick(draw, found)
    if not found[i].dims or len({*found[i].dims, *found[j].dims}) > 4:
        return None
    dim, as_argument = draw(st.sampled_from(list(found[i].dims))), draw(st.booleans())
    if found[j].dims.has(dim):
        return None

    def run(t, ids):
        def one(x, y=None):
            y = t[j] if y is None else y
            return wf.tanh(wf.einsum(x, y, out=x.dims) - wf.mean(x, over=x.dims))

        return wf.vmap(one, over=dim)(t[i], t[j]) if as_argument else wf.vmap(one, over=dim)(t[i])

    return run


@step
def per_example(draw, found, ids):
    i, j = pick(draw, found), pick(draw, found)
    if not found[i].dims or not found[j].dims or len({*found[i].dims, *found[j].dims}) > 4:
        return None
    dim, closed = draw(st.sampled_from(list(found[i].dims))), draw(st.booleans())
    if found[j].dims.has(dim):
        return None

    def run(t, ids):
        def loss(w, x):
            y = wf.tanh(x * w)
            return wf.sum(y, over=y.dims)

        if closed:
            return wf.vmap(lambda x: wf.grad(loss)(t[j], x), over=dim)(t[i])
        return wf.vmap(wf.grad(loss), over=dim)(t[j], t[i])

    return run


@step
def cond(draw, found, ids):
    i, odd = pick(draw, found), draw(st.integers(0, 1))

    def run(t, ids):
        predicate = wf.sum(ids[0], over=ids[0].dims) % 2 == odd
        return wf.cond(predicate, lambda x: wf.tanh(x), lambda x: wf.softmax(x, over=x.dims) if x.dims else x, t[i])

    return run


@step
def loop(draw, found, ids):
    i, kind = pick(draw, found), draw(st.sampled_from(["for", "remat"]))

    def turn(x):
        return wf.tanh(x + 0.1 * wf.sum(x, over=x.dims))

    if kind == "for":
        return lambda t, ids: wf.fori_loop(0, 3, lambda n, x: turn(x) + 0.01 * n, t[i])
    return lambda t, ids: wf.remat(turn)(t[i])


@step
def local(draw, found, ids):
    i = pick(draw, found)
    if not found[i].dims:
        return None
    dim = draw(st.sampled_from(list(found[i].dims)))
    if draw(st.booleans()):
        rest = found[i].dims.without([dim])
        at = found[i].dims.position(dim)
        return lambda t, ids: wf.tanh(wf.local(lambda a: jnp.sum(a, at), t[i], out=rest, summed=dim))

    def run(t, ids):
        at = t[i].dims.position(dim)

        def shifted(a, here):
            numbers = here.start(dim) + jnp.arange(here.size(dim))
            return a + 0.1 * numbers.reshape([-1 if k == at else 1 for k in range(a.ndim)])

        return wf.local(shifted, t[i], out=t[i].dims)

    return run


@step
def inner_gradient(draw, found, ids):
    i, j = pick(draw, found), pick(draw, found)
    if len({*found[i].dims, *found[j].dims}) > 4:
        return None

    def run(t, ids):
        def energy(x):
            y = wf.tanh(x * t[j])
            return wf.sum(y * y, over=y.dims)

        return wf.grad(energy)(t[i])

    return run


def draw_case(draw: Any) -> tuple[Program, str, str]:
    """A program, a mesh and a layout, noted for when the case fails."""
    program = draw_program(draw)
    mesh = draw(st.sampled_from(MESHES))
    layout = draw_layout(draw, program, mesh)
    note(f"mesh {mesh}  layout {layout}  inputs {program.inputs}  ids {program.ids}  steps {program.words}")
    return program, mesh, layout


def differentiated(program: Program) -> Callable[..., Any]:
    def run(inputs: list[wf.Tensor], ids: list[wf.Tensor]) -> Any:
        return wf.value_and_grad(program.loss, has_aux=True)(inputs, ids)

    return run
