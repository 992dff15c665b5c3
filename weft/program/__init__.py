"""Reading a program before it runs: the traced SPMD program and what it sends."""

from .ledger import Ledger, Row
from .memory import Alive, Memory, Moment
from .trace import Program, trace

__all__ = ["Alive", "Ledger", "Memory", "Moment", "Program", "Row", "trace"]
