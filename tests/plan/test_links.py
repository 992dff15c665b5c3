"""Collectives on links: closed formulas at round figures, where groups stand, and what never costs more or less."""

import itertools
import math
import random

import jax
import pytest

import weft as wf
from weft.plan import HARDWARE, Hardware, Link, links
from weft.plan.placement import place, slice_sides, unit_sizes
from weft.program.ledger import Row

INNER = Link("inner", 100e9, latency=1e-6, reach=8, efficiency=0.5, call=10e-6)
OUTER = Link("outer", 10e9, latency=5e-6, reach=0, efficiency=1.0, call=20e-6)
RACK = Link("rack", 100e9, latency=2e-6, reach=32, efficiency=0.2, call=15e-6)
TORUS = Link("torus", 100e9, latency=1e-6, reach=4096, efficiency=1.0, is_torus=True, call=3e-6, sides=3, block=4)
DIRECT = Link("direct", 70e9, latency=1e-6, reach=8, efficiency=1.0, call=10e-6, is_direct=True)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
GIB = 2**30
jax.devices()  # JAX has started with the tests' own processors: meshes of many ask for no more


def on(*found):
    return Hardware("round", "", "gpu", {"float32": 1e12}, 1e11, 1, 10**9, 1e11, links=found)


ROUND, THREE, TPU, AMD = on(INNER, OUTER), on(INNER, RACK, OUTER), on(TORUS, OUTER), on(DIRECT, OUTER)


def seconds(collective, size, over, mesh, hardware=ROUND):
    mesh, axes = wf.Mesh(mesh), tuple(over.split())
    ways = math.prod(mesh.axes[axis] for axis in axes)
    row = Row(collective, axes, (), "float32", size, 1, "forward", "", "", "", exact=True, ways=ways)
    return links.seconds(row, mesh, HARDWARE[hardware] if isinstance(hardware, str) else hardware)


def placed(over, mesh, hardware=ROUND):
    mesh = wf.Mesh(mesh)
    return place(tuple(mesh.axes.items()), mesh.levels, frozenset(over.split()), hardware.links)


def members(over, mesh):
    """The numbers of the processors of each group, written out one by one."""
    axes = list(wf.Mesh(mesh).axes.items())
    groups = {}
    for number, at in enumerate(itertools.product(*(range(size) for _, size in axes))):
        kept = tuple(i for i, (name, _) in zip(at, axes, strict=True) if name not in over.split())
        groups.setdefault(kept, []).append(number)
    return list(groups.values())


def test_an_all_reduce_goes_around_its_ring_twice():
    assert seconds("all_reduce", 8_000_000, "x", "x=4") == pytest.approx(10e-6 + 2 * 3 / 4 * 8e6 / 50e9 + 6 * 1e-6)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_other_collectives_go_around_once(collective):
    assert seconds(collective, 8_000_000, "x", "x=4") == pytest.approx(10e-6 + 3 / 4 * 8e6 / 50e9 + 3 * 1e-6)


def test_an_all_to_all_sends_to_eight_others_at_a_time():
    assert seconds("all_to_all", 8_000_000, "x", "x=8") == pytest.approx(10e-6 + 7 / 8 * 8e6 / 50e9 + 1e-6)
    # Of 24, 7 stand inside the host and 16 outside: bytes to both go at once, and those outside take longer.
    took = 20e-6 + 16 / 24 * 8e6 / 10e9 + 1e-6 + 2 * 5e-6
    assert seconds("all_to_all", 8_000_000, "x", "x=24") == pytest.approx(took)


def test_a_permute_is_one_step():
    assert seconds("permute", 8_000_000, "x", "x=4") == pytest.approx(10e-6 + 8e6 / 50e9 + 1e-6)
    assert seconds("permute", 8_000_000, "x", "x=16") == pytest.approx(20e-6 + 8e6 / 10e9 + 5e-6)


