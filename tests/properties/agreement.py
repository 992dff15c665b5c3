"""Whether two runs of a drawn program agree: loss, values and gradients, as near as rounding allows."""

import math

import jax
import numpy as np

from tests.properties.programs import Plain, differentiated, is_float


def tolerance(program):
    """How far two orders of summation may lie apart, relative to the largest value.

    Each step adds up at most so many float32 terms; roundings go either way, so they grow by the root of that. No step
    makes a difference in what it is given more than a few times as large.
    """
    return 8 * np.finfo("float32").eps * (len(program.steps) + 1) * math.sqrt(program.terms())


def close(got, expected, allowed, what):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, what
    np.testing.assert_allclose(got, expected, rtol=0, atol=allowed, err_msg=what)


def all_close(program, got, expected):
    """Loss, values and gradients of two runs."""
    (loss, values), gradients = got
    (wanted_loss, wanted_values), wanted_gradients = expected
    given = tolerance(program)
    largest = max([1.0, *(float(np.max(np.abs(x))) for x in wanted_values)])
    for x, wanted, node in zip(values, wanted_values, program.steps, strict=True):
        close(x, wanted, given * largest, f"value of {node.step.text}")
    terms = sum(math.prod(np.shape(x)) for x in wanted_values)
    close(loss, wanted_loss, given * largest * math.sqrt(terms), "loss")
    steepest = max([1.0, *(float(np.max(np.abs(x))) for x in wanted_gradients)])
    for i, (x, wanted) in enumerate(zip(gradients, wanted_gradients, strict=True)):
        close(x, wanted, given * max(largest, steepest), f"gradient {i}")


def arrays(result):
    """Loss, values and gradients of floats as arrays."""
    (loss, values), gradients = result
    return (np.asarray(loss), [np.asarray(x) for x in values]), [np.asarray(x) for x in gradients if x is not None]


def on_one_processor(program):
    """The program with no mesh and its plain form, compiled as one; and how near an order was to another."""
    inputs = program.inputs
    plain = [Plain(x.array, x.dims) for x in inputs]
    floats = [x for x, node in zip(plain, program.leaves, strict=True) if is_float(node)]

    def both(inputs, floats, plain):
        return differentiated(program)(inputs), jax.value_and_grad(program.plain_loss, has_aux=True)(floats, plain)

    result, ((loss, (values, near)), gradients) = jax.jit(both)(inputs, floats, plain)
    wanted = (np.asarray(loss), [np.asarray(x.array) for x in values]), [np.asarray(x.array) for x in gradients]
    return arrays(result), wanted, float(near)
