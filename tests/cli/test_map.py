"""`weft` alone is the map: every command, by what it is for; `--help` has an example that the command would take."""

import inspect
import itertools
import re
import shlex
import signal
import subprocess
import sys

import pytest
import typer

from tests.environment import of_a_user
from weft.cli import app
from weft.cli.groups import BEGIN, GROUPS
from weft.cli.terminal import COMMAND

from .command import ROOT, weft

COMMANDS = typer.main.get_command(app).commands


def test_weft_alone_shows_every_command_in_its_group():
    printed, said = weft()
    assert said == ""
    shown = re.findall(r"^  ([a-z]+)  +\S", printed, re.MULTILINE)
    assert sorted(shown) == sorted(COMMANDS)
    assert [title for title in GROUPS if f"\n{title}:\n" in printed] == list(GROUPS)
    assert max(map(len, printed.splitlines())) <= 110
    assert "--install-completion" in printed and "--version" in weft("--help")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_group_a_line_and_an_example(name):
    command = COMMANDS[name]
    assert command.rich_help_panel in GROUPS, f"register `weft {name}` with rich_help_panel=, a group of GROUPS"
    assert len(command.help.partition("\n")[0]) < 100
    for one in getattr(command, "commands", {"": command}).values():
        assert f"weft {name}" in one.epilog, f"give `weft {name}` its examples: app.command(epilog=EXAMPLES)"


def test_the_examples_of_the_map_and_of_help_are_taken():
    """Every `weft ...` of the map and of a command's help is one that its options can be read from."""
    lines = [line for line, _ in BEGIN]
    for command in COMMANDS.values():
        lines += re.findall(r"^  (weft .*)$", command.epilog or "", re.MULTILINE)
    assert len(lines) > 30
    for line in lines:
        _, name, *words = shlex.split(line, comments=True)
        words = list(itertools.takewhile(lambda word: word not in ("<", ">", "|"), words))
        command = COMMANDS[name]
        if not hasattr(command, "commands"):
            command.make_context(name, words)


def test_a_word_that_is_no_command_names_the_closest():
    assert weft("serch", status=2)[1].startswith("error: there is no command `serch`")
    assert "did you mean `search`?" in weft("serch", status=2)[1]


def completed(*words):
    line = " ".join(words)
    return weft(_WEFT_COMPLETE="complete_bash", COMP_WORDS=f"weft {line}", COMP_CWORD=str(len(words)))[0].split()


def test_words_complete(here):
    (here / "runs" / "first").mkdir(parents=True)
    (here / "runs" / "first" / "config.toml").touch()
    (here / "mine.toml").touch()
    assert {"tiny-lm", "tiny-mt"} <= set(completed("show", "tiny-"))
    assert completed("plan", "min") == ["mine.toml"]
    for typed in ("r", "runs", "runs/", "runs/f"):
        assert completed("eval", typed) == completed("show", typed) == ["runs/first"]
    assert "h100" in completed("plan", "tiny-lm", "--hardware", "h")
    assert completed("show", "tiny-lm", "--optimizer", "adaf") == ["adafactor"]


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_and_errors_are_told_by_every_command(name):
    """`reported` tells an error by its fix, and ends with 130 where Ctrl-C came."""
    command = COMMANDS[name]
    for one in getattr(command, "commands", {"": command}).values():
        assert "with reported(" in inspect.getsource(inspect.unwrap(one.callback)), f"`weft {name}`: with reported():"


def test_ctrl_c_while_weft_begins_is_no_traceback():
    """Also where Python would hear of it in a callback, which loses exceptions."""
    program = "import os, signal, weft_command\n"
    program += "import builtins\nreal = builtins.__import__\n"
    program += "def late(name, *more):\n    if name == 'weft.cli': os.kill(os.getpid(), signal.SIGINT)\n"
    program += "    return real(name, *more)\nbuiltins.__import__ = late\nweft_command.main()\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


def test_ctrl_c_while_a_command_of_weft_launch_begins_is_no_traceback(tmp_path):
    """Also of those that `weft reproduce` starts."""
    hook = "import builtins, os, signal\nreal = builtins.__import__\n"
    hook += "def late(name, *more):\n    if name == 'jax': os.kill(os.getpid(), signal.SIGINT)\n"
    hook += "    return real(name, *more)\nbuiltins.__import__ = late\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    environment = of_a_user(PYTHONPATH=f"{tmp_path}:{ROOT}")
    done = subprocess.run([*COMMAND, "data"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
    for command in ("launch", "reproduce"):
        assert "[*COMMAND, *" in inspect.getsource(sys.modules[f"weft.cli.{command}"])


@pytest.mark.parametrize(
    "words, fact, usage, fix",
    [
        (["search", "tiny-lm", "--processors", "x"], "`--processors` is `x`", "weft search [OPTIONS] MODEL",
         "give a whole number from 1 on; "),
        (["search", "tiny-lm", "--memory", "0"], "`--memory` is `0`", "weft search [OPTIONS] MODEL",
         "give a number above 0; "),
        (["generate", "runs/x", "--temperature", "hot"], "`--temperature` is `hot`", "weft generate [OPTIONS] RUN",
         "give a number from 0 on; "),
        (["show"], "MODEL is missing", "weft show [OPTIONS] MODEL", "write it like `weft show tiny-lm --mesh"),
        (["launch", "show"], "`--processes` is missing", "weft launch [OPTIONS] -- COMMAND...",
         "write it like `weft launch -n 4 -- train"),
        (["show", "x", "--mseh", "3"], "there is no option `--mseh`", "weft show [OPTIONS] MODEL",
         "did you mean `--mesh` or `--set`? "),
        (["doctor", "x"], "`x` is more than the command takes", "weft doctor [OPTIONS]",
         "write it like `weft doctor`; "),
        (["new"], "FILE is missing", "weft new [OPTIONS] FILE", "write it like `weft new mine.toml`; "),
    ],
)  # fmt: skip
def test_wrong_use_has_a_fact_the_usage_and_a_fix(words, fact, usage, fix):
    printed, said = weft(*words, status=2)
    lines = said.splitlines()
    assert printed == "" and lines[:2] == [f"error: {fact}", f"  usage: {usage}"] and len(lines) == 3
    assert lines[2].startswith(f"  fix: {fix}")
    assert lines[2].endswith(f"`weft {words[0]} --help` has the options and examples")


def test_an_option_without_its_value():
    assert (
        weft("show", "x", "--mesh", status=2)[1]
        == "error: `--mesh` stands without a value\n  fix: write one after it\n"
    )


def test_a_short_way_to_help():
    assert weft("show", "-h") == weft("show", "--help")
