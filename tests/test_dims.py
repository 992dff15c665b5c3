"""Dims and shapes: names, sizes, and the ways several dims may be written."""

import numpy as np
import pytest

import weft as wf
from weft.dims import Shape, new_dims, resolve, union

batch, length, d = wf.dims(batch=8, length=4, d=16)


def test_a_dim_is_its_name_size_and_what_it_follows():
    stream = wf.Dim("stream", 4, follows="length")
    assert (stream.name, stream.size, stream.follows) == ("stream", 4, "length")
    assert wf.Dim("batch", 8).follows is None


def test_dims_are_equal_and_hash_by_what_they_are():
    assert wf.Dim("batch", 8) == batch and hash(wf.Dim("batch", 8)) == hash(batch)
    assert len({batch, wf.Dim("batch", 8), wf.Dim("batch", 4), wf.Dim("rows", 8)}) == 3
    assert wf.Dim("stream", 4) != wf.Dim("stream", 4, follows="length")


def test_a_dim_cannot_be_changed():
    with pytest.raises(AttributeError):
        batch.size = 4


def test_a_size_may_be_any_whole_number_type():
    dim = wf.Dim("batch", np.int64(8))
    assert dim == batch and type(dim.size) is int


def test_repr_shows_name_and_size():
    assert repr(batch) == "batch=8"
    assert repr(wf.dims(batch=8, d_model=16)) == "(batch=8, d_model=16)"


def test_dims_come_in_the_order_written():
    assert [dim.name for dim in wf.dims(z=1, a=2, m=3)] == ["z", "a", "m"]
    assert wf.dims() == ()


def test_renamed_keeps_the_size_and_follows_nothing():
    assert length.renamed("memory_length") == wf.Dim("memory_length", 4)
    assert wf.Dim("stream", 4, follows="length").renamed("other").follows is None


def test_resized_keeps_the_name_and_what_it_follows():
    assert batch.resized(4) == wf.Dim("batch", 4)
    assert wf.Dim("stream", 4, follows="length").resized(2) == wf.Dim("stream", 2, follows="length")


def test_a_shape_prints_and_finds_its_dims():
    shape = Shape([batch, d])
    assert str(shape) == "batch=8 d=16" and repr(shape) == "[batch=8 d=16]"
    assert shape.names == ("batch", "d") and shape.sizes == (8, 16)
    assert shape.find("d") is d and shape.find(wf.Dim("d", 16)) is d
    assert shape.position("d") == shape.position(d) == 1
    assert shape.has("batch") and shape.has(batch) and not shape.has("length")


def test_a_shape_is_a_tuple_of_dims():
    assert Shape([batch, d]) == (batch, d) and Shape() == () and list(Shape([batch])) == [batch]


@pytest.mark.parametrize("gone", [["batch"], [batch], ["batch", "length"], []])
def test_a_shape_without_some_dims_keeps_the_order_of_the_rest(gone):
    left = Shape([batch, length, d]).without(gone)
    names = [getattr(g, "name", g) for g in gone]
    assert left.names == tuple(name for name in ("batch", "length", "d") if name not in names)


SPELLINGS = ["batch d", "batch, d", "batch,d", "  batch   d ", ["batch", "d"], ("batch", d), [batch, d], [batch, "d"],
             ["batch d"], Shape([batch, d])]  # fmt: skip


@pytest.mark.parametrize("written", SPELLINGS, ids=repr)
def test_every_spelling_of_two_dims(written):
    assert resolve(written, [d, length, batch], what="over") == (batch, d)
    assert new_dims(written, what="dims", known=[batch, d]) == (batch, d)
    assert wf.tensor(np.ones((8, 16)), written).dims == (batch, d)
    x = wf.tensor(np.ones((4, 8, 16)), [length, batch, d])
    assert wf.sum(x, over=written).dims == (length,)
    assert wf.einsum(x, out=written).dims == (batch, d)


@pytest.mark.parametrize("written", ["batch", batch, ["batch"], (batch,), {batch}, iter([batch])])
def test_every_spelling_of_one_dim(written):
    assert resolve(written, [batch, d], what="over") == (batch,)


@pytest.mark.parametrize("written", ["", " ", [], (), Shape()], ids=repr)
def test_every_spelling_of_no_dims(written):
    assert resolve(written, [batch], what="over") == ()
    assert wf.tensor(np.float32(2), written).dims == ()


def test_union_is_in_first_seen_order():
    assert union([d, batch], [batch, length]) == (d, batch, length)


def test_union_keeps_what_a_dim_follows():
    plain, following = wf.Dim("stream", 4), wf.Dim("stream", 4, follows="length")
    assert union([plain], [following])[0].follows == union([following], [plain])[0].follows == "length"
