"""What hardware is: a kind of processor, its memory, and the links it sends over.

Figures are in bytes, FLOPs and seconds; `machines.py` is the table of them, `hardware_file.py` reads them from TOML.
"""

from dataclasses import dataclass, field

from ..kernels.choice import HOPPER, Chip


@dataclass(frozen=True)
class Link:
    """What one processor sends over: its bandwidth, its latency, its reach."""

    name: str
    bandwidth: float
    """Bytes a second one processor sends, one way; of a torus, along one of its sides, both directions."""
    latency: float
    """Seconds of one step of a ring beside its bytes."""
    reach: int
    """How many processors are connected so: those of a host, of a slice; 0 for any number."""
    efficiency: float = 0.8
    """The share of the bandwidth that large messages get."""
    is_torus: bool = False
    """Whether messages to others than neighbours pass through them."""
    call: float = 0.0
    """Seconds a collective takes at least."""
    sides: int = 2
    """Of a torus: how many sides it has."""
    block: int = 1
    """Of a torus: sides of a multiple of this are closed to rings; others are lines."""
    is_direct: bool = False
    """Whether each two processors have a link of their own: a group uses only those between its members."""
    summing: float = 0.0
    """Of a switch that adds up what passes (NVLink SHARP): the share of the bandwidth that an all-reduce gets."""

    @property
    def rate(self) -> float:
        """Bytes a second of large messages."""
        return self.bandwidth * self.efficiency


@dataclass(frozen=True)
class Hardware:
    """One kind of processor and what it is wired to."""

    name: str
    title: str
    kind: str
    """`gpu`, `tpu` or `cpu`."""
    flops: dict[str, float]
    """Dense products a second, by dtype; a float32 product is what JAX makes of it by default."""
    vector: float
    """FLOP/s outside the matrix units: one float32 operation on each element of an array."""
    cores: int
    """Among how many units the tiles of a product are divided."""
    memory: int
    bandwidth: float
    links: tuple[Link, ...]
    """From the innermost out: inside a host or slice first."""
    sources: dict[str, str] = field(default_factory=dict)
    device_kinds: tuple[str, ...] = ()
    """Parts of JAX's `device_kind` by which it is known."""
    call: float = 0.0
    """Seconds a kernel takes at least."""
    cache: float = 0.0
    """Bytes that need not go to memory when they are read again at once."""
    is_shared: bool = False
    """Whether all processors of a mesh are one machine, which does the work of all of them."""
    host_link: Link | None = None
    """What one processor is joined to its host's memory by: bytes a second each way."""
    host_memory: int = 0
    """Bytes of the host's memory, for each processor; 0 where it is not known."""
    capability: tuple[int, int] = HOPPER
    """CUDA's compute capability of a GPU, by which its kernels are chosen."""

    @property
    def chip(self) -> Chip:
        """What kernels run on."""
        return Chip(self.kind, self.capability)

    def flops_of(self, dtype: str) -> float:
        """Products a second in a dtype; of one that is not listed, those of float32.

        XLA computes with 8-bit floats in bfloat16 where the hardware has no products of them.
        """
        stands_in = "bfloat16" if "float8" in dtype and "bfloat16" in self.flops else "float32"
        return self.flops.get(dtype, self.flops[stands_in])

    def __str__(self) -> str:
        return f"{self.name}: {self.title}"
