"""Offload: an update of what lies on the host, fetched and stored in pieces.

Stands below the update. An optimizer's update is traced on whole arrays and read as a graph. What works on each value
alone is put off until a result needs it; then the results that come of the same arrays are made together in a loop
over pieces of these arrays, so that no more than a piece of each lies in the processors' memory. Whatever looks along
arrays (a norm, say) is given them whole, one after the other. The values are those of the update itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..compat import is_on_host, to_device, to_host
from ..graph import Body, Step, Value, graph
from ..lower.collectives import as_varying, varying
from ..primitives import ELEMENTWISE, Role

PIECE = 64 * 2**20
"""Bytes of the largest piece of an array that is fetched at once, where it can be cut so."""


@dataclass(frozen=True)
class UpdateArray:
    """An array of an update, and how its slices lie on the mesh."""

    array: Any
    spec: PartitionSpec
    result: int | None = None
    """The number of the result that is its new value."""


def stream(fn: Callable[..., list[Any]], held: Sequence[UpdateArray], mesh: Any) -> list[Any]:
    """The results of `fn` of these arrays, those of arrays on the host there again."""
    closed = jax.make_jaxpr(fn)(*(_on_device(one.array) for one in held))
    return _Streamed(graph(closed), held, mesh).results()


def _on_device(array: Any) -> Any:
    """The shape of an array, as one in the processors' memory."""
    aval = jax.typeof(array)
    sharding = aval.sharding if AxisType.Explicit in aval.sharding.mesh.axis_types else None
    if sharding is not None:
        sharding = NamedSharding(sharding.mesh, sharding.spec)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


class _Streamed:
    """The values of an update: arrays that are ready, and steps that are put off."""

    def __init__(self, body: Body, held: Sequence[UpdateArray], mesh: Any):
        self.body, self.mesh = body, mesh
        self.leaves = {value: one for value, one in zip(body.inputs, held, strict=True) if value.aval.shape}
        """The arrays that are cut in pieces."""
        self.ready = {value: one.array for value, one in zip(body.inputs, held, strict=True) if not value.aval.shape}
        self.ready |= {value: value.number for value in body.constants}
        self.uniform: dict[Value, Value] = {}
        """Arrays of one number, by that number."""
        self.after: Any = None
        """What was made last of whole arrays; the next are fetched after it."""
        self.starts = {one.result: value for value, one in self.leaves.items() if one.result is not None}
        for step in body:
            self._take(step)

    def _take(self, step: Step) -> None:
        if step.kind is Role.BROADCAST and not step.operands[0].aval.shape and len(step.operands) == 1:
            self.uniform[step.results[0]] = step.operands[0]
        elif not (any(map(self._is_put_off, step.operands)) and self._is_local(step)):
            arrays = [self._whole(value) for value in step.operands]
            self.ready.update(zip(step.results, step.run(arrays), strict=True))
            if any(self._is_put_off(value) for value in step.operands):
                self.after = self.ready[step.results[0]]

    def _is_put_off(self, value: Value) -> bool:
        return not value.is_literal and value not in self.ready and value not in self.uniform

    def _is_local(self, step: Step) -> bool:
        """Whether a step works on each value of arrays of one shape alone."""
        if len(step.results) != 1 or (step.kind not in ELEMENTWISE and step.kind is not Role.VIEW):
            return False
        shape = step.results[0].aval.shape
        return all(value.aval.shape in (shape, ()) for value in step.operands)

    def _whole(self, value: Value) -> Any:
        """A value on whole arrays, which are fetched for it."""
        if value.is_literal:
            return value.number
        if value in self.ready:
            return self.ready[value]
        if value in self.uniform:
            return self._bind(value.maker, value.aval.shape, [self._whole(self.uniform[value])])
        if value in self.leaves:
            array = self.leaves[value].array
            if not is_on_host(array):
                return array
            if self.after is not None:
                array, _ = lax.optimization_barrier((array, self.after))
            return to_device(array)
        maker: Any = value.maker
        return self._bind(maker, value.aval.shape, [self._whole(operand) for operand in maker.operands])

    def _bind(self, step: Any, shape: Sequence[int], arrays: Sequence[Any]) -> Any:
        """The result of a step on pieces, or on whole arrays, of that shape."""
        if step.kind is Role.VIEW:
            return arrays[0]
        if step.kind is Role.CAST:
            return lax.convert_element_type(arrays[0], step.results[0].aval.dtype)
        if step.kind is Role.BROADCAST:
            return lax.broadcast(arrays[0], shape)
        axes = frozenset().union(*(varying(array) for array in arrays))
        (made,) = step.run([as_varying(array, axes) for array in arrays])
        return made

    def results(self) -> list[Any]:
        """All results; of pieces where they come of what lies on the host."""
        results = self.body.results
        for numbers in self._together():
            of = dict.fromkeys(leaf for i in numbers for leaf in self._find_origins(results[i]) if leaf.aval.shape)
            if any(map(self._is_on_host, of)):
                for i, array in zip(numbers, _PieceLoop(self, numbers, list(of)).run(), strict=True):
                    self.ready[results[i]] = array
        return [self._result(i, value) for i, value in enumerate(results)]

    def _result(self, i: int, value: Value) -> Any:
        if value in self.leaves:
            return self.leaves[value].array
        return to_host(self._whole(value)) if self._goes_to_host(i) else self._whole(value)

    def _goes_to_host(self, i: int) -> bool:
        return i in self.starts and is_on_host(self.leaves[self.starts[i]].array)

    def _is_on_host(self, value: Value) -> bool:
        return value in self.leaves and is_on_host(self.leaves[value].array)

    def _find_origins(self, value: Value) -> dict[Value, None]:
        """The arrays and numbers that a value put off is made of."""
        found: dict[Value, None] = {}
        todo, seen = [value], {value}
        while todo:
            one = todo.pop()
            if one in self.leaves or one in self.ready:
                found[one] = None
                continue
            operands = [self.uniform[one]] if one in self.uniform else one.maker.operands if one.maker else []
            todo += [o for o in operands if o not in seen and not o.is_literal]
            seen.update(operands)
        return found

    def _together(self) -> list[list[int]]:
        """The numbers of results put off, in groups that come of the same arrays."""
        groups: list[tuple[set[Value], list[int]]] = []
        for i, value in enumerate(self.body.results):
            if not self._is_put_off(value) or value in self.leaves:
                continue
            arrays = {leaf for leaf in self._find_origins(value) if leaf.aval.shape}
            own = [group for group in groups if group[0] & arrays]
            groups = [group for group in groups if not group[0] & arrays]
            groups.append((arrays.union(*(g[0] for g in own)), [*(n for g in own for n in g[1]), i]))
        return [numbers for _, numbers in groups]


