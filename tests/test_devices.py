"""Where devices stand in a mesh: later axes inside groups of fast links, what is before the bar between them."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft.devices import arrange, describe


def gpus(hosts, each=8):
    """GPUs of several hosts, in no order."""
    found = [
        SimpleNamespace(id=i, process_index=i // each, slice_index=i // each, platform="gpu", device_kind="H100")
        for i in range(hosts * each)
    ]
    random.Random(0).shuffle(found)
    return found


def tpus(*sizes):
    """TPU chips of one slice, wired as a torus of these sizes."""
    return [
        SimpleNamespace(
            id=i, process_index=i // 4, slice_index=0, platform="tpu", device_kind="TPU v5p", coords=at, core_on_chip=0
        )
        for i, at in enumerate(np.ndindex(*sizes))
    ]


def hosts_of(grid):
    return np.vectorize(lambda device: device.process_index)(grid)


def test_axes_after_the_bar_stay_inside_a_host():
    hosts = hosts_of(arrange(gpus(4), {"hosts": 4, "cols": 8}, ("hosts",), "m"))
    assert hosts.shape == (4, 8) and (hosts == hosts[:, :1]).all() and sorted(hosts[:, 0]) == [0, 1, 2, 3]


def test_later_axes_lie_on_the_fastest_links_without_a_bar():
    hosts = hosts_of(arrange(gpus(4), {"a": 2, "b": 4, "c": 4}, (), "m"))
    assert (hosts == hosts[:, :, :1]).all()  # c never leaves a host
    assert all(len(set(row)) == 2 for row in hosts[:, :, 0])  # b crosses once


def test_an_axis_may_go_over_slow_and_fast_links():
    hosts = hosts_of(arrange(gpus(2), {"rows": 4, "cols": 4}, ("rows",), "m"))
    assert (hosts == hosts[:, :1]).all() and len(set(hosts[:, 0])) == 2


def test_several_axes_before_the_bar():
    hosts = hosts_of(arrange(gpus(4), {"a": 2, "b": 2, "c": 8}, ("a", "b"), "m"))
    assert (hosts == hosts[:, :, :1]).all() and len(set(hosts[:, :, 0].reshape(-1))) == 4


@pytest.mark.parametrize("sizes", [(4, 4), (8, 2), (2, 2, 4), (16,)])
def test_every_device_of_a_torus_stands_somewhere_once(sizes):
    axes = {f"axis{i}": size for i, size in enumerate(sizes)}
    grid = arrange(tpus(2, 2, 4), axes, (), "m")
    assert grid.shape == sizes and sorted(device.id for device in grid.reshape(-1)) == list(range(16))


def test_axes_that_lie_on_the_wires_of_a_torus_are_neighbours():
    grid = arrange(tpus(4, 4, 1), {"a": 4, "b": 4}, (), "m")
    for first, second in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        for one, other in zip(first.reshape(-1), second.reshape(-1), strict=True):
            assert sum(a != b for a, b in zip(one.coords, other.coords, strict=True)) == 1


def test_what_cannot_stay_inside_a_group_is_an_error():
    error = error_of(lambda: arrange(gpus(4), {"hosts": 2, "cols": 16}, ("hosts",), "hosts=2|cols=16"), wf.MeshError)
    assert "4 groups have 8, 8, 8, 8" in error.fact and "product of 4" in error.fix


def test_groups_of_different_sizes_are_taken_as_they_come():
    devices = gpus(2)[:12]
    grid = arrange(devices, {"rows": 3, "cols": 4}, (), "m")
    assert {device.id for device in grid.reshape(-1)} == {device.id for device in devices}


def test_a_description_says_which_links_each_axis_goes_over():
    axes = {"hosts": 2, "cols": 8}
    text = describe(axes, (("hosts",), ("cols",)), "hosts=2|cols=8", arrange(gpus(2), axes, ("hosts",), "m"))
    assert text.splitlines() == [
        "mesh hosts=2|cols=8: 16 processors",
        "  hosts     2  slower links, from group to group",
        "  cols      8  fast links, inside a group",
        "devices: 16 of H100 in 2 processes",
        "  hosts=0  0 1 2 3 4 5 6 7",
        "  hosts=1  8 9 10 11 12 13 14 15",
    ]


def test_a_bar_in_a_mesh():
    mesh = wf.Mesh("hosts=2 | cols=4")
    assert mesh.axes == {"hosts": 2, "cols": 4} and mesh.slow == ("hosts",) and str(mesh) == "hosts=2|cols=4"
    assert mesh == wf.Mesh(str(mesh)) and mesh != wf.Mesh("hosts=2,cols=4") and wf.Mesh("hosts=2,cols=4").slow == ()
    x = wf.arange(wf.Dim("batch", 8))
    doubled = wf.spmd(lambda x: wf.sum(x * 2, over="batch"), mesh=mesh, layout="batch:hosts+cols")(x)
    assert int(doubled) == 56


def test_a_mesh_of_three_levels():
    mesh = wf.Mesh("pods=2 | hosts=2,rows=1 | cols=2")
    assert mesh.levels == (("pods",), ("hosts", "rows"), ("cols",)) and mesh.slow == ("pods", "hosts", "rows")
    assert str(mesh) == "pods=2|hosts=2,rows=1|cols=2" and mesh == wf.Mesh(str(mesh))
    assert mesh != wf.Mesh("pods=2,hosts=2,rows=1|cols=2") and hash(mesh) == hash(wf.Mesh(str(mesh)))
    assert wf.Mesh("hosts=2 | cols=2", rows=2) == wf.Mesh("hosts=2 | cols=2,rows=2")
    assert wf.Mesh("a=2,b=4").levels == wf.Mesh({"a": 2, "b": 4}).levels == (("a", "b"),)
    assert mesh.jax_mesh().devices.shape == (2, 2, 1, 2)
    assert mesh.describe().splitlines()[1:5] == [
        "  pods      2  slower links, level 1 of 3",
        "  hosts     2  slower links, level 2 of 3",
        "  rows      1  slower links, level 2 of 3",
        "  cols      2  fast links, level 3 of 3",
    ]


def test_pods_are_hosts_that_follow_each_other():
    grid = hosts_of(arrange(gpus(4), {"pods": 2, "hosts": 2, "cols": 8}, ("pods", "hosts"), "m"))
    assert [[{*hosts} for hosts in pod] for pod in grid.tolist()] == [[{0}, {1}], [{2}, {3}]]


def test_a_mesh_without_enough_devices_can_still_be_described():
    text = wf.Mesh("hosts=64 | cols=8").describe()
    assert "mesh hosts=64|cols=8: 512 processors" in text and "slower links" in text and "wf.trace" in text


@pytest.mark.parametrize("written", ["| cols=8", "hosts=4 |", "a=2 || c=2", "a=2 | b=2 |", "a=2 | , | b=2"])
def test_a_bar_must_stand_between_axes(written):
    error = error_of(lambda: wf.Mesh(written), wf.MeshError)
    assert "bar" in error.fact and "`hosts=4 | cols=8`" in error.fix


def test_an_axis_stands_on_one_level():
    error = error_of(lambda: wf.Mesh("a=2 | b=2 | a=2"), wf.MeshError)
    assert "names axis `a` twice" in error.fact and "`a_2`" in error.fix
