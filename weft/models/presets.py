"""The models of the paper and of the family it became, by name."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from ..errors import DimError, closest, public
from ..fields import kinds_of
from .config import ModelConfig, need_config
from .encoder import EncoderConfig
from .seq2seq import Seq2SeqConfig
from .transformer import LMConfig
from .unet import UNetConfig
from .vit import ViTConfig


def _lm(name: str, heads: int) -> LMConfig:
    """A row of the paper's table of language models."""
    return LMConfig(
        name=name, layers=6, d_model=1024, heads=heads, d_kv=256, d_ff=1024 * heads, vocab=32768, dropout=0.1
    )


def _mt(name: str, heads: int, d_ff: int) -> Seq2SeqConfig:
    """A row of the paper's table of translation models."""
    return Seq2SeqConfig(
        name=name, layers=6, d_model=1024, heads=heads, d_kv=128, d_ff=d_ff, vocab=32768, batch=128, dropout=0.1,
        smoothing=0.1, padding=0,
    )  # fmt: skip


_T5 = {  # d_model, d_ff, heads, d_kv, layers
    "small": (512, 2048, 8, 64, 6),
    "base": (768, 3072, 12, 64, 12),
    "large": (1024, 4096, 16, 64, 24),
    "3b": (1024, 16384, 32, 128, 24),
    "11b": (1024, 65536, 128, 128, 24),
}
_T5_1_1 = {
    "small": (512, 1024, 6, 64, 8),
    "base": (768, 2048, 12, 64, 12),
    "large": (1024, 2816, 16, 64, 24),
    "xl": (2048, 5120, 32, 64, 24),
    "xxl": (4096, 10240, 64, 64, 24),
}


def _t5(name: str, sizes: tuple[int, ...], **changes: Any) -> Seq2SeqConfig:
    d_model, d_ff, heads, d_kv, layers = sizes
    return Seq2SeqConfig(
        name=name, layers=layers, d_model=d_model, heads=heads, d_kv=d_kv, d_ff=d_ff, vocab=32128, batch=128,
        length=512, positions="relative", scale_scores=False, dropout=0.1, padding=0, **changes,
    )  # fmt: skip


_AS_LOGITS = 0.02
"""Of first embeddings that logits are made with as they are; of stddev 1 they would give a loss of hundreds."""


def _gpt2(name: str, layers: int, d_model: int) -> LMConfig:
    return LMConfig(
        name=name, layers=layers, d_model=d_model, heads=d_model // 64, d_kv=64, d_ff=4 * d_model, vocab=50257,
        batch=64, length=1024, tied=True, tied_scale=False, norm="layer", epsilon=1e-5, positions="learned",
        activation="gelu_tanh", bias="q k v o in out norm", dropout=0.1, embedding_stddev=_AS_LOGITS,
    )  # fmt: skip


def _llama(name: str, **sizes: Any) -> LMConfig:
    return LMConfig(
        name=name, **sizes, batch=64, length=4096, norm="rms", epsilon=1e-5, positions="rotary", rotary_base=500_000.0,
        activation="silu", gated=True, tied_scale=False,
    )  # fmt: skip


def _vit(name: str, **sizes: Any) -> ViTConfig:
    return ViTConfig(name=name, **sizes, d_kv=64, d_ff=4 * sizes["d_model"], classes=1000, epsilon=1e-12)


_PUBLISHED: dict[str, Any] = {
    "norm": "rms", "positions": "rotary", "gated": True, "activation": "silu", "tied_scale": False, "batch": 64,
    "length": 4096,
}  # fmt: skip


def _as_published(name: str, **sizes: Any) -> LMConfig:
    """A model as its files say it, with the heads of keys and values as `heads`."""
    return LMConfig(name=name, **_PUBLISHED | sizes)


_GEMMA: dict[str, Any] = {
    "norm_place": "sandwich", "norm_offset": True, "embedding_scale": True, "activation": "gelu_tanh", "tied": True,
    "embedding_stddev": _AS_LOGITS,
    "qk_norm": "head", "query_scalar": 256.0, "window": 512, "pattern": "local " * 5 + "global",
    "rotary_base": 1_000_000.0, "local_base": 10_000.0,
}  # fmt: skip


_TINY: dict[str, Any] = {
    "layers": 8, "d_model": 32, "heads": 8, "d_kv": 8, "d_ff": 64, "vocab": 64, "vocab_multiple": 8, "batch": 8,
    "length": 16, "remat": False, "dtype": "float32", "dropout": 0.1,
}  # fmt: skip

