"""Too few devices, and JAX started too early: each in a process of its own."""

import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

import weft as wf
from tests.environment import of_a_user

from .raised import error_of


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh Python, with an environment in which nobody has asked for processors."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=of_a_user(**{"JAX_PLATFORMS": "cpu", **environment}),
        capture_output=True,
        text=True,
        timeout=120,
    )


EARLY = """
import jax.numpy as jnp, numpy as np, weft as wf
jnp.zeros(1) + 1                                       # JAX starts, with one processor
mesh = wf.Mesh("rows=8")                               # no error: a mesh never starts JAX
region = wf.spmd(lambda x: x * 2, mesh=mesh, layout="batch:rows")
try:
    print(region(wf.tensor(np.ones(8, "float32"), "batch")).array.sum())
except wf.MeshError as error:
    print("fact:", error.fact)
    print("state:", error.state)
    print("fix:", error.fix)
"""


def test_jax_already_started_with_another_count():
    done = run(EARLY)
    assert done.returncode == 0, done.stderr
    fact, state, fix = done.stdout.splitlines()
    assert "mesh rows=8 wants 8 processors, and JAX has 1 (cpu)" in fact and "started before this mesh" in fact
    assert "at <string>:7 in <module>" in state
    assert "write `wf.Mesh('rows=8')` above the first line that computes" in fix and "JAX_NUM_CPU_DEVICES=8" in fix


def test_jax_already_started_fix_by_the_environment():
    done = run(EARLY, JAX_NUM_CPU_DEVICES="8")
    assert done.stdout.strip() == "16.0", done.stdout + done.stderr


def test_jax_already_started_fix_by_the_order_and_the_largest_mesh_decides():
    done = run("""
        import jax, jax.numpy as jnp, numpy as np, weft as wf
        mesh = wf.Mesh("rows=4,cols=2")
        wf.Mesh("rows=2"), wf.Mesh("rows=3")
        print(jax.device_count())
        jnp.zeros(1) + 1
        region = wf.spmd(lambda x: x * 2, mesh=mesh, layout="batch:rows+cols")
        print(region(wf.tensor(np.ones(8, "float32"), "batch")).array.sum())
    """)
    assert done.stdout.split() == ["8", "16.0"], done.stdout + done.stderr


def test_making_a_mesh_or_tracing_for_it_starts_nothing_and_a_donated_tensor_is_named():
    done = run("""
        import jax, numpy as np, weft as wf
        x = wf.tensor(jax.ShapeDtypeStruct((65536, 4), "float32"), "batch d")
        program = wf.trace(lambda x: wf.sum(x, over="batch"), x, mesh="rows=4096", layout="batch:rows")
        print("psum" in str(program.jaxpr))
        jax.config.update("jax_num_cpu_devices", 5)     # refused if JAX had started
        print(jax.device_count())

        x = wf.put(wf.tensor(np.ones(8, "float32"), "batch"), mesh="rows=4", layout="batch:rows")
        double = wf.spmd(lambda x: x * 2, mesh="rows=4", layout="batch:rows", donate=0)
        y = double(x)
        try:
            double(x)
        except wf.WeftError as error:
            print(error.fact)
        print(double(y).array.sum())
    """)  # for a donated tensor JAX itself ends the process
    assert done.returncode == 0, done.stderr
    traced, devices, fact, total = done.stdout.splitlines()
    assert (traced, devices, total) == ("True", "5", "32.0") and "donate" in fact


def test_a_mesh_larger_than_virtual_processors_go():
    done = run("""
        import numpy as np, weft as wf
        region = wf.spmd(lambda x: x * 2, mesh=wf.Mesh("rows=1024"), layout="batch:rows")
        try:
            region(wf.tensor(np.ones(1024, "float32"), "batch"))
        except wf.MeshError as error:
            print(error.fact)
            print(error.fix)
    """)
    fact, fix = done.stdout.splitlines()
    assert "wants 1024 processors" in fact and "JAX has 1 " in fact
    assert "started before" not in fact  # it had not: 1024 are more than are ever made
    assert "wf.trace" in fix or "smaller" in fix or "512" in fix


x = wf.tensor(np.ones(16, "float32"), "batch")


def test_too_few_devices_given():
    mesh = wf.Mesh("rows=4", devices=jax.devices()[:2])
    error = error_of(lambda: wf.spmd(lambda x: x * 2, mesh=mesh, layout="batch:rows")(x), wf.MeshError)
    assert "mesh rows=4 wants 4 processors, and JAX has 2 (cpu)" in error.fact or "2" in error.fact
    assert "give 4 devices, or make the mesh smaller" in error.fix


@pytest.mark.parametrize("size", [2, 4])
def test_too_few_devices_given_fix(size):
    mesh = wf.Mesh({"rows": size}, devices=jax.devices()[:size])
    out = wf.spmd(lambda x: x * 2, mesh=mesh, layout="batch:rows")(x)
    np.testing.assert_array_equal(out.array, x.array * 2)


def test_too_few_devices_found():
    assert jax.device_count() == 8  # JAX has started
    region = wf.spmd(lambda x: x * 2, mesh="rows=16", layout="batch:rows")
    error = error_of(lambda: region(x), wf.MeshError)
    assert "mesh rows=16 wants 16 processors, and JAX has 8 (cpu)" in error.fact
    assert "JAX_NUM_CPU_DEVICES=16" in error.fix
    error_of(lambda: wf.put(x, mesh="rows=16", layout="batch:rows"), wf.MeshError)
    assert wf.trace(lambda x: x * 2, x, mesh="rows=16", layout="batch:rows").jaxpr  # needs no devices


def test_a_platform_that_is_not_here():
    mesh = wf.Mesh("rows=2", devices="nosuch")
    error = error_of(lambda: wf.spmd(lambda x: x * 2, mesh=mesh, layout="batch:rows")(x), wf.MeshError)
    assert "`nosuch`" in error.fact and "`devices='cpu'`" in error.fix
    mesh = wf.Mesh("rows=2", devices="cpu")
    np.testing.assert_array_equal(wf.spmd(lambda x: x * 2, mesh=mesh, layout="batch:rows")(x).array, x.array * 2)


@pytest.mark.parametrize("devices", [3, ["a", "b"], [None, None], [jax.ShapeDtypeStruct((), "float32")] * 2, {}])
def test_devices_of_the_wrong_type(devices):
    act = lambda: wf.spmd(lambda x: x * 2, mesh=wf.Mesh("rows=2", devices=devices), layout="batch:rows")(x)  # noqa: E731
    error_of(act, wf.MeshError)


def test_one_device_given_twice():
    device = jax.devices()[0]
    act = lambda: wf.spmd(lambda x: x * 2, mesh=wf.Mesh("rows=2", devices=[device] * 2), layout="batch:rows")(x)  # noqa: E731
    assert "twice" in error_of(act, wf.MeshError).fact
