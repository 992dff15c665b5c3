"""Searching layouts: nothing that could be the best is left out, and what is found is what a trace says."""

import contextlib
import dataclasses
import functools
import html
import itertools
import json
import random
import re
import sys
import types
import warnings

import jax
import numpy as np
import optax
import pytest

import weft as wf
from weft import models
from weft.cli.model import load_preset
from weft.errors import DimError, LayoutError, MeshError, WeftError
from weft.plan import HARDWARE, Plan, search
from weft.plan.best_first import BestFirst
from weft.plan.candidates import Trial
from weft.plan.choices import Choices, shapes
from weft.plan.compose import Composer, Facts, Held
from weft.plan.facts import facts_of
from weft.plan.first import first_layouts
from weft.plan.roofline import BESIDE

from .nets import ARGS, DIMS, STAGED_ARGS, loss, staged, step

H100 = HARDWARE["h100"]
SLOW = tuple(dataclasses.replace(link, bandwidth=link.bandwidth / 1000) for link in H100.links)
TINY = dataclasses.replace(H100, flops=dict.fromkeys(H100.flops, 1e9), vector=1e9, bandwidth=1e9)
MACHINES = {
    "as it is": H100,
    "slow links": dataclasses.replace(H100, links=SLOW),
    "slow processors": TINY,
    "slow in all": dataclasses.replace(TINY, links=SLOW, call=0.0),
}


