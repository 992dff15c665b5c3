"""What holds for all layers: nothing here depends on how well XLA optimizes."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """Most of the time is XLA's; its optimizations change no meaning."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
