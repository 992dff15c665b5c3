"""The type of an array as a value, and its text."""

import jax
import pytest

import weft as wf
from weft.program.array_type import ArrayDim, ArrayType, named_type, unnamed_type

BATCH, LAYERS, ROW = ArrayDim("batch", 8, ("rows", "cols")), ArrayDim("layers", 3), ArrayDim(None, 4)


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ((), "f32[]"),
        ((LAYERS, BATCH), "f32[layers batch/rows+cols]"),
        ((ROW, ROW), "f32[4,4]"),
        ((LAYERS, ROW, ROW), "f32[layers 4,4]"),
        ((ROW, BATCH), "f32[4 batch/rows+cols]"),
    ],
)
def test_names_stand_apart_and_sizes_together(dims, text):
    assert str(ArrayType("float32", dims)) == text


def test_axes_and_dtype_are_written_as_asked():
    type_ = ArrayType("key<fry>", (BATCH,))
    assert type_.text(str.upper, lambda dtype: dtype.replace("<", "&lt;")) == "key&lt;fry>[batch/ROWS+COLS]"


def test_a_type_has_names_where_its_tensor_has():
    batch, d = wf.dims(batch=8, d=4)
    named = named_type("float32", (batch, d), (("rows",), ()))
    assert named.is_named and named.names == ("batch", "d")
    plain = unnamed_type(jax.ShapeDtypeStruct((8, 4), "float32"))
    assert not plain.is_named and plain.names == ()
    assert ArrayType("float32", (LAYERS, ROW)).names == ("layers",)
