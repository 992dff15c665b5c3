"""Fixes on the command line are options to write, not calls of Python."""

import pytest

from .command import NETS, error_of

MESH = ("--mesh", "rows=2,cols=4")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["show", "tiny-lm", *MESH, "--layout", "batch:rows,head:cols"], "drop the rule: `--layout batch:rows`"),
        (["plan", "tiny-lm", *MESH, "--layout", "batch:rows,length:rows"], "drop one rule (`--layout batch:rows`)"),
        (["show", f"{NETS}:example", *MESH, "--layout", "batch:rows,nothing:cols"], "`--layout batch:rows`"),
        (["show", "tiny-lm", "--mesh", "=3", "--layout", ""], "rows=4,cols=2"),
    ],
)
def test_a_fix_of_a_layout_is_an_option(words, fix):
    found = error_of(*words)[2]
    assert fix in found and "drop(" not in found and "Mesh(" not in found and "rename(" not in found