def test_the_order_of_the_axes_decides_the_link():
    assert seconds("all_gather", 8_000_000, "cols", "rows=8,cols=8") == pytest.approx(
        10e-6 + 7 / 8 * 8e6 / 50e9 + 7 * 1e-6
    )
    assert seconds("all_gather", 8_000_000, "cols", "cols=8,rows=8") == pytest.approx(
        20e-6 + 7 / 8 * 8e6 / 10e9 + 7 * 5e-6
    )


def test_a_bar_in_the_mesh_says_where_hosts_end():
    assert seconds("all_gather", 8_000_000, "rows", "rows=2,cols=4") == pytest.approx(10e-6 + 4e6 / 50e9 + 1e-6)
    assert seconds("all_gather", 8_000_000, "rows", "rows=2 | cols=4") == pytest.approx(20e-6 + 4e6 / 10e9 + 5e-6)


def test_a_ring_over_hosts_goes_as_fast_as_the_slower_of_its_links():
    # Each of 8 members of a host has a link of its own out of it, and most of the steps are inside.
    steps = 2 * (14 * 1e-6 + 1 * 5e-6)
    inside = 2 * 80e6 * 7 / 8 / 50e9
    assert seconds("all_reduce", 80_000_000, "x", "x=16") == pytest.approx(20e-6 + steps + inside)
    steps, between = 2 * (56 * 1e-6 + 7 * 5e-6), 2 * 800e6 / 8 * 7 / 8 / 4e9
    slow = on(INNER, Link("outer", 4e9, latency=5e-6, reach=0, efficiency=1.0, call=20e-6))
    assert seconds("all_reduce", 800_000_000, "x", "x=64", slow) == pytest.approx(20e-6 + steps + between)


def test_a_small_sum_goes_by_a_tree():
    took = 20e-6 + 2 * (3 * 1e-6 + 11 * 5e-6) + 2 * 7 / 8 * 4 / (50e9 * 0.92)
    assert seconds("all_reduce", 4, "x", "x=16384") == pytest.approx(took, rel=1e-6)
    assert seconds("all_reduce", 4, "x", "x=16384", "h100") < 200e-6


def test_one_member_a_host_gathers_in_fewer_steps_than_a_ring_has():
    took = 20e-6 + 5e-6 * (11 + 0.56 * 2047) + 2047 / 2048 * 1000 / (10e9 * 0.75)
    assert seconds("all_gather", 1000, "x", "x=2048,y=8") == pytest.approx(took)


def test_three_levels_are_crossed_one_inside_the_other():
    found = placed("x", "x=128", THREE)
    assert [(at.link.name, at.ways, at.sharing) for at in found] == [("inner", 8, 1), ("rack", 4, 8), ("outer", 4, 32)]
    assert [at.steps for at in found] == [128 - 16, 16 - 4, 4 - 1]
    assert [at.away for at in found] == [7 / 128, 24 / 128, 96 / 128]


