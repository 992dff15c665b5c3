"""Eight virtual processors for every test, asked for before anything starts JAX; `--accept` for the goldens."""

import jax

jax.config.update("jax_num_cpu_devices", 8)


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the printed programs in tests/goldens/ anew")
