"""The table of faults fits the source: `make faults` tries what each of them does."""

import ast
from collections import Counter
from pathlib import Path

import pytest

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
