"""Written programs: no layout changes an answer; and whatever would, or hangs, or dies, is found and told.

`make test-random` runs many more of them; this is a slice of it, the same each time.
"""

import os
import random
import time

import numpy as np
import pytest

import weft as wf
from tests.properties.written import cases
from tests.properties.written.drawing import Drawing, Scope
from tests.properties.written.families import ORDER
from tests.properties.written.judging import differs
from tests.properties.written.program import finished
from tests.properties.written.report import Report, show_finding
from tests.properties.written.workers import Pool, Settings

PAIRS = 48


def collect(pool, pairs):
    report = Report()
    try:
        for outcome in pool.run():
            report.add(outcome)
            if report.pairs >= pairs:
                return report
    finally:
        pool.close()


def test_no_layout_changes_what_a_written_program_gives(tmp_path):
    order = tuple(family for family in ORDER if family not in ("wide", "forms"))
    settings = Settings(seed=1, layouts=3, limit_s=300, folder=tmp_path, order=order)
    report = collect(Pool(1, settings), PAIRS)
    told = "\n\n".join(show_finding(found[0]) for found in report.findings.values())
    assert report.is_clean, f"{report.summary()}\n\n{told}"
    assert report.outcomes["equal"] > 0.6 * report.pairs, report.summary()
    assert any(kind == "params" for _, _, kind in report.table)


# ---- what is wrong is found


def case_of(*lines, sloped=True):
    """A case of one written program on x1 [n c] and x2 [c], both float32."""
    n, c = wf.dims(n=4, c=4)
    drawing = Drawing(random.Random(0), {"n": n, "c": c}, ("float32",), "small" if sloped else "zeros", parameters=0)
    drawing.leaf([n, c], "float32")
    drawing.leaf([c], "float32")
    scope = Scope(drawing)
    for expression, exact in lines:
        assert scope.bind(expression, "step", exact, met=["x1", "x2"]) is not None
    case = cases.WrittenCase.__new__(cases.WrittenCase)
    case.family, case.program, case.words, case.reads_ledgers = "control", finished(drawing), [], True
    return case


def outcome_of(case, layout="n:x", mesh="x=2"):
    outcome, failed = cases.run_alone(case, "control")
    assert not failed, outcome
    return cases.run_pair(case, mesh, layout)


def is_split(x):
    return any(ways > 1 for ways in (x.ways(dim) for dim in x.dims))


@pytest.mark.parametrize(
    ("damage", "exact", "outcome"),
    [
        (lambda y: y, True, "equal"),
        (lambda y: y + 1, True, "wrong"),
        (lambda y: wf.abs(y) * 0.0 + y, True, "wrong"),
        (lambda y: wf.cast(y, "bfloat16"), True, "wrong"),
        (lambda y: 2 * y - wf.stop_gradient(y), False, "wrong"),
        (lambda y: 1 / 0, True, "raw"),
        (lambda y: wf.take(y, 1.5, over="n"), True, "refused wrongly"),
    ],
    ids=["nothing", "a value", "the sign of zero", "the dtype", "a gradient", "a raw error", "a refusal"],
)
def test_what_happens_under_a_layout_alone_is_found(monkeypatch, damage, exact, outcome):
    flip = wf.flip
    monkeypatch.setattr(wf, "flip", lambda x, over: damage(flip(x, over=over)) if is_split(x) else flip(x, over=over))
    case = case_of(("wf.flip(x1, over='c')", exact), sloped=not exact)
    assert outcome_of(case).outcome == outcome


def test_a_right_refusal_is_told_from_a_wrong_one():
    case = case_of(("x1 * x2", False))
    assert outcome_of(case, "n:x,c:x").outcome == "refused"
    assert outcome_of(case, "n:x", "x=3").outcome == "refused"
    assert outcome_of(case, "n:x,m:x").outcome == "refused wrongly"


def test_a_finding_is_printed_as_a_program_that_runs_by_itself(monkeypatch, capsys):
    flip = wf.flip
    cases.seen.clear()  # the first of a kind are made smaller
    monkeypatch.setattr(wf, "flip", lambda x, over: 2 * flip(x, over=over) if is_split(x) else flip(x, over=over))
    case = case_of(("x1 * x2", False), ("wf.flip(v3, over='c')", False))
    found = outcome_of(case, "n:x,c:y", "x=2,y=2")
    assert "gradient" in found.detail or "v4" in found.detail
    assert "," not in found.text.split("layout=")[1].split(")")[0]  # one rule will do
    monkeypatch.undo()
    exec(found.text, {})
    assert capsys.readouterr().out.count("f32[n c]") >= 2


def test_bits_signs_and_dtypes_count_where_nothing_was_rounded():
    zeros = np.array([0.0, -0.0], "float32")
    assert not differs(zeros, zeros, None)
    assert differs(zeros, np.zeros(2, "float32"), None)
    assert not differs(zeros, np.zeros(2, "float32"), 1e-6)
    nans = np.array([np.nan, 1], "float32")
    assert not differs(nans, nans, None)
    assert differs(nans, np.array([0, 1], "float32"), 1e9)
    assert differs(np.ones(2, bool), np.ones(2, "int32"), None)
    assert not differs(np.float32([1, np.inf]), np.float32([1 + 1e-7, np.inf]), 1e-6)
    assert differs(np.float32([np.inf]), np.float32([-np.inf]), 1e-6)


def test_a_choice_that_rounding_decides_is_told_from_a_wrong_number():
    near = case_of(("wf.floor(x1)", False))
    near.program.fragile = True
    near.alone()
    assert near.is_near()
    far = case_of(("wf.floor(x1 * 1.3)", False))
    far.program.fragile = True
    far.alone()
    assert not far.is_near()


# ---- what hangs or dies is found


def serve_badly(connection, settings, is_wide):
    """Program 0 dies in its second pair, 1 hangs in its first, the others are right."""
    while (job := connection.recv()) is not None:
        index, skip = job
        for pair in range(max(skip, 0), 3):
            connection.send(("runs", {"text": f"program {index} pair {pair}"}))
            if index == 0 and pair == 1 and not skip:
                os.abort()
            if index == 1 and pair == 1 and not skip:
                time.sleep(60)
            connection.send(("came", cases.Outcome("equal").as_dict()))
        connection.send(("next", None))


@pytest.mark.slow
def test_a_worker_that_dies_or_hangs_is_a_finding_and_the_run_goes_on(tmp_path):
    settings = Settings(seed=0, layouts=2, limit_s=3, folder=tmp_path, order=("control",))
    report = collect(Pool(1, settings, target=serve_badly), 12)
    assert report.outcomes["aborted"] == 1
    assert report.outcomes["hung"] == 1
    assert report.outcomes["equal"] == 10
    texts = {found[0]["text"] for found in report.findings.values()}
    assert texts == {"program 0 pair 1", "program 1 pair 1"}
    assert not report.is_clean


def test_the_same_seed_draws_the_same_programs():
    one, other = (cases.make_case(5, 3, "control")[0].text("x=2", "") for _ in range(2))
    assert one == other
