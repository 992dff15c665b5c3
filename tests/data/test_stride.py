"""Windows that overlap: with a stride a token is seen at several places."""

import numpy as np
import pytest

from tests.errors.raised import error_of
from weft import data


def windows(tmp_path, size, **options):
    file = tmp_path / "text.bin"
    file.write_bytes(bytes(range(size)))
    source = data.open_source({"path": str(file), "format": "bytes"})
    return data.lm_dataset(source, data.ByteTokenizer(), length=8, cache=tmp_path / "cache", **options)


@pytest.mark.parametrize(("size", "stride", "begins"), [(20, 3, [0, 3, 6, 9, 12]), (9, 8, [0, 8]), (5, 2, [0])])
def test_windows_begin_a_stride_apart_and_the_last_holds_the_end(size, stride, begins, tmp_path):
    found = windows(tmp_path, size, stride=stride)
    rows = found.take(np.arange(len(found)))
    assert [int(row[0]) for row in rows["targets"]] == begins and found.tokens == size
    for begin, targets, inputs, weights in zip(
        begins, *(rows[n] for n in ("targets", "inputs", "weights")), strict=True
    ):
        there = np.arange(begin, min(begin + 8, size))
        assert targets[: len(there)].tolist() == there.tolist() and weights.sum() == len(there)
        assert inputs[: len(there)].tolist() == [max(at - 1, 0) for at in there]


def test_without_a_stride_each_token_is_in_one_row(tmp_path):
    found = windows(tmp_path, 20)
    assert len(found) == 3 and found.take(np.arange(3))["weights"].sum() == 20


def test_a_stride_that_leaves_tokens_out_is_refused(tmp_path):
    error = error_of(lambda: windows(tmp_path, 20, stride=9), data.DataError)
    assert "`stride` is 9, and rows have length 8" in error.fact and "from 1 to 8" in error.fix