_TINY_VIT = {name: value for name, value in _TINY.items() if name not in ("vocab", "vocab_multiple", "length")}

_TINY_UNET: dict[str, Any] = {
    "classes": 8, "in_channels": 1, "channels": 8, "levels": 2, "batch": 8, "remat": False, "dtype": "float32",
}  # fmt: skip

_PRESETS: dict[str, ModelConfig] = {
    config.name: config
    for config in (
        _lm("lm-0.14b", 4), _lm("lm-0.22b", 8), _lm("lm-0.37b", 16), _lm("lm-0.67b", 32), _lm("lm-1.28b", 64),
        _lm("lm-2.48b", 128), _lm("lm-4.90b", 256),
        _gpt2("gpt2", 12, 768), _gpt2("gpt2-medium", 24, 1024), _gpt2("gpt2-large", 36, 1280),
        _gpt2("gpt2-xl", 48, 1600),
        _llama("llama-1b", layers=16, d_model=2048, heads=8, group=4, d_kv=64, d_ff=8192, vocab=128256, tied=True,
               embedding_stddev=_AS_LOGITS),
        _llama("llama-8b", layers=32, d_model=4096, heads=8, group=4, d_kv=128, d_ff=14336, vocab=128256),
        _llama("llama-70b", layers=80, d_model=8192, heads=8, group=8, d_kv=128, d_ff=28672, vocab=128256),
        _llama("llama-405b", layers=126, d_model=16384, heads=8, group=16, d_kv=128, d_ff=53248, vocab=128256),
        _llama(
            "moe-1t", layers=64, d_model=8192, heads=8, group=8, d_kv=128, d_ff=10240, vocab=128256, experts=64,
            gating="top_k",
        ),
        _as_published(
            "mistral-7b", layers=32, d_model=4096, heads=8, group=4, d_kv=128, d_ff=14336, vocab=32000, epsilon=1e-5,
            window=4096, max_length=32768,
        ),
        _as_published(
            "mixtral-8x7b", layers=32, d_model=4096, heads=8, group=4, d_kv=128, d_ff=14336, vocab=32000, epsilon=1e-5,
            rotary_base=1_000_000.0, experts=8, gating="dropless", top_k=2, balance_loss=0.001, max_length=32768,
        ),
        _as_published(
            "qwen3-0.6b", layers=28, d_model=1024, heads=8, group=2, d_kv=128, d_ff=3072, vocab=151936, tied=True,
            embedding_stddev=_AS_LOGITS, qk_norm="head", rotary_base=1_000_000.0, max_length=40960,
        ),
        _as_published(
            "gemma3-1b", layers=26, d_model=1152, heads=1, group=4, d_kv=256, d_ff=6912, vocab=262144,
            max_length=32768, **_GEMMA,
        ),
        _as_published(
            "olmo2-1b", layers=16, d_model=2048, heads=16, d_kv=128, d_ff=8192, vocab=100352, qk_norm="all",
            norm_place="output", rotary_base=500_000.0,
        ),
        _mt("mt-0.15b", 4, 2048), _mt("mt-0.24b", 8, 4096), _mt("mt-0.42b", 16, 8192), _mt("mt-0.77b", 32, 16384),
        _mt("mt-1.48b", 64, 32768), _mt("mt-2.89b", 128, 65536),
        *(_t5(f"t5-{name}", sizes, tied=True) for name, sizes in _T5.items()),
        *(
            _t5(f"t5.1.1-{name}", sizes, activation="gelu_tanh", gated=True)
            for name, sizes in (_T5_1_1 | {"3b": _T5_1_1["xl"], "11b": _T5_1_1["xxl"]}).items()
        ),
        LMConfig(name="tiny-lm", **_TINY),
        Seq2SeqConfig(name="tiny-mt", **_TINY, padding=0),
        EncoderConfig(name="tiny-bert", **_TINY, tied=True, positions="learned", classes=8, hidden_id=1, padding=0),
        _vit("vit-base", layers=12, d_model=768, heads=12), _vit("vit-large", layers=24, d_model=1024, heads=16),
        ViTConfig(name="tiny-vit", **_TINY_VIT, height=16, width=16, patch_height=4, patch_width=4, classes=8),
        LMConfig(name="tiny-moe", **_TINY, experts=8, capacity=4.0),
        UNetConfig(name="unet", height=512, width=512, classes=2, channels=64, levels=5),
        UNetConfig(name="unet-3d", depth=128, height=128, width=128, classes=3, batch=2, levels=5),
        UNetConfig(name="tiny-unet", **_TINY_UNET, height=32, width=32),
        UNetConfig(name="tiny-unet-3d", **_TINY_UNET, depth=16, height=16, width=16),
    )
}  # fmt: skip

