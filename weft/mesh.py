"""The mesh: named axes of processors, and how they become JAX devices.

Imports what stands below it. Making a mesh never starts JAX; only `jax_mesh` and `describe` look for devices.
"""

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from .cells import mesh_cell
from .checks import is_whole
from .devices import arrange, describe, in_given_order, take
from .dims import NAME
from .errors import MeshError, fold_frames, public
from .kernels.choice import Chip, read_chip

MOST_VIRTUAL = 512
LONGEST_TEXT = 4096  # letters of a mesh, or of a layout


@public(form="wf.Mesh('rows=4, cols=2')")
class Mesh:
    """A mesh of processors with named axes.

    Axes before a bar go over slower links, from host to host; more bars are more levels, the slowest first.

    >>> Mesh("rows=4, cols=2")
    Mesh('rows=4,cols=2')
    >>> Mesh("pods=2 | hosts=4 | cols=8").levels
    (('pods',), ('hosts',), ('cols',))
    >>> Mesh("pods=2 | hosts=4 | cols=8").slow
    ('pods', 'hosts')
    """

    axes: dict[str, int]
    """How many processors each axis has, by name."""
    levels: tuple[tuple[str, ...], ...]
    """The axes between bars, the slowest first."""

    def __init__(
        self,
        axes: "str | Mapping[str, int] | None" = None,
        /,
        *,
        devices: "str | Sequence[Any] | None" = None,
        **sizes: int,
    ):
        parsed, outer = _parse(axes)
        if twice := next((name for name in sizes if name in parsed), None):
            raise MeshError(f"axis `{twice}` is given twice", fix=f"give it once, e.g. `Mesh({twice}={sizes[twice]})`")
        self.axes = _check_axes({**parsed, **sizes})
        self.levels = (*outer, tuple(self.axes)[sum(map(len, outer)) :])
        self.devices = devices if devices is None or isinstance(devices, str) else _check_devices(devices)
        self._jax_mesh: jax.sharding.Mesh | None = None
        if devices is None or devices == "cpu":
            _ask_for_virtual_processors(self.size)

    @property
    def size(self) -> int:
        """How many processors there are."""
        return math.prod(self.axes.values())

    @property
    def slow(self) -> tuple[str, ...]:
        """The axes before the last bar, which go from host to host."""
        return tuple(axis for level in self.levels[:-1] for axis in level)

    def abstract(self, kind: AxisType = AxisType.Auto) -> AbstractMesh:
        """This mesh without devices; with Explicit axes JAX types values with shardings."""
        kinds = (kind,) * len(self.axes)
        return AbstractMesh(tuple(self.axes.values()), tuple(self.axes), axis_types=kinds)

    @fold_frames
    def jax_mesh(self) -> jax.sharding.Mesh:
        """This mesh on real devices; raises when there are too few."""
        if self._jax_mesh is None:
            devices = take(self._find_devices(), self.size)
            if isinstance(self.devices, tuple):
                grid = in_given_order(devices, tuple(self.axes.values()))
            else:
                grid = arrange(devices, self.axes, self.slow, str(self))
            kinds = (AxisType.Auto,) * len(self.axes)
            self._jax_mesh = jax.sharding.Mesh(grid, tuple(self.axes), axis_types=kinds)
        return self._jax_mesh

    @property
    def platform(self) -> str:
        """The kind of devices of this mesh, `"gpu"`, say; empty where it has none yet."""
        return "" if self._jax_mesh is None else self._jax_mesh.devices.reshape(-1)[0].platform

    @property
    def chip(self) -> Chip:
        """What kernels would run on; of no kind where it has no devices yet."""
        return Chip("") if self._jax_mesh is None else read_chip(self._jax_mesh.devices.flat[0])

    def describe(self) -> str:
        """The axes, the links they go over, and which device stands where, as a text."""
        return describe(self.axes, self.levels, str(self), self._devices_or_none())

    def _devices_or_none(self) -> np.ndarray | None:
        try:
            return self.jax_mesh().devices
        except MeshError:
            return None

    def _find_devices(self) -> Sequence[Any]:
        if isinstance(self.devices, tuple):
            devices: Sequence[Any] = self.devices
        else:
            try:
                devices = jax.devices(self.devices)
            except RuntimeError as error:
                raise MeshError(
                    f"there is no `{self.devices}` here: {error}".splitlines()[0],
                    fix="leave `devices` out, or say `devices='cpu'`",
                ) from None
        if len(devices) >= self.size:
            return devices
        kind = devices[0].platform if devices else "no"
        fact = f"mesh {self} wants {self.size} processors, and JAX has {len(devices)} ({kind})"
        if isinstance(self.devices, tuple):
            raise MeshError(fact, fix=f"give {self.size} devices, or make the mesh smaller")
        if kind != "cpu":
            raise MeshError(
                fact, fix=f"make the mesh smaller, or use virtual ones: `Mesh({str(self)!r}, devices='cpu')`"
            )
        if self.size > MOST_VIRTUAL:
            raise MeshError(
                f"{fact}; at most {MOST_VIRTUAL} virtual ones are made unasked",
                fix=f"read the program without devices (`wf.trace`), or set JAX_NUM_CPU_DEVICES={self.size}",
            )
        raise MeshError(
            f"{fact}; it had started before this mesh was made",
            fix=f"write `wf.Mesh({str(self)!r})` above the first line that computes (in a notebook, restart its "
            f"kernel), or set JAX_NUM_CPU_DEVICES={self.size} before Python starts",
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Mesh)
            and list(self.axes.items()) == list(other.axes.items())
            and self.levels == other.levels
            and self.devices == other.devices
        )

    def __hash__(self) -> int:
        return hash((tuple(self.axes.items()), self.levels, self.devices))

    def __str__(self) -> str:
        return "|".join(",".join(f"{name}={self.axes[name]}" for name in level) for level in self.levels)

    def __repr__(self) -> str:
        return f"Mesh({str(self)!r})"

    def _repr_html_(self) -> str:
        return mesh_cell(self.axes, self.levels)


