"""The ledger is what is sent: to the byte, by collective and axes, in the jaxpr and in the code compiled for the CPU.

Where XLA sends less, the table below names the pass that joins or moves the collective, and by how much; with that
pass turned off nothing is sent less. float32, since XLA's CPU sums bfloat16 in float32.
"""

import math

import jax
import pytest

import weft as wf
from tests.program.cases import D, F, H, K, V, cases, ledger, rest_of_the_language, single_ideas
from tests.program.independent import QUICKLY, Less, Sent, compiled, difference, walk

CASES = cases()


def size(*dims: wf.Dim, ways: int = 1) -> int:
    return 4 * math.prod(dim.size for dim in dims) // ways


def again(size: int) -> int:
    """Bytes of what is gathered a second time, for the backward pass, which JAX 0.10's XLA joins with the first.

    Its `cse_barrier_expander` takes away the barriers that JAX puts before what is computed again; newer ones keep
    them on the CPU, and on CUDA they always stayed.
    """
    return size if jax.__version_info__ < (0, 11) else 0


LAYER = size(D) * 2 + size(D, H, K) * 4 + size(D, F) * 2
SENT_LESS = {
    "two layers, fully sharded": Less({("all_gather", "all"): again(size(D, F) * 2)}, "cse"),
    "two layers, fully sharded over two hosts": Less(
        {("all_gather", "hosts"): again(size(D, F, ways=4) * 2), ("all_gather", "x"): again(size(D, F) * 2)}, "cse"
    ),
    # Two gathers in each of five turns are one before the loop.
    "loop, fully sharded": Less(
        {("all_gather", "rows"): size(D, F, ways=4) * (2 * 5 - 1)}, "cse,while-loop-invariant-code-motion"
    ),
    "the same sum twice": Less({("all_reduce", "rows"): size(D, ways=4)}, "cse"),
    "unrolled, fully sharded": Less({("all_gather", "rows"): again(LAYER * 2 + size(V, D) + size(D))}, "cse"),
    "scanned, fully sharded": Less({("all_gather", "rows"): again(size(V, D) + size(D))}, "cse"),
    "scanned, fully sharded and model parallel": Less(
        {("all_gather", "rows"): again(size(V, D, ways=4) + size(D))}, "cse"
    ),
    "scanned, fully sharded, not recomputed": Less(
        {("all_gather", "rows"): again(size(V, D, ways=4) + size(D))}, "cse"
    ),
    "scanned, 3-D": Less({("all_gather", "z"): again(size(V, D, ways=2) + size(D))}, "cse"),
    # Looked up in and multiplied by: two gathers in the forward pass.
    "tied, fully sharded": Less(
        {("all_gather", "rows"): size(V, D, ways=4) + again(size(V, D, ways=4) + size(D))}, "cse"
    ),
    # Weights that are of no layer are the same in both microbatches: the two tables and a scale are gathered once.
    "microbatches, fully sharded": Less(
        {("all_gather", "rows"): 2 * size(V, D, ways=4) + size(D)}, "cse,while-loop-invariant-code-motion"
    ),
    "Adam, fully sharded": Less({("all_gather", "rows"): again(size(V, D, ways=4) + size(D))}, "cse"),
    "Adafactor, 3-D": Less({("all_gather", "z"): again(size(V, D, ways=2) + size(D))}, "cse"),
}

QUICK = {
    *single_ideas("float32"),
    *(name for name in rest_of_the_language("float32") if "two axes" not in name),
    "scanned, fully sharded and model parallel",
    "microbatches",
    "Adam, state split further",
} - {"u-net, channels split", "pools", "ordered", "experts, length split"}  # each has a sibling that compiles


def marked(names):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def code(name: str, **options: str) -> Sent:
    """What the compiled program sends."""
    mesh = wf.Mesh(CASES[name].mesh)
    return compiled(CASES[name].lowered(mesh).compile(QUICKLY | options).as_text(), mesh.axes)


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_is_what_the_jaxpr_sends(name):
    program = CASES[name].program()
    assert difference(ledger(program), walk(program.jaxpr) + ledger(program, phase="update")) == {}


@pytest.mark.parametrize("name", marked(CASES))
def test_the_ledger_is_what_the_compiled_code_sends(name):
    less = SENT_LESS[name].bytes if name in SENT_LESS else {}
    expected = {what: size for what, size in less.items() if size}
    assert difference(ledger(CASES[name].program()), code(name)) == expected


@pytest.mark.parametrize("name", marked(SENT_LESS))
def test_without_the_pass_that_is_named_nothing_is_sent_less(name):
    sent = code(name, xla_disable_hlo_passes=SENT_LESS[name].passes)
    assert difference(ledger(CASES[name].program()), sent) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Adafactor", "scanned, fully sharded and model parallel"])
def test_compiling_quickly_gives_the_same_code(name):
    lowered = CASES[name].lowered(wf.Mesh(CASES[name].mesh))
    assert lowered.compile(QUICKLY).as_text() == lowered.compile().as_text()
