"""A supervisor in a process of its own: `supervisor.py COUNT COMMAND...`."""

import sys

from weft.train.launch import Supervisor

sys.exit(Supervisor([sys.executable, *sys.argv[2:]], int(sys.argv[1]), first_pause=0.1).run())
