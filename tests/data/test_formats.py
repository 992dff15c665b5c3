"""Every format, written small and read back; compressed in every way; which part is held out."""

import gzip
import json
import lzma
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import zstandard

from weft import data

PACKED = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
BYTES = data.ByteTokenizer()
TEXTS = ["Über alles\nzwei Zeilen\n", "a second document", "日本\n\n" * 50]


def documents(source, cache, **how):
    """The documents of a source as texts, read back from rows of one document each."""
    dataset = data.lm_dataset(source, BYTES, length=1000, pack=False, cache=cache, **how)
    rows = dataset.take(np.arange(len(dataset)))
    return [BYTES.decode(row[weights > 0]) for row, weights in zip(rows["tokens"], rows["weights"], strict=True)]


def write(path: Path, content: str | bytes) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKED[path.suffix if path.suffix in PACKED else ""](content))
    return path


@pytest.mark.parametrize("packed", PACKED)
def test_a_text_file_is_one_document(tmp_path, packed):
    path = write(tmp_path / f"corpus.txt{packed}", TEXTS[0])
    assert documents(data.open_source(path), tmp_path / "cache") == [TEXTS[0]]


@pytest.mark.parametrize("packed", PACKED)
def test_a_folder_has_a_document_a_file_in_the_order_of_names(tmp_path, packed):
    for name, content in zip(["b/one.txt", "a.txt", "c.txt"], TEXTS, strict=True):
        write(tmp_path / "corpus" / (name + packed), content)
    write(tmp_path / "corpus" / ".hidden", b"\0")
    write(tmp_path / "corpus" / "empty.txt", b"")
    assert documents(data.open_source(str(tmp_path / "corpus")), tmp_path / "cache") == [TEXTS[1], TEXTS[0], TEXTS[2]]


def test_a_glob_chooses_files_of_a_folder(tmp_path):
    write(tmp_path / "corpus/a.txt", "yes")
    write(tmp_path / "corpus/a.md", "no")
    source = data.open_source({"path": tmp_path / "corpus", "glob": "*.txt"})
    assert documents(source, tmp_path / "cache") == ["yes"]


def test_shards_of_one_billion_words_have_a_document_a_line(tmp_path):
    for i, content in enumerate(["one .\ntwo .\n", "three .\n"], start=1):
        write(tmp_path / f"training/news.en-{i:05}-of-00100", content)
    assert documents(data.open_source(tmp_path / "training"), tmp_path / "cache") == ["one .", "two .", "three ."]


def test_lines_can_be_documents(tmp_path):
    path = write(tmp_path / "corpus.txt", "one\r\n\ntwo\nthree")
    source = data.open_source({"path": path, "documents": "lines"})
    assert documents(source, tmp_path / "cache") == ["one", "two", "three"]


@pytest.mark.parametrize("packed", PACKED)
def test_json_lines_have_a_document_in_a_field(tmp_path, packed):
    lines = "".join(json.dumps({"id": i, "content": text}) + "\n\n" for i, text in enumerate(TEXTS))
    path = write(tmp_path / f"corpus.jsonl{packed}", lines)
    assert documents(data.open_source({"path": path, "field": "content"}), tmp_path / "cache") == TEXTS


@pytest.mark.parametrize("packed", PACKED)
def test_bytes_are_read_as_they_are(tmp_path, packed):
    content = bytes(range(256)) * 40
    path = write(tmp_path / f"enwik8{packed}", content)
    dataset = data.lm_dataset(data.open_source(path), BYTES, length=512, cache=tmp_path / "cache")
    assert bytes(dataset.take(np.arange(len(dataset)))["targets"].ravel().tolist()) == content


def test_a_range_of_bytes_is_read_alone(tmp_path):
    path = write(tmp_path / "enwik8.xz", b"0123456789" * 300_000)
    told = {"path": path, "range": [1_200_003, 1_200_008], "evaluation": {"path": path, "range": [5, 9]}}
    source = data.open_source(told)
    assert documents(source, tmp_path / "cache") == ["34567"]
    assert documents(source, tmp_path / "cache", part="evaluation") == ["5678"]


