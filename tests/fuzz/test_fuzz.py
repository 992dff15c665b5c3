"""A few hundred changed inputs for every parser; `make fuzz` reads many more."""

import random
import tempfile
from pathlib import Path

import pytest

from weft.errors import WeftError

from . import harness
from .harness import LONGEST, MOST_MEMORY, Parser, Report, fuzz, fuzz_in_child
from .mutators import ALL
from .parsers import PARSERS

COUNTS = {"small": 150, "cache": 150, "weights": 200, "toml": 200}


@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if not parser.is_native])
def test_every_changed_input_is_read_or_refused_by_an_error_of_the_house(name):
    report = fuzz(PARSERS[name], count=COUNTS.get(name, 300), seed=0)
    assert report.raw == []
    assert report.slowest < LONGEST and report.memory < MOST_MEMORY


@pytest.mark.quick("tokenizer")
@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.is_native])
def test_no_library_that_could_end_the_process_does(name):
    report = fuzz_in_child(name, count=300, seed=0)
    assert report.raw == [] and report.inputs.total() == 300
    assert report.slowest < LONGEST and report.memory < MOST_MEMORY


@pytest.mark.parametrize("name", PARSERS)
def test_every_seed_is_read_as_it_is(name, tmp_path):
    parser, kept = PARSERS[name], tmp_path / "kept"
    kept.mkdir()
    for number, (seed, content) in enumerate(parser.prepare(kept).items()):
        (tmp_path / str(number)).mkdir()
        parser.read(tmp_path / str(number), seed, content, kept)


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.toml", b"model = ["), ("metrics.jsonl", b"no row\n"), ("tokenizer.bytes.json", b"{")],
)
def test_a_small_file_that_one_of_its_readers_refuses_is_refused(name, content, tmp_path):
    (tmp_path / "kept").mkdir()
    PARSERS["small"].prepare(tmp_path / "kept")
    with pytest.raises(WeftError, match=name):
        PARSERS["small"].read(tmp_path, name, content, tmp_path / "kept")


@pytest.mark.parametrize("kind", ALL)
def test_every_mutator_changes_something_and_is_a_function_of_its_seed(kind):
    text = b'{"name": "weft", "steps": [1, 2.5, null]}\nrows=2,cols=4\n'
    made = [ALL[kind](random.Random(seed), text) for seed in range(20)]
    assert made == [ALL[kind](random.Random(seed), text) for seed in range(20)]
    assert len({*made} - {text}) > 5
    assert isinstance(ALL[kind](random.Random(0), b""), bytes)


# The harness can fail.


def faulty(read):
    return Parser("faulty", lambda kept: {"a": b'{"a": 1}'}, lambda folder, name, content, kept: read(content))


def raised(error):
    raise error


@pytest.mark.parametrize(
    "error",
    [KeyError("a"), RecursionError(), MemoryError(), SystemExit(3), UnicodeEncodeError("utf-8", "a", 0, 1, "b")],
)
def test_whatever_else_is_raised_is_reported(error):
    report = fuzz(faulty(lambda content: raised(error)), count=3, seed=1)
    assert len(report.raw) == 3 and type(error).__name__ in report.raw[0] and "input 0 of seed 1" in report.raw[0]


def test_what_is_refused_is_counted_as_such():
    report = fuzz(faulty(lambda content: raised(WeftError("no", fix="yes"))), count=3, seed=1)
    assert (report.raw, report.fine, report.refused) == ([], 0, 3)


def test_what_takes_too_long_is_reported(monkeypatch):
    def spin(content):
        while True:
            pass

    monkeypatch.setattr(harness, "LONGEST", 1)
    report = fuzz(faulty(spin), count=1, seed=1)
    assert "Overtime" in report.raw[0]


def test_a_process_that_dies_is_reported_and_the_next_goes_on(monkeypatch, tmp_path):
    module = tmp_path / "dying.py"
    module.write_text(
        "import os, sys\n"
        "first, count, place = int(sys.argv[3]), int(sys.argv[4]), sys.argv[6]\n"
        "for number in range(first, count):\n"
        "    open(place, 'w').write('%020d' % number)\n"
        "    if number == 2: os.abort()\n"
        f"print({Report('dying').to_json()!r})\n"
    )
    monkeypatch.setattr(harness, "MODULE", [str(module)])
    report = fuzz_in_child("dying", count=5, seed=0)
    assert len(report.raw) == 1 and "dying input 2 of seed 0: the process ended (-6)" in report.raw[0]


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fuzz(faulty(lambda content: None), count=3, seed=0)
    assert list(Path(tmp_path).iterdir()) == []
