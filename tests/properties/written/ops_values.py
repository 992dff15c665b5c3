"""Written steps that compute: elementwise, reductions, orders, products, of every dtype they are for."""

import jax.numpy as jnp

from tests.properties.written.drawing import is_bool, is_complex, is_float, is_whole, names, written_dim
from tests.properties.written.ops_moving import new_dim, op, some_dim

EXACT_UNARY = {
    "float": ["wf.negative", "wf.abs", "wf.sign", "wf.floor", "wf.isnan", "wf.isfinite", "wf.relu"],
    "whole": ["wf.negative", "wf.abs", "wf.sign", "wf.square", "wf.invert"],
    "bool": ["wf.logical_not", "~"],
    "complex": ["wf.conj", "wf.real", "wf.imag", "wf.negative"],
}
UNARY = {"float": ["wf.tanh", "wf.square", "wf.sin", "0.5 * "], "complex": ["wf.square"]}


def kind_of(dtype) -> str:
    if is_bool(dtype):
        return "bool"
    if is_whole(dtype):
        return "whole"
    return "complex" if is_complex(dtype) else "float"


@op
def unary(s, x, k):
    kind = kind_of(k.dtype)
    exact = s.rng.random() < 0.6 or kind not in UNARY
    fn = s.rng.choice(EXACT_UNARY[kind] if exact else UNARY[kind])
    if fn == "wf.negative" and str(k.dtype).startswith("u"):
        return None
    return s.bind(f"{fn}({x})", fn.replace("wf.", "").strip(), exact, met=[x])


@op
def binary(s, x, k):
    other = s.partner(k.dims, k.dtype)
    if other is None:
        return None
    kind = kind_of(k.dtype)
    fns = {
        "float": ["multiply", "add", "subtract"],
        "whole": ["add", "multiply", "subtract", "maximum", "bitwise_and"],
        "bool": ["logical_and", "logical_or", "logical_xor", "bitwise_or", "not_equal"],
        "complex": ["multiply", "add"],
    }
    fn = s.rng.choice(fns[kind])
    return s.bind(f"wf.{fn}({x}, {other})", fn, kind in ("whole", "bool"), met=[x, other])


@op
def closure(s, x, k):
    """A product with something from outside of the function this stands in, or with what is made of it here."""
    inside = {d.name for d in s.mapped}
    found = [
        name
        for name, other in s.all_known.items()
        if name not in s.known and other.dtype == k.dtype and not inside & {d.name for d in other.dims}
    ]
    if not found or is_bool(k.dtype):
        return None
    other = s.rng.choice(found)
    dim = some_dim(s, s.all_known[other])
    made = [other]
    if dim is not None:
        made += [f"{other}[{dim.name!r}, {s.rng.randrange(dim.count)}]", f"wf.roll({other}, over={dim.name!r}, by=1)"]
        made += [f"wf.sum({other}, over={dim.name!r}, dtype={str(k.dtype)!r})", f"wf.flip({other}, over={dim.name!r})"]
        made += (
            []
            if is_complex(k.dtype)
            else [f"wf.sort({other}, over={dim.name!r})", f"wf.max({other}, over={dim.name!r})"]
        )
    return s.bind(f"{x} * {s.rng.choice(made)}", "multiply", is_whole(k.dtype), met=[x, other])


@op
def choose(s, x, k):
    other = s.partner(k.dims, k.dtype)
    if other is None or is_complex(k.dtype):
        return None
    fn = s.rng.choice(["wf.where({x} > {y}, {x}, {y})", "wf.maximum({x}, {y})", "wf.minimum({x}, {y})"])
    word = fn.split("(")[0].removeprefix("wf.")
    if is_bool(k.dtype):
        fn, word = "wf.where({x}, {y}, ~{x})", "where"
    return s.bind(fn.format(x=x, y=other), word, word == "where" or not is_float(k.dtype), met=[x, other])


@op
def compare(s, x, k):
    other = s.partner(k.dims, k.dtype)
    if other is None or is_complex(k.dtype):
        return None
    fn = s.rng.choice(["less", "greater_equal", "equal"])
    return s.bind(f"wf.{fn}({x}, {other})", fn, True, met=[x, other])


@op
def cast(s, x, k):
    into = s.rng.choice(s.drawing.dtypes)
    is_narrowing = (is_float(k.dtype) or is_complex(k.dtype)) and not (is_float(into) or is_complex(into))
    if is_narrowing and (s.drawing.style in ("special", "huge") or not s.all_known[x].exact):
        return None  # what an infinity is as a whole number is nobody's promise
    if is_complex(k.dtype) and not is_complex(into):
        return None
    return s.bind(f"wf.cast({x}, {into!r})", "cast", True, met=[x])


def some_over(s, k):
    dims = s.rng.sample(list(k.dims), s.rng.randint(1, len(k.dims))) if k.dims else []
    return names(dims)


@op
def reduce_exactly(s, x, k):
    over = some_over(s, k)
    if not over:
        return None
    fns = {
        "bool": ["any", "all", "sum", "max", "min"],
        "whole": ["sum", "max", "min", "prod"],
        "float": ["max", "min"],
        "complex": ["max", "min"],
    }
    fn = s.rng.choice(fns[kind_of(k.dtype)])
    return s.bind(f"wf.{fn}({x}, over={over!r})", fn, True, met=[x])


