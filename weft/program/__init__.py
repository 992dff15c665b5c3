"""Reading a program before it runs: the traced SPMD program and what it sends."""

from .ledger import Ledger, Row
from .trace import Program, trace

__all__ = ["Ledger", "Program", "Row", "trace"]
