"""How tests compile and run, in their own process and in those they start.

Most of the tests' time is XLA's, and what it compiles runs once: it is told to optimize little. No meaning depends on
it. On a busy machine a virtual processor may wait long for another; XLA would end the process after 40 s.
"""

import os
import sys

import jax

FLAGS = ["--xla_cpu_collective_call_terminate_timeout_seconds=600"]
if jax.__version_info__ < (0, 11):  # which then forgets them, and XLA ends a process for one that it does not know
    # The older emitters of XLA for CPUs: code a little slower, made in a quarter of the time.
    FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
SETTINGS = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": " ".join(FLAGS)}

# Many tests start Python: what it compiled of weft is kept for the next, though a shell may say otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def of_a_user(**more: str) -> dict[str, str]:
    """The environment of a user's shell, where nothing is said to JAX but how tests compile, and `more`."""
    ours = ("JAX_", "XLA_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | SETTINGS | more
