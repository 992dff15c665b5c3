"""Odd configurations of every family of language models, as `transformers` names them: for fixtures and live tests."""

from typing import Any

import numpy as np

_SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GQA = {"num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 8}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.5], "long_factor": [1.25, 4.0],
    "original_max_position_embeddings": 5,
}  # fmt: skip
LOCAL, FULL = "sliding_attention", "full_attention"

FAMILIES: dict[str, tuple[str, str, dict[str, dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {
        "linear": {**GQA, "rope_parameters": LINEAR},
        "dynamic": {**GQA, "rope_parameters": DYNAMIC, "max_position_embeddings": 7},
        "yarn": {**GQA, "rope_parameters": YARN, "head_dim": 6},
        "yarn, said": {**GQA, "rope_parameters": {**YARN, "beta_fast": 3.0, "beta_slow": 0.5, "attention_factor": 1.3,
                                                  "truncate": False}},
        "yarn, by mscale": {**GQA, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.4, "beta_fast": 4}},
        "biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        "mlp bias": {"num_key_value_heads": 1, "mlp_bias": True, "hidden_act": "gelu", "rope_parameters": LLAMA3},
    }),
    "mistral": ("MistralForCausalLM", "MistralConfig", {
        "window": {**GQA, "sliding_window": 5},
        "whole": {**GQA, "sliding_window": None, "tie_word_embeddings": True},
        "wide window": {"num_key_value_heads": 1, "sliding_window": 4096, "head_dim": 6},
        "one back": {"num_key_value_heads": 4, "sliding_window": 1, "num_hidden_layers": 3},
        "linear": {**GQA, "sliding_window": 3, "rope_parameters": LINEAR},
        "yarn": {**GQA, "sliding_window": 7, "rope_parameters": YARN, "hidden_act": "gelu"},
    }),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {
        "two of four": {**GQA, "num_local_experts": 4},
        "one": {**GQA, "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 4},
        "three": {"num_key_value_heads": 1, "num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 6},
        "all": {**GQA, "num_local_experts": 2, "num_experts_per_tok": 2, "tie_word_embeddings": True},
        "asked": {**GQA, "num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.02},
        "gelu": {**GQA, "num_local_experts": 4, "hidden_act": "gelu", "rope_parameters": LINEAR},
    }),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {
        "whole": {**GQA},
        "last layers": {**GQA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2,
                        "num_hidden_layers": 5},
        "all layers": {**GQA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
        "mixed": {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 3, "num_hidden_layers": 5,
                  "layer_types": [LOCAL, FULL, LOCAL, FULL, LOCAL]},
        "tied": {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": YARN, "head_dim": 6},
        "gelu": {**GQA, "hidden_act": "gelu_new", "rope_parameters": DYNAMIC, "max_position_embeddings": 6},
    }),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {
        "whole": {**GQA, "head_dim": 8},
        "biases": {**GQA, "head_dim": 6, "attention_bias": True},
        "last layers": {**GQA, "head_dim": 4, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
                        "num_hidden_layers": 3},
        "mixed": {"num_key_value_heads": 1, "head_dim": 2, "use_sliding_window": True, "sliding_window": 3,
                  "num_hidden_layers": 4, "layer_types": [FULL, LOCAL, FULL, LOCAL]},
        "tied": {**GQA, "head_dim": 8, "tie_word_embeddings": True, "rope_parameters": YARN},
        "many heads": {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "rms_norm_eps": 1e-3},
    }),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {
        "shares as they are": {**GQA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                               "moe_intermediate_size": 12},
        "shares of one": {**GQA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
                          "moe_intermediate_size": 12},
        "every second": {**GQA, "head_dim": 6, "num_experts": 4, "num_experts_per_tok": 3, "decoder_sparse_step": 2,
                         "moe_intermediate_size": 12, "num_hidden_layers": 4},
        "one": {**GQA, "head_dim": 4, "num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 24},
        "one of one": {**GQA, "head_dim": 4, "num_experts": 3, "num_experts_per_tok": 1, "norm_topk_prob": True,
                       "moe_intermediate_size": 12, "tie_word_embeddings": True},
        "window": {"num_key_value_heads": 1, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 8, "use_sliding_window": True, "sliding_window": 4, "attention_bias": True},
    }),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {
        "tied": {**GQA, "head_dim": 8},
        "untied": {"num_key_value_heads": 1, "head_dim": 4, "tie_word_embeddings": False},
        "biases": {**GQA, "head_dim": 6, "attention_bias": True},
        "linear": {"num_key_value_heads": 4, "head_dim": 8, "rope_parameters": LINEAR},
        "gelu": {**GQA, "head_dim": 8, "hidden_act": "gelu"},
        "deep": {**GQA, "head_dim": 2, "num_hidden_layers": 3, "rms_norm_eps": 1e-2},
    }),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {
        "both": {**GQA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
        "odd": {**GQA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 9, "num_hidden_layers": 3,
                "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
        "no caps": {"num_key_value_heads": 1, "head_dim": 6, "sliding_window": 3, "query_pre_attn_scalar": 6,
                    "attn_logit_softcapping": None, "final_logit_softcapping": None},
        "all local": {**GQA, "head_dim": 4, "sliding_window": 3, "layer_types": [LOCAL, LOCAL]},
        "all global": {**GQA, "head_dim": 4, "sliding_window": 3, "layer_types": [FULL, FULL]},
        "untied": {**GQA, "head_dim": 8, "sliding_window": 5, "tie_word_embeddings": False, "attention_bias": True},
    }),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextConfig", {
        "scaled": {**GQA, "head_dim": 6, "sliding_window": 5, "num_hidden_layers": 5,
                   "layer_types": [LOCAL, FULL, LOCAL, FULL, LOCAL],
                   "rope_parameters": {FULL: {**LINEAR, "factor": 8.0},
                                       LOCAL: {"rope_type": "default", "rope_theta": 50.0}}},
        "two layers": {**GQA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 10},
        "pattern of six": {**GQA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
                           "num_hidden_layers": 8},
        "ends alike": {**GQA, "head_dim": 8, "sliding_window": 2, "num_hidden_layers": 7, "query_pre_attn_scalar": 5,
                       "layer_types": [LOCAL, LOCAL, FULL, LOCAL, LOCAL, LOCAL, FULL]},
        "all global": {"num_key_value_heads": 1, "head_dim": 4, "sliding_window": 3, "layer_types": [FULL, FULL]},
        "cap": {**GQA, "head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 3.0,
                "layer_types": [FULL, LOCAL]},
        "untied": {**GQA, "head_dim": 2, "sliding_window": 4, "tie_word_embeddings": False, "attention_bias": True},
    }),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {
        "grouped": {**GQA},
        "alone": {"num_key_value_heads": 4, "sliding_window": 4, "head_dim": 6},
        "one head of keys": {"num_key_value_heads": 1, "tie_word_embeddings": True},
        "partial": {**GQA, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                               "partial_rotary_factor": 0.5}},
        "deep": {**GQA, "num_hidden_layers": 3, "sliding_window": 2, "hidden_act": "gelu"},
        "wide heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": {
            "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.75}},
        "long": {**GQA, "rope_parameters": LONG, "original_max_position_embeddings": 5},
        "long, not beyond": {**GQA, "rope_parameters": {**LONG, "attention_factor": 1.2},
                             "original_max_position_embeddings": 12},
        "long, partial": {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 5,
                          "original_max_position_embeddings": 4, "rope_parameters": {
                              **LONG, "factor": 3.0, "partial_rotary_factor": 0.5}},
    }),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", {
        "grouped": {**GQA},
        "alone": {"num_key_value_heads": 4, "tie_word_embeddings": True},
        "one head of keys": {"num_key_value_heads": 1, "attention_bias": True},
        "yarn": {**GQA, "rope_parameters": YARN},
        "epsilon": {**GQA, "rms_norm_eps": 1e-2, "num_hidden_layers": 3},
        "gelu": {**GQA, "hidden_act": "gelu", "rope_parameters": LINEAR},
    }),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {
        "parallel": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
        "one after the other": {"use_parallel_residual": False, "num_attention_heads": 2},
        "unbiased": {"attention_bias": False, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default",
                                                                  "partial_rotary_factor": 1.0}},
        "tied": {"tie_word_embeddings": True, "num_attention_heads": 1},
        "linear": {"rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}, "num_hidden_layers": 3},
        "tanh": {"hidden_act": "gelu_new", "num_attention_heads": 2, "layer_norm_eps": 1e-2},
    }),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {
        "by layer": {"scale_attn_by_inverse_layer_idx": True},
        "unscaled": {"scale_attn_weights": False},
        "inner": {"n_inner": 20, "activation_function": "gelu", "num_hidden_layers": 3},
        "one head": {"num_attention_heads": 1, "scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-2},
        "untied": {"activation_function": "relu", "tie_word_embeddings": False, "num_attention_heads": 8},
        "cross": {"add_cross_attention": True, "scale_attn_by_inverse_layer_idx": True},
        "both": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False,
                 "num_hidden_layers": 4},
    }),
}  # fmt: skip
CASES = [(family, name) for family, (_, _, cases) in FAMILIES.items() for name in cases]
FIRST = {family: next(iter(cases)) for family, (_, _, cases) in FAMILIES.items()}
"""The case of each family that a fixture holds."""

