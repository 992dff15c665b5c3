"""What the processes of a program do together; with one process, nothing."""

import itertools

import jax
import numpy as np

from ..libraries import import_library

_LONGEST_WAIT = 24 * 60 * 60 * 1000  # milliseconds: the first process may have texts to tokenize
_LONGEST = 4096
_waits = itertools.count()


def wait_for_all(name: str) -> None:
    """Until every process is here, however long one takes."""
    if jax.process_count() == 1:
        return
    if not jax.distributed.is_initialized():
        from jax.experimental import multihost_utils

        return multihost_utils.sync_global_devices(name)
    # Asked of the coordinator: a collective in its place gives up where one process is 30 s late to the first.
    ocp = import_library("orbax.checkpoint", "a program of several processes")
    ocp.multihost.get_barrier_sync_fn()(key=f"weft {next(_waits)}: {name}", timeout_ms=_LONGEST_WAIT)


def broadcast_text(text: str) -> str:
    """The first process's text, in all of them."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    letters = np.zeros(_LONGEST, np.uint8)
    letters[: len(text.encode())] = list(text.encode())
    wait_for_all("text")
    return bytes(multihost_utils.broadcast_one_to_all(letters)).rstrip(b"\0").decode()


def broadcast_int(value: int) -> int:
    """The first process's number, in all of them."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    wait_for_all("number")
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))
