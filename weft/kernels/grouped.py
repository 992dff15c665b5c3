"""Grouped products (grouped GEMM): each group of rows with a matrix of its own.

What dropless experts (MoE) are computed by on a GPU, where XLA makes of `jax.lax.ragged_dot` products of all rows with
all matrices. Rows are placed in blocks, each of one group: the last block of a group is filled up with zeros, of which
there are fewer than a block for each group. Pallas, for Triton, on plain arrays.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

NEIGHBOURS = 8
"""How many blocks of rows are worked on beside each other, so that they share what they read of the matrices."""


class BlockPlaces(NamedTuple):
    """Where rows stand in the blocks of their groups."""

    row: Any
    """The row at each place; as many as there are rows, where none is: [places]."""
    place: Any
    """The place of each row; as many as there are places, for one of no group: [rows]."""
    group: Any
    """The group of each block: [blocks]."""
    first: Any
    """The first block of each group, and where the last one ends: [groups + 1]."""


@dataclass(frozen=True)
class Tiles:
    """How large the pieces are that one program of the kernel works on."""

    rows: int = 128
    columns: int = 256
    inner: int = 64
    warps: int = 8
    stages: int = 4

    def fit(self, *widths: int) -> "Tiles":
        """The same with columns and inner pieces that divide the matrices' widths."""
        columns, inner = (
            max((n for n in (256, 128, 64, 32, 16) if n <= most and not any(w % n for w in widths)), default=0)
            for most in (self.columns, self.inner)
        )
        return Tiles(self.rows, columns, inner, self.warps, self.stages)


TILES = Tiles()


def can_do(rows: Any, weights: Any, tiles: Tiles = TILES) -> str | None:
    """Why the kernel cannot do it, if so; arrays, or their shapes and dtypes."""
    if rows.dtype not in (jnp.bfloat16, jnp.float16):
        return f"the kernel takes bfloat16 and float16, and rows are {rows.dtype}"
    if not tiles.fit(*weights.shape[1:]).columns:
        return f"the matrices are {weights.shape[1]} x {weights.shape[2]}, and the kernel takes multiples of 16"
    return None


