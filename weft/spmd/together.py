"""What the processes of a program do together; with one process, nothing.

Imports nothing of the house.
"""

import jax
import numpy as np


def wait_for_all(name: str) -> None:
    """Until every process is here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


_LONGEST = 4096


def agreed_text(text: str) -> str:
    """The first process's text, in all of them."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    letters = np.zeros(_LONGEST, np.uint8)
    letters[: len(text.encode())] = list(text.encode())
    return bytes(multihost_utils.broadcast_one_to_all(letters)).rstrip(b"\0").decode()


def agreed(value: int) -> int:
    """The first process's number, in all of them."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))
