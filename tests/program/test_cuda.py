"""The ledger is what is sent on GPUs too: bfloat16, compiled ahead of time for eight H100, no card needed.

Runs where the CUDA plugin is installed (`pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt`, of JAX's own
version). Where XLA sends less, the table names the pass and the bytes; with it turned off nothing is sent less.
"""

import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter

import pytest

import weft as wf
from tests.program.cases import D, F, V, cases, ledger
from tests.program.cuda import ENVIRONMENT
from tests.program.independent import Less, Sent, difference

IS_INSTALLED = importlib.util.find_spec("jax_cuda12_plugin") is not None
pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="the CUDA plugin of JAX is not installed")

CASES = cases("bfloat16")
QUICK = [
    "two layers, 2-D",
    "two layers, fully sharded",
    "cross-entropy",
    "branches, backward",
    "loop, fully sharded",
    "sequence parallel",
    "scanned, fully sharded and model parallel",
    "Adam, state split further",
]


def size(*dims: wf.Dim, ways: int = 1) -> int:
    return 2 * math.prod(dim.size for dim in dims) // ways


CSE = "cse,host-offloader"  # the second runs the first on its own account
SENT_LESS = {
    # Twice in the body of a loop of five turns.
    "loop, fully sharded": Less({("all_gather", "rows"): size(D, F, ways=4) * 5}, CSE),
    "the same sum twice": Less({("all_reduce", "rows"): size(D, ways=4)}, CSE),
    # The two gradients of a tied weight, one of them cast, are added before they are summed; so are the squares of
    # the global norm.
    "tied": Less({("all_reduce", "rows"): size(V, D, ways=4)}, "all-reduce-reassociate"),
    "AdamW, clipped by the global norm": Less(
        {("all_reduce", "rows"): size(V, D, ways=4), ("all_reduce", "cols"): 4}, "all-reduce-reassociate"
    ),
    # The loss of the microbatches is summed after the loop.
    "microbatches": Less({("all_reduce", "rows"): 4}, "while-loop-all-reduce-code-motion"),
    "Adafactor, microbatches": Less({("all_reduce", "rows"): 4}, "while-loop-all-reduce-code-motion"),
    # A weight that is cast after its gather is gathered in bfloat16.
    "microbatches, fully sharded": Less(
        {("all_reduce", "rows"): 4, ("all_gather", "rows"): size(V, D, ways=4)},
        "while-loop-all-reduce-code-motion,collective-quantizer",
    ),
    # Two sums, one after the other, become one over all their axes.
    "Adafactor, 3-D": Less(
        {("all_reduce", "y"): 96, ("all_reduce", "x+z"): 96, ("all_reduce", "x+y+z"): -96}, "all-reduce-folder"
    ),
}


@functools.cache
def code(asked: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], Sent]:
    """What compiled programs send, each with some passes turned off."""
    command = [sys.executable, "-m", "tests.program.cuda", json.dumps(asked)]
    child = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=1800)
    found = {}
    for line in child.stdout.splitlines():
        name, passes, sent = json.loads(line)
        found[name, passes] = Counter({(kind, frozenset(axes)): bytes for kind, axes, bytes in sent})
    assert len(found) == len(asked), child.stderr[-3000:]
    return found


def group(name: str, names) -> list[str]:
    """The names compiled in one process with this one."""
    return [other for other in names if (other in QUICK) == (name in QUICK)]


def marked(names):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", marked(CASES))
def test_the_ledger_is_what_the_compiled_code_sends(name):
    sent = code(tuple((other, "") for other in group(name, CASES)))[name, ""]
    expected = SENT_LESS[name].bytes if name in SENT_LESS else {}
    assert difference(ledger(CASES[name].program()), sent) == expected


@pytest.mark.parametrize("name", marked(SENT_LESS))
def test_without_the_pass_that_is_named_nothing_is_sent_less(name):
    passes = SENT_LESS[name].passes
    sent = code(tuple((other, SENT_LESS[other].passes) for other in group(name, SENT_LESS)))[name, passes]
    assert difference(ledger(CASES[name].program()), sent) == {}
