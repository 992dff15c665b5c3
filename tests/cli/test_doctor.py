"""`weft doctor`: what is missing comes with how to get it; only what is broken ends with 1; nothing makes it hang."""

import json
import sys
import time

import pytest

from weft.cli import checkup
from weft.cli.checkup import BROKEN, MISSING, OK

from .command import weft


@pytest.fixture
def quick(monkeypatch):
    """JAX is found in no time."""
    monkeypatch.setattr(checkup, "_PROBE", _printing({"backend": "cpu", "devices": [_device("cpu")]}))


def _device(kind, memory=None):
    return {"kind": kind, "platform": "any", "memory": memory}


def _printing(told):
    return f"print({json.dumps(told)!r})"


def _finding(name, *words, status=0):
    told = json.loads(weft("doctor", "--json", *words, status=status)[0])
    assert told["version"] == 1 and told["ok"] == (status == 0)
    return next(finding for finding in told["findings"] if finding["name"] == name)


def test_what_is_missing_has_a_fix_and_breaks_nothing(quick, tmp_path):
    printed, said = weft("doctor", "--runs", tmp_path / "runs")
    assert said == "" and printed.endswith("\nnothing is broken\n")
    assert not list(tmp_path.iterdir())  # it leaves nothing behind
    told = json.loads(weft("doctor", "--json")[0])
    assert {"Python", "Weft", "jax", "jaxlib", "JAX", "GPU", "TPU", "virtual processors", "disk", "compile cache"} <= {
        finding["name"] for finding in told["findings"]
    }
    for finding in told["findings"]:
        assert finding["state"] in (OK, MISSING)
        assert bool(finding["fix"]) == (finding["state"] == MISSING)
        assert finding["found"] in printed


def test_a_driver_that_hangs_is_left_alone(monkeypatch):
    monkeypatch.setattr(checkup, "_PROBE", "import time; time.sleep(600)")
    began = time.monotonic()
    finding = _finding("JAX", "--seconds", 1, status=1)
    assert time.monotonic() - began < 30
    assert finding["state"] == BROKEN and "did not find its devices in 1 s" in finding["found"] and finding["fix"]


def test_a_jax_that_cannot_start_is_broken(monkeypatch):
    monkeypatch.setattr(checkup, "_PROBE", "raise RuntimeError('jaxlib is too old')")
    finding = _finding("JAX", status=1)
    assert finding["found"] == "cannot start: RuntimeError: jaxlib is too old"


@pytest.mark.parametrize(
    ("backend", "plugin", "state", "fix"),
    [
        ("gpu", "0.10.2", OK, ""),
        ("cpu", None, MISSING, "'jax[cuda12]'"),
        ("cpu", "0.10.2", BROKEN, "nvidia-smi"),
    ],
)
def test_a_gpu_that_jax_does_not_use_is_said(monkeypatch, backend, plugin, state, fix):
    told = {"backend": backend, "devices": [_device("NVIDIA H200", 100 * 10**9)] * 2}
    monkeypatch.setattr(checkup, "_PROBE", _printing(told))
    monkeypatch.setattr(checkup, "gpus_here", lambda: 2)
    monkeypatch.setattr(checkup.shutil, "which", lambda name: None)
    known = checkup._version
    monkeypatch.setattr(checkup, "_version", lambda name: plugin if name == "jax-cuda12-plugin" else known(name))
    finding = _finding("GPU", status=int(state == BROKEN))
    assert finding["state"] == state and fix in finding["fix"] and finding["found"].startswith("2 GPUs")
    assert "2 x NVIDIA H200 with 100.0 GB for JAX" in _finding("JAX", status=int(state == BROKEN))["found"]


def test_a_package_that_is_absent_or_of_another_version_is_broken(quick, monkeypatch):
    needed = ["jax>=0.10.2,<0.11", "absent-package>=1", 'pillow; extra == "pictures"', 'weft[train]; extra == "all"']
    needed += ['absent-other; extra == "pictures"', "jax[tpu]; extra == 'tpu'"]
    monkeypatch.setattr(checkup.importlib.metadata, "requires", lambda name: needed)
    monkeypatch.setattr(checkup, "_version", lambda name: None if name.startswith("absent") else "0.12.1")
    found = {finding.name: finding for finding in checkup.look_at_packages()}
    assert found["jax"].state == BROKEN and "0.12.1, and Weft takes jax>=0.10.2,<0.11" in found["jax"].found
    assert found["absent-package"] == checkup.Finding(
        "versions", "absent-package", "not installed", BROKEN, "pip install 'absent-package>=1'"
    )
    assert found["pictures"].state == MISSING
    assert found["pictures"].fix == "pip install absent-other   (weft's extra `pictures`)"
    assert "all" not in found and "tpu" not in found


def test_a_folder_that_cannot_be_written_is_broken(quick, monkeypatch, tmp_path):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkup.tempfile, "TemporaryFile", refuse)
    (finding, *_) = checkup.look_at_folders(tmp_path / "runs" / "deep")
    assert finding.state == BROKEN and finding.found == f"{tmp_path} cannot be written: Permission denied"


def test_a_program_that_is_not_there_is_no_traceback():
    status, printed, said = checkup._run_apart([f"{sys.executable}-absent"], 1)
    assert status == -1 and printed == "" and "No such file" in said
