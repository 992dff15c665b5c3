"""Quantities as text: sizes, times, counts and columns, as people read them."""

import pytest

from weft.text import size_text, time_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1023 * 1024, "1,023 KiB"), (2**30, "1 GiB"),
     (5 * 2**40, "5 TiB")],
)  # fmt: skip
def test_bytes_are_printed_as_people_read_them(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0 us"), (1e-3, "1 ms"), (1.0, "1 s"), (1234.0, "1.23e+03 s")])
def test_seconds_are_printed_as_people_read_them(seconds, text):
    assert time_text(seconds) == text
