"""Eight virtual processors for every test, asked for before anything starts JAX; `--accept` for the goldens.

Most of the tests' time is XLA's, and what it compiles runs once: it is told to optimize little, here and in the
programs that tests start. No meaning depends on it; where bits are compared, `compiled_as_usual` takes it back.
"""

import os

import jax
import pytest

os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="module")
def compiled_as_usual():
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the printed programs in tests/goldens/ anew")
