"""Hugging Face's tokenizers: `tokenizer.json`; `vocab.json` with `merges.txt`.

Imports errors and small_files alone; the library is loaded when a tokenizer is made.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import closest
from ..small_files import Reader, is_file
from .atomic import write_atomic
from .encoding import FETCH, Places, hash_of, join, library_errors, text_of
from .errors import DataError, import_library
from .files import content_key

JSON = "tokenizer.json"
_LONGEST_TOKEN = 4096  # letters; the library keeps a node for each, and ends the process when it frees too many
_LONG_TOKEN = re.compile(
    rf'(?P<map>"precompiled_charsmap"\s*:\s*)?"(?P<token>(?:[^"\\]|\\.){{{_LONGEST_TOKEN + 1},}})"', re.DOTALL
)
_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "[SEP]")
_PADS = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")


class JsonTokenizer:
    """A `tokenizer.json` of Hugging Face; `end` and `pad` are found by common names."""

    def __init__(self, content: str, *, end: str | None = None, pad: str | None = None, name: str = JSON):
        self._content, self._name = content, name
        tokenizers = import_library("tokenizers", "a `tokenizer.json`")
        if long := next((match for match in _LONG_TOKEN.finditer(content) if not match["map"]), None):
            token = f"{long['token'][:20]!r}... of {len(long['token']):,} letters"
            raise DataError(f"{name} has a token {token}, and at most {_LONGEST_TOKEN:,} are read", fix=FETCH)
        with self._errors("is no `tokenizer.json`"):
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
            # Datasets cut texts and fill them up, and know the length; what the file says of that would lose text.
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            ids = self._tokenizer.get_vocab().values()
            # Some vocabularies have holes: an id may be larger than the number of tokens.
            self.vocab = max(self._tokenizer.get_vocab_size(), max(ids, default=-1) + 1)
            self.end, self.pad = self._special(end, _ENDS, name), self._special(pad, _PADS, name)
        if not self.vocab:
            raise DataError(f"{name} has no tokens", fix=FETCH)

    @property
    def key(self) -> str:
        return content_key("tokenizer.json", hash_of(self._content.encode()), self.end)

    def encode(self, text: str | bytes) -> list[int]:
        with self._errors("cannot encode this text"):
            return self._tokenizer.encode(text_of(text), add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        with self._errors("cannot encode these texts"):
            encodings = self._tokenizer.encode_batch_fast([text_of(text) for text in texts], add_special_tokens=False)
        return join([encoding.ids for encoding in encodings])

    def encode_places(self, texts: Sequence[str]) -> list[Places]:
        with self._errors("cannot encode these texts"):
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, np.array(encoding.offsets, np.int64).reshape(-1, 2)) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        with self._errors("cannot decode these ids"):
            return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def decode_with_specials(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens too, which `decode` leaves out."""
        with self._errors("cannot decode these ids"):
            return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return self.decode(ids).encode("utf-8")

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / JSON, self._content.encode())

    def _errors(self, what: str) -> contextlib.AbstractContextManager[None]:
        return library_errors(f"{self._name} {what}")

    def _special(self, said: str | None, common: Sequence[str], name: str) -> int | None:
        if said is None:
            return next((i for token in common if (i := self._tokenizer.token_to_id(token)) is not None), None)
        token = self._tokenizer.token_to_id(said)
        if token is None:
            raise DataError(f"{name} has no token {said!r}", fix=closest(said, self._tokenizer.get_vocab()))
        return token


# BPE of bytes in two files: GPT-2's, and those of models that kept its form.

