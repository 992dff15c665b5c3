"""The reader of compiled code, on lines of each form that XLA prints."""

import textwrap
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from tests.program.independent import compiled, walk

MESH = {"rows": 2, "cols": 4}
COLS, ROWS, BOTH = frozenset({"cols"}), frozenset({"rows"}), frozenset({"rows", "cols"})


def module(*lines: str, before: str = "") -> str:
    body = textwrap.indent("\n".join(("%x = f32[8,16]{1,0} parameter(0)", *lines)), "  ")
    return f"HloModule m\n\n{textwrap.dedent(before)}\nENTRY %main.1 (x: f32[8,16]) -> f32[8,16] {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", COLS),
        ("{{0,4},{1,5},{2,6},{3,7}}", ROWS),
        ("{{0,1,2,3,4,5,6,7}}", BOTH),
        ("{}", BOTH),
        ("[2,4]<=[8]", COLS),
        ("[4,2]<=[2,4]T(1,0)", ROWS),
        ("[1,8]<=[8]", BOTH),
        ("mesh['rows'=2,'cols'=4] {'cols'}", COLS),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", ROWS),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", BOTH),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_0'}", COLS),
        ("mesh['axis_0'=1,'axis_1'=4,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_2'}", ROWS),
    ],
)
def test_groups_are_axes(groups, axes):
    line = f"ROOT %r = f32[8,16]{{1,0}} all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%add"
    assert compiled(module(line), MESH) == {("all_reduce", axes): 8 * 16 * 4}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["%y = f32[8,64]{1,0} all-gather(%x), replica_groups=[2,4]<=[8], dimensions={1}"], ("all_gather", COLS, 2048)),
        (
            ["%y = f32[2,16]{1,0} reduce-scatter(%x), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add"],
            ("reduce_scatter", COLS, 512),
        ),
        (["%y = f32[8,16]{1,0} all-to-all(%x), replica_groups=[2,4]<=[8], dimensions={0}"], ("all_to_all", COLS, 512)),
        (
            ["%y = f32[8,16]{1,0} collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,3},{4,5}}"],
            ("permute", COLS, 512),
        ),
        (
            [
                "%h = bf16[8,16]{1,0} convert(%x)",
                "%y = (f32[8,16]{1,0}, bf16[8,16]{1,0}) all-reduce(%x, %h), replica_groups=[2,4]<=[8], to_apply=%add",
            ],
            ("all_reduce", COLS, 512 + 256),
        ),
        (
            [
                "%s = (f32[8,16]{1,0}, f32[8,64]{1,0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={1}",
                "%y = f32[8,64]{1,0} all-gather-done(%s)",
            ],
            ("all_gather", COLS, 2048),
        ),
        (
            [
                "%s = ((f32[8,16]{1,0}), f32[2,16]{1,0}) reduce-scatter-start(%x), replica_groups=[2,4]<=[8]",
                "%y = f32[2,16]{1,0} reduce-scatter-done(%s)",
            ],
            ("reduce_scatter", COLS, 512),
        ),
        (
            [
                "%s = f32[8,16]{1,0} all-reduce-start(%x), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add",
                "%y = f32[8,16]{1,0} all-reduce-done(%s)",
            ],
            ("all_reduce", ROWS, 512),
        ),
    ],
)
def test_each_collective_counts_what_one_processor_carries(lines, expected):
    kind, axes, size = expected
    assert compiled(module(*lines), MESH) == {(kind, axes): size}


CALLED = """
    %half (p: f32[8,16]) -> f32[8,16] {
      %p = f32[8,16]{1,0} parameter(0)
      %c = bf16[8,16]{1,0} convert(%p)
      ROOT %r = bf16[8,16]{1,0} all-reduce(%c), replica_groups=[2,4]<=[8], to_apply=%add
    }

    %full (p: f32[8,16]) -> f32[8,16] {
      %p = f32[8,16]{1,0} parameter(0)
      ROOT %r = f32[8,16]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
    }

    %test (p: f32[8,16]) -> pred[] {
      ROOT %t = pred[] constant(true)
    }
"""


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ('while(%x), condition=%test, body=%full, backend_config={"known_trip_count":{"n":"6"}}', 6),
        ("while(%x), condition=%test, body=%full", 1),
        ("call(%x), to_apply=%full", 1),
        ("fusion(%x), kind=kLoop, calls=%full", 1),
        ("conditional(%x, %x, %x), branch_computations={%half, %full}", 1),
        ("conditional(%x, %x, %x), true_computation=%full, false_computation=%half", 1),
    ],
)
def test_what_is_called_counts_as_often_as_it_runs(line, times):
    text = module(f"ROOT %r = f32[8,16]{{1,0}} {line}", before=CALLED)
    assert compiled(text, MESH) == {("all_reduce", COLS): times * 512}


def test_the_jaxpr_counts_loops_and_the_larger_branch():
    def turn(x, _):
        small = lambda x: x * jax.lax.psum(x[0].sum(), "rows")  # noqa: E731
        return jax.lax.cond(True, lambda x: x / jax.lax.psum(x, "rows"), small, x), None

    def body(x):
        return jax.lax.all_gather(jax.lax.scan(turn, x, None, length=3)[0], "cols", tiled=True)

    mesh = jax.sharding.AbstractMesh((2, 4), ("rows", "cols"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec(("rows", "cols"))
    out = jax.sharding.PartitionSpec("rows")
    run = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    found = walk(jax.make_jaxpr(run)(jnp.ones((8, 5))))
    assert found == Counter({("all_reduce", ROWS): 3 * 5 * 4, ("all_gather", COLS): 4 * 5 * 4})
