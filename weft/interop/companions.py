"""The other files of a Hugging Face folder: kept with a model, and written again.

Imports `files` and `architecture`. Weft has no use for them. These are the keys of `config.json` that no field stands
for (`bos_token_id`, ...), how texts are generated, and the files of the tokenizer.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..small_files import is_file
from .architecture import Architecture
from .files import CONFIG, WeightsError, read_json

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
GENERATION = "generation_config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_OF_THE_FILE = {"dtype", "torch_dtype", "_name_or_path", "transformers_version"}


def carry(source: Path, folder: Path) -> None:
    """Copies the other files of a folder, with its `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name in (CONFIG, GENERATION, *TOKENIZER_FILES):
            if is_file(source / name):
                shutil.copyfile(source / name, folder / name)
    except OSError as error:
        raise WeightsError(f"{folder} cannot be written: {error.strerror}", fix="name a place with room") from error


def keys_beside(like: Path, architecture: Architecture, written: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a `config.json` that weft does not write; and ids it does not know."""
    keys = read_json(like / CONFIG)
    if keys.get("model_type") != architecture.model_type:
        raise WeightsError(
            f"{like / CONFIG} is of a {keys.get('model_type')!r:.60}, and the model is a {architecture.model_type}",
            fix="give the folder that the model was read from, or leave `like` out",
        )
    return {
        key: value
        for key, value in keys.items()
        if key not in _OF_THE_FILE and (key not in written or (key in _IDS and written[key] is None))
    }


def copy_beside(like: Path | None, folder: Path, tokenizer: bool) -> None:
    """Copies `generation_config.json` and, if it is the same, the tokenizer's files."""
    for name in (GENERATION, *(TOKENIZER_FILES if tokenizer else ())):
        if like is not None and is_file(like / name):
            shutil.copyfile(like / name, folder / name)
