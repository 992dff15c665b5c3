"""Functions of local arrays run on every processor of a mesh, outside of any program."""

import contextlib

import jax
from jax.sharding import PartitionSpec

import weft as wf
from weft.layout import Layout, Region, tracing_in
from weft.lower import collectives, levels


@contextlib.contextmanager
def in_steps():
    """While what goes over several levels of a mesh goes in steps, however few bytes it is."""
    usual, levels.FLAT_BELOW = levels.FLAT_BELOW, 0
    try:
        yield
    finally:
        levels.FLAT_BELOW = usual


def on_all(mesh, fn, *arrays):
    """`fn` of each processor's own arrays, the first dim of those given; of each what it gave."""
    mesh = wf.Mesh(mesh)
    own = PartitionSpec(tuple(mesh.axes))

    def body(*arrays):
        with tracing_in(Region(mesh, Layout(""))):
            results = fn(*jax.tree.map(lambda array: array[0], arrays))
        return jax.tree.map(lambda x: collectives.as_varying(x, tuple(mesh.axes))[None], results)

    return jax.jit(jax.shard_map(body, mesh=mesh.jax_mesh(), in_specs=own, out_specs=own))(*arrays)
