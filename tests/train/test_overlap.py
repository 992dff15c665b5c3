"""Runs whose sequences overlap, and what does not."""

import pytest

from tests.train.toys import pairs_file
from weft.train.config import ConfigError
from weft.train.datasets import open_data

from .running import config_of, run


def test_a_run_learns_from_windows_that_overlap_and_is_judged_by_those_that_do_not(text, tmp_path):
    plain, often = (open_data(config_of(text, train=each), tmp_path, None) for each in ({}, {"stride": 4}))
    assert 0 <= 4 * len(plain.training) - len(often.training) < 8
    assert len(often.held_out) == len(plain.held_out)


@pytest.mark.parametrize(
    ("changes", "fact", "fix"),
    [
        ({"train": {"stride": 17}}, "`train.stride` is 17, and a sequence has 16 tokens", "say 16 or less"),
        (
            {"train": {"stride": 4, "pack": False}, "data": {"documents": "lines"}},
            "each a row of its own",
            "leave it out",
        ),
    ],
)
def test_a_stride_that_means_nothing_is_refused(changes, fact, fix, text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        open_data(config_of(text, **changes), tmp_path, None)
    assert fact in caught.value.fact and fix in caught.value.fix


def test_pairs_do_not_overlap(tmp_path):
    model = {"preset": "tiny-mt", "vocab": 259}
    config = config_of(pairs_file(tmp_path), model=model, train={"stride": 4})
    with pytest.raises(ConfigError) as caught:
        open_data(config, tmp_path, None)
    assert "pairs of texts" in caught.value.fact


@pytest.mark.slow
@pytest.mark.parametrize(("judged", "is_told"), [((4000, 5000), False), ((3999, 5000), True)])
def test_ranges_of_a_file_are_other_data_where_they_have_no_byte_in_common(judged, is_told, text, tmp_path):
    table = {"path": str(text), "format": "bytes", "range": [0, 4000]}
    apart = {"path": str(text), "range": list(judged)}
    config = config_of(text, mesh="", layout="", train={"steps": 1}, data={**table, "evaluation": apart})
    _, heard = run(config, tmp_path / "run")
    assert any("JUDGED BY WHAT IT LEARNS FROM" in message for message in heard.messages) == is_told
