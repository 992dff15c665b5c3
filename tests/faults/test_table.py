"""The table of faults fits the source: `make faults` tries what each of them does."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from .__main__ import TOO_LONG, Failure, Outcome, read_report
from .table import FAULTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_put_in_at_one_place_and_leaves_a_file_that_parses(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.file} has changed: mend the row of `{fault.name}`"
    changed = fault.put_into(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_every_fault_has_a_name_of_its_own_and_tests_that_are_there():
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []
    for fault in FAULTS:
        assert 1 <= len(fault.near) <= 3, fault.name
        for near in fault.near:
            path, _, test = near.split(" -k ")[0].partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {test.partition('[')[0]}(" in text if test else True, f"{fault.name}: {near}"


def test_a_call_goes_on_from_a_report_and_tries_again_what_was_not_caught(tmp_path):
    caught, late, survived, *_ = FAULTS
    outcomes = [
        Outcome(
            caught, Failure("tests/ops/test_a.py::test_b", "AssertionError"), ("tests/ops/test_c.py::test_d",), 2.5
        ),
        Outcome(late, Failure("", TOO_LONG), (), 600.0),
        Outcome(survived, None, (), 3.0),
    ]
    report = tmp_path / "report"
    report.write_text("".join(outcome.to_json() + "\n" for outcome in outcomes), encoding="utf-8")
    assert read_report(report) == outcomes[:1]
    assert read_report(tmp_path / "none") == read_report(None) == []
