"""What a notebook shows of values: HTML that stands alone, escaped, in the colours of the axes."""

import re
from html.parser import HTMLParser

import jax
import numpy as np
import optax
import pytest

import weft as wf
from weft.cells import cell, colour_axes, fold, line, quiet, table
from weft.program.ledger import Ledger
from weft.tensor import with_kind

MESH = wf.Mesh("rows=2,cols=2")
LAYOUT = wf.Layout("batch:rows,d_ff:cols,params.d:rows")


class Read(HTMLParser):
    """The tags of some HTML, which are all closed, and its text without the style."""

    VOID = frozenset("br hr img meta link input".split())

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += "" if self.open[-1:] == ["style"] else f"{data} "

    @property
    def words(self):
        return " ".join(self.text.split())

    def coloured(self):
        return {attrs["class"] for tag, attrs in self.tags if tag == "i"}


def read(shown):
    """What is shown, which reaches nothing outside it, runs nothing, and is right in light and dark."""
    text = shown if isinstance(shown, str) else shown._repr_html_()
    found = Read(text)
    assert {tag for tag, _ in found.tags} <= set("style div b i span table tr th td details summary pre".split())
    assert {name for _, attrs in found.tags for name in attrs} <= {"class", "open"}
    assert not re.search(r"https?:|url\(|@import", text)
    assert "prefers-color-scheme:dark" in text
    return found


def test_a_mesh_shows_its_axes_in_colours_and_which_links_they_go_over():
    found = read(wf.Mesh("hosts=2|rows=4,cols=3"))
    assert found.words == "Mesh 24 processors axis processors links hosts 2 from host to host rows 4 cols 3"
    assert found.coloured() == {"a0", "a1", "a2"}


def test_a_layout_shows_every_rule():
    found = read(wf.Layout("batch:rows,d_ff:rows+cols,params.*:host"))
    assert found.words == "Layout dim over batch rows d_ff rows + cols params.* host"
    assert "the empty layout" in read(wf.Layout("")).words


def test_a_tensor_shows_its_type_sizes_values_and_where_it_lies():
    x = wf.tensor(np.arange(6, dtype="float32").reshape(2, 3), "batch d")
    assert read(x).words == "f32[batch d] a tensor dim size batch 2 d 3 values [[0. 1. 2.] [3. 4. 5.]]"
    placed = wf.put(x, mesh=MESH, layout="batch:rows")
    found = read(placed)
    assert found.words.startswith("f32[batch/ rows d] a tensor dim size over on each processor batch 2 rows 1 d 3 3")
    assert found.coloured() == {"a0"}
    number = wf.parameter(1.5, [])
    assert read(number).words == "f32[] a parameter 1.5"
    assert "a frozen parameter" in read(with_kind(number, frozen=True)).words


def test_of_a_large_tensor_a_corner_is_shown_and_of_a_padded_one_its_values():
    large = read(wf.tensor(np.arange(30_000).reshape(3, 100, 100), "layers a b"))
    assert "the first values [[[ 0 1 2 3 4 5]" in large.words and "999" not in large.words
    padded = read(wf.pad_to(wf.tensor(np.ones(3, "float32"), "d"), "d", 4))
    assert padded.words.endswith("dim size d 3, padded to 4 values [1. 1. 1.]")
    split = wf.put(wf.pad_to(wf.tensor(np.ones(3, "float32"), "d"), "d", 4), mesh=MESH, layout="d:rows")
    assert "d 3, padded to 4 rows 2 values [1. 1. 1.]" in read(split).words


def test_inside_a_region_a_tensor_shows_its_placement_and_no_slice():
    seen = []

    def f(x):
        seen.append(x._repr_html_())
        return x * 2

    x = wf.tensor(np.full((8, 6), 7.25, "float32"), "batch d_ff")
    wf.trace(f, x, mesh=MESH, layout="batch:rows,d_ff:cols")
    jax.jit(f)(x)
    inside, traced = map(read, seen)
    assert "batch 8 rows 4 d_ff 6 cols 3" in inside.words and inside.coloured() == {"a0", "a1"}
    assert not any("7.2" in found.words for found in (inside, traced))


