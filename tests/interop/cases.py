"""How the fixtures' models are decoded, as `transformers` names it: for its results, and for ours."""

from typing import Any

CONSTRAINTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalty": {"repetition_penalty": 1.7},
    "reward": {"repetition_penalty": 0.8},
    "bigrams": {"no_repeat_ngram_size": 2},
    "trigrams": {"no_repeat_ngram_size": 3},
    "once": {"no_repeat_ngram_size": 1},
    "long": {"min_length": 9, "eos_token_id": [1, 7, 20, 33]},
    "new": {"min_new_tokens": 5, "eos_token_id": [7, 20, 33]},
    "ends": {"eos_token_id": [3, 7, 20, 21, 22, 40]},
    "own": {"own": True},
    "all": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "eos_token_id": [5, 7]}
    | {"own": True},
}
BEAMS: dict[str, dict[str, Any]] = {
    "short": {"length_penalty": -1.5, "eos_token_id": [7, 20]},
    "shorter": {"length_penalty": -0.4, "early_stopping": True, "eos_token_id": [7, 20]},
    "penalty": {"repetition_penalty": 1.7, "length_penalty": 1.0},
    "bigrams": {"no_repeat_ngram_size": 2, "length_penalty": 1.0},
    "long": {"min_length": 9, "eos_token_id": [7, 20, 33], "length_penalty": 0.0},
    "all": {**CONSTRAINTS["all"], "length_penalty": 2.0},
}
FILTERS: list[dict[str, Any]] = [
    {"min_p": 0.1},
    {"min_p": 0.6, "temperature": 0.7},
    {"top_k": 5, "min_p": 0.3, "temperature": 1.5},
    {"top_p": 0.7, "min_p": 0.05},
    {"top_k": 7, "top_p": 0.8, "min_p": 0.2, "temperature": 0.9},
    {"top_k": 3, "temperature": 2.0},
]