CROSSED = ("gpt2", "cross")


def memory_of() -> np.ndarray:
    """What an encoder made, for those that attend to it."""
    return np.random.default_rng(7).standard_normal((2, 5, 16), "float32")


def sizes_of(family: str, name: str) -> dict[str, Any]:
    """The keyword arguments of the library's configuration."""
    return _SIZES | FAMILIES[family][2][name]


def values_of(family: str, shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Weights at which every part of a model matters, drawn from a seed in the order of their names."""
    random = np.random.default_rng(seed)
    return {name: _fill(family, name, random.standard_normal(shapes[name], "float32")) for name in sorted(shapes)}


def _fill(family: str, name: str, values: np.ndarray) -> np.ndarray:
    if "norm" in name or "ln_" in name:
        is_near_zero = name.endswith("bias") or family.startswith("gemma")  # which scale by one more than the weight
        return values * np.float32(0.1) + np.float32(0.0 if is_near_zero else 1.0)
    wide = "embed" in name or "wte" in name
    return values * np.float32(0.1 if values.ndim == 1 else 1.0 if wide else 0.3)


def batch_of(family: str) -> dict[str, np.ndarray]:
    """Each token to be predicted from those before it, at the library's lengths: the last place has no weight."""
    tokens = tokens_of(family)
    weights = np.ones(tokens.shape, "float32")
    weights[:, -1] = 0
    return {"inputs": tokens, "targets": np.roll(tokens, -1, 1), "weights": weights}


def tokens_of(family: str) -> np.ndarray:
    """Sequences longer than windows, and than what rotations were not stretched for."""
    return np.random.default_rng(len(family)).integers(3, 61, (2, 12))
