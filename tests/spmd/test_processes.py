"""One program over several processes: every process gives its own rows and gets the same answer."""

import socket
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import sys
import jax

jax.config.update("jax_num_cpu_devices", 4)
process, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
import numpy as np
import optax
import weft as wf

mesh = wf.Mesh("rows=4,cols=2")
layout = "batch:rows,d_ff:cols,params.d_model:rows"
rows = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
w = wf.parameter(np.random.default_rng(1).normal(size=(4, 6)).astype("float32"), "d_model d_ff")

def loss(params, x, key):
    return wf.mean(wf.square(wf.einsum(x, params, over="d_model")), over="batch d_ff")

mine = wf.tensor(rows[4 * process : 4 * process + 4], "batch d_model")
x = wf.put(mine, mesh=mesh, layout=layout)
assert x.dims == (wf.Dim("batch", 8), wf.Dim("d_model", 4)), x.dims
step = wf.train_step(loss, optax.adam(0.1), mesh=mesh, layout=layout)
state = step.init(w)
for _ in range(3):
    state, metrics = step(state, x)
plain = wf.train_step(loss, optax.adam(0.1))
expected = plain.init(w)
for _ in range(3):
    expected, other = plain(expected, wf.tensor(rows, "batch d_model"))
np.testing.assert_allclose(float(metrics["loss"]), float(other["loss"]), rtol=1e-5)
np.testing.assert_allclose(wf.get(state.params), wf.get(expected.params), rtol=1e-5, atol=1e-6)
np.testing.assert_array_equal(wf.get(x), rows)

# Between the processes, as between hosts: level by level, and in float8.
hosts, over_all = wf.Mesh("hosts=2 | cols=4"), "batch:hosts+cols"
assert "hosts     2  slower links, from group to group" in hosts.describe()
wide = wf.parameter(np.random.default_rng(2).normal(size=(4, 512)).astype("float32"), "d_model d_ff")
whole = wf.get(wf.grad(loss)(wide, wf.tensor(rows, "batch d_model"), None))
for dtype, allowed in ((None, 1e-6), ("float8_e4m3fn", 0.1)):
    gradients = wf.grad(lambda w, x: loss(w, x, None), sum_dtype=dtype)
    found = wf.get(wf.spmd(gradients, mesh=hosts, layout=over_all)(wide, wf.put(mine, mesh=hosts, layout=over_all)))
    np.testing.assert_allclose(found, whole, rtol=0, atol=allowed * np.abs(whole).max())
    sent = wf.trace(gradients, wide, wf.tensor(rows, "batch d_model"), mesh=hosts, layout=over_all).ledger
    assert len([row for row in sent if row.axes == ("hosts",)]) == (1 if dtype is None else 2), sent
print("process", process, "agrees")
"""


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


@pytest.mark.slow
def test_two_processes_train_as_one_does():
    port = str(free_port())
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    runs = [
        subprocess.Popen([*command, str(i), port], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for i in range(2)
    ]
    texts = [run.communicate(timeout=180)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(texts)
    assert all(f"process {i} agrees" in text for i, text in enumerate(texts))
