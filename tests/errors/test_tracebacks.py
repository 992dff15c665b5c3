"""What stands on the screen after an error: the user's own frames, then our text, whose last line is the fix."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import weft as wf
from weft import nn

ROOT = Path(wf.__file__).resolve().parent.parent
SCRIPT = """
import jax, numpy as np, weft as wf

def loss(x):
    def turn(carry, row):
        return carry + wf.sum(row, over="dd"), None
    return wf.scan(wf.remat(turn), wf.zeros([]), x, over="length")[0]

x = wf.tensor(np.ones((4, 2, 3), "float32"), "batch length d")
jax.jit(wf.spmd(wf.value_and_grad(loss), mesh="rows=2", layout="batch:rows"))(x)
"""

batch, d = wf.dims(batch=4, d=3)
x = wf.tensor(np.ones((4, 3), "float32"), [batch, d])


def screen(*command: str, **env: str) -> list[str]:
    """The lines a Python process that fails leaves on stderr."""
    where = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **env}
    found = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=where, timeout=300)
    assert found.returncode == 1
    return found.stderr.rstrip().splitlines()


def frames(lines: list[str], part: str) -> list[str]:
    return [line for line in lines if line.lstrip().startswith("File ") and part in line]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("user") / "program.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_ends_with_the_fix_below_its_own_frames(script):
    lines = screen(script)
    assert lines[-1].strip() == "fix: did you mean `d`?"
    assert "program.py:6 in turn" in lines[-2]
    assert not frames(lines, f"{os.sep}weft{os.sep}") and not frames(lines, f"{os.sep}jax{os.sep}")
    assert [line.rpartition(" in ")[2] for line in frames(lines, "program.py")] == ["<module>", "loss", "turn"]
    assert lines.count("Traceback (most recent call last):") == 1 and "JAX" not in "\n".join(lines)


def test_all_frames_are_shown_where_one_asks_for_them(script):
    lines = screen(script, WEFT_TRACEBACK="full")
    assert lines[-1].strip().startswith("fix:")
    assert frames(lines, f"{os.sep}weft{os.sep}ops") and frames(lines, f"{os.sep}jax{os.sep}_src")


def test_an_error_of_the_users_own_has_their_frames_alone():
    code = "import weft as wf\nwf.spmd(lambda x: [][3], mesh='x=1', layout='')(wf.zeros([wf.Dim('b', 8)]))"
    lines = screen("-c", code)
    assert lines[-1] == "IndexError: list index out of range"
    assert not [line for line in lines if "weft/" in line]


def test_an_unknown_name_ends_with_our_fix_and_no_guess_of_pythons():
    lines = screen("-c", "import weft as wf; wf.reduce_sum")
    assert lines[-1].strip() == "fix: write `wf.sum(x, over='batch')`"
    assert not frames(lines, f"{os.sep}weft{os.sep}")


class Block(eqx.Module):
    """A layer of a user's own, around one of ours."""

    linear: nn.Linear

    def __call__(self, x: wf.Tensor) -> wf.Tensor:
        return self.linear(x)


def bad_function(x):
    return wf.sum(x, over="dd")


def assign():
    x["d", 0] = 1.0


ACTS = {
    "op": lambda: wf.sum(x, over="dd"),
    "operator": lambda: x + wf.ones([batch.resized(2)]),
    "operator from the right": lambda: "a" + x,
    "method": lambda: x.rename(dd="e"),
    "attribute": lambda: x.sum,
    "index": lambda: x["dd", 0],
    "assignment": assign,
    "number": lambda: float(x),
    "truth": lambda: bool(x),
    "iteration": lambda: list(x),
    "range": lambda: range(x),
    "array": lambda: np.exp(x),
    "dim": lambda: wf.Dim("d", 0),
    "dims": lambda: wf.dims(d=0),
    "mesh": lambda: wf.Mesh("rows"),
    "layout": lambda: wf.Layout("rows"),
    "tensor": lambda: wf.tensor(np.ones(3), "a b"),
    "layer": lambda: Block(nn.Linear(d, batch, key=jax.random.key(0)))(x.rename(d="e")),
    "layer made": lambda: nn.Linear("d", batch),
    "call of a wrong form": lambda: wf.sum(x, axis=0),
    "gradient": lambda: wf.grad(bad_function)(x),
    "region": lambda: wf.spmd(bad_function, mesh="rows=2", layout="batch:rows")(x),
    "region not made": lambda: wf.spmd(bad_function, mesh="rows=2", layout="batch:cols"),
    "trace": lambda: wf.trace(bad_function, x, mesh="rows=2", layout="batch:rows"),
    "put": lambda: wf.put(x, mesh="rows=2", layout="d:rows"),
    "preset": lambda: wf.models.preset("no-such-model"),
    "a program of the user's own": lambda: jax.jit(bad_function)(x),
}


@pytest.mark.parametrize("name", ACTS)
def test_only_frames_of_the_user_are_in_the_traceback(name):
    with pytest.raises(wf.WeftError) as caught:
        ACTS[name]()
    text = traceback.format_exception(caught.value)
    assert "".join(text).rstrip().splitlines()[-1] == f"  fix: {caught.value.fix}"
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert not [file for file in files if f"{os.sep}weft{os.sep}" in file]


def test_what_led_to_an_error_is_folded_too():
    def kernel(a):
        return a + "text"

    with pytest.raises(wf.TensorError) as caught:
        wf.spmd(lambda x: wf.local(kernel, x, out=x.dims), mesh="rows=2", layout="batch:rows")(x)
    cause = caught.value.__cause__
    names = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert names == ["kernel"]


@pytest.mark.parametrize("mode", ["off", "tracebackhide", "remove_frames", "quiet_remove_frames"])
def test_the_fix_is_last_whatever_jax_does_with_frames(mode):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        with pytest.raises(wf.DimError) as caught:
            ACTS["a program of the user's own"]()
    finally:
        jax.config.update("jax_traceback_filtering", before)
    lines = "".join(traceback.format_exception(caught.value)).rstrip().splitlines()
    assert lines[-1].strip().startswith("fix:")


def test_an_error_of_the_users_own_keeps_its_frames_and_notes():
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        wf.spmd(broken, mesh="rows=2", layout="batch:rows")(x)
    assert any(frame.name == "broken" for frame in traceback.extract_tb(caught.value.__traceback__))


def test_a_note_of_the_users_own_stays():
    error = wf.WeftError("fact", fix="this")
    error.add_note("mine")
    assert error.__notes__ == ["mine"]
