"""Reading a program before it runs: the traced SPMD program and what it sends."""

from ..namespace import make_dir as _make_dir
from .ledger import Ledger, Row
from .memory import Alive, Memory, Moment
from .trace import Program, trace

__all__ = ["Alive", "Ledger", "Memory", "Moment", "Program", "Row", "trace"]

__dir__ = _make_dir(globals())