def place_rows(group: Any, groups: int, block: int = TILES.rows) -> BlockPlaces:
    """Where rows of these groups stand; those of a number beyond `groups` nowhere."""
    rows = len(group)
    blocks = -(-(rows // block + groups) // NEIGHBOURS) * NEIGHBOURS  # the most there can be
    order = jnp.argsort(group, stable=True)
    sizes = jnp.sum(group[:, None] == jnp.arange(groups), 0)  # all at once: a scatter would queue at so few numbers
    starts = jnp.cumsum(sizes) - sizes
    first = jnp.concatenate([jnp.zeros(1, "int32"), jnp.cumsum(-(-sizes // block)).astype("int32")])
    sorted_group = group[order]
    inside = jnp.arange(rows) - jnp.append(starts, 0)[sorted_group]
    place = jnp.where(sorted_group < groups, first[sorted_group] * block + inside, blocks * block)
    is_after = first[1:groups] <= jnp.arange(blocks)[:, None]
    return BlockPlaces(
        row=jnp.full(blocks * block, rows, "int32").at[place].set(order.astype("int32"), mode="drop"),
        place=jnp.zeros(rows, "int32").at[order].set(place.astype("int32"), unique_indices=True),
        group=jnp.sum(is_after, 1).astype("int32"),
        first=first,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def spread(tokens: Any, places: BlockPlaces, choices: int) -> Any:
    """Each token at the places of its `choices` rows; zeros where none is."""
    return tokens.at[places.row // choices].get(mode="fill", fill_value=0)


def _spread(tokens: Any, places: BlockPlaces, choices: int) -> tuple[Any, Any]:
    return spread(tokens, places, choices), places


def _spread_back(choices: int, places: BlockPlaces, gradient: Any) -> tuple[Any, None]:
    # By looking up where rows went, not by adding up where they came from.
    each = gradient.at[places.place].get(mode="fill", fill_value=0).reshape(-1, choices, gradient.shape[-1])
    return each.astype("float32").sum(1).astype(gradient.dtype), None


spread.defvjp(_spread, _spread_back)


@jax.custom_vjp
def collect(placed: Any, places: BlockPlaces) -> Any:
    """What stands at the place of each row; zeros for one of no group."""
    return placed.at[places.place].get(mode="fill", fill_value=0)


def _collect_back(places: BlockPlaces, gradient: Any) -> tuple[Any, None]:
    return gradient.at[places.row].get(mode="fill", fill_value=0), None


collect.defvjp(lambda placed, places: (collect(placed, places), places), _collect_back)


def grouped_product(x: Any, weights: Any, places: BlockPlaces, *, tiles: Tiles = TILES, interpret: bool = False) -> Any:
    """Rows [places d] with the matrix [d f] of each block's group: [places f]."""
    run = jax.custom_vjp(lambda x, weights, places: _by_group(x, weights, places, tiles, interpret))

    def backward(kept: Any, gradient: Any) -> tuple[Any, Any, None]:
        x, weights, places = kept
        of_rows = _by_group(gradient, weights, places, tiles, interpret, is_turned=True)
        return of_rows, _of_group(x, gradient, places, weights.dtype, tiles, interpret), None

    run.defvjp(lambda *given: (run(*given), given), backward)
    return run(x, weights, places)


def _by_group(
    x: Any, weights: Any, places: BlockPlaces, tiles: Tiles, interpret: bool, *, is_turned: bool = False
) -> Any:
    """The product with each block's matrix, or with it turned round."""
    inner, columns = weights.shape[1:][::-1] if is_turned else weights.shape[1:]
    tiles = tiles.fit(*weights.shape[1:])
    blocks, across, groups = len(places.group), columns // tiles.columns, len(weights)

    def kernel(group_ref: Any, first_ref: Any, x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        number = pl.program_id(0)
        band, within = lax.div(number, NEIGHBOURS * across), lax.rem(number, NEIGHBOURS * across)
        block, column = band * NEIGHBOURS + lax.rem(within, NEIGHBOURS), lax.div(within, NEIGHBOURS)
        group = group_ref[block]
        own_rows = pl.ds(block * tiles.rows, tiles.rows)
        own_columns = pl.ds(column * tiles.columns, tiles.columns)

        def add(i: Any, total: Any) -> Any:
            piece = pl.ds(i * tiles.inner, tiles.inner)
            w = w_ref[group, own_columns, piece].T if is_turned else w_ref[group, piece, own_columns]
            return total + triton.dot(x_ref[own_rows, piece], w)

        # Blocks after the last group's hold no row: where experts are split, most of them.
        pieces = jnp.where(block < first_ref[groups], inner // tiles.inner, 0)
        total = lax.fori_loop(0, pieces, add, jnp.zeros((tiles.rows, tiles.columns), "float32"))
        out_ref[own_rows, own_columns] = total.astype(out_ref.dtype)

    out = jax.ShapeDtypeStruct((len(x), columns), x.dtype)
    flops = 2 * len(places.place) * inner * columns
    return _call(kernel, blocks * across, out, tiles, interpret, flops)(places.group, places.first, x, weights)


def _of_group(x: Any, gradient: Any, places: BlockPlaces, dtype: Any, tiles: Tiles, interpret: bool) -> Any:
    """For each group the sum over its rows of `x gradient`: [groups d f]."""
    d, f = x.shape[1], gradient.shape[1]
    tiles = tiles.fit(d, f)
    high = min(tiles.rows, tiles.columns, d)
    groups, down, across = len(places.first) - 1, d // high, f // tiles.columns

    def kernel(first_ref: Any, x_ref: Any, g_ref: Any, out_ref: Any) -> None:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        number = pl.program_id(0)
        group, within = lax.div(number, down * across), lax.rem(number, down * across)
        own_rows = pl.ds(lax.rem(within, down) * high, high)
        own_columns = pl.ds(lax.div(within, down) * tiles.columns, tiles.columns)
        pieces = tiles.rows // min(tiles.inner, tiles.rows)

        def add(i: Any, total: Any) -> Any:
            piece = pl.ds(i * (tiles.rows // pieces), tiles.rows // pieces)
            return total + triton.dot(x_ref[piece, own_rows].T, g_ref[piece, own_columns])

        begin, end = first_ref[group] * pieces, first_ref[group + 1] * pieces
        total = lax.fori_loop(begin, end, add, jnp.zeros((high, tiles.columns), "float32"))
        out_ref[group, own_rows, own_columns] = total.astype(out_ref.dtype)

    out = jax.ShapeDtypeStruct((groups, d, f), dtype)
    flops = 2 * len(places.place) * d * f
    return _call(kernel, groups * down * across, out, tiles, interpret, flops)(places.first, x, gradient)


def _call(kernel: Any, programs: int, out: Any, tiles: Tiles, interpret: bool, flops: int) -> Any:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        kernel,
        out,
        grid=(programs,),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        cost_estimate=pl.CostEstimate(flops=flops, bytes_accessed=0, transcendentals=0),
        name="grouped_product",
    )