class _PieceLoop:
    """Results that come of the same arrays, made piece by piece."""

    def __init__(self, of: _Streamed, numbers: Sequence[int], arrays: Sequence[Value]):
        self.of, self.results, self.arrays = of, [of.body.results[i] for i in numbers], list(arrays)
        self.on_host = [of._goes_to_host(i) for i in numbers]
        self.numbers = [v for r in self.results for v in of._find_origins(r) if not v.aval.shape]
        self.numbers = list(dict.fromkeys(self.numbers))
        places = {value: place for place, value in enumerate(self.arrays)}
        self.carried: list[int | None] = []
        """For each result the place of the array that it is the new value of, and is written over."""
        for i, result in zip(numbers, self.results, strict=True):
            place = places[of.starts[i]] if of.starts.get(i) in places else None
            is_alike = place is not None and self.arrays[place].aval.dtype == result.aval.dtype
            self.carried.append(place if is_alike else None)

    def run(self) -> list[Any]:
        of = self.of
        arrays = [of.leaves[v].array if v in of.leaves else of.ready[v] for v in self.arrays]
        numbers = [of.ready[v] for v in self.numbers]
        if of.mesh is None:
            return self._run(numbers, arrays)
        spec = next(of.leaves[v].spec for v in self.arrays if v in of.leaves)
        in_specs = ([PartitionSpec()] * len(numbers), [spec] * len(arrays))
        mapped = jax.shard_map(self._run, mesh=of.mesh, in_specs=in_specs, out_specs=[spec] * len(self.results))
        return mapped(numbers, arrays)

    def _run(self, numbers: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """All pieces in turn; arrays whose new values are made are written over."""
        shape, count = arrays[0].shape, self._pieces(arrays)
        cut = [array.reshape(count, shape[0] // count, *shape[1:]) for array in arrays]
        places = [place for place in self.carried if place is not None]

        def turn(carry: Sequence[Any], i: Any) -> tuple[list[Any], list[Any]]:
            now = [*cut]
            for place, array in zip(places, carry, strict=True):
                now[place] = array
            pieces = [to_device(lax.dynamic_index_in_dim(array, i, keepdims=False)) for array in now]
            made = self._update(numbers, pieces)
            new = [to_host(array) if on_host else array for array, on_host in zip(made, self.on_host, strict=True)]
            following = [
                lax.dynamic_update_index_in_dim(now[place], array, i, 0)
                for place, array in zip(self.carried, new, strict=True)
                if place is not None
            ]
            return following, [array for place, array in zip(self.carried, new, strict=True) if place is None]

        carry, stacked = lax.scan(turn, [cut[place] for place in places], jax.numpy.arange(count))
        of_carry, of_stacks = iter(carry), iter(stacked)
        made = [next(of_stacks if place is None else of_carry) for place in self.carried]
        return [array.reshape(shape) for array in made]

    def _pieces(self, arrays: Sequence[Any]) -> int:
        """Into how many pieces arrays are cut along their first dim."""
        first, size = arrays[0].shape[0], max(math.prod(a.shape) * a.dtype.itemsize for a in arrays)
        least = -(-size // PIECE)
        return next((n for n in range(max(least, 1), first + 1) if first % n == 0), max(first, 1))

    def _update(self, numbers: Sequence[Any], pieces: Sequence[Any]) -> list[Any]:
        made: dict[Value, Any] = dict(zip((*self.numbers, *self.arrays), (*numbers, *pieces), strict=True))
        shape = pieces[0].shape

        def make(value: Value) -> Any:
            if value.is_literal:
                return value.number
            if value not in made:
                step: Any = value.maker
                made[value] = self.of._bind(step, shape, [make(operand) for operand in step.operands])
            return made[value]

        axes = frozenset().union(*(varying(piece) for piece in pieces))
        return [as_varying(make(result), axes) for result in self.results]
