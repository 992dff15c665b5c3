"""One of several processes that does what a plan says, without JAX.

    worker.py FOLDER PLAN...    a plan for each start, the last for all further ones

A plan is what every process does and, after it, what single ones do instead: `hang 1=signal:9`.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

folder, plans = Path(sys.argv[1]), sys.argv[2:]
me = os.environ["WEFT_PROCESS"]
with (folder / f"starts_{me}").open("a+") as starts:
    starts.write(f"{os.getpid()} {os.environ['WEFT_COORDINATOR']}\n")
    starts.seek(0)
    start = len(starts.readlines())
everybody = [folder / f"starts_{number}" for number in range(int(os.environ["WEFT_PROCESSES"]))]
while not all(path.exists() and path.read_text().count("\n") >= start for path in everybody):
    time.sleep(0.01)  # nobody acts before all are there, or starts would be counted differently
plan = plans[min(start, len(plans)) - 1]
action, *exceptions = plan.split()
for exception in exceptions:
    number, _, other = exception.partition("=")
    action = other if number == me else action
name, _, value = action.partition(":")
if name == "signal":
    os.kill(os.getpid(), int(value))
elif name == "exit":
    sys.exit(int(value))
elif name == "say":
    print(f"{value} on stdout")
    print(f"{value} on stderr", file=sys.stderr)
elif name == "halves":  # of a line, with time for the others to say something between
    print(value, end="", flush=True)
    time.sleep(0.5)
    print()
elif name == "show":
    print(f"{value}={os.environ.get(value, '')}")
elif name == "obey":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(value)))
    (folder / f"ready_{me}").touch()
    time.sleep(600)
elif name in ("stall", "freeze"):  # as a process does whose main thread hangs, and keeps Python's lock or does not
    code = Path(__file__).parents[3] / "weft" / "train" / "watchdog.py"
    module = {"__name__": "watchdog"}
    exec(compile(code.read_text(), str(code), "exec"), module)  # without the rest of the house, which is slow to load
    module["LINGER"] = 0.5
    with module["Watchdog"](folder, float(value), process=int(me)) as watchdog:
        watchdog.see(3)
        (folder / f"ready_{me}").touch()
        (ctypes.CDLL if name == "stall" else ctypes.PyDLL)(None).sleep(600)
elif name == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"ready_{me}").touch()
    time.sleep(600)
