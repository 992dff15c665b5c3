"""The course of a program's memory: how much is alive at each task.

Reads the schedule of `liveness` by the rules of a target's compiler. A loop stands for what its largest turn needs,
over what is alive around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph import Loop
from ..primitives import FUSED, Role, batch_dims_of, is_rounding
from .liveness import Buffer, Task, TaskOrder, is_mask


@dataclass(frozen=True)
class Rules:
    """What a compiler stores."""

    fuses: bool
    """Whether results that only kernels of the same kind use are folded into those."""
    sums_in_place: bool
    """Whether an all-reduce overwrites its operand."""
    margins: tuple[float, float]
    """How far the compiler's own peak may lie from the one found here, as shares of what is no argument."""
    fills_early: bool = False
    """Whether buffers that are filled bit by bit are made long before, about when the first loop runs."""
    keeps_masks: bool = False
    """Whether random bits are not drawn again for each use."""
    into_products: int = 0
    """Into how many products a result is folded at most."""
    is_tiled: bool = False
    """Whether arrays are stored in tiles: a TPU."""
    scatters_last: bool = False
    """Whether products whose results are scattered wait for the last loop."""
    stores_in_turns: bool = False
    """Whether a loop's turn may store what could be folded: long rows that are summed and then used again."""
    turns_stacks: bool = False
    """Whether what one loop saves for another is transposed as a whole between them, where products want it so."""


RULES = {
    "gpu": Rules(
        fuses=True,
        sums_in_place=False,
        margins=(0.65, 1.25),
        fills_early=True,
        keeps_masks=True,
        scatters_last=True,
        turns_stacks=True,
    ),
    "tpu": Rules(fuses=True, sums_in_place=True, margins=(0.7, 1.45), into_products=2, is_tiled=True),
    "cpu": Rules(fuses=False, sums_in_place=True, margins=(0.6, 2.0)),
}

_FOLDS = FUSED | {Role.REDUCTION}
_IN_PLACE = _FOLDS | {Role.WRITE, Role.SCATTER}
_OF_RANDOM_BITS = frozenset({Role.MATH, Role.ADD, Role.CAST})
"""What makes numbers of random bits."""
_MOVES = frozenset({Role.TRANSPOSE, Role.CAST})


def _is_filled(value: Buffer) -> bool:
    """Whether a value is one number all over, written in the program."""
    maker = value.maker
    return maker is not None and maker.kind is Role.BROADCAST and all(one.is_written for one in maker.operands)


def _is_turned(value: Buffer) -> bool:
    """Whether a batched product makes or uses it, or what it meets, in another order."""
    seen, left = {id(value)}, [value]
    while left:
        value = left.pop()
        met: list[Buffer] = []
        for use in value.uses:
            if use.kind is Role.PRODUCT and _is_batched_inside(use.step.eqn, use.operands.index(value)):
                return True
            if use.kind in FUSED:
                met += (*use.results, *use.operands)
        if (maker := value.maker) is not None and maker.kind in FUSED:
            before = maker.operands[0].maker if maker.kind is Role.TRANSPOSE else None
            if before is not None and _is_batched(before):
                return True
            met += maker.operands
        new = [each for each in met if id(each) not in seen]
        seen.update(map(id, new))
        left += new
    return False


def _is_batched(task: Task) -> bool:
    return task.kind is Role.PRODUCT and bool(batch_dims_of(task.step.eqn, 0))


def _is_batched_inside(eqn: Any, operand: int) -> bool:
    """Whether the batch dims of a product's operand come after others."""
    dims = batch_dims_of(eqn, operand)
    return sorted(dims) != list(range(len(dims)))


@dataclass(eq=False, slots=True)
class Point:
    """One task, and the bytes alive while it runs."""

    task: Task
    bytes: int
    base: int = 0
    """Of these, the bytes alive around its bodies."""
    inner: "list[Point]" = field(default_factory=list)


def at_most(rules: Rules) -> Rules:
    """The rules of a compiler that folds as little as it may."""
    return replace(rules, stores_in_turns=rules.turns_stacks)


