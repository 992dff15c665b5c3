"""A ledger keeps its word: random programs x random meshes x random layouts, traced and read, never compiled.

`WEFT_CASES=1000 pytest tests/properties` runs more of them, drawn anew each time.
"""

import collections
import json
import re
import warnings

from hypothesis import given

import weft as wf
from tests.lower.on_all import in_steps
from tests.program.independent import walk
from tests.properties.counts import Counts
from tests.properties.layouts import draw_case, wrong_in
from tests.properties.programs import FOLLOWS, SIZES, differentiated, randoms, sampled
from tests.properties.steps_conv import KERNEL

counts = Counts("ledgers")

# The claims a reason makes of dims (single letters here): that they are split over the row's axes.
DIMS = r"(?P<dims>\w(?:(?:, | and )\w)*)"
SPLIT = [
    rf"because {DIMS} (?:is|are) summed and split over",
    rf"because (?:the gradient of )?\w+ goes over {DIMS}, split over",
    LOOKED_UP := rf"because {DIMS} (?:is|are) looked up in, and split over",
    rf"used with data split there \({DIMS}\)",
    FOUND := rf"because {DIMS} (?:is|are) split over",
]
STORED = re.compile(r"\(params\.(?P<dim>\w+)[\w., ]*\)")
STEP = re.compile(
    r"\bover (?P<axes>\w+(?:\+\w+)+).*: (?:scattered|summed|gathered) over [\w+]+$"
)  # of a sum over those
WHOLE = re.compile(r"\b(?P<dim>\w+) is whole(?!.* over)")


def split_by(layout, mesh):
    """Over which axes a layout splits each dim, those that follow others included; one of size 1 splits nothing."""
    rules = {name: {axis for axis in axes if mesh.axes[axis] > 1} for name, axes in wf.Layout(layout).rules.items()}
    return {name: rules.get(name, rules.get(FOLLOWS.get(name), set())) for name in (*SIZES, *KERNEL)}


def stored_by(layout, mesh):
    """As `split_by`, and over which axes parameters are stored: ids may be looked up in them as they are."""
    params = wf.Layout(layout).params
    return {name: axes | set(params.get(name, ())) for name, axes in split_by(layout, mesh).items()}


def untruths(row, layout, mesh):
    """What a row's reason claims and the layout denies."""
    split, axes, found = split_by(layout, mesh), set(row.axes), []
    if (step := STEP.search(row.reason)) is not None:
        axes = set(step["axes"].split("+"))
    for claim in SPLIT:
        if (match := re.search(claim, row.reason)) is not None:
            held = stored_by(layout, mesh) if claim in (LOOKED_UP, FOUND) else split
            dims = re.split(r", | and ", match["dims"])
            found += [f"{dim} is not split over {axes}" for dim in dims if not held[dim] & axes]
            if not axes <= set().union(*(held[dim] for dim in dims)):
                found.append(f"{dims} do not make up {axes}")
            break
    if (match := WHOLE.search(row.reason)) is not None and split.get(match["dim"]):
        found.append(f"{match['dim']} is split over {split[match['dim']]}")
    if (match := STORED.search(row.reason)) is not None and f"params.{match['dim']}:" not in layout:
        rule = any(f"{match['dim']}:" in part for part in layout.split(","))
        found += [] if rule else [f"no rule stores {match['dim']}"]
    return found


def flat(lines):
    for line in lines:
        yield line
        yield from flat(line.lines)


def sent(program):
    """Bytes by collective and axes of what really crosses processors, read off the jaxpr alone."""
    found = walk(program.jaxpr)
    return {key: size for key, size in found.items() if any(program.mesh.axes[axis] > 1 for axis in key[1])}


@sampled(20)
@given(randoms())
def test_every_collective_is_counted_shown_and_truly_explained(rng):
    drawn, mesh, layout = draw_case(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        try:
            with in_steps():
                program = wf.trace(differentiated(drawn), drawn.inputs, mesh=mesh, layout=layout)
        except wf.WeftError as error:
            assert not (wrong := wrong_in(error, drawn, mesh, layout)), f"{wrong}: {error}"
            counts.was_refused(error.fact, drawn.words)
            return
    counts.ran("traced", drawn.words)
    check_bytes(program)
    check_rows(program, layout)
    check_listing(program, has_choice="cond" in drawn.words)
    assert json.loads(program.to_json())["version"] == 1
    assert not program.diff(program)


def check_bytes(program):
    mine = collections.Counter()
    for row in program.ledger:
        mine[row.collective, frozenset(row.axes)] += row.bytes * row.count
    assert mine == sent(program)
    assert program.ledger.bytes() == sum(mine.values())


def check_rows(program, layout):
    for row in program.ledger:
        assert re.fullmatch(r"tests/properties/\w+\.py:\d+", row.source), row
        assert row.function, row
        assert row.reason.startswith("because "), row
        assert "  " not in row.reason, row
        assert not row.reason.endswith(" "), row
        assert untruths(row, layout, program.mesh) == [], row


def check_listing(program, *, has_choice):
    lines = list(flat(program.lines))
    shown = collections.Counter()
    for line in lines:
        if line.kind == "collective":
            shown[line.type] += line.count
    counted = collections.Counter()
    for row in program.ledger:
        counted[f">> {row.collective} over {'+'.join(row.axes)}"] += row.count
    # Both sides of a choice are shown, and the larger is counted.
    assert counted <= shown if has_choice else counted == shown
    assert all(line.source and line.text for line in lines if line.kind in ("op", "collective"))
    assert str(program).count(">>") == sum(line.kind == "collective" for line in lines)


def test_most_random_programs_are_traced():
    """The property above would hold of a library that refused everything."""
    counts.report()
    assert counts.share("traced") > 0.6, counts.outcomes
