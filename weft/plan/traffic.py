"""A program as kernels, with the FLOPs of each and the bytes it moves.

The rules of fusion, which are XLA's in broad strokes:
- Products, convolutions, lookups, sorts, random numbers and collectives are kernels of their own: operands are read,
  results written.
- Elementwise equations join those they are connected with, as far as no other kernel lies between; such a group reads
  what comes from outside once, and writes only what someone outside needs. What can be made again from hardly more
  bytes than it has (a cast, a mask, an exponential) is made again instead.
- A sum joins too where what it reads stays in the cache, or its rows are short (on a GPU); any other sum reads its
  operands by itself, and what follows it is another group.
- A turn of a loop copies the slices it is given, unless an elementwise group reads them, and copies what is stacked,
  unless such a group made it. Outside loops a GPU's products read a slice of an argument where it lies. A
  gradient that is added as a slice among zeros is added in place. A loop of one turn is none.
- A TPU does elementwise work inside products: what only products read is made where they read it, and what is made
  of a product's result is written in its place. Sums of such a group are made with it.
- A ragged product, but for a TPU's, multiplies every row with every group's matrix: rows of other groups are zeros. For
  dropless experts a GPU has a kernel of ours. A processor has the rows that it gets if routing is even.
- Attention of `weft.nn` is one kernel where it can be (`weft.kernels.choice`): scores never reach memory.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..primitives import (
    LOOPS,
    Role,
    is_causal,
    is_leading_slice,
    reduced_dims,
    sizes_of_attention,
)
from ..program.ledger import Row
from ..program.reading import Reading
from ..program.transfers import transfers_of
from ..program.update import find_implied
from ..record import NotedAttention
from .attention import FusedGroup, groups_of, slowness_of
from .hardware import Hardware
from .kernel import Kernel
from .products import product, product_of_kernel, product_on
from .values import Array, Node, Routine, bytes_of, is_among_zeros, routines_of, zeros_below

_ALONE = LOOPS | {
    Role.GATHER, Role.SCATTER, Role.WRITE, Role.RANDOM, Role.KERNEL, Role.CALLBACK, Role.PRODUCT, Role.ATTENTION,
    Role.COLLECTIVE, Role.TRANSFER,
}  # fmt: skip
_MOVED = frozenset({Role.GATHER, Role.SCATTER, Role.WRITE, Role.RANDOM, Role.KERNEL, Role.CALLBACK})
_LONGEST_ROW = {"gpu": 512}  # that a sum keeps at hand
_HARDLY_MORE = 1.05  # the row of largest numbers beside the rows of an exponential
_CACHED = 1.5  # caches: of what is a little larger, a part is still there


def kernels(reading: Reading, hardware: Hardware, *, fused: bool | None = None) -> list[Kernel]:
    """The kernels of a program on hardware; `fused=False`: attention as written.

    If not said, attention is fused where the hardware has a kernel for it.
    """
    return list(_Fusion(reading, hardware, fused).of(routines_of(reading)))


class _Fusion:
    def __init__(self, reading: Reading, hardware: Hardware, fused: bool | None):
        self.reading = reading
        self.kind = hardware.kind
        self.groups: dict[int | None, FusedGroup] = groups_of(reading, hardware, fused)
        self.longest_row, self.cache = _LONGEST_ROW.get(hardware.kind, 0), hardware.cache
        self._bodies = 0

    def of(self, bodies: Iterable[Routine]) -> Iterator[Kernel]:
        for body in bodies:
            self._bodies += 1
            number = self._bodies
            for kernel in self._body(body):
                kernel.body, kernel.count, kernel.is_looped = number, body.count, body.is_looped
                yield kernel
            for sides in body.choices:
                yield from max((list(self.of(side)) for side in sides), key=_size)

    def _body(self, body: Routine) -> Iterator[Kernel]:
        stored = self._set_stages(body)
        yield from self._lone_kernels(body)
        yield from self._attention_kernels(body)
        yield from self._elementwise(body, stored)
        yield from self._copies(body)

    def _set_stages(self, body: Routine) -> set[Array]:
        """Says when each node runs and what it reads; elementwise results stored."""
        stored: set[Array] = set()
        in_place: set[Array] = set()
        for node in body.nodes:
            node.is_joined = node.step.op not in self.groups and node.kind not in _ALONE
            node.is_early = node.is_joined and all(map(_is_at_start, node.ins))
            node.stage = max((_ready(value) for value in node.ins), default=0)
            if not node.is_joined or node.kind in (Role.SLICE, Role.SPLIT):
                stored.update(node.ins)
                node.leaves = frozenset(node.outs)
                if self._is_in_place(node, body):
                    in_place.update(node.outs)
                continue
            if node.kind is Role.ADD_GRADIENTS and any(map(is_among_zeros, node.ins)):
                in_place |= {*node.outs, *zeros_below(node)}
            node.leaves = _leaves(node, stored)
            node.is_hard = self._is_hard(node)
            node.is_early &= not node.is_hard
            if node.is_hard:
                stored.update(node.outs)
        stored.update(body.kept)
        stored.update(body.stacked)
        return {value for value in stored - in_place if value.maker is not None and value.maker.is_joined}

    def _is_in_place(self, node: Node, body: Routine) -> bool:
        """Whether products read slices of an argument where they lie."""
        if self.kind != "gpu" or body.is_looped or node.kind not in (Role.SLICE, Role.SPLIT):
            return False
        is_argument = node.ins[0].maker is None and is_leading_slice(node.step.eqn)
        return is_argument and all(use.kind is Role.PRODUCT for value in node.outs for use in value.uses)

    def _is_hard(self, node: Node) -> bool:
        """Whether it is a sum that what follows must wait for."""
        if node.kind is not Role.REDUCTION:
            return False
        shape, axes = node.step.operands[0].aval.shape, reduced_dims(node.step.eqn)
        is_last = sorted(axes) == list(range(len(shape) - len(axes), len(shape)))
        is_short = is_last and math.prod(shape[axis] for axis in axes) <= self.longest_row
        return not is_short and max((leaf.bytes for leaf in node.leaves), default=0) > _CACHED * self.cache

    def _lone_kernels(self, body: Routine) -> Iterator[Kernel]:
        carried = set(body.kept) if body.is_turn else set()
        only_carried = _only_carried(body, carried)
        for node in body.nodes:
            if node.step.is_global and node.kind not in LOOPS:
                yield from self._implied_collectives(node)
            if node.step.op in self.groups and node.kind is not Role.COLLECTIVE:
                continue
            if node.kind is Role.COLLECTIVE:
                yield from self._collectives(node, carried, only_carried)
            elif node.kind is Role.TRANSFER:
                yield from self._transfers(node, carried)
            elif node.kind is Role.PRODUCT:
                yield product_on(node, self.reading, self.kind)
            elif node.kind is Role.ATTENTION or (node.step.flops and self._attention_of(node) is not None):
                yield _traced_attention(node, self._attention_of(node))
            elif node.kind is Role.KERNEL and node.step.flops:
                yield product_of_kernel(node, self.reading)
            elif node.kind in _MOVED:
                yield _move_kernel(node)

    def _attention_of(self, node: Node) -> NotedAttention | None:
        """The attention whose kernel a node is."""
        entry = self.reading.entry(node.step.op)
        return None if entry is None else entry.attention

    def _implied_collectives(self, node: Node) -> Iterator[Kernel]:
        """What XLA sends for an equation of the update."""
        mesh = self.reading.mesh.axes
        for sent in find_implied(node.step.eqn, mesh):
            ways = math.prod(mesh[axis] for axis in sent.axes)
            row = _row(sent.collective, sent.axes, sent.dtype, sent.bytes, ways, "update")
            yield Kernel("sent", None, "update", bytes=sent.bytes, row=row)

    def _collectives(self, node: Node, carried: set[Array], only_carried: set[Array]) -> Iterator[Kernel]:
        step = node.step
        if step.collective is None:
            return
        ways = math.prod(self.reading.mesh.axes[axis] for axis in step.axes)
        if ways == 1:
            return
        is_gradient = step.phase == "backward"  # what leaves a forward pass is waited for
        is_ahead = all(map(_is_at_start, node.ins)) and only_carried.issuperset(node.outs)
        is_late = is_gradient and all(_is_late(value, carried) for value in node.outs)
        is_beside = node.stage == 0 or is_ahead or is_late
        for aval in step.carried:
            size = math.prod(aval.shape) * aval.dtype.itemsize
            row = _row(step.collective, step.axes, str(aval.dtype), size, ways, step.phase)
            yield Kernel("sent", step.op, step.phase, bytes=size, row=row, is_beside=is_beside, is_ahead=is_ahead)

    def _transfers(self, node: Node, carried: set[Array]) -> Iterator[Kernel]:
        """What is fetched from the host for something, or stored there."""
        is_late = all(_is_late(value, carried) for value in node.outs)
        for row in transfers_of(self.reading, node.step):
            one = replace(row, count=1)
            is_beside = node.stage == 0 or is_late
            yield Kernel("sent", node.step.op, row.phase, bytes=row.bytes, row=one, is_beside=is_beside)

    def _attention_kernels(self, body: Routine) -> Iterator[Kernel]:
        """One kernel for all equations of an attention in one phase."""
        groups: dict[tuple[FusedGroup, str, int], list[Node]] = defaultdict(list)
        runs: dict[int, int] = {}
        for node in body.nodes:
            if node.step.op in self.groups and node.kind is Role.PRODUCT:
                group = self.groups[node.step.op]
                groups[group, node.step.phase, runs.setdefault(id(group), len(runs))].append(node)
        for (group, phase, _), nodes in groups.items():
            one = product(nodes[0])  # all its products are as large
            ends = {value for node in nodes for value in (*node.ins, *node.outs) if value.elements < group.scores}
            times, moved = (5, 2) if phase == "backward" else (2, 1)
            flops = sum(product(node).flops for node in nodes) if group.is_block else times * one.flops
            ends_bytes = bytes_of(ends) if group.is_block else moved * bytes_of(ends)
            yield Kernel(
                "attention",
                nodes[0].step.op,
                phase,
                bytes=0 if group.is_one_kernel else ends_bytes,  # a long one computes all the time
                calls=0 if group.is_one_kernel else 1,
                flops=flops * group.seen_share,
                dtype=one.dtype,
                shape=(1, group.length, group.memory, group.width),
                slower=group.slower,
            )

    def _elementwise(self, body: Routine, stored: set[Array]) -> Iterator[Kernel]:
        """A kernel for each group of nodes that run as one, and for each long sum in it."""
        is_tpu, taken = self.kind == "tpu", set[Array]()
        for nodes in _connect([node for node in body.nodes if node.is_joined]):
            parts: dict[Any, list[Array]] = defaultdict(list)
            for node in nodes:
                for value in node.outs:
                    if value in stored:
                        alone = node.is_hard and not is_tpu
                        parts[(reduced_dims(node.step.eqn), node.ins[0].elements) if alone else None].append(value)
            total = sum(_work(node) for node in nodes)
            for written in parts.values():
                makers = [value.maker for value in written if value.maker is not None]
                largest = max(makers, key=lambda node: node.outs[0].bytes)
                leaves = frozenset[Array]().union(*(maker.leaves for maker in makers))
                moved = (
                    _beside_products(body, leaves, written, taken) if is_tpu else bytes_of(leaves) + bytes_of(written)
                )
                yield Kernel("elementwise", largest.step.op, largest.step.phase, bytes=moved, work=total)
                total = 0.0  # of what is done several times, the first counts

    def _copies(self, body: Routine) -> Iterator[Kernel]:
        """What a loop's turn copies out of stacks and into them."""
        for value in body.sliced:
            if not value.bytes or any(self._is_in_one_kernel(node) for node in value.uses):
                continue
            alone = [node for node in value.uses if not node.is_joined]
            if alone and not self._is_score(value):
                yield Kernel("moved", alone[0].step.op, alone[0].step.phase, bytes=2 * value.bytes)
        for value in dict.fromkeys(body.stacked):  # each once, in order: sums of seconds stay the same
            maker = value.maker
            if maker is None or not value.bytes or self._is_score(value) or self._is_in_one_kernel(maker):
                continue
            if not maker.is_joined or any(not node.is_joined for node in value.uses):
                yield Kernel("moved", maker.step.op, maker.step.phase, bytes=2 * value.bytes)

    def _is_in_one_kernel(self, node: Node) -> bool:
        """Whether it is part of blocks that one kernel does, which copies no pieces."""
        return node.step.op in self.groups and self.groups[node.step.op].is_one_kernel

    def _is_score(self, value: Array) -> bool:
        """Whether a value is one of those that a fused attention never stores."""
        nodes = [*([] if value.maker is None else [value.maker]), *value.uses]
        return any(value.elements >= self.groups[node.step.op].scores for node in nodes if node.step.op in self.groups)


