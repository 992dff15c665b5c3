"""What a written program's ledger says against its jaxpr and its compiled code."""

import warnings
from collections import Counter

import jax

import weft as wf
from tests.program.independent import QUICKLY, compiled, difference, walk
from tests.properties.written.program import Written, weft_run

UNCOUNTED = ("while_loop", "fori_loop", "cond")


def ledger_differences(program: Written, mesh: str, layout: str) -> list[tuple[str, str]]:
    """Where the ledger is not what is sent; of loops and branches that only the run decides on, off the jaxpr alone."""
    run, axes = weft_run(program), wf.Mesh(mesh)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        traced = wf.trace(run, program.inputs(), mesh=axes, layout=layout)
        said = Counter()
        for row in traced.ledger:
            said[row.collective, frozenset(row.axes)] += row.bytes * row.count
        if found := difference(said, _sent(walk(traced.jaxpr), axes)):
            return [("ledger", f"{found} more than its jaxpr")]
        is_widened = any(row.dtype in ("bfloat16", "float16") for row in traced.ledger)  # by XLA, on CPUs
        if is_widened or any(word in UNCOUNTED for word, _ in program.words):
            return []
        placed = wf.put((program.inputs(),), mesh=axes, layout=layout)
        lowered = jax.jit(wf.spmd(run, mesh=axes, layout=layout)).lower(*placed)
    sent = compiled(lowered.compile(QUICKLY).as_text(), axes.axes)
    less = difference(_by_pairs(said), _by_pairs(sent))
    if any(size < 0 for size in less.values()):
        return [("ledger", f"{less} more than the compiled code, where XLA can only send less")]
    return []


def _by_pairs(found: Counter) -> Counter:
    """A permute names its pairs of processors, which may differ in fewer axes than the dim is split over."""
    total: Counter = Counter()
    for (collective, axes), size in found.items():
        total[collective, frozenset() if collective == "permute" else axes] += size
    return total


def _sent(found: Counter, mesh: wf.Mesh) -> Counter:
    return Counter({key: size for key, size in found.items() if any(mesh.axes[axis] > 1 for axis in key[1])})
