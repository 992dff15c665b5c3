"""Attention by one fused kernel, on each processor's own batch and heads.

`case_of` says what an attention asks of a kernel (`weft.kernels.choice` then chooses); `attend_fused` runs the chosen
one on local arrays, as [batch length heads channel]: dims before `length` are one batch, dims of heads one of heads.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import ops as wf
from ..dims import Dim
from ..kernels.choice import AttentionCase
from ..kernels.cudnn import cudnn_attention
from ..kernels.flash import flash_attention
from ..kernels.splash import splash_attention
from ..lower.collectives import as_varying, varying
from ..lower.dealt import dealt_among
from ..lower.move import align
from ..lower.recorded import note_attention
from ..ops.block_case import MASK_TENSORS, block_case, chip_of
from ..ops.counter_dropout import index_shares
from ..ops.random import key_words, need_key
from ..ops.ring import is_ring
from ..tensor import Tensor, is_tensor
from .mask import Mask
from .position import RelativeBias


def case_of(
    q: Tensor,
    k: Tensor,
    heads: Sequence[Dim],
    *,
    mask: Mask,
    bias: Tensor | RelativeBias | None,
    softcap: float | None,
    dropout: float,
) -> AttentionCase:
    """What an attention of queries [.. length (heads) channel] asks of a kernel."""
    blocks = block_case(q, k, mask, bias, softcap, dropout) if q.dims.has("length") else None
    if blocks is not None and (is_ring(q, k) or (q.ways("length") > 1 and not blocks.refusal)):
        return blocks
    own = {
        name: x.size(name) // x.ways(name) if x.dims.has(name) else 1
        for x, name in ((q, "length"), (k, "memory_length"))
    }
    given = {name.removeprefix("memory_") for name in MASK_TENSORS if getattr(mask, name) is not None}
    return AttentionCase(
        str(q.dtype),
        own["length"],
        own["memory_length"],
        q.dims[-1].size,
        causal=mask.causal,
        window=mask.window,
        tensors=tuple(sorted(given)),
        is_in_order=mask.goes_by_place,
        is_within=mask.is_within,
        bias=_kind_of_bias(q, bias, mask),
        softcap=softcap is not None,
        dropout=bool(dropout),
        is_offset=q.dims.has("length") and q.ways("length") > 1,
        refusal=_why_no_kernel(q, k, heads, mask, bias),
    )


def _kind_of_bias(q: Tensor, bias: Tensor | RelativeBias | None, mask: Mask) -> str:
    """Whether all sequences share a bias, or each has its own."""
    if bias is None:
        return ""
    places = () if mask.goes_by_place else (mask.positions, mask.memory_positions)
    made_of: list[Tensor] = [x for x in (places if isinstance(bias, RelativeBias) else (bias,)) if x is not None]
    return "each" if any(x.dims.has(dim) for x in made_of for dim in _outer(q)) else "shared"


def _outer(x: Tensor) -> Sequence[Dim]:
    """The dims before the places: they are one batch."""
    place = next((name for name in ("length", "memory_length") if x.dims.has(name)), None)
    return () if place is None else x.dims[: x.dims.position(place)]


def _why_no_kernel(q: Tensor, k: Tensor, heads: Sequence[Dim], mask: Mask, bias: Any) -> str:
    """Why no kernel takes these queries and keys, of whatever dtype and size."""
    if not q.dims.has("length") or q.size("length") == 1:
        return "there is one query, whose scores are as few as its keys"
    outer, channel = [dim.name for dim in _outer(q)], heads[-1].name
    want = [*outer, "length", *(dim.name for dim in heads)], [*outer, "memory_length", heads[0].name, channel]
    if [list(q.dims.names), list(k.dims.names)] != list(want):
        return f"queries are [{q.dims}] and keys [{k.dims}], and a kernel takes [.. length heads channel]"
    for x, name in ((k, "memory_length"), (q, channel)):
        if x.ways(name) > 1:
            return f"`{name}` is split, and a kernel goes along it"
    for dim in (q.dim("length"), k.dim("memory_length"), q.dim(channel)):
        if dim.is_padded:
            return f"`{dim.name}` is padded, and a kernel goes along it"
    for name in MASK_TENSORS:
        if (said := getattr(mask, name)) is not None and (stray := _stray(said, [*outer, "length", "memory_length"])):
            return f"`{name}` of the mask has `{stray}`, and a kernel has one mask for all heads"
    if is_tensor(bias) and (stray := _stray(bias, [*q.dims.names[:-1], "memory_length"])):
        return f"the bias has `{stray}`, and neither queries nor keys do"
    if bias is not None and any(dim.is_padded for dim in _outer(q)):
        return "the batch is padded, and the gradient of a bias is summed over it"
    return ""


def _stray(x: Tensor, known: Sequence[str]) -> str:
    return next((name for name in x.dims.names if name not in known), "")


def attend_fused(
    kernel: str,
    case: AttentionCase,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    bias: Tensor | RelativeBias | None,
    scale: float,
    softcap: float | None = None,
    key: Any = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of a case by the kernel chosen for it: as `q`."""
    if isinstance(bias, RelativeBias):
        bias = bias(mask.query_places(q), mask.key_places(k))
    tensors = {name: x for name in MASK_TENSORS if (x := getattr(mask, name)) is not None}
    outer = _outer(q)
    heads = q.dims[len(outer) + 1 : -1]

    def run(*arrays: Any, here: Any) -> Any:
        local = dict(zip(["q", "k", "v", *tensors, *([] if bias is None else ["bias"])], arrays, strict=True))
        sizes = {dim.name: here.size(dim) for dim in (*outer, *heads)}
        queries = _join(local["q"], len(outer), len(heads))
        keys, values = (_join(local[name], len(outer), 1) for name in "kv")
        given = _Given(
            mask,
            case,
            {name: _of_batch(local[name], x, outer, sizes) for name, x in tensors.items()},
            None if bias is None else _of_scores(local["bias"], bias, outer, heads, sizes, case),
            here.start("length") if case.is_offset else 0,
        )
        if kernel == "cudnn":
            mixed = _by_cudnn(queries, keys, values, given, scale=scale)
        elif kernel == "splash":
            mixed = _by_splash(
                queries, keys, values, given, scale=scale, softcap=softcap, is_tpu=chip_of(q).kind == "tpu"
            )
        else:
            how: dict[str, Any] = {"backend": "triton" if chip_of(q).kind == "gpu" else "interpret"}
            if dropout and key is not None:
                how |= _place_dropout(q.dims[:-1], k.dim("memory_length"), dropout, key, here)
            mixed = _by_flash(queries, keys, values, given, scale=scale, softcap=softcap, **how)
        return mixed.reshape(local["q"].shape)

    operands = [q, k, v, *tensors.values(), *([] if bias is None else [bias])]
    with note_attention(q, k, case, kernel=kernel):
        return wf.local(run, *operands, out=q.dims, whole=["memory_length", q.dims[-1]])