def _ready(value: Array) -> int:
    """The stage at which a value is there."""
    maker = value.maker
    if maker is None:
        return int(value.from_carry)
    return maker.stage + (not maker.is_joined or maker.is_hard)


def _leaves(node: Node, stored: set[Array]) -> frozenset[Array]:
    """The values in memory that an elementwise equation is made from."""
    leaves: set[Array] = set()
    for value in node.ins:
        maker = value.maker
        if maker is None or not maker.is_joined or maker.is_hard or maker.step.is_global != node.step.is_global:
            leaves.add(value)
        elif maker.stage == node.stage or bytes_of(maker.leaves) <= _HARDLY_MORE * value.bytes:
            leaves |= maker.leaves
        else:
            leaves.add(value)
            stored.add(value)
    return frozenset(leaves)


def _is_at_start(value: Array) -> bool:
    """Whether a value is there when a turn begins, but for elementwise work."""
    return value.maker is None or value.maker.is_early


def _only_carried(body: Routine, carried: set[Array]) -> set[Array]:
    """The values that nothing but the next turn of the loop needs."""
    found: set[Array] = set()
    for node in reversed(body.nodes) if carried else ():
        for value in node.outs:
            is_needed = value in carried or value.uses
            if is_needed and all(use.is_joined and found.issuperset(use.outs) for use in value.uses):
                found.add(value)
    return found


