"""A program after it ran: each line with what it took, and all rows together the step."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft.plan import Measured
from weft.program.lines import Doer
from weft.program.profiling import fill_shapes, profile_calls
from weft.program.step_times import MeasureError, read_step_times

MESH, LAYOUT = "rows=2,cols=4", "batch:rows,d_ff:cols"
SIZES = dict(batch=8, d_model=16, d_ff=32, layers=3)


def loss(params, x, key):
    def layer(x, w):
        h = wf.relu(wf.einsum(x, w["w_in"], over="d_model"))
        return x + wf.einsum(h, w["w_out"], over="d_ff"), None

    y, _ = wf.scan(layer, x, params, over="layers")
    return wf.mean(wf.square(y), over="batch d_model")


def sizes(**changes):
    return {**SIZES, **changes}


def random(names, of):
    shape = [of[name] for name in names.split()]
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def step_and_args(**changes):
    of = sizes(**changes)
    dims = {"w_in": "layers d_model d_ff", "w_out": "layers d_ff d_model"}
    params = {name: wf.parameter(random(names, of), names) for name, names in dims.items()}
    step = wf.train_step(loss, optax.adam(1e-3), mesh=MESH, layout=LAYOUT)
    return step, (step.init(params), wf.tensor(random("batch d_model", of), "batch d_model"), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A profile of three steps on 8 virtual processors."""
    folder = tmp_path_factory.mktemp("profile")
    step, args = step_and_args()
    assert profile_calls(step, args, folder, steps=3) > 0
    return folder


@pytest.fixture(scope="module")
def measured(folder):
    step, args = step_and_args()
    return wf.trace(step, *args).measured(folder, hardware="h100")


def test_all_rows_together_are_the_step(measured):
    rows = sum(section.seconds for section in measured.sections) + sum(other.seconds for other in measured.others)
    assert rows == pytest.approx(measured.seconds, rel=1e-9) and measured.seconds > 0
    own = sum(line.own for line in measured.lines) + sum(other.seconds for other in measured.others)
    assert own == pytest.approx(measured.seconds, rel=1e-9)
    predicted = sum(section.predicted for section in measured.sections) + sum(o.predicted for o in measured.others)
    assert predicted == pytest.approx(measured.plan.seconds, rel=1e-9)
    assert (measured.times.steps, measured.times.processors) == (3, 8)


def test_every_product_and_collective_has_its_time_on_its_line(measured):
    timed = {line.line.text: line for line in measured.lines if line.line.kind == "op" and line.seconds}
    for text in ("einsum(x, w['w_in'], over='d_model')", "einsum(h, w['w_out'], over='d_ff')"):
        assert timed[text].predicted > 0
    sent = [line for line in measured.lines if line.line.sent is not None]
    assert len(sent) >= 3 and all(line.own + line.hidden > 0 for line in sent)
    assert measured.exposed == pytest.approx(sum(line.own for line in sent))
    (update,) = [line for line in measured.lines if line.line.doers == {Doer(None, "update")}]
    assert update.own > 0


def test_a_loop_has_the_time_of_its_lines_and_its_own(measured):
    scans = [line for line in measured.lines if line.line.kind == "block"]
    assert [line.line.text for line in scans] == ["scan over layers x3", "scan over layers x3, last to first"]
    for scan in scans:
        assert scan.seconds == pytest.approx(scan.own + sum(line.seconds for line in scan.lines))


def test_the_print_out_is_the_program_with_two_columns(measured):
    printed = str(measured).splitlines()
    assert printed[0].startswith(f"train_step on {MESH} under {LAYOUT}: ") and "3 steps profiled" in printed[0]
    body = [line.text for line in measured.program.printed()]
    for text in ("einsum(x, w['w_in'], over='d_model')", ">> all_reduce over cols"):
        assert any(text in line for line in body) and any(text in line for line in printed)
    assert printed[-1].endswith("a step") and any(line.strip().startswith("above") for line in printed)
    assert any(line.endswith("not ours") for line in printed)
    table = measured.longest(3).splitlines()
    assert len(table) == 5 and table[-1].endswith("more")


def test_it_is_json_whose_form_is_fixed(measured):
    found = json.loads(measured.to_json())
    assert set(found) == {
        "version", "name", "mesh", "layout", "hardware", "steps", "processors", "seconds", "predicted", "exposed",
        "hidden", "not_ours", "lines", "others",
    }  # fmt: skip
    assert found["version"] == 1 and found["hardware"] == "h100" and found["steps"] == 3
    line = {
        "kind", "name", "type", "text", "source", "count", "seconds", "own", "predicted", "hidden", "is_shared_out",
        "is_with_another", "lines",
    }  # fmt: skip
    assert all(set(each) == line for each in found["lines"])
    assert all(set(each) == {"kind", "text", "source", "seconds", "predicted"} for each in found["others"])
    assert {each["kind"] for each in found["others"]} <= {"op", "xla", "program", "kernel", "idle"}
    total = sum(each["seconds"] for each in (*found["lines"], *found["others"]))
    assert total == pytest.approx(found["seconds"], rel=1e-9)


