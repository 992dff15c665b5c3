"""For tests that compile much and run it once: XLA is told to spend less time on it."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
