"""Files that are bombs, lie about their size, or are of another kind: told in bounded memory and time."""

import gzip
import io
import json
import lzma
import resource
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
import zstandard

from weft import data
from weft.data import compression
from weft.data.files import blocks
from weft.data.images import read_idx

BYTES = data.ByteTokenizer()
PACK = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}


def problem(tmp_path, spec, tokenizer=BYTES):
    with pytest.raises(data.DataError) as caught:
        data.lm_dataset(data.open_source(spec), tokenizer, length=8, cache=tmp_path / "cache")
    return caught.value


@pytest.mark.parametrize("ending", PACK)
def test_what_a_small_file_unpacks_to_has_a_limit_that_can_be_raised(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "ALWAYS", 1 << 20)
    path = tmp_path / f"bomb.txt.{ending}"
    path.write_bytes(PACK[ending](b"a" * (5 << 20)))
    monkeypatch.setattr(compression, "EXPANSION", 100)
    error = problem(tmp_path, {"path": path, "expansion": 10})
    assert error.fact == f"{path} unpacks to more than 1,048,576 bytes"
    assert "`expansion = 100_000`" in error.fix
    whole = data.lm_dataset(data.open_source({"path": path, "expansion": 10**6}), BYTES, length=8, cache=tmp_path / "c")
    assert whole.tokens == 5 << 20


UNPACK = """
import resource, sys
from pathlib import Path
from weft.data.files import blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = sum(len(block) for _, block in blocks(Path(sys.argv[1]), expansion=10**9))
used = resource.getrusage(resource.RUSAGE_SELF)
print(read, used.ru_maxrss - before, used.ru_utime + used.ru_stime)
"""


def test_memory_is_bounded_and_time_linear_whatever_zstandard_unpacks_to(tmp_path):
    path, line = tmp_path / "bomb.zst", b"a" * 1023 + b"\n"
    packer = zstandard.ZstdCompressor().compressobj()
    path.write_bytes(b"".join(packer.compress(line * 1024) for _ in range(256)) + packer.flush())
    assert path.stat().st_size < 100_000
    done = subprocess.run([sys.executable, "-c", UNPACK, str(path)], capture_output=True, text=True, check=True)
    read, kilobytes, seconds = done.stdout.split()
    assert int(read) == 256 << 20
    assert int(kilobytes) < 64 << 10  # all at once it would be four times that
    assert float(seconds) < 30  # the time of all of it again for each block would be minutes


@pytest.mark.parametrize("ending", ["xz", "zst"])
def test_parts_one_after_the_other_are_one_file(ending, tmp_path):
    path, pieces = tmp_path / f"a.{ending}", [bytes([65 + i]) * 3000 for i in range(20)]
    path.write_bytes((b"\0" * 4 if ending == "xz" else b"").join(PACK[ending](piece) for piece in pieces))
    assert b"".join(block for _, block in blocks(path)) == b"".join(pieces)


def npy(count, dtype="<u2", items=4):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": (count,)})
    return head.getvalue() + b"\1\0" * items


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("count", [5, 2**33, 2**62])
def test_an_array_that_claims_more_than_it_holds_is_told_before_room_is_made(ending, count, tmp_path):
    path = tmp_path / f"a.npy{ending}"
    path.write_bytes(PACK.get(ending[1:], bytes)(npy(count)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = problem(tmp_path, path)
    assert f"{path} is no array of tokens: it has 8 bytes of data, and not {2 * count:,}" in error.fact
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_an_array_whose_claim_is_true_is_read(ending, tmp_path):
    path = tmp_path / f"a.npy{ending}"
    path.write_bytes(PACK.get(ending[1:], bytes)(npy(4)))
    found = data.lm_dataset(data.open_source(path), length=4, cache=tmp_path / "cache")
    assert found.take(np.array([0]))["targets"].tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    "header", [b"(" * 9000, b"{'descr': 'V9', 'fortran_order': False, 'shape': (2,), }", b"{'shape': 2}", b"\xff"]
)
def test_a_header_that_is_no_header_is_told(header, tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"\1\0\1\0")
    assert str(tmp_path / "a.npy") in problem(tmp_path, tmp_path / "a.npy").fact


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("shape", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (2**13, 2**10, 2**10), (9, 1, 1)])
def test_images_that_claim_more_than_there_are_are_told_before_room_is_made(ending, shape, tmp_path):
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(PACK.get(ending[1:], bytes)(b"\0\0\x08\3" + np.array(shape, ">u4").tobytes() + b"12345678"))
    with pytest.raises(data.DataError, match="is cut short: 8 bytes of"):
        read_idx(path)


