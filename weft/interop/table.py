"""What can be read and written, by `model_type`; what cannot, and why."""

from collections.abc import Collection
from typing import Any

from .architecture import Architecture
from .bert import BERT
from .fused import NEOX, PHI3
from .gemma import GEMMA, GEMMA2, GEMMA3
from .gpt2 import GPT2
from .llama import LLAMA, MISTRAL, OLMO2, QWEN2, QWEN3
from .mixtral import MIXTRAL, QWEN3_MOE
from .modernbert import MODERNBERT
from .switch import SWITCH
from .t5 import MT5, MT5_ENCODER, T5, T5_ENCODER, UMT5, UMT5_ENCODER
from .vit import VIT

DECODERS = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2, MIXTRAL, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3, PHI3, NEOX)
"""Language models; where several could hold a model, the first does."""
ARCHITECTURES: dict[str, Architecture] = {
    family.model_type: family for family in (T5, MT5, UMT5, BERT, MODERNBERT, VIT, *DECODERS, SWITCH)
}
ENCODERS = {family.model_type: family for family in (T5_ENCODER, MT5_ENCODER, UMT5_ENCODER)}
"""Encoders alone of families whose models have a decoder too."""
DIFFERS = {
    "roberta": "its positions begin behind the padding's id, and its classifier is another",
    "xlm-roberta": "its positions begin behind the padding's id, and its classifier is another",
    "distilbert": "it has no types of words, and its tensors have other names",
    "albert": "all layers share their weights, and its embeddings are narrower",
    "electra": "its embeddings are narrower, and it tells replaced words apart",
    "deberta": "attention goes by distances of its own",
    "deberta-v2": "attention goes by distances of its own",
    "longt5": "its encoder attends in blocks",
    "bart": "post-norm stacks whose positions begin at 2",
    "deit": "a second token beside that of class",
    "dinov2": "what a layer gives is scaled by weights of its own",
    "swin": "attention in shifted windows of patches",
    "gptj": "its RoPE turns neighbouring channels, and both parts of a layer read one norm",
    "gpt_neo": "its scores are not scaled, and windows lie in every second layer",
    "codegen": "its RoPE turns neighbouring channels, and q, k, v lie in four blocks",
    "llama4": "layers without RoPE, chunked attention and sigmoid routing",
    "llama4_text": "layers without RoPE, chunked attention and sigmoid routing",
    "mllama": "cross-attention to images",
    "gemma3": "it holds a text model beside one of images; the text model alone is a `gemma3_text`",
    "gemma3n": "alternating updates and embeddings of each layer",
    "gemma3n_text": "alternating updates and embeddings of each layer",
    "phi": "both parts of a layer read one norm, and RoPE turns a share of the channels",
    "phimoe": "its router draws experts by sparse mixing",
    "olmo": "its norms have no weights, and q, k, v may be clipped",
    "olmoe": "QK-norm over all heads beside experts, q, k, v may be clipped",
    "cohere": "norms without a mean's weights, both parts read one norm, and logits are scaled",
    "cohere2": "layers without RoPE, both parts read one norm, and logits are scaled",
    "falcon": "both parts of a layer may read one norm, and ALiBi biases",
    "mpt": "ALiBi biases",
    "bloom": "ALiBi biases and a norm of the embedding",
    "opt": "learned positions that begin at 2, and ReLU",
    "stablelm": "LayerNorm beside RoPE of a share of the channels",
    "starcoder2": "LayerNorm beside RoPE and windows",
    "qwen2_moe": "a shared expert behind a gate of its own",
    "qwen3_next": "linear attention in most layers",
    "granite": "embeddings, residuals, scores and logits are multiplied by numbers of its own",
    "gpt_oss": "attention sinks, and experts whose gate is clipped",
    "deepseek_v2": "keys and values of low rank (MLA)",
    "deepseek_v3": "keys and values of low rank (MLA)",
    "glm": "its RoPE turns neighbouring channels",
    "glm4": "its RoPE turns neighbouring channels",
    "ernie4_5": "its RoPE turns neighbouring channels",
    "olmo3": "windows in three of four layers",
    "ministral": "windows that may lie in some of its layers alone",
    "arcee": "squared ReLU without a gate",
    "nemotron": "LayerNorm of `1 + w`, and squared ReLU without a gate",
    "gpt_bigcode": "all heads share one of keys and values, beside learned positions",
    "glm4_moe": "its first layers have no experts, and groups of experts are chosen first",
    "dots1": "its first layers have no experts, and groups of experts are chosen first",
    "deepseek_v32": "keys and values of low rank (MLA), and attention to some tokens alone",
    "kimi_k2": "keys and values of low rank (MLA)",
    "kimi_linear": "linear attention in most layers",
    "qwen3_5": "linear attention in most layers",
    "minimax": "linear attention in most layers",
    "lfm2": "short convolutions in most layers",
    "falcon_h1": "a state space beside attention",
    "granitemoehybrid": "state spaces in most layers",
    "nemotron_h": "state spaces in most layers",
    "zamba2": "state spaces in most layers",
    "mamba2": "a state space in place of attention",
    "rwkv": "a recurrence in place of attention",
    "apertus": "an activation with numbers of its own (xIELU)",
    "exaone4": "layers without RoPE",
    "hunyuan_v1_dense": "QK-norm after RoPE",
    "minicpm": "embeddings, residuals and logits are multiplied by numbers of its own",
    "camembert": "its positions begin behind the padding's id, and its classifier is another",
    "longformer": "attention goes to near words, and to a few from everywhere",
    "big_bird": "attention goes to near words, some at random, and a few from everywhere",
    "mpnet": "relative biases beside learned positions",
    "mbart": "pre-norm stacks whose positions begin at 2",
    "pegasus": "its sinusoids lie in another order",
    "marian": "post-norm stacks whose sinusoids lie in another order",
    "whisper": "its encoder hears, by convolutions",
    "clip": "a model of texts beside one of images",
    "siglip": "a model of texts beside one of images",
    "beit": "relative biases between patches",
    "dinov3_vit": "RoPE between patches",
    "vit_mae": "its encoder sees a part of the patches alone",
    "qwen2_5_vl": "it holds a text model beside one of images",
    "qwen3_vl": "it holds a text model beside one of images",
    "granitemoe": "embeddings, residuals, scores and logits are multiplied by numbers of its own",
    "mistral3": "it holds a text model beside one of images",
    "qwen2_vl": "it holds a text model beside one of images",
    "smollm3": "layers without RoPE",
    "mamba": "a state space in place of attention",
    "jamba": "state spaces in most layers",
    "recurrent_gemma": "recurrent layers between those of attention",
}  # fmt: skip
"""Of families that are not read, in what they differ from those that are."""


def choose(model_type: str, names: Collection[str]) -> Architecture:
    """The architecture of a `model_type` whose tensors have these names."""
    if model_type in ENCODERS and not any(name.startswith("decoder.") for name in names):
        return ENCODERS[model_type]
    return ARCHITECTURES[model_type]


def recall(config: Any) -> Architecture | None:
    """The architecture of the family a model was read from, if it is one of its kind."""
    for table in (ARCHITECTURES, ENCODERS):
        found = table.get(config.family or "")
        if found is not None and found.kind is type(config):
            return found
    return None
