"""Written steps that move, cut, join and look up: of any dtype, and exact."""

from collections.abc import Callable
from typing import Any

import weft as wf
from tests.properties.written.drawing import (
    FOLLOWS,
    LARGEST,
    SIZES,
    Known,
    Scope,
    is_bool,
    is_float,
    is_whole,
    listed,
    names,
    written_dim,
)

OPS: dict[str, Callable[[Scope, str, Known], str | None]] = {}


def op(fn: Callable[[Scope, str, Known], str | None]) -> Callable[[Scope, str, Known], str | None]:
    """Lists a step: it draws one on the variable `x`, or finds that it cannot."""
    OPS[fn.__name__.rstrip("_")] = fn
    return fn


def some_dim(s: Scope, k: Known, least: int = 1) -> wf.Dim | None:
    found = [d for d in k.dims if d.size >= least]
    return s.rng.choice(found) if found else None


def new_dim(s: Scope, size: int, taken: Any = ()) -> wf.Dim | None:
    """A dim of this size whose name is free here."""
    gone = {d.name for d in taken} | {d.name for d in s.mapped} | s.drawing.padded
    free = [name for name in SIZES if name not in gone]
    fitting = [name for name in free if SIZES[name] == size] or free
    name = s.rng.choice(fitting) if fitting else None
    return wf.Dim(name, size, FOLLOWS.get(name)) if name else None


def constant(s: Scope, k: Known) -> str:
    if is_bool(k.dtype):
        return s.rng.choice(["True", "False"])
    return s.rng.choice(["0", "1", "2"] if not is_float(k.dtype) else ["0", "1.5", "-0.0"])


@op
def slice_(s, x, k):
    dim = some_dim(s, k, 2)
    if dim is None:
        return None
    size = s.rng.choice([n for n in range(1, dim.size + 1) if n == 1 or n % 2 == 0])
    start = s.rng.randint(0, dim.size - size)
    return s.bind(f"wf.slice({x}, over={dim.name!r}, start={start}, size={size})", "slice", True, met=[x])


def scalar_index(s: Scope, size: int) -> str:
    """A traced whole number: an argument, or one that each row has for itself."""
    rows = s.usable(lambda k: not k.dims and k.dtype == "int32")
    if rows and s.rng.random() < 0.7:
        return s.rng.choice(rows)
    return s.drawing.leaf([], "int32", (-1, size + 1))


