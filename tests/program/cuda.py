"""Compiles cases in bfloat16 for eight H100 that need not be there, and prints what each sends, a line of JSON each.

A program of its own (`python -m tests.program.cuda '[["NAME", "PASS,PASS"], ...]'`; the passes are turned off), since
a failure of this compiler can end the process.
"""

import json
import sys
import warnings

import weft as wf
from tests.program.cases import cases
from tests.program.independent import compiled
from weft.plan.compile_child import devices_of
from weft.plan.targets import read_target

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver to ask
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def main(asked: list[tuple[str, str]]) -> None:
    devices = devices_of(read_target("h100:1x1x8"))
    found = cases("bfloat16")
    for name, passes in asked:
        mesh = wf.Mesh(found[name].mesh, devices=devices)
        # Triton finds no tiles for sizes as small and uneven as these; no collective depends on it.
        options = {"xla_gpu_enable_triton_gemm": False, "xla_disable_hlo_passes": passes}
        text = found[name].lowered(mesh).compile(options).as_text()
        sent = [[kind, sorted(axes), size] for (kind, axes), size in compiled(text, mesh.axes).items()]
        print(json.dumps([name, passes, sent]), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", wf.WeftWarning)
    main(json.loads(sys.argv[1]))
