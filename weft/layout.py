"""Layouts, and what a layout on a mesh makes of a tensor: its placement.

Imports what stands below it. A `Layout` is rules alone; a `Region` is a layout on a mesh, and the only place
that says over which axes a tensor's dims are split and how large its local slice is.
"""

import contextlib
import contextvars
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from .cells import layout_cell
from .dims import NAME, UNSHOWN, Dim, Dims, Shape, list_dims
from .errors import LayoutError, WeftWarning, closest, describe_region_by, public, user_stacklevel
from .hints import how_to_pad, what_makes
from .mesh import LONGEST_TEXT, Mesh
from .record import Axes, Record, record_of_region

Placement = tuple[Axes, ...]
Rules = dict[str, Axes]

_STORES = ("params", "optimizer")
_STORED_BY: dict[str | None, tuple[str, ...]] = {None: (), "params": ("params",), "optimizer": _STORES}
HOST = "host"
"""Where a storage rule may end: in the pinned memory of the host, beside that of the processors."""
ALL = "*"
"""In a storage rule that ends there: all dims."""


@public(form="wf.Layout('batch:rows, d_ff:cols')")
class Layout:
    """Rules that say which dims are split over which mesh axes.

    >>> Layout("batch:rows, d_ff:cols").rules
    {'batch': ('rows',), 'd_ff': ('cols',)}

    Rules of `params.` and `optimizer.` say how parameters and the optimizer's state are stored, and may end on `host`:
    in the host's memory, whence each is fetched for its use. `optimizer.*:host` says it of all, `params.d_ff:cols+host`
    of parameters that have a `d_ff`, split over `cols` too. Optimizer state lies on the host where its parameter does.
    """

    def __init__(self, rules: "str | Mapping[str, Any] | Layout" = "", *, dims: Dims | None = None):
        parsed = _parse(rules)
        self.rules: Rules = _split(parsed, None)
        self.params: Rules = _split(parsed, "params")
        self.optimizer: Rules = _split(parsed, "optimizer")
        self.host = {s: tuple(dim for (of, dim), axes in parsed.items() if of == s and HOST in axes) for s in _STORES}
        """For `params` and `optimizer` the dims (`*` for all) of what is stored in the memory of the host."""
        if dims is not None:
            self.check_dims(dims)

    @property
    def written(self) -> Rules:
        """All rules as written: for `params.d_ff` its axes, and `host` at their end."""
        return {_rule_text(key): axes for key, axes in _parse(self).items()}

    def __str__(self) -> str:
        return ",".join(f"{rule}:{'+'.join(axes)}" for rule, axes in self.written.items())

    def __repr__(self) -> str:
        return f"Layout({str(self)!r})"

    def _repr_html_(self) -> str:
        return layout_cell(self.written)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.written == other.written

    def __hash__(self) -> int:
        return hash(frozenset(self.written.items()))

    @property
    def axes(self) -> frozenset[str]:
        """Every axis some rule names."""
        stores = (self.rules, self.params, self.optimizer)
        return frozenset(axis for rules in stores for axes in rules.values() for axis in axes)

    @public
    def drop(self, *names: "Dim | str") -> "Layout":
        """This layout without the rules of these dims (`batch`, `params.d_model`)."""
        kept = _parse(self)
        for named in list_dims(names, "drop"):
            name = named.name if isinstance(named, Dim) else named
            key = _parse_key(name, self)
            if key not in kept:
                raise LayoutError(
                    f"layout {str(self)!r} has no rule for `{name}`",
                    fix=closest(name, [_rule_text(key) for key in kept]),
                )
            del kept[key]
        return Layout({_rule_text(key): axes for key, axes in kept.items()})

    def check_dims(self, dims: Dims) -> None:
        """Raises if a rule names none of these dims."""
        names = [dim.name if isinstance(dim, Dim) else dim for dim in list_dims(dims, "dims")]
        for rule, axes in self.written.items():
            if rule.rpartition(".")[2] not in (*names, ALL):
                raise unmatched_error(rule, axes, names, self, f"layout: {self}", "no dim of the model has that name")


