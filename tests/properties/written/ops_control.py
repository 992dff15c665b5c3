"""Written control flow: branches, loops, maps and recomputation, in each other, closing over what is at hand."""

from tests.properties.written.drawing import Known, Scope, is_bool, is_complex, is_float, is_whole, listed, names
from tests.properties.written.ops_moving import OPS, some_dim

CONTROL = {}


def control(fn):
    CONTROL[fn.__name__.rstrip("_")] = fn
    return fn


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def draw_steps(s: Scope, most: int) -> None:
    """A few steps in a scope, one in another now and then."""
    wanted, tries = len(s.lines) + s.rng.choice([1, 1, most]), 0
    while len(s.lines) < wanted and tries < 5 * most:
        tries += 1
        if (x := some_variable(s)) is not None:
            is_nested = s.depth < 3 and s.rng.random() < s.drawing.nesting * 0.45**s.depth
            table = CONTROL if is_nested else OPS
            word = s.rng.choice(weighed(table, s.drawing.style))
            if s.outer is not None and table is OPS and s.rng.random() < 0.3:
                word = "closure"
            with s.drawing.undone_unless_longer(s.lines):
                table[word](s, x, s.all_known[x])


# What sends in most ways is drawn more often.
OFTEN = {"reduce": 2, "reduce_as": 4, "reduce_exactly": 2, "take": 2, "getitem": 2, "slice_traced": 2, "local": 2}
OFTEN |= {"vmap": 2, "cond": 3, "while_loop": 2, "fori_loop": 2}
OF_HUGE = ("reduce", "reduce", "reduce_exactly", "unary", "slice", "running")


def weighed(table, style: str) -> list[str]:
    if style == "huge" and table is OPS:
        return list(OF_HUGE)
    return [name for name in sorted(table) for _ in range(OFTEN.get(name, 1))]


def some_variable(s: Scope) -> str | None:
    here = [x for x in s.usable(lambda k: True) if x in s.known]
    found = here if here and s.rng.random() < 0.65 else s.usable(lambda k: True)
    return s.rng.choice(found[-3:] if s.rng.random() < 0.5 else found) if found else None


def closed(s: Scope, z: str) -> str:
    """An expression of the dims and dtype of `z` that all that was made here has a part in."""
    known, total = s.all_known[z], z
    for name in [x for x in s.known if x != z][-2:]:
        k = s.all_known[name]
        extra = names(d for d in k.dims if d not in known.dims)
        if any(d.name in {e.name for e in known.dims} and d not in known.dims for d in k.dims):
            extra = names(k.dims)
        if is_complex(k.dtype) and not is_complex(known.dtype):
            continue
        term = f"wf.cast({name}, {str(known.dtype)!r})" if not (is_bool(k.dtype) or is_bool(known.dtype)) else name
        if is_bool(known.dtype):
            term = f"({name} != 0)" if not is_bool(k.dtype) else name
            term = f"wf.any({term}, over={extra!r})" if extra else term
            total = f"{total} ^ {term}"
            continue
        if is_bool(k.dtype):
            term = f"wf.cast({name}, {str(known.dtype)!r})"
        if extra:
            term = f"wf.sum({term}, over={extra!r}, dtype={str(known.dtype)!r})"
        half = "0.5 * " if is_float(known.dtype) else ""
        total = f"{half}({total}) + {term}" if half else f"{total} + {term}"
    return total


def draw_body(s: Scope, z: str, most: int = 2) -> tuple[str, str]:
    """Steps on what a function received, and its result, shaped as `z` is."""
    draw_steps(s, most)
    return s.written(), closed(s, z)


def is_exact(s: Scope) -> bool:
    return all(k.exact for k in s.known.values()) and not any(
        is_float(k.dtype) or is_complex(k.dtype) for k in s.known.values()
    )


def predicate(s: Scope, z: str) -> str:
    """One boolean: from an argument, or from the values at hand."""
    k = s.all_known[z]
    s.drawing.fragile |= not k.even
    scalars = s.usable(lambda k: not k.dims and (is_whole(k.dtype) or is_bool(k.dtype)))
    if s.rng.random() < 0.25 and not s.mapped:
        return f"{s.drawing.leaf([], 'int32', (0, 2))} == 1"
    if scalars and s.rng.random() < 0.4:
        return f"{s.rng.choice(scalars)} != 0"
    value = z if not is_complex(k.dtype) else f"wf.real({z})"
    if not k.dims:
        return f"{value} != 0" if is_bool(k.dtype) else f"{value} > 0"
    if is_bool(k.dtype):
        return f"wf.any({value}, over={names(k.dims)!r})"
    place = ", ".join(f"{d.name!r}, 0" for d in k.dims)
    return s.rng.choice([f"wf.sum({value}, over={names(k.dims)!r}) > 0", f"{value}[{place}] > 0"])