VOCAB, MERGES = "vocab.json", "merges.txt"
_CONFIG, _SPECIALS, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_LIKE_GPT2 = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer")
_LIKE_QWEN = ("Qwen2Tokenizer",)
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_merges(folder: Path, *, end: str | None = None, pad: str | None = None) -> JsonTokenizer:
    """The tokenizer of a folder with `vocab.json` and `merges.txt`."""
    reader = Reader(DataError, FETCH)
    config = reader.json(folder / _CONFIG) if is_file(folder / _CONFIG) else {}
    kind = str(config.get("tokenizer_class", _LIKE_GPT2[0])).removesuffix("Fast")
    if kind not in (*_LIKE_GPT2, *_LIKE_QWEN):
        raise DataError(
            f"{folder / VOCAB} is of a {kind}, and is read for {', '.join((*_LIKE_GPT2, *_LIKE_QWEN))} alone",
            fix="give its tokenizer.json: transformers writes it, "
            f"`AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})`",
        )
    library = import_library("tokenizers", f"{folder / MERGES}")
    vocab = reader.json(folder / VOCAB, {str: int})
    merges = _merges_in(folder / MERGES, vocab)
    letters = library.pre_tokenizers.ByteLevel.alphabet()
    if missing := sorted(letter for letter in letters if letter not in vocab):
        fact = f"{folder / VOCAB} has no piece for {len(missing)} of the 256 bytes, such as {missing[0]!r}"
        raise DataError(fact, fix="give its tokenizer.json: it is no BPE of bytes as GPT-2's is")
    with library_errors(f"{folder} holds no BPE of bytes"):
        made = library.Tokenizer(library.models.BPE(vocab=vocab, merges=merges))
        spaced = config.get("add_prefix_space") is True
        bytes_of = library.pre_tokenizers.ByteLevel
        made.pre_tokenizer = bytes_of(add_prefix_space=spaced)
        if kind in _LIKE_QWEN:
            words = library.pre_tokenizers.Split(library.Regex(_QWEN_WORDS), behavior="isolated")
            made.normalizer = library.normalizers.NFC()
            made.pre_tokenizer = library.pre_tokenizers.Sequence(
                [words, bytes_of(add_prefix_space=spaced, use_regex=False)]
            )
        made.decoder = library.decoders.ByteLevel()
        for number, token, is_special in _read_added(folder, config, reader):
            added = library.AddedToken(token, special=is_special, normalized=False)
            (made.add_special_tokens if is_special else made.add_tokens)([added])
            if number is not None and made.token_to_id(token) != number:
                fact = f"{folder} gives {token!r} the id {number}, and it would be {made.token_to_id(token)}"
                raise DataError(fact, fix="give its tokenizer.json")
        content = made.to_str()
    said = config.get("eos_token")
    said = said.get("content") if isinstance(said, dict) else said
    return JsonTokenizer(content, end=end or (said if isinstance(said, str) else None), pad=pad, name=str(folder))


def _merges_in(file: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges of a file in order, each of two pieces that make another one."""
    merges = []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", fix=FETCH) from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not all(piece in vocab for piece in (*pair, "".join(pair))):
            raise DataError(f"{file}:{number} is no merge of two pieces of {VOCAB}: {line[:60]!r}", fix=FETCH)
        merges.append((pair[0], pair[1]))
    return merges


def _read_added(folder: Path, config: Mapping[str, Any], reader: Reader) -> list[tuple[int | None, str, bool]]:
    """Tokens beside the vocabulary: their ids where those are known, by id."""
    found: dict[str, tuple[int | None, str, bool]] = {}
    more = reader.json(folder / _ADDED, {str: int}) if is_file(folder / _ADDED) else {}
    for token, number in more.items():
        found[token] = (number, token, True)
    listed = config.get("added_tokens_decoder")
    for number, entry in listed.items() if isinstance(listed, dict) else ():
        if str(number).isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str):
            found[entry["content"]] = (int(number), entry["content"], entry.get("special") is True)
    for values in (reader.json(folder / _SPECIALS) if is_file(folder / _SPECIALS) else {}, config):
        for key in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"):
            value = values.get(key)
            token = value.get("content") if isinstance(value, dict) else value
            if isinstance(token, str) and token not in found:
                found[token] = (None, token, True)
    return sorted(found.values(), key=lambda each: (each[0] is None, each[0] or 0))
