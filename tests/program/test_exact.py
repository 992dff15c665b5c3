"""The ledger is what is sent: to the byte, by collective and axes, in the jaxpr and in the code compiled for the CPU.

Where XLA sends less, the table below names the pass that joins or moves the collective, and by how much; with that
pass turned off nothing is sent less. float32, since XLA's CPU sums bfloat16 in float32.
"""

import dataclasses
import math
from collections import Counter

import pytest

import weft as wf
from tests.program.cases import D, F, H, K, V, cases, single_ideas
from tests.program.independent import QUICKLY, Sent, compiled, difference, walk

CASES = cases()


def size(*dims: wf.Dim, ways: int = 1) -> int:
    return 4 * math.prod(dim.size for dim in dims) // ways


@dataclasses.dataclass(frozen=True)
class Less:
    """By how many bytes XLA sends less of one collective, and the passes that do it."""

    collective: str
    axes: str
    bytes: int
    passes: str = "cse"


# Outside loops a stored weight is gathered at each use and again in the backward pass. On the CPU `cse` joins these:
# `cse_barrier_expander` has taken away the barriers that JAX puts before what is computed again. (On CUDA they stay:
# tests/program/test_cuda.py.) Of a loop that holds a weight `while-loop-invariant-code-motion` moves the gather out.
LAYER = size(D) * 2 + size(D, H, K) * 4 + size(D, F) * 2
SENT_LESS = {
    "two layers, fully sharded": Less("all_gather", "all", size(D, F) * 2),
    "loop, fully sharded": Less(
        "all_gather", "rows", size(D, F, ways=4) * (2 * 5 - 1), "cse,while-loop-invariant-code-motion"
    ),
    "the same sum twice": Less("all_reduce", "rows", size(D, ways=4)),
    "unrolled, fully sharded": Less("all_gather", "rows", LAYER * 2 + size(V, D) + size(D)),
    "scanned, fully sharded": Less("all_gather", "rows", size(V, D) + size(D)),
    "scanned, fully sharded and model parallel": Less("all_gather", "rows", size(V, D, ways=4) + size(D)),
    "scanned, fully sharded, not recomputed": Less("all_gather", "rows", size(V, D, ways=4) + size(D)),
    "scanned, 3-D": Less("all_gather", "z", size(V, D, ways=2) + size(D)),
    "tied, fully sharded": Less("all_gather", "rows", size(V, D, ways=4) * 2 + size(D)),
    "Adam, fully sharded": Less("all_gather", "rows", size(V, D, ways=4) + size(D)),
    "Adafactor, 3-D": Less("all_gather", "z", size(V, D, ways=2) + size(D)),
}

QUICK = {
    *single_ideas("float32"),
    "unrolled, the paper's",
    "scanned, recomputed",
    "scanned, fully sharded and model parallel",
    "sequence parallel",
    "tied",
    "microbatches",
    "Adam, state split further",
    "Adafactor",
}


def marked(names):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def read(program) -> Sent:
    """What the program's ledger says is sent."""
    found: Sent = Counter()
    for row in program.ledger:
        assert row.exact
        found[row.collective, frozenset(row.axes)] += row.bytes * row.count
    return found


def update(program) -> Sent:
    """What of it is sent by the update, which is in no equation of the jaxpr."""
    found: Sent = Counter()
    for row in program.ledger:
        if row.phase == "update":
            found[row.collective, frozenset(row.axes)] += row.bytes * row.count
    return found


def code(name: str, **options: str) -> Sent:
    """What the compiled program sends."""
    mesh = wf.Mesh(CASES[name].mesh)
    return compiled(CASES[name].lowered(mesh).compile(QUICKLY | options).as_text(), mesh.axes)


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_is_what_the_jaxpr_sends(name):
    program = CASES[name].program()
    assert difference(read(program), walk(program.jaxpr) + update(program)) == {}


@pytest.mark.parametrize("name", marked(CASES))
def test_the_ledger_is_what_the_compiled_code_sends(name):
    less = SENT_LESS.get(name)
    expected = {} if less is None else {(less.collective, less.axes): less.bytes}
    assert difference(read(CASES[name].program()), code(name)) == expected


@pytest.mark.parametrize("name", marked(SENT_LESS))
def test_without_the_pass_that_is_named_nothing_is_sent_less(name):
    sent = code(name, xla_disable_hlo_passes=SENT_LESS[name].passes)
    assert difference(read(CASES[name].program()), sent) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Adafactor", "scanned, fully sharded and model parallel"])
def test_compiling_quickly_gives_the_same_code(name):
    lowered = CASES[name].lowered(wf.Mesh(CASES[name].mesh))
    assert lowered.compile(QUICKLY).as_text() == lowered.compile().as_text()
