"""What `weft doctor` looks at: packages, devices, compilers, folders.

Each look is a list of findings. None starts JAX in this process: devices are looked for in a process of their own, that
may take no longer than it is given, since a driver that hangs would hang whoever asks it.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..mesh import MOST_VIRTUAL
from ..plan.compile import COMPILERS
from ..text import file_size_text, plural
from ..train.compilation import MOST_BYTES, cache_folder
from ..train.processes import gpus_here, virtual_processors

OK, MISSING, BROKEN = "ok", "missing", "broken"
LEAST_DISK = 2 * 10**9  # bytes below which a run's checkpoints soon find no room
PACKAGE = "weft"
_PROBE = """
import json, jax
print()
print(json.dumps({"backend": jax.default_backend(), "devices": [
    {"kind": d.device_kind, "platform": d.platform, "memory": (d.memory_stats() or {}).get("bytes_limit")}
    for d in jax.local_devices()]}))
"""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and how to get it where it is missing."""

    about: str
    name: str
    found: str
    state: str = OK
    fix: str = ""


def look_at_packages() -> Iterator[Finding]:
    """Python, Weft and what it needs, with versions; then each extra."""
    is_old = sys.version_info < (3, 11)
    fix = "make an environment with Python 3.11, 3.12 or 3.13" if is_old else ""
    yield Finding(
        "versions", "Python", f"{platform.python_version()} ({sys.executable})", BROKEN if is_old else OK, fix
    )
    if (version := _version(PACKAGE)) is None:
        fix = "install it: `pip install -e .` in Weft's folder"
        yield Finding("versions", "Weft", "runs from its source, and is not installed", MISSING, fix)
        return
    yield Finding("versions", "Weft", version)
    needed = importlib.metadata.requires(PACKAGE) or []
    by_extra: dict[str, list[str]] = {}
    for requirement in needed:
        of_extra = _EXTRA.search(requirement)
        by_extra.setdefault(of_extra[1] if of_extra else "", []).append(requirement.partition(";")[0].strip())
    for requirement in by_extra.pop("", []):
        yield _package(requirement)
        if _name_of(requirement) == "jax":
            yield _package("jaxlib")
    for extra, requirements in by_extra.items():
        names = [_name_of(requirement) for requirement in requirements]
        if extra in ELSEWHERE or PACKAGE in names:
            continue
        versions = {name: _version(name) for name in names}
        absent = [name for name, version in versions.items() if version is None]
        there = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        if absent:
            fix = f"pip install {' '.join(absent)}   (weft's extra `{extra}`)"
            yield Finding("extras", extra, f"without {', '.join(absent)}", MISSING, fix)
        else:
            yield Finding("extras", extra, there)


ELSEWHERE = ("gpu", "gpu13", "cuda", "kernels", "tpu", "dev", "docs")
"""The extras that are for devices, which are looked for beside these, or for who works on Weft."""
_INSTALLS = {
    "gpu": "pip install 'jax[cuda12]'   (weft's extra `gpu`; CUDA 13: 'jax[cuda13]', `gpu13`)",
    "cuda": "pip install 'jax[cuda12-local]'   (weft's extra `cuda`)",
    "tpu": "pip install 'jax[tpu]'   (weft's extra `tpu`)",
}


def _name_of(requirement: str) -> str:
    found = _NAME.match(requirement)
    return found[0] if found else requirement


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(requirement: str) -> Finding:
    """A package that Weft cannot do without."""
    name, version = _name_of(requirement), _version(_name_of(requirement))
    install = f"pip install '{requirement}'"
    if version is None:
        return Finding("versions", name, "not installed", BROKEN, install)
    if not is_within(version, requirement):
        return Finding("versions", name, f"{version}, and Weft takes {requirement}", BROKEN, install)
    return Finding("versions", name, version)


def is_within(version: str, requirement: str) -> bool:
    """Whether a version is one that a requirement takes.

    >>> is_within("0.12.1", "jax<0.13,>=0.10.2"), is_within("0.13.0", "jax<0.13"), is_within("2", "numpy")
    (True, False, True)
    """
    here = _numbers(version)
    signs = {
        ">=": lambda bound: here >= bound, "<=": lambda bound: here <= bound, ">": lambda bound: here > bound,
        "<": lambda bound: here < bound, "==": lambda bound: here == bound, "!=": lambda bound: here != bound,
    }  # fmt: skip
    return all(signs[sign](_numbers(bound)) for sign, bound in _BOUND.findall(requirement))


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return (*numbers, *[0] * (3 - len(numbers)))