def unmatched_error(rule: str, axes: Axes, names: Iterable[str], layout: Layout, state: str, why: str) -> LayoutError:
    """The error of a rule that splits nothing."""
    written = f"{rule}:{'+'.join(axes)}"
    names = [name for name in names if not name.startswith(UNSHOWN)]
    hint = f"{closest(rule.split('.')[-1], names)} or " if names else ""
    return LayoutError(
        f"rule `{written}` matches nothing: {why}",
        state=state,
        fix=f"{hint}drop the rule: `layout.drop('{rule}')`{what_makes(rule)}",
        layout=layout,
    )


LayoutLike = Layout | str | Mapping[str, str | Sequence[str]]
"""A layout as callers write it; None, where it may be left out, is the empty one."""


def as_layout(layout: LayoutLike | None) -> Layout:
    """A layout out of whatever way a caller may write one."""
    return layout if isinstance(layout, Layout) else Layout("" if layout is None else layout)


def _parse(rules: Any) -> dict[tuple[str | None, str], Axes]:
    if isinstance(rules, Layout):
        by_key: dict[tuple[str | None, str], Axes] = {(None, dim): axes for dim, axes in rules.rules.items()}
        for store in _STORES:
            by_key |= {(store, dim): axes for dim, axes in getattr(rules, store).items()}
            by_key |= {(store, dim): (*by_key.get((store, dim), ()), HOST) for dim in rules.host[store]}
        return by_key
    if isinstance(rules, Mapping):
        pairs = [(name, list(axes) if isinstance(axes, list | tuple) else axes) for name, axes in rules.items()]
    elif isinstance(rules, str):
        if len(rules) > LONGEST_TEXT:
            fix = "write it like `batch:rows,d_ff:cols`"
            raise LayoutError(f"a layout of {len(rules):,} letters: {rules[:40]!r}...", fix=fix)
        text = re.sub(r"\s*([:+.])\s*", r"\1", rules.strip())
        pairs = [tuple(part.split(":", 1)) for part in re.split(r"[,;\s]+", text) if part]
    else:
        raise LayoutError(f"a layout cannot be made of {rules!r}", fix="write it like `Layout('batch:rows,d_ff:cols')`")
    by_key = {}
    for pair in pairs:
        key, axes = _parse_rule(pair, rules)
        if key in by_key:
            both = f"{_rule_text(key)}:{'+'.join(sorted(dict.fromkeys(by_key[key] + axes), key=HOST.__eq__))}"
            raise LayoutError(
                f"layout {rules!r} has two rules for `{_rule_text(key)}`", fix=f"write one, e.g. `{both}`"
            )
        by_key[key] = axes
    return by_key


def _parse_rule(pair: Sequence[Any], rules: Any) -> tuple[tuple[str | None, str], Axes]:
    axes = pair[1].split("+") if len(pair) == 2 and isinstance(pair[1], str) else pair[1] if len(pair) == 2 else []
    written = ":".join(map(str, pair))
    if not isinstance(axes, list) or not axes or not all(isinstance(a, str) and NAME.match(a) for a in axes):
        raise LayoutError(
            f"`{written}` in layout {rules!r} is not a rule",
            fix="write rules like `dim:axis`, `dim:axis+axis` or `params.dim:axis`",
        )
    if len(set(axes)) < len(axes):
        raise LayoutError(f"rule `{written}` names an axis twice", fix="name each axis once")
    key = _parse_key(pair[0], rules)
    _check_host(key, axes, written, rules)
    return key, tuple(axes)


def _check_host(key: tuple[str | None, str], axes: Sequence[str], written: str, rules: Any) -> None:
    """Raises where a rule ends on the host, or begins with `*`, that may not."""
    store, dim = key
    if HOST in axes and store is None:
        raise LayoutError(
            f"rule `{written}` puts `{dim}` on the host, where only what is stored may lie",
            state=f"layout: {rules}",
            fix=f"store parameters there (`params.{dim}:host`, `params.*:host`) or the optimizer's state "
            f"(`optimizer.*:host`); activations go there by `remat`, e.g. `remat='attention@host'`",
        )
    if HOST in axes[:-1]:
        right = HOST if dim == ALL else "+".join(sorted(axes, key=HOST.__eq__))  # `*` is for the host alone
        raise LayoutError(f"rule `{written}` goes on after `host`", fix=f"end on it: `{_rule_text(key)}:{right}`")
    if dim == ALL and list(axes) != [HOST]:
        raise LayoutError(
            f"rule `{written}` splits `*`, all dims, over an axis",
            state=f"layout: {rules}",
            fix=f"name the dim that is split (`{store or 'params'}.d_model:{axes[0]}`); "
            "`*` is for the host: `params.*:host`, `optimizer.*:host`",
        )


