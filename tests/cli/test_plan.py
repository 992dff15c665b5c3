"""`weft plan`, `weft search` and `weft hardware`: what they print, as text and as JSON, and how they end."""

import dataclasses
import json

import pytest

from weft import models
from weft.plan import HARDWARE
from weft.plan.cost import Plan
from weft.program import trace

from .command import NETS, ON, error_of, weft

NET = f"{NETS}:example"


def test_a_plan_is_a_text():
    printed, said = weft("plan", NET, *ON)
    assert said == "" and printed.startswith("net on rows=2,cols=4 under batch:rows,hidden:cols, NVIDIA H100")
    assert "a step" in printed and "memory: " in printed and ": it fits" in printed
    assert "over cols: " in printed and "bound by" in printed


def test_a_plan_says_what_hardware_it_assumed():
    said = "no --hardware was given: h100 is assumed (`weft hardware` lists the others)"
    assert weft("plan", NET, *ON)[0].splitlines()[1] == said
    assert said not in weft("plan", NET, *ON, "--hardware", "h100")[0]
    how = ("--mesh", "rows=8", "--dims", "batch")
    assert said in weft("search", NET, *how)[0] and said not in weft("search", NET, *how, "--hardware", "h200")[0]


def test_a_run_is_planned_for_the_hardware_of_its_file(tmp_path):
    file = tmp_path / "run.toml"
    model = '[model]\npreset = "tiny-lm"\nlayers = 1\nvocab = 256\n[train]\nsteps = 1\nbatch = 8\nlength = 16\n'
    file.write_text(f'hardware = "b200"\nmesh = "x=2"\nlayout = "batch:x"\n{model}')
    printed, _ = weft("plan", file)
    assert "B200" in printed.splitlines()[0] and "is assumed" not in printed
    assert printed.splitlines()[1].endswith(" parameters, batch 8 x 16")
    assert json.loads(weft("plan", file, "--hardware", "h200", "--json")[0])["hardware"] == "h200"
    assert "b200: " in weft("search", file, "--mesh", "x=2", "--dims", "batch")[0].splitlines()[0]


def test_a_plan_is_json_alone():
    printed, _ = weft("plan", NET, *ON, "--json", "--hardware", "h200")
    found = json.loads(printed)
    assert found["version"] == 1 and found["hardware"] == "h200" and found["fits"] is True
    assert found["mesh"] == "rows=2,cols=4" and found["layout"] == "batch:rows,hidden:cols"
    assert found["seconds"] > 0 and found["memory"]["arguments"] == (16 * 8 // 2 + 2 * 8 * 32 // 4) * 4
    assert found["failed"] == []


def test_two_layouts_are_planned_against_each_other(tmp_path):
    file = tmp_path / "page.html"
    printed, _ = weft("plan", NET, *ON, "--against", "batch:rows+cols", "--html", file)
    assert "\nagainst batch:rows+cols (" in printed and printed.endswith(f"page: {file}\n")
    assert "hidden" in file.read_text() and "rows+cols" in file.read_text()
    found = json.loads(weft("plan", NET, *ON, "--against", "batch:rows+cols", "--json")[0])
    assert found["against"]["layout"] == "batch:rows+cols"


def test_a_page_that_cannot_be_written(tmp_path):
    fact, _, fix = error_of("plan", NET, *ON, "--html", tmp_path / "nowhere" / "page.html")
    assert "cannot be written: No such file or directory" in fact and "folder that is there" in fix


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("bytes.cols > 2e9", 0),
        ("bytes.cols > 100", 3),
        ("count.rows >= 1", 0),
        ("bytes>=1", 3),
        ("fits == 1", 3),
        ("memory > 1_000_000_000", 0),
        ("seconds < 1", 3),
        ("mfu != 0", 3),
    ],
)
def test_a_condition_that_holds_ends_it_with_three(condition, status):
    printed, said = weft("plan", NET, *ON, "--fail-if", condition, status=status)
    assert printed and (f"failed: {condition}" in said) == (status == 3)


