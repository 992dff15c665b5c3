"""`weft profile`: a program is run and printed with what each line took."""

import json
import shutil

import jax
import pytest

from .command import NETS, ON, error_of, weft

NET = f"{NETS}:example"
RUN = """
model = {preset = "tiny-lm", vocab = 64, layers = 1, d_model = 8, d_ff = 16, heads = 2, d_kv = 4, dropout = 0.0}
data = {path = "TEXT", held_out = 0.0}
mesh = "rows=2"
layout = "batch:rows"
train = {steps = 3, batch = 2, length = 8}
tokenizer = {kind = "bytes"}
"""


def test_a_function_is_run_and_printed_with_its_times(tmp_path):
    jax.clear_caches()  # a profile holds every program that is alive, those of other files too
    page = tmp_path / "page.html"
    printed, said = weft("profile", NET, *ON, "--hardware", "h100", "--steps", "2", "--html", page)
    assert "without the profiler" in said
    lines = printed.splitlines()
    assert lines[0].startswith("net on rows=2,cols=4 under batch:rows,hidden:cols: ") and "2 steps" in lines[0]
    assert any(">> all_reduce over cols" in line for line in lines)
    assert lines[-2].endswith("a step") and lines[-1] == f"page: {page}"
    assert 'id="measured"' in page.read_text()


@pytest.mark.slow
def test_the_longest_rows_alone_are_printed():
    printed, _ = weft("profile", NET, *ON, "--hardware", "h100", "--steps", "2", "--top", "2")
    assert printed.splitlines()[2].split() == ["measured", "share", "predicted", "what"]
    assert len(printed.splitlines()) == 6 and printed.rstrip().endswith("more")


@pytest.mark.slow
def test_a_run_is_profiled_by_its_file_and_the_profile_in_its_folder_is_read(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(RUN.replace("TEXT", str(tmp_path)))
    file = shutil.copy(folder / "config.toml", tmp_path / "run.toml")
    how = ("--hardware", "h100", "--json")
    printed, said = weft("profile", file, *how, "--steps", "2", "--keep", folder / "profile")
    ran = json.loads(printed)
    assert "without the profiler" in said and ran["processors"] == 2 and ran["steps"] == 2
    printed, said = weft("profile", folder, *how)
    assert said.startswith(f"reads {folder / 'profile'}") and json.loads(printed)["lines"] == ran["lines"]


def test_a_folder_that_is_no_run():
    fact, _, fix = error_of("profile", NETS.parent)
    assert "there is no run in" in fact and fix == "give the folder of a run, like `runs/tiny`"


def test_one_step_is_too_few():
    _, said = weft("profile", NET, *ON, "--steps", "1", status=2)
    assert said.startswith("error: `--steps` is `1`\n") and "fix: give a whole number from 2 on" in said


@pytest.mark.slow
def test_a_step_of_decoding_goes_on_from_its_cache():
    printed, _ = weft("profile", "tiny-lm", "--decode", "8", "--batch", "2", "--hardware", "h100", "--json")
    found = json.loads(printed)
    assert found["name"] == "tiny-lm decode_token" and found["steps"] == 5


@pytest.mark.slow
def test_decoding_is_profiled_where_heads_are_called_queries(tmp_path):
    file = tmp_path / "run.toml"
    ring = 'mesh = "x=2"\nlayout = "stream:x,queries:x"'
    file.write_text(RUN.replace("TEXT", str(tmp_path)).replace('mesh = "rows=2"\nlayout = "batch:rows"', ring))
    found = json.loads(weft("profile", file, "--decode", "8", "--hardware", "h100", "--json")[0])
    assert found["layout"] == "queries:x" and found["processors"] == 2
