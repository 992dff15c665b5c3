"""What decoding starts with: prompts as tensors, and a layout for them.

Imports the models. Sequences are made to fit the mesh here: a prompt of a language model begins later where it is
shorter, so that all end at the same place.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..errors import DimError, RegionError, TensorError, WeftWarning, user_stacklevel
from ..layout import Layout, LayoutLike, as_layout
from ..mesh import Mesh
from ..models import Seq2Seq, TransformerConfig, TransformerLM
from ..models.decoding import need_decoder
from ..models.inputs import check_ids
from ..models.running import without_rules
from ..nn.arguments import check_count
from ..nn.moe import expert_capacity
from ..spmd.border import SpmdFunction
from ..spmd.compiling import compiler_options
from ..spmd.place import check_values
from ..tensor import Tensor, is_tensor, tensor


@dataclass(frozen=True)
class Start:
    """Prompts ready to decode from, under the layout that holds for them."""

    prompt: dict[str, Tensor]
    room: int
    """How many places the KV cache has."""
    mesh: Mesh | None
    layout: Layout | None


@functools.lru_cache(maxsize=64)
def compile_once(
    fn: Callable[..., Any], mesh: Mesh | None, layout: Layout | None, donate: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """`fn` jitted for a mesh and a layout, or for one processor; once for equal ones."""
    if mesh is not None and layout is not None:
        return SpmdFunction(fn, mesh, layout, donate=donate)
    return jax.jit(fn, compiler_options=compiler_options(None), donate_argnums=donate)


def config_of(model: Any) -> TransformerConfig:
    """The configuration of a model that decodes."""
    config = getattr(model, "config", None)
    need_decoder(config, type(model).__name__)
    return model.config


def start_decoding(
    model: Any,
    prompts: Any,
    steps: int,
    layout: LayoutLike | None,
    continuations: dict[str, int],
    ahead: int = 0,
    padded: int | None = None,
) -> Start:
    """The prompts of a model that decodes `steps`, with dims of `continuations`.

    Where the model checks tokens `ahead` of those written, its KV cache has room for them too, and none of the few that
    it sees at once is split from the others.
    """
    config_of(model)
    check_values(jax.tree.leaves(model))
    steps = check_count(steps, "max_new_tokens")
    rows = _rows(prompts, model.config.vocab)
    mesh = model.mesh
    if layout is not None and mesh is None:
        raise RegionError(
            "a layout was given, and the model was made without a mesh", fix="make it on one: `models.init`"
        )
    layout = model.layout if layout is None else as_layout(layout)
    if mesh is None or layout is None:
        ways: dict[str, int] = {}
    else:
        layout.check_dims(model.config.dims)
        layout = without_rules(layout, *({"beam", "samples", "layers"} - set(continuations)))
        layout = drop_undivided(layout, mesh, {"batch": len(rows), **continuations})
        if ahead:
            why = f"a step sees {ahead + 1} tokens, which go to all processors"
            layout = _drop_aloud(layout, mesh, ["length", "stream"], why)
            layout = drop_undivided(layout, mesh, {"memory_length": ahead + 1})
        ways = {name: ways_of(layout, mesh, name) for name in ("length", "stream", "memory_length", "slots")}
    multiple = math.lcm(*ways.values(), 1)
    most, is_lm = max(map(len, rows)), isinstance(model, TransformerLM)
    longest = round_up(most if padded is None else max(most, check_count(padded, "padded")), multiple)
    room = round_up(longest + steps + ahead if is_lm else steps, multiple)
    if mesh is not None and layout is not None and model.config.experts and not is_lm:
        config = model.config
        layout = drop_undivided(
            layout, mesh, {"slots": expert_capacity(longest, config.experts, config.choices, config.capacity)}
        )
    check_positions(model, most, steps)
    if isinstance(model, Seq2Seq):
        return Start(_pad_right(rows, longest, model.config.padding), room, mesh, layout)
    return Start(_pad_left(rows, longest), room, mesh, layout)


def check_positions(model: Any, most: int, steps: int) -> None:
    """Raises where a model has learned fewer positions than prompts and tokens need."""
    needed = most + steps if isinstance(model, TransformerLM) else max(most, steps)
    if model.config.positions == "learned" and needed > (room := model.config.max_positions):
        raise DimError(
            f"{most} tokens and {steps} more need {needed} positions, and the model has {room}",
            fix=f"shorten the prompts, or ask for at most {max(room - most, 0)} tokens",
        )
    stretch = model.config.stretch if model.config.positions == "rotary" else None
    if stretch is not None and stretch.kind == "longrope" and most <= stretch.length < needed:
        raise DimError(
            f"{most} tokens and {steps} more go beyond {stretch.length} positions (`rotary_length`), where LongRoPE "
            "turns all keys otherwise, those in the KV cache too",
            fix=f"ask for at most {stretch.length - most} tokens, or pad the prompts to more than {stretch.length}",
        )


def _rows(prompts: Any, vocab: int) -> list[np.ndarray]:
    """Prompts as one array of ids each."""
    if is_tensor(prompts):
        prompts = _array(prompts)
    try:
        rows = [np.asarray(row) for row in prompts]
    except TypeError:
        raise _no_prompts(prompts) from None
    if not rows:
        raise TensorError("there are no prompts", fix="give at least one: `[[1, 2, 3]]`")
    for number, row in enumerate(rows):
        if row.ndim != 1:
            raise _no_prompts(prompts)
        if not row.size:
            raise TensorError(f"prompt {number} is empty", fix="give it at least one token, such as the start id")
        if not np.issubdtype(row.dtype, np.integer):
            raise TensorError(f"prompt {number} holds {row.dtype}, not token ids", fix="give whole numbers")
        check_ids(f"prompt {number}", row, vocab)
    return [row.astype("int32") for row in rows]


def _array(prompts: Tensor) -> Any:
    if set(prompts.dims.names) != {"batch", "length"}:
        raise DimError(f"the prompts have dims [{prompts.dims}]", fix="name them so: `wf.tensor(ids, 'batch length')`")
    array = np.asarray(jax.device_get(prompts.array))
    return array if prompts.dims.names[0] == "batch" else array.T


def _no_prompts(given: Any) -> TensorError:
    return TensorError(
        f"the prompts are {type(given).__name__} {given!r:.60}",
        fix="give a list of lists of token ids, an integer array [batch, length], or such a tensor",
    )


def _pad_left(rows: Sequence[np.ndarray], size: int) -> dict[str, Tensor]:
    ids = np.stack([np.pad(row, (size - len(row), 0)) for row in rows])
    prompt = {"inputs": tensor(ids, "batch length")}
    if any(len(row) < size for row in rows):
        prompt["first"] = tensor(np.array([size - len(row) for row in rows], "int32"), "batch")
    return prompt


def _pad_right(rows: Sequence[np.ndarray], size: int, padding: int | None) -> dict[str, Tensor]:
    ids = np.stack([np.pad(row, (0, size - len(row)), constant_values=padding or 0) for row in rows])
    prompt = {"inputs": tensor(ids, "batch length")}
    if padding is None and any(len(row) < size for row in rows):
        words = np.stack([np.arange(size) < len(row) for row in rows])
        prompt["input_segments"] = tensor(words.astype("int32"), "batch length")
    return prompt


def drop_undivided(layout: Layout, mesh: Mesh, sizes: dict[str, int]) -> Layout:
    """The layout without rules whose dims do not divide; warns of them."""
    for name, size in sizes.items():
        ways = ways_of(layout, mesh, name)
        if size % ways:
            why = f"`{name}` has size {size}, which does not divide over {ways} processors"
            layout = _drop_aloud(layout, mesh, [name], why)
    return layout


def _drop_aloud(layout: Layout, mesh: Mesh, names: Sequence[str], why: str) -> Layout:
    """The layout without rules of these dims; warns of each."""
    for name in names:
        if ways_of(layout, mesh, name) > 1:
            rule = f"{name}:{'+'.join(layout.rules[name])}"
            layout = layout.drop(name)
            warnings.warn(
                f"decoding without the rule `{rule}`: {why}; each of them computes all of it\n  layout: {layout}",
                WeftWarning,
                stacklevel=user_stacklevel(),
            )
    return layout


def ways_of(layout: Layout, mesh: Mesh, name: str) -> int:
    """Over how many processors a layout splits the dim of that name."""
    return math.prod(mesh.axes[axis] for axis in layout.rules.get(name, ()))


def round_up(size: int, multiple: int) -> int:
    """The size, or the next larger one that is a multiple."""
    return -(-size // multiple) * multiple


def round_up_batch(batch: int, mesh: Mesh, layout: Layout) -> int:
    """The batch, or the next larger one that divides over the axes it is split on."""
    return round_up(batch, ways_of(layout, mesh, "batch"))


def check_id(name: str, value: Any, vocab: int) -> int:
    """The token id that an argument gives."""
    if check_count(value, name, 0) >= vocab:
        raise TensorError(f"`{name}` is {value}, and the vocab has {vocab}", fix=f"give an id below {vocab}")
    return int(value)
