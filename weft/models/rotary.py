"""The fields of a configuration that say how RoPE turns queries and keys.

Imports the layers' scaling of RoPE and how fields are checked.
"""

import dataclasses
import math

from ..errors import DimError
from ..fields import one_of
from ..nn.position import ROPE_SCALINGS, RopeScaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryFields:
    """RoPE, where `positions` are `rotary`: its base, its scaling, what it turns."""

    rotary_base: float = 10_000.0
    """The base of RoPE's wavelengths (`rope_theta`)."""
    local_base: float | None = None
    """The base in `local` layers, which are then not stretched (Gemma 3); `rotary_base` if not said."""
    rotary_share: float = 1.0
    """Of how many channels of a head RoPE turns, the first ones: partial rotary."""
    rotary_scaling: str = one_of(*ROPE_SCALINGS)
    """RoPE scaling, for sequences longer than `rotary_length`: of long waves (`llama3`, `yarn`), of all (`linear`), by
    how long a sequence is (`dynamic`), or of each wave by a number of its own (`longrope`)."""
    rotary_stretch: float = 1.0
    """By how much the slowest rotations are slowed down; 1 for no scaling."""
    rotary_low: float = 1.0
    """Rotations that turn fewer times than this within `rotary_length` are stretched fully."""
    rotary_high: float = 4.0
    """Rotations that turn more often than this within `rotary_length` are not stretched."""
    rotary_length: int = 8192
    """How long the sequences were before rotations were stretched."""
    rotary_amplitude: float = 1.0
    """By how much stretched queries and keys are made larger (YaRN's attention factor)."""
    rotary_truncated: bool = True
    """Whether YaRN's ramp begins and ends at whole channels."""
    rotary_short: str = ""
    """By how much LongRoPE slows down each wave, the fastest first, up to `rotary_length`: `"1.0 1.25 2.5"`."""
    rotary_long: str = ""
    """The same for sequences longer than that."""

    @property
    def stretch(self) -> RopeScaling | None:
        """How rotations are stretched, where they are."""
        is_by_wave = self.rotary_scaling == "longrope"
        if self.rotary_stretch == 1 and self.rotary_amplitude == 1 and not is_by_wave:
            return None
        return RopeScaling(
            self.rotary_stretch,
            self.rotary_low,
            self.rotary_high,
            self.rotary_length,
            self.rotary_scaling,
            self.rotary_amplitude,
            self.rotary_truncated,
            *(_numbers(text, key) if is_by_wave else () for key, text in self._by_wave.items()),
        )

    @property
    def _by_wave(self) -> dict[str, str]:
        return {"rotary_short": self.rotary_short, "rotary_long": self.rotary_long}

    def check_rotary(self, d_kv: int) -> None:
        """Raises where heads of so many channels cannot be turned so."""
        if self.rotary_share > 1:
            raise DimError(
                f"`rotary_share` is {self.rotary_share}, more than all channels", fix="give 1 for all, or a part of it"
            )
        count = int(d_kv * self.rotary_share)
        if count % 2 or not count:
            part = "" if self.rotary_share == 1 else f" (`rotary_share`: {count} of them)"
            raise DimError(f"`d_kv` is {d_kv}{part}, and rotary positions turn pairs of it", fix="give an even one")
        for key, text in self._by_wave.items() if self.rotary_scaling == "longrope" else ():
            if (given := len(_numbers(text, key))) != count // 2:
                raise DimError(
                    f"`{key}` has {given} numbers, and a head of {count} channels that turn has {count // 2} waves",
                    fix="give one for each wave, the fastest first",
                )


def _numbers(text: str, key: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, text.split()))
    except ValueError:
        numbers = (math.nan,)
    if not all(0 < number < math.inf for number in numbers):
        raise DimError(f"`{key}` is {text!r:.60}", fix='give numbers above 0, e.g. "1.0 1.25 2.5"')
    return numbers
