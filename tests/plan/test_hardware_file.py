"""Hardware in a file: what is written reads back, units are those of vendors, and what is wrong is said by its key."""

import dataclasses
import functools
import time

import jax
import pytest

import weft as wf
from weft import WeftError
from weft.plan import HARDWARE, hardware, links, roofline, this_machine
from weft.plan.hardware import measured_hardware
from weft.plan.hardware_file import hardware_toml
from weft.plan.kernel import Kernel
from weft.plan.measured import fitted_link, hardware_from, measure_devices
from weft.program.ledger import Row

from .test_hardware import MEASURED

MINE = """
name = "mine"
kind = "gpu"
memory_gib = 40
bandwidth_gb_s = 1500
vector_tflops = 19.5
cores = 108

[tflops]
bfloat16 = 312
float32 = 156

[[links]]
name = "bridge"
gb_s = 100
latency_us = 2
reach = 4

[[links]]
name = "Ethernet"
gbit_s = 100
latency_us = 10
call_us = 30
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize("found", [*HARDWARE.values(), measured_hardware(MEASURED)], ids=lambda found: found.name)
def test_what_is_written_reads_back_as_it_was(found, written):
    read = hardware(written(hardware_toml(found, [{"collective": "all_reduce", "bytes": 4, "us": 1.5}])))
    assert read.links == tuple(
        dataclasses.replace(now, bandwidth=pytest.approx(now.bandwidth), latency=pytest.approx(now.latency),
                            call=pytest.approx(now.call), efficiency=pytest.approx(now.efficiency),
                            summing=pytest.approx(now.summing)) for now in found.links
    )  # fmt: skip
    for field in ("name", "title", "kind", "cores", "sources", "device_kinds", "is_shared"):
        assert getattr(read, field) == getattr(found, field)
    for field in ("flops", "vector", "memory", "bandwidth", "call", "cache", "host_memory"):
        assert getattr(read, field) == pytest.approx(getattr(found, field))
    assert read.host_link is None or read.host_link.rate == pytest.approx(found.host_link.rate)


def test_units_are_those_of_vendors(written):
    mine = hardware(str(written(MINE)))
    assert (mine.memory, mine.bandwidth, mine.vector) == (40 * 2**30, 1.5e12, 19.5e12)
    assert mine.flops == {"bfloat16": 312e12, "float32": 156e12}
    bridge, ethernet = mine.links
    assert (bridge.bandwidth, bridge.latency, bridge.reach) == (100e9, pytest.approx(2e-6), 4)
    assert (ethernet.bandwidth, ethernet.reach, ethernet.call) == (12.5e9, 0, pytest.approx(30e-6))
    assert mine.sources["bridge"].endswith("mine.toml") and mine.host_link is None
    torus = MINE.replace('name = "bridge"', 'name = "bridge"\nwiring = "torus"\nsides = 3\nblock = 4')
    assert hardware(written(torus)).links[0].bandwidth == 200e9  # both directions of a side


def test_a_file_may_be_like_one_of_the_table(written):
    text = 'like = "h100"\nmemory_gb = 64\n[tflops]\nbfloat16 = 800\n[host]\ngb_s = 25\n[sources]\nmemory = "mine"\n'
    mine = hardware(written(text))
    h100 = HARDWARE["h100"]
    assert (mine.name, mine.title, mine.memory) == ("mine", h100.title, 64 * 10**9)
    assert mine.flops == h100.flops | {"bfloat16": 800e12} and mine.links == h100.links
    assert mine.host_link == dataclasses.replace(h100.host_link, bandwidth=25e9)
    assert mine.sources["memory"] == "mine" and mine.sources["bandwidth"] == h100.sources["bandwidth"]


def test_a_plan_is_made_for_a_file(written):
    x = wf.tensor(jax.ShapeDtypeStruct((64, 32), "float32"), "m k")
    program = wf.trace(lambda x: wf.sum(x, over="k"), x, mesh="r=2", layout="k:r")
    assert wf.Plan(program, written(MINE)).hardware.name == "mine"
    assert wf.Plan(program, str(written(MINE))).seconds == wf.Plan(program, hardware(written(MINE))).seconds


@pytest.mark.parametrize(
    ("old", "new", "fact", "fix"),
    [
        ("memory_gib = 40", "memry_gib = 40", "there is no figure `memry_gib`", "did you mean `memory_gib`?"),
        ("memory_gib = 40", "", "`memory_gb` is missing", "say it, or `memory_gib`"),
        ("memory_gib = 40", "memory_gib = 40\nmemory_gb = 43", "say the same figure", "leave one out"),
        ("memory_gib = 40", "memory_gib = 42949672960", "`memory_gib` is 4.29497e+10 GiB, which no machine has", "GiB"),
        ("bfloat16 = 312", "bfloat16 = 312e12", "`tflops.bfloat16` is 3.12e+14 TFLOP/s", "give it in TFLOP/s"),
        ("bandwidth_gb_s = 1500", "bandwidth_gb_s = -1", "`bandwidth_gb_s` is -1", "not below zero"),
        ("bandwidth_gb_s = 1500", 'bandwidth_gb_s = "fast"', "`bandwidth_gb_s` is 'fast'", "a number of GB/s"),
        ('kind = "gpu"', 'kind = "npu"', "`kind` is 'npu'", "say one of gpu, tpu, cpu"),
        ("float32 = 156", "", "`tflops.float32` is missing", "in TFLOP/s"),
        ("cores = 108", "cores = 1.5", "`cores` is 1.5", "a whole number of at least 1"),
        ("reach = 4", "", "link `bridge` reaches any number and `Ethernet` after it any number", "innermost out"),
        ("gbit_s = 100", "mbit_s = 100", "there is no figure `links[1].mbit_s`", "did you mean `gbit_s`?"),
        ("gbit_s = 100", "", "`links[1].gb_s` is missing", "say it, or `gbit_s`"),
        ("latency_us = 2", "latency_us = 2\nefficiency = 80", "`links[0].efficiency` is 80", "0.8, say"),
        ("latency_us = 2", 'latency_us = 2\nwiring = "mesh"', "`links[0].wiring` is 'mesh'", "switch, torus, direct"),
        ("cores = 108", 'cores = 108\nlike = "h10"', "`like` is 'h10', which no hardware is called", "did you mean"),
        ("cores = 108", "cores = ", "is not TOML", "--toml"),
        ("cores = 108", "cores = 108\nshared = 1", "`shared` is 1", "say true or false"),
        ("cores = 108", "cores = 108\ndevice_kinds = 3", "`device_kinds` is 3", "a list of texts"),
        ("cores = 108", "cores = 108\nhost = 3", "`host` is 3", "[host]"),
        ('name = "bridge"', "", "`links[0].name` is missing", "say it"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said_by_its_key(written, old, new, fact, fix):
    file = written(MINE.replace(old, new))
    with pytest.raises(WeftError) as told:
        hardware(file)
    assert fact in told.value.fact and fix in told.value.fix and str(file) in str(told.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(WeftError, match=r"there is no .*none\.toml"):
        hardware(tmp_path / "none.toml")


# ---- measured


def test_the_plan_of_what_was_measured_takes_what_it_took():
    product, stream = {"n": 8192, "s": 1.6e-3}, {"bytes": 2**31, "s": 0.6e-3}
    figures = {
        "platform": "gpu", "device_kind": "NVIDIA H200", "processors": 1, "jax": "0", "cores": 132, "memory": 10**11,
        "products": {"bfloat16": product}, "stream": stream, "host": {"bytes": 10**9, "to_s": 0.02, "from_s": 0.025},
        "collectives": [],
    }  # fmt: skip
    found = hardware_from(figures)
    kernel = Kernel("product", None, "forward", flops=2.0 * 8192**3, dtype="bfloat16", shape=(1, 8192, 8192, 8192))
    assert roofline.seconds(kernel, found, 1)[0] == pytest.approx(1.6e-3, rel=1e-2)
    kernel = Kernel("elementwise", None, "forward", bytes=2**31)
    assert roofline.seconds(kernel, found, 1)[0] == pytest.approx(0.6e-3, rel=1e-2)
    assert found.host_link.rate == pytest.approx(40e9) and found.links == HARDWARE["h200"].links
    assert found.sources["bfloat16"].startswith("measured on 1 of NVIDIA H200")
    assert found.sources["InfiniBand NDR"] == HARDWARE["h200"].sources["InfiniBand NDR"]
    unknown = hardware_from(figures | {"device_kind": "a card", "products": {"bfloat16": product, "float32": product}})
    assert set(unknown.flops) == {"float32", "bfloat16"} and unknown.memory == 10**11 and len(unknown.links) == 1


def test_collectives_by_size_make_a_link_that_takes_what_they_took():
    rows = [
        {"collective": kind, "processors": 8, "bytes": size, "us": us}
        for kind, took in {"all_reduce": (30.0, 5030.0), "permute": (12.0, 900.0)}.items()
        for size, us in zip((4096, 2**30), took, strict=True)
    ]
    link = fitted_link(rows, 8, "NVLink", 8)
    mine = dataclasses.replace(HARDWARE["a100"], links=(link, HARDWARE["a100"].links[1]))
    row = Row("all_reduce", ("x",), (), "float32", 2**30, 1, "", "", "", "", exact=True, ways=8)
    assert links.seconds(row, wf.Mesh("x=8"), mine) == pytest.approx(5.03e-3, rel=0.01)
    assert links.seconds(dataclasses.replace(row, bytes=4096), wf.Mesh("x=8"), mine) == pytest.approx(30e-6, rel=0.01)


def test_the_devices_of_this_machine_are_measured(monkeypatch):
    told, quick = [], lambda call, seconds=0.5, *, by_clock=False: _seconds(call)
    monkeypatch.setattr(this_machine, "_least_seconds", quick)
    monkeypatch.setattr(this_machine, "measure", lambda: MEASURED)
    monkeypatch.setattr(this_machine, "_SIZES", {"cpu": (1 << 12,)})
    figures = this_machine.measure_devices(lambda *at: told.append(at))
    assert figures["machine"] == MEASURED and figures["processors"] == 8
    assert [(row["collective"], row["bytes"]) for row in figures["collectives"]] == [
        ("all_reduce", 4096), ("all_gather", 4096), ("all_to_all", 4096), ("permute", 4096)
    ]  # fmt: skip
    assert told[0] == ("products, memory and sums", 0, 5) and told[-1] == ("done", 5, 5)


def test_devices_of_another_kind_are_measured_into_a_file(monkeypatch, written):
    sizes = {
        "_product_seconds": {"n": 8},
        "_stream_seconds": {"count": 16},
        "_vector_seconds": {"count": 16, "turns": 2},
    }
    for name, small in (sizes | {"_host_seconds": {"count": 16}}).items():
        monkeypatch.setattr(this_machine, name, functools.partial(getattr(this_machine, name), **small))
    monkeypatch.setattr(this_machine, "_least_seconds", lambda call, seconds=0.5, *, by_clock=False: (call(), 1e-9)[1])
    monkeypatch.setattr(this_machine, "_SIZES", {"others": (1 << 12, 1 << 14)})
    monkeypatch.setattr(this_machine.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("weft.plan.measured.device_figures", this_machine.measure_devices)
    told = []
    found, rows = measure_devices(lambda *at: told.append(at))
    assert len(rows) == 8 and told[-1][1] == told[-1][2] == len(told) - 1
    assert {"float32", "bfloat16"} <= set(found.flops) and found.links[0].name == "device to device"
    read = hardware(written(hardware_toml(found, rows).replace("memory_gb = 0", "memory_gb = 1")))
    assert read.flops == pytest.approx(found.flops) and read.links[0].reach == 0


def test_what_is_timed_on_other_devices_runs_here_too(monkeypatch):
    monkeypatch.setattr(this_machine, "_least_seconds", lambda call, seconds=0.5, *, by_clock=False: _seconds(call))
    assert this_machine._product_seconds("float32", 8)["products"]["float32"]["s"] > 0
    assert this_machine._product_seconds("no_such_dtype", 8) == {}
    assert this_machine._stream_seconds(16)["stream"]["bytes"] == 128
    assert this_machine._vector_seconds(16, 2)["vector"]["work"] == 64
    assert set(this_machine._host_seconds(16)) <= {"host"}


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_a_process_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(this_machine.sys, "executable", "/nowhere/python")
    with pytest.raises(WeftError, match=r"this machine could not be measured: .*No such file"):
        this_machine.device_figures(lambda *at: None)