class Course:
    """What is alive at each task of a schedule; `owned` inputs end at their last use."""

    def __init__(
        self,
        body: TaskOrder,
        rules: Rules,
        owned: Sequence[Buffer],
        streamed: Sequence[Buffer] = (),
        kept: Sequence[bool] = (),
        around: "tuple[Course, Task] | None" = None,
    ):
        self.body, self.rules, self.around = body, rules, around
        self._kept = {id(value) for value, is_kept in zip(owned, kept, strict=False) if is_kept}
        self.end = len(body.tasks)
        self._streamed = {id(value) for value in streamed}
        self._owned = [value for value in owned if value.bytes]
        self._inner: dict[int, Course] = {}
        self._copied: dict[int, Buffer] = {}
        self._named: dict[int, Course] = {}
        self._sources: dict[int, tuple[Buffer, ...]] = {}
        if around is None and (rules.scatters_last or rules.is_tiled):
            self._put_off_gradients()
        self._link()
        self._find_lasts()
        self.points: list[Point] = []
        self.peak, self.at = 0, -1
        self._sweep()

    def _put_off_gradients(self) -> None:
        """Moves products whose results are sent or added up last behind the last loop."""
        last = max((at for at, task in enumerate(self.body.tasks) if task.kind is Role.SCAN), default=0)
        products = self._scattered_products(last) if self.rules.scatters_last else self._products_added_up(last)
        late = {id(task) for task in products}
        for task in self.body.tasks[: last + 1] if late else ():
            if any(value.maker is not None and id(value.maker) in late for value in task.operands):
                late.add(id(task))
                if task.bodies:
                    return  # a loop needs one of them
        if late:
            before, rest = self.body.tasks[: last + 1], self.body.tasks[last + 1 :]
            kept, put_off = ([task for task in before if (id(task) in late) == is_late] for is_late in (False, True))
            needed = (i for i, task in enumerate(rest) if any(id(value.maker) in late for value in task.operands))
            at = 0 if self.rules.scatters_last else next(needed, 0)
            self.body.tasks = [*kept, *rest[:at], *put_off, *rest[at:]]

    def _scattered_products(self, last: int) -> Iterator[Task]:
        """The products before a place whose results are scattered."""
        for task in self.body.tasks[:last]:
            if task.step.collective == "reduce_scatter":
                maker = task.operands[0].maker
                while maker is not None and maker.kind in _MOVES:
                    maker = maker.operands[0].maker
                if maker is not None and maker.kind is Role.PRODUCT:
                    yield maker

    def _products_added_up(self, last: int) -> Iterator[Task]:
        """The products before a place that a sum after it adds up: of a tied weight."""
        for task in self.body.tasks[last + 1 :]:
            for value in task.operands if task.kind in (Role.ADD, Role.ADD_GRADIENTS) else ():
                maker = value.maker
                while maker is not None and (maker.kind in _MOVES or maker.step.collective == "reduce_scatter"):
                    maker = maker.operands[0].maker
                if maker is not None and maker.kind is Role.PRODUCT:
                    yield maker

    def _link(self) -> None:
        results = {id(value) for value in self.body.results}
        made: list[Buffer] = list(self.body.inputs)
        for at, task in enumerate(self.body.tasks):
            task.at = at
            for value in task.operands:
                value.uses.append(task)
            made += task.results
        self._made = made
        self._loops = [task.at for task in self.body.tasks if task.kind is Role.SCAN]
        if self.rules.is_tiled:
            for value in filter(_is_kept_wide, made):
                value.bytes *= 2
        self._drawn: set[int] = set()
        for task in self.body.tasks:
            if task.kind is Role.RANDOM or (task.kind in _OF_RANDOM_BITS and self._is_of_random_bits(task)):
                self._drawn.add(id(task))
        self._in_place = {id(value) for value in self._find_carried()}
        for value in made:
            value.is_stored = self._needs_storage(value, id(value) in results)

    def _find_carried(self) -> Iterator[Buffer]:
        """What a turn carries on as it got it, with a slice written into it."""
        if self.around is None or not isinstance(loop := self.around[1].step, Loop) or not loop.is_scan:
            return
        fixed, carried = loop.parts
        for before, after in zip(self.body.inputs[fixed : fixed + carried], self.body.results[:carried], strict=True):
            maker = after.maker
            is_written = maker is not None and maker.kind is Role.WRITE and maker.operands[0] is before
            if is_written and before.uses[-1] is maker:
                yield after

    def _is_folded(self, value: Buffer) -> bool:
        """Whether the task that makes a value can be part of the kernel that uses it."""
        if value.maker is None:
            return id(value) in self._streamed
        return self.rules.fuses and value.maker.kind in FUSED

    def _needs_storage(self, value: Buffer, is_result: bool) -> bool:
        if not self._is_folded(value):
            return True
        if is_result and id(value) not in self._streamed:
            return True
        others = [use for use in value.uses if use.kind not in _FOLDS]
        if others:
            is_folded = all(use.kind is Role.PRODUCT for use in others) and len(others) <= self.rules.into_products
            return value.maker is None or not is_folded
        # A mask of random bits: they are not drawn again for each use.
        if not self.rules.keeps_masks or len(value.uses) < 2 or value.maker is None:
            return False
        is_of_threefry = value.maker.kind is Role.COMPARE and self._is_of_random_bits(value.maker)
        return is_of_threefry or is_mask(value.maker.step)

    def _is_of_random_bits(self, task: Task) -> bool:
        return any(value.maker is not None and id(value.maker) in self._drawn for value in task.operands)

    def _find_lasts(self) -> None:
        for value in self._made:
            value.last = max((use.at for use in value.uses), default=-1 if value.maker is None else value.maker.at)
        for value in self.body.results:
            if id(value) not in self._streamed:
                value.last = self.end
        for value in self.body.inputs:
            if id(value) in self._kept:
                value.last = self.end
        for task in reversed(self.body.tasks):
            unstored = [value.last for value in task.results if not value.is_stored]
            if unstored:
                last = max(unstored)
                for value in task.operands:
                    value.last = max(value.last, last)

    def sources(self, task: Task) -> tuple[Buffer, ...]:
        """The stored values a task reads, through those that are folded into it."""
        if id(task) not in self._sources:
            buffers: dict[int, Buffer] = {}
            for value in task.operands:
                for one in (value,) if value.is_stored or value.maker is None else self.sources(value.maker):
                    buffers[id(one)] = one
            self._sources[id(task)] = tuple(buffers.values())
        return self._sources[id(task)]

    def _born(self, value: Buffer) -> int:
        """The task at which a value comes to be."""
        if value.maker is None:
            return min((use.at for use in value.uses), default=0)
        at = value.maker.at
        if not self.rules.fills_early or not self._loops or at < self._loops[0]:
            return at
        if self._is_piled(value) and at > self._loops[0]:
            return self._loops[0] + 1  # its zeros wait for nothing, and are written about when the first loop runs
        if _is_filled(value) and any(use.kind is Role.SCATTER for use in value.uses):
            return self._loops[0]
        return at

    def _is_piled(self, value: Buffer) -> bool:
        """Whether a value is filled by a loop turn by turn."""
        task = value.maker
        if task is None or not isinstance(task.step, Loop) or not task.step.is_scan:
            return False
        return any(value is one for one in task.results[task.step.parts[1] :])

    def _sweep(self) -> None:
        self._births: list[list[Buffer]] = [[] for _ in range(self.end)]
        self._deaths: list[list[Buffer]] = [[] for _ in range(self.end + 1)]
        owned = {id(value) for value in self._owned}
        alive = 0
        for value in self._made:
            if not value.bytes or not value.is_stored or id(value) in self._in_place:
                continue
            if id(value) in owned:
                alive += value.bytes
            elif value.maker is None:
                if id(value) not in self._streamed:
                    continue
                self._births[self._born(value)].append(value)
            else:
                self._births[self._born(value)].append(value)
            self._deaths[min(max(value.last, 0), self.end)].append(value)
        for task in self.body.tasks:
            alive += sum(value.bytes for value in self._births[task.at])
            now = alive - sum(value.bytes for value in self._operands_written_over(task))
            inner = self._loop(task)
            self.points.append(Point(task, now + inner[0], now, inner[1]))
            now += inner[0]
            if now > self.peak:
                self.peak, self.at = now, task.at
            alive -= sum(value.bytes for value in self._deaths[task.at])
        if alive > self.peak:
            self.peak, self.at = alive, self.end

    def _operands_written_over(self, task: Task) -> list[Buffer]:
        """The operands that end here and that a result of the same size is written over."""
        ending = [value for value in self._over(task) if value.last == task.at and self._counts(value)]
        if not ending:
            return []
        operands = []
        carried = task.step.parts[1] if isinstance(task.step, Loop) else len(task.results)
        for result in task.results[:carried]:
            if result.is_stored and result.bytes:
                match = next((value for value in ending if value.bytes == result.bytes), None)
                if match is not None:
                    ending.remove(match)
                    operands.append(match)
        return operands

    def _over(self, task: Task) -> Sequence[Buffer]:
        """The values a task may write its results over: of a loop, what it starts with."""
        if isinstance(task.step, Loop):
            first, carried = task.step.parts
            return task.operands[first : first + carried]
        is_sum = self.rules.sums_in_place and task.step.collective == "all_reduce"
        return self.sources(task) if task.kind in _IN_PLACE or is_sum else ()

    def _counts(self, value: Buffer) -> bool:
        return value.maker is not None or any(value is one for one in self._owned) or id(value) in self._streamed

    def _loop(self, task: Task) -> tuple[int, list[Point]]:
        """What the bodies of a task need beyond its operands and results."""
        if not task.bodies:
            return 0, []
        courses = [self._course(task, body) for body in task.bodies]
        largest = max(courses, key=lambda course: course.peak)
        self._named[task.at] = max(courses, key=lambda course: (len(course.body.results), course.peak))
        copied = max(self._turned_stacks(task), key=lambda value: value.bytes, default=None)
        if copied is not None and copied.bytes > largest.peak:  # one at a time, before the first turn
            self._copied[task.at] = copied
            return copied.bytes, []
        self._inner[task.at] = largest
        return largest.peak, largest.points

    def _turned_stacks(self, task: Task) -> Iterator[Buffer]:
        """The stacks of another loop that are transposed before a loop takes them apart."""
        if not self.rules.turns_stacks or not isinstance(task.step, Loop) or not task.step.is_scan:
            return
        first = sum(task.step.parts)
        for value, piece in zip(task.operands[first:], task.bodies[0].inputs[first:], strict=True):
            if self._is_piled(value) and _is_turned(piece):
                yield value

    def _course(self, task: Task, body: TaskOrder) -> "Course":
        rules = replace(self.rules, fuses=False) if self.rules.stores_in_turns else self.rules
        if isinstance(task.step, Loop) and task.step.is_scan:
            fixed, carried = task.step.parts
            streamed = [*body.inputs[fixed + carried :], *body.results[carried:]]
            return Course(body, rules, (), streamed, around=(self, task))
        return Course(body, rules, (), around=(self, task))

    def inner(self, task: Task) -> "Course":
        """The course of a body that gives the results of a task."""
        return self._named[task.at]

    def outside(self, index: int) -> "tuple[Buffer, Course] | None":
        """What an input of this body is outside of it, and where."""
        if self.around is None:
            return None
        outer, task = self.around
        at = index + len(task.operands) - len(self.body.inputs)
        return (task.operands[at], outer) if 0 <= at < len(task.operands) else None

    @property
    def is_usual(self) -> bool:
        """Whether it is one loop over layers, and one for their gradients.

        With no loops inside (microbatches, a pipeline, a ring), nor what runs by itself there (experts' dispatch).
        """
        inside = [task for at in self._loops for body in self.body.tasks[at].bodies for task in body.tasks]
        return len(self._loops) in (1, 2) and not any(task.bodies or task.kind is Role.KERNEL for task in inside)

    @property
    def turned_stacks(self) -> list[Buffer]:
        """What one loop saves that is transposed as a whole before another reads it."""
        return [value for task in self.body.tasks for value in self._turned_stacks(task)]

    @property
    def writes_after_loops(self) -> bool:
        """Whether a slice is written into what a loop has carried: of a turn outside it."""
        written = (task.operands[0].maker for task in self.body.tasks if task.kind is Role.WRITE)
        return any(maker is not None and maker.kind is Role.SCAN for maker in written)

    @property
    def recomputes_outside_loops(self) -> bool:
        """Whether products of this body itself are computed again for its gradients."""
        return any(task.recomputes for task in self.body.tasks)

    def alive(self) -> Iterator[tuple[Buffer, "Course"]]:
        """The values alive at the peak, and the course of the body each belongs to."""
        at = self.at
        reused = {id(value) for value in self._operands_written_over(self.body.tasks[at])} if at < self.end else set()
        owned = {id(value) for value in self._owned}
        for value in self._made:
            if not value.bytes or not value.is_stored or id(value) in reused | self._in_place:
                continue
            if id(value) in owned:
                born = -1
            elif value.maker is None and id(value) not in self._streamed:
                continue
            else:
                born = self._born(value)
            if born <= at <= max(value.last, 0):
                yield value, self
        if at in self._copied:
            yield self._copied[at], self
        if at in self._inner:
            yield from self._inner[at].alive()


