"""What the tests of the command line share: running it, in this process or in one of its own."""

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from tests.environment import of_a_user
from weft.cli import app

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NETS = HERE / "nets.py"
ON = ("--mesh", "rows=2,cols=4", "--layout", "batch:rows,hidden:cols")


def weft(*words, status=0, **environment):
    """What `weft WORDS` prints on stdout and on stderr; it must end with this status."""
    environment = {"FORCE_COLOR": None, "NO_COLOR": None, **environment}
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="weft", env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.stderr
    return done.stdout, done.stderr


def error_of(*words):
    """The fact, the state and the fix that `weft WORDS` fails with, having printed nothing and no traceback."""
    printed, said = weft(*words, status=1)
    assert printed == "" and "Traceback" not in said
    found = re.search(r"\Aerror: (.+)\n  (.+)\n  fix: (.+)\n\Z", said)
    assert found, said
    return found.groups()


def misuse_of(*words):
    """What `weft WORDS` says of options that do not go together."""
    _, said = weft(*words, status=2)
    fact, usage, fix = said.splitlines()
    assert usage.startswith("  usage: weft show [OPTIONS] MODEL") and fix.startswith("  fix: ")
    return fact.removeprefix("error: ")


def started(*words, cwd=ROOT, **streams):
    """`python -m weft WORDS` in a process of its own, as a user's shell starts it."""
    environment = of_a_user(PYTHONPATH=str(ROOT))
    environment.pop("FORCE_COLOR", None)
    command = [sys.executable, "-m", "weft", *map(str, words)]
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, stderr=subprocess.PIPE, **streams)
