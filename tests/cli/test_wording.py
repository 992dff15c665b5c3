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


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (
            ["--decode", 63, "--layout", "memory_length:cols"],
            "a multiple of 4 (nearest: 60, 64): `--decode 64`, or drop",
        ),
        (["--decode", 8, "--layout", "batch:rows"], "a multiple of 2 (nearest: 2): `--batch 2`, or drop `batch:rows`"),
        (
            ["--batch", 3, "--layout", "batch:rows"],
            "a multiple of 2 (nearest: 2, 4): `--batch 4`, or drop `batch:rows`",
        ),
        (["--length", 6, "--layout", "stream:cols"], "a multiple of 4 (nearest: 4, 8): `--length 8`, or drop"),
    ],
)
def test_a_size_that_does_not_divide_is_an_option(words, fix):
    found = error_of("plan", "tiny-lm", *MESH, *words)[2]
    assert fix in found and "pad_to" not in found and "rename(" not in found


def test_a_size_that_no_option_says_is_of_the_configuration():
    found = error_of("plan", "tiny-lm", "--mesh", "x=3", "--layout", "heads:x")[2]
    assert " in the model's configuration, or pad it there: `heads_multiple=3`, or drop `heads:x`" in found
    found = error_of("plan", "tiny-unet", "--mesh", "x=3", "--layout", "height:x")[2]
    assert (
        " in the model's configuration; for a U-Net to 36 with 2, 36 with 3, 48 with 4, 48 with 5 levels, or drop"
        in found
    )


def test_a_function_of_ones_own_may_pad():
    assert "wf.pad_to(" in error_of("plan", f"{NETS}:example", "--mesh", "rows=3", "--layout", "batch:rows")[2]


def test_a_model_without_stages_is_told_what_makes_them():
    by = "a model has `stage` by `stages=2` in its configuration"
    found = error_of("plan", "tiny-lm", "--mesh", "x=2", "--layout", "stage:x")[2]
    assert "drop the rule: `--layout ''`; " + by in found and "`queries`" in found
    assert by in error_of("search", "tiny-lm", "--processors", 2, "--dims", "stage,batch")[2]
