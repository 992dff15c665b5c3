"""A step of decoding on some hardware: what one token of each sequence takes.

The program is `models.decode_step`'s, or any that is given a KV cache; beside it stand the same on one processor, and
the loop in which `decode.generate` has it.
"""

from dataclasses import dataclass
from typing import Any

from ..program import Program
from ..program.memory import Alive
from ..text import Printed, join_lines, size_text, time_text
from .cost import Plan


@dataclass(frozen=True)
class DecodePlan:
    """What a token takes: seconds, weights and KV cache a processor, collectives."""

    plan: Plan
    alone: Plan
    """The same step on one processor."""
    context: int
    """How many tokens the next one looks at."""
    loop: Plan | None = None
    """Of `models.decoding.decode_tokens`: a loop that writes tokens as `decode.generate` does."""

    @property
    def generated_seconds(self) -> float | None:
        """Seconds of a step inside the loop of `decode.generate`."""
        return None if self.loop is None else _seconds_a_turn(self.loop)

    @property
    def program(self) -> Program:
        return self.plan.program

    @property
    def seconds(self) -> float:
        """Seconds of a step: one token of each sequence."""
        return self.plan.seconds

    @property
    def batch(self) -> int:
        """How many sequences are decoded at once."""
        return self.plan.tokens or 1

    @property
    def speed_up(self) -> float:
        """How many times as fast as one processor."""
        return self.alone.seconds / self.seconds

    @property
    def weights(self) -> list[Alive]:
        """The weights as one processor holds them."""
        arguments = zip(self.program.inputs, self.plan.memory.given, strict=False)
        return [array for given, array in arguments if given.store is not None]

    @property
    def cache(self) -> list[Alive]:
        """The KV cache as one processor holds it."""
        return self.plan.memory.cache

    def collectives(self) -> list[dict[str, Any]]:
        """What is sent for a token: of each collective and its axes the count and bytes."""
        totals: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.program.ledger:
            key = row.collective, "+".join(row.axes)
            total = totals.setdefault(key, {"collective": key[0], "axes": key[1], "count": 0, "bytes": 0})
            total["count"] += row.count
            total["bytes"] += row.count * row.bytes
        return list(totals.values())

    def __str__(self) -> str:
        return join_lines(self.printed())

    def printed(self) -> list[Printed]:
        """The lines of its text, each with what it is."""
        plan, sequences = self.plan, f"{self.batch} sequence{'s' * (self.batch != 1)}"
        took = f"{time_text(self.seconds)} a token, {plan.tokens_per_s or 0.0:,.0f} tokens/s"
        lines = [f"{took}: {sequences}, a context of {self.context:,}; {plan.why}"]
        if plan.mesh.size > 1:
            lines.append(self._against_one())
        if self.loop is not None:
            lines.append(self._describe_generated(self.loop))
        lines.append(f"on each processor: weights {_held_text(self.weights)}, KV cache {_held_text(self.cache)}")
        for sent in self.collectives():
            of_all = f"{sent['count']:,} {sent['collective']} over {sent['axes']}, {size_text(sent['bytes'])}"
            lines.append(f"sent for a token: {of_all}")
        for axes, seconds in plan.communication.items():
            lines.append(f"over {axes}: {time_text(seconds)} of sending")
        texts = [*lines, plan.memory_text, ""]
        return [Printed(plan.title, "title"), *map(Printed, texts), *plan.printed_table()]

    def _describe_generated(self, loop: Plan) -> str:
        took = _seconds_a_turn(loop)
        fits = "it fits" if loop.fits else "IT MAY NOT FIT"
        memory = f"{size_text(loop.memory.peak)} of memory with the weights it prepares: {fits}"
        return f"by `decode.generate`: {time_text(took)} a token, {self.batch / took:,.0f} tokens/s; {memory}"

    def _against_one(self) -> str:
        alone = self.alone
        faster = (
            f"{self.speed_up:.2f} times as fast" if self.speed_up >= 1 else f"{1 / self.speed_up:.2f} times as long"
        )
        fits = "" if alone.fits else ", which it may not have"
        memory = f"{size_text(alone.memory.peak)} of memory{fits}"
        return f"{faster} as one processor: {time_text(alone.seconds)} a token, {memory}"

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, with what a token takes under `decode`."""
        return self.plan.to_dict() | {
            "decode": {
                "context": self.context,
                "batch": self.batch,
                "seconds_a_token": self.seconds,
                "tokens_per_s": self.plan.tokens_per_s,
                "weights": _bytes(self.weights),
                "weights_dtypes": _dtypes(self.weights),
                "cache": _bytes(self.cache),
                "cache_dtypes": _dtypes(self.cache),
                "collectives": self.collectives(),
                "speed_up": self.speed_up,
                "alone": {
                    "seconds_a_token": self.alone.seconds,
                    "tokens_per_s": self.alone.tokens_per_s,
                    "memory": self.alone.memory.peak,
                    "fits": self.alone.fits,
                },
                "generate": None if self.loop is None else self._generated_values(self.loop),
            }
        }

    def _generated_values(self, loop: Plan) -> dict[str, Any]:
        took = _seconds_a_turn(loop)
        return {
            "seconds_a_token": took,
            "tokens_per_s": self.batch / took,
            "memory": loop.memory.peak,
            "fits": loop.fits,
        }


def _seconds_a_turn(plan: Plan) -> float:
    """What a turn of the loop over tokens takes, the last that is in no other."""
    reading = plan.program.reading
    loop = [entry for entry in reading.entries if entry.op == "fori_loop" and entry.parent is None][-1]
    inside = [(op, entry) for op in plan.ops if (entry := reading.entry(op.op)) and loop in reading.around(entry)]
    turns = max(op.count for op, entry in inside if entry.parent == loop.id)
    return sum(op.seconds for op, _ in inside if op.count >= turns) / turns  # the others are done before the loop


def _held_text(arrays: list[Alive]) -> str:
    return f"{size_text(_bytes(arrays))} of {' and '.join(_dtypes(arrays))}"


def _bytes(arrays: list[Alive]) -> int:
    return sum(array.bytes for array in arrays)


def _dtypes(arrays: list[Alive]) -> list[str]:
    """The dtypes of arrays, that of most bytes first."""
    sizes: dict[str, int] = {}
    for array in arrays:
        dtype = str(array.array_type.dtype)
        sizes[dtype] = sizes.get(dtype, 0) + array.bytes
    return sorted(sizes, key=lambda dtype: -sizes[dtype])
