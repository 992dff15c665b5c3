"""What can be wrong with a model or data of one's own: the fact, the state and the fix."""

import re

import pytest

import weft as wf
from weft import data
from weft.train.config import parse
from weft.train.keys import lines_of
from weft.train.own.code import CodeError, UsersError

from .running import run

HEAD = "import equinox as eqx\nimport numpy as np\nimport weft as wf\nfrom weft import nn\n\n"
NET = (
    HEAD
    + """
features, hidden, classes = wf.dims(features=4, hidden=8, classes=3)


class Net(eqx.Module):
    body: nn.MLP

    def __init__(self, width=8):
        self.body = nn.MLP([features, hidden.resized(width), classes])

    def loss(self, batch, key):
        return LOSS


def make(width=8):
    return Net(width)


def dataset(part, count=8):
    return ROWS if part == "train" else None
"""
)
LOSS = "wf.mean(self.body(batch['points']) ** 2, over='batch classes')"
ROWS = "[{'points': {'x': 1}, 'label': 1}]"


def ran(folder, *, loss=LOSS, rows=None, text=None, model=None, table=None, lay="batch:x", dims=None):
    """The error of a run whose file calls this code."""
    rows = rows or "[{'points': np.full(4, 0.5), 'label': i % 3} for i in range(count)]"
    if dims is not None:
        rows = f"Named({rows})"
    source = (text or NET).replace("LOSS", loss).replace("ROWS", rows)
    source += f"\n\nclass Named(list):\n    dims = {dims!r}\n"
    (folder / "my_file.py").write_text(source)
    values = {
        "model": {"call": "my_file.py:make", **(model or {})},
        "data": {"call": "my_file.py:dataset", **(table or {})},
        "train": {"steps": 1, "batch": 4},
        "eval": {"every": 0},
        "mesh": "x=2",
        "layout": lay,
    }
    toml = '[model]\ncall = ""\n\n[data]\ncall = ""\n'
    with pytest.raises(wf.WeftError) as caught:
        run(parse(values, lines_of(folder / "run.toml", toml)), folder / "run")
    return caught.value


POINTS = {"points": "features"}


def test_code_that_is_not_there(tmp_path):
    error = ran(tmp_path, model={"call": "my_fil.py:make"})
    assert error.fact.endswith("my_fil.py`") and error.fact.startswith("there is no file")
    assert "my_file.py" in error.fix and f"{tmp_path}/run.toml:2" in error.state
    error = ran(tmp_path, model={"call": "my_file.py:maek"})
    assert (error.fact, error.fix) == ("there is no function `maek` in `my_file`", "did you mean `make`?")
    assert ran(tmp_path, model={"call": "my_file.py"}).fix == (
        'write a file and a function in it: `call = "my_file.py:make"`'
    )
    assert ran(tmp_path, table={"call": 3}).fact == "`data.call` is 3"
    (tmp_path / "notes.txt").write_text("")
    assert ran(tmp_path, model={"call": "notes.txt:make"}).fix == "give one that ends in `.py`"


def test_options_that_it_does_not_take(tmp_path):
    error = ran(tmp_path, model={"widht": 4})
    assert error.fact.startswith("`my_file.py:make` cannot be called as `make(widht=4)`: ")
    assert (error.fix, "it takes (width=8)" in error.state) == ("did you mean `width`?", True)
    error = ran(tmp_path, table={"cuont": 4})
    assert "dataset('train', cuont=4)" in error.fact and error.fix == "did you mean `count`?"
    needed = ran(tmp_path, text=NET.replace("def make(width=8)", "def make(width)"))
    assert needed.fix == "give what it needs in `model`"


MADE = {
    "no module": ("return 3", "gave 3, which is no module", "return an Equinox module"),
    "no loss": ("return nn.MLP([features, classes])", "`MLP`, has no `loss`", "write `def loss(self, batch, key)`"),
    "values": (
        "import jax; return eqx.tree_at(lambda n: n.body, Net(), nn.MLP([features, classes], key=jax.random.key(0)))",
        "`body.maps.0.weight` of `my_file.py:make` has values already",
        "leave `key` out",
    ),
    "array": (
        "return eqx.tree_at(lambda n: n.body, Net(), np.zeros((4, 3)))",
        "`body` of `my_file.py:make` is an array without dims, of shape (4, 3)",
        "declare a weight by its dims, `nn.Weight(dims, stddev=0.02)`",
    ),
    "no weights": ("return eqx.tree_at(lambda n: n.body, Net(), ())", "has no weights", "declare some: layers of"),
    "a function": (
        "return eqx.tree_at(lambda n: n.body.maps, Net(), (wf.relu, nn.Linear(features, classes)))",
        "`body.maps.0` of `my_file.py:make` is a function",
        "eqx.field(static=True)",
    ),
}


@pytest.mark.parametrize("case", MADE)
def test_what_is_made_is_no_model(case, tmp_path):
    body, fact, fix = MADE[case]
    error = ran(tmp_path, text=NET.replace("return Net(width)", body))
    assert fact in error.fact and fix in error.fix and "run.toml:2" in error.state


