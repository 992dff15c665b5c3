"""A line of the printed program says what the user wrote: the variable, the arguments, the function, the line."""

import functools
import linecache

import jax
import pytest

import weft as wf
from tests.ops.table import DIMS, FAMILIES
from tests.ops.test_contract import QUICK, anchors
from tests.program.cases import B, D, F, shape, weight
from weft.program.source import shown_path

MESH, LAYOUT = "rows=2,cols=4", "batch:rows,d_ff:cols"


def flat(lines):
    """All lines of a listing, in order."""
    for line in lines:
        yield line
        yield from flat(line.lines)


def ops(program):
    return [line for line in flat(program.lines) if line.kind == "op"]


def written(fn):
    """What the lines say of a function of x[batch d_model] and w[d_model d_ff]: `name = text`, or the text alone."""
    program = wf.trace(fn, shape(B, D), weight(D, F), mesh=MESH, layout=LAYOUT)
    return [f"{line.name} = {line.text}" if line.name else line.text for line in ops(program)]


# One function for each way to write an op; its docstring says what the lines say.


def assigned(x, w):
    """y = einsum(x, w, over=D)"""
    y = wf.einsum(x, w, over=D)
    return y


def returned(x, w):
    """einsum(x, w, over=D)"""
    return wf.einsum(x, w, over=D)


def nested(x, w):
    """einsum(x, w, over=D) | h = relu(...)"""
    h = wf.relu(wf.einsum(x, w, over=D))
    return h


def operators(x, w):
    """-x | ... ** 2 | x / 3 | y = ... + ... | is_large = y > 1"""
    y = (-x) ** 2 + x / 3
    is_large = y > 1
    return is_large


def augmented(x, w):
    """y = exp(x) | y = y + x | y = y * 2"""
    y = wf.exp(x)
    y += x
    y *= 2
    return y


def annotated(x, w):
    """y = exp(x)"""
    y: wf.Tensor = wf.exp(x)
    return y


def walrus(x, w):
    """y = exp(x)"""
    if (y := wf.exp(x)) is not None:
        return y


def several_at_once(x, w):
    """a = sin(x) | b = cos(x) | a + b"""
    a, b = wf.sin(x), wf.cos(x)
    return a + b


def unpacked(x, w):
    """a = sin by f(x) | b = cos by f(x) | a + b"""
    a, b = (f(x) for f in (wf.sin, wf.cos))
    return a + b


def unpacked_einsums(x, w):
    """q = einsum(x, v, over=D) | k = einsum(x, v, over=D) | q + k"""
    q, k = [wf.einsum(x, v, over=D) for v in (w, w)]
    return q + k


def in_a_tree(x, w):
    """tree['a'] = exp(x) | tree['b'] = tanh(tree['a'])"""
    tree = {}
    tree["a"] = wf.exp(x)
    tree["b"] = wf.tanh(tree["a"])
    return tree


def over_several_lines(x, w):
    """y = einsum(x, w, over=D)"""
    y = wf.einsum(
        x,
        w,
        over=D,
    )
    return y


def chained(x, w):
    """x.rename(batch='a') | ....rename(a='b') | y = ....rename(b='batch')"""
    y = (
        x.rename(batch="a")
        .rename(a="b")
        .rename(b="batch")
    )  # fmt: skip
    return y


def by_lambda(x, w):
    """einsum(x, w, over=D)"""
    return (lambda x: wf.einsum(x, w, over=D))(x)


def by_map(x, w):
    """exp by list(map(wf.exp, [x])) | tanh(v)"""
    return list(map(wf.exp, [x])), list(map(lambda v: wf.tanh(v), [x]))  # noqa: C417


def of_a_function(x, w):
    """einsum(x, w, over=D) | y = relu(returned(x, w))"""
    y = wf.relu(returned(x, w))
    return y


def what_the_type_says(x, w):
    """einsum(x, w) | y = cast(..., 'bfloat16')"""
    y = wf.cast(wf.einsum(x, w, out=[B, F], dtype="float32"), "bfloat16")
    return y


class Layer:
    """A class as people write them."""

    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        self.h = wf.einsum(x, self.w, over=D)
        return self.h


def of_a_class(x, w):
    """self.h = einsum(x, self.w, over=D)"""
    return Layer(w)(x)


def decorated_by_a_friend(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)

    return call


@wf.remat
@decorated_by_a_friend
def decorated(x, w):
    """y = einsum(x, w, over=D)"""
    y = wf.einsum(x, w, over=D)
    return y