def _is_late(value: Array, carried: set[Array]) -> bool:
    """Whether nothing but the body's results waits for a value."""
    if value in carried:
        return False
    return all(
        n.step.is_global or _files(n, carried) or (n.is_joined and all(_is_late(out, carried) for out in n.outs))
        for n in value.uses
    )


def _files(node: Node, carried: set[Array]) -> bool:
    """Whether it writes a slice into a stack that is only carried on."""
    return node.kind is Role.WRITE and node.ins[0].from_carry and node.outs[0] in carried


def _beside_products(body: Routine, leaves: frozenset[Array], written: list[Array], taken: set[Array]) -> int:
    """Bytes of a group of elementwise work that products do where they touch it."""
    kept = {*body.kept, *body.stacked}
    stays = [v for v in written if v in kept or not v.uses or any(use.kind is not Role.PRODUCT for use in v.uses)]
    made = {leaf for leaf in leaves - taken if leaf.maker is not None and leaf.maker.kind is Role.PRODUCT}
    taken |= made  # the first group that reads a product's result is part of the product
    return bytes_of(leaves - made) + max(bytes_of(stays) - bytes_of(made), 0) if stays else 0


def _connect(nodes: list[Node]) -> Iterable[list[Node]]:
    """Nodes in groups that give each other values within one stage."""
    root: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while root[node] is not node:
            root[node] = node = root[root[node]]
        return node

    for node in nodes:
        root[node] = node
        for value in node.ins:
            maker = value.maker
            if maker not in root or maker.stage != node.stage or maker.is_hard:
                continue
            if maker.step.is_global == node.step.is_global:
                root[find(maker)] = find(node)
    groups: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[find(node)].append(node)
    return groups.values()