def test_conditions_are_told_in_json_too():
    conditions = ("--fail-if", "bytes > 1", "--fail-if", "bytes > 1e12")
    printed, _ = weft("plan", NET, *ON, "--json", *conditions, status=3)
    assert json.loads(printed)["failed"] == ["bytes > 1"]


def test_conditions_that_are_none():
    fact, state, fix = error_of("plan", NET, *ON, "--fail-if", "bytes.cols")
    assert fact == "`bytes.cols` is not a condition" and "figures: seconds" in state and "> 2e9" in fix
    fact, _, fix = error_of("plan", NET, *ON, "--fail-if", "byte.cols > 1")
    assert fact == "a plan has no figure `byte.cols`" and fix == "did you mean `bytes`?"
    assert error_of("plan", NET, *ON, "--fail-if", "seconds.cols > 1")[0] == "a plan has no figure `seconds.cols`"
    assert error_of("plan", NET, *ON, "--fail-if", "bytes > 1e1e1")[0] == "`1e1e1` in `bytes > 1e1e1` is not a number"
    assert error_of("plan", NET, *ON, "--fail-if", "bytes.colls > 1")[0] == "the mesh has no axis `colls`"


def test_memory_of_ones_own_decides_whether_it_fits():
    assert "IT MAY NOT FIT" in weft("plan", NET, *ON, "--memory", "0.000001")[0]


def test_hardware_and_models_that_are_not_there():
    fact, _, fix = error_of("plan", NET, *ON, "--hardware", "h10")
    assert fact == "there is no hardware `h10`" and "h100" in fix and "did you mean" in fix
    assert error_of("search", "tiny-ml", "--processors", 2)[0] == "there is no preset `tiny-ml`"
    assert error_of("hardware", "abacus")[0] == "there is no hardware `abacus`"


def test_a_target_that_is_not_there():
    fact, _, fix = error_of("plan", NET, *ON, "--compile", "h1000:1x1x8")
    assert "h1000" in fact and "h100" in fix


def test_a_preset_is_planned_by_its_own_sizes():
    how = ("--mesh", "rows=2", "--layout", "batch:rows", "--batch", 4, "--length", 8)
    found = [json.loads(weft("plan", "tiny-lm", *how, *more, "--json")[0]) for more in ((), ("--loss",))]
    assert [each["tokens"] for each in found] == [32, 32]
    assert [each["parameters"] for each in found] == [models.preset("tiny-lm").param_count] * 2
    assert "update" in found[0]["phases"] and "update" not in found[1]["phases"]


def test_a_search_is_a_text_and_json_alone():
    how = ("--mesh", "rows=2,cols=4", "--dims", "batch,hidden,d_io", "--top", 3)
    printed, _ = weft("search", NET, *how)
    assert "best: rows=2,cols=4 under " in printed and "runner-up: " in printed and "legal layouts" in printed
    found = json.loads(weft("search", NET, *how, "--json")[0])
    best = found["plans"][0]
    assert found["version"] == 1 and len(found["plans"]) == 3 and best["fits"] is True
    assert best["seconds"] == min(plan["seconds"] for plan in found["plans"])
    assert found["searched"] == found["traced"] + found["pruned"]
    again = json.loads(weft("plan", NET, "--mesh", best["mesh"], "--layout", best["layout"], "--json")[0])
    assert again["seconds"] == best["seconds"]


@pytest.mark.slow
def test_a_search_chooses_among_values_that_build_the_program():
    how = ("--mesh", "rows=2", "--dims", "batch,hidden", "--top", 3, "--json")
    found = json.loads(weft("search", f"{NETS}:repeated", *how, "--choices", "times=2|1")[0])
    assert found["plans"][0]["choices"] == {"times": 1} and len(found["variants"]) == 2
    found = json.loads(weft("search", "tiny-lm", "--loss", *how[:2], "--dims", "batch,heads", *how[4:])[0])
    assert found["plans"][0]["choices"] == {"remat": False} and "remat=True: ruled out" in found["variants"][-1]
    none = json.loads(weft("search", "tiny-lm", "--loss", *how[:2], "--dims", "batch", "--choices", "", "--json")[0])
    assert none["plans"][0]["choices"] == {} and none["variants"] == []
    assert "did you mean `remat`?" in weft("search", "tiny-lm", *how, "--choices", "remta", status=2)[1]
    assert "write the values out" in weft("search", NET, *how, "--choices", "times", status=2)[1]
    decoded = weft("search", "tiny-lm", "--decode", 32, *how, "--choices", "remat", status=2)[1]
    assert "is for train steps of presets" in decoded