def look_at_devices(seconds: float) -> Iterator[Finding]:
    """What JAX computes on, and which devices it does not see."""
    about = "devices"
    backend, text, problem = probe(seconds)
    if problem:
        fix = "run `python -c 'import jax; print(jax.devices())'`; with JAX_PLATFORMS=cpu JAX looks for no accelerator"
        yield Finding(about, "JAX", problem, BROKEN, fix)
    else:
        yield Finding(about, "JAX", f"computes on {text}")
    gpus, plugin = gpus_here(), _plugin()
    if not gpus:
        yield Finding(about, "GPU", "this machine shows none", MISSING, f"on one that has: {_INSTALLS['gpu']}")
    elif plugin is None:
        yield Finding(about, "GPU", f"{_driver(gpus)}; JAX has no plugin for it", MISSING, _INSTALLS["gpu"])
    elif backend != "gpu" and not problem:
        fix = "the driver must be as new as the plugin asks: see `nvidia-smi`, and what JAX logs as it starts"
        yield Finding(about, "GPU", f"{_driver(gpus)}; {plugin} is installed, and JAX uses {backend}", BROKEN, fix)
    else:
        yield Finding(about, "GPU", f"{_driver(gpus)}; {plugin}")
    chips = sorted(Path("/dev").glob("accel[0-9]*"))
    if not chips:
        yield Finding(about, "TPU", "this machine shows none", MISSING, f"on one that has: {_INSTALLS['tpu']}")
    elif backend == "tpu" or problem:
        yield Finding(about, "TPU", plural(len(chips), "chip"))
    else:
        state = BROKEN if _version("libtpu") else MISSING
        fix = "end the process that holds them" if state == BROKEN else _INSTALLS["tpu"]
        yield Finding(about, "TPU", f"{plural(len(chips), 'chip')}; JAX uses {backend}", state, fix)
    said = virtual_processors()
    text = (
        f"{said}, by XLA_FLAGS or JAX_NUM_CPU_DEVICES" if said else f"as many as a mesh asks for, up to {MOST_VIRTUAL}"
    )
    yield Finding(about, "virtual processors", f"{text}; {plural(os.cpu_count() or 1, 'core')} here share their work")


def probe(seconds: float) -> tuple[str, str, str]:
    """JAX's backend, its devices as text, and what is wrong, from another process."""
    status, printed, said = _run_apart([sys.executable, "-P", "-c", _PROBE], seconds)
    if status is None:
        return "", "", f"did not find its devices in {seconds:g} s: a driver hangs, or another process holds them"
    if status:
        lines = [line for line in said.splitlines() if line.strip()]
        return "", "", f"cannot start: {lines[-1] if lines else f'it ended with status {status}'}"
    told = json.loads(printed.splitlines()[-1])
    kinds: dict[str, list[int | None]] = {}
    for device in told["devices"]:
        kinds.setdefault(device["kind"], []).append(device["memory"])
    texts = [
        f"{len(each)} x {kind}" + (f" with {file_size_text(each[0])} for JAX" if each[0] else "")
        for kind, each in kinds.items()
    ]
    return told["backend"], f"{told['backend']}: {', '.join(texts)}", ""


def _run_apart(command: list[str], seconds: float) -> tuple[int | None, str, str]:
    """The status, stdout and stderr of a command; None for one that took too long.

    It writes to files and is not waited for once it is killed: a process inside a driver may not die, nor close a pipe.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            return -1, "", str(error)
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.returncode is None:
                process.kill()
                process.returncode = -9  # or Python would warn of it, and wait
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return status, texts[0], texts[1]


def _plugin() -> str | None:
    """The plugin by which JAX reaches a GPU."""
    names = ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-rocm60-plugin", "jax-rocm7-plugin")
    return next((f"{name} {version}" for name in names if (version := _version(name))), None)


def _driver(gpus: int) -> str:
    """The GPUs and their driver, as `nvidia-smi` names them where it answers."""
    if program := shutil.which("nvidia-smi"):
        status, printed, _ = _run_apart([program, "--query-gpu=name,driver_version", "--format=csv,noheader"], 10)
        if status or status is None:
            return f"{plural(gpus, 'GPU')} (nvidia-smi does not answer)"
        name, _, driver = printed.partition("\n")[0].partition(",")
        return f"{gpus} x {name.strip()}, driver {driver.strip()}"
    return plural(gpus, "GPU")


def look_at_compilers() -> Iterator[Finding]:
    """For which machines that need not be here programs can be compiled."""
    for name, modules, extra in (
        ("GPUs (h100:1x8x8)", COMPILERS["cuda"], "cuda"),
        ("TPUs (v5p:8x8x8)", COMPILERS["tpu"], "tpu"),
    ):
        if any(importlib.util.find_spec(module) for module in modules):
            yield Finding("weft plan --compile", name, "the compiler is installed")
        else:
            without = f"without {' or '.join(modules)}"
            yield Finding("weft plan --compile", name, without, MISSING, _INSTALLS[extra])


def look_at_folders(runs: Path) -> Iterator[Finding]:
    """Where runs and compiled programs are kept, and how much room there is."""
    there = runs.resolve()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):  # leaves nothing behind, whatever happens
            pass
        yield Finding("folders", "runs", f"{runs}/ can be written")
    except OSError as error:
        fix = f"make {there} yours to write, or say `--run FOLDER`"
        yield Finding("folders", "runs", f"{there} cannot be written: {error.strerror}", BROKEN, fix)
    free = shutil.disk_usage(there).free
    text, fix = f"{file_size_text(free)} free", "remove old runs, or keep fewer checkpoints: `checkpoint.keep = 1`"
    is_low = free < LEAST_DISK
    yield Finding("folders", "disk", text, MISSING if is_low else OK, fix if is_low else "")
    cache = cache_folder("cpu").parent
    kept = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.is_dir() else 0
    above = cache
    while not above.exists():
        above = above.parent
    text = f"{cache}: {file_size_text(kept)} of at most {file_size_text(MOST_BYTES)} for each kind of device"
    if os.access(above, os.W_OK):
        yield Finding("folders", "compile cache", text)
    else:
        yield Finding("folders", "compile cache", f"{cache} cannot be written", MISSING, "set XDG_CACHE_HOME")
