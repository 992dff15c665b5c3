"""Liveness: which arrays of a program are in memory when, and how long.

A pass over the graph of the program. A loop is one task with its body inside. What leaves the bytes where they are is
no task; what a compiler folds into the next kernel is not stored, and what goes into it is then kept that much longer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..compat import is_on_host
from ..graph import Body, Loop, Step, Value
from ..primitives import VIEWS, Role
from .update import is_untyped, split_of

_SAME_BYTES = VIEWS | {Role.BITCAST}


@dataclass(eq=False, slots=True)
class Buffer:
    """An array on one processor, and the tasks that make it and use it."""

    bytes: int
    aval: Any
    maker: "Task | None" = None
    index: int | None = None
    """Which of its schedule's inputs it is, where it is one."""
    is_written: bool = False
    """Whether it is a number in the program."""
    uses: list["Task"] = field(default_factory=list)
    is_stored: bool = True
    last: int = -1
    """The last task that needs it, by its place; the schedule's end where it is a result."""


@dataclass(eq=False, slots=True)
class Task:
    """One step at work.

    One that is a remat stands before the part that is computed again: what goes into it is stored there, so that the
    compiler cannot take the part back.
    """

    step: Step
    operands: list[Buffer]
    results: list[Buffer] = field(default_factory=list)
    bodies: list["TaskOrder"] = field(default_factory=list)
    at: int = 0
    recomputes: bool = False
    """Of a remat: whether there is a product in what is computed again; a gather done again has none."""

    @property
    def kind(self) -> Role:
        return self.step.row.kind


@dataclass(eq=False, slots=True)
class TaskOrder:
    """Tasks in order, what they are given and what they give."""

    inputs: list[Buffer]
    results: list[Buffer]
    tasks: list[Task]


Size = Callable[[Sequence[int], int], int]
"""The bytes of an array, by its sizes and the bytes of one element."""


def read(
    program: Body,
    mesh_axes: dict[str, int],
    size: "Size | None" = None,
    scores: Mapping[Value, int] | None = None,
    *,
    of_host: bool = False,
) -> TaskOrder:
    """The schedule of a program on one processor; `size` says how large arrays are.

    Of `scores`, which no kernel stores, there is one float32 a row. What lies on the host has no bytes, or alone has
    some (`of_host`).
    """
    reader = _LivenessReader(mesh_axes, size or plain_size, program.inputs, scores or {}, of_host)
    schedule = reader.schedule(program, is_global=True)
    used = {id(buffer) for task in schedule.tasks for buffer in task.operands} | {id(each) for each in schedule.results}
    for buffer in schedule.inputs:
        buffer.bytes *= id(buffer) in used  # jit leaves out what nothing needs
    return schedule