@op
def slice_traced(s, x, k):
    dim = some_dim(s, k, 2)
    if dim is None:
        return None
    at, size = scalar_index(s, dim.size), s.rng.choice([1, 2, dim.size // 2, dim.size])
    return s.bind(f"wf.slice({x}, over={dim.name!r}, start={at}, size={size})", "slice traced", True, met=[x, at])


@op
def getitem(s, x, k):
    dim = some_dim(s, k)
    if dim is None:
        return None
    i, j = sorted(s.rng.sample(range(dim.size + 1), 2))
    place = s.rng.choice([f"{i}", f"{i - dim.size}", f"{i}:{j}"]) if i < dim.size else "0"
    return s.bind(f"{x}[{dim.name!r}, {place}]", "getitem", True, met=[x])


@op
def pad(s, x, k):
    dim = some_dim(s, k)
    if dim is None or dim.size > 6:
        return None
    before = s.rng.randint(0, 2)
    how = f"over={dim.name!r}, before={before}, after={2 - before}, value={constant(s, k)}"
    return s.bind(f"wf.pad({x}, {how})", "pad", True, met=[x])


@op
def shift(s, x, k):
    dim = some_dim(s, k)
    if dim is None:
        return None
    by = s.rng.randint(-dim.size, dim.size)
    return s.bind(f"wf.shift({x}, over={dim.name!r}, by={by}, fill={constant(s, k)})", "shift", True, met=[x])


@op
def roll(s, x, k):
    dim = some_dim(s, k)
    if dim is None:
        return None
    return s.bind(f"wf.roll({x}, over={dim.name!r}, by={s.rng.randint(-9, 9)})", "roll", True, met=[x])


@op
def flip(s, x, k):
    dim = some_dim(s, k)
    return dim and s.bind(f"wf.flip({x}, over={dim.name!r})", "flip", True, met=[x])


@op
def concat(s, x, k):
    dim = some_dim(s, k)
    other = s.rng.choice(s.usable(lambda o: o.dtype == k.dtype and set(o.dims) == set(k.dims)) or [None])
    if dim is None or other is None or 2 * dim.size > LARGEST:
        return None
    return s.bind(f"wf.concat([{x}, {other}], over={dim.name!r})", "concat", True, met=[x, other])


@op
def stack(s, x, k):
    other = s.rng.choice(s.usable(lambda o: o.dtype == k.dtype and set(o.dims) == set(k.dims)) or [None])
    dim = new_dim(s, 2, k.dims)
    if other is None or dim is None:
        return None
    return s.bind(f"wf.stack([{x}, {other}], {written_dim(dim)})", "stack", True, met=[x, other])


@op
def unstack(s, x, k):
    dim = some_dim(s, k)
    if dim is None:
        return None
    return s.bind(f"wf.unstack({x}, over={dim.name!r})[{s.rng.randrange(dim.size)}]", "unstack", True, met=[x])


@op
def split(s, x, k):
    dim = some_dim(s, k, 4)
    if dim is None or dim.size % 2:
        return None
    sizes = s.rng.choice([(2, dim.size // 2), (dim.size // 2, 2)])
    rest = [d for d in k.dims if d.name != dim.name]
    one = new_dim(s, sizes[0], rest)
    two = one and new_dim(s, sizes[1], [*rest, one])
    return two and s.bind(f"wf.split({x}, {dim.name}={listed([one, two])})", "split", True, met=[x])


@op
def merge(s, x, k):
    if len(k.dims) < 2:
        return None
    parts = s.rng.sample(list(k.dims), 2)
    size = parts[0].size * parts[1].size
    into = new_dim(s, size, [d for d in k.dims if d not in parts]) if size <= LARGEST else None
    return into and s.bind(f"wf.merge({x}, {names(parts)!r}, into={written_dim(into)})", "merge", True, met=[x])


@op
def rename(s, x, k):
    dim = some_dim(s, k)
    new = dim and not dim.is_padded and new_dim(s, dim.size, k.dims)
    return new and s.bind(f"{x}.rename({dim.name}={written_dim(new)})", "rename", True, met=[x])


@op
def broadcast(s, x, k):
    new = new_dim(s, s.rng.choice([2, 4, 8]), k.dims)
    if new is None:
        return None
    into = s.rng.sample([*k.dims, new], len(k.dims) + 1)
    return s.bind(f"wf.broadcast({x}, {listed(into)})", "broadcast", True, met=[x])


@op
def update(s, x, k):
    dim = some_dim(s, k)
    if dim is None:
        return None
    rest = [d for d in k.dims if d.name != dim.name]
    found = s.usable(lambda o: o.dtype == k.dtype and set(o.dims) == set(rest))
    if not found:
        if s.mapped:
            return None
        found = [s.drawing.leaf(rest, str(k.dtype))]
    new = s.rng.choice(found)
    at = s.rng.choice([scalar_index(s, dim.size), str(s.rng.randrange(dim.size))])
    met = [x, new] if at.isdigit() else [x, new, at]
    return s.bind(f"wf.update({x}, {new}, over={dim.name!r}, at={at})", "update", True, met=met)


def ids_for(s: Scope, k: Known, dim: wf.Dim, *, keeps: bool) -> str | None:
    """Indices into a dim, some outside of it: an argument, or what a row has."""
    others = [d for d in k.dims if d.name != dim.name]
    own = new_dim(s, s.rng.choice([2, 4]), k.dims)
    if own is None:
        return None
    have = s.rng.sample(others, s.rng.randint(0, min(1, len(others))))
    have += [dim.resized(s.rng.choice([2, dim.size]))] if keeps else s.rng.choice([[], [own]])
    if s.mapped and s.rng.random() < 0.5:
        rows = s.usable(lambda o: is_whole(o.dtype) and (any(d.name == dim.name for d in o.dims) == keeps))
        return s.rng.choice(rows) if rows else None
    return s.drawing.leaf(have, "int32", (-2, dim.size + 2))


@op
def take(s, x, k):
    dim = some_dim(s, k)
    ids = dim and ids_for(s, k, dim, keeps=False)
    return ids and s.bind(f"wf.take({x}, {ids}, over={dim.name!r})", "take", True, met=[x, ids])


@op
def gather(s, x, k):
    dim = some_dim(s, k)
    ids = dim and not dim.is_padded and ids_for(s, k, dim, keeps=True)
    return ids and s.bind(f"wf.gather({x}, {ids}, over={dim.name!r})", "gather", True, met=[x, ids])


@op
def scatter_add(s, x, k):
    dim = some_dim(s, k)
    if dim is None or s.mapped or is_bool(k.dtype):
        return None
    ids = ids_for(s, k, dim, keeps=s.rng.random() < 0.5)
    if ids is None:
        return None
    met = {d.name: d for d in (*(d for d in k.dims if d.name != dim.name), *s.all_known[ids].dims)}
    updates = s.drawing.leaf(list(met.values()), str(k.dtype))
    exact = is_whole(k.dtype) or s.drawing.style == "zeros"
    return s.bind(
        f"wf.scatter_add({x}, {ids}, {updates}, over={dim.name!r})", "scatter_add", exact, met=[x, ids, updates]
    )


@op
def one_hot(s, x, k):
    """The places that some ids name, as booleans or numbers of its own dtype."""
    dim = some_dim(s, k)
    ids = dim and not dim.is_padded and ids_for(s, k, dim, keeps=False)
    if not ids:
        return None
    hot = f"wf.one_hot({ids}, {written_dim(dim)}, dtype={str(k.dtype)!r})"
    return s.bind(hot, "one_hot", True, met=[ids])


@op
def pad_to(s, x, k):
    dim = some_dim(s, k)
    multiple = s.rng.choice([2, 4, 8])
    if dim is None or dim.is_padded or dim.size % multiple == 0:
        return None
    return s.bind(f"wf.pad_to({x}, {dim.name!r}, {multiple})", "pad_to", True, met=[x])


@op
def unpad(s, x, k):
    found = [d for d in k.dims if d.is_padded]
    return s.bind(f"wf.unpad({x}, {found[0].name!r})", "unpad", True, met=[x]) if found else None


@op
def setting_places(s, x, k):
    """Where a dim's own places say so, `x`; else a constant."""
    dim = some_dim(s, k)
    if dim is None or dim.is_padded:
        return None
    like = s.rng.choice([f", like={x}", ""])
    places = f"wf.arange({written_dim(dim)}{like}) % 3 == 1"
    return s.bind(
        f"wf.where({places}, {x}, wf.cast(wf.full([], {constant(s, k)}), {str(k.dtype)!r}))", "where", True, met=[x]
    )