def traced(mesh, layout, fn=step, args=ARGS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return wf.trace(fn, *args, mesh=mesh, layout=layout)


def every_layout(axes, dims=DIMS):
    """All ways to give each dim any of the axes, the illegal ones too."""
    held = [None, *axes, *("+".join(both) for both in itertools.permutations(axes, 2))]
    for chosen in itertools.product(held, repeat=len(dims)):
        yield ",".join(f"{dim}:{axis}" for dim, axis in zip(dims, chosen, strict=True) if axis)


@pytest.fixture(scope="module")
def all_plans():
    """Every layout of the small net on a mesh that can be, planned one by one."""
    found = {}
    for layout in every_layout(["rows", "cols"], DIMS[:4]):
        try:
            found[layout] = traced("rows=2,cols=4", layout)
        except LayoutError:
            continue
    return found


@pytest.mark.quick("as it is", "slow in all")
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_best_of_all_layouts_is_found(all_plans, machine):
    best = min(Plan(program, machine).seconds for program in all_plans.values())
    found = search(step, *ARGS, mesh="rows=2,cols=4", hardware=machine, dims=DIMS[:4], workers=1)
    assert found.best.seconds == pytest.approx(best, rel=1e-9)
    assert found.searched == found.traced + found.pruned and found.is_complete


def test_what_is_found_is_what_a_trace_says():
    found = search(step, *ARGS, mesh="rows=2,cols=4", hardware="h100", dims=DIMS)
    for ranked in found:
        plan = Plan(traced(ranked.mesh, ranked.layout), "h100")
        assert (ranked.seconds, ranked.bytes) == (plan.seconds, plan.program.ledger.bytes())
        assert ranked.memory_bytes == plan.memory.range[1] and ranked.fits == plan.fits and ranked.mfu == plan.mfu
    assert [ranked.seconds for ranked in found] == sorted(ranked.seconds for ranked in found)
    assert found.best.plan().seconds == found.best.seconds


def composed_and_traced(fn, args, mesh, dims, count, seed=0):
    """For some layouts, the bytes that were put together and those of a trace, less what ops choose to send."""
    program = traced({"x": 1}, "", fn, args)
    choices = Choices(program, args, dims)
    mesh = wf.Mesh(mesh)
    shape, alone = tuple(mesh.axes.values()), {}
    for index, rules in enumerate(choices.sets):
        if rules:
            size = max(shape)
            each = traced({"x": size}, choices.layout([rules], ["x"]), fn, args)
            alone[index] = size, facts_of(Plan(each, H100))
    composer = Composer(choices, facts_of(Plan(program, H100)), alone, BESIDE["gpu"])
    legal = composer.legal(shape)
    legal = legal[random.Random(seed).sample(range(len(legal)), min(count, len(legal)))]
    costs = composer.costs(shape, lambda *_: (0.0, 0.0), legal)
    for at, composed in zip(legal, costs.bytes, strict=True):
        layout = choices.layout([choices.sets[i] for i in at], list(mesh.axes))
        ledger = traced(mesh, layout, fn, args).ledger
        yield str(layout), composed, sum(r.bytes * r.count for r in ledger if r.source not in composer.choosing)


@pytest.mark.parametrize(("size", "seconds"), [(1, 8.0), (2, 4.0), (4, 2.0), (8, 1.0)])
def test_what_is_traced_on_one_axis_is_divided_as_a_mesh_of_another_size_divides_it(size, seconds):
    whole, traced_on_four = (Facts({(0, "forward"): (work, 0.5)}, {}, [], 0.0, 0.0) for work in (8.0, 2.0))
    choices = types.SimpleNamespace(sets=[(), ("m",)], rules=("m",), parameters={})
    composer = Composer(choices, whole, {1: (4, traced_on_four)}, 0.0)
    costs = composer.costs((size,), lambda *_: (0.0, 0.0), np.array([[0], [1]]))
    assert costs.compute.tolist() == pytest.approx([8.0, seconds])


def test_memory_of_a_gradient_is_divided_where_its_weight_is_stored():
    gradient, other = Held("d w", ("m", "f"), 8.0), Held("x", ("b", "m"), 8.0)
    choices = types.SimpleNamespace(
        sets=[(), ("params.m",)], rules=("params.m",), parameters={("m", "f")}, rules_of=lambda dim: (dim,)
    )
    composer = Composer(
        choices, Facts({}, {}, [gradient, other], 0.0, 16.0), {1: (4, Facts({}, {}, [], 0.0, 0.0))}, 0.0
    )
    assert composer.memory((4,), np.array([[0], [1]])).tolist() == [16.0, 10.0]


class FewCandidates:
    """Layouts with known bounds, in order."""

    def __init__(self, *seconds):
        self.seconds, self.memory, self.order = np.array(seconds), np.zeros(len(seconds)), np.arange(len(seconds))

    def place(self, candidate):
        return int(candidate)

    def ways(self, candidate):
        return frozenset([candidate]), self.seconds[candidate]


def tried(bounds, results, keep=1):
    """Which of the layouts are traced, given the bound of each and what a trace says: seconds, whether it fits."""
    search, numbers = BestFirst(FewCandidates(*bounds), 1, keep, lambda place: Trial(None, None, 0, place)), []
    for trial in search.trials():
        seconds, fits = results[trial.place]
        numbers.append(trial.place)
        search.add(trial, types.SimpleNamespace(seconds=seconds, fits=fits))
    return numbers


def test_a_layout_is_traced_while_its_bound_less_the_slack_is_below_the_best():
    assert tried([1.0, 1.02, 1.2], [(1.01, True)] * 3) == [0, 1]
    assert tried([1.0, 1.02, 1.2], [(1.01, True)] * 3, keep=3) == [0, 1, 2]


def test_a_trace_that_is_cheaper_than_its_bound_widens_the_slack():
    assert tried([1.0, 1.001, 1.06], [(1.0, True), (1.1, False), (1.2, True)]) == [0, 1]
    assert tried([1.0, 1.001, 1.06], [(1.0, True), (0.9, False), (1.2, True)]) == [0, 1, 2]


def test_what_does_not_fit_ends_no_search():
    assert tried([1.0, 1.5, 2.0], [(1.0, False), (1.5, True), (2.0, True)]) == [0, 1]


# A number that leaves a region is taken from the first of equal copies where a gather has made it so; what is put
# together does not know of these few bytes.
NUMBERS = 16


@pytest.mark.slow
def test_bytes_put_together_are_those_of_a_trace():
    for layout, composed, real in composed_and_traced(step, ARGS, "rows=2,cols=4", DIMS[:4], count=60):
        assert abs(composed - real) <= NUMBERS, layout
    # Stored by two dims, a gradient may travel twice: what is put together stays below that.
    for layout, composed, real in composed_and_traced(step, ARGS, "rows=2,cols=4", DIMS, count=60):
        assert composed <= real, layout


STATISTICS = 2 * 4 * 8 * 16
"""Bytes of the loss's two sums of each token, sent as one array: its dims have no names, and none divides it."""
DIVIDING = ["batch", "heads", "d_ff", "vocab", "d_model", "params.d_model"]
"""Dims that divide what others send; of rings, `stream` and ZeRO, which move sums, only the order is composed."""


@pytest.mark.slow
def test_bytes_of_a_language_model_put_together_are_those_of_a_trace():
    model = load_preset("tiny-lm", optimizer="sgd")
    found = list(composed_and_traced(model.fn, model.args, "x=2,y=4", DIVIDING, count=200))
    assert len(found) == 200
    for layout, composed, real in found:
        # Stored by `params.` rules the table of words is looked up in another way on each mesh, which others follow.
        least = 0 if "params." in layout else real - NUMBERS
        assert least <= composed <= real + STATISTICS, layout
    assert sum(abs(composed - real) <= STATISTICS for _, composed, real in found) >= 180


@pytest.mark.slow
def test_on_three_axes_they_are_nearly_always_and_never_more():
    model = load_preset("tiny-lm", optimizer="sgd")
    found = list(composed_and_traced(model.fn, model.args, "x=2,y=2,z=2", DIVIDING, count=200))
    assert all(composed <= real + STATISTICS for _, composed, real in found)
    assert sum(abs(composed - real) <= STATISTICS for _, composed, real in found) >= 180


@pytest.mark.slow
def test_one_core_finds_what_two_do():
    one, two = (
        search(step, *ARGS, processors=8, hardware="h100", dims=DIMS, workers=count).to_dict() for count in (1, 2)
    )
    keys = ("seconds", "memory_bytes")  # several layouts may be as good
    best = [[plan[key] for key in keys] for plan in one["plans"][:3]]
    assert best == [[plan[key] for key in keys] for plan in two["plans"][:3]]


def test_every_shape_of_mesh_is_tried_once():
    assert shapes(12, 2) == [(12,), (2, 6), (3, 4), (4, 3), (6, 2)]
    assert len(shapes(512, 3)) == 37 and shapes(1, 3) == [(1,)] and shapes(7, 3) == [(7,)]
    found = search(step, *ARGS, processors=8, hardware=MACHINES["slow in all"], dims=DIMS)
    assert all(ranked.mesh.size == 8 and set(ranked.layout.axes) == set(ranked.mesh.axes) for ranked in found)


def test_which_rules_one_axis_can_hold():
    choices = Choices(traced({"x": 1}, ""), ARGS, ["batch", "hidden", "params.d_io"])
    assert choices.sets == [
        (), ("batch",), ("hidden",), ("params.d_io",), ("batch", "params.d_io"),
    ]  # fmt: skip
    assert str(choices.layout([("batch",), ("batch", "params.d_io")], ["x", "y"])) == "batch:x+y,params.d_io:y"


def test_memory_decides_where_it_is_scarce():
    free = search(step, *ARGS, mesh="rows=8", hardware="h100", dims=DIMS)
    least = min(ranked.memory_bytes for ranked in free)
    scarce = search(step, *ARGS, mesh="rows=8", hardware="h100", dims=DIMS, memory=least)
    assert scarce.best.fits and scarce.best.memory_bytes <= least
    assert not any(ranked.fits for ranked in scarce if ranked.memory_bytes > least)
    assert any("do not fit" in losers.reason for losers in scarce.losers) or len(scarce) > 1


def test_it_says_why_the_others_lost_and_is_plain_values():
    found = search(step, *ARGS, mesh="rows=2,cols=4", hardware=MACHINES["slow in all"], dims=DIMS, keep=3)
    words = "\n".join(found.words())
    assert words.startswith(f"best: rows=2,cols=4 under {found.best.layout}: ") and "runner-up: " in words
    assert sum(each.count for each in found.losers) == found.searched - 1
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["version"] == 1 and len(plain["plans"]) == 3
    wanted = {"mesh", "layout", "seconds", "memory_bytes", "fits", "mfu", "why"}
    assert all(wanted <= plan.keys() for plan in plain["plans"])
    assert plain["searched"] == plain["traced"] + plain["pruned"]
    assert re.fullmatch(rf"Ranking\({found.searched} legal layouts on .*: {found.best.text} takes .*s\)", repr(found))


SLOW_SEARCH = dict(processors=8, hardware=MACHINES["slow in all"], dims=DIMS, workers=1)
SEARCHED = 343
"""Legal layouts of `DIMS` on all meshes of 8 processors."""


def assert_stopped(found, why):
    """What is left of a search that was stopped says what it did not see."""
    assert found.stopped == why and not found.is_complete and found.best.fits and found.traced >= len(found) >= 1
    assert found.searched == SEARCHED == found.traced + found.pruned + found.not_seen
    assert found.pruned >= 0 and f"{found.not_seen:,} NOT SEEN" in str(found)
    assert (found.to_dict()["not_seen"], found.to_dict()["stopped"]) == (found.not_seen, why)


@pytest.mark.quick("rules of one axis")
@pytest.mark.parametrize("stage", ["rules of one axis", "meshes", "layouts"])
def test_interrupted_it_gives_the_best_so_far(stage):
    def interrupt(at):
        if at.best is not None and at.stage == stage and at.done >= 2:
            raise KeyboardInterrupt

    found = search(step, *ARGS, progress=interrupt, **SLOW_SEARCH)
    assert_stopped(found, "interrupted")
    assert found.not_seen > 0 and "interrupted: the best so far" in str(found)


def test_interrupted_before_there_is_an_answer_it_has_none():
    def interrupted(params, x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(interrupted, *ARGS, processors=8)


def test_after_its_time_it_traces_no_more_sets_of_rules_and_says_what_it_did_not_see():
    told = []
    found = search(step, *ARGS, seconds=0, progress=told.append, **SLOW_SEARCH)
    assert [at.done for at in told] == [1] and found.traced == 1
    assert_stopped(found, "late")
    assert found.not_seen == SEARCHED - 1 and "its time was up" in str(found)


@pytest.mark.slow
def test_with_time_enough_it_sees_all():
    found = search(step, *ARGS, seconds=1000, **SLOW_SEARCH)
    assert found.is_complete and found.not_seen == 0 and "NOT SEEN" not in str(found) and found.searched == SEARCHED


def test_the_first_layout_traced_is_a_plain_one_that_fits():
    told = []
    search(step, *ARGS, processors=8, hardware="h100", dims=DIMS, progress=told.append, seconds=0, workers=1)
    assert (str(told[0].best.mesh), str(told[0].best.layout)) == ("x=8", "batch:x")
    program, mesh = traced({"x": 1}, ""), [wf.Mesh("x=2,y=4")]
    choices, whole = Choices(program, ARGS, DIMS), facts_of(Plan(program, H100))
    plain, smallest = (
        choices.layout([choices.sets[i] for i in sets], ["x", "y"])
        for _, sets in first_layouts(choices, whole, mesh, 10**9, all_axes=False)
    )
    assert str(plain) == "batch:x+y" and len(smallest.axes) == 2
    ((_, only),) = first_layouts(choices, whole, mesh, 1, all_axes=False)  # nothing fits: the smallest alone
    assert choices.layout([choices.sets[i] for i in only], ["x", "y"]) == smallest


def test_the_time_is_up_while_a_variant_is_taken_up(monkeypatch):
    built, now = [], [0.0]
    monkeypatch.setattr(sys.modules["weft.plan.search"], "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def build(count):
        built.append(count)
        return builds(count)

    def late(at):
        now[0] = 2.0 * (len(built) > 1 and at.stage == "rules of one axis")

    how = dict(mesh="rows=2,cols=4", hardware=MACHINES["slow in all"], dims=DIMS[:3], workers=1)
    found = search(build, choices={"count": [3, 1]}, progress=late, seconds=1, **how)
    whole = search(builds, choices={"count": [3, 1]}, **how)
    assert found.stopped == "late" and found.variants[1] == "count=1: NOT SEEN"
    assert found.searched == whole.searched == found.traced + found.pruned + found.not_seen and found.pruned >= 0


def test_the_front_has_what_no_other_beats_in_time_and_memory(all_plans):
    found = search(step, *ARGS, mesh="rows=2,cols=4", hardware=H100, dims=DIMS[:4], workers=1, keep=1000)
    plans = [Plan(program, H100) for program in all_plans.values()]
    every = [(plan.seconds, plan.memory.range[1]) for plan in plans]
    front = {each for each in every if not any(a <= each[0] and b <= each[1] and (a, b) != each for a, b in every)}
    assert {(ranked.seconds, ranked.memory_bytes) for ranked in found.front} == front and len(front) > 1
    assert [plan["seconds"] for plan in found.to_dict()["front"]] == sorted(seconds for seconds, _ in front)


def test_each_class_of_layouts_says_how_much_longer_its_best_takes():
    found = search(step, *ARGS, mesh="rows=2,cols=4", hardware=MACHINES["slow in all"], dims=DIMS, workers=1)
    classes = {each.name: each for each in found.classes}
    assert {"data", "FSDP", "tensor"} <= classes.keys()
    assert min(each.times for each in found.classes) == 1.0
    assert sum(each.count for each in found.classes) <= found.searched
    fsdp = classes["FSDP"]
    assert fsdp.times == fsdp.best.seconds / found.best.seconds and set(fsdp.best.layout.rules) <= {"batch"}
    row = next(line for line in str(found).splitlines() if line.startswith("FSDP  "))
    assert f"{fsdp.times:.2f}x" in row and fsdp.best.text in row and fsdp.best.why in str(fsdp)
    assert str(fsdp) not in str(found) and html.escape(str(fsdp)) in found.page()
    assert found.to_dict()["classes"][0].keys() == {"name", "count", "times", "best"}


def test_progress_is_told():
    told = []
    search(step, *ARGS, mesh="rows=2", hardware="h100", dims=["batch", "hidden"], progress=told.append, workers=1)
    assert told[0].stage == "rules of one axis" and told[-1].stage == "layouts"
    assert told[-1].done == told[-1].total and told[-1].best is not None


# Bad input: each its own message.


@pytest.mark.parametrize("where", [{}, {"mesh": "rows=2", "processors": 2}, {"processors": 0}])
def test_where_it_is_to_run_must_be_said_once(where):
    with pytest.raises(MeshError, match="search got"):
        search(step, *ARGS, **where)


def test_dims_that_are_not_there():
    with pytest.raises(LayoutError, match="no dim `hiden` to search over") as caught:
        search(step, *ARGS, processors=2, dims=["batch", "hiden"])
    assert caught.value.fix == "did you mean `hidden`?"
    with pytest.raises(LayoutError, match=r"no dim `params\.batch`"):
        search(step, *ARGS, processors=2, dims=["params.batch"])
    (one,) = wf.dims(one=1)
    with pytest.raises(LayoutError, match="no dim that can be split"):
        search(lambda v: v + 1, wf.tensor(np.zeros(1), [one]), processors=2)


def test_without_names_every_dim_of_the_function_is_searched_and_said():
    found = search(step, *ARGS, processors=2)
    assert set(found.dims) == set(DIMS) and found.left_out == ()
    assert found.searched == search(step, *ARGS, processors=2, dims=DIMS).searched > 1
    assert f"searched: {', '.join(found.dims)}" in str(found)
    rows, cols = wf.dims(rows=4, cols=6)
    own = search(lambda v: wf.sum(v * v, over=cols), wf.tensor(np.zeros((4, 6), "float32"), [rows, cols]), processors=2)
    assert own.dims == ("rows", "cols") and str(own.best.layout) == "rows:x"


def test_of_a_model_the_dims_worth_it_are_searched_and_the_others_named():
    fn, args = attention_step()
    choices = Choices(traced({"x": 1}, "", fn, args), args, None)
    assert choices.rules == (
        "batch", "length", "memory_length", "stream", "heads", "d_ff", "vocab", "d_model", "params.d_model",
        "optimizer.d_model",
    )  # fmt: skip
    assert "d_kv" in choices.left_out
    # Keys go round with their queries; the optimizer's state lies where its parameters are whole.
    assert all("length" in rules for rules in choices.sets if "memory_length" in rules)
    assert ("batch", "optimizer.d_model") in choices.sets and ("heads", "optimizer.d_model") not in choices.sets
    assert ("stream", "heads", "d_ff", "vocab", "params.d_model") in choices.sets
    queries = Choices(traced({"x": 1}, "queries:x", fn, args), args, None, also=["queries"])
    assert "queries" in queries.rules and ("stream", "queries") in queries.sets and ("queries",) not in queries.sets


def test_dims_that_are_named_are_all_that_is_searched_and_the_others_are_told():
    fn, args = attention_step()
    found = search(fn, *args, processors=2, dims=["batch", "heads"], workers=1)
    assert found.dims == ("batch", "heads") and "d_kv" in found.left_out
    assert "d_kv" in str(found).splitlines()[-1] and found.to_dict()["dims"] == ["batch", "heads"]


def test_too_many_sets_of_rules_are_an_error_that_says_to_name_some():
    many = wf.dims(**{f"d{i}": 2 for i in range(13)})
    given = [wf.tensor(np.zeros(2, "float32"), [dim]) for dim in many]
    with pytest.raises(LayoutError, match="13 dims make more than 4,000 sets") as caught:
        search(lambda *xs: [x + 1 for x in xs], *given, processors=2)
    assert "`dims=['d0', 'd1', 'd2']`" in caught.value.fix


def test_more_processors_than_layouts_can_use():
    with pytest.raises(MeshError, match="can use 512 processors; the most below is 64") as caught:
        search(step, *ARGS, processors=512, dims=["batch"])
    assert "processors=64" in caught.value.fix and "batch in 64" in caught.value.state


def test_the_most_processors_that_can_be_used():
    for asked, most in ((7, 4), (12, 8), (100_000, 64)):
        with pytest.raises(MeshError, match=f"the most below is {most}"):
            search(step, *ARGS, processors=asked, dims=["batch"])
    with pytest.raises(MeshError, match="the most below is 8,192"):
        search(step, *ARGS, processors=100_000, dims="batch, hidden")


@pytest.mark.parametrize("how", [{"processors": "8"}, {"processors": 8, "memory": "80GB"}])
def test_numbers_that_are_none(how):
    with pytest.raises(WeftError, match=r"search got '.*' for `"):
        search(step, *ARGS, **how)


def test_memory_that_nothing_fits():
    with pytest.raises(WeftError, match=r"no layout fits: the smallest needs .* and 1000 B is there") as caught:
        search(step, *ARGS, mesh="rows=2", hardware="h100", dims=DIMS, memory=1000)
    assert "name more dims" in caught.value.fix and "largest at its peak: " in caught.value.state
    with pytest.raises(WeftError, match="no layout fits") as caught:
        search(step, *ARGS, mesh="rows=2", hardware="h100", dims=DIMS, memory=500_000)
    assert "take 4 processors or more" in caught.value.fix


def test_unknown_hardware_and_a_function_that_fails():
    with pytest.raises(WeftError, match="there is no hardware `h1000`"):
        search(step, *ARGS, processors=2, hardware="h1000")

    def fails(x):
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        search(fails, ARGS[1], processors=2)


def test_a_layout_that_an_op_refuses_is_left_out():
    batch, length = wf.dims(batch=8, length=8)

    def fn(x):
        return wf.scan(lambda c, y: (c + y, None), wf.sum(x, over=length), x, over=length)[0]

    x = wf.tensor(np.zeros((8, 8), "float32"), [batch, length])
    found = search(fn, x, processors=4, dims=["batch", "length"])
    assert [str(ranked.layout) for ranked in found] == ["batch:x"]
    with pytest.raises(MeshError, match="can use 4 processors") as caught:
        search(fn, x, processors=4, dims=["length"])
    assert "refused: length:x" in caught.value.state


# What is chosen beside the layout.


def builds(count, narrow=False):
    """A step of so many products one after another, and its arguments."""
    w, x = ARGS[0]["w"], ARGS[1]

    def fn(params, x):
        for _ in range(count):
            x = wf.einsum(wf.relu(wf.einsum(x, params["w"], over="d_io")), params["v"], over="hidden")
        return wf.mean(x * x, over=["batch", "d_io"])

    if narrow:
        raise DimError("it is too narrow", fix="make it wide")
    return wf.value_and_grad(fn), ({"w": w, "v": ARGS[0]["v"]}, x)


def test_values_of_choices_are_searched_with_the_layouts():
    how = dict(mesh="rows=2,cols=4", hardware=MACHINES["slow in all"], dims=DIMS[:3], workers=1)
    found = search(builds, choices={"count": [3, 1, 2]}, **how)
    alone = {count: search(*_flat(builds(count)), **how).best.seconds for count in (1, 2, 3)}
    assert found.best.choices == {"count": 1} and found.best.seconds == alone[1] == min(alone.values())
    assert found.best.plan().seconds == found.best.seconds and "count=1" in str(found)
    assert found.to_dict()["plans"][0]["choices"] == {"count": 1}
    assert any(line.startswith("count=2: ruled out") or line.startswith("count=2: ") for line in found.variants)


def _flat(built):
    fn, args = built
    return (fn, *args)


def test_a_slower_value_is_tried_only_where_the_faster_does_not_fit():
    how = dict(mesh="rows=2,cols=4", hardware=H100, dims=DIMS[:3], workers=1)
    choices = {"count": wf.plan.Choice([1, 2], is_slower=True)}
    found = search(builds, choices=choices, **how)
    assert found.best.choices == {"count": 1} and [line for line in found.variants if "count=2: ruled out" in line]
    assert found.searched == search(*_flat(builds(1)), **how).searched


def test_values_that_build_nothing_are_refused():
    found = search(builds, choices={"count": [1], "narrow": [False, True]}, mesh="rows=2", dims=DIMS[:2], workers=1)
    assert found.best.choices["narrow"] is False and any("too narrow" in each for each in found.refused)
    with pytest.raises(WeftError, match="the function builds the program, and it returned a Ranking"):
        search(lambda count: found, choices={"count": [1]}, mesh="rows=2")
    with pytest.raises(WeftError, match="a choice has 'ab' for values"):
        search(builds, choices={"count": "ab"}, mesh="rows=2")


# What makes another program than the whole one: stages in a pipeline, a ring in place of scores.


def assert_the_best_is_found(fn, args, mesh, dims, machine):
    """Every layout of these dims planned one by one, against a search."""
    seconds = []
    for layout in every_layout(list(wf.Mesh(mesh).axes), dims):
        try:
            seconds.append(Plan(traced(mesh, layout, fn, args), machine).seconds)
        except LayoutError:
            continue
    found = search(fn, *args, mesh=mesh, hardware=machine, dims=dims, workers=1)
    assert found.best.seconds == pytest.approx(min(seconds), rel=1e-9) and found.refused == []
    return found


def test_stages_of_a_pipeline_are_searched():
    dims = ["batch", "stage", "params.hidden"]
    found = assert_the_best_is_found(staged, STAGED_ARGS, "x=4", dims, MACHINES["slow in all"])
    assert any("stage" in ranked.layout.rules for ranked in found)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_stages_are_searched_beside_other_dims(machine):
    assert_the_best_is_found(staged, STAGED_ARGS, "x=2,y=4", ["batch", "hidden", "stage", "params.d_io"], machine)


@functools.cache
def attention_step(length=32):
    """The loss of a language model of one layer, and its arguments."""
    config = models.preset("tiny-lm", layers=1, dropout=0.0)
    ids = wf.tensor(jax.ShapeDtypeStruct((4, length), "int32"), "batch length")
    return wf.value_and_grad(lambda model, ids: model.loss({"tokens": ids})), (models.shapes(config), ids)


def test_queries_and_keys_may_share_an_axis_and_then_share_all():
    fn, args = attention_step()
    dims = ["batch", "heads", "length", "memory_length"]
    choices = Choices(traced({"x": 1}, "", fn, args), args, dims)
    assert choices.sets == [(), ("batch",), ("heads",), ("length",), ("memory_length",), ("length", "memory_length")]
    facts = Facts({}, {}, [], 0.0, 0.0)
    composer = Composer(choices, facts, dict.fromkeys(range(1, 6), (4, facts)), 0.0)
    legal = {tuple(map(int, row)) for row in composer.legal((2, 4))}
    ring, length, memory, heads = (choices.sets.index(rules) for rules in (
        ("length", "memory_length"), ("length",), ("memory_length",), ("heads",)))  # fmt: skip
    assert {(ring, heads), (ring, ring), (length, memory), (length, length)} <= legal
    assert not legal & {(ring, length), (memory, ring)}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["x=4", "x=2,y=2"])
def test_rings_are_searched(mesh):
    fn, args = attention_step()
    dims = ["heads", "length", "memory_length"]
    found = assert_the_best_is_found(fn, args, mesh, dims, MACHINES["slow in all"])
    assert any(ranked.layout.rules.keys() >= {"length", "memory_length"} for ranked in found)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["as it is", "slow links", "slow in all"])
def test_sequences_between_blocks_are_searched(machine):
    fn, args = attention_step()
    assert_the_best_is_found(fn, args, "x=2,y=2", ["stream", "heads", "params.d_model"], MACHINES[machine])


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["as it is", "slow links", "slow in all"])
def test_the_order_of_axes_is_searched(machine):
    dims, best = DIMS[:4], []
    for shape in shapes(16, 2):
        mesh = wf.Mesh(dict(zip("xy", shape, strict=False)))
        for layout in every_layout(list(mesh.axes), dims):
            with contextlib.suppress(LayoutError):
                plan = Plan(traced(mesh, layout), MACHINES[machine])
                # Of all processors a search splits something over each.
                if set(plan.layout.axes) == set(mesh.axes):
                    best.append(plan.seconds)
    found = search(step, *ARGS, processors=16, hardware=MACHINES[machine], dims=dims, most_axes=2, workers=1)
    assert found.best.seconds == pytest.approx(min(best), rel=1e-9)