@control
def cond(s, x, k):
    test, functions, exact = predicate(s, x), [], True
    for _ in range(2):
        body, z, fn = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("f")
        body.receives(z, k.shape, k, turns=True)
        lines, result = draw_body(body, z)
        exact &= is_exact(body)
        functions.append((fn, f"def {fn}({z}):\n{lines}    return {result}\n"))
    before = "".join(text for _, text in functions)
    return s.bind(
        f"wf.cond({test}, {functions[0][0]}, {functions[1][0]}, {x})", "cond", exact, before=before, body=body, met=[x]
    )


@control
def vmap(s, x, k):
    dim = some_dim(s, k)
    if dim is None or (dim.is_padded and s.rng.random() < 0.5):
        return None
    body, z, fn = s.inner([dim]), s.drawing.fresh("z"), s.drawing.fresh("f")
    row = _row(s, x, dim)
    if row is None:
        return None
    body.receives(z, row, k)
    given, taken = [x], [z]
    if s.rng.random() < 0.5:
        others = [o for o in s.usable(lambda o: True) if o != x and _can_go_along(s, o, dim)]
        if others:
            other, name = s.rng.choice(others), s.drawing.fresh("z")
            shape = _row(s, other, dim)
            if shape is not None:
                body.receives(name, shape, s.all_known[other])
                given.append(other)
                taken.append(name)
    s.drawing.mapped.add(dim.name)
    if s.drawing.nesting > 0.5 and s.rng.random() < 0.7:
        with s.drawing.undone_unless_longer(body.lines):
            CONTROL[s.rng.choice(weighed(CONTROL, ""))](body, z, body.all_known[z])
    draw_steps(body, 1)
    result = list(body.known)[-1] if s.rng.random() < 0.5 else closed(body, z)
    before = f"def {fn}({', '.join(taken)}):\n{body.written()}    return {result}\n"
    return s.bind(
        f"wf.vmap({fn}, over={dim.name!r})({', '.join(given)})",
        "vmap",
        is_exact(body),
        before=before,
        body=body,
        met=given,
    )


def _row(s, x, dim):
    """The shape of `x` without a dim, if it has it."""
    if all(d.name != dim.name for d in s.all_known[x].dims):
        return s.all_known[x].shape
    return (
        s.shape_of(f"{x}[{dim.name!r}, 0]")
        if not dim.is_padded
        else s.shape_of(f"wf.unstack(wf.unpad({x}, {dim.name!r}), over={dim.name!r})[0]")
    )


def _can_go_along(s, other, dim):
    return all(d == dim for d in s.all_known[other].dims if d.name == dim.name)


@control
def fori_loop(s, x, k):
    body, z, fn = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("f")
    bound = "2"
    if s.drawing.open_ended and s.rng.random() < 0.6:
        bound = traced_bound(s, x, k)
        s.drawing.differentiable = False
    body.receives(z, k.shape, k, turns=True)
    lines, result = draw_body(body, z)
    before = f"def {fn}(i, {z}):\n{lines}    return {result}\n"
    return s.bind(
        f"wf.fori_loop(0, {bound}, {fn}, {x})", "fori_loop", is_exact(body), before=before, body=body, met=[x]
    )


def traced_bound(s: Scope, x: str, k: Known) -> str:
    """A whole number below 3 that differs from row to row where rows do."""
    s.drawing.fragile |= not k.even
    if not k.dims or is_complex(k.dtype):
        return s.drawing.leaf([], "int32", (0, 3))
    test = x if is_bool(k.dtype) else f"{x} > 0"
    return f"wf.sum(wf.cast({test}, 'int32'), over={names(k.dims)!r}) % 3"


@control
def while_loop(s, x, k):
    if not s.drawing.open_ended:
        return None
    body, z, fn = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("f")
    s.drawing.differentiable = False
    body.receives(z, k.shape, k, turns=True)
    lines, result = draw_body(body, z)
    limit = s.drawing.fresh("n")
    before = f"{limit} = {traced_bound(s, x, k)}\n" if s.rng.random() < 0.8 else f"{limit} = 2\n"
    before += f"def {fn}(c):\n    {z} = c[1]\n{lines}    return c[0] + 1, {result}\n"
    start = "wf.zeros([], dtype='int32')"
    text = f"wf.while_loop(lambda c: c[0] < {limit}, {fn}, ({start}, {x}))[1]"
    return s.bind(text, "while_loop", is_exact(body), before=before, body=body, met=[x])


