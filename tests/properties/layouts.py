"""Random layouts for random programs, and whether a refusal of one is right.

Most layouts are drawn so that they fit: no two dims that meet are split over one axis, sizes divide, what an op needs
whole is whole. One in eight is drawn blindly; what is refused must be refused for a reason that holds.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence

import weft as wf
from tests.properties import steps_conv, steps_core, steps_moving, steps_nested, steps_order, steps_random  # noqa: F401
from tests.properties.programs import FOLLOWS, MESHES, Program, draw_program, flip_coin, pick, shuffled, subset

Rules = dict[str, tuple[str, ...]]


def draw_case(rng: random.Random) -> tuple[Program, str, str]:
    """A program, a mesh and a layout, noted for when the case fails."""
    from hypothesis import note

    program = draw_program(rng)
    mesh = pick(rng, MESHES)
    layout = draw_layout(rng, program, mesh)
    note(f"mesh {mesh}  layout {layout}\n{program.show()}")
    return program, mesh, layout


def draw_layout(rng: random.Random, program: Program, mesh: str) -> str:
    sizes = axes_of(mesh)
    is_blind = flip_coin(rng, 8)
    names = sorted({dim.name for node in program.nodes for dim in node.dims})
    rules: Rules = {}
    for axis in shuffled(rng, sorted(sizes)):
        for _ in range(rng.randint(0 if rules else 1, 2)):
            options = [
                name
                for name in names
                if axis not in rules.get(name, ())
                and (is_blind or fits(program, rules | {name: (*rules.get(name, ()), axis)}, sizes))
            ]
            if options:
                name = pick(rng, options)
                rules[name] = (*rules.get(name, ()), axis)
    text = [f"{name}:{'+'.join(over)}" for name, over in rules.items()]
    stored = subset(rng, sorted(stored_names(program)), 0, 2) if flip_coin(rng) else []
    for name in stored:
        axis = pick(rng, sorted(sizes))
        if is_blind or fits_stored(program, rules, name, axis, sizes):
            text.append(f"params.{name}:{axis}")
            if not is_blind:
                break  # two of them may want one axis
    return ",".join(text)


def axes_of(mesh: str) -> dict[str, int]:
    return {part.split("=")[0]: int(part.split("=")[1]) for part in re.split("[,|]", mesh)}


def placed(names: Sequence[str], rules: Rules, follows: Mapping[str, str] = FOLLOWS) -> Rules:
    """The axes of each dim of a tensor: its rule's, or those of the dim it follows that no rule has given away."""
    explicit = {name: rules[name] for name in names if name in rules}
    held = {axis for axes in explicit.values() for axis in axes}
    inherited = {
        name: tuple(axis for axis in rules[follows[name]] if axis not in held)
        for name in names
        if name not in rules and follows.get(name) in rules
    }
    return explicit | inherited


def fits(program: Program, rules: Rules, sizes: dict[str, int]) -> bool:
    for name in program.whole:
        if any(sizes[axis] > 1 for axis in placed([name], rules).get(name, ())):
            return False
    for node in program.nodes:
        if not all(divides(dims, rules, sizes) for dims in node.shapes):
            return False
        met = [dim.name for i in node.args for dim in program.nodes[i].dims]
        for names in (*([dim.name for dim in dims] for dims in node.shapes), list(dict.fromkeys(met))):
            held = [axis for axes in placed(names, rules).values() for axis in axes]
            if len(set(held)) < len(held):
                return False
    return True


def divides(dims: Sequence[wf.Dim], rules: Rules, sizes: dict[str, int]) -> bool:
    split = placed([dim.name for dim in dims], rules)
    ways = {name: math.prod(sizes[axis] for axis in axes) for name, axes in split.items()}
    return not any(dim.size % ways.get(dim.name, 1) for dim in dims)


def stored_names(program: Program) -> set[str]:
    return {dim.name for leaf in program.leaves if leaf.value.kind.store for dim in leaf.dims}


def fits_stored(program: Program, rules: Rules, name: str, axis: str, sizes: dict[str, int]) -> bool:
    for leaf in program.leaves:
        for dim in leaf.dims:
            split = placed([d.name for d in leaf.dims], rules).get(dim.name, ())
            if dim.name == name and dim.size % math.prod(sizes[a] for a in {*split, axis}):
                return False
    return True


# ---- whether a refusal is right


def wrong_in(error: wf.WeftError, program: Program, mesh: str, layout: str) -> str:
    """What is wrong with a refusal; nothing if its reason holds."""
    for pattern, holds in REASONS.items():
        if (found := re.match(pattern, error.fact)) is not None:
            return "" if holds(found, program, axes_of(mesh), wf.Layout(layout)) else "its reason does not hold"
    return "its reason is none that a layout can give"


def _axes(name: str, layout: wf.Layout) -> set[str]:
    """All axes that any rule gives a dim."""
    rules = (layout.rules.get(name, layout.rules.get(FOLLOWS.get(name, ""), ())), layout.params.get(name, ()))
    return {axis for axes in rules for axis in axes}


def _clash(found: re.Match, program: Program, sizes: dict[str, int], layout: wf.Layout) -> bool:
    one, other, axis = found["one"], found["other"], found["axis"]
    return one != other and axis in _axes(one, layout) and axis in _axes(other, layout)


def _remains(found: re.Match, program: Program, sizes: dict[str, int], layout: wf.Layout) -> bool:
    axes = found["axes"].split("+")
    ways = math.prod(sizes[axis] for axis in axes)
    known = [dim for node in program.nodes for dims in node.shapes for dim in dims]
    is_known = any(dim.name == found["name"] and dim.size == int(found["size"]) for dim in known)
    return is_known and bool(int(found["size"]) % ways) and set(axes) <= _axes(found["name"], layout)


def _must_be_whole(found: re.Match, program: Program, sizes: dict[str, int], layout: wf.Layout) -> bool:
    return found["name"] in program.whole and any(sizes[axis] > 1 for axis in _axes(found["name"], layout))


def _groups_remain(found: re.Match, program: Program, sizes: dict[str, int], layout: wf.Layout) -> bool:
    axes = found["axes"].split("+")
    ways = math.prod(sizes[axis] for axis in axes)
    return (
        int(found["ways"]) == ways and bool(int(found["groups"]) % ways) and set(axes) <= _axes(found["name"], layout)
    )


REASONS = {
    r"dims `(?P<one>\w+)` and `(?P<other>\w+)` of \[.*\] are both (stored )?split over axis `(?P<axis>\w+)`": _clash,
    r"dim `(?P<name>\w+)` \(size (?P<size>\d+)\) does not divide over mesh ax[ei]s `(?P<axes>[\w+]+)`": _remains,
    r"scan goes over `(?P<name>\w+)`": _must_be_whole,
    r"conv(_transpose)? has (?P<groups>\d+) groups, which do not divide over (?P<axes>[\w+]+) \((?P<ways>\d+) ways\), "
    r"where `(?P<name>\w+)` is split": _groups_remain,
    r"conv(_transpose)? needs `(?P<name>\w+)` whole": _must_be_whole,
}
