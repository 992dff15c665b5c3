"""Tokenizers: bytes, SentencePiece (also trained here), and `tokenizer.json`.

Imports errors, fields and small_files alone; the libraries are loaded when a tokenizer of theirs is made. Two
tokenizers with the same `key` give the same ids.
"""

import contextlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import closest
from ..fields import one_of
from ..small_files import Reader, is_file, short
from .atomic import write_atomic
from .bpe import train_bpe
from .cache import make_once
from .encoding import FETCH, Places, hash_of, id_or_none, join, library_errors, text_of
from .errors import DataError, import_library
from .files import Progress, content_key
from .json_tokenizer import JSON, MERGES, VOCAB, JsonTokenizer, read_merges
from .sources import Source

PAD, END, UNKNOWN = 0, 1, 2
BYTES, PIECES = "tokenizer.bytes.json", "tokenizer.model"
NAMES = (BYTES, PIECES, JSON)
OTHER_PIECES = "spiece.model"  # what T5's files call it
_FIRST_BYTE = 3
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
SAMPLE = 10_000_000
"""Characters that SentencePiece learns from unless told otherwise: some twenty seconds of a core for unigrams."""
KINDS, MODELS = ("bytes", "sentencepiece", "bpe", "json"), ("unigram", "bpe")
_LONGEST_SENTENCE = 16_384


@dataclass(kw_only=True)
class TokenizerTable:
    """The keys of a run's table `tokenizer`, as `open_tokenizer` reads them."""

    kind: str = one_of(*KINDS, default=None)
    """Bytes; pieces trained on the data (`sentencepiece`, or `bpe` of words); or the `tokenizer.json` at `path`.
    A run without `tokenizer` reads bytes."""
    path: str
    """A file or a folder with a tokenizer, in place of one that is trained."""
    vocab: int
    """How many ids one that is trained has; 32,000 if not said."""
    model: str = one_of(*MODELS)
    """What kind of pieces SentencePiece learns."""
    sample: int
    """From how many characters SentencePiece learns; 10,000,000 if not said."""
    specials: bool
    """Of bytes: whether there are ids for padding and ends beside them; as the data need it if not said."""
    end: str
    """Of a `tokenizer.json`: the token that ends a document."""
    pad: str
    """Of a `tokenizer.json`: the token that fills rows."""


TOKENIZER_KEYS = list(TokenizerTable.__dataclass_fields__)


class Tokenizer(Protocol):
    """Turns text into ids below `vocab`; `end` closes documents, `pad` fills rows."""

    vocab: int
    end: int | None
    pad: int | None

    @property
    def key(self) -> str:
        """A name for what it does."""

    def encode(self, text: str | bytes) -> list[int]:
        """The ids of a text, without `end`."""

    def encode_all(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of many texts one after the other, and how many each has."""

    def encode_places(self, texts: Sequence[str]) -> list[Places]:
        """The ids of each text, and between which letters of it each stands."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The same before it is read as UTF-8, which parts of a text need not be."""

    def save(self, folder: Path) -> None:
        """Writes it into a folder, from which `load_tokenizer` reads it."""


class ByteTokenizer:
    """Each byte an id: plain, 0 to 255, or after special ids.

    With `specials` pad is 0, end 1, unknown 2, and bytes are from 3 on.

    >>> ByteTokenizer().encode("hé"), ByteTokenizer(specials=True).encode("h")
    ([104, 195, 169], [107])
    """

    def __init__(self, *, specials: bool = False):
        self.specials = specials
        self._first = _FIRST_BYTE if specials else 0
        self.vocab = 256 + self._first
        self.end = END if specials else None
        self.pad = PAD if specials else None

    @property
    def key(self) -> str:
        return content_key("bytes", self.specials)

    def encode(self, text: str | bytes) -> list[int]:
        return self.encode_all([text])[0].tolist()

    def encode_all(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        with library_errors("bytes cannot be made of this text"):
            encoded = [text if isinstance(text, bytes) else text.encode("utf-8") for text in texts]
        ids = np.frombuffer(b"".join(encoded), np.uint8)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return (ids.astype(np.uint16) + self._first if self.specials else ids), lengths

    def encode_places(self, texts: Sequence[str]) -> list[Places]:
        made: list[Places] = []
        for text in texts:
            letters = np.repeat(np.arange(len(text)), [len(letter.encode("utf-8")) for letter in text])
            made.append((self.encode(text), np.stack([letters, letters + 1], axis=1)))
        return made

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        values = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64) - self._first
        return values[(values >= 0) & (values < 256)].astype(np.uint8).tobytes()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / BYTES, json.dumps({"specials": self.specials}).encode())