WAYS = [
    assigned, returned, nested, operators, augmented, annotated, walrus, several_at_once, unpacked, unpacked_einsums,
    in_a_tree, over_several_lines, chained, by_lambda, by_map, of_a_function, what_the_type_says, of_a_class, decorated,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_line_has_the_variables_name_and_the_arguments_as_written(way):
    assert " | ".join(written(way)) == way.__doc__


def test_a_line_names_file_line_and_function():
    program = wf.trace(of_a_class, shape(B, D), weight(D, F), mesh=MESH, layout=LAYOUT)
    (line,) = ops(program)
    first = Layer.__call__.__code__.co_firstlineno
    assert (line.source, line.function) == (f"tests/program/test_source.py:{first + 1}", "Layer.__call__")


def test_the_function_of_a_lambda_or_a_comprehension_is_the_one_it_stands_in():
    program = wf.trace(by_map, shape(B, D), weight(D, F), mesh=MESH, layout=LAYOUT)
    assert {line.function for line in ops(program)} == {"by_map"}


def test_line_numbers_can_be_left_out():
    program = wf.trace(assigned, shape(B, D), weight(D, F), mesh=MESH, layout=LAYOUT)
    assert "test_source.py" in program.text()
    assert "test_source.py" not in program.text(lines=False)
    assert "assigned" in program.text(lines=False).splitlines()[4]


SOURCE = "def net(x, w):\n    y = wf.einsum(x, w, over=D)\n    return wf.sum(y, over=F)\n"


def from_text(filename):
    names = {"wf": wf, "D": D, "F": F}
    exec(compile(SOURCE, filename, "exec"), names)
    program = wf.trace(names["net"], shape(B, D), weight(D, F), mesh=MESH, layout=LAYOUT)
    return [(line.name, line.text, line.source, line.function) for line in ops(program)], program.ledger


def test_code_without_source_still_has_ops_and_lines():
    lines, ledger = from_text("<string>")
    assert lines == [("", "einsum(...)", "<string>:2", "net"), ("", "sum(...)", "<string>:3", "net")]
    assert [row.source for row in ledger] == ["<string>:3"]


@pytest.mark.parametrize("cell", ["<ipython-input-3-1f2e>", "/somewhere/ipykernel_71/3141.py"])
def test_a_cell_of_a_notebook_is_read_like_a_file(cell, monkeypatch):
    monkeypatch.setitem(linecache.cache, cell, (len(SOURCE), None, SOURCE.splitlines(True), cell))
    shown = "ipykernel_71/3141.py" if "/" in cell else cell
    lines, _ = from_text(cell)
    assert lines == [("y", "einsum(x, w, over=D)", f"{shown}:2", "net"), ("", "sum(y, over=F)", f"{shown}:3", "net")]


def test_a_cell_that_is_run_again_is_read_again(monkeypatch):
    cell = "<ipython-input-4-1f2e>"
    for name in ("y", "z"):
        text = SOURCE.replace("y", name)
        monkeypatch.setitem(linecache.cache, cell, (len(text), None, text.splitlines(True), cell))
        names = {"wf": wf, "D": D, "F": F}
        exec(compile(text, cell, "exec"), names)
        program = wf.trace(names["net"], shape(B, D), weight(D, F), mesh=MESH, layout=LAYOUT)
        assert ops(program)[0].name == name


def test_a_path_is_relative_below_the_working_directory_and_short_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown_path(str(tmp_path / "nets" / "mlp.py")) == "nets/mlp.py"
    assert shown_path(str(tmp_path.parent / "nets" / "mlp.py")) == "nets/mlp.py"
    assert shown_path("<string>") == "<string>"


def test_an_operand_that_is_a_sum_of_numbers_keeps_its_brackets():
    i = 3

    def net(x, w):
        return x * (1 + 0.1 * i)

    (text,) = written(net)
    assert text == "x * (1 + 0.1 * i)"


def test_a_long_argument_is_cut():
    def net(x, w):
        return wf.clip(x, min=-1.0000000000001, max=1.0 + 2.0 + 3.0 + 4.0 + 5.0 + 6.0 + 7.0 + 8.0)

    (text,) = written(net)
    assert text == "clip(x, min=-1.0000000000001, max=1.0 + 2.0 + 3.0..."


# Every op of the contract table leaves an entry, and every collective in it can be explained.


def traced(row, placement):
    """The program of a row and, where it has them, its gradients."""

    def run(inputs, _):
        if not row.is_differentiable:
            return row.weft(*inputs)

        def total(inputs):
            values = [x for x in jax.tree.leaves(row.weft(*inputs), is_leaf=is_tensor) if x.dtype.kind in "fcV"]
            return sum((wf.sum(wf.cast(wf.real(x * x), "float32"), over=x.dims) for x in values), wf.zeros([]))

        return row.weft(*inputs), wf.grad(total)(inputs)

    return wf.trace(run, row.inputs, anchors(), mesh=placement.mesh, layout=placement.layout)


def is_tensor(x):
    return isinstance(x, wf.Tensor)


UNNAMED = {"operator", "parameter", "remat", "custom_vjp"}  # rows of several ops, none of which has their name
HOUSES = ("tests/program/test_source.py:", "tests/ops/table")


@pytest.mark.quick("elementwise", "einsum", "index", "move", "moving", "conv", "scatter", "samples", "control")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_leaves_an_entry_and_every_collective_has_a_reason(family):
    wrong, seen = [], 0
    for row in FAMILIES[family]:
        try:
            program = traced(row, QUICK[1])
        except wf.LayoutError:  # two dims of a tensor on one axis, a loop over a split dim
            continue
        seen += 1
        reading = program.reading
        named = [entry for entry in reading.entries if entry.op == row.op.split(".")[-1]]
        if not named and row.op not in UNNAMED:
            wrong.append(f"{row.name}: no entry among {[entry.op for entry in reading.entries]}")
        wrong += [
            f"{row.name}: {entry.op} at {reading.site(entry)}"
            for entry in reading.entries
            if not str(reading.site(entry)).startswith(HOUSES)
        ]
        wrong += [
            f"{row.name}: {sent}"
            for sent in program.ledger
            if not sent.source.startswith(HOUSES) or not sent.reason.startswith("because ") or "  " in sent.reason
        ]
        assert str(program)
    assert wrong == []
    assert seen > len(FAMILIES[family]) / 4


def test_the_table_has_every_dim_of_its_rows():
    assert {dim.name for rows in FAMILIES.values() for row in rows for x in row.inputs for dim in x.dims} <= set(DIMS)
