"""`weft`, of which process 1 hangs once after step 5: `hanging.py MARKER WORDS...`."""

import os
import sys
import time
from pathlib import Path

from weft.cli import main
from weft.train.watchdog import Watchdog

marker = Path(sys.argv.pop(1))
see = Watchdog.see


def see_and_hang(self: Watchdog, step: int) -> None:
    see(self, step)
    if step == 5 and os.environ.get("WEFT_PROCESS") == "1" and not marker.exists():
        marker.touch()
        time.sleep(600)


Watchdog.see = see_and_hang
main()