class SentencePieceTokenizer:
    """A model of SentencePiece.

    One trained here has pad 0, end 1, unknown 2, and gives back every text as it was. Where nothing reaches over a
    line's end, each line is encoded alone: scores of a path add up in 32 bits, and over a long text too little is left
    of them to choose by.
    """

    def __init__(self, model: bytes, name: str = PIECES):
        self._model, self._name = model, name
        pieces = import_library("sentencepiece", "a tokenizer of SentencePiece")
        if not model:  # the library takes it for a model not given yet
            raise DataError(f"{name} has 0 bytes, and is no model of SentencePiece", fix=FETCH)
        with self._errors("is no model of SentencePiece"):
            self._processor = pieces.SentencePieceProcessor(model_proto=model)
            self.vocab = self._processor.vocab_size()
            self.end = id_or_none(self._processor.eos_id())
            self.pad = id_or_none(self._processor.pad_id())
            whole, first, second = self._encode(["a\na", "a\n", "a"])
        self._is_by_line = whole == first + second

    @property
    def key(self) -> str:
        return content_key("sentencepiece", hash_of(self._model))

    def encode(self, text: str | bytes) -> list[int]:
        return self.encode_all([text])[0].tolist()

    def encode_all(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        lines = [_LINE.findall(text_of(text)) if self._is_by_line else [text_of(text)] for text in texts]
        ids, lengths = join(self._encode([line for text in lines for line in text]))
        ends = np.cumsum([0, *lengths])
        return ids, np.diff(ends[np.cumsum([0, *map(len, lines)])])

    def encode_places(self, texts: Sequence[str]) -> list[Places]:
        made: list[Places] = []
        for text in texts:
            ids: list[int] = []
            places: list[tuple[int, int]] = []
            begin = 0
            for line in _LINE.findall(text) if self._is_by_line else [text]:
                with self._errors("cannot encode this text"):
                    pieces = self._processor.encode(line, out_type="immutable_proto").pieces
                ids += [piece.id for piece in pieces]
                places += [(begin + piece.begin, begin + piece.end) for piece in pieces]
                begin += len(line)
            made.append((ids, np.array(places, np.int64).reshape(-1, 2)))
        return made

    def _encode(self, texts: list[str]) -> list[list[int]]:
        with self._errors("cannot encode this text"):
            return self._processor.encode(texts, num_threads=os.cpu_count() or 1)

    def decode(self, ids: Iterable[int]) -> str:
        with self._errors("cannot decode these ids"):
            return self._processor.decode([int(i) for i in ids])

    def _errors(self, what: str) -> contextlib.AbstractContextManager[None]:
        return library_errors(f"{self._name} {what}")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return self.decode(ids).encode("utf-8")

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / PIECES, self._model)


# Opening and training.


def open_tokenizer(
    spec: Any, source: Source | None = None, cache: Path | str | None = None, progress: Progress | None = None
) -> Tokenizer:
    """The tokenizer a run asks for: bytes, a file, or one trained on the source.

    A table says more: `kind` (of KINDS), `path`, `vocab` and `model` (`unigram`, `bpe`) of one to be trained,
    `specials` of bytes, `end` and `pad` of a `tokenizer.json`. A trained one is kept in `cache` by what it was trained
    on: `sample` characters, spread over all of the source but for data held apart. A `bpe` learns from all of it.
    """
    table = dict(spec) if isinstance(spec, Mapping) else {"kind": spec} if spec in ("bytes", "sentencepiece") else None
    table = {"path": spec} if table is None else table
    if (unknown := next((key for key in table if key not in TOKENIZER_KEYS), None)) is not None:
        raise DataError(f"`{unknown}` says nothing about a tokenizer", fix=closest(unknown, TOKENIZER_KEYS))
    kind = table.get("kind")
    if kind is not None and kind not in KINDS:
        raise DataError(f"there is no kind of tokenizer {kind!r}", fix=closest(str(kind), KINDS))
    if table.get("path") is not None:
        return load_tokenizer(table["path"], end=table.get("end"), pad=table.get("pad"))
    if kind == "bytes":
        return ByteTokenizer(specials=table.get("specials", source is not None and source.is_pairs))
    if kind == "bpe" and source is not None and cache is not None:
        return load_tokenizer(train_bpe(source, table.get("vocab", 32_000), Path(cache), progress))
    if kind not in ("sentencepiece", "bpe"):
        raise DataError("the tokenizer has no `path`", fix='say where it lies, or `tokenizer = "bytes"`')
    if source is None or cache is None:
        raise DataError(f"{kind} has nothing to learn from", fix="give a source and a folder to keep it in")
    return train_sentencepiece(
        source,
        vocab=table.get("vocab", 32_000),
        model=table.get("model", "unigram"),
        sample=table.get("sample", SAMPLE),
        cache=cache,
        progress=progress,
    )


