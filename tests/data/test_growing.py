"""A folder that grows: an epoch has the files that were there as it began, whoever goes on with it."""

import shutil

import numpy as np
import pytest

from weft import data
from weft.data.growing import Growing

BYTES = data.ByteTokenizer()


def put(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(name * 40)  # 200 bytes of five letters


def growing(tmp_path, journal="journal", **how):
    spec = {"path": tmp_path / "files", "grows": True}
    cache = tmp_path / "cache"
    return Growing(
        lambda: data.open_source(spec),
        lambda source: data.lm_dataset(source, BYTES, length=20, cache=cache),
        tmp_path / journal,
        **how,
    )


def batches(dataset, **how):
    return data.Batches(dataset, batch=4, seed=3, **how)


def texts(made, steps):
    """The file that each row of some batches is of."""
    return [[chr(row[0]) for row in made.at(step)["targets"]] for step in steps]


def names_in(rows):
    return {letter for row in rows for letter in row}


def test_files_that_come_are_for_the_next_epoch(tmp_path):
    put(tmp_path / "files", "aaaaa", "bbbbb")  # 20 rows: 5 batches an epoch
    made = batches(growing(tmp_path))
    first = texts(made, range(2))
    put(tmp_path / "files", "00000", "ccccc")  # one of them first by name
    assert names_in(first + texts(made, range(2, 5))) == {"a", "b"}
    second = [letter for row in texts(made, range(5, 15)) for letter in row]
    assert sorted(second) == sorted("abc0" * 10)
    assert texts(made, range(5)) != texts(made, range(5, 10))


def test_a_run_goes_on_with_the_lists_it_had(tmp_path):
    put(tmp_path / "files", "aaaaa", "bbbbb")
    made = batches(growing(tmp_path))
    whole = texts(made, range(6))
    put(tmp_path / "files", "ccccc")  # after the second epoch was begun
    state = made.state
    wanted = whole + texts(made, range(6, 12))
    for journal in ("journal", "lost"):  # killed and resumed; and with a cache that is gone
        again = batches(growing(tmp_path, journal))
        again.seek(5, state)
        assert texts(again, range(5, 6)) == wanted[5:6]
        assert [next(again)["targets"].tolist() for _ in range(4)] == [
            made.at(step)["targets"].tolist() for step in range(5, 9)
        ]
        again.close()
        assert texts(again, range(12)) == wanted


def test_all_processes_have_the_lists_of_the_first(tmp_path):
    put(tmp_path / "files", "aaaaa", "bbbbb")
    shares = [batches(growing(tmp_path, is_first=p == 0), process=p, processes=2) for p in range(2)]
    whole = batches(growing(tmp_path))
    rows = [np.concatenate([share.at(step)["targets"] for share in shares]) for step in range(6)]
    put(tmp_path / "files", "ccccc")
    rows += [np.concatenate([share.at(step)["targets"] for share in shares]) for step in range(6, 14)]
    for step, found in enumerate(rows):
        assert found.tolist() == whole.at(step)["targets"].tolist()
    assert names_in(texts(whole, range(10, 14))) == {"a", "b", "c"}


def test_a_file_that_is_gone_or_another_is_told(tmp_path):
    put(tmp_path / "files", "aaaaa", "bbbbb")
    growing(tmp_path)
    (tmp_path / "files/aaaaa").write_text("another")
    with pytest.raises(data.DataError, match="aaaaa is another than when the run began to learn from it"):
        growing(tmp_path)
    (tmp_path / "files/aaaaa").unlink()
    with pytest.raises(data.DataError, match="aaaaa is gone, and the run learns from it") as caught:
        growing(tmp_path)
    assert "put it back" in caught.value.fix
    shutil.rmtree(tmp_path / "files")
    with pytest.raises(data.DataError, match="there is no"):
        growing(tmp_path)


def test_another_process_that_waits_in_vain_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.data.growing._PATIENCE", 0.1)
    put(tmp_path / "files", "aaaaa")
    with pytest.raises(data.DataError, match="the first process has written no"):
        growing(tmp_path, is_first=False)


def test_a_journal_that_is_none_is_told(tmp_path):
    put(tmp_path / "files", "aaaaa")
    put(tmp_path / "journal")
    for content in ('{"files": [["a"]]}', "{}", "no JSON"):
        (tmp_path / "journal/epoch-000000.json").write_text(content)
        with pytest.raises(data.DataError) as caught:
            growing(tmp_path)
        assert f"remove {tmp_path / 'journal'}" in caught.value.fix


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ({"held_out": 0.1}, "`held_out = 0.1` is a share of its end"),
        ({"format": "tokens"}, "tokens are read as a whole"),
    ],
)
def test_what_does_not_go_with_growing_is_told(table, fact, tmp_path):
    put(tmp_path / "files", "aaaaa")
    with pytest.raises(data.DataError, match=f"the data grow, and {fact}"):
        data.open_source({"path": tmp_path / "files", "grows": True, **table})
    with pytest.raises(data.DataError, match="part 1 of `mixture` grows"):
        data.open_source({"mixture": [{"path": str(tmp_path / "files"), "grows": True}]})