def test_half_a_character_in_lines_of_json_is_told_with_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00 whole"}\n{"text": "half \\ud83d"}\n')
    error = problem(tmp_path, path)
    assert error.fact == f"{path}:2 has half a character, '\\ud83d', in its field `text`"


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 100_000, '{"text": ' + "1" * 5000 + "}"])
def test_lines_of_json_that_are_too_deep_or_long_in_digits_are_told_with_file_and_line(line, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' + line + "\n")
    assert f"{tmp_path / 'a.jsonl'}:2 is not JSON" in problem(tmp_path, tmp_path / "a.jsonl").fact


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.tsv", "a.txt.gz"])
@pytest.mark.parametrize(("begin", "kind"), [(b"PAR1", "Parquet"), (b"ARROW1\0\0", "Arrow"), (b"FEA1", "Feather")])
def test_a_table_is_called_what_it_is(name, begin, kind, tmp_path):
    content = begin + bytes(range(256)) * 20
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    spec = {"path": tmp_path / name} | ({"fields": ["a", "b"]} if name == "a.jsonl" else {})
    with pytest.raises(data.DataError, match=f"{name} is a file of {kind}, a table, and text was expected") as caught:
        source = data.open_source(spec)
        next(iter(source.pairs() if source.is_pairs else source.pieces()))
    if name.endswith("gz") or kind == "Feather":
        assert "to_json" in caught.value.fix and "lines=True" in caught.value.fix
    else:
        assert f'`format = "{kind.lower()}"`' in caught.value.fix and "`field`" in caught.value.fix


TINY = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
}


def test_what_a_tokenizer_says_of_cutting_and_filling_up_is_left_to_the_data(tmp_path):
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    fill = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
    told = TINY | {"truncation": cut, "padding": fill | {"pad_token": "a"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    found = data.load_tokenizer(tmp_path)
    assert found.encode("a b a b a") == [0, 1, 0, 1, 0]
    assert found.encode_all(["a b a", "b"])[0].tolist() == [0, 1, 0, 1]


def test_ids_beyond_the_number_of_tokens_are_in_the_vocabulary(tmp_path):
    model = TINY["model"] | {"vocab": {"a": 0, "b": 70_000, "[UNK]": 2}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(TINY | {"model": model}))
    assert data.load_tokenizer(tmp_path).vocab == 70_001


def test_a_panic_of_the_library_is_told(tmp_path, capfd):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    broken = json.dumps(TINY | {"model": model | {"continuing_subword_prefix": "####"}})  # longer than what it begins
    with pytest.raises(BaseException) as panic:
        tokenizers.Tokenizer.from_str(broken)
    assert not isinstance(panic.value, Exception)
    (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(data.DataError, match=r"tokenizer.json is no `tokenizer.json`: range end index"):
        data.load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json", "tokenizer.bytes.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"specials": 3}'])
def test_a_tokenizer_of_another_content_is_told(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(data.DataError, match=name):
        data.load_tokenizer(tmp_path)


def test_a_token_too_long_for_the_library_is_told(tmp_path):
    model = TINY["model"] | {"vocab": {"a": 0, "b" * 5000: 1, "[UNK]": 2}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(TINY | {"model": model}))
    with pytest.raises(data.DataError, match=r"has a token 'bbbbbbbbbbbbbbbbbbbb'\.\.\. of 5,000 letters"):
        data.load_tokenizer(tmp_path)


def test_a_long_map_of_characters_is_no_token(tmp_path):
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "A" * 8000}
    (tmp_path / "tokenizer.json").write_text(json.dumps(TINY | {"normalizer": normalizer}))
    assert data.load_tokenizer(tmp_path).vocab == 3