class _LivenessReader:
    def __init__(
        self,
        mesh_axes: dict[str, int],
        size: Size,
        arguments: Sequence[Value],
        scores: Mapping[Value, int],
        of_host: bool,
    ):
        self.mesh_axes, self.size, self.scores, self.of_host = mesh_axes, size, scores, of_host
        self.known = {tuple(value.aval.shape): split for value in arguments if any(split := split_of(value))}
        """How arrays of a shape are split among the arguments, for those of which JAX does not say it."""
        self._remats: dict[Step, Task] = {}

    def bytes(self, value: Value, is_global: bool) -> int:
        """The bytes of a value, of which each processor holds a slice."""
        aval = value.aval if value.local is None else value.local
        if is_on_host(aval) != self.of_host:
            return 0
        if value in self.scores:
            return self.size((self.scores[value],), 4)
        shape = list(getattr(aval, "shape", ()))
        split: Sequence[Sequence[str]] = split_of(value) if is_global and value.local is None else ()
        if is_untyped(aval):
            split = self.known.get(tuple(shape), ())
        for dim, axes in enumerate(split):
            shape[dim] = -(-shape[dim] // math.prod(self.mesh_axes.get(axis, 1) for axis in axes))
        return self.size(shape, _itemsize(getattr(aval, "dtype", None)))

    def schedule(self, body: Body, *, is_global: bool) -> TaskOrder:
        buffers = {
            value: Buffer(self.bytes(value, is_global), value.aval, index=i) for i, value in enumerate(body.inputs)
        }
        schedule, masks = TaskOrder(list(buffers.values()), [], []), dict[Any, Task]()

        def buffer(value: Value) -> Buffer:
            if value not in buffers:  # a constant
                buffers[value] = Buffer(self.bytes(value, False), value.aval, is_written=value.is_literal)
            return buffers[value]

        for step in body:
            operands = [buffer(value) for value in step.operands]
            sizes = [self.bytes(value, step.is_global) for value in step.results]
            self._begin(step, buffer, schedule.tasks)
            if step.kind in _SAME_BYTES and sizes == [each.bytes for each in operands[: len(sizes)]]:
                buffers.update(zip(step.results, operands, strict=False))
                continue
            if is_mask(step) and (step.op, *sizes) in masks:  # drawn again: the compiler finds that it has it
                buffers.update(zip(step.results, masks[step.op, *sizes].results, strict=True))
                continue
            task = Task(step, operands)
            if is_mask(step):
                masks[step.op, *sizes] = task
            task.results = [Buffer(size, value.aval, task) for size, value in zip(sizes, step.results, strict=True)]
            buffers.update(zip(step.results, task.results, strict=True))
            if isinstance(step, Loop):
                task.bodies = [self.schedule(inner, is_global=step.is_global) for inner in step.bodies]
            schedule.tasks.append(task)
        schedule.results = [buffer(value) for value in body.results]
        return schedule

    def _begin(self, step: Step, buffer: Callable[[Value], Buffer], work: list[Task]) -> None:
        """Puts the remats that begin with a step before it, the outermost first."""
        remat, around = step.remat, []
        while remat is not None:
            around.append(remat)
            remat = remat.remat
        for remat in reversed(around):
            if remat not in self._remats:
                self._remats[remat] = Task(remat, [each for each in map(buffer, remat.operands) if each.bytes])
                work.append(self._remats[remat])
            if step.kind is Role.PRODUCT and step.phase == "recompute":
                self._remats[remat].recomputes = True


def is_mask(step: Step) -> bool:
    """Whether it says what dropout keeps, by comparing words of random bits."""
    return step.kind is Role.COMPARE and any(str(value.aval.dtype) == "uint32" for value in step.operands)


def plain_size(shape: Sequence[int], itemsize: int) -> int:
    """The bytes of an array as it is."""
    return math.prod(shape) * itemsize


def tiled_size(shape: Sequence[int], itemsize: int) -> int:
    """The bytes of an array in a TPU's tiles of 8 by 128, padded as little as can be.

    >>> tiled_size((6, 1024), 4), tiled_size((384,), 4), tiled_size((), 4)
    (32768, 2048, 512)
    """
    if len(shape) < 2:
        words = -(-math.prod(shape) * itemsize // 4)
        tile = min(1024, max(128, 1 << max(words - 1, 0).bit_length()))
        return -(-words // tile) * tile * 4
    whole = math.prod(shape)
    if whole == 0:
        return 0
    best = None
    for minor, width in enumerate(shape):
        for second, height in enumerate(shape):
            if minor != second:
                rows = next((rows for rows in (1, 2, 4) if height <= rows), -(-height // 8) * 8)
                padded = whole // (width * height) * rows * (-(-width // 128) * 128)
                best = padded if best is None else min(best, padded)
    return max((best or 0) * itemsize, _LEAST_TILED)


_LEAST_TILED = 512


def _itemsize(dtype: Any) -> int:
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return int(getattr(dtype, "itemsize", 8))  # a random key: two words


def cast_before_remats(schedule: TaskOrder) -> None:
    """Casts before a remat what is cast after it, as the XLA of TPUs does."""
    for task in schedule.tasks:
        for inner in task.bodies:
            cast_before_remats(inner)
    for remat in [task for task in schedule.tasks if task.kind is Role.REMAT]:
        for i, buffer in enumerate(remat.operands):
            uses = [task for task in schedule.tasks if buffer in task.operands and task is not remat]
            is_cast = uses and all(task.kind is Role.CAST for task in uses) and buffer.maker is not None
            if not is_cast or uses[0].results[0].bytes >= buffer.bytes or buffer in schedule.results:
                continue
            remat.operands[i] = uses[0].results[0]
            schedule.tasks.remove(uses[0])
            schedule.tasks.insert(schedule.tasks.index(remat), uses[0])


def recompute_first(schedule: TaskOrder) -> None:
    """Computes all again before the first gradient: the latest XLA lets go of it.

    Outside of loops nothing bounds how early it begins with what is to be computed again.
    """
    tasks = schedule.tasks
    first = next((at for at, task in enumerate(tasks) if task.step.phase == "backward"), len(tasks))
    early, late = tasks[:first], list[Task]()
    made = {id(task) for task in early}
    for task in tasks[first:]:
        is_ready = all(value.maker is None or id(value.maker) in made for value in task.operands)
        if is_ready and task.step.phase == "recompute":
            early.append(task)
            made.add(id(task))
        else:
            late.append(task)
    schedule.tasks = early + late
