"""`weft show` prints the program that `wf.trace` gives, and says what is wrong without a traceback."""

import importlib.metadata
import json
import re
import subprocess
import tomllib

import jax
import pytest

import weft as wf
import weft_command
from weft import models
from weft.cli import main
from weft.cli.model import OPTIMIZERS, load_preset
from weft.cli.terminal import colour
from weft.text import Printed, placed_line

from . import nets
from .command import NETS, ON, ROOT, error_of, misuse_of, started, weft

MESH, LAYOUT = "rows=2,cols=4", "batch:rows,hidden:cols"
CODES = re.compile(r"\x1b\[[0-9;]*m")


def program(layout=LAYOUT):
    fn, args = nets.example()
    return wf.trace(fn, *args, mesh=MESH, layout=layout)


# What it prints.


def test_it_prints_the_program():
    printed, said = weft("show", f"{NETS}:example", *ON)
    assert printed == f"{program()}\n"
    assert said == ""
    assert ">> all_reduce over cols" in printed


def test_ledger_prints_the_table_of_collectives():
    printed, _ = weft("show", f"{NETS}:example", *ON, "--ledger")
    assert printed == program().ledger.table().rstrip("\n") + "\n"


def test_json_is_the_programs_own():
    printed, _ = weft("show", f"{NETS}:example", *ON, "--json")
    assert json.loads(printed) == json.loads(program().to_json())


def test_against_prints_what_another_layout_changes():
    printed, _ = weft("show", f"{NETS}:example", *ON, "--against", "batch:rows+cols")
    assert printed.rstrip("\n") == str(program().diff(program("batch:rows+cols"))).rstrip("\n")


@pytest.mark.filterwarnings("default:no rule of the layout uses mesh")
def test_against_an_unused_axis_warns_in_a_few_lines():
    _, said = weft("show", f"{NETS}:example", *ON, "--against", "batch:rows")
    first, state, fix = said.splitlines()
    assert first.startswith("warning: no rule of the layout uses mesh axis `cols`")
    assert state == "  layout: batch:rows   mesh: rows=2,cols=4   on the command line"
    assert fix.startswith("  fix: ")


def test_a_bound_function_brings_its_mesh_and_layout():
    printed, _ = weft("show", f"{NETS}:bound")
    assert printed == weft("show", f"{NETS}:example", *ON)[0]
    other, _ = weft("show", f"{NETS}:bound", "--layout", "batch:rows+cols")
    assert other == weft("show", f"{NETS}:example", "--mesh", MESH, "--layout", "batch:rows+cols")[0]


def test_what_a_users_function_prints_is_not_in_the_way():
    printed, said = weft("show", f"{NETS}:talkative", *ON, "--json")
    json.loads(printed)
    assert said == "a word of the user's own\n"


# Presets.

TINY = ("show", "tiny-lm", "--mesh", MESH, "--layout", "batch:rows,d_ff:cols,heads:cols,vocab:cols")


def test_a_preset_is_shown_as_its_train_step_with_adam():
    printed, said = weft(*TINY)
    assert said == ""
    assert printed == weft(*TINY, "--optimizer", "adam")[0]
    rows = " x ".join(str(size) for size in models.preset("tiny-lm").batch_shapes()["inputs"].dims.sizes)
    assert printed.splitlines()[1] == f"{models.preset('tiny-lm').param_count:,} parameters, batch {rows}"
    assert all(f"\n{phase}\n" in printed for phase in ("forward", "backward", "update"))


def test_the_optimizer_is_the_one_asked_for():
    rows = json.loads(weft(*TINY, "--optimizer", "adafactor", "--json")[0])["ledger"]
    assert any(row["phase"] == "update" for row in rows)  # its row and column means; the other two send nothing
    assert weft(*TINY, "--optimizer", "adamw")[0] == weft(*TINY)[0]  # which is adam where nothing decays
    states = {name: load_preset("tiny-lm", optimizer=name).args[0].optimizer for name in OPTIMIZERS}
    kinds = {str(jax.tree.structure(state)) for name, state in states.items() if name not in ("adamw", "adamw8bit")}
    assert len(kinds) == len(OPTIMIZERS) - 2
    assert "there is no optimizer `adamm`: did you mean `adam" in misuse_of(*TINY, "--optimizer", "adamm")


