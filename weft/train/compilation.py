"""The compilation cache of a run: its programs are kept for the next start.

It is JAX's own persistent cache, open while a run is trained and closed after it: nothing else in the process is kept.
A folder of the user's own that JAX was told of (`jax_compilation_cache_dir`) is left as it is. What is compiled for a
CPU is kept by the instructions this one has: a home folder may be that of many hosts.
"""

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as of_jax

from ..mesh import Mesh

MOST_BYTES = 4 * 2**30
"""How much is kept; what was not read for longest goes first."""
READ, WRITTEN = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


@contextlib.contextmanager
def open_cache(is_wanted: bool, mesh: Mesh, say: Callable[[str], None]) -> Iterator[None]:
    """While programs for this mesh are read from the user's cache, and kept in it."""
    device = mesh.jax_mesh().devices.flat[0]
    is_virtual = device.platform == "cpu" and mesh.size > 1
    own = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if is_virtual and own:
        # Read back from there, a program's collectives are no longer in one order on all virtual processors.
        jax.config.update("jax_enable_compilation_cache", False)
        say("JAX's compilation cache is left out: virtual processors may wait for ever with it")
    is_on = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    if not is_wanted or is_virtual or own or not is_on or not (folder := _make_folder(device.platform)):
        yield
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    of_jax.reset_cache()  # JAX asks for the folder once
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", own)
        of_jax.reset_cache()


@contextlib.contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """While programs are compiled; then says whether they were read or are kept."""
    counts = {READ: 0, WRITTEN: 0}

    def count(event: str, **_: object) -> None:
        if event in counts:
            counts[event] += 1

    jax.monitoring.register_event_listener(count)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_listener(count)
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if counts[READ]:
        say(f"compilation cache: hit, read from {folder}")
    elif counts[WRITTEN]:
        say(f"compilation cache: miss, kept for the next start in {folder}")


def cache_folder(kind: str) -> Path:
    """Where programs for devices of this kind are kept: `cpu`, `gpu`, `tpu`."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "compiled"
    return base / (f"cpu-{_instructions()}" if kind == "cpu" else kind)


def _make_folder(kind: str) -> Path | None:
    """The folder, with room in it; None where there can be none."""
    folder = cache_folder(kind)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is read from here is run
        make_room(folder, MOST_BYTES)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def make_room(folder: Path, most: int) -> None:
    """Removes the files that were not used for longest, until the rest is below."""
    files = [(max(stat.st_atime, stat.st_mtime), stat.st_size, path) for path, stat in _files(folder)]
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files, key=lambda file: file[0]):
        if total <= most:
            return
        path.unlink(missing_ok=True)
        total -= size


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            if entry.is_file():
                yield Path(entry.path), entry.stat()


def _instructions() -> str:
    """A word for the instructions of this CPU, another for others."""
    said = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        said += [line for line in lines if line.startswith(("flags", "Features"))][:1]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