@control
def scan(s, x, k):
    dim = some_dim(s, k)
    if dim is None or dim.is_padded:
        return None
    body, z, fn, c = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("f"), s.drawing.fresh("c")
    row = _row(s, x, dim)
    if row is None:
        return None
    body.receives(c, row, k, turns=True)
    body.receives(z, row, k)
    lines, result = draw_body(body, c)
    output = s.rng.choice([z, list(body.known)[-1], c])
    before = f"def {fn}({c}, {z}):\n{lines}    return {result}, {output}\n"
    start = s.rng.choice([f"wf.zeros({listed(row.dims)}, dtype={str(k.dtype)!r})", f"{x}[{dim.name!r}, 0]"])
    which = s.rng.choice([0, 1])
    s.drawing.whole.add(dim.name)
    text = f"wf.scan({fn}, {start}, {x}, over={dim.name!r}, reverse={s.rng.random() < 0.5})[{which}]"
    return s.bind(text, "scan", is_exact(body), before=before, body=body, met=[x])


@control
def remat(s, x, k):
    body, z, fn = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("f")
    body.receives(z, k.shape, k, turns=True)
    lines, result = draw_body(body, z)
    how = s.rng.choice(["wf.remat({})", "jax.checkpoint({})", "wf.remat({}, save=['kept'])"])
    if "save" in how:
        result = f"wf.name({result}, 'kept')"
    before = f"def {fn}({z}):\n{lines}    return {result}\n"
    word = "remat" if "wf." in how else "jax.checkpoint"
    return s.bind(f"{how.format(fn)}({x})", word, is_exact(body), before=before, body=body, met=[x])


@control
def accumulate(s, x, k):
    dim = some_dim(s, k, 4)
    if dim is None or not is_float(k.dtype) or dim.is_padded:
        return None
    shared = s.partner([d for d in k.dims if d.name != dim.name], k.dtype)
    if shared is None or any(d.name == dim.name for d in s.all_known[shared].dims):
        return None
    half = s.shape_of(f"wf.slice({x}, over={dim.name!r}, start=0, size={dim.size // 2})")
    if half is None:
        return None
    body, z, w, fn = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("w"), s.drawing.fresh("f")
    body.receives(w, s.all_known[shared].shape, s.all_known[shared])
    body.receives(z, half, k)
    lines, result = draw_body(body, z)
    product = s.drawing.fresh("p")
    weight = s.rng.choice(["2.0", f"wf.sum({product} * {product}, over={product}.dims) + 1.0"])
    before = (
        f"def {fn}({w}, {z}):\n{lines}    {product} = ({result}) * {w}\n"
        f"    return wf.sum({product}, over={product}.dims), {weight}\n"
    )
    text = f"wf.accumulate({fn}, {shared}, {x}, over={dim.name!r}, count=2)"
    return s.bind(text, "accumulate", False, before=before, body=body, met=[x, shared])


@control
def custom_vjp(s, x, k):
    other = s.partner(k.dims, k.dtype)
    if other is None or not is_float(k.dtype):
        return None
    have, fn = {d.name for d in k.dims}, s.drawing.fresh("f")
    theirs = s.all_known[other].dims
    lone = [names(d for d in theirs if d.name not in have), names(d for d in k.dims if d not in theirs)]
    sums = [f"wf.sum({{}}, over={over!r})" if over else "{}" for over in lone]
    first = sums[0].format("g * b" if s.rng.random() < 0.6 else "2.0 * g + 0.0 * b")
    second = s.rng.choice([sums[1].format("g * a + 1.0"), sums[1].format("3.0 * g * a")])
    before = (
        f"@wf.custom_vjp\ndef {fn}(a, b):\n    return a * b\n"
        f"{fn}.defvjp(lambda a, b: (a * b, (a, b)), "
        f"lambda kept, g: (lambda a, b: ({first}, {second}))(*kept))\n"
    )
    return s.bind(f"{fn}({x}, {other})", "custom_vjp", False, before=before, met=[x, other])


@control
def inner_gradient(s, x, k):
    if not is_float(k.dtype):
        return None
    body, z, fn = s.inner(), s.drawing.fresh("z"), s.drawing.fresh("f")
    was = s.drawing.differentiable
    body.receives(z, k.shape, k, turns=True)
    lines, result = draw_body(body, z)
    if was and not s.drawing.differentiable:
        return None  # a loop without a gradient stands in it
    y = s.drawing.fresh("y")
    before = (
        f"def {fn}({z}):\n{lines}    {y} = {result}\n    return wf.sum({y} * {y}, over={y}.dims, dtype='float32')\n"
    )
    return s.bind(f"wf.grad({fn})({x})", "grad", False, before=before, body=body, met=[x])
