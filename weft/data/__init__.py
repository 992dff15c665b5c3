"""Data: sources, tokenizers, packed datasets, and batches from any step on.

    source = data.open_source({"path": "corpus", "held_out": 0.05})
    tokenizer = data.open_tokenizer("sentencepiece", source, "cache")
    dataset = data.lm_dataset(source, tokenizer, length=256, cache="cache")
    batches = data.Batches(dataset, batch=64, seed=0)

Nothing is printed; long work tells a `progress` function.
"""

from ..namespace import namespace as _namespace
from .batches import Batches, Prefetched, prefetched
from .chats import Conversations, chat_dataset
from .datasets import Dataset, check_vocab_of
from .errors import DataError
from .files import Progress
from .growing import Growing
from .images import Images, image_dataset
from .lm import Documents, Windows, lm_dataset
from .mixtures import Concatenated, Mixture
from .opening import open_source
from .pairs import BucketedPairs, PackedPairs, pair_dataset
from .preferences import Preferences, preference_dataset
from .sliding import Sliding, SlidingWindows
from .sources import FORMATS, SOURCE_KEYS, WITH_ANSWERS, Source
from .templates import ChatTemplate, open_template
from .tokenizers import (
    TOKENIZER_KEYS,
    ByteTokenizer,
    JsonTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    load_tokenizer,
    open_tokenizer,
    train_sentencepiece,
)

__all__ = [
    "open_source",
    "Source",
    "FORMATS",
    "SOURCE_KEYS",
    "WITH_ANSWERS",
    "TOKENIZER_KEYS",
    "open_tokenizer",
    "load_tokenizer",
    "train_sentencepiece",
    "Tokenizer",
    "ByteTokenizer",
    "SentencePieceTokenizer",
    "JsonTokenizer",
    "lm_dataset",
    "pair_dataset",
    "image_dataset",
    "chat_dataset",
    "preference_dataset",
    "ChatTemplate",
    "open_template",
    "Dataset",
    "Windows",
    "Documents",
    "Sliding",
    "SlidingWindows",
    "PackedPairs",
    "BucketedPairs",
    "Images",
    "Conversations",
    "Mixture",
    "Growing",
    "Concatenated",
    "Preferences",
    "check_vocab_of",
    "Batches",
    "prefetched",
    "Prefetched",
    "Progress",
    "DataError",
]

__dir__, __getattr__ = _namespace(globals(), called="data")