def test_an_interrupted_search_says_what_it_did_not_see_and_ends_with_130(monkeypatch):
    def interrupt(reporter, at):
        if at.best is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.search._Teller.__call__", interrupt)
    how = ("--processors", 8, "--dims", "batch,hidden,d_io")
    found = json.loads(weft("search", NET, *how, "--json", status=130)[0])
    assert found["complete"] is False and found["stopped"] == "interrupted"
    assert found["searched"] == found["traced"] + found["pruned"] + found["not_seen"]
    assert " NOT SEEN" in weft("search", NET, *how, status=130)[0]
    monkeypatch.undo()
    printed, told = weft("search", NET, *how, "--seconds", 0)
    assert "its time was up" in printed and told.count("; looking for better") == 1 and "best" in told


def test_a_search_interrupted_before_it_has_an_answer_says_so(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.search.search_layouts", interrupted)
    _, told = weft("search", NET, "--processors", 8, status=130)
    assert "interrupted before a layout that fits was found" in told


def test_a_search_wants_a_mesh_or_a_number_of_processors():
    assert "say one of them" in weft("search", NET, status=2)[1]
    assert "say one of them" in weft("search", NET, "--mesh", "rows=2", "--processors", 2, status=2)[1]


def test_a_search_of_dims_that_are_not_there_and_of_memory_nothing_fits():
    assert error_of("search", NET, "--processors", 2, "--dims", "batch,hiden")[2] == "did you mean `hidden`?"
    fact, state, fix = error_of("search", NET, "--processors", 2, "--dims", "batch,hidden", "--memory", "1e-7")
    assert fact.startswith("no layout fits: the smallest needs ") and "largest at its peak" in state
    assert "name more dims to split" in fix


def test_the_users_own_error_is_shown():
    _, said = weft("search", f"{NETS}:fails_when_traced", "--processors", 2, "--dims", "batch", status=1)
    assert "TypeError: add got incompatible shapes" in said and "failed while it was traced" in said


def test_hardware_is_listed_with_its_sources():
    printed, _ = weft("hardware")
    assert all(name in printed for name in ("a100", "h100", "h200", "b200", "v4", "v5e", "v5p", "v6e"))
    one, _ = weft("hardware", "h100")
    assert one.startswith("h100: ") and "NVIDIA H100" in one and "data sheet" in one
    found = json.loads(weft("hardware", "--json")[0])
    assert found["version"] == 1
    assert all(set(each["flops"]) <= set(each["sources"]) for each in found["hardware"])
    assert json.loads(weft("hardware", "this", "--json")[0])["hardware"][0]["name"] == "this"
    assert "gb200" in printed and "mi300x" in printed
    assert "NVLink-C2C" in weft("hardware", "gb200")[0] and "3D torus" in weft("hardware", "v5p")[0]


def test_hardware_of_ones_own_is_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(weft("hardware", "h200", "--toml")[0].replace('name = "h200"', 'name = "mine"'))
    found = json.loads(weft("plan", NET, *ON, "--json", "--hardware", file)[0])
    assert found["hardware"] == "mine"
    assert found["seconds"] == pytest.approx(
        json.loads(weft("plan", NET, *ON, "--json", "--hardware", "h200")[0])["seconds"]
    )
    how = ("--mesh", "rows=2,cols=4", "--dims", "batch,hidden", "--hardware", file, "--json")
    assert json.loads(weft("search", NET, *how)[0])["plans"][0]["fits"] is True
    assert weft("hardware", file)[0].startswith("mine: NVIDIA H200")
    file.write_text("memory_gb = 3\nmemori = 4\n")
    fact, state, fix = error_of("plan", NET, *ON, "--hardware", file)
    assert "there is no figure `memori`" in fact and "memory_gib" in state and "did you mean `memory" in fix


def test_this_machine_is_measured_into_a_file(tmp_path, monkeypatch):
    row = {"collective": "all_reduce", "processors": 8, "bytes": 4096, "us": 12.5}
    here = dataclasses.replace(HARDWARE["h200"], name="here")
    monkeypatch.setattr("weft.cli.hardware.measure_devices", lambda report: (report("x", 1, 1), (here, [row]))[1])
    file = tmp_path / "here.toml"
    printed, _ = weft("hardware", "--measure", "--out", file)
    assert "all_reduce" in printed and "12.5" in printed and printed.endswith(f"`--hardware {file}`\n")
    assert weft("hardware", file)[0].startswith("here: ")
    assert json.loads(weft("hardware", "--measure", "--json")[0])["measured"] == [row]
    assert 'name = "here"' in weft("hardware", "--measure", "--toml")[0]
    fact, _, fix = error_of("hardware", "--measure", "--out", tmp_path / "nowhere" / "here.toml")
    assert "cannot be written: No such file or directory" in fact and "folder that is there" in fix
    assert "leave the name out" in weft("hardware", "h100", "--measure", status=2)[1]
    assert "say --measure too" in weft("hardware", "--out", file, status=2)[1]
    assert "say of which hardware" in weft("hardware", "--toml", status=2)[1]


def test_a_run_that_leaves_its_layout_open_is_searched_and_planned(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny-lm"\nmesh = "auto"\nlayout = "auto"\n[train]\nbatch = 4\nlength = 8\n')
    assert "say the axes of the mesh" in weft("plan", file, status=2)[1]
    assert "find one with `weft search`" in weft("plan", file, "--mesh", "rows=2", status=2)[1]
    assert "a step" in weft("plan", file, "--mesh", "rows=2", "--layout", "batch:rows")[0]
    file.write_text(file.read_text().replace('mesh = "auto"', 'mesh = "rows=2"'))
    assert "a step" in weft("plan", file, "--layout", "batch:rows")[0]


def test_a_runs_file_is_read_as_if_it_said_what_the_options_say(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny-lm"\nmesh = "x=8"\nlayout = "batch:x"\n[train]\nbatch = 8\nlength = 8\n')
    change, two = ("--set", "train.microbatches=4"), ("--mesh", "x=2")
    assert "on the mesh a batch is 8 parts of 1" in error_of("plan", file, *change)[0]
    assert "train_step on x=2 under batch:x" in weft("plan", file, *change, *two)[0]
    fact, state, _ = error_of("plan", file, *change, "--mesh", "x=4")
    assert "on the mesh a batch is 4 parts of 2" in fact and "mesh: x=4" in state
    fact, state, fix = error_of("plan", file, "--layout", "bach:x")
    assert fact.startswith("`layout`") and state == "at --layout bach:x" and "`batch`" in fix
    assert "decode_token on x=3" in weft("plan", file, "--decode", 8, "--mesh", "x=3", "--layout", "", *change)[0]
    assert weft("search", file, "--processors", 2, "--dims", "batch", *change)[0]


def test_the_plan_on_the_command_line_is_that_of_the_library():
    from .nets import example

    fn, args = example()
    plan = Plan(trace(fn, *args, mesh="rows=2,cols=4", layout="batch:rows,hidden:cols"), "h100")
    assert json.loads(weft("plan", NET, *ON, "--json")[0])["seconds"] == plan.seconds


LAYERS = models.preset("tiny-lm").layers
DECODED = ("--decode", 32, "--mesh", "x=4", "--layout", "heads:x,d_ff:x,vocab:x")


def test_a_token_of_decoding_is_planned():
    printed, said = weft("plan", "tiny-lm", *DECODED)
    assert said == "" and printed.startswith("tiny-lm decode_token on x=4 under heads:x,d_ff:x,vocab:x, NVIDIA H100")
    assert " a token, " in printed and "1 sequence, a context of 32;" in printed and "one processor: " in printed
    assert f"sent for a token: {2 * LAYERS + 1} all_reduce over x, " in printed and "KV cache" in printed
    found = json.loads(
        weft("plan", "tiny-lm", *DECODED, "--batch", 3, "--json", "--fail-if", "count.x > 4", status=3)[0]
    )
    assert found["decode"]["batch"] == 3 and found["decode"]["collectives"][0]["count"] == 2 * LAYERS + 1
    assert found["failed"] == ["count.x > 4"] and found["tokens"] == 3
    generated = found["decode"]["generate"]
    assert 0 < generated["seconds_a_token"] < found["decode"]["seconds_a_token"] and generated["fits"]
    assert generated["tokens_per_s"] == pytest.approx(3 / generated["seconds_a_token"])
    assert "one processor" not in weft("plan", "tiny-mt", "--decode", 8, "--length", 16)[0]


def test_a_model_of_images_is_planned_and_does_not_decode():
    printed, said = weft("plan", "tiny-unet", "--mesh", "x=2,y=2", "--layout", "height:x,width:y", "--batch", 2)
    assert said == "" and printed.startswith("tiny-unet train_step on x=2,y=2 under height:x,width:y, NVIDIA H100")
    assert "sending over x: conv(" in printed
    assert error_of("plan", "tiny-unet", "--decode", 8)[0] == "UNetConfig does not decode"


def test_weights_are_decoded_in_the_dtype_they_are_computed_in():
    found = json.loads(weft("plan", "lm-0.14b", *DECODED, "--json")[0])["decode"]
    assert found["weights_dtypes"] == ["bfloat16"] and found["cache_dtypes"] == ["bfloat16"]


def test_a_run_is_decoded_on_its_own_mesh(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny-lm"\nmesh = "rows=2"\nlayout = "heads:rows,d_ff:rows"\n')
    printed, _ = weft("plan", file, "--decode", 16)
    assert (
        "decode_token on rows=2 under heads:rows,d_ff:rows" in printed
        and f"sent for a token: {2 * LAYERS} all_reduce" in printed
    )


def test_a_run_decodes_fewer_sequences_than_its_batch_is_split_over(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny-lm"\nmesh = "x=2"\nlayout = "batch:x"\n')
    printed, told = weft("plan", file, "--decode", 16)
    assert "decode_token on x=2" in printed and "under batch:x" not in printed
    assert "decoding without the rule `batch:x`: `batch` has size 1" in told
    printed, told = weft("plan", file, "--decode", 16, "--batch", 2)
    assert "decode_token on x=2 under batch:x" in printed and not told
    assert "does not divide" in error_of("plan", file, "--decode", 16, "--layout", "batch:x")[0]  # said, so wanted


@pytest.mark.parametrize(
    "trained, decoded",
    [
        ("stream:x,queries:x", "queries:x"),
        pytest.param("length:x,memory_length:x", "memory_length:x", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_splits_positions_decodes_without_the_rules_of_its_prompt(tmp_path, trained, decoded):
    file = tmp_path / "run.toml"
    file.write_text(f'mesh = "x=2"\nlayout = "{trained}"\n[model]\npreset = "tiny-lm"\nlayers = 1\n')
    assert f"decode_token on x=2 under {decoded}, " in weft("plan", file, "--decode", 16)[0]


def test_a_token_of_decoding_is_shown_and_searched():
    assert "decode_token on x=4" in weft("show", "tiny-lm", *DECODED)[0]
    found = json.loads(weft("search", "tiny-lm", "--decode", 32, "--mesh", "x=2", "--dims", "heads,d_ff", "--json")[0])
    assert found["plans"][0]["fits"] is True


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tiny-lm", "--decode", 8, "--loss"), "not together with --decode"),
        (("tiny-lm", "--decode", 8, "--optimizer", "sgd"), "not together with --decode"),
        (("tiny-lm", "--decode", 8, "--length", 8), "what --decode says"),
        (("tiny-lm", "--decode", 8, "--mesh", "x=2"), "say which dims are split"),
        (("tiny-lm", "--decode", 8, "--layout", "heads:x"), "say the axes of the mesh"),
        ((NET, "--decode", 8), "your function says what it does"),
    ],
)
def test_options_that_do_not_go_with_decoding(words, told):
    assert told in weft("plan", *words, status=2)[1].replace("\n", " ")
