"""The cache: made once, by content; made anew when that changes; whole or not there, also when two make it at once."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from weft import data
from weft.data import tokens
from weft.data.cache import make_once
from weft.data.files import Hashes
from weft.errors import WeftWarning

BYTES = data.ByteTokenizer()


def entries(cache):
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def made(path, cache, tokenizer=BYTES, length=64):
    dataset = data.lm_dataset(data.open_source(path), tokenizer, length=length, cache=cache)
    return bytes(dataset.take(np.array([0]))["targets"][0].tolist()).rstrip(b"\0")


@pytest.fixture
def path(tmp_path):
    (tmp_path / "corpus.txt").write_text("one two three")
    return tmp_path / "corpus.txt"


def test_tokens_are_made_once_whatever_the_length_of_rows(path, tmp_path, monkeypatch):
    first = made(path, tmp_path / "cache")
    monkeypatch.setattr(tokens, "_write", None)
    assert made(path, tmp_path / "cache") == first == b"one two three"
    assert made(path, tmp_path / "cache", length=5) == b"one t"
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere/corpus.txt")
    assert made(moved, tmp_path / "cache") == first
    assert len(entries(tmp_path / "cache")) == 1


def test_another_content_of_the_same_size_and_time_makes_them_anew(path, tmp_path):
    made(path, tmp_path / "cache")
    status = path.stat()
    path.write_text("one two threX")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert made(path, tmp_path / "cache") == b"one two threX"
    assert len(entries(tmp_path / "cache")) == 2


def test_another_name_another_tokenizer_and_another_reading_make_them_anew(path, tmp_path):
    made(path, tmp_path / "cache")
    made(path, tmp_path / "cache", data.ByteTokenizer(specials=True))
    made({"path": path, "documents": "lines"}, tmp_path / "cache")
    made(path.rename(tmp_path / "other.txt"), tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 4


def test_hashes_are_remembered_for_files_at_rest_alone(path, tmp_path, monkeypatch):
    Hashes(tmp_path / "cache").of([path])
    assert not (tmp_path / "cache/hashes.json").exists()
    old = time.time() - 60
    os.utime(path, (old, old))
    first = Hashes(tmp_path / "cache").of([path])
    monkeypatch.setattr("weft.data.files.BLOCK", None)  # nothing is read
    assert Hashes(tmp_path / "cache").of([path]) == first
    (tmp_path / "cache/hashes.json").write_text("no JSON")
    monkeypatch.setattr("weft.data.files.BLOCK", 4)
    assert Hashes(tmp_path / "cache").of([path]) == first


def test_what_goes_wrong_leaves_nothing_behind(tmp_path):
    (tmp_path / "corpus.txt").write_bytes(b"good\n" * 300_000 + b"\xff")
    with pytest.raises(data.DataError):
        made(tmp_path / "corpus.txt", tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


BUILD = """
import sys, time
import numpy as np
from weft import data
from weft.data import tokens

print(sorted({"sentencepiece", "tokenizers"} & set(sys.modules)))
write = tokens._write
def slowly(*args):
    print("made")
    time.sleep(0.5)
    return write(*args)
tokens._write = slowly
while time.time() < float(sys.argv[3]):
    time.sleep(0.001)
dataset = data.lm_dataset(data.open_source(sys.argv[1]), data.ByteTokenizer(), length=64, cache=sys.argv[2])
print(bytes(dataset.take(np.array([0]))["targets"][0, :13].tolist()).decode())
"""


def test_two_processes_that_want_the_same_make_it_once_and_no_library_is_loaded_before_it_is_needed(path, tmp_path):
    command = [sys.executable, "-c", BUILD, str(path), str(tmp_path / "cache"), str(time.time() + 4)]
    two = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=60)[0].splitlines() for process in two]
    assert [process.returncode for process in two] == [0, 0]
    assert [lines[0] for lines in told] == ["[]", "[]"]
    assert [lines[-1] for lines in told] == ["one two three"] * 2
    assert sum("made" in lines for lines in told) == 1
    assert len(entries(tmp_path / "cache")) == 1


def test_the_first_to_finish_wins_where_files_cannot_be_locked(tmp_path):
    def make(entry):
        (entry / "who").write_text("late")
        (tmp_path / "entry").mkdir()  # another process was faster
        (tmp_path / "entry/who").write_text("early")

    assert (make_once(tmp_path, "entry", make) / "who").read_text() == "early"
    assert entries(tmp_path) == ["entry"]


@pytest.mark.parametrize("file", ["tokens.bin", "offsets.npy", "told.json", "sums.json"])
@pytest.mark.parametrize("damage", ["a flipped bit", "cut", "gone", "more"])
def test_a_cache_that_is_not_what_was_written_is_told_and_made_anew(path, tmp_path, file, damage):
    whole = made(path, tmp_path / "cache")
    entry = tmp_path / "cache" / entries(tmp_path / "cache")[0]
    content = (entry / file).read_bytes()
    flipped = bytes([content[len(content) // 2] ^ 1])
    (entry / file).write_bytes(
        {
            "a flipped bit": content[: len(content) // 2] + flipped + content[len(content) // 2 + 1 :],
            "cut": content[:-1],
            "gone": b"",
            "more": content + b"1",
        }[damage]
    )
    if damage == "gone":
        (entry / file).unlink()
    with pytest.warns(WeftWarning, match=f"{entry}.*made anew"):
        assert made(path, tmp_path / "cache") == whole
    assert (entry / file).read_bytes() == content and entries(tmp_path / "cache") == [entry.name]
    assert made(path, tmp_path / "cache") == whole


def test_a_hash_that_is_not_what_was_remembered_is_not_believed(path, tmp_path):
    os.utime(path, (time.time() - 60,) * 2)
    first = Hashes(tmp_path / "cache").of([path])
    file = tmp_path / "cache/hashes.json"
    file.write_text(file.read_text().replace(first[0], first[0][::-1]))
    assert Hashes(tmp_path / "cache").of([path]) == first


def test_a_cache_that_cannot_be_written_is_named(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(data.DataError, match="cannot be written") as caught:
        made(path, tmp_path / "file" / "cache")
    assert "cache folder" in caught.value.fix


def test_long_work_says_how_far_it_is(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("text\n" * 500_000)
    told = []
    data.lm_dataset(
        data.open_source({"path": tmp_path, "glob": "*.txt"}),
        BYTES,
        length=64,
        cache=tmp_path / "cache",
        progress=lambda *state: told.append(state),
    )
    assert {what for what, _, _ in told} == {"tokenising"}
    done = [done for _, done, _ in told]
    assert done == sorted(done) and done[-1] == told[-1][2] == 7_500_000 and len(told) > 6