def test_bars_end_hosts_and_racks_and_axes_between_them_go_over_their_own_links():
    mesh = "pods=2 | hosts=3 | x=4"
    assert [at.link.name for at in placed("x", mesh, THREE)] == ["inner"]
    assert [at.link.name for at in placed("hosts", mesh, THREE)] == ["rack"]
    assert [at.link.name for at in placed("pods", mesh, THREE)] == ["outer"]
    assert [(at.link.name, at.ways, at.sharing) for at in placed("pods hosts x", mesh, THREE)] == [
        ("inner", 4, 1), ("rack", 3, 4), ("outer", 2, 12)
    ]  # fmt: skip
    # Two links: what lies before the last bar goes over the outer. A torus goes on to the bar before.
    assert [at.link.name for at in placed("hosts", mesh)] == ["outer"]
    assert [at.link.name for at in placed("hosts", mesh, TPU)] == ["torus"]
    assert [at.link.name for at in placed("pods", mesh, TPU)] == ["outer"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ways", [2, 3, 4, 5, 6, 7, 8])
def test_a_group_within_a_host_never_uses_the_network(collective, ways):
    assert [at.link for at in placed("x", f"x={ways}")] == [INNER]
    fast = on(INNER, Link("nothing", 1.0, latency=1e3, reach=0, call=1e3))
    for mesh in (f"x={ways}", f"y=3,x={ways}" if ways == 8 else f"y=1,x={ways}", f"y=3 | x={ways}"):
        assert seconds(collective, GIB, "x", mesh, fast) < 1


def test_an_all_reduce_in_one_host_grows_with_its_ways_alone():
    took = [1e3 * seconds("all_reduce", GIB, "x", f"x={ways}", "a100") for ways in range(2, 9)]
    assert took == sorted(took) and took == pytest.approx([4.49, 5.98, 6.73, 7.18, 7.48, 7.69, 7.86], abs=0.01)
    summed = [1e3 * seconds("all_reduce", GIB, "x", f"x={ways}", "h100") for ways in range(2, 9)]
    assert summed == sorted(summed) and summed == pytest.approx([2.99, *[3.92] * 6], abs=0.01)


@pytest.mark.parametrize(
    ("hardware", "ways", "size", "measured", "within"),
    [
        ("h100", 8, 8 * GIB, 480e9, 0.02),  # nccl-tests issue 347; what NVLink SHARP reaches was taken from such
        ("h100", 16, 8 * GIB, 470e9, 0.11),  # NVIDIA/nccl issue 2409, of others' results
        ("h200", 1984, 512 * 2**20, 350e9, 0.10),  # nccl-tests issue 283: 248 hosts
        ("a100", 8, 8 * GIB, 240e9, 0.02),  # NVIDIA/nccl issue 1712, by NVIDIA
    ],
)
def test_all_reduces_reach_the_bus_bandwidths_that_others_measured(hardware, ways, size, measured, within):
    took = seconds("all_reduce", size, "x", f"x={ways}", hardware)
    assert 2 * (ways - 1) / ways * size / took == pytest.approx(measured, rel=within)


def test_an_all_to_all_over_hosts_goes_by_the_share_that_leaves_them():
    # NVIDIA in nccl-tests issue 130: its bus bandwidth is N/(N-1) of an adapter's, over N hosts.
    for hosts in (2, 4, 16):
        took = seconds("all_to_all", 2**35, "x", f"x={8 * hosts}", "h100")
        ways = 8 * hosts
        assert (ways - 1) / ways * 2**35 / took == pytest.approx(46e9 * hosts / (hosts - 1), rel=0.13)


def test_of_groups_that_lie_differently_the_worst_counts():
    # Of groups of 3 on hosts of 8, one stands across two hosts: {6, 7, 8}.
    assert members("y", "x=5,y=3")[2] == [6, 7, 8]
    inner, outer = placed("y", "x=5,y=3")
    assert (inner.ways, inner.steps, outer.ways, outer.steps, outer.sharing) == (3, 2, 2, 1, 1)
    assert outer.away == pytest.approx(2 / 3)  # what 8 sends to 6 and 7


@pytest.mark.parametrize("seed", range(30))
def test_groups_of_any_size_are_where_their_numbers_say(seed):
    rng = random.Random(seed)
    names = ["a", "b", "c"][: rng.randint(1, 3)]
    mesh = ",".join(f"{name}={rng.choice([1, 2, 3, 4, 5, 6, 8, 12])}" for name in names)
    over = " ".join(rng.sample(names, rng.randint(1, len(names))))
    links_of = (INNER, RACK, OUTER)
    sizes = [1, *unit_sizes(tuple(wf.Mesh(mesh).axes.items()), wf.Mesh(mesh).levels, links_of)]
    expected = []
    for link, below, here in zip(links_of, sizes, sizes[1:], strict=False):
        found = members(over, mesh)
        parts = [
            len({i // below for i in group if i // here == unit}) for group in found for unit in _units(group, here)
        ]
        shared = [sum(i // below == unit for i in group) for group in found for unit in _units(group, below)]
        steps = max(len(_units(group, below)) - len(_units(group, here)) for group in found)
        if max(parts) > 1:
            expected.append((link.name, max(parts), steps, min(shared)))
    assert [(at.link.name, at.ways, at.steps, at.sharing) for at in placed(over, mesh, on(*links_of))] == expected


def _units(group, size):
    return {number // size for number in group}


def test_a_rack_that_is_nearly_filled_is_filled_alike_and_hosts_one_after_another():
    rack = Link("rack", 1e9, 1e-6, reach=72)

    def units(count, link):
        return unit_sizes((("x", count),), (("x",),), [link, OUTER])[0]

    assert [units(count, rack) for count in (64, 72, 144, 512, 16384, 100)] == [64, 72, 72, 64, 64, 72]
    assert [units(count, INNER) for count in (3, 8, 12, 14, 16, 20)] == [3, 8, 8, 8, 8, 8]
    assert [units(count, TORUS) for count in (512, 4096, 8192, 5000)] == [512, 4096, 4096, 2500]


@pytest.mark.parametrize("hardware", ["h100", "gb200", "v5e", "v5p"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_bytes_never_take_less_and_a_byte_more_never_more_than_before(hardware, collective):
    for mesh in ("x=3", "x=16", "x=48", "x=2048"):
        took = [seconds(collective, size, "x", mesh, hardware) for size in (0, 10**3, 10**5, 10**7, 10**9)]
        assert took == sorted(took)
        halves = [seconds(collective, size // 2, "x", mesh, hardware) for size in (10**3, 10**5, 10**7, 10**9)]
        # A line from nothing to all of it lies below: what a search needs of a bound.
        assert all(half >= (took[0] + whole) / 2 * (1 - 1e-9) for half, whole in zip(halves, took[1:], strict=True))


@pytest.mark.parametrize("hardware", ["h100", "b200", "mi300x", "v5p"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("size", [4, 10**5, 10**9])
def test_more_whole_hosts_never_take_less(hardware, collective, size):
    took = [seconds(collective, size, "x", f"x={64 * 2**power}", hardware) for power in range(7)]
    if hardware == "v5p":  # a longer ring of as many links may take as long
        assert all(later >= before * 0.97 for before, later in itertools.pairwise(took))
    else:
        assert took == sorted(took)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_equal_placements_take_as_long_whatever_their_axes_are_called(collective):
    whole = seconds(collective, 10**7, "x", "x=64")
    assert seconds(collective, 10**7, "a b", "a=8,b=8") == whole
    assert seconds(collective, 10**7, "b a", "a=4,b=16") == whole
    assert seconds(collective, 10**7, "x", "x=64,y=1") == whole
    assert seconds(collective, 10**7, "b", "a=8,b=8") == seconds(collective, 10**7, "b", "a=2,c=4,b=8")


# ---- a torus


def test_slices_have_the_sides_they_are_sold_with():
    v5p, v5e = HARDWARE["v5p"].links[0], HARDWARE["v5e"].links[0]
    assert [slice_sides(count, v5p) for count in (8, 32, 128, 512, 6144)] == [
        (2, 2, 2), (2, 4, 4), (4, 4, 8), (8, 8, 8), (16, 16, 24)
    ]  # fmt: skip
    assert [slice_sides(count, v5e) for count in (4, 8, 32, 128, 256)] == [(2, 2), (2, 4), (4, 8), (8, 16), (16, 16)]


def test_a_slice_of_512_is_one_torus():
    (whole,) = placed("x", "x=512", on(TORUS, OUTER))
    assert whole.link == TORUS and [(side.size, side.is_ring) for side in whole.sides] == [(8, True)] * 3
    took = 3e-6 + 12 * 1e-6 + 511 / 512 * 1e9 / 300e9
    assert seconds("all_gather", 10**9, "x", "x=512", TPU) == pytest.approx(took)


def test_an_axis_lies_on_whole_sides_and_others_on_what_is_left():
    def sides(over, mesh):
        return [(side.size, side.stride, side.is_ring) for at in placed(over, mesh, TPU) for side in at.sides]

    assert sides("x", "x=8,y=8,z=8") == sides("y z", "x=8,y=8,z=8")[:1] == [(8, 1, True)]
    assert sides("y", "x=8,y=64") == [(8, 1, True), (8, 1, True)]
    assert sides("y", "x=128,y=4") == [(4, 1, False)]  # a part of a side is a line
    assert sides("x", "x=2,y=256") == [(2, 4, True)]  # the rest of it a ring of longer steps
    assert sides("x", "x=16") == [(2, 1, False), (2, 1, False), (4, 1, False)]  # too small to be closed


def test_rings_go_along_all_sides_and_a_line_at_half_the_rate():
    ring, line = (seconds("all_gather", 10**9, "y", mesh, TPU) for mesh in ("x=64,y=8", "x=128,y=4"))
    assert ring == pytest.approx(3e-6 + 4e-6 + 7 / 8 * 1e9 / 100e9)
    assert line == pytest.approx(3e-6 + 3e-6 + 3 / 4 * 1e9 / 50e9)


def test_an_all_to_all_on_a_torus_takes_as_long_as_its_longest_side():
    # Half of what 16 send crosses the middle, over two links each way.
    took = seconds("all_to_all", 64 * 2**20, "x y", "x=16,y=16", "v5e")
    assert took == pytest.approx(3e-6 + 16e-6 + 64 * 2**20 * 16 / 8 / (0.9 * 50e9))
    assert 1e3 * took == pytest.approx(3.0, abs=0.01)


def test_a_pod_has_the_bandwidths_its_maker_states():
    # Google's page on v5e: 51.2 TB/s of all-reduce and 1.6 TB/s of bisection bandwidth, of 256 chips.
    ici = HARDWARE["v5e"].links[0]
    size, least = 10**12, [seconds(name, 0, "x", "x=256", "v5e") for name in ("all_gather", "all_to_all")]
    gathered = seconds("all_gather", size, "x", "x=256", "v5e") - least[0]
    assert 256 * 255 / 256 * size / gathered / ici.efficiency == pytest.approx(51.2e12)
    exchanged = seconds("all_to_all", size, "x", "x=256", "v5e") - least[1]
    assert 128 * size / 2 / exchanged / ici.efficiency == pytest.approx(1.6e12)


def test_a_permute_goes_one_way_along_a_side():
    assert seconds("permute", 10**9, "y", "x=64,y=8", TPU) == pytest.approx(3e-6 + 1e-6 + 1e9 / 50e9)


def test_between_slices_each_sends_its_part_after_the_torus():
    slices = seconds("all_reduce", 10**9, "x", "x=8192", TPU)
    inside = 3e-6 + 2 * (24e-6 + 4095 / 4096 * 1e9 / 300e9)
    between = 20e-6 + 2 * (5e-6 + 1 / 2 * 1e9 / 4096 / 10e9)
    assert slices == pytest.approx(inside + between)


# ---- direct links


def test_over_direct_links_a_group_uses_those_between_its_members():
    rate = 70e9 / 7
    assert seconds("all_gather", 10**9, "x", "x=8", AMD) == pytest.approx(10e-6 + 7e-6 + 7 / 8 * 1e9 / (7 * rate))
    assert seconds("all_gather", 10**9, "x", "x=2", AMD) == pytest.approx(10e-6 + 1e-6 + 1 / 2 * 1e9 / rate)
    assert seconds("permute", 10**9, "x", "x=8", AMD) == pytest.approx(10e-6 + 1e-6 + 1e9 / rate)
