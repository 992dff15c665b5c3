"""What a user sees of `wf` and of its rooms: public names, each with a line of help, and nothing else."""

import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import weft as wf
from weft import plan

ROOMS = {
    "wf": wf,
    "wf.ops": wf.ops,
    "wf.random": wf.random,
    "nn": wf.nn,
    "nn.lora": wf.nn.lora,
    "models": wf.models,
    "data": wf.data,
    "train": wf.train,
    "decode": wf.decode,
    "interop": wf.interop,
    "optim": wf.optim,
    "plan": plan,
    "program": wf.program,
}


@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
def test_a_room_shows_its_public_names_and_nothing_else(room):
    assert sorted(name for name in dir(room) if not name.startswith("__")) == sorted(room.__all__)
    assert len(set(room.__all__)) == len(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)


@pytest.mark.parametrize("name", wf.__all__)
def test_every_name_has_a_line_of_help(name):
    first = (inspect.getdoc(getattr(wf, name)) or "").splitlines()[:1]
    assert first and 0 < len(first[0]) < 80, first


def test_help_is_a_table_of_contents():
    listed = wf.__doc__.partition("by family")[2].split("\n\n")[1:]
    names = [name for family in listed for name in family.partition("\n")[2].split()]
    assert sorted(names) == sorted(wf.__all__)


@pytest.mark.parametrize("name", "layout mesh errors record lower leaves checks Any fold FUNCTIONS".split())
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


# What a program of the language alone has no use for: rooms of training and reading, and the libraries below them.
UNUSED = ("optax", "equinox", "tomllib", "matplotlib", "orbax", "rich", "safetensors", "tokenizers", "multiprocessing")


def test_the_language_is_imported_without_what_it_does_not_use():
    source = f"""
import sys
import weft as wf
loaded = lambda: {{name for name in sys.modules if name.split(".")[0] in {UNUSED}}}
rooms = lambda: {{name.split(".")[1] for name in sys.modules if name.startswith("weft.")}}
later = {{"data", "decode", "interop", "models", "nn", "optim", "plan", "program", "train", "cli"}}
assert not loaded(), loaded()
assert not rooms() & later, rooms() & later
x = wf.tensor([1.0, 2.0], [wf.Dim("length", 2)])
assert float(wf.spmd(lambda x: wf.sum(x + 1, over="length"), mesh="all=1", layout="length:all")(x)) == 5
assert not loaded() and not rooms() & later
assert wf.trace is sys.modules["weft.program"].trace and "weft.train" not in sys.modules
assert wf.nn.Linear and "equinox" in sys.modules and "optax" not in sys.modules
assert "nn" in vars(wf) and not hasattr(wf, "text")
from weft import *
assert train.Trainer and Plan is wf.plan.Plan and "orbax" not in sys.modules and "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True)


# What is asked for by these names has a named type.
NAMED = ("over", "dims", "mesh", "layout")


def untyped(room):
    """The parameters of a room's public functions and methods that are named so and say nothing of their type."""
    for name in room.__all__:
        for where, function in functions(name, getattr(room, name)):
            for parameter in inspect.signature(function).parameters.values():
                if parameter.name in NAMED and parameter.annotation in (Any, "Any", inspect.Parameter.empty):
                    yield f"{where}({parameter})"


def functions(name, value):
    """A function by its name, or those a class of ours has: its constructor, its call, its public methods."""
    if inspect.isfunction(value):
        yield name, value
    elif inspect.isclass(value) and value.__module__.startswith("weft."):
        for own, inner in vars(value).items():
            inner = inner.__func__ if isinstance(inner, classmethod | staticmethod) else inner
            if inspect.isfunction(inspect.unwrap(inner)) and (own in ("__init__", "__call__") or own[0] != "_"):
                yield f"{name}.{own}", inner


SIGNED = {name: ROOMS[name] for name in ("wf", "wf.random", "nn", "models", "train", "decode", "interop")}


@pytest.mark.parametrize("room", [*SIGNED.values(), plan], ids=[*SIGNED, "plan"])
def test_signatures_say_what_they_take(room):
    assert list(untyped(room)) == []


def test_a_signature_that_says_nothing_is_caught():
    class Layer:
        def __init__(self, dims: Any): ...
        def __call__(self, x, *, over): ...
        def _own(self, mesh): ...

    def load(folder: Any, mesh: str, layout: Any = None): ...

    Layer.__module__ = "weft.nn"
    room = SimpleNamespace(__all__=["Layer", "load"], Layer=Layer, load=load)
    found = ["Layer.__init__(dims: Any)", "Layer.__call__(over)", "load(layout: Any = None)"]
    assert [line.replace("typing.", "") for line in untyped(room)] == found


@pytest.mark.quick("program.page()")
@pytest.mark.parametrize("asks", ["program.page()", "program.measured('nowhere')"])
def test_a_program_brings_what_draws_and_measures_it(asks):
    source = f"""
import jax.numpy as jnp, weft as wf
program = wf.trace(lambda x: x + x, wf.tensor(jnp.ones(4), "a"), mesh="x=1", layout="")
try:
    {asks}
except wf.WeftError as error:
    print(error.fact)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("there is no profile in nowhere\n" if "measured" in asks else "")


def test_a_module_someone_imported_stays_when_a_room_is_imported_later():
    program = "import weft, weft.cli; weft.train; weft.Plan; weft.cli.app"
    subprocess.run([sys.executable, "-c", program], check=True)


ELEMENTWISE = [name for name in wf.__all__ if getattr(getattr(wf, name), "__module__", "") == "weft.ops.elementwise"]


def test_each_elementwise_function_says_what_it_is_and_what_it_takes():
    said: dict[str, str] = {}
    for name in ELEMENTWISE:
        first = inspect.getdoc(getattr(wf, name)).splitlines()[0]
        assert first.endswith(".") and said.setdefault(first, name) == name, f"{name} and {said[first]}: {first}"
        parameters = inspect.signature(getattr(wf, name)).parameters.values()
        if name not in ("elementwise", "stop_gradient"):  # of any function, of any tree
            assert all(each.kind is not each.VAR_POSITIONAL and each.annotation is not Any for each in parameters), name
    assert len(ELEMENTWISE) > 90