@pytest.mark.slow
def test_choices_and_layouts_together_are_those_of_every_combination():
    config = models.preset("tiny-lm", layers=2, dropout=0.0)
    ids = wf.tensor(jax.ShapeDtypeStruct((4, 32), "int32"), "batch length")

    def build(remat, loss_chunks):
        changed = dataclasses.replace(config, remat=remat, loss_chunks=loss_chunks)
        fn = wf.value_and_grad(lambda model, ids: model.loss({"tokens": ids}))
        return fn, (models.shapes(changed), ids)

    dims, mesh, plans = ["batch", "heads", "vocab"], "x=2,y=2", {}
    for remat, chunks in itertools.product((False, True), (1, 4)):
        fn, args = build(remat, chunks)
        for layout in every_layout(["x", "y"], dims):
            try:
                plans[remat, chunks, layout] = Plan(traced(mesh, layout, fn, args), H100)
            except LayoutError:
                continue
    high = sorted({plan.memory.range[1] for plan in plans.values()})
    choices = {
        "remat": wf.plan.Choice([False, True], is_slower=True),
        "loss_chunks": wf.plan.Choice([1, 4], is_slower=True),
    }
    for memory in (high[-1], high[len(high) // 2], high[len(high) // 8], high[0]):
        best = min(plan.seconds for plan in plans.values() if plan.memory.range[1] <= memory)
        found = search(build, choices=choices, mesh=mesh, dims=dims, hardware=H100, memory=memory, workers=1)
        assert found.best.seconds == pytest.approx(best, rel=1e-9), memory


@pytest.mark.slow
def test_heads_traded_for_places_are_searched_where_they_are_named():
    fn, args = attention_step()
    found = search(fn, *args, mesh="x=4", hardware=H100, dims=["stream", "queries"], workers=1)
    layouts = {str(ranked.layout): ranked for ranked in found}
    assert set(layouts) == {"", "stream:x", "queries:x", "stream:x,queries:x"} and found.refused == []
    assert "all_to_all" in {row.collective for row in layouts["stream:x,queries:x"].plan().program.ledger}


@pytest.mark.slow
def test_where_scores_do_not_fit_a_ring_is_found():
    fn, args = attention_step(512)
    plans = {layout: Plan(traced("x=4", layout, fn, args), H100) for layout in ("length:x", "length:x,memory_length:x")}
    gathered, ring = (plan.memory.range[1] for plan in plans.values())
    assert ring < gathered
    dims = ["length", "memory_length"]
    found = search(fn, *args, mesh="x=4", hardware=H100, dims=dims, memory=(gathered + ring) // 2, workers=1)
    assert str(found.best.layout) == "length:x,memory_length:x"


def test_storage_of_the_optimizer_is_searched_where_it_is_named():
    update = wf.train_step(lambda params, x, key: loss(params, x), optax.adam(1e-3))
    args = (update.init(ARGS[0]), *ARGS[1:])
    dims = ["batch", "optimizer.d_io", "params.d_io", "optimizer.hidden"]
    choices = Choices(traced({"x": 1}, "", update, args), args, dims)
    assert ("batch", "optimizer.d_io") in choices.sets and ("optimizer.d_io", "optimizer.hidden") not in choices.sets
    assert ("optimizer.d_io", "params.d_io") not in choices.sets  # the state lies as the parameters do already
    found = assert_the_best_is_found(update, args, "x=4", dims[:3], H100)
    kept = {str(ranked.layout): ranked.memory_bytes for ranked in found}
    assert kept["batch:x,optimizer.d_io:x"] < kept["batch:x"]
    fact, fix = "there is no dim `optimizer.d_oi` to search over", "did you mean `optimizer.d_io`?"
    with pytest.raises(LayoutError, match=fact) as told:
        Choices(traced({"x": 1}, "", update, args), args, ["optimizer.d_oi"])
    assert told.value.fix == fix
