"""Who works on what when: the drawn schedules against what pipelines and rings must do, and against the ops."""

import itertools

import pytest

from tests.plan.test_page import lm
from weft.schedule import PipelineSchedule, RingSchedule


@pytest.mark.parametrize(
    ("ways", "stages", "micro", "passes"), list(itertools.product([1, 2, 4], [1, 3], [4, 8], [1, 2]))
)
def test_every_microbatch_passes_every_stage_once_in_order(ways, stages, micro, passes):
    schedule = PipelineSchedule(("p",), ways, stages, micro, passes)
    when = {}
    for place, tick in itertools.product(range(ways), range(schedule.turns)):
        if (at := schedule.at(place, tick)) is not None:
            for stage in schedule.stages_at(place, at[0]):
                assert when.setdefault((at[1], stage), tick) == tick
    assert len(when) == micro * ways * stages * passes
    for each in range(micro):
        ticks = [when[each, stage] for stage in range(ways * stages * passes)]
        assert ticks == sorted(ticks) and len(set(ticks)) == ways * passes
    idle, turns = schedule.idle
    empty = [schedule.at(place, tick) for place in range(ways) for tick in range(turns)].count(None)
    assert empty == idle * ways and (idle, turns) == (ways - 1, micro * passes + ways - 1)


@pytest.mark.parametrize(("ways", "is_zigzag"), list(itertools.product([2, 3, 8], [True, False])))
def test_every_query_meets_every_key_it_sees_once(ways, is_zigzag):
    schedule = RingSchedule(("x",), ways, ways - 1, is_zigzag, True, 8)
    met = [block for place in range(ways) for turn in range(ways) for block in schedule.blocks(place, turn)]
    pieces = ways * (2 if is_zigzag else 1)
    assert sorted((query, key) for query, key, _ in met) == list(itertools.product(range(pieces), repeat=2))
    for query, key, seen in met:
        assert seen == ("none" if key > query else "part" if key == query else "full")
    if is_zigzag:  # every processor has as much to do at every turn
        work = [
            [sum(seen == "full" for *_, seen in schedule.blocks(place, turn)) for turn in range(1, ways)]
            for place in range(ways)
        ]
        assert all(each == 2 for row in work for each in row)


@pytest.mark.parametrize(("window", "own"), [(3, 4), (5, 4), (6, 4), (1, 4)])
def test_a_window_sees_the_blocks_that_hold_a_key_it_reaches(window, own):
    schedule = RingSchedule(("x",), 4, 3, False, True, own, window)
    for place, turn in itertools.product(range(4), range(4)):
        ((query, key, seen),) = schedule.blocks(place, turn)
        pairs = [
            0 <= q - k < window
            for q in range(query * own, query * own + own)
            for k in range(key * own, key * own + own)
        ]
        assert seen == ("full" if all(pairs) else "part" if any(pairs) else "none")


def test_ops_note_what_they_do():
    staged = lm("stage:cols,batch:rows", mesh="rows=2,cols=2", layers=4, stages=2, batch=16, pipeline_microbatches=4)
    ring = lm("length:cols,memory_length:cols", mesh="rows=1,cols=4", layers=1)
    assert {entry.schedule for entry in staged.reading.entries} - {None} == {PipelineSchedule(("cols",), 2, 1, 4)}
    (found,) = {entry.schedule for entry in ring.reading.entries} - {None}
    assert found == RingSchedule(("cols",), 4, 3, True, True, ring_length(ring) // 4)


def ring_length(program):
    return next(dim.size for taken in program.inputs if taken.dims for dim in taken.dims if dim.name == "length")


def test_nothing_is_noted_of_what_stays_on_one_processor():
    program = lm("batch:rows", mesh="rows=2", layers=1)
    assert {entry.schedule for entry in program.reading.entries} == {None}
