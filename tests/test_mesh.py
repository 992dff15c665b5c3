"""Meshes: every way to write one, and how it becomes devices."""

import jax
import pytest

import weft as wf
from weft.mesh import as_mesh

SPELLINGS = [
    "rows=4,cols=2", "rows=4, cols=2", "rows:4,cols:2", "rows=4;cols=2", "rows:4;cols:2", "rows=4 cols=2",
    "rows = 4 , cols = 2", " rows=4,cols=2, ", {"rows": 4, "cols": 2},
]  # fmt: skip


@pytest.mark.parametrize("written", SPELLINGS, ids=repr)
def test_every_spelling(written):
    mesh = wf.Mesh(written)
    assert mesh.axes == {"rows": 4, "cols": 2} and list(mesh.axes) == ["rows", "cols"]
    assert mesh == wf.Mesh(rows=4, cols=2) and hash(mesh) == hash(wf.Mesh(rows=4, cols=2))
    assert as_mesh(written) == mesh and as_mesh(mesh) is mesh


def test_text_and_keywords_together():
    assert wf.Mesh("rows=4", cols=2) == wf.Mesh("rows=4,cols=2")


def test_size_is_the_number_of_processors():
    assert wf.Mesh("rows=4,cols=2").size == 8 and wf.Mesh("all=1").size == 1


def test_meshes_differ_by_names_sizes_order_and_devices():
    meshes = [
        wf.Mesh("rows=4,cols=2"), wf.Mesh("cols=2,rows=4"), wf.Mesh("rows=2,cols=4"), wf.Mesh("rows=4"),
        wf.Mesh("a=4,b=2"), wf.Mesh("rows=4,cols=2", devices="cpu"),
    ]  # fmt: skip
    assert len(set(meshes)) == len(meshes)
    assert wf.Mesh("rows=4") != "rows=4"


def test_text_and_repr_can_be_read_again():
    mesh = wf.Mesh("rows:4; cols:2")
    assert str(mesh) == "rows=4,cols=2" and repr(mesh) == "Mesh('rows=4,cols=2')"
    assert wf.Mesh(str(mesh)) == mesh


def test_the_devices_lie_along_the_axes_in_order():
    made = wf.Mesh("rows=4,cols=2").jax_mesh()
    assert made.axis_names == ("rows", "cols") and made.devices.shape == (4, 2)
    assert list(made.devices.flat) == jax.devices()[:8]
    assert wf.Mesh("rows=2").jax_mesh().devices.tolist() == jax.devices()[:2]


def test_devices_can_be_chosen():
    chosen = jax.devices()[::-1][:4]
    made = wf.Mesh("rows=4", devices=chosen).jax_mesh()
    assert list(made.devices) == chosen
    assert wf.Mesh("rows=4", devices="cpu").jax_mesh().devices.size == 4


def test_a_mesh_is_made_of_devices_once():
    mesh = wf.Mesh("rows=4")
    assert mesh.jax_mesh() is mesh.jax_mesh()


def test_an_abstract_mesh_may_be_of_any_size():
    abstract = wf.Mesh("rows=64,cols=64").abstract()
    assert abstract.axis_names == ("rows", "cols") and abstract.size == 4096
