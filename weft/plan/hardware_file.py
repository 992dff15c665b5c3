"""Hardware in a file of TOML: figures of one's own, in the units vendors state.

A key names its unit; `docs/planning.md` lists them. `like = "h100"` takes what the file does not say from the table.
What is written (`hardware_toml`) reads back as it was.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checks import is_real, is_whole
from ..errors import WeftError, closest
from ..small_files import Reader
from .machine import Hardware, Link

GB, MB, GIB, GBIT, TERA = 1e9, 1e6, 2**30, 1e9 / 8, 1e12
KINDS = ("gpu", "tpu", "cpu")
WIRINGS = ("switch", "torus", "direct")
_FIX = "write it as `weft hardware h100 --toml` does"

# Of each unit: how many bytes, FLOPs or seconds it is, and from where to where a figure in it is one.
_UNITS = {
    "tflops": (TERA, 1e-6, 1e6),
    "gb_s": (GB, 1e-3, 1e6),
    "gbit_s": (GBIT, 1e-3, 1e6),
    "gb": (GB, 1e-3, 1e6),
    "gib": (GIB, 1e-3, 1e6),
    "mb": (MB, 0.0, 1e6),
    "us": (1e-6, 0.0, 1e7),
}
_SHOWN = {"tflops": "TFLOP/s", "gb_s": "GB/s", "gbit_s": "Gbit/s", "gb": "GB", "gib": "GiB", "mb": "MB", "us": "us"}
# The keys of each table of the file.
_TOP = {
    "like", "name", "title", "kind", "memory_gb", "memory_gib", "bandwidth_gb_s", "vector_tflops", "cores", "cache_mb",
    "call_us", "shared", "device_kinds", "tflops", "links", "host", "sources", "measured",
}  # fmt: skip
_LINK = {
    "name",
    "gb_s",
    "gbit_s",
    "latency_us",
    "call_us",
    "reach",
    "efficiency",
    "summing",
    "wiring",
    "sides",
    "block",
}
_HOST = {"name", "gb_s", "gbit_s", "latency_us", "efficiency", "memory_gb", "memory_gib"}


def read_hardware(path: Path, listed: Mapping[str, Hardware]) -> Hardware:
    """The hardware that a file of TOML describes; `like` is one of `listed`."""
    content, _ = Reader(WeftError, _FIX).toml(path)
    return _HardwareFile(str(path), listed).hardware(content)


class _HardwareFile:
    """Reads figures of one file: what is wrong names the file and the key."""

    def __init__(self, where: str, listed: Mapping[str, Hardware]):
        self.where, self.listed = where, listed

    def hardware(self, content: dict[str, Any]) -> Hardware:
        self._check_keys(content, _TOP, "")
        like = self._like(content)
        given = lambda key: like is None or key in content  # noqa: E731
        figures: dict[str, Any] = {"name": self._text(content, "name", Path(self.where).stem)}
        figures["title"] = self._text(content, "title", like.title if like else figures["name"])
        if given("kind"):
            figures["kind"] = self._one_of(content, "kind", KINDS)
        if given("tflops"):
            figures["flops"] = self._flops(content, dict(like.flops) if like else {})
        memory = self._either(content, ("memory_gb", "memory_gib"), "", is_due=like is None)
        for key, value in {
            "memory": memory and int(memory),
            "bandwidth": self._figure(content, "bandwidth_gb_s", is_due=like is None),
            "vector": self._figure(content, "vector_tflops", is_due=like is None),
            "cores": self._whole(content, "cores", 1, None if like else 1),
            "cache": self._figure(content, "cache_mb"),
            "call": self._figure(content, "call_us"),
            "is_shared": self._flag(content, "shared"),
            "device_kinds": self._texts(content, "device_kinds"),
        }.items():
            if value is not None:
                figures[key] = value
        if given("links"):
            figures["links"] = self._links(content)
        host = self._host(content.get("host"), like)
        figures |= host
        figures["sources"] = self._sources(content, figures, like)
        return dataclasses.replace(like, **figures) if like else Hardware(**figures)

    def _like(self, content: dict[str, Any]) -> Hardware | None:
        if "like" not in content:
            return None
        name = content["like"]
        if name not in self.listed:
            raise self._wrong(
                f"`like` is {name!r}, which no hardware is called",
                state=f"hardware: {', '.join(self.listed)}",
                fix=closest(str(name), list(self.listed)),
            )
        return self.listed[name]

    def _flops(self, content: dict[str, Any], known: dict[str, float]) -> dict[str, float]:
        table = self._table(content, "tflops")
        flops = known | {dtype: self._number(table, dtype, "tflops", "tflops.") for dtype in table}
        if "float32" not in flops:
            raise self._wrong("`tflops.float32` is missing", fix="say what products of float32 reach, in TFLOP/s")
        return flops

    def _links(self, content: dict[str, Any]) -> tuple[Link, ...]:
        tables = content.get("links")
        if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
            raise self._wrong("there are no `links`", fix="write one `[[links]]` for each, the innermost first")
        links = tuple(self._link(table, f"links[{place}].") for place, table in enumerate(tables))
        for inner, outer in itertools.pairwise(links):
            if not inner.reach or (outer.reach and outer.reach < inner.reach):
                raise self._wrong(
                    f"link `{inner.name}` reaches {inner.reach or 'any number'} and `{outer.name}` after it "
                    f"{outer.reach or 'any number'}",
                    fix="list links from the innermost out, each with its `reach`; only the last may leave it out",
                )
        return links

    def _link(self, table: dict[str, Any], at: str) -> Link:
        self._check_keys(table, _LINK, at)
        bandwidth = self._either(table, ("gb_s", "gbit_s"), at, is_due=True)
        wiring = self._one_of(table, "wiring", WIRINGS, at) if "wiring" in table else "switch"
        reach = self._whole(table, "reach", 0, 0, at)
        if wiring == "direct" and not (reach and reach > 1):
            raise self._wrong(f"`{at}wiring` is direct, and `reach` is missing", fix="say how many are joined: `reach`")
        optional = {
            "efficiency": self._share(table, at),
            "summing": self._share(table, at, "summing"),
            "call": self._figure(table, "call_us", at=at),
            "sides": self._whole(table, "sides", 1, None, at),
            "block": self._whole(table, "block", 1, None, at),
        }
        return Link(
            self._text(table, "name", None, at),
            (bandwidth or 0.0) * (2 if wiring == "torus" else 1),
            latency=self._figure(table, "latency_us", at=at, is_due=True) or 0.0,
            reach=reach or 0,
            is_torus=wiring == "torus",
            is_direct=wiring == "direct",
            **{key: value for key, value in optional.items() if value is not None},  # type: ignore[arg-type]
        )

    def _host(self, table: Any, like: Hardware | None) -> dict[str, Any]:
        if table is None:
            return {}
        if not isinstance(table, dict):
            raise self._wrong(f"`host` is {table!r:.40}", fix="write it as a table, `[host]`")
        self._check_keys(table, _HOST, "host.")
        found: dict[str, Any] = {}
        memory = self._either(table, ("memory_gb", "memory_gib"), "host.")
        if memory is not None:
            found["host_memory"] = int(memory)
        before = like.host_link if like else None
        bandwidth = self._either(table, ("gb_s", "gbit_s"), "host.", is_due=before is None)
        efficiency = self._share(table, "host.")
        latency = self._figure(table, "latency_us", at="host.")
        found["host_link"] = Link(
            self._text(table, "name", before.name if before else "host", "host."),
            bandwidth if bandwidth is not None else before.bandwidth if before else 0.0,
            latency=latency if latency is not None else before.latency if before else 0.0,
            reach=1,
            efficiency=efficiency if efficiency is not None else before.efficiency if before else 0.8,
        )
        return found

    def _sources(self, content: dict[str, Any], figures: dict[str, Any], like: Hardware | None) -> dict[str, str]:
        """Where each figure is from: what the file says, the file, or the table."""
        said = self._table(content, "sources") if "sources" in content else {}
        for key in said:
            self._text(said, key, None, "sources.")
        from_file: dict[str, str] = {
            key: self.where for key in ("vector", "memory", "bandwidth", "cores", "cache") if key in figures
        }
        from_file |= dict.fromkeys(content.get("tflops", {}), self.where)
        from_file |= {link.name: self.where for link in figures.get("links", ())}
        if "host_link" in figures:
            from_file |= {figures["host_link"].name: self.where, "host_memory": self.where}
        return (like.sources if like else {}) | from_file | said

    # ---- one figure

    def _figure(self, table: dict[str, Any], key: str, *, at: str = "", is_due: bool = False) -> float | None:
        """What a key says, in bytes, FLOPs and seconds; its unit is its ending."""
        if key not in table:
            if is_due:
                raise self._wrong(f"`{at}{key}` is missing", fix=f"say it in {_SHOWN[_unit_of(key)]}")
            return None
        return self._number(table, key, _unit_of(key), at)

    def _number(self, table: dict[str, Any], key: str, unit: str, at: str) -> float:
        value, (factor, least, most) = table[key], _UNITS[unit]
        if isinstance(value, bool) or not is_real(value) or not math.isfinite(value) or value < 0:
            raise self._wrong(
                f"`{at}{key}` is {value!r:.40}", fix=f"give a number of {_SHOWN[unit]} that is not below zero"
            )
        if not least <= value <= most:
            raise self._wrong(
                f"`{at}{key}` is {value:g} {_SHOWN[unit]}, which no machine has", fix=f"give it in {_SHOWN[unit]}"
            )
        return float(value) * factor

    def _either(self, table: dict[str, Any], keys: Sequence[str], at: str, *, is_due: bool = False) -> float | None:
        """The one figure that is given in one of several units."""
        there = [key for key in keys if key in table]
        if len(there) > 1:
            raise self._wrong(f"`{at}{there[0]}` and `{at}{there[1]}` say the same figure", fix="leave one out")
        if there:
            return self._figure(table, there[0], at=at)
        if is_due:
            raise self._wrong(f"`{at}{keys[0]}` is missing", fix=f"say it, or `{keys[1]}`")
        return None

    def _whole(self, table: dict[str, Any], key: str, least: int, default: int | None, at: str = "") -> int | None:
        value = table.get(key, default)
        if value is not None and not is_whole(value, least):
            raise self._wrong(f"`{at}{key}` is {value!r:.40}", fix=f"give a whole number of at least {least}")
        return value

    def _share(self, table: dict[str, Any], at: str, key: str = "efficiency") -> float | None:
        value = table.get(key)
        if value is not None and not (is_real(value) and 0 < value <= 1):
            raise self._wrong(f"`{at}{key}` is {value!r:.40}", fix="give the share that is reached: 0.8, say")
        return value

    def _flag(self, table: dict[str, Any], key: str) -> bool | None:
        value = table.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(f"`{key}` is {value!r:.40}", fix="say true or false")
        return value

    def _text(self, table: dict[str, Any], key: str, default: str | None, at: str = "") -> str:
        value = table.get(key, default)
        if value is None:
            raise self._wrong(f"`{at}{key}` is missing", fix=f'say it: `{key} = "..."`')
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(f"`{at}{key}` is {value!r:.40}", fix=f'give a text: `{key} = "..."`')
        return value

    def _texts(self, table: dict[str, Any], key: str) -> tuple[str, ...] | None:
        value = table.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise self._wrong(f"`{key}` is {value!r:.40}", fix=f'give a list of texts: `{key} = ["..."]`')
        return None if value is None else tuple(value)

    def _one_of(self, table: dict[str, Any], key: str, known: Sequence[str], at: str = "") -> str:
        value = table.get(key)
        if value not in known:
            held = "missing" if value is None else f"{value!r:.40}"
            raise self._wrong(f"`{at}{key}` is {held}", fix=f"say one of {', '.join(known)}")
        return str(value)

    def _table(self, content: dict[str, Any], key: str) -> dict[str, Any]:
        table = content.get(key)
        if not isinstance(table, dict):
            held = "missing" if table is None else f"{table!r:.40}"
            raise self._wrong(f"`{key}` is {held}", fix=f"write it as a table, `[{key}]`")
        return table

    def _check_keys(self, table: dict[str, Any], known: Iterable[str], at: str) -> None:
        if unknown := next((key for key in table if key not in known), None):
            keys = sorted(known)
            raise self._wrong(
                f"there is no figure `{at}{unknown}`", state=f"keys: {', '.join(keys)}", fix=closest(unknown, keys)
            )

    def _wrong(self, fact: str, *, fix: str, state: str = "") -> WeftError:
        return WeftError(f"{self.where}: {fact}", state=state, fix=fix, at=self.where)


def _unit_of(key: str) -> str:
    """The unit a key ends on: `gb_s` of `bandwidth_gb_s`."""
    return max((unit for unit in _UNITS if key.endswith(unit)), key=len)


def hardware_toml(hardware: Hardware, measured: Sequence[Mapping[str, Any]] = ()) -> str:
    """Hardware as the text of a file; `measured` are rows of what was measured."""
    lines = [
        _line("name", hardware.name),
        _line("title", hardware.title),
        _line("kind", hardware.kind),
        _line("memory_gb", hardware.memory / GB),
        _line("bandwidth_gb_s", hardware.bandwidth / GB),
        _line("vector_tflops", hardware.vector / TERA),
        _line("cores", hardware.cores),
        *([_line("cache_mb", hardware.cache / MB)] if hardware.cache else []),
        _line("call_us", hardware.call / 1e-6),
        *([_line("shared", True)] if hardware.is_shared else []),
        *([_line("device_kinds", list(hardware.device_kinds))] if hardware.device_kinds else []),
        "\n[tflops]  # dense products",
        *(_line(dtype, flops / TERA) for dtype, flops in hardware.flops.items()),
    ]
    for link in hardware.links:
        wiring = "torus" if link.is_torus else "direct" if link.is_direct else "switch"
        lines += [
            "\n[[links]]  # one way, of one processor; the innermost first",
            _line("name", link.name),
            _line("gb_s", link.bandwidth / GB / (2 if link.is_torus else 1)),
            _line("latency_us", link.latency / 1e-6),
            _line("call_us", link.call / 1e-6),
            _line("reach", link.reach),
            _line("efficiency", link.efficiency),
            *([_line("summing", link.summing)] if link.summing else []),
            _line("wiring", wiring),
            *([_line("sides", link.sides), _line("block", link.block)] if link.is_torus else []),
        ]
    if (host := hardware.host_link) is not None:
        lines += ["\n[host]  # one way, of one processor", _line("name", host.name), _line("gb_s", host.bandwidth / GB)]
        lines += [_line("latency_us", host.latency / 1e-6), _line("efficiency", host.efficiency)]
        lines += [_line("memory_gb", hardware.host_memory / GB)] if hardware.host_memory else []
    lines += ["\n[sources]", *(_line(key, source) for key, source in hardware.sources.items())]
    for row in measured:
        lines += ["\n[[measured]]", *(_line(key, value) for key, value in row.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    written = f"{value:.12g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return f"{key if bare else json.dumps(key)} = {written}"
