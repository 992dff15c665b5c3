"""What a user sees of `wf` and of its rooms: public names, each with a line of help, and nothing else."""

import subprocess
import sys

import pytest

import weft as wf

ROOMS = {
    "wf": wf,
    "wf.ops": wf.ops,
    "wf.random": wf.random,
    "nn": wf.nn,
    "models": wf.models,
    "data": wf.data,
    "train": wf.train,
    "decode": wf.decode,
    "interop": wf.interop,
}


@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
def test_a_room_shows_its_public_names_and_nothing_else(room):
    assert sorted(name for name in dir(room) if not name.startswith("__")) == sorted(room.__all__)
    assert len(set(room.__all__)) == len(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)


def test_help_is_a_table_of_contents():
    listed = wf.__doc__.partition("by family")[2].split("\n\n")[1:]
    names = [name for family in listed for name in family.partition("\n")[2].split()]
    assert sorted(names) == sorted(wf.__all__)


@pytest.mark.parametrize("name", "layout mesh errors record lower leaves checks Any folded FUNCTIONS".split())
def test_what_is_inside_is_no_name_of_wf(name):
    assert not hasattr(wf, name)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("reshape", ("wf.split", "wf.merge")),
        ("reduce_sum", ("wf.sum",)),
        ("layout", ("wf.Layout",)),
        ("mesh", ("wf.Mesh",)),
        ("einsm", ("wf.einsum",)),
    ],
)
def test_a_name_that_is_not_there_says_what_to_write(name, fix):
    with pytest.raises(wf.UnknownNameError) as caught:
        getattr(wf, name)
    assert all(word in caught.value.fix for word in fix)


def test_a_room_names_the_closest_too():
    with pytest.raises(wf.UnknownNameError, match=r"did you mean `train\.Trainer`"):
        wf.train.Trainr


def test_the_inside_is_imported_as_ever():
    source = """
import weft.layout, weft.plan
import weft.mesh as mesh
from weft import dtypes, lower
from weft.layout import Layout
assert mesh.Mesh is weft.Mesh and Layout is weft.Layout
assert weft.plan.Plan is weft.Plan
assert lower.__name__ == "weft.lower" and dtypes.short_dtype("float32") == "f32"
"""
    subprocess.run([sys.executable, "-c", source], check=True)
