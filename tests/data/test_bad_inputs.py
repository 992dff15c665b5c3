"""What is wrong with data is said with file and line, and how to mend it."""

import gzip
import lzma
import resource

import numpy as np
import pytest
import zstandard

from weft import data

BYTES = data.ByteTokenizer()


def problem(tmp_path, spec, tokenizer=BYTES, **how):
    with pytest.raises(data.DataError) as caught:
        data.lm_dataset(data.open_source(spec), tokenizer, length=8, cache=tmp_path / "cache", **how)
    assert str(caught.value).splitlines()[-1].startswith("  fix: ")
    return caught.value


def pair_problem(tmp_path, spec, tokenizer=None, **how):
    with pytest.raises(data.DataError) as caught:
        tokenizer = tokenizer or data.ByteTokenizer(specials=True)
        data.pair_dataset(data.open_source(spec), tokenizer, length=8, cache=tmp_path / "cache", **how)
    return caught.value


def test_a_file_that_is_not_there(tmp_path):
    assert f"there is no {tmp_path / 'nothing.txt'}" in problem(tmp_path, tmp_path / "nothing.txt").fact
    assert "has no file" in problem(tmp_path, {"path": tmp_path, "glob": "*.txt"}).fact


def test_a_table_with_commas_is_no_text_unless_it_is_said_to_be(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,the cat\n")
    error = problem(tmp_path, tmp_path / "a.csv")
    assert "a.csv is a table" in error.fact and 'orient="records", lines=True' in error.fix
    assert data.open_source({"path": tmp_path / "a.csv", "format": "text"}).format == "text"


def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "a.txt").mkdir()
    source = data.Source(format="text", files=(tmp_path / "a.txt",), names=("a.txt",))
    with pytest.raises(data.DataError, match=f"{tmp_path / 'a.txt'} cannot be read") as caught:
        data.lm_dataset(source, BYTES, length=8, cache=tmp_path / "cache")
    assert "untouched" in caught.value.fix


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstandard.ZstdCompressor().compress)],
)
def test_a_packed_file_that_is_cut_short_or_garbage(tmp_path, ending, pack):
    rng = np.random.default_rng(0)
    content = b"\n".join(rng.integers(97, 123, 40, np.uint8).tobytes() for _ in range(50_000))
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(pack(content)[:-600_000])
    error = problem(tmp_path, path)
    assert f"{path} cannot be read beyond line" in error.fact and "fetch the file again" in error.fix
    path.write_bytes(b"this was never packed" * 10)
    assert f"{path} cannot be read beyond" in problem(tmp_path, path).fact


@pytest.mark.parametrize("documents", ["files", "lines"])
@pytest.mark.parametrize(
    ("garbage", "what"), [(b"\xff\xfe", "bytes that are no UTF-8"), (b"PNG\0", "a zero byte"), (b"\xc3", "no UTF-8")]
)
def test_binary_garbage_in_text(tmp_path, documents, garbage, what):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line\n" * 200_000 + b"then " + garbage + b"\nand more\n" * 10)
    error = problem(tmp_path, {"path": path, "documents": documents})
    assert f"{path}:200001 holds" in error.fact and what in error.fact
    assert 'format = "bytes"' in error.fix


def test_text_that_ends_within_a_character(tmp_path):
    (tmp_path / "a.txt").write_bytes("é".encode()[:1])
    assert "a.txt:1 holds bytes that are no UTF-8" in problem(tmp_path, tmp_path / "a.txt").fact


def test_an_empty_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    assert f"there is nothing in {tmp_path / 'a.txt'}" in problem(tmp_path, tmp_path / "a.txt").fact
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b""))
    error = problem(tmp_path, tmp_path / "b.txt.gz")
    assert "no text in" in error.fact and "0 tokens" in error.state
    (tmp_path / "c.txt").write_bytes(b"\n\n\n")
    assert "no text in" in problem(tmp_path, {"path": tmp_path / "c.txt", "documents": "lines"}).fact


def test_a_line_of_10_mb_is_refused_where_a_line_is_a_document_and_never_held_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"x" * 10_000_000 + b"\nshort\n")
    error = problem(tmp_path, {"path": path, "documents": "lines"})
    assert f"{path}:2 has a line of more than 1,048,576 bytes" in error.fact
    assert "longest_line" in error.fix and "xxxx" in error.state
    spec = {"path": path, "documents": "lines", "longest_line": 20_000_000}
    assert data.lm_dataset(data.open_source(spec), BYTES, length=8, cache=tmp_path / "cache").tokens == 10_000_010