def test_arrays_of_tokens_are_mapped_and_documents_end_after_the_end_id(tmp_path):
    ids = np.array([5, 6, 9, 7, 9, 8], np.uint16)
    np.save(tmp_path / "a.npy", ids)
    ids.tofile(tmp_path / "b.bin")
    for name in ("a.npy", "b.bin"):
        source = data.open_source({"path": tmp_path / name, "end": 9})
        dataset = data.lm_dataset(source, length=6, cache=tmp_path / "cache")
        row = dataset.take(np.array([0]))
        assert row["targets"][0].tolist() == ids.tolist()
        assert row["inputs"][0].tolist() == [0, 5, 6, 0, 7, 0]
        assert row["segments"][0].tolist() == [1, 1, 1, 2, 2, 3]
        assert dataset.vocab == 10
    assert isinstance(dataset._tokens.ids.base, np.memmap)


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zst"])
def test_several_arrays_of_tokens_follow_each_other(tmp_path, packed):
    (tmp_path / "ids").mkdir()
    np.arange(10, dtype=np.int32).tofile(tmp_path / "ids/0.bin")
    write(tmp_path / f"ids/1.bin{packed}", np.arange(10, 70_000, dtype=np.int32).tobytes())
    source = data.open_source({"path": tmp_path / "ids", "dtype": "int32"})
    dataset = data.lm_dataset(source, length=1000, across=True, cache=tmp_path / "cache")
    found = dataset.take(np.arange(70))
    assert found["targets"].ravel().tolist() == list(range(70_000))
    assert list(found) == ["inputs", "targets", "weights"]


PAIRS = [("one dog", "un chien"), ("", "rien"), ("two", "deux")]


def pairs_of(source, cache, **how):
    tokenizer = data.ByteTokenizer(specials=True)
    dataset = data.pair_dataset(source, tokenizer, length=32, pack=False, cache=cache, **how)
    rows = dataset.take(np.arange(len(dataset)))
    return [
        (tokenizer.decode(one), tokenizer.decode(other))
        for one, other in zip(rows["inputs"], rows["targets"], strict=True)
    ]


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("by", ["stem", "files"])
def test_parallel_files_are_pairs_and_one_with_an_empty_side_is_left_out(tmp_path, packed, by):
    files = []
    for side, ending in enumerate(["en", "fr"]):
        lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
        files.append(write(tmp_path / f"train.lc.{ending}{packed}", lines))
    stem = {"path": str(tmp_path / "train.lc"), "source": "en", "target": "fr"}
    source = data.open_source(stem if by == "stem" else {"path": files})
    assert pairs_of(source, tmp_path / "cache") == [PAIRS[0], PAIRS[2]]


def test_columns_and_fields_are_pairs(tmp_path):
    write(tmp_path / "a.tsv", "".join(f"{one}\t{other}\n" for one, other in PAIRS))
    write(tmp_path / "a.jsonl", "".join(json.dumps({"en": one, "fr": other}) + "\n" for one, other in PAIRS))
    for spec in (tmp_path / "a.tsv", {"path": tmp_path / "a.jsonl", "fields": ["en", "fr"]}):
        assert pairs_of(data.open_source(spec), tmp_path / "cache") == [PAIRS[0], PAIRS[2]]


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("packed", PACKED)
def test_images_have_labels_and_a_test_set_is_held_apart(tmp_path, packed):
    images, labels = np.arange(5 * 4 * 3).reshape(5, 4, 3), np.array([3, 1, 4, 1, 5])
    for name, kept in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        write(tmp_path / f"{name}-images-idx3-ubyte{packed}", idx(images[kept]))
        write(tmp_path / f"{name}-labels-idx1-ubyte{packed if name == 'train' else ''}", idx(labels[kept]))
    source = data.open_source(tmp_path)
    train, test = data.image_dataset(source), data.image_dataset(source, part="evaluation")
    found = train.take(np.array([2, 0, -1]))
    assert np.array_equal(found["images"][:2], images[[2, 0]].astype(np.float32) / 255)
    assert found["labels"].tolist() == [4, 3, 0] and list(found) == ["images", "labels", "weights"]
    assert found["weights"].tolist() == [1, 1, 0] and not found["images"][2].any()
    assert (len(train), len(test), test.classes) == (3, 2, 6)


