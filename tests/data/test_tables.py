"""Parquet, Arrow and saved datasets give the rows that were written; globs name files."""

import json

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from weft import data
from weft.data.compression import ALWAYS

TEXTS = ["Über alles\nzwei", "a second document", "日本"] * 200
BYTES = data.ByteTokenizer()


def texts_of(spec):
    return [piece for piece, is_last in data.open_source(spec).pieces() if is_last]


def write_stream(path, table, rows=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    with arrow.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=rows)


def write_file(path, table):
    with arrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


WRITERS = {
    "a.parquet": lambda path, table: parquet.write_table(table, path, row_group_size=250),
    "a.arrow": write_stream,
    "b.arrow": write_file,
    "a.feather": lambda path, table: write_file(path, table),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_has_a_document_a_row_and_other_columns_are_not_read(name, tmp_path):
    table = arrow.table({"id": list(range(600)), "content": TEXTS, "text": [None] * 600})
    WRITERS[name](tmp_path / name, table)
    assert texts_of({"path": tmp_path / name, "field": "content"}) == TEXTS


def test_a_table_of_two_columns_holds_pairs(tmp_path):
    parquet.write_table(arrow.table({"en": ["one", "two"], "fr": ["un", "deux"]}), tmp_path / "a.parquet")
    source = data.open_source({"path": tmp_path / "a.parquet", "fields": ["en", "fr"]})
    assert source.is_pairs and list(source.pairs()) == [("one", "un"), ("two", "deux")]


def saved(folder, shards=("data-00000-of-00002.arrow", "data-00001-of-00002.arrow"), **state):
    """A folder as `datasets` saves it; its order is that of its state, not that of names."""
    for i, shard in enumerate(shards):
        write_stream(folder / shard, arrow.table({"text": [f"{i} {j}" for j in range(3)]}))
    (folder / "dataset_info.json").write_text("{}")
    listed = {"_data_files": [{"filename": shard} for shard in shards], "_format_type": None, "_split": "train"}
    (folder / "state.json").write_text(json.dumps(listed | state))
    return folder


def test_a_saved_dataset_is_read_in_the_order_of_its_state(tmp_path):
    folder = saved(tmp_path / "set", shards=["data-1.arrow", "data-0.arrow"])
    assert texts_of(folder) == ["0 0", "0 1", "0 2", "1 0", "1 1", "1 2"]
    assert data.open_source(folder).names == ("data-1.arrow", "data-0.arrow")


def test_a_saved_dataset_with_splits_gives_that_for_training(tmp_path):
    for split in ("train", "test"):
        saved(tmp_path / "set" / split, shards=[f"{split}.arrow"])
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source = data.open_source({"path": tmp_path / "set", "evaluation": str(tmp_path / "set/test")})
    assert source.names == ("train/train.arrow",) and source.held_apart.names == ("test.arrow",)


def problem(spec):
    with pytest.raises(data.DataError) as caught:
        texts_of(spec)
    assert str(caught.value).splitlines()[-1].startswith("  fix: ")
    return caught.value


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    for name in ("a.parquet", "a.arrow"):
        WRITERS[name](tmp_path / name, arrow.table({"content": ["x"], "id": [1]}))
        error = problem({"path": tmp_path / name, "field": "contents"})
        assert error.fact == f"{tmp_path / name} has no column `contents`" and "`content`?" in error.fix


@pytest.mark.parametrize(("column", "row"), [([*TEXTS[:300], None], 301), ([1], 1), ([["x"]], 1)])
def test_a_row_without_a_text_is_named(tmp_path, column, row):
    parquet.write_table(arrow.table({"text": column}), tmp_path / "a.parquet")
    assert problem(tmp_path / "a.parquet").fact == f"{tmp_path / 'a.parquet'} row {row} has no text in its field `text`"
    assert problem(tmp_path / "a.parquet").fix.startswith("write one there, or take it out")


def test_a_table_that_is_cut_short_or_another_file_is_told(tmp_path):
    for name, write in WRITERS.items():
        write(tmp_path / name, arrow.table({"text": TEXTS}))
        content = (tmp_path / name).read_bytes()
        for broken in (content[: len(content) // 2], b"no table at all", b"PAR1", b"ARROW1\0\0"):
            (tmp_path / name).write_bytes(broken)
            assert f"{tmp_path / name} cannot be read beyond" in problem(tmp_path / name).fact


def test_a_small_table_of_one_text_many_times_is_refused(tmp_path):
    text = "x" * (1 << 16)
    many = arrow.DictionaryArray.from_arrays(np.zeros(ALWAYS // len(text) + 300, np.int32), [text])
    parquet.write_table(arrow.table({"text": many}), tmp_path / "a.parquet")
    error = problem(tmp_path / "a.parquet")
    assert "unpacks to more than" in error.fact and "expansion" in error.fix
    assert len(texts_of({"path": tmp_path / "a.parquet", "expansion": 100_000})) == len(many)


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "a/b.arrow"])
def test_a_saved_dataset_reads_no_file_that_is_not_its_own(tmp_path, name):
    saved(tmp_path / "set", _data_files=[{"filename": name}])
    assert "which is not beside it" in problem(tmp_path / "set").fact


def test_what_is_wrong_with_a_saved_dataset_is_told(tmp_path):
    folder = saved(tmp_path / "set", _indices_data_files=[{"filename": "indices.arrow"}])
    assert "flatten_indices" in problem(folder).fix
    (saved(folder) / "data-00000-of-00002.arrow").unlink()
    assert "copy the whole folder" in problem(folder).fix
    (folder / "state.json").write_text("[]")
    assert "state.json is a list" in problem(folder).fact
    (folder / "state.json").unlink()
    (folder / "dataset_dict.json").write_text('{"splits": ["validation"]}')
    error = problem(folder)
    assert "no split `train`" in error.fact and f'`path = "{folder / "validation"}"`' in error.fix


def test_without_pyarrow_its_install_is_named(tmp_path, monkeypatch):
    parquet.write_table(arrow.table({"text": ["x"]}), tmp_path / "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    assert problem(tmp_path / "a.parquet").fix == "run `pip install pyarrow`"


def test_a_path_with_stars_names_files_in_the_order_of_names(tmp_path):
    for name in ("b/2.jsonl", "a/1.jsonl", "a/1.txt", "a/.hidden.jsonl"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text(json.dumps({"text": name}))
    source = data.open_source(str(tmp_path / "d/*/*.jsonl"))
    assert source.names == ("a/1.jsonl", "b/2.jsonl") and source.format == "jsonl"
    assert data.open_source(str(tmp_path / "**/1.*")).names == ("d/a/1.jsonl", "d/a/1.txt")
    odd = tmp_path / "d/a[1].txt"
    odd.write_text("its name has brackets")
    assert data.open_source(odd).files == (odd,)
    error = problem(str(tmp_path / "d/*.parquet"))
    assert error.fact == f"no file is named like {tmp_path}/d/*.parquet" and str(tmp_path / "d") in error.state