def test_a_line_of_10_mb_in_a_text_is_read_in_pieces(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"word " * 2_000_000)
    pieces = [piece for piece, _ in data.open_source(path).pieces()]
    assert max(map(len, pieces)) <= 2 << 20 and sum(map(len, pieces)) == 10_000_000


def test_a_line_of_10_mb_costs_sentencepiece_little_memory(tmp_path):
    (tmp_path / "small.txt").write_text("word other words\n" * 200)
    tokenizer = data.train_sentencepiece(data.open_source(tmp_path / "small.txt"), vocab=270, cache=tmp_path)
    (tmp_path / "a.txt").write_bytes(b"word other " * 900_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset = data.lm_dataset(data.open_source(tmp_path / "a.txt"), tokenizer, length=64, cache=tmp_path / "cache")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert dataset.tokens > 1_000_000 and grown < 600  # MiB


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ('{"text": "cut', "a.jsonl:3 is not JSON"),
        ('["text"]', "a.jsonl:3 is a list"),
        ('{"texts": "x"}', "a.jsonl:3 has no field `text`"),
        ('{"text": 5}', "a.jsonl:3 has no text in its field `text`"),
    ],
)
def test_a_line_that_is_no_record(tmp_path, line, fact):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n\n' + line + "\n")
    assert fact in problem(tmp_path, tmp_path / "a.jsonl").fact


def test_files_whose_lines_do_not_belong_together(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.fr").write_text("un\ndeux\n")
    error = pair_problem(tmp_path, [tmp_path / "a.en", tmp_path / "a.fr"])
    assert f"{tmp_path / 'a.fr'} ends after line 2, and {tmp_path / 'a.en'} goes on" in error.fact
    assert "line 3" in error.state and "three" in error.state
    assert "no" in pair_problem(tmp_path, {"path": tmp_path / "a", "source": "en", "target": "de"}).fact
    assert "one side" in pair_problem(tmp_path, {"path": tmp_path / "a.en", "format": "pairs"}).fact


def test_a_line_without_its_tab(tmp_path):
    (tmp_path / "a.tsv").write_text("one\tun\ntwo deux\n")
    error = pair_problem(tmp_path, tmp_path / "a.tsv")
    assert "a.tsv:2 has 0 tabs" in error.fact and "two deux" in error.state


def test_pairs_without_an_end_or_with_nothing_in_them(tmp_path):
    (tmp_path / "a.tsv").write_text("\tun\ntwo\t\n")
    assert "has no `end`" in pair_problem(tmp_path, tmp_path / "a.tsv", BYTES).fact
    assert "no pair in" in pair_problem(tmp_path, tmp_path / "a.tsv").fact


def test_a_source_used_as_another_says_which_dataset_it_is_for(tmp_path):
    (tmp_path / "a.tsv").write_text("one\tun\n")
    assert problem(tmp_path, tmp_path / "a.tsv").fix == "use `data.pair_dataset`"
    (tmp_path / "a.txt").write_text("text")
    assert pair_problem(tmp_path, tmp_path / "a.txt").fix == "use `data.lm_dataset`"
    with pytest.raises(data.DataError, match="has no images"):
        data.image_dataset(data.open_source(tmp_path / "a.txt"))


def test_a_missing_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    assert "no tokenizer for" in problem(tmp_path, tmp_path / "a.txt", None).fact


def test_a_vocabulary_that_does_not_hold_the_tokens(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 2, 300]))
    error = problem(tmp_path, tmp_path / "a.npy", BYTES)
    assert "has id 300, and the tokenizer has 256 ids" in error.fact and "vocab = 301" in error.fix
    assert "`vocab` of the data has 100" in problem(tmp_path, {"path": tmp_path / "a.npy", "vocab": 100}).fact
    dataset = data.lm_dataset(data.open_source(tmp_path / "a.npy"), length=8, cache=tmp_path)
    data.check_vocab_of(dataset, 301)
    with pytest.raises(data.DataError, match="301 ids, and the model's vocabulary 256"):
        data.check_vocab_of(dataset, 256)