def test_its_page_shows_measured_beside_predicted(measured):
    page = measured.page()
    assert 'id="measured"' in page and "predicted for h100" in page and "a step, of 3 profiled" in page
    assert page.count('role="tree"') == 2 and "nothing ran, between steps: the host" in page


def test_without_a_plan_nothing_is_predicted(measured):
    alone = Measured(measured.program, measured.times)
    assert alone.to_dict()["predicted"] is None and "predicted for" not in str(alone)
    assert alone.seconds == measured.seconds


def test_the_line_of_an_op_that_dominates_has_most_of_the_time(tmp_path):
    def net(x, w, v):
        y = wf.einsum(x, w, over="d_model")
        return wf.einsum(y, v, over="d_ff")

    args = fill_shapes(
        (
            wf.tensor(jax.ShapeDtypeStruct((512, 1024), "float32"), "batch d_model"),
            wf.tensor(jax.ShapeDtypeStruct((1024, 2048), "float32"), "d_model d_ff"),
            wf.tensor(jax.ShapeDtypeStruct((2048, 1), "float32"), "d_ff out"),
        )
    )
    bound = wf.spmd(net, mesh="x=1", layout="")
    bound.mesh.jax_mesh()
    profile_calls(bound, args, tmp_path, steps=3)
    found = wf.trace(bound, *args).measured(tmp_path, hardware="h100")
    longest = max(found.lines, key=lambda line: line.own)
    assert longest.line.text == "einsum(x, w, over='d_model')" and not longest.is_shared_out


def test_a_line_that_stands_for_several_layers_has_the_work_of_all():
    def tower(x, *ws):
        for w in ws:
            y = wf.einsum(wf.exp(x), w, over="d_model")
            x = x + wf.einsum(wf.relu(y), w, over="d_ff")
        return x

    of = sizes()
    x, w = (
        wf.tensor(random("batch d_model", of), "batch d_model"),
        wf.tensor(random("d_model d_ff", of), "d_model d_ff"),
    )
    program = wf.trace(tower, x, w, w, w, mesh=MESH, layout=LAYOUT)
    (block,) = program.lines[0].lines
    assert block.text == "repeated x3" and [len(line.doers) for line in block.lines] == [3] * len(block.lines)
    ops = {doer.op for line in block.lines for doer in line.doers}
    assert ops == set(range(5 * 3))
    assert {doer.collective for doer in block.lines[-2].doers} == {"all_reduce"}


def test_a_profile_of_another_program_is_refused(folder):
    def other(x, w):
        return wf.einsum(wf.exp(x), w, over="d_model")

    of = sizes()
    args = (
        wf.tensor(random("batch d_model", of), "batch d_model"),
        wf.tensor(random("d_model d_ff", of), "d_model d_ff"),
    )
    program = wf.trace(other, *args, mesh=MESH, layout=LAYOUT)
    with pytest.raises(
        MeasureError, match=r"the profile is of another program: in `jit_train_step` op \d+ is"
    ) as error:
        program.measured(folder, hardware="h100")
    assert "profile this program" in error.value.fix and str(folder) in error.value.state


def test_a_profile_of_other_sizes_is_refused(folder):
    step, args = step_and_args(batch=16)
    with pytest.raises(MeasureError, match=r"of other sizes: `jit_train_step` is given a float32\[4, 16\]"):
        wf.trace(step, *args).measured(folder, hardware="h100")


def test_a_profile_of_another_mesh_is_refused(folder):
    step, args = step_and_args()
    program = wf.trace(step, *args, mesh="rows=2", layout="batch:rows")
    with pytest.raises(MeasureError, match="the profile is of 8 processors, and the program of 2"):
        program.measured(read_step_times(folder), hardware="h100")


def test_shapes_are_filled_with_values_of_their_kind():
    key = jax.eval_shape(lambda: jax.random.key(0))
    f, i = jax.ShapeDtypeStruct((2, 3), "bfloat16"), jax.ShapeDtypeStruct((50,), "int32")
    shapes = dict(f=f, i=i, key=key, kept=jnp.ones(2))
    filled = fill_shapes({**shapes, "b": jax.ShapeDtypeStruct((), "bool")}, below=7)
    assert filled["f"].dtype == jnp.bfloat16 and filled["f"].shape == (2, 3) and filled["kept"] is shapes["kept"]
    assert filled["i"].min() >= 0 and filled["i"].max() == 6 and filled["b"].dtype == bool
    assert jnp.issubdtype(filled["key"].dtype, jax.dtypes.prng_key)
