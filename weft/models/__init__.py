"""Models written once in the language and run under any layout."""

from dataclasses import replace
from typing import Any

import jax

from ..errors import public
from ..layout import Layout, LayoutLike, Region, as_layout
from ..mesh import MeshLike, as_mesh
from ..namespace import namespace as _namespace
from ..nn import weights
from ..record import show_as_source as _show_as_source
from .config import ModelConfig, TransformerConfig, need_config
from .decoding import adapt_args as _decoding_args
from .decoding import with_shapes as _decoding_shapes
from .encoder import Encoder, EncoderConfig
from .presets import PRESETS, fields, from_fields, preset
from .seq2seq import Seq2Seq, Seq2SeqConfig
from .transformer import LMConfig, TransformerLM
from .unet import UNet, UNetConfig
from .vit import ViT, ViTConfig

_show_as_source(__path__[0])


@public
def init(config: ModelConfig, key: Any, mesh: MeshLike | None = None, layout: LayoutLike | None = None) -> Any:
    """The model with its first weights, sharded as the layout stores them.

    On a mesh each processor makes only its own slices of them. The values do not depend on the mesh or on the layout.
    """
    need_config(config)
    if mesh is None or layout is None:
        return weights.init(_blueprint(config), key, mesh, layout)
    mesh, layout = as_mesh(mesh), as_layout(layout)
    stored = _stored_layers(layout)
    model = _blueprint(config)
    _check_layers(model, Region(mesh, layout))
    return weights.init(model.on(mesh, stored), key, mesh, stored, dims=config.dims)


def _check_layers(model: Any, region: Region) -> None:
    """Raises where layers do not divide by the rule that says how they are stored."""
    stacks = (leaf.stack for leaf in jax.tree.leaves(model) if isinstance(leaf, weights.Weight))
    for dims in dict.fromkeys(stack for stack in stacks if "layers" not in region.layout.params):
        region.placement(dims)


def _stored_layers(layout: Layout) -> Layout:
    """The layout with `layers` split only in storage: they run one after the other."""
    axes = layout.rules.get("layers")
    if axes is None:
        return layout
    rule = "" if "layers" in layout.params else f",params.layers:{'+'.join(axes)}"
    return Layout(f"{layout.drop('layers')}{rule}")


@public
def shapes(config: ModelConfig) -> Any:
    """The model with shapes in place of values, for `wf.trace`; nothing is allocated."""
    need_config(config)
    return weights.shapes(_blueprint(config))


@public
def decode_step(
    config: ModelConfig, context: int, batch: int = 1, *, layout: LayoutLike | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """A step of decoding and its arguments as shapes, for `wf.trace`: (fn, args).

    The KV cache has `context` places in each of `batch` sequences, all of which the next token looks at, and may be
    overwritten. An encoder-decoder model looks at `config.length` tokens of the encoder besides. `fn` is bound to one
    processor; `wf.trace(fn, *args, mesh=, layout=)` reads it on others. A `layout` that has a rule for `queries` is to
    be said here too: heads of the cache are called so then.
    """
    need_config(config)
    fn, args = _decoding_shapes(shapes(config), context, batch)
    return fn, args if layout is None else _decoding_args(args, as_layout(layout))


def _blueprint(config: ModelConfig) -> Any:
    """The model without values, its weights in the dtype they are kept in."""
    return weights.map_weights(lambda w: replace(w, dtype=config.param_dtype), config.blueprint())


__all__ = [
    "PRESETS",
    "Encoder",
    "EncoderConfig",
    "LMConfig",
    "ModelConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "TransformerConfig",
    "TransformerLM",
    "decode_step",
    "UNet",
    "UNetConfig",
    "ViT",
    "ViTConfig",
    "fields",
    "from_fields",
    "init",
    "preset",
    "shapes",
]

__dir__, __getattr__ = _namespace(globals(), called="models")
