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


def agreed(value: int) -> int:
    """The first process's number, in all of them."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))
