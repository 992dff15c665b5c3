"""Printed programs of every model under every layout, as they were accepted: a refactor leaves them byte-identical.

Functions stand in place of line numbers. `make accept` writes the files anew where a change is meant; read what git
shows then as you would read code.
"""

import difflib
import functools
import importlib.util
import re
from pathlib import Path

import jax
import optax
import pytest

import weft as wf
from weft import models

HERE = Path(__file__).parent
GOLDENS = HERE / "goldens"
MESH = "rows=2,cols=4"
LAYOUTS = [
    "",
    "batch:rows",
    "heads:cols,d_ff:cols,vocab:cols",
    "batch:rows,heads:cols,d_ff:cols,vocab:cols",
    "batch:rows,params.d_model:rows",
    "batch:rows,optimizer.d_model:rows",
    "length:cols",
]
PAPERS = "batch:rows,heads:cols,d_ff:cols,vocab:cols"

ADAM = optax.adam(1e-3)
ADAFACTOR = optax.adafactor(1e-3, min_dim_size_to_factor=8)  # every matrix of the small model is factored
FEW = [LAYOUTS[0], PAPERS, "batch:rows,params.d_model:rows", "batch:rows,stream:cols,heads:cols,d_ff:cols,vocab:cols"]
EXPERTS = ["", "batch:rows", "batch:rows,experts:rows,d_ff:cols", "batch:rows,experts:cols"]
IMAGES = ["", "height:rows,width:cols", "batch:rows,filters:cols", "batch:rows,params.channels:rows"]
MODERN = dict(positions="rotary", heads=4, group=2, gated=True, activation="silu")
MODELS = {
    "tiny-lm": (ADAM, {}, LAYOUTS),
    "tiny-lm unrolled": (ADAM, dict(scanned=False, layers=2), LAYOUTS),
    "tiny-lm remat": (ADAM, dict(remat=True), LAYOUTS),
    "tiny-lm tied": (ADAM, dict(tied=True), LAYOUTS),
    "tiny-lm adafactor": (ADAFACTOR, {}, LAYOUTS),
    "tiny-lm modern": (ADAM, MODERN, FEW),
    "tiny-mt": (ADAM, {}, FEW),
    "tiny-bert": (ADAM, {}, FEW),
    "tiny-moe": (ADAM, {}, EXPERTS),
    "tiny-moe top2": (ADAM, dict(gating="top2", every=2), EXPERTS),
    "tiny-unet": (ADAM, {}, IMAGES),
}


def train_step(preset, optimizer, mesh, layout, **changes):
    """The program of one step of training, from shapes alone."""
    config = models.preset(preset, **changes)
    step = wf.train_step(lambda model, batch, key: model.loss(batch), optimizer)
    return wf.trace(step, step.init(models.shapes(config)), config.batch_shapes(), mesh=mesh, layout=layout)


@functools.cache
def example(name):
    """An example's file as a module."""
    spec = importlib.util.spec_from_file_location("example", HERE.parent / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def two_layer_net(layout):
    """The net of the second example and its gradients."""
    net = example("02_same_answer")
    d_io, hidden, batch = net.d_io, net.hidden, net.batch

    def shape(make, *dims):
        return make(jax.ShapeDtypeStruct([dim.size for dim in dims], "float32"), dims)

    params = {"w": shape(wf.parameter, d_io, hidden), "v": shape(wf.parameter, hidden, d_io)}
    x = shape(wf.tensor, batch, d_io)
    return wf.trace(wf.value_and_grad(net.loss), params, x, x, mesh=net.MESH, layout=layout)


def large_lm():
    """The paper's largest language model on its largest mesh."""
    return train_step("lm-4.90b", optax.adafactor(1e-3), "rows=16,cols=32", PAPERS)


def programs():
    """Every program by the name of its file."""
    found = {
        file_name(name, layout): functools.partial(train_step, name.split()[0], optimizer, MESH, layout, **changes)
        for name, (optimizer, changes, layouts) in MODELS.items()
        for layout in layouts
    }
    for layout in ["", *example("02_same_answer").LAYOUTS.values()]:
        found[file_name("two-layer net", layout)] = functools.partial(two_layer_net, layout)
    found[file_name("lm-4.90b", PAPERS)] = large_lm
    return found


def file_name(model, layout):
    """The model and the rules: `tiny-lm-tied,batch=rows,params.d_model=rows.txt`."""
    rules = layout.replace(" ", "").replace(":", "=") or "empty"
    return f"{model.replace(' ', '-')},{rules}.txt"


PROGRAMS = programs()
SLOW = {  # ways to compute the model that is printed under every layout
    file_name(name, layout)
    for name in ("tiny-lm unrolled", "tiny-lm remat", "tiny-lm tied", "tiny-lm adafactor")
    for layout in LAYOUTS
    if layout != "batch:rows,optimizer.d_model:rows"
} | {  # layouts that others of the same model hold more than
    file_name(name, layout)
    for name in MODELS
    if name != "tiny-lm"
    for layout in ("", "batch:rows", PAPERS, "batch:rows,filters:cols")
}


@pytest.mark.parametrize("file", [pytest.param(f, marks=pytest.mark.slow if f in SLOW else ()) for f in PROGRAMS])
def test_the_printed_program_is_the_accepted_one(file, request):
    printed = PROGRAMS[file]().text(lines=False) + "\n"
    path = GOLDENS / file
    if request.config.getoption("--accept"):
        GOLDENS.mkdir(exist_ok=True)
        path.write_text(printed, encoding="utf-8")
    accepted = path.read_text(encoding="utf-8") if path.exists() else ""
    if printed != accepted:
        lines = difflib.unified_diff(accepted.splitlines(), printed.splitlines(), "accepted", "printed", lineterm="")
        pytest.fail("\n".join([*lines, "", f"If {file} is to change: make accept"]), pytrace=False)


def test_every_accepted_program_is_one_that_is_printed(request):
    left_over = [path for path in GOLDENS.glob("*") if path.name not in PROGRAMS]
    if request.config.getoption("--accept"):
        for path in left_over:
            path.unlink()
        left_over = []
    assert [path.name for path in left_over] == []


def test_the_papers_largest_model_is_read_on_a_few_screens():
    program = large_lm()
    lines = str(program).splitlines()
    assert len(lines) < 200
    sent = [line for line in program.text(lines=False).splitlines() if ">>" in line]
    assert len(sent) == sum(">>" in line for line in lines) > 20
    for line in sent:
        assert re.search(r">> \w+ over [\w+]+ +(about )?[\d.,]+ [KMGT]?i?B x\d+ +[\w.]+ +because \w+", line), line


def test_no_golden_names_a_line_or_a_file():
    for file in PROGRAMS:
        assert not re.search(r"\.py\b|:\d", (GOLDENS / file).read_text(encoding="utf-8")), file
