"""The parsers of weft, each with small seeds that it reads."""

import contextlib
import dataclasses
import functools
import gzip
import io
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

import weft as wf
from tests.interop.folders import FIXTURES
from weft import data
from weft.errors import WeftError
from weft.interop import companions, loading
from weft.interop.gpt2 import GPT2
from weft.layout import Layout, Region
from weft.mesh import Mesh
from weft.small_files import summed
from weft.train import metrics
from weft.train.checkpoints import Checkpoints
from weft.train.config import model_in, parse, read
from weft.train.folder import Folder, learned_files
from weft.train.foresight import _before
from weft.train.keys import Where
from weft.train.runs import Run

from .harness import Parser

Change = Callable[[bytes], bytes]

# Meshes and layouts.

LAYOUTS = [
    "rows=2,cols=4\nbatch:rows,d_ff:cols",
    "hosts=2 | rows=2; cols=2\nbatch:hosts+rows; params.d_model:cols",
    "pods=2|hosts=2 | cols=2\nbatch:pods+hosts+cols",
    "all:8\nbatch:all,optimizer.vocab:all , heads : all",
]
DIMS = wf.dims(batch=8, d_ff=32, d_model=16, vocab=64, heads=4)


def read_layout(folder: Path, name: str, content: bytes, kept: Path) -> None:
    first, _, second = content.decode("utf-8", "surrogateescape").partition("\n")
    layout = None
    with contextlib.suppress(WeftError):
        layout = Layout(second)
        assert Layout(str(layout)) == layout
        layout.check_dims(DIMS)
    mesh = Mesh(first)
    assert Mesh(str(mesh)) == mesh
    if layout is not None:
        Region(mesh, layout)


# A run's TOML.

RUNS = {
    "plain.toml": """
name = "tiny"
seed = 3
mesh = "rows=2,cols=4"
layout = "batch:rows,d_ff:cols"
model = "tiny-lm"
data = "python"
[train]
steps = 20
batch = 8
length = 32
[schedule]
kind = "cosine"
rate = 0.001
warmup = 5
""",
    "tables.toml": """
[model]
preset = "tiny-lm"
layers = 2
dropout = 0.1
[data]
path = ["a.txt", "b.txt"]
held_out = 0.05
format = "text"
evaluation = {path = "c.txt"}
[tokenizer]
kind = "sentencepiece"
vocab = 500
[optimizer]
name = "adamw"
weight_decay = 0.1
no_decay = ["*norm*"]
[lora]
rank = 2
where = ["*.attention.q"]
[eval]
every = 5
[checkpoint]
keep = 2
""",
}


def read_run(folder: Path, name: str, content: bytes, kept: Path) -> None:
    (folder / name).write_bytes(content)
    if name == "set.toml":
        config = read(kept / "whole.toml", content.decode("utf-8", "surrogateescape").rstrip("\n").split("\n"))
    else:
        config = read(folder / name)
    assert parse(config.to_dict(), Where("again", {})) == config
    config.to_toml().encode()


def prepare_runs(kept: Path) -> dict[str, bytes]:
    (kept / "whole.toml").write_text(RUNS["plain.toml"])
    seeds = {name: text.encode() for name, text in RUNS.items()}
    sets = "train.steps=30\nschedule.rate=1e-4\nmodel.layers=1\n"
    return seeds | {"set.toml": sets.encode()}


# Weights.


def prepare_weights(kept: Path) -> dict[str, bytes]:
    seeds = {}
    for model in ("gpt2", "llama", "t5", "switch"):
        shutil.copytree(FIXTURES / model, kept / model, ignore=shutil.ignore_patterns("expected.npz"))
        seeds[f"{model}|config.json"] = (kept / model / "config.json").read_bytes()
        whole = (kept / model / "model.safetensors").read_bytes()
        seeds[f"{model}|model.safetensors"] = whole
    names = loading.Weights(kept / "gpt2").stored
    index = {"metadata": {"total_size": 3}, "weight_map": dict.fromkeys(names, "model-1.safetensors")}
    seeds["gpt2|model.safetensors.index.json"] = json.dumps(index).encode()
    return seeds


