"""Optimizers of Weft's own: Adam with its moments in 8 bits.

Plain Optax transformations of plain arrays: they know no dims, and nothing of the language. Imports elsewhere, errors
and namespace alone.

Block-wise quantisation as in Dettmers et al. 2022 ("8-bit Optimizers via Block-wise Quantization"): a moment is kept as
codes of 8 bits, in the shape of its parameter, and a float32 scale for each block of the last dim, which is the
largest value in it. Blocks lie by global position, and a slice of a parameter holds whole ones: a layout changes no
number. In place of that paper's table of 256 values there is a square law, denser near zero as the table is, which
needs no look-up: a code q stands for (q / 127)^2 of the scale, with its sign. Of the second moment the root is kept so,
in 255 steps, and no positive one becomes zero, by which an update would be divided.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .elsewhere import OPTIMIZERS as _OPTIMIZERS
from .errors import LayoutError, WeftError
from .namespace import namespace as _namespace

__all__ = ["ScaleByAdam8bitState", "adam8bit", "adamw8bit", "scale_by_adam8bit"]

BLOCK = 64
"""How many numbers share a scale: 2.125 bytes a parameter for both moments, where float32 has 8."""
LEAST_SIZE = 4096
"""Arrays of fewer numbers keep their moments in float32."""
LEAST_BLOCK = 16
"""So do those whose last dim is no multiple of this."""
_SIGNED, _UNSIGNED = 127, 255

Wide = Callable[[Any], Any] | Any


class ScaleByAdam8bitState(NamedTuple):
    """Adam's moments as codes with scales; None for a scale where they are float32."""

    count: Any
    mu: Any
    """Of the gradients: int8 in the shapes of the parameters, or float32."""
    nu: Any
    """Of their squares: uint8, or float32."""
    mu_scale: Any
    """Float32, one for each block of the last dim."""
    nu_scale: Any