def test_loss_shows_the_forward_part_of_the_train_step():
    step, loss = (json.loads(weft(*TINY, "--json", *more)[0])["ledger"] for more in ([], ["--loss"]))
    assert loss and loss == [row for row in step if row["phase"] == "forward"]


def test_batch_and_length_change_the_preset():
    small, large = weft(*TINY, "--ledger")[0], weft(*TINY, "--ledger", "--batch", "32", "--length", "64")[0]
    assert small != large
    fact, state, _ = error_of(*TINY, "--batch", "3")
    assert fact == "dim `batch` (size 3) does not divide over mesh axis `rows` (size 2)"
    assert state.endswith("mesh: rows=2,cols=4   on the command line")


def test_a_preset_nobody_knows():
    fact, state, fix = error_of("show", "tiny-lmm", "--mesh", MESH, "--layout", LAYOUT)
    assert fact == "there is no preset `tiny-lmm`"
    assert state == "on the command line"
    assert fix.startswith("did you mean `tiny-lm`?") and "file.py:function" in fix


# What is wrong.


def test_a_mesh_that_cannot_be_read():
    fact, state, fix = error_of("show", f"{NETS}:example", "--mesh", "rows", "--layout", LAYOUT)
    assert (fact, state) == ("`rows` in mesh 'rows' is not `axis=size`", "on the command line")
    assert "rows=4,cols=2" in fix


@pytest.mark.parametrize(
    ("layout", "fact", "fix"),
    [
        ("bacth:rows", "rule `bacth:rows` matches nothing", "did you mean `batch`?"),
        ("batch:row", "`row`", "did you mean `rows`?"),
        ("batch", "`batch` in layout 'batch' is not a rule", "dim:axis"),
    ],
)
def test_a_layout_that_does_not_fit(layout, fact, fix):
    found = error_of("show", f"{NETS}:example", "--mesh", "rows=2", "--layout", layout)
    assert fact in found[0] and fix in found[2]
    assert found[1].endswith("on the command line")


def test_an_error_in_the_users_function_names_his_line():
    fact, state, fix = error_of("show", f"{NETS}:misspells_a_dim", *ON)
    assert fact.startswith("`over` names `bacth`") and fix == "did you mean `batch`?"
    line = nets.misspells_a_dim.__code__.co_firstlineno + 1
    assert re.search(rf"layout: {LAYOUT}   mesh: {MESH}   at \S*nets.py:{line} in <lambda>", state)


def test_options_that_do_not_go_together():
    assert misuse_of("show", f"{NETS}:example", *ON, "--json", "--ledger").startswith("--json")
    assert misuse_of(*TINY, "--loss", "--optimizer", "sgd").startswith("--optimizer")
    for option in (["--batch", "8"], ["--length", "8"], ["--loss"], ["--optimizer", "sgd"]):
        said = misuse_of("show", f"{NETS}:example", *ON, *option)
        assert said == f"{option[0]}: is for presets and runs; your function says it itself"
    assert misuse_of(*TINY, "--set", "seed=1") == "--set: is for runs, by their file or folder"


def test_a_mesh_and_a_layout_are_needed():
    assert "--mesh rows=2,cols=4" in misuse_of("show", f"{NETS}:example")
    assert "--layout batch:rows" in misuse_of("show", f"{NETS}:example", "--mesh", MESH)
    assert weft("show", f"{NETS}:example", "--mesh", "rows=1", "--layout", "")[0]


# Colours.


def test_colours_are_for_a_terminal_and_leave_the_text_alone():
    plain, _ = weft("show", f"{NETS}:example", *ON)
    assert not CODES.search(plain)
    coloured, _ = weft("show", f"{NETS}:example", *ON, FORCE_COLOR="1", TERM="xterm", COLUMNS="40")
    assert CODES.search(coloured)
    assert CODES.sub("", coloured) == plain


