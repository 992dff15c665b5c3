"""The printed program: a line for each op, collective and loop.

Collectives stand out, a loop stands once with its count, repeated layers are folded.

Forward lines are what the user wrote, in the order of the source; backward lines say of which operand the gradient is.
Both stand only where the traced program has equations for them, or where nothing needs to run.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp

from ..graph import Loop, Step, Tree, steps
from ..layout import HOST
from ..primitives import Role
from ..record import BRANCHES, Entry, Placed
from .array_type import placed_type
from .ledger import Row, rows_of, unknown_rows
from .lines import Doer, Line, fold
from .reading import Reading
from .transfers import transfers_of

_LONGEST_NAME = 22


@dataclass
class _Group:
    """The equations of one op in one phase at one level."""

    op: int | None
    phase: str
    order: int = 0
    steps: list[Step] = field(default_factory=list)
    rows: list[tuple[Row, int | None]] = field(default_factory=list)
    """What is sent, and of which operand."""
    merged: set[str] = field(default_factory=set)
    """The phases of what is listed here beside its own."""

    @property
    def doers(self) -> frozenset[Doer]:
        """Whose work its equations are, but for what is sent."""
        return frozenset(Doer(self.op, phase) for phase in (self.phase, *self.merged))

    @property
    def has_work(self) -> bool:
        return any(step.collective is None and not step.is_trivial for step in self.steps)

    @property
    def times(self) -> int:
        """How often these equations stand here: a function traced once and called again."""
        # An op may call one function of JAX's twice; what the user calls twice stands twice as a whole.
        work = [step for step in self.steps if not step.is_trivial and step.collective is None]
        return min(Counter(id(step.eqn) for step in work).values(), default=1)


def listing(reading: Reading) -> list[Line]:
    """The program as sections of lines."""
    sections = []
    level = _Level(reading, reading.graph, None)
    for phases in (("forward",), ("recompute", "backward"), ("update",)):
        items = [item for item in level.items if item.phase in phases]
        lines = _update_lines(reading, items) if phases == ("update",) else level.lines(items)
        if any(line.kind == "section" for line in lines):
            sections.extend(lines)
        elif lines:
            sections.append(Line("section", words=phases[-1], lines=tuple(lines)))
    return sections


class _Level:
    """The equations of one body, grouped by op and phase and put in order."""

    def __init__(self, reading: Reading, tree: Tree, block: Entry | None, phase: str = "forward"):
        self.reading, self.block, self.phase = reading, block, phase
        self.items: list[_Group | Loop] = self._in_order(self._group_steps(tree))

    def _group_steps(self, tree: Tree) -> list[_Group | Loop]:
        groups: dict[tuple[int | None, str, int], _Group] = {}
        items: list[_Group | Loop] = []
        for item in tree:
            entry = self.reading.entry(item.op)
            if isinstance(item, Loop) and (entry.is_block if entry is not None else not item.is_branch):
                items.append(item)
                continue
            for step in steps([item]):
                key = (step.op, step.phase, step.order)
                if key not in groups:
                    groups[key] = _Group(*key)
                    items.append(groups[key])
                groups[key].steps.append(step)
                rows = (*transfers_of(self.reading, step), *rows_of(self.reading, step))
                groups[key].rows.extend((row, step.operand) for row in rows)
        return [item for item in items if not self._is_merged(item, groups)]

    def _is_merged(self, item: "_Group | Loop", groups: dict[Any, _Group]) -> bool:
        """Whether a group is a gather repeated for the gradient, and listed there."""
        if isinstance(item, Loop) or item.phase != "recompute" or self._is_made_again(item):
            return False
        later = groups.get((item.op, "backward", item.order))
        if later is not None:
            later.rows = item.rows + later.rows
            later.merged.add(item.phase)
        return later is not None

    def _is_made_again(self, group: _Group) -> bool:
        """Whether a recomputation gives the op's result, not just an index or a mask."""
        entry = self.reading.entry(group.op)
        if entry is None or not group.has_work:
            return group.has_work
        made = {_elements(var) for s in group.steps if not s.is_trivial for var in s.eqn.outvars}
        return any(self._local_elements(entry, placed) in made for placed in entry.results)

    def _local_elements(self, entry: Entry, placed: Placed) -> int:
        held = dict(zip(placed.dims.names, placed.placement, strict=True)) | entry.dims
        return self.reading.local_elements(placed, held) * self.reading.mapped_times(entry)

    def _in_order(self, items: list["_Group | Loop"]) -> list["_Group | Loop"]:
        forward: list[tuple[tuple[int, int], _Group | Loop]] = []
        last = -1
        for item in items:
            if item.phase == "forward":
                key = self._place(item) or (last, 1)
                last = key[0]
                forward.append((key, item))
        here = {item.op for _, item in forward}
        for entry in self.reading.entries if self.phase == "forward" else ():
            if entry.is_free and not entry.is_gone and entry.id not in here and self._is_here(entry):
                forward.append(((entry.id, 1), _Group(entry.id, "forward")))
        return [item for _, item in sorted(forward, key=lambda pair: pair[0])] + [
            item for item in items if item.phase != "forward"
        ]

    def _place(self, item: "_Group | Loop") -> tuple[int, int] | None:
        """Where a forward item stands in the source; if out of a loop, just before it."""
        entry = self.reading.entry(item.op)
        if entry is None:
            return None
        at = entry
        while not self._is_here(at) and at.parent is not None:
            at = self.reading.entries[at.parent]
        return at.id, 1 if at is entry else 0

    def _is_here(self, entry: Entry) -> bool:
        """Whether an entry stands in this body, or in a function mapped in it."""
        block = None if self.block is None else self.block.id
        for outer in self.reading.around(entry):
            if entry.parent == block or not outer.traits.is_mapped:
                break
            entry = outer
        return entry.parent == block

    def lines(self, items: Sequence["_Group | Loop"]) -> list[Line]:
        """The lines of some items; several phases have a heading each."""
        found: list[Line] = []
        phases = list(dict.fromkeys(item.phase for item in items))
        for phase, run in _runs(items):
            lines = fold(self._join_mapped([line for item in run for line in self._lines(item)]))
            if len(phases) > 1 and lines:
                found.append(Line("section", words=phase, lines=tuple(lines)))
            else:
                found.extend(lines)
        return fold(found) if len(phases) > 1 else found

    def _lines(self, item: "_Group | Loop") -> list[Line]:
        if isinstance(item, Loop):
            return self._loop(item)
        entry = self.reading.entry(item.op)
        sent = _collectives(item.rows, item.op)
        if entry is None or not self._has_line(item, entry):
            return sent
        if entry.is_block or not entry.traits.has_line:
            return sent
        if any(map(self.reading.is_gradient, item.steps)):
            lines = self._backward(item, entry)
        else:
            lines = [replace(self._forward(entry), doers=item.doers), *sent]
        if item.times > 1:
            lines = [replace(line, times=item.times) if line.kind == "op" else line for line in lines]
        return self._put_under_heading(entry, lines)

    def _has_line(self, item: _Group, entry: Entry) -> bool:
        """Whether an op runs here; of one in a loop only a part may, taken out of it."""
        if item.phase != "forward":
            return item.has_work or bool(item.rows)
        return (self.phase == "forward" and self._is_here(entry)) or self._is_made_again(item)

    def _put_under_heading(self, entry: Entry, lines: list[Line]) -> list[Line]:
        """Lines of a function mapped over a dim stand under a heading that says so."""
        stop = None if self.block is None else self.block.id
        while entry.parent is not None and entry.parent != stop:
            entry = self.reading.entries[entry.parent]
            if entry.traits.is_mapped:
                lines = [self._header(entry, f"{entry.op} over {entry.over[0]}", lines)]
        return lines

    def _loop(self, loop: Loop) -> list[Line]:
        entry = self.reading.entry(loop.op)
        around = entry if entry is not None else self.block
        if loop.is_branch:
            return self._branches(loop, around)
        bodies = [_Level(self.reading, body, around, loop.phase) for body in loop.bodies]
        lines = [line for body in bodies for line in body.lines(body.items)]
        if not lines:
            return []
        what = entry.op if entry is not None else loop.row.name
        over = f" over {entry.over[0]}" if entry is not None and entry.over else ""
        unknown = "" if loop.turns is not None else ", turns not known"
        order = ", last to first" if loop.phase == "backward" else ""
        header = self._header(entry, f"{what}{over}", lines, times=loop.turns, aside=unknown + order)
        return [replace(header, doers=frozenset({Doer(loop.op, loop.phase)}))]

    def _branches(self, loop: Loop, entry: Entry | None) -> list[Line]:
        parts = []
        for name, body in zip(BRANCHES, loop.bodies, strict=False):
            inside = (e for e in self.reading.entries if entry is not None and e.parent == entry.id and e.op == name)
            level = _Level(self.reading, body, next((e for e in inside if not e.is_gone), entry), loop.phase)
            lines = level.lines(level.items) or [Line("note", words="nothing")]
            parts.append(Line("block", words=name, lines=tuple(lines)))
        rows = [[row for step in steps(body) for row in rows_of(self.reading, step)] for body in loop.bodies]
        sent = [sum(row.bytes * row.count for row in of_body) for of_body in rows]
        if max(sent) > min(sent):
            at = sent.index(max(sent))
            parts[at] = replace(parts[at], aside=", which sends more and is counted")
        return [self._header(entry, "cond", parts[::-1])]

    def _header(
        self, entry: Entry | None, words: str, lines: Sequence[Line], *, times: int | None = None, aside: str = ""
    ) -> Line:
        op = None if entry is None else entry.id
        site = self.reading.site(entry)
        return Line("block", words=words, times=times, aside=aside, site=site, op=op, lines=tuple(lines))

    def _join_mapped(self, lines: Sequence[Line]) -> list[Line]:
        """Lines with neighbouring parts of one mapped function under one heading."""
        joined: list[Line] = []
        for line in lines:
            entry = self.reading.entry(line.op) if line.kind == "block" else None
            is_mapped = entry is not None and entry.traits.is_mapped
            if joined and is_mapped and replace(line, lines=()) == replace(joined[-1], lines=()):
                joined[-1] = replace(line, lines=tuple(self._join_mapped((*joined[-1].lines, *line.lines))))
            else:
                joined.append(line)
        return joined

    def _forward(self, entry: Entry) -> Line:
        types = tuple(map(placed_type, entry.results))
        name, words, site = self.reading.name(entry), self.reading.text(entry), self.reading.site(entry)
        return Line("op", name, types, words, site=site, op=entry.id)

    def _backward(self, group: _Group, entry: Entry) -> list[Line]:
        """A line for each operand whose gradient is made, and under it what that sends."""
        words = f"gradient of {self.reading.text(entry, operands_only=True)}"
        plain = Line("op", words=words, site=self.reading.site(entry), doers=group.doers)
        lines: list[Line] = []
        shown: set[tuple[str, str]] = set()
        left = list(group.rows)
        for index in self._operands_differentiated(group, entry):
            placed = entry.operands[index]
            assert placed is not None
            used = replace(placed, placement=tuple(entry.dims.get(dim.name, ()) for dim in placed.dims))
            name = _gradient_name(self.reading.operand_name(entry.id, index))
            line = replace(plain, name=name, types=(placed_type(used),))
            if (name, line.type) not in shown:
                lines.append(line)
            shown.add((name, line.type))
            lines += _collectives([pair for pair in left if pair[1] == index], group.op)
            left = [pair for pair in left if pair[1] != index]
        return [*(lines or [plain]), *_collectives(left, group.op)]

    def _operands_differentiated(self, group: _Group, entry: Entry) -> list[int]:
        """The operands whose gradients a group makes: those whose size an array has."""
        work = [step for step in group.steps if not step.is_trivial or len(group.steps) == 1]
        if entry.traits.is_product:
            work = [step for step in work if step.kind is Role.PRODUCT] or work
        made = [_elements(var) for step in work for var in step.eqn.outvars]
        shaped = [_elements(var) for step in group.steps for var in step.eqn.outvars]
        wanted = {
            index: self._local_elements(entry, placed)
            for index, placed in enumerate(entry.operands)
            if placed is not None and entry.gradients[index] is not False and jnp.issubdtype(placed.dtype, jnp.inexact)
        }
        # What surely has a gradient comes before what may have one.
        order = sorted(wanted, key=lambda index: (entry.gradients[index] is None, -index))
        return _match_sizes(wanted, order, made) or _match_sizes(wanted, order, shaped) or list(wanted)


