"""Meshes and layouts for written programs, and which refusals of theirs are right."""

import math
import random
import re
from collections.abc import Callable

import weft as wf
from tests.properties.layouts import axes_of, placed
from tests.properties.written.drawing import FOLLOWS
from tests.properties.written.program import Written

MESHES = [
    *("x=2", "x=4", "x=8", "x=3", "x=1,y=2", "x=2,y=2", "x=4,y=2", "x=2,y=4", "x=2,y=3"),
    *("x=2,y=2,z=2", "x=2,y=2,z=2", "x=2,y=1,z=4", "x=2|y=4", "x=2|y=2|z=2"),
]

Rules = dict[str, tuple[str, ...]]


def draw_layout(rng: random.Random, program: Written, mesh: str, *, optimizer: bool = False) -> str:
    """Rules that fit, or one time in ten any."""
    sizes, is_blind = axes_of(mesh), rng.random() < 0.1
    leaf_dims = {d.name for leaf in program.leaves for d in leaf.dims}
    names = sorted({d.name for dims in program.shapes for d in dims})
    rules: Rules = {}
    for axis in rng.sample(sorted(sizes), len(sizes)):
        for _ in range(rng.randint(0 if rules else 1, 2)):
            options = [n for n in names if axis not in rules.get(n, ())]
            options = [n for n in options if is_blind or _fits(program, _with(rules, n, axis), sizes)]
            # Those mapped over and those of arguments more often: more depends on them.
            likely = [n for n in options if n in program.mapped] if rng.random() < 0.5 else []
            likely = likely or [n for n in options if n in leaf_dims]
            if options:
                name = rng.choice(likely if likely and rng.random() < 0.8 else options)
                rules = _with(rules, name, axis)
    text = [f"{name}:{'+'.join(axes)}" for name, axes in rules.items()]
    if program.parameters and rng.random() < 0.7:
        text += _stored(rng, program, rules, sizes, is_blind, "params")
    if optimizer and rng.random() < 0.5:
        text += _stored(rng, program, rules, sizes, is_blind, "optimizer")
    return ",".join(text)


def _with(rules: Rules, name: str, axis: str) -> Rules:
    return rules | {name: (*rules.get(name, ()), axis)}


def _stored(rng, program, rules, sizes, is_blind, what) -> list[str]:
    names = sorted({d.name for leaf in program.parameters for d in leaf.dims})
    if not names:
        return []
    name, axis = rng.choice(names), rng.choice(sorted(sizes))
    for leaf in program.parameters:
        for dim in leaf.dims:
            split = placed([d.name for d in leaf.dims], rules, FOLLOWS).get(name, ())
            if dim.name == name and dim.size % math.prod(sizes[a] for a in {*split, axis}) and not is_blind:
                return []
    return [f"{what}.{name}:{axis}"]


def _fits(program: Written, rules: Rules, sizes: dict[str, int]) -> bool:
    if any(sizes[axis] > 1 for name in program.whole for axis in rules.get(name, ())):
        return False
    for dims in program.shapes:
        split = placed([d.name for d in dims], rules, FOLLOWS)
        held = [axis for axes in split.values() for axis in axes]
        if len(set(held)) < len(held):
            return False
        if any(d.size % math.prod(sizes[a] for a in split.get(d.name, ())) for d in dims):
            return False
    return True


def kind_of_layout(mesh: str, layout: str) -> list[str]:
    """What kinds of rules a layout has, for the table."""
    kinds, rules = [], [rule for rule in layout.split(",") if rule]
    data = [rule for rule in rules if "." not in rule]
    kinds += ["one dim"] if len(data) == 1 else ["several dims"] if data else []
    kinds += ["dim over two axes"] if any("+" in rule for rule in data) else []
    kinds += [what for what in ("params", "optimizer") if any(rule.startswith(f"{what}.") for rule in rules)]
    kinds += ["three axes"] if mesh.count("=") == 3 else []
    return kinds or ["none"]


# ---- refusals


def wrong_in(error: wf.WeftError, program: Written, mesh: str, layout: str) -> str:
    """What is wrong with a refusal; nothing if its reason is one a layout can give, and holds."""
    for pattern, holds in REASONS.items():
        if (found := re.match(pattern, error.fact)) is not None:
            return "" if holds(found, program, axes_of(mesh), wf.Layout(layout)) else "its reason does not hold"
    return "its reason is none that a layout can give"


def _axes(name: str, layout: wf.Layout) -> set[str]:
    rules = [layout.rules.get(name, layout.rules.get(FOLLOWS.get(name, ""), ()))]
    rules += [layout.params.get(name, ()), layout.optimizer.get(name, ()) if layout.optimizer else ()]
    return {axis for axes in rules for axis in axes}


def _clash(found: re.Match, program: Written, sizes: dict[str, int], layout: wf.Layout) -> bool:
    """Two dims that some value of the program has together are split over one axis."""
    one, other, axis = found["one"], found["other"], found["axis"]
    if one == other or axis not in _axes(one, layout) & _axes(other, layout):
        return False
    known = [{d.name for d in dims} for dims in program.shapes]
    return any({one, other} <= names for names in known)


def _remains(found: re.Match, program: Written, sizes: dict[str, int], layout: wf.Layout) -> bool:
    axes = found["axes"].split("+")
    known = {(d.name, d.size) for dims in program.shapes for d in dims}
    size = int(found["size"])
    is_known = (found["name"], size) in known
    return is_known and bool(size % math.prod(sizes[a] for a in axes)) and set(axes) <= _axes(found["name"], layout)


def _is_split(found: re.Match, program: Written, sizes: dict[str, int], layout: wf.Layout) -> bool:
    return any(sizes[axis] > 1 for axis in _axes(found["name"], layout))


def _no_microbatches(found: re.Match, program: Written, sizes: dict[str, int], layout: wf.Layout) -> bool:
    ways = math.prod(
        sizes[a] for a in layout.rules.get(found["name"], layout.rules.get(FOLLOWS.get(found["name"]), ()))
    )
    return int(found["ways"]) == ways and bool(int(found["size"]) % (ways * int(found["count"])))


Reason = Callable[[re.Match, Written, dict[str, int], wf.Layout], bool]
REASONS: dict[str, Reason] = {
    r"dims `(?P<one>\w+)` and `(?P<other>\w+)` of \[.*\] are both (stored )?split over axis `(?P<axis>\w+)`": _clash,
    r"dim `(?P<name>\w+)` \(size (?P<size>\d+)\) does not divide over mesh ax[ei]s `(?P<axes>[\w+]+)`": _remains,
    r"scan goes over `(?P<name>\w+)`": _is_split,
    r"`(?P<name>\w+)` \(size (?P<size>\d+), split (?P<ways>\d+) ways\) does not divide into (?P<count>\d+) micro": (
        _no_microbatches
    ),
}
