"""MODEL on the command line: what it may name, and what is said when it names nothing that can be shown."""

import re

import pytest
import typer

from weft.cli import app, model

from .command import NETS, ON, ROOT, error_of, weft


def test_a_module_of_the_working_directory(here):
    (here / "package").mkdir()
    (here / "package" / "inner.py").write_text(NETS.read_text())
    assert ">> all_reduce" in weft("show", "package.inner:example", *ON)[0]


def test_a_file_sees_what_lies_beside_it(here):
    (here / "below").mkdir()
    (here / "below" / "beside.py").write_text(NETS.read_text())
    (here / "below" / "mine.py").write_text("from beside import example\n")
    assert ">> all_reduce" in weft("show", "below/mine.py:example", *ON)[0]


def test_a_file_may_be_called_like_a_module_already_imported(here):
    (here / "json.py").write_text(NETS.read_text())
    assert ">> all_reduce" in weft("show", "./json.py:example", *ON)[0]


def test_a_module_that_is_not_there(here):
    (here / "network.py").write_text("")
    fact, state, fix = error_of("show", "netwrok:example", *ON)
    assert fact == "there is no module `netwrok`"
    assert state == f"model: netwrok:example   looked in {here} and among the installed packages   on the command line"
    assert fix == "did you mean `network`? or give a file: `path/to/file.py:function`"
    assert error_of("show", "network.inner:example", *ON)[0] == "there is no module `network.inner`"


def test_a_file_that_is_not_there(here):
    (here / "network.py").write_text("")
    fact, _, fix = error_of("show", "netwrok.py:example", *ON)
    assert (fact, fix) == ("there is no file `netwrok.py`", "did you mean `network.py`?")
    assert (
        error_of("show", "nowhere/mine.py:example", *ON)[2] == "give the path of a Python file, from here or from `/`"
    )


def test_what_is_not_python(here):
    (here / "notes.txt").write_text("")
    assert error_of("show", "./notes.txt:example", *ON)[0] == "`./notes.txt` is not a Python file"


@pytest.mark.parametrize(("model", "missing"), [("nets:", "function"), (":example", "module")])
def test_half_a_name(model, missing):
    fact, _, fix = error_of("show", model, *ON)
    assert fact == f"`{model}` names no {missing}" and "package.module:function" in fix


def test_a_function_that_is_not_in_it():
    fact, state, fix = error_of("show", f"{NETS}:exampel", *ON)
    assert fact == "there is no function `exampel` in `nets`"
    assert f"file: {NETS}" in state and fix == "did you mean `example`?"


def test_what_is_no_function():
    fact, _, fix = error_of("show", f"{NETS}:number", *ON)
    assert fact == "`number` in `nets` is no function"
    assert "`example`" in fix and "`shaped`" in fix and "`jnp`" not in fix


def test_a_function_with_arguments():
    fact, _, fix = error_of("show", f"{NETS}:net", *ON)
    assert fact == "`net` in `nets` needs arguments (x, w, v); it is called with none"
    assert fix == "write a function of no arguments that returns `(net, (x, w, v,))`"


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("returns_a_function", "a function, not `(fn, args)`"),
        ("returns_three", "a tuple of 3, not `(fn, args)`"),
        ("returns_a_list", "`(fn, args)` with a list for args"),
        ("returns_no_function", "`(fn, args)` with a str for fn"),
    ],
)
def test_a_function_that_returns_something_else(function, what):
    fact, _, fix = error_of("show", f"{NETS}:{function}", *ON)
    assert fact == f"`{NETS}:{function}` returned {what}"
    assert "`return fn, (x, w)`" in fix


# Errors of the user's own: his first, in his frames alone, then where we were.


def users_error(*words):
    """The user's traceback, the functions of its frames, and what is said after it."""
    printed, said = weft("show", *words, status=1)
    assert printed == ""
    his, ours = said.rsplit("\n\nerror: ", 1)
    return his, re.findall(r'File ".*[/\\](\w+\.py)", line \d+, in (\S+)', his), ours


def test_his_function_fails_while_it_is_traced():
    his, frames, ours = users_error(f"{NETS}:fails_when_traced", *ON)
    assert frames == [("nets.py", "unequal"), ("nets.py", "add")]
    assert his.endswith("TypeError: add got incompatible shapes for broadcasting: (3,), (4,).")
    fact, state, fix = ours.splitlines()
    assert fact == f"`{NETS}:fails_when_traced` failed while it was traced"
    assert re.search(r"layout: batch:rows,hidden:cols   mesh: rows=2,cols=4   at \S*nets.py:\d+ in add", state)
    assert fix == "  fix: mend that line, or what calls it"


def test_what_led_to_his_error_is_shown_too():
    his, frames, _ = users_error(f"{NETS}:fails_twice", *ON)
    assert frames == [("nets.py", "fn"), ("nets.py", "add"), ("nets.py", "fn")]
    assert "direct cause" in his and his.endswith("ValueError: what the user makes of it")


def test_his_function_fails_while_it_is_called():
    his, frames, ours = users_error(f"{NETS}:fails_when_called", *ON)
    assert frames == [("nets.py", "fails_when_called")] and his.endswith("KeyError: 'missing'")
    assert ours.startswith(f"`{NETS}:fails_when_called` failed while it was called\n")


