"""The ops of the language, one file a family; public names are listed here.

A new op adds its name here.
"""

from ..namespace import namespace as _namespace
from . import random
from .accumulate import accumulate
from .branches import cond
from .control import fori_loop, scan, while_loop
from .conv import conv, conv_transpose
from .create import arange, full, ones, zeros
from .custom import custom_vjp
from .debug import check, print
from .einsum import einsum
from .elementwise import (
    abs,
    add,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cast,
    cbrt,
    ceil,
    celu,
    clip,
    conj,
    cos,
    cosh,
    digamma,
    divide,
    elementwise,
    elu,
    equal,
    erf,
    erfc,
    erfinv,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    gammaln,
    gelu,
    greater,
    greater_equal,
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    hypot,
    imag,
    invert,
    isfinite,
    isinf,
    isnan,
    leaky_relu,
    left_shift,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    log_sigmoid,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mish,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    power,
    real,
    reciprocal,
    relu,
    relu6,
    remainder,
    right_shift,
    rint,
    round,
    rsqrt,
    selu,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    soft_sign,
    softplus,
    sqrt,
    square,
    squareplus,
    stop_gradient,
    subtract,
    swish,
    tan,
    tanh,
    trunc,
    where,
)  # fmt: skip
from .index import one_hot, take
from .local import local
from .mapping import vmap
from .moments import mean_and_var, var
from .order import argmax, argmin, cummax, cumprod, cumsum, sort, top_k
from .pipeline import pipeline
from .pool import avg_pool, max_pool, upsample, windows
from .prefixes import associative_scan
from .random import dropout
from .reduce import all, any, log_softmax, logsumexp, max, mean, min, prod, softmax, sum
from .regroup import merge, split, stack, unstack
from .remat import name, remat
from .reshape import broadcast, rename
from .scatter import gather, scatter_add
from .slicing import concat, flip, pad, roll, shift, slice, update
from .uneven import pad_to, unpad, valid

__all__ = sorted(
    word for word, value in globals().items() if not word.startswith("_") and (callable(value) or value is random)
)
__dir__, __getattr__ = _namespace(globals(), called="wf")