def adamw8bit(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    weight_decay: float = 1e-4,
    mask: Any = None,
    block_size: int = BLOCK,
    min_size: int = LEAST_SIZE,
    keep_float32: Wide = None,
) -> optax.GradientTransformation:
    """As `optax.adamw`, with 8-bit moments: some 2 bytes a parameter in place of 8.

    `mask` says which parameters decay, as in Optax. For the rest see `scale_by_adam8bit`.
    """
    return optax.chain(
        scale_by_adam8bit(b1, b2, eps, block_size=block_size, min_size=min_size, keep_float32=keep_float32),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def adam8bit(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    block_size: int = BLOCK,
    min_size: int = LEAST_SIZE,
    keep_float32: Wide = None,
) -> optax.GradientTransformation:
    """As `optax.adam`, with 8-bit moments: some 2 bytes a parameter in place of 8."""
    return optax.chain(
        scale_by_adam8bit(b1, b2, eps, block_size=block_size, min_size=min_size, keep_float32=keep_float32),
        optax.scale_by_learning_rate(learning_rate),
    )


def scale_by_adam8bit(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    block_size: int = BLOCK,
    min_size: int = LEAST_SIZE,
    keep_float32: Wide = None,
) -> optax.GradientTransformation:
    """As `optax.scale_by_adam`, the moments quantised block by block to 8 bits.

    A block is the largest power of two up to `block_size` that divides the last dim. Arrays of fewer than `min_size`
    numbers, those whose last dim is no multiple of 16, and those that `keep_float32` names (a tree of booleans like
    the parameters, or a function that makes one of them) keep float32 moments, and are updated as by Optax.
    """
    if not isinstance(block_size, int) or block_size < LEAST_BLOCK or block_size & (block_size - 1):
        raise WeftError(f"`block_size` is {block_size!r}", fix=f"give a power of two from {LEAST_BLOCK} on, e.g. 64")
    if not isinstance(min_size, int) or isinstance(min_size, bool) or min_size < 0:
        raise WeftError(f"`min_size` is {min_size!r}", fix="give a whole number from 0 on, e.g. `min_size=4096`")

    def blocks_of(params: Any) -> list[int | None]:
        """For each array the size of its blocks, or None where it keeps float32."""
        leaves, structure = _flatten(params)
        wide = keep_float32(params) if callable(keep_float32) else keep_float32
        flags = [False] * len(leaves) if wide is None else structure.flatten_up_to(wide)
        return [
            None if flag or leaf.size < min_size else _block(leaf.shape, block_size)
            for leaf, flag in zip(leaves, flags, strict=True)
        ]

    def init(params: Any) -> ScaleByAdam8bitState:
        leaves, structure = _flatten(params)
        moments = []
        for path, leaf, block in zip(_paths(params), leaves, blocks_of(params), strict=True):
            zeros = jnp.zeros_like(leaf, dtype=jnp.float32)
            if block is not None:
                _check_whole_blocks(path, leaf, block)
            moments.append((*_encode(zeros, block, signed=True), *_encode(zeros, block, signed=False)))
        mu, mu_scale, nu, nu_scale = (structure.unflatten(part) for part in _columns(moments, 4))
        return ScaleByAdam8bitState(jnp.zeros([], jnp.int32), mu, nu, mu_scale, nu_scale)

    def update(gradients: Any, state: ScaleByAdam8bitState, params: Any = None) -> tuple[Any, ScaleByAdam8bitState]:
        leaves, structure = _flatten(gradients)
        count = optax.safe_increment(state.count)
        correct = [1 - decay**count for decay in (b1, b2)]
        held = [structure.flatten_up_to(part) for part in (state.mu, state.mu_scale, state.nu, state.nu_scale)]
        updates, moments = [], []
        for g, mu, mu_scale, nu, nu_scale in zip(leaves, *held, strict=True):
            block = None if mu_scale is None else mu.shape[-1] // mu_scale.shape[-1]
            wide = g.astype(jnp.float32)
            m = (1 - b1) * wide + b1 * _decode(mu, mu_scale, signed=True)
            v = (1 - b2) * wide**2 + b2 * _decode(nu, nu_scale, signed=False)
            updates.append((m / correct[0] / (jnp.sqrt(v / correct[1]) + eps)).astype(g.dtype))
            moments.append((*_encode(m, block, signed=True), *_encode(v, block, signed=False)))
        new = (structure.unflatten(part) for part in _columns(moments, 4))
        mu, mu_scale, nu, nu_scale = new
        return structure.unflatten(updates), ScaleByAdam8bitState(count, mu, nu, mu_scale, nu_scale)

    return optax.GradientTransformation(init, update)


def _block(shape: tuple[int, ...], most: int) -> int | None:
    """The largest power of two up to `most` that divides the last dim; None if small."""
    block = math.gcd(shape[-1], most) if shape else 0
    return block if block >= LEAST_BLOCK else None


def _encode(moment: Any, block: int | None, *, signed: bool) -> tuple[Any, Any]:
    """A moment as codes and scales; as it is where it has no blocks."""
    if block is None:
        return moment, None
    values = moment if signed else jnp.sqrt(moment)
    blocks = values.reshape(*values.shape[:-1], -1, block)
    scale = jnp.max(jnp.abs(blocks), axis=-1)
    ratio = blocks / jnp.where(scale == 0, 1.0, scale)[..., None]
    if signed:
        codes = jnp.sign(ratio) * jnp.round(_SIGNED * jnp.sqrt(jnp.abs(ratio)))
    else:
        codes = jnp.maximum(jnp.round(_UNSIGNED * jnp.sqrt(ratio)), (ratio > 0).astype(ratio.dtype))
    return codes.astype(jnp.int8 if signed else jnp.uint8).reshape(values.shape), scale


def _decode(codes: Any, scale: Any, *, signed: bool) -> Any:
    """The moment that codes and scales stand for."""
    if scale is None:
        return codes
    blocks = codes.reshape(*scale.shape, -1).astype(jnp.float32) / (_SIGNED if signed else _UNSIGNED)
    if signed:
        return (blocks * jnp.abs(blocks) * scale[..., None]).reshape(codes.shape)
    return jnp.square(jnp.square(blocks) * scale[..., None]).reshape(codes.shape)


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    """A tree's leaves, and its structure, which JAX's types say little of."""
    return jax.tree.flatten(tree)


def _check_whole_blocks(path: str, leaf: Any, block: int) -> None:
    """Raises where a slice of the array, by the type JAX gives it, would cut blocks."""
    sharding: Any = getattr(jax.typeof(leaf), "sharding", None)
    spec = tuple(getattr(sharding, "spec", ()))
    if len(spec) < leaf.ndim or spec[-1] is None:
        return
    axes = spec[-1] if isinstance(spec[-1], tuple) else (spec[-1],)
    ways = math.prod(sharding.mesh.shape[axis] for axis in axes)
    size = leaf.shape[-1] // ways
    if size % block:
        fits = _block((size,), block)
        smaller = f"say `block_size={fits}`, or " if fits is not None else ""
        raise LayoutError(
            f"the 8-bit moments of `{path}` have blocks of {block} along its last dim, and a slice is {size} long",
            state=f"shape {tuple(leaf.shape)}, the last dim split over {'+'.join(axes)} ({ways} ways)",
            fix=f"{smaller}store this parameter split along another dim, or keep its moments in float32 "
            "(`keep_float32`)",
        )


def _paths(tree: Any) -> list[str]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]


def _columns(rows: list[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return [[row[i] for row in rows] for i in range(count)]


__dir__, __getattr__ = _namespace(globals(), called="optim", written=_OPTIMIZERS)