LOSSES = {
    "no scalar": ("wf.mean(self.body(batch['points']), over='classes')", "no scalar", "give its mean over all dims"),
    "a name that rows lack": (
        "wf.mean(batch['pionts'], over='batch')",
        "the loss of `my_file.py:make` asks for `pionts`, and a batch has none",
        "did you mean `points`?",
    ),
    "metrics of many numbers": (
        f"({LOSS}, {{'all': self.body(batch['points'])}})",
        "beside its loss `my_file.py:make` gives {'all':",
        "a dict of scalars by name",
    ),
    "metrics that are no dict": (f"({LOSS}, 3)", "beside its loss `my_file.py:make` gives 3", "a dict of scalars"),
    "a metric called loss": (f"({LOSS}, {{'loss': {LOSS}}})", "has a metric called `loss`", "call it otherwise"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_what_the_loss_gives_is_none(case, tmp_path):
    loss, fact, fix = LOSSES[case]
    error = ran(tmp_path, loss=loss, dims=POINTS)
    assert fact in error.fact and fix in error.fix and re.search(r"my_file.py:1[67] in loss", error.state)


def test_a_loss_that_fails_by_itself_says_where(tmp_path):
    error = ran(tmp_path, loss="1 / 0 * self.body(batch['points'])", dims=POINTS)
    assert isinstance(error, UsersError) and isinstance(error.__cause__, ZeroDivisionError)
    assert error.fact == "the loss of `my_file.py:make` failed" and "my_file.py:" in error.state
    error = ran(tmp_path, text=HEAD + "raise ValueError('no')\n")
    assert error.fact.endswith("my_file.py` failed while it was imported")


def test_a_key_that_the_code_itself_lacks_is_not_blamed_on_the_batch(tmp_path):
    error = ran(tmp_path, loss="{'width': 4}['pionts'] * self.body(batch['points'])", dims=POINTS)
    assert error.fact == "the loss of `my_file.py:make` failed" and isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize("wrong", ["{}['cell']", "[][3]", "int('a cell')"])
def test_a_row_that_fails_has_a_number(wrong, tmp_path):
    get = f"lambda s, i: {{'points': np.ones(4)}} if i < 5 else {wrong}"
    rows = f"type('Rows', (), {{'dims': {POINTS}, '__len__': lambda s: 8, '__getitem__': {get}}})()"
    error = ran(tmp_path, rows=rows)
    assert isinstance(error, UsersError) and re.fullmatch("row [567] of `.*` could not be read", error.fact)
    assert "it has 8 rows" in error.state and "my_file.py:" in error.state and error.__cause__ is not None


def test_a_rule_that_names_no_dim_of_it(tmp_path):
    error = ran(tmp_path, dims=POINTS, lay="batch:x,hiden:x")
    assert "hiden" in error.fact and "hidden" in error.fix


ROWS_THAT_CANNOT_BE = {
    "none": ("[]", None, "gave a dataset without rows", "give it some"),
    "no dict": ("[1, 2]", None, "row 0 of `my_file.py:dataset` is 1", "give a dict of arrays by name"),
    "texts": ("[{'points': 'a'}]", None, "`points` in row 0 of `my_file.py:dataset` holds <U1", "give numbers"),
    "no names": ("[{'points': np.ones(4)}]", {}, "has shape (4,), without names", '`dims = {"points": "length"}`'),
    "a name too few": ("[{'points': np.ones((4, 2))}]", POINTS, "named `features`", "name what follows `batch`"),
    "a name of no array": ("[{'points': np.ones(4)}]", {"point": "features"}, "name `point`", "did you mean `points`?"),
    "no dims": ("[{'points': np.ones(4)}]", "features", "the `dims` of `my_file.py:dataset` are", "write which dims"),
    "one dim of two sizes": (
        "[{'points': np.ones(4), 'more': np.ones(5)}]",
        {"points": "features", "more": "features"},
        "`features` is 4 in `points` and 5 in `more`",
        "give them two names",
    ),
    "other shapes": (
        "[{'points': np.ones(4 + (i > 4))} for i in range(8)]",
        POINTS,
        "and (4,) in the first",
        "make all rows of one shape",
    ),
    "other dtypes": (
        "[{'points': np.ones(4, 'int32' if i < 5 else 'float32')} for i in range(8)]",
        POINTS,
        "`points` is float32 in row",
        "give it one dtype: `.astype('int32')`",
    ),
    "other names": (
        "[{'points': np.ones(4), **({'label': 1} if i > 4 else {})} for i in range(8)]",
        POINTS,
        "has `label`, and the first does not",
        "give all rows the same",
    ),
    "a length that is not so": (
        "type('Long', (list,), {'__len__': lambda s: 8})([{'points': 1.0}])",
        None,
        "has 8 rows, and none of number",
        "let `len(rows)` say",
    ),
}


@pytest.mark.parametrize("case", ROWS_THAT_CANNOT_BE)
def test_rows_that_cannot_be_read(case, tmp_path):
    rows, dims, fact, fix = ROWS_THAT_CANNOT_BE[case]
    error = ran(tmp_path, rows=rows, dims=dims, loss="wf.mean(self.body.maps[0].bias, over='hidden')")
    assert isinstance(error, data.DataError) and fact in error.fact and fix in error.fix


def test_data_that_is_none(tmp_path):
    error = ran(tmp_path, rows="3")
    assert isinstance(error, CodeError) and error.fact == "`my_file.py:dataset` gave 3 for the part 'train'"
    assert ran(tmp_path, rows="None").fact == "`my_file.py:dataset` gave None for the part 'train'"
    each = "({'points': np.ones(4) / (i < 3 or int('a'))} for i in range(8))"
    rows = f"type('Flow', (), {{'dims': {POINTS}, '__iter__': lambda s: {each}}})()"
    error = ran(tmp_path, rows=rows, table={"resume": "approximate"})
    assert isinstance(error, UsersError) and error.fact == "row 3 of `my_file.py:dataset` could not be read"
    assert "gives no rows" in ran(tmp_path, rows="(x for x in ())", table={"resume": "approximate"}).fact
