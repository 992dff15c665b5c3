"""What the tests of the command line show: functions that return `(fn, args)`, and some that do not."""

import jax
import jax.numpy as jnp

import weft as wf

BATCH, D_IO, HIDDEN = wf.dims(batch=16, d_io=8, hidden=32)


def shaped(*dims):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(dim.size for dim in dims), "float32"), dims)


def net(x, w, v):
    h = wf.relu(wf.einsum(x, w, out=[BATCH, HIDDEN]))
    return wf.einsum(h, v, out=[BATCH, D_IO])


def example():
    return net, (shaped(BATCH, D_IO), shaped(D_IO, HIDDEN), shaped(HIDDEN, D_IO))


def repeated(times):
    """The net so many times over: a choice of a search."""
    fn, (x, w, v) = example()

    def again(x, w, v):
        for _ in range(times):
            x = fn(x, w, v)
        return x

    return again, (x, w, v)


def bound():
    fn, args = example()
    return wf.spmd(fn, mesh="rows=2,cols=4", layout="batch:rows,hidden:cols"), args


def talkative():
    print("a word of the user's own")
    return example()


def fails_when_called():
    return {}["missing"]


def fails_when_traced():
    return unequal, example()[1]


def unequal(x, w, v):
    return add(x)


def add(x):
    return jnp.ones(3) + jnp.ones(4)


def fails_twice():
    def fn(x, w, v):
        try:
            add(x)
        except TypeError as error:
            raise ValueError("what the user makes of it") from error

    return fn, example()[1]


def misspells_a_dim():
    return lambda x: wf.sum(x, over="bacth"), example()[1][:1]


def returns_a_function():
    return net


def returns_three():
    return net, (), {}


def returns_a_list():
    return net, list(example()[1])


def returns_no_function():
    return "net", ()


def exits():
    raise SystemExit(3)


number = 3
