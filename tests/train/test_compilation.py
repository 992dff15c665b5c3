"""The compilation cache of a run: open while it is trained, bounded, by user and by host."""

import os

import jax
import jax.numpy as jnp
import pytest

from weft.mesh import Mesh
from weft.train import compilation

ONE, VIRTUAL = Mesh("all=1"), Mesh("x=2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a user who has no other, in which all is kept that is compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # A run that was profiled in this process has made lines of source part of what programs are found by.
    wanted = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_compilation_cache_include_metadata_in_key": False}
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    yield compilation.cache_folder("cpu")
    for name, value in before.items():
        jax.config.update(name, value)


def told(is_wanted=True, mesh=ONE):
    """What is said where a program is compiled as a run compiles its own."""
    said: list[str] = []
    jax.clear_caches()
    with compilation.open_cache(is_wanted, mesh, said.append), compilation.telling(said.append):
        jax.jit(lambda x: jnp.sin(x) * 3)(jnp.ones(7))
    assert jax.config.jax_compilation_cache_dir is None
    return said


def test_a_second_start_reads_what_the_first_compiled(folder):
    assert told() == [f"compilation cache: miss, kept for the next start in {folder}"]
    kept = sorted(path.name for path in folder.iterdir())
    assert kept and folder.stat().st_mode & 0o077 == 0
    assert told() == [f"compilation cache: hit, read from {folder}"]
    assert sorted(path.name for path in folder.iterdir()) == kept


def test_nothing_is_kept_outside_of_a_run(folder):
    told()
    kept = sorted(folder.iterdir())
    jax.jit(lambda x: jnp.cos(x) * 5)(jnp.ones(9))
    assert sorted(folder.iterdir()) == kept


@pytest.mark.parametrize("how", [{"is_wanted": False}, {"mesh": VIRTUAL}], ids=str)
def test_it_can_be_left_out_and_is_for_virtual_processors(folder, how):
    assert told(**how) == []
    assert not folder.exists()


def test_a_folder_that_jax_was_told_of_stays(folder, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    try:
        said: list[str] = []
        with compilation.open_cache(True, ONE, said.append):
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
        assert said == [] and not folder.exists()
        with compilation.open_cache(True, VIRTUAL, said.append):
            assert not jax.config.jax_enable_compilation_cache
        assert "left out" in said[0]
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update("jax_enable_compilation_cache", True)


def test_a_home_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert told() == []


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    for age, name in enumerate(["new", "old", "oldest"]):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    compilation.make_room(tmp_path, 20)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "old"}
    compilation.make_room(tmp_path, 5)
    assert not list(tmp_path.iterdir())


def test_hosts_of_other_instructions_have_folders_of_their_own(monkeypatch):
    here = compilation.cache_folder("cpu")
    monkeypatch.setattr(compilation.platform, "machine", lambda: "another")
    assert compilation.cache_folder("cpu") != here
    assert compilation.cache_folder("gpu").name == "gpu"
