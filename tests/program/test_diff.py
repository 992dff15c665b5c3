"""What changes from one program to another: lines that come and go, types that change, and the totals."""

import weft as wf
from tests.program.cases import B, D, F, L, shape, weight

ROWS_COLS = "rows=2,cols=4"


def net(x, w, v):
    h = wf.relu(wf.einsum(x, w, over=D))
    return wf.einsum(h, v, over=F)


def other_net(x, w, v):
    h = wf.gelu(wf.einsum(x, w, over=D))
    return wf.einsum(h, v, over=F)


def traced(layout, fn=net, mesh=ROWS_COLS, batch=B):
    return wf.trace(fn, shape(batch, D), weight(D, F), weight(F, D), mesh=mesh, layout=layout)


def text(diff):
    return str(diff).replace("tests/program/test_diff.py", "net.py").splitlines()


def test_a_program_does_not_differ_from_itself():
    diff = traced("batch:rows").diff(traced("batch:rows"))
    assert (bool(diff), len(diff), list(diff)) == (False, 0, [])
    assert text(diff) == [
        "- net on rows=2,cols=4 under batch:rows",
        "+ net on rows=2,cols=4 under batch:rows",
        "",
        "the programs are the same",
    ]


def test_another_layout_changes_types_collectives_and_totals():
    diff = traced("batch:rows").diff(traced("batch:rows,d_ff:cols"))
    at = net.__code__.co_firstlineno
    assert text(diff) == [
        "- net on rows=2,cols=4 under batch:rows",
        "+ net on rows=2,cols=4 under batch:rows,d_ff:cols",
        "",
        "forward",
        f"  ~ einsum(x, w, over=D)  f32[batch/rows d_ff] -> f32[batch/rows d_ff/cols]  net.py:{at + 1}",
        f"  ~ h = relu(...)  f32[batch/rows d_ff] -> f32[batch/rows d_ff/cols]  net.py:{at + 1}",
        f"  + >> all_reduce over cols  384 B x1  net.py:{at + 2}  because d_ff is summed and split over cols",
        "",
        "over rows: nothing -> nothing",
        "over cols: nothing -> 384 B",
        "work: 15.36 kFLOP -> 3.84 kFLOP on each processor",
    ]


def test_the_other_way_round_what_came_goes():
    diff = traced("batch:rows,d_ff:cols").diff(traced("batch:rows"))
    gone = [change for change in diff if change.after is None]
    assert [change.before.reason for change in gone] == ["because d_ff is summed and split over cols"]
    assert str(gone[0]).startswith("- >> all_reduce over cols  384 B x1")


def test_another_version_of_the_code():
    diff = traced("batch:rows").diff(traced("batch:rows", other_net))
    lines = [line.split("  net.py")[0] for line in text(diff)]
    assert lines[:2] == ["- net on rows=2,cols=4 under batch:rows", "+ other_net on rows=2,cols=4 under batch:rows"]
    assert lines[3:6] == [
        "forward",
        "  - h = relu(...)  f32[batch/rows d_ff]",
        "  + h = gelu(...)  f32[batch/rows d_ff]",
    ]


def test_moving_code_to_other_lines_changes_nothing():
    def net(x, w, v):
        h = wf.relu(wf.einsum(x, w, over=D))
        return wf.einsum(h, v, over=F)

    assert not traced("batch:rows,d_ff:cols").diff(traced("batch:rows,d_ff:cols", net))


def test_another_mesh_names_its_axes():
    diff = traced("batch:rows,d_ff:cols").diff(traced("batch:x,d_ff:y", mesh="x=2,y=4"))
    assert text(diff)[-5:-1] == [
        "over rows: nothing -> nothing",
        "over cols: 384 B -> nothing",
        "over x: nothing -> nothing",
        "over y: nothing -> 384 B",
    ]


def test_a_collective_that_carries_more_is_a_change():
    diff = traced("batch:rows,d_ff:cols").diff(traced("batch:rows,d_ff:cols", batch=B.resized(16)))
    assert diff
    assert "over cols: 384 B -> 768 B" in text(diff)


def test_more_work_is_a_change():
    diff = traced("batch:rows").diff(traced("batch:rows", batch=B.resized(16)))
    assert diff
    assert "work: 15.36 kFLOP -> 30.72 kFLOP on each processor" in text(diff)


def layers(count):
    def stacked(x, ws):
        return wf.scan(lambda x, w: (x + wf.einsum(net(x, *w), over=[]), None), x, ws, over=L.resized(count))[0]

    dims = L.resized(count)
    args = shape(B, D), (weight(dims, D, F), weight(dims, F, D))
    return wf.trace(stacked, *args, mesh=ROWS_COLS, layout="batch:rows,d_ff:cols")


def test_more_turns_of_a_loop_are_a_change_of_the_loop():
    diff = layers(3).diff(layers(6))
    assert diff
    assert "over cols: 1.125 KiB -> 2.25 KiB" in text(diff)
    assert len(diff) <= 2  # the loop, and the sum in it; not all that stands in it


def test_changes_say_where_they_stand():
    def total(x, w, v):
        return wf.mean(wf.square(net(x, w, v)), over=[B, D])

    gradients = wf.value_and_grad(total, argnums=(0, 1, 2))
    diff = traced("batch:rows", gradients).diff(traced("batch:rows,d_ff:cols", gradients))
    paths = [change.path for change in diff]
    assert paths == sorted(paths, key=lambda path: path[0] == "backward")
    assert {path[0] for path in paths} == {"forward", "backward"}


def test_the_changes_of_layers_that_repeat_are_told_once():
    def unrolled(x, ws):
        for w, v in ws:
            x = x + wf.remat(net)(x, w, v)
        return wf.sum(x, over=[B, D])

    args = shape(B, D), [(weight(D, F), weight(F, D)) for _ in range(24)]
    one, other = (
        wf.trace(wf.value_and_grad(unrolled, argnums=(0, 1)), *args, mesh=ROWS_COLS, layout=layout)
        for layout in ("batch:rows", "batch:rows,d_ff:cols")
    )
    assert len(str(one.diff(other)).splitlines()) < 60


def test_every_line_of_both_programs_has_its_place_side_by_side():
    one, other = traced("batch:rows"), traced("batch:rows,d_ff:cols")
    diff = one.diff(other)
    assert [line.before for line in diff.lines if line.before] == list(one.lines[0].lines)
    assert [line.after for line in diff.lines if line.after] == list(other.lines[0].lines)
    assert [line for line in diff.lines if not line.is_same] == diff.changes