def _split(parsed: Mapping[tuple[str | None, str], Axes], store: str | None) -> Rules:
    """The rules of a store that split dims over axes, and those axes."""
    split = {dim: axes[:-1] if axes[-1] == HOST else axes for (of, dim), axes in parsed.items() if of == store}
    return {dim: axes for dim, axes in split.items() if axes}


def _parse_key(name: Any, rules: Any) -> tuple[str | None, str]:
    store, dot, dim = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if not (NAME.match(dim) or dim == ALL) or (dot and store not in _STORES):
        raise LayoutError(
            f"`{name}` in layout {str(rules)!r} is not the left side of a rule",
            fix="write `dim`, `params.dim` or `optimizer.dim`",
        )
    return store or None, dim


def _rule_text(key: tuple[str | None, str]) -> str:
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


class Region:
    """A layout on a mesh while one program is traced: where each tensor is split.

    Compared by identity: every trace has its own, so no cache can carry one into another.
    """

    def __init__(self, mesh: Mesh, layout: Layout, *, outer: "Region | None" = None, taken: Axes = ()):
        self.mesh, self.layout, self.outer = mesh, layout, outer
        self.taken: Axes = taken if outer is None else outer.taken + taken
        self.seen: set[str] = set() if outer is None else outer.seen
        self.seen_params: set[str] = set() if outer is None else outer.seen_params
        self._in_the_way: dict[tuple[str, str], str | None] = {} if outer is None else outer._in_the_way
        self.record: Record = record_of_region() if outer is None else outer.record
        self._placements: dict[Any, Placement] = {}
        for axis in sorted(layout.axes):
            if axis not in mesh.axes:
                turned = next((dim for dim, axes in layout.rules.items() if axis in axes and dim in mesh.axes), None)
                raise LayoutError(
                    f"a rule names axis `{axis}`, which the mesh does not have",
                    state=f"layout: {layout}   mesh: {mesh}",
                    fix=f"the dim comes first: `{axis}:{turned}`" if turned else closest(axis, mesh.axes),
                )

    def within(self, taken: Axes) -> "Region":
        """This region with some axes taken by a mapped dim: no other is split over them."""
        return Region(self.mesh, self.layout, outer=self, taken=taken)

    def encloses(self, other: "Region | None") -> bool:
        while other is not None and other is not self:
            other = other.outer
        return other is self

    def ways(self, axes: Axes) -> int:
        """Into how many slices these axes cut."""
        return math.prod(self.mesh.axes[axis] for axis in axes)

    def placement(self, dims: Sequence[Dim], store: str | None = None) -> Placement:
        """For each dim the axes it is split over, with the rules of a `store`."""
        key = (tuple(dims), store)
        if key not in self._placements:
            self._placements[key] = self._place(dims, store)
        return self._placements[key]

    def can_meet(self, dims: Sequence[Dim]) -> bool:
        """Whether one op can take tensors of these dims: no axis splits two of them."""
        explicit, inherited = self._rules_for(dims)
        held = axes_in(explicit.values())
        held += tuple(axis for axis in axes_in(inherited.values()) if axis not in held)
        return len(set(held)) == len(held)

    def can_store(self, dims: Sequence[Dim], store: str) -> bool:
        """Whether a tensor of these dims can be stored so: each divides, on its own axes."""
        try:
            self.placement(dims, store)
        except LayoutError:
            return False
        return True

    def is_on_host(self, dims: Sequence[Dim], store: str | None) -> bool:
        """Whether what is stored of these dims lies on the host; a number does not."""
        names = {ALL, *(dim.name for dim in dims)}
        return bool(dims) and any(dim in names for level in _STORED_BY[store] for dim in self.layout.host[level])

    def local_sizes(self, dims: Sequence[Dim], placement: Placement) -> tuple[int, ...]:
        return tuple(dim.size // self.ways(axes) for dim, axes in zip(dims, placement, strict=True))

    def _place(self, dims: Sequence[Dim], store: str | None) -> Placement:
        placed = self.axes(dims, store)
        return tuple(self._check_divides(dim, axes, store) for dim, axes in zip(dims, placed, strict=True))

    def see(self, dims: Sequence[Dim]) -> None:
        """Notes that a tensor of the program has these dims, which rules may name."""
        self.seen.update(name for dim in dims for name in (dim.name, dim.follows) if name is not None)

    def axes(self, dims: Sequence[Dim], store: str | None = None) -> Placement:
        """As `placement`, whatever the sizes."""
        self.see(dims)
        if store:
            self.seen_params.update(dim.name for dim in dims)
        held: dict[str, str] = {}
        placed: dict[str, Axes] = {}
        explicit, inherited = self._rules_for(dims)
        for name, axes in explicit.items():
            self._hold(name, axes, held, dims)
        settled = set(held)
        for name, axes in inherited.items():
            inherited[name] = tuple(axis for axis in axes if axis not in settled)
            self._hold(name, inherited[name], held, dims)
        placed |= explicit | inherited
        computed = dict(held)
        for level in _STORED_BY[store]:
            rules, settled = getattr(self.layout, level), {*held, *self.taken}
            for dim in dims:
                wanted = [axis for axis in rules.get(dim.name, ()) if axis not in self.taken]
                more = tuple(axis for axis in wanted if axis not in settled)
                if wanted:  # who has the axis instead, until one tensor is stored by the rule
                    other = None if more or computed.get(wanted[0], dim.name) == dim.name else computed[wanted[0]]
                    self._in_the_way[level, dim.name] = other and self._in_the_way.get((level, dim.name), other)
                self._hold(dim.name, more, held, dims, level)
                placed[dim.name] = placed.get(dim.name, ()) + more
        sizes = self.mesh.axes
        return tuple(tuple(axis for axis in placed.get(dim.name, ()) if sizes[axis] > 1) for dim in dims)

    def _rules_for(self, dims: Sequence[Dim]) -> tuple[Rules, Rules]:
        rules = {
            name: tuple(axis for axis in axes if axis not in self.taken) for name, axes in self.layout.rules.items()
        }
        explicit = {dim.name: rules[dim.name] for dim in dims if dim.name in rules}
        inherited = {dim.name: rules[dim.follows] for dim in dims if dim.name not in rules and dim.follows in rules}
        return explicit, inherited

    def _hold(self, name: str, axes: Axes, held: dict[str, str], dims: Sequence[Dim], store: str = "") -> None:
        for axis in axes:
            if held.setdefault(axis, name) != name:
                by = name if name in self.layout.rules else Shape(dims).find(name).follows
                split, rule = ("stored split", f"{store}.{name}") if store else ("split", by)
                rename = "" if store else f", or rename one dim to an unsplit name: `x.rename({name}='{name}_whole')`"
                is_ring = {held[axis], name} == {"length", "memory_length"}
                ring = "; attention alone brings both together, as a ring (`nn.Attention`)" if is_ring else ""
                kept = [dim for dim in (held[axis], name) if dim in self.layout.rules and dim in self.seen_params]
                if len(kept) == 1 and not store:
                    rename += f", or only store parameters so: `params.{kept[0]}:{axis}` for `{kept[0]}:{axis}`"
                raise LayoutError(
                    f"dims `{held[axis]}` and `{name}` of [{Shape(dims)}] are both {split} over axis `{axis}`",
                    state=self.state,
                    fix=f"drop one rule (`layout.drop('{rule}')`) or give it another axis{rename}{ring}",
                    layout=self.layout,
                )

    def _check_divides(self, dim: Dim, axes: Axes, store: str | None) -> Axes:
        ways = self.ways(axes)
        if dim.size % ways:
            lower, upper = dim.size // ways * ways, -(-dim.size // ways) * ways
            nearest = f"{lower}, {upper}" if lower else f"{upper}"
            over = f"axis `{axes[0]}`" if len(axes) == 1 else f"axes `{'+'.join(axes)}`"
            name = next(
                (f"{s}.{dim.name}" for s in reversed(_STORED_BY[store]) if dim.name in getattr(self.layout, s)),
                dim.name,
            )
            raise LayoutError(
                f"dim `{dim.name}` (size {dim.size}) does not divide over mesh {over} (size {ways})",
                state=self.state,
                fix=f"make `{dim.name}` a multiple of {ways} (nearest: {nearest}), "
                f"pad it before it comes here ({how_to_pad(dim, ways)}), "
                f"rename it to an unsplit name first (`x.rename({dim.name}='{dim.name}_whole')`), "
                f"or drop `{name}:{'+'.join(self.layout.written.get(name, axes))}`",
            )
        return axes

    @property
    def state(self) -> str:
        return f"layout: {self.layout}   mesh: {self.mesh}"

    def check_all_rules_matched(self) -> None:
        """Raises where no tensor of the finished trace has the dim of a rule."""
        for dim, axes in self.layout.rules.items():
            if dim not in self.seen:
                raise unmatched_error(
                    dim, axes, self.seen, self.layout, self.state, "no tensor of this program has that dim"
                )
        for (store, dim), axes in _parse(self.layout).items():
            if store == "params" and dim not in self.seen_params and not (dim == ALL and self.seen_params):
                why = (
                    "no parameter among the arguments has that dim (`wf.parameter` makes one; closed over it is whole)"
                )
                raise unmatched_error(f"params.{dim}", axes, self.seen_params, self.layout, self.state, why)
            if store == "optimizer" and dim not in self.seen and dim != ALL:
                why = "no tensor of this program has that dim"
                raise unmatched_error(f"optimizer.{dim}", axes, self.seen, self.layout, self.state, why)
            if store and (other := self._in_the_way.get((store, dim))):
                self._warn_of_useless_rule(store, dim, axes, other)

    def _warn_of_useless_rule(self, store: str, dim: str, axes: Axes, other: str) -> None:
        """Warns of a rule of storage that changes nothing: memory is not as was meant."""
        error = LayoutError(
            f"rule `{store}.{dim}:{'+'.join(axes)}` stores nothing: whatever has `{dim}` is split over "
            f"`{'+'.join(axes)}` by its dim `{other}`",
            state=self.state,
            fix=f"drop the rule: `layout.drop('{store}.{dim}')`, or give it another axis",
        )
        warnings.warn(WeftWarning(error), stacklevel=user_stacklevel())


def axes_in(placement: Iterable[Axes]) -> Axes:
    """All axes that some dim of a placement is split over."""
    return tuple(axis for axes in placement for axis in axes)


def spec(placement: Placement) -> PartitionSpec:
    """The JAX partition spec of a placement."""
    return PartitionSpec(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in placement))