PRESETS = tuple(_PRESETS)
_QUERIES = "`heads`, which counts heads of keys and values, and `group`: there are heads x group of queries"
_ELSEWHERE: dict[str, str] = {
    word: written
    for words, written in {
        "num_key_value_heads kv_heads n_kv_heads num_kv_heads num_query_groups n_head_kv": _QUERIES,
        "num_attention_heads num_heads n_heads n_head nhead q_heads query_heads": _QUERIES,
        "hidden_size n_embd d_embed embed_dim embedding_dim dim": "`d_model`",
        "intermediate_size ffn_dim ffn_hidden_size n_inner dim_feedforward mlp_dim hidden_dim": "`d_ff`",
        "num_hidden_layers num_layers n_layer n_layers depth": "`layers`",
        "head_dim kv_channels head_size d_head": "`d_kv`, the width of a head",
        "vocab_size n_vocab": "`vocab`",
        "seq_len seq_length max_position_embeddings n_positions n_ctx block_size context_length": "`length`",
        "rope_theta rotary_theta": "`rotary_base`",
        "tie_word_embeddings tie_embeddings": "`tied`",
        "rms_norm_eps layer_norm_eps layer_norm_epsilon eps": "`epsilon`",
        "hidden_act activation_function act": "`activation`, and `gated=True` for SwiGLU and GeGLU",
        "sliding_window": "`window`",
        "num_experts num_local_experts n_experts": "`experts`",
        "num_experts_per_tok moe_top_k": "`top_k`, with gating='top_k' or 'dropless'",
        "gradient_checkpointing": "`remat`",
    }.items()
    for word in words.split()
}
"""What other libraries call a Transformer's fields, and what is written here."""
KINDS: dict[str, type[ModelConfig]] = {
    "lm": LMConfig,
    "seq2seq": Seq2SeqConfig,
    "encoder": EncoderConfig,
    "unet": UNetConfig,
    "vit": ViTConfig,
}


@public
def fields(config: ModelConfig) -> dict[str, Any]:
    """A configuration as plain values: its kind, and every field that is not None."""
    need_config(config)
    kind = next(name for name, config_type in KINDS.items() if type(config) is config_type)
    return {"kind": kind} | {name: value for name, value in dataclasses.asdict(config).items() if value is not None}


def nearest_field(name: str, known: Iterable[str]) -> str:
    """A hint that names the field that was meant, also by what others call it."""
    written = _ELSEWHERE.get(name, "")
    return f"write {written}" if any(f"`{field}`" in written for field in known) else closest(name, known)


@public
def from_fields(values: Mapping[str, Any], *, where: str) -> Any:
    """The configuration of these values, which stand in the file `where`."""
    kind = values.get("kind")
    if kind not in KINDS:
        raise DimError(f"{where} has a model of the kind {kind!r}", fix=closest(str(kind), KINDS))
    known = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    if (unknown := next((name for name in values if name != "kind" and name not in known), None)) is not None:
        raise DimError(f"{where} has `{unknown}`, which a model has not", fix=nearest_field(unknown, known))
    needed = [name for name, field in known.items() if field.default is dataclasses.MISSING and name not in values]
    if needed:
        raise DimError(f"{where} has no `{needed[0]}` of the model", fix="add it")
    # A field whose default is a number and that was None is told apart from one left out.
    left_out: dict[str, Any] = {
        name: None for name, field in known.items() if name not in values and NoneType in kinds_of(field)
    }
    return KINDS[kind](**left_out, **{name: value for name, value in values.items() if name != "kind"})


@public
def preset(name: str, /, **changes: Any) -> Any:
    """The configuration of that name, with some fields changed.

    >>> preset("tiny-lm", layers=4).layers, preset("lm-0.14b").param_count
    (4, 142619648)
    """
    if not isinstance(name, str) or name not in _PRESETS:
        raise DimError(f"there is no preset {name!r}", fix=closest(str(name), _PRESETS))
    config = _PRESETS[name]
    fields = [field.name for field in dataclasses.fields(config)]
    if (unknown := next((field for field in changes if field not in fields), None)) is not None:
        raise DimError(
            f"this model has no `{unknown}` to change",
            state=f"preset: {name}, {unknown}={changes[unknown]!r}",
            fix=nearest_field(unknown, fields),
        )
    return dataclasses.replace(config, **changes)
