"""Dims and shapes: the names and sizes of a tensor's dimensions.

Imports checks and errors alone. A `Shape` never names a dim twice; whoever holds one may trust that.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checks import is_whole
from .errors import DimError, closest, public

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
UNSHOWN = "__"  # how names start that operations give dims for themselves, and no printed program shows


@public(form="wf.Dim('batch', 8)")
@dataclass(frozen=True)
class Dim:
    """A named dimension of a tensor.

    With `follows`, it takes that dim's rule where no rule names it. Where only the first `valid` places hold values
    the rest is padding: no operation lets it change a result.

    >>> Dim("batch", 8)
    batch=8
    """

    name: str
    size: int
    follows: str | None = None
    valid: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.match(self.name):
            raise DimError(
                f"a dim cannot be named {self.name!r}",
                fix="use letters, digits and `_`, starting with a letter, e.g. `Dim('batch', 8)`",
            )
        if not is_whole(self.size, 1):
            raise DimError(
                f"dim `{self.name}` has size {self.size!r}",
                fix=f"give it a whole number of at least 1, e.g. `Dim('{self.name}', 8)`",
            )
        if self.follows is not None and (not isinstance(self.follows, str) or not NAME.match(self.follows)):
            raise DimError(
                f"dim `{self.name}` follows {self.follows!r}, which is no dim's name",
                fix=f"name the dim it follows, e.g. `Dim('{self.name}', {self.size}, follows='length')`",
            )
        if self.follows == self.name:
            raise DimError(f"dim `{self.name}` follows itself", fix="leave `follows` out")
        object.__setattr__(self, "size", int(self.size))
        if self.valid is not None and (not is_whole(self.valid, 1) or self.valid > self.size):
            raise DimError(
                f"dim `{self.name}` of size {self.size} has {self.valid!r} valid places",
                fix=f"give a whole number from 1 to {self.size}, or leave `valid` out",
            )
        object.__setattr__(self, "valid", None if self.valid in (None, self.size) else int(self.valid))

    @property
    def count(self) -> int:
        """How many places hold values: all but the padding."""
        return self.size if self.valid is None else self.valid

    @property
    def is_padded(self) -> bool:
        """Whether its last places are padding."""
        return self.valid is not None

    @property
    def is_shown(self) -> bool:
        """Whether printed programs show it: no operation made it for itself."""
        return not self.name.startswith(UNSHOWN)

    @public
    def padded_to(self, multiple: int) -> "Dim":
        """This dim with as much padding as makes its size a multiple.

        >>> Dim("vocab", 50257).padded_to(128)
        vocab=50257+47
        """
        if not is_whole(multiple, 1):
            raise DimError(
                f"dim `{self.name}` was padded to a multiple of {multiple!r}",
                fix=f"give a whole number of at least 1, e.g. `Dim('{self.name}', {self.size}).padded_to(128)`",
            )
        return Dim(self.name, -(-self.count // multiple) * multiple, self.follows, self.count)

    @public
    def renamed(self, name: str) -> "Dim":
        """A dim of this size under another name; it follows nothing."""
        return Dim(name, self.size, valid=self.valid)

    @public
    def resized(self, size: int) -> "Dim":
        """This dim with another size, and no padding."""
        return Dim(self.name, size, self.follows)

    def __repr__(self) -> str:
        return f"{self.name}={self.size_text}"

    @property
    def size_text(self) -> str:
        """The size as it is shown: values, and padding where there is any."""
        return f"{self.count}+{self.size - self.count}" if self.is_padded else str(self.size)


DimLike = Dim | str
"""A dim, or its name."""
Dims = DimLike | Iterable[DimLike]
"""Several dims as callers write them: one dim, names in a string (`"batch length"`), or a list of dims and names."""


@public(form="wf.dims(batch=8, d_model=16)")
def dims(**sizes: int) -> tuple[Dim, ...]:
    """Several dims at once, in the order written.

    >>> dims(batch=8, d_model=16)
    (batch=8, d_model=16)
    """
    return tuple(Dim(name, size) for name, size in sizes.items())


class Shape(tuple[Dim, ...]):
    """An ordered tuple of dims whose names are unique."""

    __slots__ = ()

    def __new__(cls, dims: Iterable[Dim] = ()) -> "Shape":
        shape = super().__new__(cls, dims)
        names = [dim.name for dim in shape]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise DimError(
                f"shape [{shape}] names `{repeated}` twice",
                fix=f"rename one of them, e.g. `{repeated}_2`",
            )
        return shape

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self)

    @property
    def is_padded(self) -> bool:
        """Whether any of its dims has padding."""
        return any(dim.is_padded for dim in self)

    @property
    def values(self) -> tuple[slice, ...]:
        """The index that takes the values of an array of this shape, and no padding."""
        return tuple(slice(dim.count) for dim in self)

    def position(self, dim: DimLike) -> int:
        """Where `dim` stands."""
        return self.names.index(self.find(dim).name)

    def find(self, dim: DimLike) -> Dim:
        """The dim of this shape that `dim` names."""
        name = dim.name if isinstance(dim, Dim) else dim
        for mine in self:
            if mine.name == name:
                if isinstance(dim, Dim) and not _names(dim, mine):
                    same_size(mine, dim)
                return mine
        raise DimError(
            f"there is no dim `{name}` in [{self}]",
            fix=closest(str(name), self.names),
        )

    def __contains__(self, dim: object) -> bool:
        """Whether there is such a dim; a name stands for the dim of that name."""
        return dim in self.names if isinstance(dim, str) else super().__contains__(dim)

    def has(self, dim: DimLike) -> bool:
        return (dim.name if isinstance(dim, Dim) else dim) in self.names

    def without(self, gone: Iterable[DimLike]) -> "Shape":
        """This shape less the dims `gone`."""
        names = {self.find(dim).name for dim in gone}
        return Shape(dim for dim in self if dim.name not in names)

    def resized(self, sizes: Mapping[str, int]) -> "Shape":
        """This shape with some dims at other sizes."""
        return Shape(dim.resized(sizes[dim.name]) if dim.name in sizes else dim for dim in self)

    def __str__(self) -> str:
        return " ".join(map(repr, self))

    def __repr__(self) -> str:
        return f"[{self}]"


def union(*shapes: Iterable[Dim]) -> Shape:
    """The dims of all shapes in first-seen order; one name must have one size."""
    seen: dict[str, Dim] = {}
    for shape in shapes:
        for dim in shape:
            known = seen.setdefault(dim.name, dim)
            same_size(known, dim)
            if known.follows is None:
                seen[dim.name] = dim
    return Shape(seen.values())


def _names(dim: Dim, mine: Dim) -> bool:
    """Whether a dim without padding names one that has been padded since."""
    return dim.name == mine.name and mine.is_padded and not dim.is_padded and dim.size == mine.count


def same_size(a: Dim, b: Dim) -> None:
    """Raises where two dims of one name have two sizes, or follow two dims."""
    if a.size != b.size and a.is_padded != b.is_padded:
        padded, other = (a, b) if a.is_padded else (b, a)
        raise DimError(
            f"dim `{a.name}` is {padded.size_text} in one tensor, values and padding, and {other.size} in another",
            fix=f"pad the other too: `wf.pad_to(y, '{a.name}', {padded.size})`, or make it with the padded dim: "
            f"`x.dim('{a.name}')`",
        )
    if a.size != b.size:
        raise DimError(
            f"dim `{a.name}` has size {a.size} in one tensor and {b.size} in another",
            fix=f"give both the same size, or rename one: `x.rename({a.name}='{a.name}_2')`",
        )
    if a.valid != b.valid:
        padded, other = (a, b) if a.is_padded else (b, a)
        raise DimError(
            f"dim `{a.name}` (size {a.size}) holds {padded.count} values in one tensor and {other.count} in another",
            fix=f"pad both alike: `wf.pad_to(x, '{a.name}', multiple)`, or rename one: "
            f"`x.rename({a.name}='{a.name}_2')`",
        )
    if a.follows != b.follows and a.follows is not None and b.follows is not None:
        raise DimError(
            f"dim `{a.name}` follows `{a.follows}` in one tensor and `{b.follows}` in another",
            fix=f"make the dim once and use it in both, or rename one: `x.rename({a.name}='{a.name}_2')`",
        )


def words(text: str) -> list[str]:
    """The names in a string, separated by blanks or commas."""
    return re.split(r"[\s,]+", text.strip()) if text.strip() else []


def list_dims(given: Dims, what: str, known: Iterable[Dim] = ()) -> list[DimLike]:
    """A list of dims and names out of whatever way a caller may write several dims.

    Those `known` are named where it is none of these.
    """
    if isinstance(given, Dim):
        return [given]
    if isinstance(given, str):
        return list(words(given))
    if isinstance(given, Iterable) and getattr(given, "shape", None) is None:
        found: list[DimLike] = []
        for item in given:
            if not isinstance(item, Dim | str):
                raise _not_dims(given, what, known)
            found.extend([item] if isinstance(item, Dim) else words(item))
        return found
    raise _not_dims(given, what, known)


def _not_dims(given: Any, what: str, known: Iterable[Dim]) -> DimError:
    names = [dim.name for dim in known]
    if is_whole(given, least=1) and not names:
        fix = f"give a dim of that size, e.g. `wf.Dim('d_model', {given})`"
    else:
        names = names or ["batch", "length"]
        fix = f"give dims or their names, e.g. `{what}='{' '.join(names)}'` or `{what}=[{', '.join(names)}]`"
    return DimError(f"`{what}` is {given!r}, which names no dims", fix=fix)


def _check_once(asked: list[DimLike], what: str) -> list[DimLike]:
    names = [item.name if isinstance(item, Dim) else item for item in asked]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DimError(
            f"`{what}` names `{twice}` twice", fix=f"name it once: `{what}='{' '.join(dict.fromkeys(names))}'`"
        )
    return asked


def resolve(given: Dims, known: Sequence[Dim], *, what: str) -> Shape:
    """The dims `given` names, each of them one of `known`."""
    known = Shape(known)
    for dim in (asked := _check_once(list_dims(given, what, known), what)):
        if not known.has(dim):
            name = dim.name if isinstance(dim, Dim) else dim
            raise DimError(
                f"`{what}` names `{name}`, which is not among the dims at hand: [{known}]",
                fix=closest(name, known.names),
            )
    return Shape(known.find(dim) for dim in asked)


def new_dims(given: Dims, *, what: str, known: Sequence[Dim] = ()) -> Shape:
    """The dims `given` holds; a bare name has no size, so it must be one of `known`."""
    known = Shape(known)
    for item in (asked := list_dims(given, what, known)):
        if isinstance(item, str) and not known.has(item):
            raise DimError(
                f"`{what}` gives the name `{item}` alone, and there is no size to go with it",
                fix=f"give a dim, e.g. `wf.Dim('{item}', 8)`",
            )
    padded = {dim.name: dim for dim in known if dim.is_padded}
    found = [item if isinstance(item, Dim) else known.find(item) for item in asked]
    return Shape(padded[dim.name] if dim.name in padded and _names(dim, padded[dim.name]) else dim for dim in found)


def only(dims: Shape, what: str) -> Dim:
    """The one dim named."""
    if len(dims) != 1:
        example = dims[0].name if dims else "length"
        raise DimError(
            f"{what} goes over one dim, and [{dims}] are {len(dims)}", fix=f"name one dim, e.g. `over='{example}'`"
        )
    return dims[0]


def rename_dims(dims: Shape, names: Mapping[str, DimLike]) -> Shape:
    """The shape after a rename; every old name must be there, and no new one twice."""
    for old, new in names.items():
        if not dims.has(old):
            raise DimError(f"there is no dim `{old}` to rename in [{dims}]", fix=closest(old, dims.names))
        if not isinstance(new, Dim | str):
            raise DimError(f"`{old}` was renamed to {new!r}", fix=f"give a name or a dim, e.g. `{old}='memory_{old}'`")
        if isinstance(new, Dim) and new.size not in (dims.find(old).size, dims.find(old).count):
            raise DimError(
                f"dim `{old}` (size {dims.find(old).size}) was renamed to `{new.name}` of size {new.size}",
                fix=f"a rename keeps the size: `{new.name}` must have size {dims.find(old).size}",
            )
        if isinstance(new, Dim) and new.is_padded and new.valid != dims.find(old).valid:
            raise DimError(
                f"{dims.find(old)!r} was renamed to {new!r}, which has other padding",
                fix=f"a rename keeps the padding: give the name alone, `{old}='{new.name}'`",
            )
    after = [_renamed_dim(dim, names.get(dim.name)) for dim in dims]
    for dim, new in zip(dims, after, strict=True):
        if dim.name in names and sum(other.name == new.name for other in after) > 1:
            raise DimError(
                f"dim `{dim.name}` was renamed to `{new.name}`, which [{dims}] has already",
                fix=f"choose another name, or rename that dim in the same call: `{new.name}='{new.name}_2'`",
            )
    return Shape(after)


def _renamed_dim(dim: Dim, new: Any) -> Dim:
    if isinstance(new, Dim):
        return replace(new, size=dim.size, valid=dim.valid)
    return dim if new is None else dim.renamed(new)
