"""Steps of several processes, each a sum over all of them: `steps.py FOLDER COUNT [STEP crash|explain]`.

Every process says after which step it stopped; on its first start process 1 may fail at STEP.
"""

import os
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

import weft as wf
from weft.train import processes
from weft.train.stopping import Stop

folder, last = Path(sys.argv[1]), int(sys.argv[2])
fails_at, how = (int(sys.argv[3]), sys.argv[4]) if len(sys.argv) > 3 else (None, "")
with processes.failing_at_once():
    count = processes.join(timeout=60)
    processes.share_out(2 * count, count)
    mesh = wf.Mesh(f"rows={2 * count}")
    me = jax.process_index()
    print(f"{jax.local_device_count()} of {jax.device_count()} devices")
    mine = wf.put(wf.tensor(np.full(2, me, "float32"), "batch"), mesh=mesh, layout="batch:rows")
    total = wf.spmd(lambda x: wf.sum(x, over="batch"), mesh=mesh, layout="batch:rows")
    (folder / f"pid_{me}").write_text(str(os.getpid()))
    step = 0
    with Stop() as stop:
        stop.begin_steps()
        while step < last:
            assert float(wf.get(total(mine))) == count * (count - 1)
            step += 1
            if step == 3:
                (folder / f"ready_{me}").touch()
            if step == fails_at and me == 1 and not (folder / "failed").exists():
                (folder / "failed").touch()
                raise RuntimeError("made to crash") if how == "crash" else SystemExit(1)
            if stop.is_wanted():
                break
            time.sleep(0.01)
    multihost_utils.sync_global_devices("all have stopped")
    (folder / f"stopped_{me}").write_text(f"{step} {stop.reason}")
