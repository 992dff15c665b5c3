"""A program as JSON: plain values of a stated version that say what the printed program says."""

import json

import jax
import optax
import pytest

import weft as wf
from tests.program.cases import ADAM, B, D, F, L, shape, weight

# What version 1 holds. A key that is renamed or dropped, or means something else, needs another version.
VERSION = 1
PROGRAM = (
    "version name mesh layout lines ledger exact "
    "flops flops_useful flops_idle flops_duplicated flops_recomputed duplicated"
)
ROW = (
    "collective axes dims dtype bytes count phase source function reason exact ways is_each_turn wire_bytes"
)  # fmt: skip
LINE = "kind name type text source function reason count is_each_turn lines"


def loss(params, x, key=None):
    def layer(x, w):
        return x + wf.einsum(wf.relu(wf.einsum(x, w["w"], over=D)), w["v"], over=F), None

    return wf.mean(wf.scan(wf.remat(layer), x, params, over=L)[0], over=[B, D])


PARAMS = {"w": weight(L, D, F), "v": weight(L, F, D)}


def step():
    made = wf.train_step(loss, ADAM)
    layout = "batch:rows,d_ff:cols,optimizer.d_model:rows"
    return wf.trace(made, made.init(PARAMS), shape(B, D), mesh="rows=2,cols=4", layout=layout)


def flat(lines):
    for line in lines:
        yield line
        yield from flat(line["lines"])


def test_it_has_a_version_and_the_keys_of_that_version():
    found = json.loads(step().to_json())
    assert found["version"] == VERSION
    assert set(found) == set(PROGRAM.split())
    assert all(set(row) == set(ROW.split()) for row in found["ledger"])
    assert all(set(line) == set(LINE.split()) for line in flat(found["lines"]))


def test_it_names_the_program_the_mesh_and_the_layout():
    found = json.loads(step().to_json())
    assert found["mesh"] == {"rows": 2, "cols": 4}
    assert wf.Layout(found["layout"]) == wf.Layout("batch:rows,d_ff:cols,optimizer.d_model:rows")
    assert found["name"] == "train_step"


def test_its_numbers_are_those_of_the_program():
    program = step()
    found = program.to_dict()
    assert sum(row["bytes"] * row["count"] for row in found["ledger"]) == program.ledger.bytes()
    assert [row["wire_bytes"] for row in found["ledger"]] == [row.wire_bytes for row in program.ledger]
    assert (found["flops"], found["flops_useful"]) == (program.flops, program.flops_useful)
    assert found["flops_duplicated"] == program.flops_duplicated
    assert found["duplicated"] == program.flops_duplicated.reason


def test_its_lines_are_those_printed():
    program = step()
    found = list(flat(program.to_dict()["lines"]))
    printed = str(program)
    assert {line["kind"] for line in found} == {"section", "block", "op", "collective", "note"}
    assert all(line["text"] in printed and line["source"] in printed for line in found)
    sent = [line for line in found if line["kind"] == "collective"]
    assert len(sent) == printed.count(">>")
    assert sum(line["count"] for line in sent) == program.ledger.count()


def test_json_gives_back_the_same_values():
    program = step()
    assert json.loads(program.to_json()) == json.loads(json.dumps(program.to_dict()))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: x, (shape(B, D),)),
        (lambda x: None, (shape(B, D),)),
        (lambda x: wf.while_loop(lambda x: wf.sum(x, over=[B, D]) < 9, lambda x: x + 1, x), (shape(B, D),)),
        (lambda c, x: wf.cond(c, wf.exp, lambda x: x, x), (jax.ShapeDtypeStruct((), bool), shape(B, D))),
    ],
)
def test_every_program_can_be_written(fn, args):
    program = wf.trace(fn, *args, mesh="rows=2", layout="batch:rows")
    assert json.loads(program.to_json())["ledger"] == [
        json.loads(json.dumps(row)) for row in program.to_dict()["ledger"]
    ]


def test_what_is_not_exact_is_marked():
    def flat_loss(params, x, key=None):
        return wf.mean(wf.einsum(x, params["w"], over=D), over=[B, F])

    assert step().to_dict()["exact"] is True
    made = wf.train_step(flat_loss, optax.contrib.muon(1e-3))
    state = made.init({"w": weight(D, F)})
    assert wf.trace(made, state, shape(B, D), mesh="rows=2,cols=4", layout="d_ff:cols").to_dict()["exact"] is False
