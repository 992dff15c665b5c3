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

from weft.cli import app
from weft.cli.groups import BEGIN, GROUPS

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
    assert "Did you mean 'search'" in weft("serch", status=2)[1]


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
