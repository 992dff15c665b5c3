"""Data elsewhere, by fsspec: streamed, with the names, rows and errors of files here."""

import gzip
import io
import json
import sys

import fsspec
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from weft import data

BYTES = data.ByteTokenizer()


@pytest.fixture
def bucket():
    """A file system in memory, with a bucket of its own."""
    files = fsspec.filesystem("memory")

    def put(name, content):
        with files.open(f"/bucket/{name}", "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    yield put
    files.store.clear()


def texts_of(spec):
    return [piece for piece, is_last in data.open_source(spec).pieces() if is_last]


def test_files_are_found_by_name_folder_and_stars(bucket):
    for name in ("a/2.jsonl", "a/1.jsonl", "b/3.jsonl", "a/.hidden.jsonl", "a/notes.txt"):
        bucket(name, json.dumps({"text": name}))
    assert data.open_source("memory://bucket/a/1.jsonl").names == ("1.jsonl",)
    source = data.open_source({"path": "memory://bucket/a", "glob": "*.jsonl"})
    assert source.names == ("1.jsonl", "2.jsonl") and str(source.files[0]) == "memory://bucket/a/1.jsonl"
    assert data.open_source("memory://bucket/*/*.jsonl").names == ("a/1.jsonl", "a/2.jsonl", "b/3.jsonl")
    assert texts_of("memory://bucket/*/*.jsonl") == ["a/1.jsonl", "a/2.jsonl", "b/3.jsonl"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.parquet", "a.arrow"])
def test_every_kind_of_file_is_streamed(name, bucket, tmp_path):
    text = "Über alles\n" * 500
    table, made = arrow.table({"text": [text]}), io.BytesIO()
    if name == "a.parquet":
        parquet.write_table(table, made)
    elif name == "a.arrow":
        with arrow.ipc.new_stream(made, table.schema) as file:
            file.write_table(table)
    packed = {"a.txt": text, "a.txt.gz": gzip.compress(text.encode()), "a.jsonl": json.dumps({"text": text})}
    bucket(name, packed.get(name, made.getvalue()))
    dataset = data.lm_dataset(data.open_source(f"memory://bucket/{name}"), BYTES, length=64, cache=tmp_path)
    rows = dataset.take(np.arange(len(dataset)))
    assert bytes(rows["targets"][rows["weights"] > 0].tolist()).decode() == text


def test_a_file_that_changed_is_another(bucket):
    bucket("a.txt", "one")
    source = data.open_source("memory://bucket/a.txt")
    key = source.key()
    assert source.key() == key
    bucket("a.txt", "another")
    assert data.open_source("memory://bucket/a.txt").key() != key


def problem(spec, tmp_path):
    with pytest.raises(data.DataError) as caught:
        data.lm_dataset(data.open_source(spec), BYTES, length=8, cache=tmp_path)
    return caught.value


def test_what_is_not_there_or_cannot_be_read_is_told(bucket, tmp_path, monkeypatch):
    bucket("a.npy", b"123")
    assert "there is no memory://bucket/gone.txt" in problem("memory://bucket/gone.txt", tmp_path).fact
    assert "there is no memory://bucket/*.zip" in problem("memory://bucket/*.zip", tmp_path).fact
    assert "copy it here first" in problem("memory://bucket/a.npy", tmp_path).fix
    assert "nosuch://x/y cannot be read" in problem("nosuch://x/y", tmp_path).fact
    monkeypatch.setitem(sys.modules, "s3fs", None)
    error = problem("s3://bucket/a.txt", tmp_path)
    assert "s3://bucket/a.txt cannot be read" in error.fact and error.fix == "run `pip install s3fs`"

    def refuse(*_, **__):
        raise PermissionError("403: not yours")

    monkeypatch.setattr(fsspec.filesystem("memory"), "info", refuse)
    monkeypatch.setattr(fsspec.filesystem("memory"), "isfile", refuse)
    assert "memory://bucket/a.txt cannot be read: 403: not yours" in problem("memory://bucket/a.txt", tmp_path).fact