class _Given(NamedTuple):
    """What a kernel is given beside queries, keys and values, as local arrays."""

    mask: Mask
    case: AttentionCase
    said: dict[str, Any]
    """The tensors of the mask: [batch places], or [1 places] of all the same."""
    bias: Any
    """[batch heads length memory_length], or 1 in place of batch or heads."""
    start: Any
    """The place of the first query."""


def _by_cudnn(q: Any, k: Any, v: Any, given: _Given, *, scale: float) -> Any:
    mask, case, said = given.mask, given.case, given.said
    order: dict[str, Any] = {"causal": case.causal, "window": case.window} if case.goes_by_place else {}
    if not case.needs_mask:
        return cudnn_attention(q, k, v, scale=scale, bias=given.bias, **order)
    known: dict[str, Any] = dict.fromkeys(MASK_TENSORS) | {"is_in_order": False}
    known |= {"causal": False, "window": None} if case.goes_by_place else {}
    bare = dataclasses.replace(mask, **known)

    def see(start: Any, *arrays: Any) -> Any:
        """[batch 1 length memory_length], or 1 in place of batch."""
        own = {name: _along(name, x) for name, x in zip(said, arrays, strict=True)}
        here, there = start + jnp.arange(case.length)[:, None], jnp.arange(case.memory_length)
        at = (here, there) if mask.goes_by_place else (own.get("positions", here), own.get("memory_positions", there))
        seen = dataclasses.replace(bare, **own).is_seen(None, None, at=at)
        return jnp.broadcast_to(seen, jnp.broadcast_shapes(seen.shape, (1, 1, case.length, case.memory_length)))

    seeing: dict[str, Any] = {"see": see, "places": [jnp.asarray(given.start, "int32"), *said.values()]}
    return cudnn_attention(q, k, v, scale=scale, bias=given.bias, **seeing, may_see_none=not case.is_within, **order)


def _by_splash(q: Any, k: Any, v: Any, given: _Given, *, scale: float, softcap: float | None, is_tpu: bool) -> Any:
    segments, case = given.said.get("segments"), given.case
    return splash_attention(
        q,
        k,
        v,
        scale=scale,
        causal=case.causal,
        window=case.window,
        softcap=softcap,
        segments=None if segments is None else jnp.broadcast_to(segments, q.shape[:2]),
        backend="tpu" if is_tpu else "interpret",
    )