def _gradient_name(of: str) -> str:
    """The name of a gradient: `d w`; of a long path, by its last word.

    >>> _gradient_name("w"), _gradient_name("layers.feed_forward_norm_scale"), _gradient_name("norm(x)")
    ('d w', 'd feed_forward_norm_scale', 'd ...')
    """
    name = of if len(of) <= _LONGEST_NAME else of.split(".")[-1]
    return f"d {name}" if _NAME.fullmatch(name) else "d ..."


_NAME = re.compile(r"[\w.\[\]'\"]+")


def _match_sizes(wanted: dict[int, int], order: Sequence[int], sizes: list[int]) -> list[int]:
    """Those whose size is among the sizes, each of which counts once."""
    left, matches = list(sizes), []
    for index in order:
        if wanted[index] in left:
            left.remove(wanted[index])
            matches.append(index)
    return sorted(matches)


def _elements(var: Any) -> int:
    return int(getattr(var.aval, "size", 0))


def _runs(items: Sequence["_Group | Loop"]) -> Iterator[tuple[str, list["_Group | Loop"]]]:
    """Neighbouring items of one phase."""
    run: list[_Group | Loop] = []
    for item in items:
        if run and item.phase != run[0].phase:
            yield run[0].phase, run
            run = []
        run.append(item)
    if run:
        yield run[0].phase, run


