"""A kernel of a plan: what runs at once."""

from dataclasses import dataclass

from ..program.ledger import Row


@dataclass(slots=True)
class Kernel:
    """Something that runs at once: what it computes, moves or sends, and how often."""

    kind: str
    """`product`, `attention`, `elementwise`, `moved` or `sent`."""
    op: int | None
    phase: str
    count: int = 1
    bytes: float = 0
    flops: float = 0
    dtype: str = ""
    shape: tuple[int, int, int, int] = (1, 1, 1, 1)
    """Of a product: how many, rows, columns, and how many numbers each sums."""
    slower: float = 1.0
    """Of an attention: times what its products would take in the plain kernel."""
    work: float = 0
    """Elementwise operations."""
    is_looped: bool = False
    """Whether a loop runs it, and not the host."""
    calls: int = 1
    """How often it is started; 0 for a part of a kernel that goes on."""
    row: Row | None = None
    is_beside: bool = False
    """It waits for nothing in its body, or nothing there waits for it: it can run beside the rest."""
    is_ahead: bool = False
    """And it neither waits nor is waited for: the next turn needs it (prefetch, a ring's permute)."""
    body: int = 0