def placement_of(spec: Iterable[Any]) -> Placement:
    """The axes of each dim that a partition spec of JAX names."""
    return tuple(() if part is None else part if isinstance(part, tuple) else (part,) for part in spec)


def type_text(dtype: str, dims: Sequence[Dim], placement: Placement) -> str:
    """A placed type as it is printed.

    >>> type_text("f32", (Dim("batch", 8), Dim("d", 4)), (("rows",), ()))
    'f32[batch/rows d]'
    """
    parts = [dim.name + (f"/{'+'.join(axes)}" if axes else "") for dim, axes in zip(dims, placement, strict=True)]
    return f"{dtype}[{' '.join(parts)}]"


# The region whose body is being traced. No tensor's placement follows from it: a tensor carries its own layout. Read
# where there is no tensor to ask (an op on numbers alone, the record, an error's text), by a region called inside
# another, which runs inline, and by gradients, for the axes that a mapped dim has taken.
_open: contextvars.ContextVar[Region | None] = contextvars.ContextVar("open region", default=None)


def open_region() -> Region | None:
    """The innermost region being traced, if any."""
    return _open.get()


describe_region_by(lambda: region.state if (region := _open.get()) is not None else "")


@contextlib.contextmanager
def tracing_in(region: Region | None) -> Iterator[None]:
    """While a region's body is traced."""
    token = _open.set(region)
    try:
        yield
    finally:
        _open.reset(token)