def _work(node: Node) -> float:
    work = node.step.row.work
    return float(work * max((value.elements for value in (*node.ins, *node.outs)), default=0)) if work else 0.0


def _traced_attention(node: Node, noted: NotedAttention | None) -> Kernel:
    """The kernel of an attention traced for a GPU: cuDNN's, or one the record knows."""
    step = node.step
    if noted is None or node.kind is Role.ATTENTION:
        _, _, *sizes = sizes_of_attention(step.eqn)
        skips = is_causal(step.eqn)
    else:
        sizes = [noted.length, noted.memory_length, noted.case.width]
        skips = noted.case.causal and noted.case.goes_by_place
    length, memory, width = sizes
    return Kernel(
        "attention",
        step.op,
        step.phase,
        bytes=bytes_of({*node.ins, *node.outs}),
        flops=step.flops * FusedGroup(length, memory, width, 0, skips).seen_share,
        dtype=str(step.operands[0].aval.dtype) if noted is None else noted.case.dtype,
        shape=(1, length, memory, width),
        slower=1.0 if noted is None else slowness_of(noted.case),
    )


def _move_kernel(node: Node) -> Kernel:
    """The kernel of a lookup, a sort, random numbers, and the bytes it moves."""
    given, made = bytes_of(node.ins[1:]), bytes_of(node.outs)
    if node.kind is Role.GATHER:
        moved = 2 * made + given
    elif node.kind is Role.WRITE:
        moved = 2 * node.ins[1].bytes if len(node.ins) > 1 else made
    elif node.kind is Role.SCATTER:
        moved = made + 3 * given
    else:
        moved = bytes_of(node.ins) + made
    return Kernel("moved", node.step.op, node.step.phase, bytes=moved, work=_work(node))


def _row(collective: str, axes: tuple[str, ...], dtype: str, size: int, ways: int, phase: str) -> Row:
    return Row(collective, axes, (), dtype, size, 1, phase, "", "", "", exact=True, ways=ways)


def _size(kernels: list[Kernel]) -> float:
    return sum((kernel.flops / 200 + kernel.bytes) * kernel.count for kernel in kernels)