@pytest.mark.parametrize(
    ("kind", "style"),
    [
        ("title", "bold"),
        ("section", "bold"),
        ("collective", "bold yellow"),
        ("removed", "red"),
        ("added", "green"),
        ("changed", ""),
        ("op", ""),
        ("block", ""),
        ("note", ""),
        ("", ""),
    ],
)
def test_collectives_headers_and_changes_stand_out(kind, style):
    text = colour(Printed("backward  - >> all_reduce", kind))
    assert (text.plain, text.style, text.spans) == ("backward  - >> all_reduce", style, [])


def test_a_printed_line_says_what_it_is():
    kinds = {
        "  >> all_reduce over cols": "collective",
        "forward": "section",
        "over rows: ": "",
        "net on rows=2": "title",
    }
    printed = program().printed()
    for start, kind in kinds.items():
        assert {line.kind for line in printed if line.text.strip().startswith(start.strip())} == {kind}, start
    changes = program().diff(program("batch:rows+cols")).printed()
    assert {line.kind for line in changes if line.text.strip()[:2] == "- "} == {"removed"}
    assert {line.kind for line in changes if line.text.strip()[:2] == "+ "} == {"added"}
    assert "section" in {line.kind for line in changes}


def test_places_step_back_and_no_other_words():
    (span,) = colour(placed_line("h  note.py:3  ", "net.py:6", "  because net.py:6 is long", "op")).spans
    assert (span.start, span.end, span.style) == (14, 22, "not bold dim")


@pytest.mark.parametrize("shown", ["program", "ledger", "diff", "plan"])
def test_what_is_printed_carries_its_places(shown):
    other = program("batch:rows+cols")
    lines = {
        "program": program().printed,
        "ledger": program().ledger.printed,
        "diff": program().diff(other).printed,
        "plan": wf.Plan(program(), "h100").printed,
    }[shown]()
    placed = [line.text[slice(*line.place)] for line in lines if line.place != (0, 0)]
    assert placed and all(re.fullmatch(r"\S+\.py:\d+", place) for place in placed)
    assert sum(".py:" in line.text for line in lines) == len(placed)


# The command itself.


def test_version_and_help():
    assert weft("--version")[0] == f"weft {importlib.metadata.version('weft')}\n"
    assert "show" in weft("--help")[0]
    said = weft("show", "--help")[0]
    assert said.count("  weft show ") == 4
    assert all(len(line) < 112 for line in said.splitlines())


def test_the_console_script_is_main():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"weft": "weft_command:main"} and callable(weft_command.main) and callable(main)


@pytest.mark.slow
def test_in_a_pipe_lines_are_whole_and_plain(here):
    (here / "mine.py").write_text(NETS.read_text())
    with started("show", "mine:example", *ON, cwd=here, stdout=subprocess.PIPE) as process:
        printed, said = process.communicate()
    assert (process.returncode, said) == (0, "")
    assert not CODES.search(printed) and max(map(len, printed.splitlines())) > 80
    assert printed == weft("show", "mine.py:example", *ON)[0]


def test_a_reader_that_goes_away_ends_it_quietly():
    with started("show", *TINY[1:], stdout=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert said == ""
    assert process.returncode == 1


def test_a_mesh_of_512_needs_no_devices_and_errors_exit_with_1():
    layout = "batch:rows,vocab:cols,d_ff:cols,heads:cols"
    words = ("show", "lm-4.90b", "--mesh", "rows=16,cols=32", "--ledger", "--layout")
    with started(*words, layout, stdout=subprocess.PIPE) as good:
        printed, said = good.communicate()
    assert (good.returncode, said) == (0, "")
    assert "all_reduce" in printed
    assert error_of(*words, "x")[:2] == ("`x` in layout 'x' is not a rule", "on the command line")
