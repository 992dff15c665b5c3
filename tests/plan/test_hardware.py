"""The table of hardware: every figure has a source, names are found, devices are known."""

import time
from types import SimpleNamespace

import pytest

from weft import WeftError
from weft.plan import HARDWARE, Hardware, hardware, this_machine
from weft.plan.hardware import hardware_of, measured_hardware
from weft.train.speed import peak_flops

MEASURED = {
    "cpu": "a CPU", "jax": "0", "cores": 2, "memory": 8 * 10**9, "bandwidth": 1e10, "float32": 1e11, "bfloat16": 5e10,
    "elementwise_per_s": 1e10, "call_s": 1e-6, "sending_s": 1e-4, "sending_s_a_processor": 0.0, "sent_per_s": 2e9,
}  # fmt: skip


@pytest.mark.parametrize("found", [*HARDWARE.values(), measured_hardware(MEASURED)], ids=lambda found: found.name)
def test_every_figure_has_a_source(found):
    figures = {*found.flops, "vector", "memory", "bandwidth"}
    if found.kind == "gpu":
        figures |= {"cores", "cache"}
    if not found.is_shared:
        figures |= {link.name for link in found.links} | {found.host_link.name, "host_memory"}
    assert figures <= set(found.sources)
    assert all(found.sources.values())


@pytest.mark.parametrize("found", HARDWARE.values(), ids=lambda found: found.name)
def test_figures_are_in_flops_bytes_and_seconds(found):
    assert 1e14 < found.flops["bfloat16"] < 1e16
    assert found.flops["float32"] <= found.flops["bfloat16"]
    assert found.vector < found.flops["bfloat16"] / 7
    assert 10e9 < found.memory < 1e12
    assert 0.5e12 < found.bandwidth < 20e12
    inner, outer = found.links
    assert inner.bandwidth > outer.bandwidth > 1e9
    assert 0 < inner.latency <= outer.latency < 1e-3
    assert outer.reach == 0
    assert 10e9 < found.host_link.bandwidth < inner.bandwidth
    assert found.host_memory == 0 or found.memory / 2 < found.host_memory < 1e12
    assert all(found.flops[dtype] >= found.flops["bfloat16"] for dtype in found.flops if "float8" in dtype)


@pytest.mark.parametrize("name", ["h200", "H200", "v5p", "TPU v5p", "tpu-v5p"])
def test_a_name_is_found_as_it_is_written(name):
    assert hardware(name).name in ("h200", "v5p")


def test_hardware_of_ones_own_is_taken_as_it_is():
    mine = measured_hardware(MEASURED)
    assert hardware(mine) is mine


def test_an_unknown_name_is_told_the_closest():
    with pytest.raises(WeftError) as told:
        hardware("h20")
    assert told.value.fact == "there is no hardware `h20`"
    assert "did you mean `h200`?" in told.value.fix and "--hardware mine.toml" in told.value.fix
    with pytest.raises(WeftError, match="there is no hardware `None`"):
        hardware(None)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU v4", "v4"),
    ],
)
def test_a_device_is_known_by_its_kind(kind, name):
    device = SimpleNamespace(device_kind=kind)
    assert hardware_of(device) is HARDWARE[name]
    assert peak_flops(device) == HARDWARE[name].flops["bfloat16"]


def test_of_a_device_that_is_not_in_the_table_nothing_is_said():
    device = SimpleNamespace(device_kind="cpu")
    assert hardware_of(device) is None
    assert peak_flops(device) is None


def test_products_of_8_bit_floats_where_there_are_none_are_those_of_bfloat16():
    assert HARDWARE["h100"].flops_of("float8_e4m3fn") == 1979e12
    assert HARDWARE["a100"].flops_of("float8_e4m3fn") == HARDWARE["a100"].flops["bfloat16"]


def test_products_in_a_dtype_that_is_not_listed_are_those_of_float32():
    assert HARDWARE["h100"].flops_of("float64") == HARDWARE["h100"].flops["float32"]


def test_what_is_measured_becomes_hardware_that_processors_share():
    found = measured_hardware(MEASURED)
    assert isinstance(found, Hardware)
    assert (found.kind, found.is_shared, found.flops["bfloat16"], found.memory) == ("cpu", True, 5e10, 8 * 10**9)
    assert found.links[0].bandwidth == 2e9


def test_a_call_that_waits_is_timed_by_the_clock_and_work_by_the_time_of_the_cores(monkeypatch):
    monkeypatch.setattr(this_machine, "cores", lambda: 2)
    assert this_machine._least_seconds(lambda: time.sleep(0.02), 0, by_clock=True) >= 0.02
    assert this_machine._least_seconds(lambda: time.sleep(0.02), 0) < 0.01


def test_with_more_cores_than_processors_the_clock_says(monkeypatch):
    monkeypatch.setattr(this_machine, "cores", lambda: this_machine.PROCESSORS + 1)
    assert this_machine._least_seconds(lambda: time.sleep(0.02), 0) >= 0.02