LOOKED_FOR = f"looked for {', '.join(f'`{name}`' for name in (*NAMES, OTHER_PIECES))}, and `{VOCAB}` with `{MERGES}`"


def find_tokenizer(place: Path) -> Path | None:
    """The file of a tokenizer, or the folder that has one in two; None without any."""
    files = (place, *(place / name for name in (*NAMES, OTHER_PIECES)))
    if found := next((file for file in files if is_file(file)), None):
        return found
    return place if is_file(place / VOCAB) and is_file(place / MERGES) else None


def load_tokenizer(path: Path | str, *, end: str | None = None, pad: str | None = None) -> Tokenizer:
    """The tokenizer in a file, or in a folder where one was saved."""
    place = Path(path).expanduser()
    file = find_tokenizer(place)
    if file == place and not is_file(file):
        return read_merges(place, end=end, pad=pad)
    if file is None:
        raise DataError(
            f"there is no tokenizer at {short(place)}",
            state=LOOKED_FOR,
            fix='give one of these files, or `tokenizer = "bytes"`, or train one: `kind = "sentencepiece"`',
        )
    if file.name == BYTES:
        return ByteTokenizer(specials=Reader(DataError, FETCH).json(file, {"specials": bool})["specials"])
    try:
        if file.suffix == ".model":
            return SentencePieceTokenizer(file.read_bytes(), str(file))
        return JsonTokenizer(file.read_text(encoding="utf-8"), end=end, pad=pad, name=str(file))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", fix=FETCH) from None


def train_sentencepiece(
    source: Source,
    *,
    vocab: int,
    model: str = "unigram",
    sample: int = SAMPLE,
    cache: Path | str,
    progress: Progress | None = None,
) -> SentencePieceTokenizer:
    """A tokenizer with `vocab` pieces learnt from a source.

    Pad is 0, end 1, unknown 2, and bytes stand for what it never saw. Nothing of a text is changed or lost: spaces and
    line ends are kept. A pure function of what it is given.
    """
    if model not in MODELS:
        raise DataError(f"there is no model {model!r}", fix=closest(str(model), MODELS))
    folder = Path(cache)
    key = content_key("sentencepiece", source.key(folder), vocab, model, sample)

    def make(entry: Path) -> None:
        (entry / PIECES).write_bytes(_train(_sample_lines(source, sample, progress), vocab, model))

    entry = make_once(folder, f"tokenizer-{key}", make)
    return SentencePieceTokenizer((entry / PIECES).read_bytes(), str(entry / PIECES))


def _sample_lines(source: Source, most: int, progress: Progress | None) -> list[str]:
    """Lines to learn from, spread evenly: all, or every second, fourth and so on."""
    kept: list[str] = []
    stride, seen, size = 1, 0, 0
    for piece in source.texts(source.watch("reading for the tokenizer", progress)):
        for line in re.findall(rf"[^\n]{{1,{_LONGEST_SENTENCE // 4}}}", piece):
            seen += 1
            if seen % stride == 0:
                kept.append(line)
                size += len(line)
        while size > most:
            kept, stride = kept[1::2], stride * 2
            size = sum(map(len, kept))
    if not kept:
        raise DataError(f"there is no text in {source.files[0]}", fix="give a source that has some")
    return kept


def _train(lines: list[str], vocab: int, model: str) -> bytes:
    pieces, written = import_library("sentencepiece", "training a tokenizer"), io.BytesIO()
    try:
        pieces.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            vocab_size=vocab,
            model_type=model,
            pad_id=PAD,
            eos_id=END,
            unk_id=UNKNOWN,
            bos_id=-1,
            byte_fallback=True,
            character_coverage=0.9995,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            user_defined_symbols=["\n"],
            max_sentence_length=_LONGEST_SENTENCE,
            num_threads=16,  # how sums are grouped depends on it, so it is not the machine's number
            minloglevel=2,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise _cannot_learn(vocab, str(error)) from None
    return written.getvalue()


def _cannot_learn(vocab: int, why: str) -> DataError:
    most = re.search(r"value <= (\d+)", why)
    least = re.search(r"smaller than required_chars. \d+ vs (\d+)", why)
    fix = f"say `vocab = {int(most[1])}` or less" if most else "give more text, or another `vocab`"
    fix = f"say `vocab = {int(least[1])}` or more" if least else fix
    return DataError(f"SentencePiece cannot learn {vocab} pieces from this text", state=why[-160:], fix=fix)