MeshLike = Mesh | str | Mapping[str, int]
"""A mesh as callers write it."""


def as_mesh(mesh: MeshLike | None) -> Mesh:
    """A mesh out of whatever way a caller may write one."""
    if mesh is None:
        raise MeshError("no mesh was given", fix="give one: `mesh='rows=4,cols=2'`")
    return mesh if isinstance(mesh, Mesh) else Mesh(mesh)


def _parse(axes: Any) -> tuple[dict[str, Any], tuple[tuple[str, ...], ...]]:
    """The axes, and the names of those before each bar."""
    if axes is None:
        return {}, ()
    if isinstance(axes, Mapping):
        return dict(axes), ()
    if not isinstance(axes, str):
        raise MeshError(
            f"a mesh cannot be made of {axes!r}", fix="write it like `Mesh('rows=4,cols=2')` or `Mesh(rows=4, cols=2)`"
        )
    if len(axes) > LONGEST_TEXT:
        raise MeshError(f"a mesh of {len(axes):,} letters: {axes[:40]!r}...", fix="write it like `rows=4,cols=2`")
    sizes: dict[str, Any] = {}
    levels = []
    for part in axes.split("|"):
        found = _parse_level(part, axes)
        if "|" in axes and not found:
            raise MeshError(
                f"mesh {axes!r} has a bar that does not stand between axes",
                fix="put bars after the axes that go from host to host: `hosts=4 | cols=8`, `pods=2 | hosts=4 | x=8`",
            )
        if twice := next((name for name in found if name in sizes), None):
            raise _twice_error(twice, axes)
        sizes |= found
        levels.append(tuple(found))
    return sizes, tuple(levels[:-1])


def _parse_level(level: str, axes: str) -> dict[str, Any]:
    """The axes between two bars."""
    sizes: dict[str, Any] = {}
    for part in re.split(r"[,;\s]+", re.sub(r"\s*([=:])\s*", r"\1", level.strip())):
        name, sign, size = re.match(r"([^=:]*)([=:]?)(.*)", part).groups()  # type: ignore[union-attr]
        if not part:
            continue
        if not (name and sign and re.match(r"\d+\Z", size)):
            raise MeshError(
                f"`{part}` in mesh {axes!r} is not `axis=size`", fix="write it like `rows=4,cols=2` or `rows:4;cols:2`"
            )
        if name in sizes:
            raise _twice_error(name, axes)
        sizes[name] = int(size)
    return sizes


def _twice_error(name: str, axes: str) -> MeshError:
    return MeshError(f"mesh {axes!r} names axis `{name}` twice", fix=f"name each axis once, e.g. `{name}_2`")


def _check_axes(axes: dict[str, Any]) -> dict[str, int]:
    if not axes:
        raise MeshError("a mesh with no axes has no processors", fix="name at least one axis, e.g. `Mesh('all=1')`")
    for name, size in axes.items():
        if not isinstance(name, str) or not NAME.match(name):
            raise MeshError(f"an axis cannot be named {name!r}", fix="use letters, digits and `_`, e.g. `rows`")
        if name == "host":
            raise MeshError(
                "an axis is named `host`, which is the memory of the host in a layout (`params.*:host`)",
                state=f"mesh: {','.join(f'{name}={size}' for name, size in axes.items())}",
                fix=f"name it otherwise: `hosts={axes[name]}`",
            )
        if not is_whole(size, 1):
            raise MeshError(
                f"axis `{name}` has size {size!r}", fix=f"give it a whole number of at least 1, e.g. `{name}=4`"
            )
    return {name: int(size) for name, size in axes.items()}


def _check_devices(devices: Any) -> tuple[Any, ...]:
    several = tuple(devices) if isinstance(devices, Sequence | np.ndarray) else ()
    if not several or not all(isinstance(device, jax.Device) for device in several):
        raise MeshError(
            f"`devices` is {devices!r:.80}", fix="give JAX devices (`jax.devices()`), or a kind: `devices='cpu'`"
        )
    if len(set(several)) < len(several):
        raise MeshError("`devices` names a device twice", fix="give each device once")
    return several


def _ask_for_virtual_processors(count: int) -> None:
    """Asks JAX for `count` CPU devices; where it has started, does nothing."""
    if jax.distributed.is_initialized():
        return  # each of many processes has its own share, which whoever started them has set
    if count > MOST_VIRTUAL or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    # A fresh JAX reads -1 (unset); a larger mesh made earlier, or the environment, may have asked for more.
    if jax.config.jax_num_cpu_devices < count:  # type: ignore[attr-defined]
        # If JAX has started it refuses; `jax_mesh` says so when devices are needed and missing.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