def _is_kept_wide(value: Buffer) -> bool:
    """Whether a TPU keeps a product in float32: narrow, widened wherever it is used.

    It leaves out what rounds only to widen again: logits. Rounded again they stay narrow, if no sum of them is sent.
    """
    is_product = value.maker is not None and value.maker.kind is Role.PRODUCT and value.aval.dtype.itemsize == 2
    casts = [use for use in value.uses if use.kind is Role.CAST and use.results[0].aval.dtype.itemsize == 4]
    is_widened = len(casts) > 1 and all(use in casts or use.kind is Role.GATHER for use in value.uses)
    uses = [use for cast in casts for use in cast.results[0].uses]
    stays_narrow = all(is_rounding(use.step.eqn) and not _is_sent_summed(use) for use in uses)
    return is_product and is_widened and not stays_narrow


def _is_sent_summed(task: Task) -> bool:
    """Whether sums over what a task makes go to other processors."""
    left = [sum_ for value in task.results for use in value.uses if use.kind is Role.REDUCTION for sum_ in use.results]
    for one in left:  # which grows
        if any(use.kind is Role.COLLECTIVE for use in one.uses):
            return True
        left += [v for use in one.uses if use.kind in FUSED for v in use.results if v.aval.size <= one.aval.size]
    return False
