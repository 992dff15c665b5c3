"""Eight virtual processors for every test, asked for before anything starts JAX."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