def test_his_function_exits():
    assert users_error(f"{NETS}:exits", *ON)[0].endswith("SystemExit: 3")


def test_his_module_fails_while_it_is_imported(here):
    (here / "mine.py").write_text("import a_library_that_is_not_installed\n")
    for name in ("mine:example", "./mine.py:example"):
        his, frames, ours = users_error(name, *ON)
        assert frames == [("mine.py", "<module>")]
        assert his.endswith("ModuleNotFoundError: No module named 'a_library_that_is_not_installed'")
        assert ours.splitlines()[0] == f"`{name.split(':')[0]}` failed while it was imported"


def test_his_module_is_not_python(here):
    (here / "mine.py").write_text("x = 1\ndef example(:\n")
    his, frames, ours = users_error("./mine.py:example", *ON)
    assert frames == [] and re.search(r'mine.py", line 2\n.*\n.*\nSyntaxError: ', his)
    assert ours.splitlines()[1:] == ["  at mine.py:2", "  fix: mend that line, or what calls it"]


def test_an_error_of_wefts_own_is_shown_whole(monkeypatch):
    def fail(*args, **options):
        raise IndexError("a bug")

    fail.__code__ = fail.__code__.replace(co_filename=model.__file__)
    monkeypatch.setattr(model, "trace", fail)
    his, _, ours = users_error("tiny-lm", "--mesh", "rows=2", "--layout", "batch:rows")
    assert "Traceback" in his and his.endswith("IndexError: a bug")
    assert ours.splitlines() == [
        "`tiny-lm` failed while it was traced",
        "  layout: batch:rows   mesh: rows=2   at weft itself",
        "  fix: report all of the above: weft should have said what is wrong",
    ]


# One set of flags.


def test_commands_that_read_a_program_take_the_same_flags():
    commands = typer.main.get_command(app).commands
    shared = {"--batch", "--length", "--optimizer", "--loss", "--decode", "--set", "--trust", "--mesh", "--json"}
    for name in ("show", "plan", "search", "profile"):
        (said, *_), *options = commands[name].params[0].opts, *commands[name].params[1:]
        assert shared <= {word for option in options for word in option.opts}, name
        assert "folder" in commands[name].params[0].help and said


def test_the_folder_of_a_run_is_the_run_and_options_change_it(here):
    (here / "runs").mkdir()
    (here / "runs" / "tiny").mkdir()
    config = here / "runs" / "tiny" / "config.toml"
    config.write_text((ROOT / "configs" / "tiny.toml").read_text())
    printed = weft("show", "runs/tiny")[0]
    assert "batch=16 length=64" in printed and "runs/tiny/config.toml train_step" in printed
    options = ("--batch", 8, "--length", 32, "--optimizer", "sgd", "--set", "model.layers=1")
    changes = ("train.batch=8", "train.length=32", "optimizer.name=sgd", "model.layers=1")
    changed = weft("show", "runs/tiny", *options)[0]
    assert changed == weft("show", "runs/tiny", *(word for change in changes for word in ("--set", change)))[0]
    assert "batch=8 length=32" in changed and changed != printed
    (here / "empty").mkdir()
    assert error_of("plan", "empty", *ON)[0] == "there is no run in empty: no config.toml"


@pytest.mark.parametrize(
    "words, fact, fix",
    [
        (["show", "tinylm", *ON], "there is no preset `tinylm`", "did you mean `tiny-lm`? or name a file of a run, or"),
        (["show", "zzzz", *ON], "there is no preset `zzzz`", "use one of: `gemma3-1b`, `gpt2`"),
        (
            ["show", "a.toml:loss", *ON],
            "`a.toml:loss` names a function in a TOML file",
            "give the file alone: `a.toml`",
        ),
        (["show", "nowhere:loss", *ON], "there is no module `nowhere`", "give a file: `path/to/file.py:function`"),
        (["train", "tiny-lm"], "there is no file tiny-lm", "that is a preset: `weft new mine.toml --model tiny-lm`"),
        (["train", "runs/a/b.toml"], "there is no file runs/a/b.toml", "write one: `weft new mine.toml`"),
        (
            ["eval", "mine.toml"],
            "there is no run in mine.toml: no config.toml",
            "that is a run's file; give the folder",
        ),
        (["eval", "runs/tin"], "there is no run in runs/tin: no config.toml", "did you mean `runs/tiny`?"),
        (["eval", "tiny"], "there is no run in tiny: no config.toml", "did you mean `runs/tiny`?"),
        (["plan", "tiny-lm", *ON, "--hardware", "zzzz"], "there is no hardware `zzzz`", "use one of: `a100`, `b200`"),
    ],
)
def test_what_is_not_there_is_said_with_what_is_once(words, fact, fix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    for file in (tmp_path / "runs" / "tiny" / "config.toml", tmp_path / "mine.toml"):
        file.write_text("")
    said, state, told = error_of(*words)
    assert said == fact and told.startswith(fix)
    assert "a100" not in state and "tiny-lm" not in state