def _update_lines(reading: Reading, items: Sequence["_Group | Loop"]) -> list[Line]:
    groups = [item for item in items if isinstance(item, _Group)]
    if not groups:
        return []
    rows = [row for group in groups for row in group.rows if row[0].axes != (HOST,)]
    sent = _collectives([*rows, *((row, None) for row in unknown_rows(reading))])
    sends = "XLA adds what it sends" if sent else "it sends nothing"
    moved = _collectives(
        [(row, None) for item in items for step in _steps_of(item) for row in transfers_of(reading, step)]
    )
    update = frozenset({Doer(None, "update")})
    return [Line("note", words=f"the optimizer's, on whole arrays; {sends}", doers=update), *sent, *moved]


def _steps_of(item: "_Group | Loop") -> Iterator[Step]:
    yield from steps([item]) if isinstance(item, Loop) else item.steps


def _collectives(rows: Sequence[tuple[Row, int | None]], op: int | None = None) -> list[Line]:
    """The lines of what is sent, those that are alike taken together."""
    counts: dict[Row, int] = {}
    doers: dict[Row, set[Doer]] = {}
    for row, operand in rows:
        alike = replace(row, count=0, dtype="", dims=())
        counts[alike] = counts.get(alike, 0) + row.count
        doers.setdefault(alike, set()).add(Doer(op, row.phase, row.collective, operand))
    return [
        Line("collective", sent=replace(row, count=count), doers=frozenset(doers[row])) for row, count in counts.items()
    ]