@pytest.mark.parametrize(
    ("array", "fact"),
    [
        (np.array([1, -2]), "has a token -2"),
        (np.array([[1, 2]]), "int64[1, 2]"),
        (np.array([1.5]), "float64[1]"),
        (np.array([], np.int32), "there is nothing in"),
    ],
)
def test_an_array_that_holds_no_tokens(tmp_path, array, fact):
    np.save(tmp_path / "a.npy", array)
    assert fact in problem(tmp_path, tmp_path / "a.npy").fact


def test_a_file_that_is_no_array(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"no array at all")
    assert "is no array of tokens" in problem(tmp_path, tmp_path / "a.npy").fact
    (tmp_path / "a.bin").write_bytes(b"odd")
    assert "is no array of tokens" in problem(tmp_path, tmp_path / "a.bin").fact


def test_images_that_are_cut_short_or_have_no_labels(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + np.array([2, 4, 4], ">u4").tobytes() + b"x" * 31)
    with pytest.raises(data.DataError, match=r"there is no .*labels-idx1-ubyte"):
        data.open_source(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(b"\0\0\x08\x01" + np.array([3], ">u4").tobytes() + b"abc")
    with pytest.raises(data.DataError, match="cut short: 31 bytes of 32"):
        data.image_dataset(data.open_source(tmp_path))
    path.write_bytes(b"\0\0\x08\x03" + np.array([2, 4, 4], ">u4").tobytes() + b"x" * 32)
    with pytest.raises(data.DataError, match="2 images, and there are 3 labels"):
        data.image_dataset(data.open_source(tmp_path))
    path.write_bytes(b"\x89PNG")
    with pytest.raises(data.DataError, match="is no idx file"):
        data.image_dataset(data.open_source(tmp_path))


@pytest.mark.parametrize(
    ("told", "fact"),
    [
        ({"formt": "text"}, "`formt` says nothing about data"),
        ({"format": "txt"}, "no format 'txt'"),
        ({"held_out": 1.5}, "`held_out` is 1.5"),
        ({"held_out": True}, "`held_out` is True"),
        ({"held_out": 4}, "`held_out = 4` leaves 0 of 4 tokens"),
        ({"documents": "words"}, "`documents` is 'words'"),
        ({"range": [0, 3]}, "`range` is of the bytes of one file"),
        ({"range": [3, 3], "format": "bytes"}, "`range` is [3, 3]"),
        ({"range": [0, 9], "format": "bytes"}, "has 4 bytes, and `range` asks for 0 to 9"),
        ({"fields": "en", "format": "jsonl"}, "`fields` is 'en'"),
    ],
)
def test_a_description_that_cannot_be(tmp_path, told, fact):
    (tmp_path / "a.txt").write_text("text")
    assert fact in problem(tmp_path, {"path": tmp_path / "a.txt"} | told).fact


def test_a_part_that_is_not_there(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    error = problem(tmp_path, tmp_path / "a.txt", part="evaluation")
    assert "nothing of" in error.fact and "held_out = 0.05" in error.fix
    assert "no part 'eval'" in problem(tmp_path, tmp_path / "a.txt", part="eval").fact
    assert "no `path`" in problem(tmp_path, {}).fact


def test_bytes_that_are_no_text_need_the_tokenizer_of_bytes(tmp_path):
    (tmp_path / "small.txt").write_text("word other words\n" * 200)
    tokenizer = data.train_sentencepiece(data.open_source(tmp_path / "small.txt"), vocab=270, cache=tmp_path)
    (tmp_path / "enwik8").write_bytes(b"\xff\xfe")
    assert 'tokenizer = "bytes"' in problem(tmp_path, tmp_path / "enwik8", tokenizer).fix


def test_rows_of_no_length(tmp_path):
    (tmp_path / "a.tsv").write_text("one\tun\n")
    with pytest.raises(data.DataError, match="rows have length 0"):
        data.lm_dataset(data.open_source(tmp_path / "a.tsv"), BYTES, length=0, cache=tmp_path)
    with pytest.raises(data.DataError, match="rows have length 1"):
        data.pair_dataset(data.open_source(tmp_path / "a.tsv"), BYTES, length=(8, 1), cache=tmp_path)
