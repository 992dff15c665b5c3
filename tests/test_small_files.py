"""Whatever a small file holds, the outcome is values of the shape asked for, or an error that names it."""

import json

import pytest

from weft.errors import WeftError
from weft.small_files import DEEPEST, MOST_BYTES, Reader, is_file, short, summed

READER = Reader(WeftError, fix="mend it")


def problem(call):
    with pytest.raises(WeftError) as caught:
        call()
    assert caught.value.fix == "mend it"
    return caught.value.fact


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON: Expecting value: line 1 column 1"),
        ('{"a": 1,\n "b": }', "is not JSON: Expecting value: line 2 column 7"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "nested more than 64 deep"),
        ('{"a": [1, %s]}' % ("9" * 41), "a number of more than 40 digits (at `a`)"),
        ("9" * 5000, "a number of more than 40 digits"),
        ('{"a": {"b": "\\ud800"}}', r"half a character, '\ud800' (at `a.b`)"),
        ('{"\\udc00": 1}', r"half a character, '\udc00'"),
        ('{"a": 1, "b": 2, "a": 3}', "has the key 'a' twice"),
        ('{"a": {"\\ud800": 1, "\\ud800": 3}}', r"has the key '\ud800' twice"),
    ],
)
def test_json_that_cannot_be_trusted_is_refused(text, why, tmp_path):
    (tmp_path / "a.json").write_text(text)
    fact = problem(lambda: READER.json(tmp_path / "a.json"))
    assert fact.startswith(f"{tmp_path / 'a.json'} ") and why in fact


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = 1\nb = [", "is not TOML"),
        ("a = " + "[" * 5000, "nested more than 64 deep"),
        ("a." * 200 + "a = 1", "nested more than 64 deep"),
        ("a = 1\n" + "a." * 100_000 + "a = 1", "has 100,000 dots in line 2"),
        ("a = " + "1" * 401, "a number of more than 40 digits (at `a`)"),
        ("a = " + "1" * 4301, "a number of more than 40 digits"),
        ("a = 0x" + "f" * 5000, "a number of more than 40 digits"),
    ],
)
def test_toml_that_cannot_be_trusted_is_refused(text, why, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    fact = problem(lambda: READER.toml(tmp_path / "a.toml"))
    assert fact.startswith(f"{tmp_path / 'a.toml'} ") and why in fact


def test_the_line_of_what_is_no_toml_or_no_utf8_is_named(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"a = 1\nb = \n")
    with pytest.raises(WeftError, match=f"at {tmp_path / 'a.toml'}:2"):
        READER.toml(tmp_path / "a.toml")
    (tmp_path / "a.toml").write_bytes(b'a = 1\n\nb = "\xff"\n')
    assert f"{tmp_path / 'a.toml'}:3 is not TOML" in problem(lambda: READER.toml(tmp_path / "a.toml"))


def test_a_file_that_is_large_not_there_or_no_file_is_named(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"#" * (MOST_BYTES["TOML"] + 1))
    assert "more than 1 MiB" in problem(lambda: READER.toml(tmp_path / "a.toml"))
    assert problem(lambda: READER.json(tmp_path / "b")) == f"there is no {tmp_path / 'b'}"
    assert "cannot be read: Is a directory" in problem(lambda: READER.json(tmp_path))
    assert "cannot be read" in problem(lambda: READER.json(tmp_path / "a\0b"))
    assert "cannot be read: File name too long" in problem(lambda: READER.json(tmp_path / ("n" * 300)))
    assert not is_file(tmp_path / ("n" * 300)) and not is_file(tmp_path / "a\0b") and is_file(tmp_path / "a.toml")
    assert len(short("n" * 300)) < 100


@pytest.mark.parametrize(
    ("value", "shape", "fact"),
    [
        ([], dict, "x is a list, and an object is due"),
        ({}, {"step": int}, "`step` in x is missing, and a whole number is due"),
        ({"step": 1.5}, {"step": int}, "`step` in x is 1.5, and a whole number is due"),
        ({"step": True}, {"step": int}, "`step` in x is True, and a whole number is due"),
        ({"step": True}, {"step": float}, "`step` in x is True, and a number is due"),
        ({"a": {"b": [1, "c"]}}, {"a": {str: [int]}}, "`a.b[1]` in x is 'c', and a whole number is due"),
        ({"a": "b"}, {"a": (int, None)}, "`a` in x is 'b', and a whole number or null is due"),
        ({"a": {"b": 1}}, {"a": ({"b": str}, None)}, "`a.b` in x is 1, and a text is due"),
    ],
)
def test_a_value_of_another_shape_is_named_with_what_is_due(value, shape, fact):
    assert problem(lambda: READER.check(value, shape, "x")) == fact


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ({"step": 3, "more": []}, {"step": int}),
        ({"a": 3}, {"a": float}),
        ({}, {"a": (int, None)}),
        ({"a": None}, {"a": (int, None)}),
        ({"a": [[1], []]}, {"a": [[int]]}),
        ([], (dict, list)),
    ],
)
def test_a_value_of_the_shape_is_fine(value, shape):
    READER.check(value, shape, "x")


def test_any_flipped_bit_of_a_summed_file_is_noticed(tmp_path):
    path, values = tmp_path / "a.json", {"a": [1, 2.5, None], "b": {"c": "dé"}}
    whole = summed(values)
    path.write_bytes(whole)
    assert READER.summed_json(path) == values
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            found = READER.summed_json(path)
        except WeftError as error:
            assert str(path) in error.fact
        else:
            assert found == values, json.loads(changed)  # such as another kind of white space
