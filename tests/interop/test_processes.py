"""Several processes read their own slices of one folder, and write one folder together."""

import sys
from subprocess import PIPE, STDOUT, Popen

import pytest

from tests.interop.folders import FIXTURES, same_bits, tensors
from tests.spmd.test_processes import free_port

PROGRAM = """
import sys
import jax

jax.config.update("jax_num_cpu_devices", 4)
process, port, folder, target = int(sys.argv[1]), *sys.argv[2:]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
from weft import interop
from weft.interop.files import Weights

read, read_slice = {}, Weights.read

def counted(self, name, ranges):
    found = read_slice(self, name, ranges)
    read[name] = read.get(name, 0) + found.size
    return found

Weights.read = counted
model = interop.load(folder, "rows=2,cols=4", "batch:cols,heads:cols,params.d_ff:rows")
assert read["transformer.h.1.mlp.c_fc.weight"] == 16 * 40 // 2, read
assert read["transformer.h.1.ln_1.weight"] == 16, read
interop.save(model, target)
assert interop.read_config(target, name="gpt2") == model.config
print("process", process, "agrees")
"""


@pytest.mark.slow
def test_two_processes_read_and_write_one_model(tmp_path):
    args = [free_port(), FIXTURES / "gpt2", tmp_path / "made"]
    command = [sys.executable, "-c", PROGRAM]
    runs = [Popen([*command, *map(str, [i, *args])], stdout=PIPE, stderr=STDOUT, text=True) for i in range(2)]
    texts = [run.communicate(timeout=180)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(texts)
    assert all(f"process {i} agrees" in text for i, text in enumerate(texts))
    assert same_bits(tensors(tmp_path / "made"), tensors(FIXTURES / "gpt2"))
