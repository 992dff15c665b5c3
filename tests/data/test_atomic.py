"""Files and folders that are whole when they are there, and what is left where they were not finished."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weft import data
from weft.data.atomic import atomic_folder, lock, remove_partial, write_atomic
from weft.data.cache import make_once

ROOT = Path(__file__).parents[2]
MAKES = """
import sys, time
from pathlib import Path
from weft.data.cache import make_once

def make(folder):
    (folder / "a.bin").write_bytes(b"half")
    print("ready", flush=True)
    time.sleep(600)

make_once(Path(sys.argv[1]), "entry", make)
"""


def partials(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".partial"))


@pytest.fixture
def maker(tmp_path):
    """A process that is making an entry of a cache."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", MAKES, str(tmp_path)]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def test_what_a_killed_process_left_half_made_is_removed_by_the_next(maker, tmp_path):
    (left,) = partials(tmp_path)
    remove_partial(tmp_path)
    assert partials(tmp_path) == [left]  # its maker is alive
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    make_once(tmp_path, "other", lambda folder: None)
    assert partials(tmp_path) == [] and (tmp_path / "other").is_dir()


def test_a_file_left_half_written_is_removed_unless_someone_writes_it(tmp_path):
    for name in (".a.json.1.partial", ".b.json.2.partial"):
        (tmp_path / name).write_bytes(b"{")
    with (tmp_path / ".b.json.2.partial").open("rb") as held:
        assert lock(held.fileno())
        remove_partial(tmp_path)
        assert partials(tmp_path) == [".b.json.2.partial"]
    remove_partial(tmp_path)
    assert partials(tmp_path) == []


@pytest.fixture
def synced(monkeypatch):
    """The files and folders that the disk was asked to have, and what was renamed, in order."""
    told, fsync, replace, rename = [], os.fsync, os.replace, os.rename

    def note(file):
        told.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", lambda a, b: (told.append("->"), replace(a, b)))
    monkeypatch.setattr(os, "rename", lambda a, b: (told.append("->"), rename(a, b)))
    return told


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_after(synced, tmp_path):
    write_atomic(tmp_path / "a.json", b"{}")
    assert synced == [f".a.json.{os.getpid()}.partial", "->", tmp_path.name]
    assert (tmp_path / "a.json").read_bytes() == b"{}" and partials(tmp_path) == []


def test_all_of_a_folder_is_on_disk_before_it_has_its_name(synced, tmp_path):
    with atomic_folder(tmp_path / "entry") as partial:
        (partial / "a.bin").write_bytes(b"1")
        (partial / "b.bin").write_bytes(b"2")
    assert sorted(synced[:2]) == ["a.bin", "b.bin"] and synced[2:] == [partial.name, "->", tmp_path.name]


def test_the_tokens_of_a_text_are_on_disk_before_they_count(synced, tmp_path):
    (tmp_path / "a.txt").write_text("one two")
    source = data.open_source(str(tmp_path / "a.txt"))
    data.lm_dataset(source, data.ByteTokenizer(), length=4, cache=tmp_path / "cache")
    assert "tokens.bin" in synced[: synced.index("->")]