def change_header(name: str, content: bytes, change: Change) -> bytes:
    """A file of tensors whose header is changed; its length is told right."""
    if not name.endswith(".safetensors"):
        return change(content)
    size = int.from_bytes(content[:8], "little")
    header = change(content[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def read_weights(folder: Path, name: str, content: bytes, kept: Path) -> None:
    model, file = name.split("|")
    for other in (kept / model).iterdir():
        if other.name != file:
            (folder / other.name).symlink_to(other)
    if file.endswith("index.json"):
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / file).write_bytes(content)
    source = loading.ModelFolder(folder)
    config = source.config({})
    _, params, names = loading.check_folder(source, config)
    for parameter in list(params.values())[:2]:
        whole = [slice(0, size) for size in parameter.dims.sizes]
        parameter.read(whole, source.weights, names, np.dtype("float32"))


# Tokenizers.


def prepare_json(kept: Path) -> dict[str, bytes]:
    import tokenizers as t

    text = ["the loom weaves the weft", "warp and weft and 12 reeds, é 💥"] * 8
    seeds = {}
    for name, model, trainer in (
        ("bpe", t.models.BPE(), t.trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], show_progress=False)),
        (
            "unigram",
            t.models.Unigram(),
            t.trainers.UnigramTrainer(
                vocab_size=80, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
            ),
        ),
        (
            "wordpiece",
            t.models.WordPiece(unk_token="[UNK]"),
            t.trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]", "[SEP]"], show_progress=False),
        ),
    ):
        made = t.Tokenizer(model)
        made.pre_tokenizer = t.pre_tokenizers.ByteLevel() if name == "bpe" else t.pre_tokenizers.Metaspace()
        made.decoder = t.decoders.ByteLevel() if name == "bpe" else t.decoders.Metaspace()
        if name != "bpe":
            made.normalizer = t.normalizers.Sequence([t.normalizers.NFKC(), t.normalizers.Replace("``", '"')])
        made.train_from_iterator(text, trainer)
        made.post_processor = t.processors.TemplateProcessing(single="$A", special_tokens=[])
        seeds[name] = made.to_str().encode()
    return seeds


def read_json_tokenizer(folder: Path, name: str, content: bytes, kept: Path) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    _use(data.load_tokenizer(folder))


def prepare_pieces(kept: Path) -> dict[str, bytes]:
    (kept / "text.txt").write_text("\n".join(f"the loom weaves the weft {i} times, é" for i in range(200)))
    source = data.open_source(kept / "text.txt")
    return {
        kind: (kept / made).read_bytes()
        for kind in ("unigram", "bpe")
        for made in [_saved(data.train_sentencepiece(source, vocab=300, model=kind, cache=kept / "cache"), kept / kind)]
    }


def _saved(tokenizer: data.Tokenizer, folder: Path) -> str:
    tokenizer.save(folder)
    return f"{folder.name}/tokenizer.model"


def read_pieces(folder: Path, name: str, content: bytes, kept: Path) -> None:
    (folder / "tokenizer.model").write_bytes(content)
    _use(data.load_tokenizer(folder))


def _use(tokenizer: data.Tokenizer) -> None:
    ids, _ = tokenizer.encode_all(["the loom weaves", "é 💥\n  12", ""])
    tokenizer.decode(ids.tolist())
    assert ids.size == 0 or int(ids.max()) < tokenizer.vocab


# Data.

PACK: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gz": (gzip.compress, gzip.decompress),
    "xz": (lzma.compress, lzma.decompress),
    "zst": (zstandard.ZstdCompressor().compress, lambda x: zstandard.ZstdDecompressor().decompress(x)),
}


