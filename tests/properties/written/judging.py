"""Whether two runs of a program gave the same: bits where no float was rounded, else as near as rounding allows."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf
from tests.properties.written.drawing import is_complex, is_float
from tests.properties.written.program import Written, is_sloped, plain_run, trimmed, weft_run


@dataclass
class Answer:
    """Values of the variables and gradients of the arguments, as arrays without padding."""

    values: list[np.ndarray]
    gradients: list[np.ndarray]
    dims: list[tuple[wf.Dim, ...]]
    leaks: list[str]
    """Arguments in whose padding a gradient came up."""


def answer(program: Written, result: Any) -> Answer:
    (_, values), gradients = result
    found, leaks = [], []
    for leaf, x in zip(program.leaves, gradients, strict=False):
        if is_sloped(leaf) and x is not None:
            whole, held = np.asarray(x.array), trimmed(x.array, leaf.dims)
            beyond = whole.copy()
            beyond[tuple(slice(0, d.count) for d in leaf.dims)] = 0
            leaks += [leaf.name] if np.any(beyond != 0) else []
            found.append(held)
    return Answer([trimmed(x.array, x.dims) for x in values], found, [tuple(x.dims) for x in values], leaks)


def on_one_processor(program: Written) -> tuple[Answer, Answer]:
    """With no mesh by weft, and plainly."""
    run = weft_run(program)
    both = jax.jit(lambda inputs, plain: (run(inputs), plain_run(program)(plain)))
    result, ((_, values), gradients) = both(program.inputs(), program.plain_inputs())
    here = answer(program, result)
    plainly = Answer([np.asarray(x) for x in values], [np.asarray(x.array) for x in gradients], here.dims, [])
    return here, plainly


def rounding(program: Written, answers: Answer) -> float:
    """How far two orders of summation may lie apart, relative to the largest value."""
    dtypes = [x.dtype for x in (*answers.values, *answers.gradients)] + [
        np.dtype(leaf.dtype) for leaf in program.leaves
    ]
    dtypes += [np.dtype(jnp.dtype(name)) for name in ("bfloat16", "float16") if f"'{name}'" in program.body]
    narrow = [float(jnp.finfo(d).eps) for d in dtypes if is_float(d) or is_complex(d)]
    eps = max(narrow, default=1e-7)
    terms = max((math.prod(d.size for d in dims) for dims in program.shapes), default=1)
    steps = program.body.count("\n") + 2
    return eps * steps * (4 if eps > 1e-4 else 16 * math.sqrt(terms))


def largest(arrays: Sequence[np.ndarray]) -> float:
    found = [1.0]
    for array in arrays:
        finite = np.abs(array[np.isfinite(array)]) if array.dtype != bool else np.ones(1)
        found.append(float(np.max(finite.astype("float64"), initial=1.0)))
    return max(found)


def differences(program: Written, got: Answer, wanted: Answer) -> list[tuple[str, str]]:
    """What differs: the variable or argument, and how."""
    found = []
    allowed = rounding(program, wanted)
    scale = largest(wanted.values)
    for name, x, y in zip(program.outputs, got.values, wanted.values, strict=True):
        if how := differs(x, y, None if program.exact[name] else allowed * scale):
            found.append((name, how))
    steepest = max(scale, largest(wanted.gradients))
    sloped = [leaf for leaf in program.leaves if is_sloped(leaf)]
    for leaf, x, y in zip(sloped, got.gradients, wanted.gradients, strict=False):
        if how := differs(x, y, allowed * steepest):
            found.append((f"gradient of {leaf.name}", how))
    found += [(f"gradient of {name}", "not zero in the padding") for name in got.leaks]
    return found


def differs(x: np.ndarray, y: np.ndarray, allowed: float | None) -> str:
    """How two arrays differ; nothing if they do not. Where `allowed` is None every bit counts."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{x.dtype}{list(x.shape)} for {y.dtype}{list(y.shape)}"
    wide = "complex128" if is_complex(x.dtype) else "float64" if is_float(x.dtype) else x.dtype
    a, b = x.astype(wide), y.astype(wide)
    if allowed is None:
        same = (a == b) | ((a != a) & (b != b))
        if is_float(x.dtype):
            same &= (np.signbit(a) == np.signbit(b)) | (a != a)
    elif is_float(x.dtype) or is_complex(x.dtype):
        with np.errstate(invalid="ignore"):
            same = (np.abs(a - b) <= allowed) | (a == b) | ((a != a) & (b != b))
        if is_complex(x.dtype):  # which part of a product with an infinite one is NaN is its order of summation's
            same |= ~np.isfinite(a) & ~np.isfinite(b)
    else:
        same = a == b
    if np.all(same):
        return ""
    shown = functools.partial(np.array2string, threshold=24, precision=6, separator=",")
    return f"{shown(x)} for {shown(y)}"


def is_too_near(program: Written, plainly: Answer) -> bool:
    """Whether changes as small as rounding change the plain answer itself, at a choice between values."""
    if not program.fragile:
        return False
    plain = jax.jit(plain_run(program))
    for seed in range(4):
        rng, inputs = np.random.default_rng(seed), program.plain_inputs()
        moved = []
        for leaf, x in zip(program.leaves, inputs, strict=True):
            array = np.asarray(x.array)
            if is_sloped(leaf):
                by = 1 + 4 * float(jnp.finfo(array.dtype).eps) * rng.choice([-1, 0, 1], array.shape)
                array = (array * by).astype(array.dtype)
            moved.append(type(x)(jnp.asarray(array), x.dims))
        (_, values), gradients = plain(moved)
        other = Answer([np.asarray(v) for v in values], [np.asarray(g.array) for g in gradients], plainly.dims, [])
        loosened = Written(**{**vars(program), "exact": dict.fromkeys(program.exact, False)})
        if differences(loosened, other, plainly):
            return True
    return False