@op
def reduce(s, x, k):
    over = some_over(s, k)
    if not over or is_bool(k.dtype):
        return None
    fns = {
        "float": ["sum", "mean", "prod", "var", "logsumexp", "softmax", "log_softmax"],
        "whole": ["mean"],
        "complex": ["sum", "mean", "prod", "logsumexp", "softmax"],
    }
    fn = s.rng.choice(fns[kind_of(k.dtype)])
    return s.bind(f"wf.{fn}({x}, over={over!r})", fn, False, met=[x])


@op
def reduce_as(s, x, k):
    """A sum, a mean or a product told its dtype."""
    over, style = some_over(s, k), s.drawing.style
    into = s.rng.choice(s.drawing.dtypes)
    if not over or is_complex(into) or is_complex(k.dtype) or is_bool(into) or is_bool(k.dtype):
        return None
    exact = not is_float(into) and is_whole(k.dtype)
    if not is_float(into) and (style in ("special", "huge", "normal") or not k.exact or str(into).startswith("u")):
        return None
    fn = s.rng.choice(["sum", "mean"])
    is_even = all(d.count in (1, 2, 4, 8) for d in k.dims)
    if fn == "mean" and not is_float(into) and not is_even:
        return None  # a third may be rounded to either side of a whole number
    return s.bind(f"wf.{fn}({x}, over={over!r}, dtype={into!r})", f"{fn} as", exact and fn == "sum", met=[x])


@op
def einsum(s, x, k):
    other = s.partner(k.dims)
    if other is None or is_bool(k.dtype) or is_bool(s.all_known[other].dtype):
        return None
    met = list({d.name: d for d in (*k.dims, *s.all_known[other].dims)}.values())
    kept = s.rng.sample(met, s.rng.randint(0, min(3, len(met))))
    both = jnp.promote_types(k.dtype, s.all_known[other].dtype)
    is_even = k.even and s.all_known[other].even and s.drawing.style in ("small", "halves")
    can_say = is_whole(both) or (both == "float32" and is_even)
    into = f", dtype={s.rng.choice(['float32', 'int32'])!r}" if s.rng.random() < 0.4 and can_say else ""
    text = f"wf.einsum({x}, {other}, out={names(kept)!r}{into})"
    return s.bind(text, "einsum", is_whole(both) and "float" not in into, met=[x, other])


@op
def arg(s, x, k):
    dim = some_dim(s, k)
    if dim is None or is_complex(k.dtype) or is_bool(k.dtype):
        return None
    fn = s.rng.choice(["argmax", "argmin"])
    return s.bind(f"wf.{fn}({x}, over={dim.name!r})", fn, True, met=[x])


@op
def sort(s, x, k):
    dim = some_dim(s, k)
    if dim is None or is_complex(k.dtype) or (is_float(k.dtype) and s.drawing.style in ("special", "zeros")):
        return None  # zeros of both signs have no order
    return s.bind(f"wf.sort({x}, over={dim.name!r})", "sort", True, met=[x])


@op
def top_k(s, x, k):
    dim = some_dim(s, k)
    if dim is None or is_complex(k.dtype) or is_bool(k.dtype) or s.drawing.style == "special":
        return None
    into = new_dim(s, s.rng.randint(1, min(4, dim.size)), k.dims)
    if into is None:
        return None
    return s.bind(f"wf.top_k({x}, over={dim.name!r}, k={written_dim(into)})", "top_k", True, count=2, met=[x])


@op
def running(s, x, k):
    dim = some_dim(s, k)
    if dim is None or is_complex(k.dtype) or is_bool(k.dtype):
        return None
    fn = s.rng.choice(["cumsum", "cummax", "cumprod"])
    exact = fn == "cummax" or is_whole(k.dtype)
    return s.bind(f"wf.{fn}({x}, over={dim.name!r}, reverse={s.rng.random() < 0.5})", fn, exact, met=[x])


@op
def local(s, x, k):
    """A sum on the slices, of an argument whose axes are known."""
    leaf = next((leaf for leaf in s.drawing.leaves if leaf.name == x), None)
    if leaf is None or not leaf.dims or s.mapped:
        return None
    at = s.rng.randrange(len(leaf.dims))
    rest = [d.name for i, d in enumerate(leaf.dims) if i != at]
    fn = "any" if is_bool(k.dtype) else "sum"
    text = f"wf.local(lambda a: jnp.{fn}(a, {at}), {x}, out={rest}, summed={leaf.dims[at].name!r})"
    if is_bool(k.dtype):
        text = f"wf.local(lambda a: a, {x}, out={[d.name for d in leaf.dims]})"
    return s.bind(text, "local", not (is_float(k.dtype) or is_complex(k.dtype)), met=[x])


@op
def scaled_by_ones(s, x, k):
    new = new_dim(s, s.rng.choice([2, 4]), k.dims)
    if new is None:
        return None
    like = s.rng.choice([f", like={x}", ""])
    return s.bind(f"{x} * wf.ones([{written_dim(new)}]{like}, dtype={str(k.dtype)!r})", "ones", True, met=[x])