def prepare_data(kept: Path) -> dict[str, bytes]:
    text = "".join(f"weft and warp {i}, é\n" for i in range(60)).encode()
    rows = "".join(json.dumps({"text": f"loom {i} é", "n": [i, {"a": None}]}) + "\n" for i in range(30)).encode()
    pairs = "".join(f"one {i}\ttwo {i}\n" for i in range(30)).encode()
    array = io.BytesIO()
    np.save(array, np.arange(100, dtype=np.uint16))
    images = b"\0\0\x08\3" + np.array([5, 4, 4], ">u4").tobytes() + bytes(range(80))
    (kept / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1" + np.array([5], ">u4").tobytes() + bytes(range(5)))
    plain = {
        "a.txt": text,
        "a.jsonl": rows,
        "a.tsv": pairs,
        "a.npy": array.getvalue(),
        "a.bin": array.getvalue()[-200:],
        "train-images-idx3-ubyte": images,
    }
    packed = {f"{name}.{end}": pack(content) for name, content in plain.items() for end, (pack, _) in PACK.items()}
    return plain | {name: content for name, content in packed.items() if "idx3" not in name}


def change_packed(name: str, content: bytes, change: Change) -> bytes:
    pack, unpack = PACK.get(name.rpartition(".")[2], (bytes, bytes))
    return pack(change(unpack(content)))


def read_data(folder: Path, name: str, content: bytes, kept: Path) -> None:
    (folder / name).write_bytes(content)
    spec: dict[str, Any] = {"path": folder / name}
    if "idx3" in name:
        (folder / "train-labels-idx1-ubyte").symlink_to(kept / "train-labels-idx1-ubyte")
        data.image_dataset(data.open_source(spec)).take(np.arange(2))
    elif name.startswith("a.tsv"):
        tokenizer = data.ByteTokenizer(specials=True)
        made = data.pair_dataset(data.open_source(spec), tokenizer, length=16, cache=folder / "cache")
        made.take(np.arange(len(made)))
    else:
        found = data.lm_dataset(data.open_source(spec), data.ByteTokenizer(), length=16, cache=folder / "cache")
        found.take(np.arange(len(found)))


# A run's small files.


def prepare_small(kept: Path) -> dict[str, bytes]:
    config = parse({"model": "tiny-lm", "data": "python", "train": {"steps": 9}}, Where("here", {}))
    told = {
        "step": 2,
        "config": config.to_dict(),
        "loss": 2.5,
        "dtypes": {"params.a": "float32"},
        "sums": {"params.a": 7},
    }
    files = {
        "config.toml": config.to_toml().encode(),
        "data.json": json.dumps({"learned": [["a.txt", "12"]], "evaluation": []}).encode(),
        "tokenizer.bytes.json": b'{"specials": true}',
        "metrics.jsonl": b"".join(
            metrics.line_of({"step": i, "loss": 2.5 / i, "mfu": None}).encode() + b"\n" for i in (1, 2)
        ),
        "checkpoints/2/checkpoint.json": json.dumps({**told, "files": {}}).encode(),
        "checkpoints/4/checkpoint.json": summed({**told, "files": {}}),
        "hugging_face/config.json": (FIXTURES / "gpt2" / "config.json").read_bytes(),
    }
    for name, content in files.items():
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_bytes(content)
    (kept / "text.txt").write_text("weft and warp\n")
    return files


def read_small(folder: Path, name: str, content: bytes, kept: Path) -> None:
    shutil.copytree(kept, folder / "run")
    run = Run(folder / "run")
    (run.folder / name).write_bytes(content)
    said: list[str] = []
    checkpoints, text = Checkpoints(run.folder / "checkpoints"), data.open_source(kept / "text.txt")
    config = dataclasses.replace(_any_run(), data={"path": str(kept / "text.txt")})
    opened = Folder(run.folder, checkpoints, config, may_change=True, say=said.append)
    reads = {
        "config.toml": [
            lambda: run.settings.to_toml(),
            lambda: run.tokenizer,
            lambda: opened.check_config(),
            lambda: _before(run.folder),
            lambda: model_in(run.folder),
        ],
        "data.json": [lambda: opened.check_data(None), lambda: learned_files(run.folder, text)],
        "tokenizer.bytes.json": [lambda: run.tokenizer, lambda: opened._tokenizer_before],
        "metrics.jsonl": [
            lambda: metrics.numbers(metrics.read(run.folder)[-1]),
            lambda: _go_on(run.folder, said.append),
        ],
        "config.json": [lambda: companions.keys_beside(run.folder / "hugging_face", GPT2, {})],
        "checkpoint.json": [
            lambda: [checkpoints.problem(step) for step in checkpoints.steps],
            lambda: checkpoints.best_step(),
            lambda: checkpoints.dtypes(checkpoints.choose()),
            lambda: (run.folder / "config.toml").unlink(),
            lambda: opened.check_config(),
        ],
    }
    refused = [error for each in reads[Path(name).name] if (error := _refusal(each)) is not None]
    "".join(said).encode()
    if refused:
        raise refused[0]


def _refusal(read_it: Callable[[], Any]) -> WeftError | None:
    """What it is refused with, if it is; the others that read the same file have their turn after it."""
    try:
        read_it()
    except WeftError as error:
        str(error).encode()
        return error
    return None


def _go_on(folder: Path, said: Callable[[str], None]) -> None:
    """Goes on from step 1, back to it, and on again."""
    with metrics.Metrics(folder, from_step=1, tensorboard=False, say=said) as note:
        note({"step": 2, "loss": 1.0})
        note.go_back(1)
        note({"step": 2, "loss": 1.0})
    assert metrics.read(folder)[-1] == {"step": 2, "loss": 1.0}


@functools.cache
def _any_run() -> Any:
    return parse({"model": "tiny-lm", "data": "python", "mesh": "auto", "layout": "auto"}, Where("here", {}))


# The token cache.


def _made(kept: Path, cache: Path) -> bytes:
    found = data.lm_dataset(data.open_source(kept / "text.txt"), data.ByteTokenizer(), length=16, cache=cache)
    return found.take(np.arange(len(found)))["targets"].tobytes()


def prepare_cache(kept: Path) -> dict[str, bytes]:
    (kept / "text.txt").write_text("weft and warp and loom\n" * 20)
    (kept / "expected").write_bytes(_made(kept, kept / "cache"))
    (kept / "cache" / "hashes.json").write_bytes(summed({"somewhere|1|2|3": "0" * 32}))
    files = [path for path in (kept / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(kept)): path.read_bytes() for path in files}


def read_cache(folder: Path, name: str, content: bytes, kept: Path) -> None:
    shutil.copytree(kept / "cache", folder / "cache")
    (folder / name).write_bytes(content)
    assert _made(kept, folder / "cache") == (kept / "expected").read_bytes(), "a damaged cache was believed"


PARSERS = {
    parser.name: parser
    for parser in (
        Parser("layout", lambda kept: {str(i): text.encode() for i, text in enumerate(LAYOUTS)}, read_layout),
        Parser("toml", prepare_runs, read_run),
        Parser("weights", prepare_weights, read_weights, packed=change_header),
        Parser("tokenizer", prepare_json, read_json_tokenizer, is_native=True),
        Parser("sentencepiece", prepare_pieces, read_pieces, is_text=False, is_native=True),
        Parser("data", prepare_data, read_data, packed=change_packed),
        Parser("small", prepare_small, read_small),
        Parser("cache", prepare_cache, read_cache),
    )
}