def test_python_is_the_standard_library_as_bytes_in_sorted_order(tmp_path):
    source = data.open_source("python")
    root = Path(sysconfig.get_path("stdlib"))
    assert list(source.names) == sorted(source.names) and "argparse.py" in source.names
    assert not any({"test", "tests", "site-packages"} & set(Path(name).parts) for name in source.names)
    assert source.files[source.names.index("json/decoder.py")] == root / "json/decoder.py"
    few = data.Source(format="bytes", files=source.files[:9], names=source.names[:9])
    dataset = data.lm_dataset(few, BYTES, length=4096, cache=tmp_path)
    content = b"".join(file.read_bytes() for file in few.files)
    found = dataset.take(np.arange(len(dataset)))
    assert bytes(found["targets"][found["weights"] > 0].tolist()) == content
    assert source.held_out == 0.05


def test_a_share_is_held_out_from_a_documents_start_and_a_number_exactly(tmp_path):
    path = write(tmp_path / "corpus.txt", "\n".join(["x" * 10] * 10))

    def parts(held_out):
        source = data.open_source({"path": path, "documents": "lines", "held_out": held_out})
        return [documents(source, tmp_path / "cache", part=part) for part in ("train", "evaluation", "all")]

    assert [len(part) for part in parts(0.25)] == [8, 2, 10]
    train, evaluation, _ = parts(3)
    assert (train[-1], evaluation) == ("x" * 7, ["xxx"])


def test_one_document_is_held_out_from_exactly_where_its_share_begins(tmp_path):
    path = write(tmp_path / "corpus.txt", "x" * 90 + "y" * 10)
    source = data.open_source({"path": path, "held_out": 0.1})
    assert documents(source, tmp_path / "cache", part="evaluation") == ["y" * 10]


def test_a_file_of_its_own_can_be_for_evaluation(tmp_path):
    write(tmp_path / "train.txt", "train")
    write(tmp_path / "valid.txt", "valid")
    source = data.open_source({"path": tmp_path / "train.txt", "evaluation": tmp_path / "valid.txt"})
    assert [documents(source, tmp_path, part=part) for part in ("train", "evaluation")] == [["train"], ["valid"]]


def test_a_file_of_several_frames_is_read_to_its_end(tmp_path):
    for ending, pack in PACKED.items():
        (tmp_path / f"a.txt{ending}").write_bytes(pack(b"one " * 100_000) + pack(b"two") + pack(b"") + pack(b"three"))
        pieces = [piece for piece, _ in data.open_source(tmp_path / f"a.txt{ending}").pieces()]
        assert "".join(pieces) == "one " * 100_000 + "twothree"


def test_a_document_longer_than_a_block_keeps_its_characters_and_its_place(tmp_path):
    long = "é" * 1_500_001 + "日本語" * 400_000
    write(tmp_path / "corpus/a.txt", long)
    write(tmp_path / "corpus/b.txt", "short")
    dataset = data.lm_dataset(data.open_source(tmp_path / "corpus"), BYTES, length=1 << 16, cache=tmp_path / "cache")
    found = dataset.take(np.arange(len(dataset)))
    there = found["weights"] > 0
    assert bytes(found["targets"][there].tolist()).decode() == long + "short"
    assert (found["inputs"][there] == 0).sum() == 2
