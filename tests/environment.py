"""How tests compile, in their own process and in those they start.

Most of the tests' time is XLA's, and what it compiles runs once: it is told to optimize little. No meaning depends on
it.
"""

import os
import sys

import jax

COMPILES_FAST = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
if jax.__version_info__ < (0, 11):  # which then forgets the flag, and XLA ends a process for one that it does not know
    # The older emitters of XLA for CPUs: code a little slower, made in a quarter of the time.
    COMPILES_FAST["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

# Many tests start Python: what it compiled of weft is kept for the next, though a shell may say otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def of_a_user(**more: str) -> dict[str, str]:
    """The environment of a user's shell, where nothing is said to JAX but how tests compile, and `more`."""
    ours = ("JAX_", "XLA_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | COMPILES_FAST | more