RAW = [object(), None, "<script>", jax.ShapeDtypeStruct((2,), "float32")]


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: type(raw).__name__)
def test_anything_in_a_tensors_place_shows(raw):
    structure = jax.tree.structure(wf.tensor(np.ones(2, "float32"), "d"))
    text = jax.tree.unflatten(structure, [raw])._repr_html_()
    assert "<script>" not in text and Read(text).words


def test_a_donated_tensor_shows_without_values():
    x = wf.tensor(jax.numpy.ones(2), "d")
    x.raw.delete()
    assert read(x).words == "f32[d] a tensor dim size d 2"


def test_a_ledger_marks_its_collectives_and_totals():
    x = wf.tensor(np.ones((8, 6), "float32"), "batch d_ff")
    program = wf.trace(lambda x: wf.sum(x, over="d_ff"), x, mesh=MESH, layout="batch:rows,d_ff:cols")
    found = read(program.ledger)
    assert "Ledger 1 row over rows : nothing over cols : 16 B in 1 call collectives" in found.words
    assert "all_reduce cols f32[batch]" in found.words.replace("float32", "f32") and "details" in dict(found.tags)
    assert found.coloured() == {"a0", "a1"}
    assert "nothing is sent" in read(Ledger([])).words


def test_a_train_state_shows_what_is_trained_and_where_it_lies():
    step = wf.train_step(lambda p, batch, key: wf.sum(p["w"] * batch, over="d d_ff batch"), optax.adam(1e-3))
    w = wf.parameter(np.ones((4, 6), "float32"), "d d_ff")
    params = {
        "<b>": w,
        "ids": wf.tensor(np.arange(3, dtype="int32"), "ids"),
        "still": with_kind(wf.parameter(np.ones(2, "float32"), "n"), frozen=True),
    }
    found = read(step.init(params))
    assert "TrainState after step 0 parameters: 3 arrays, 29 numbers" in found.words
    assert "['<b>'] f32[d d_ff] 4 x 6 trained" in found.words
    assert "['ids'] i32[ids] 3 kept" in found.words and "['still'] f32[n] 2 frozen" in found.words
    shapes = step.init({"w": wf.parameter(jax.ShapeDtypeStruct((4, 6), "float32"), "d d_ff")})
    assert "TrainState parameters: 1 array, 24 numbers" in read(shapes).words
    on = wf.train_step(step.loss, optax.adam(1e-3), mesh=MESH, layout=LAYOUT)
    assert "f32[d/ rows d_ff/ cols ] 4 x 6 trained" in read(on.init({"w": w})).words


def test_a_program_bound_to_a_mesh_says_what_it_is():
    def loss(params, batch, key):
        return wf.sum(params["w"] * batch, over=batch.dims)

    bound = wf.spmd(loss, mesh=MESH, layout=LAYOUT)
    assert repr(bound) == "SpmdFunction(loss, mesh='rows=2,cols=2', layout='batch:rows,d_ff:cols,params.d:rows')"
    step = wf.train_step(loss, optax.sgd(1.0))
    assert repr(step) == "TrainStep(loss)"
    assert repr(wf.train_step(loss, optax.sgd(1.0), mesh="rows=2", layout="batch:rows")) == (
        "TrainStep(loss, mesh='rows=2', layout='batch:rows')"
    )


def test_hostile_names_are_text():
    bad = '<img src=x onerror="alert(1)">'
    found = read(cell(line(quiet(bad)), fold(bad, table((bad,), [(colour_axes([bad], [bad]),)], right=[0]))))
    assert found.words.count(bad) == 4


def test_of_very_many_rows_the_first_are_shown():
    assert Read(table(("n",), [(str(i),) for i in range(1_500)])).words.endswith("199 1,300 more")