def _place_dropout(dims: Sequence[Dim], memory: Dim, dropout: float, key: Any, here: Any) -> dict[str, Any]:
    """What says which shares dropout keeps: by the global index of each row and head."""
    dealt = dealt_among(dims)
    words = key_words(need_key(key, "dropout"), dealt)
    sizes = [here.size(dim) for dim in dims]
    index = {
        dim.name: jnp.reshape(here.start(dim) + jnp.arange(size), [size if j == i else 1 for j in range(len(dims))])
        for i, (dim, size) in enumerate(zip(dims, sizes, strict=True))
    }
    shares = [*dims, memory]
    own = index_shares(shares, index | {"memory_length": jnp.uint32(0)}, dealt, None if dealt is None else words[2])
    arrays = {"seed": words[:2], "rows": own.batch.reshape(-1), "heads": own.head.reshape(-1)}
    over = frozenset[str]().union(*map(varying, arrays.values()))
    return {"dropout": dropout, **{name: as_varying(x, over) for name, x in arrays.items()}}


def _by_flash(q: Any, k: Any, v: Any, given: _Given, *, rows: Any = 0, heads: Any = 0, **how: Any) -> Any:
    mask, case, said = given.mask, given.case, dict(given.said)
    if mask.goes_by_place:
        said.pop("positions", None), said.pop("memory_positions", None)
    sizes = {"": case.length, "memory_": case.memory_length}

    def pair(name: str, default: Any = None) -> Any:
        """What is said of queries and of keys, [batch places] each; None if of neither."""
        own = [said.get(f"{side}{name}") for side in sizes]
        if all(x is None for x in own):
            return None
        own = [default[side] if x is None else x for side, x in zip(sizes, own, strict=True)]
        both = tuple(
            jnp.broadcast_to(jnp.asarray(x), (q.shape[0], n)) for x, n in zip(own, sizes.values(), strict=True)
        )
        return both[0] if case.is_within and not case.is_offset else both  # the same places: each sees itself

    places = {"": given.start + jnp.arange(case.length), "memory_": jnp.arange(case.memory_length)}
    prefix = said.get("prefix")
    return flash_attention(
        q,
        k,
        v,
        causal=case.causal,
        window=case.window,
        segments=pair("segments"),
        positions=pair("positions", places),
        prefix=None if prefix is None else jnp.broadcast_to(prefix.reshape(-1), q.shape[:1]),
        bias=given.bias,
        origin=(rows, heads, given.start, 0),
        is_within=case.is_within or None,
        **how,
    )


def _along(name: str, x: Any) -> Any:
    """What is said of places, [batch places], along the rows or columns of scores."""
    if name == "prefix":
        return x.reshape(-1, 1, 1, 1)
    return x[:, None, None, :] if name.startswith("memory_") else x[:, None, :, None]


def _join(x: Any, outer: int, heads: int) -> Any:
    """[.. length (heads) channel] as [batch length heads channel]."""
    sizes = x.shape
    batch, rest = math.prod(sizes[:outer]), sizes[outer + 1 : outer + 1 + heads]
    return x.reshape(batch, sizes[outer], math.prod(rest), sizes[-1])


def _of_batch(array: Any, x: Tensor, outer: Sequence[Dim], sizes: Mapping[str, int]) -> Any:
    """What is said of places as [batch places], or [1 places] of all the same."""
    places = [name for name in ("length", "memory_length") if x.dims.has(name)]
    array = _fill(array, x, [dim.name for dim in outer], places, sizes)
    return array.reshape(-1, math.prod(array.shape[len(outer) :]))


def _of_scores(
    array: Any, x: Tensor, outer: Sequence[Dim], heads: Sequence[Dim], sizes: Mapping[str, int], case: AttentionCase
) -> Any:
    """A bias as [batch heads length memory_length], of size 1 where it lacks one."""
    rest = [*(dim.name for dim in heads), "length", "memory_length"]
    array = _fill(array, x, [dim.name for dim in outer], rest, sizes)
    array = array.reshape(-1, *array.shape[len(outer) :])
    if any(x.dims.has(dim) for dim in heads):
        array = jnp.broadcast_to(array, (array.shape[0], *(sizes[dim.name] for dim in heads), *array.shape[-2:]))
    array = array.reshape(array.shape[0], -1, *array.shape[-2:])
    return jnp.broadcast_to(array, (*array.shape[:2], case.length, case.memory_length))


def _fill(array: Any, x: Tensor, outer: Sequence[str], rest: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """An array as [outer .. rest ..]; with one of the outer dims, of all their sizes."""
    array = align(array, x.dims, [Dim(name, 1) for name in (*outer, *rest)])
    if any(x.dims.has(name) for name in outer):
        array = jnp.broadcast_to(array, (*(sizes[name] for name in outer), *array.shape[len(outer) :]))
    return array
