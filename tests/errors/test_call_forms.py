"""Calls of a wrong form: every public name answers with an error of ours that says the right form."""

import inspect
import re

import jax
import numpy as np
import pytest

import weft as wf
from weft import decode, elsewhere, models, nn

from .raised import error_of

batch, d = wf.dims(batch=4, d=8)
x = wf.tensor(np.ones((4, 8), "float32"), [batch, d])
key = jax.random.key(0)

# What a user never makes by hand.
NOT_CALLED = {"PRESETS", "Continuations", "Hypotheses", "TrainState", "ModelConfig", "TransformerConfig"}
ROOMS = {"wf": wf, "wf.random": wf.random, "nn": nn, "models": models, "decode": decode}


def called() -> dict[str, object]:
    """Every public name that can be called, by how it is written."""
    found = {}
    for room, module in ROOMS.items():
        for name in module.__all__:
            value = getattr(module, name)
            is_error = isinstance(value, type) and issubclass(value, Exception | Warning)
            if callable(value) and not is_error and name not in NOT_CALLED:
                found[f"{room}.{name}"] = value
    return found


FORMS = {
    "an unknown keyword": lambda fn: fn(x, no_such_keyword=1),
    "numpy's axis": lambda fn: fn(x, axis=0),
    "too many operands": lambda fn: fn(*[x] * 12),
    "nothing at all": lambda fn: fn(),
    "None": lambda fn: fn(None, None),
    "a number for dims": lambda fn: fn(x, over=1),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_public_name_answers_a_wrong_call_with_its_right_form(form):
    for name, fn in called().items():
        try:
            FORMS[form](fn)
        except wf.WeftError as error:
            assert str(error).splitlines()[-1].startswith("  fix: "), name
        except Exception as error:
            pytest.fail(f"{name} of {form}: {type(error).__name__}: {error}")


def test_the_table_holds_every_room():
    names = called()
    assert {"wf.sum", "wf.random.normal", "nn.Attention", "models.init", "decode.generate"} <= set(names)
    assert len(names) > 190


# Each case: what is called, a part of the fact, a part of the fix.
CALLS = {
    "range of a tensor": (lambda: range(x), "was used as a whole number", "`range(x.size('batch'))`"),
    "an index of a list": (lambda: [1, 2][wf.full([], 1)], "used as a whole number", "`int(x)`"),
    "a size of numpy": (lambda: np.zeros(wf.full([], 2)), "used as a whole number", "x.size"),
    "rename by a dict": (lambda: x.rename({"d": "e"}), "takes names by keyword", "`x.rename(d='e')`"),
    "rename by dims": (lambda: x.rename({d: batch.renamed("e")}), "takes names by keyword", "`x.rename(d='e')`"),
    "rename by position": (lambda: x.rename("d", "e"), "got 'd', 'e'", "`x.rename(old='new')`"),
    "dropout without a key": (lambda: wf.dropout(x, 0.1, None), "dropout got no key", "`jax.random.key(seed)`"),
    "dropout without anything": (lambda: wf.dropout(x), "missing 2 required", "`wf.dropout(x, rate, key)`"),
    "numbers without a key": (lambda: wf.random.normal(None, [d]), "got no key", "`jax.random.key(seed)`"),
    "a mesh of numbers": (lambda: wf.Mesh(4, 2), "`wf.Mesh(4, 2)`", "`wf.Mesh('rows=4, cols=2')`"),
    "a layout of two": (lambda: wf.Layout("batch:x", "d:y"), "positional", "`wf.Layout('batch:rows, d_ff:cols')`"),
    "a dim without a size": (lambda: wf.Dim("batch"), "'size'", "`wf.Dim('batch', 8)`"),
    "dims by position": (lambda: wf.dims(8, 16), "positional", "`wf.dims(batch=8, d_model=16)`"),
    "a tensor without names": (lambda: wf.tensor(np.ones(3)), "'dims'", "`wf.tensor(array, 'batch d_model')`"),
    "the mesh by position": (lambda: wf.put(x, "x=2", "batch:x"), "positional", "wf.put(tree, mesh=..., layout=...)"),
    "axis for over": (lambda: wf.softmax(x, axis=-1), "'axis'", "`wf.softmax(x, over=...)`"),
    "too many operands": (lambda: wf.add(x, x, x), "takes 2 positional", "`wf.add(x, y, names='any')`"),
    "a layer": (lambda: nn.Linear(d), "missing 1 required positional argument: 'outs'", "`nn.Linear(ins, outs, key="),
    "a layer called": (lambda: nn.Linear(d, batch, key=key)(x, x), "called as `linear(f32", "`linear(x)`"),
    "a norm called": (lambda: nn.GroupNorm(d, 2, key=key)(x), "'over'", "`groupnorm(x, over=...)`"),
    "a method": (lambda: x.size(), "missing 1", "`x.size(name)`"),
    "a layer's adapters": (lambda: nn.lora.merge(), "missing 1", "`nn.lora.merge(model)`"),
    "samples": (lambda: wf.random.normal(key), "missing 1", "`wf.random.normal(key, dims"),
    "a class of a small name": (lambda: wf.custom_vjp(), "missing 1", "`wf.custom_vjp(fn)`"),
    "a configuration": (lambda: models.LMConfig(64), "positional", "models.LMConfig(name='mine', layers=2"),
    "a mapped function by keyword": (lambda: wf.vmap(lambda a: a, over="batch")(a=x), "'a'", "`mapped(*args)`"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_what_was_called_and_how_it_is_called(name):
    act, fact, fix = CALLS[name]
    error = error_of(act)
    assert fact in str(error) and fix in error.fix


def test_an_error_from_within_is_no_wrong_call():
    def broken(a):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        wf.vmap(broken, over="batch")(x)


def test_signatures_are_those_of_the_functions():
    assert list(inspect.signature(wf.take).parameters) == ["table", "ids", "over", "rename"]
    assert list(inspect.signature(nn.Linear).parameters) == ["ins", "outs", "key", "bias", "stddev"]
    assert list(inspect.signature(wf.Dim).parameters) == ["name", "size", "follows", "valid"]


# Names of other libraries.

NAMES = {
    "reduce_sum": "`wf.sum(x, over='batch')`",
    "Dimension": "`wf.Dim('batch', 8)`",
    "import_tf_tensor": "`wf.tensor(",
    "get_variable": "`wf.parameter(",
    "layers": "`weft.nn`",
    "matmul": "`wf.einsum(",
    "transpose": "matched by name",
    "reshape": "`wf.split(",
    "expand_dims": "`wf.broadcast(",
    "concatenate": "`wf.concat(",
    "shard": "`wf.spmd(",
    "float32": "'float32'",
    "einsm": "did you mean `wf.einsum`?",
    "zzzzzzz": "`wf.__all__`",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_another_library_says_what_to_write(name):
    error = error_of(lambda: getattr(wf, name), wf.UnknownNameError)
    assert f"`wf.{name}`" in error.fact and NAMES[name] in error.fix
    assert isinstance(error, AttributeError) and not hasattr(wf, name)


METHODS = {
    "sum": "`wf.sum(x, over='batch d')`",
    "mean": "`wf.mean(x, over='batch d')`",
    "argmax": "`wf.argmax(x, over='batch')`",
    "shape": "`x.size('batch')`",
    "ndim": "`len(x.dims)`",
    "T": "`wf.broadcast(x, 'd batch')`",
    "reshape": "`wf.split(x, batch=[a, b])`",
    "astype": "`wf.cast(x, 'float32')`",
    "at": "`wf.update(x, new, over='batch', at=0)`",
    "item": "`float(x)`",
    "dtyp": "did you mean `x.dtype`?",
    "frobnicate": "`wf.frobnicate(x, ...)`",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_an_array_says_what_to_write(name):
    error = error_of(lambda: getattr(x, name), wf.UnknownNameError)
    assert f"`{name}`" in error.fact and METHODS[name] in error.fix
    assert not hasattr(x, name)


def test_layers_and_random_numbers_of_other_libraries_say_what_to_write():
    assert "`nn.Attention(" in error_of(lambda: nn.MultiHeadAttention, wf.UnknownNameError).fix
    assert "`jax.random.PRNGKey`" in error_of(lambda: wf.random.PRNGKey, wf.UnknownNameError).fix


@pytest.mark.parametrize("table", ["FUNCTIONS", "LAYERS", "RANDOM"])
def test_no_table_names_what_there_is(table):
    module = {"FUNCTIONS": wf, "LAYERS": nn, "RANDOM": wf.random}[table]
    assert not set(getattr(elsewhere, table)) & set(module.__all__)


def test_every_function_that_is_to_be_written_is_there():
    texts = [*elsewhere.FUNCTIONS.values(), *elsewhere.LAYERS.values(), *elsewhere.RANDOM.values()]
    texts += [elsewhere.unknown_method(x, name).fix for name in elsewhere.METHODS]
    for text in texts:
        for room, name in re.findall(r"\b(wf|wf\.random|nn)\.([a-zA-Z_]+)\b(?=[(,` ]|$)", text):
            assert hasattr(ROOMS[room], name), text


# The contract of names.


def test_all_public_names_are_there_and_listed_once():
    assert len(set(wf.__all__)) == len(wf.__all__)
    assert all(hasattr(wf, name) for name in wf.__all__)
    assert {"Dim", "spmd", "einsum", "random", "nn", "WeftError"} <= set(wf.__all__)
    assert "collectives" not in wf.__all__ and "meet" not in wf.__all__


def test_the_version_is_that_of_the_package():
    assert wf.__version__.count(".") == 2 and all(part.isdigit() for part in wf.__version__.split("."))


def test_a_name_or_a_dim_is_in_the_dims():
    assert "batch" in x.dims and batch in x.dims
    assert "bacth" not in x.dims and batch.resized(2) not in x.dims and 4 not in x.dims


@pytest.mark.parametrize(
    ("call", "what", "number"),
    [
        (lambda x: wf.fori_loop(0, 3, lambda z: z, x), "fori_loop", "2 arguments"),
        (lambda x: wf.while_loop(lambda: True, lambda s: s, x), "while_loop", "1 argument"),
        (lambda x: wf.vmap(lambda r: r, over="batch")(x, x), "vmap", "2 arguments"),
        (lambda x: wf.accumulate(lambda p: (1.0, 1), x, x, over="batch", count=2), "accumulate", "2 arguments"),
        (lambda x: wf.cond(True, lambda: x, lambda z: z, x), "cond", "1 argument"),
        (lambda x: wf.custom_vjp(lambda z: z).defvjp(lambda z: (z, None), lambda g: (g,)), "defvjp", "2 arguments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_that_takes_another_number_of_arguments_is_named(call, what, number):
    with pytest.raises(wf.TensorError) as caught:
        call(wf.ones([wf.Dim("batch", 4)]))
    assert f"{what} calls its function with {number}" in caught.value.fact
    assert caught.value.fix == f"give {what} a function of {number}"
