"""Tokenizers: round trips, special ids, training that is cached by content, files of others."""

import json

import numpy as np
import pytest

from weft import data
from weft.data.tokenizers import SentencePieceTokenizer

TEXT = "The quick  brown fox\n\n\tjumps over naïve 日本 dogs.\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    rng = np.random.default_rng(0)
    words = "the of and to in quick brown fox jumps over lazy dogs while naive foxes sleep in boxes".split()
    path.write_text("\n".join(" ".join(rng.choice(words, 12)) for _ in range(400)))
    return path


def json_tokenizer(path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(path / "tokenizer.json"))
    return data.load_tokenizer(path / "tokenizer.json")


def every_tokenizer(corpus, folder):
    source = data.open_source(corpus)
    return {
        "bytes": data.ByteTokenizer(),
        "bytes with specials": data.ByteTokenizer(specials=True),
        "unigram": data.open_tokenizer({"kind": "sentencepiece", "vocab": 320}, source, folder),
        "bpe": data.open_tokenizer({"kind": "sentencepiece", "vocab": 320, "model": "bpe"}, source, folder),
        "json": json_tokenizer(folder),
    }


def test_every_tokenizer_gives_a_text_back_and_is_the_same_once_saved(corpus, tmp_path):
    for name, tokenizer in every_tokenizer(corpus, tmp_path).items():
        ids = tokenizer.encode(TEXT)
        assert tokenizer.decode(ids) == TEXT, name
        assert max(ids) < tokenizer.vocab
        many, lengths = tokenizer.encode_all([TEXT, "", TEXT])
        assert many.tolist() == ids + ids and lengths.tolist() == [len(ids), 0, len(ids)]
        assert tokenizer.encode(TEXT.encode()) == ids
        tokenizer.save(tmp_path / "saved" / name)
        again = data.load_tokenizer(tmp_path / "saved" / name)
        assert (again.key, again.vocab, again.end, again.pad) == (
            tokenizer.key,
            tokenizer.vocab,
            tokenizer.end,
            tokenizer.pad,
        )
        assert again.encode(TEXT) == ids


def test_ids_of_bytes_are_the_bytes_and_specials_stand_before_them():
    plain, special = data.ByteTokenizer(), data.ByteTokenizer(specials=True)
    assert (plain.vocab, plain.end, plain.pad, plain.encode(b"\x00\xff")) == (256, None, None, [0, 255])
    assert (special.vocab, special.end, special.pad, special.encode(b"\x00\xff")) == (259, 1, 0, [3, 258])
    assert special.decode([*special.encode("é"), 1, 0, 0]) == "é"


def test_a_trained_tokenizer_has_the_special_ids_of_t5_and_is_trained_once(corpus, tmp_path, monkeypatch):
    source = data.open_source(corpus)
    first = data.open_tokenizer({"kind": "sentencepiece", "vocab": 320}, source, tmp_path)
    assert (first.pad, first.end, first.vocab) == (0, 1, 320)
    assert first._processor.unk_id() == 2 and 2 not in first.encode("☃ never seen")
    assert len(first.encode("the quick brown")) < 8
    monkeypatch.setattr("weft.data.tokenizers._train", None)
    assert data.open_tokenizer({"kind": "sentencepiece", "vocab": 320}, source, tmp_path).key == first.key
    with pytest.raises(TypeError):  # another size is another tokenizer
        data.open_tokenizer({"kind": "sentencepiece", "vocab": 321}, source, tmp_path)


def test_training_gives_the_same_model_anywhere(corpus, tmp_path):
    models = [
        data.train_sentencepiece(data.open_source(corpus), vocab=320, cache=tmp_path / str(i)).key for i in range(2)
    ]
    assert models[0] == models[1]


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_tokens_do_not_depend_on_how_a_text_is_cut_into_lines(corpus, tmp_path, model):
    tokenizer = data.train_sentencepiece(data.open_source(corpus), vocab=320, model=model, cache=tmp_path)
    text = corpus.read_text()
    lines = text.splitlines(keepends=True)
    assert tokenizer.encode(text) == [i for line in lines for i in tokenizer.encode(line)]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_model_that_joins_lines_is_given_whole_texts(tmp_path):
    import io

    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three", "two three four"] * 20),
        model_writer=written,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(written.getvalue())
    tokenizer = data.load_tokenizer(tmp_path)
    assert tokenizer.encode("one\ntwo") == tokenizer._processor.encode("one\ntwo")
    assert tokenizer.encode("one\ntwo") != tokenizer.encode("one\n") + tokenizer.encode("two")


def test_both_sides_of_pairs_share_a_vocabulary(tmp_path):
    (tmp_path / "pairs.tsv").write_text("hello hello world\tbonjour bonjour monde\n" * 50)
    tokenizer = data.open_tokenizer(
        {"kind": "sentencepiece", "vocab": 292, "model": "bpe"}, data.open_source(tmp_path / "pairs.tsv"), tmp_path
    )
    assert len(tokenizer.encode("hello")) <= 2 and len(tokenizer.encode("bonjour")) <= 3


def test_bytes_for_pairs_have_an_end_unless_told_otherwise(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    source = data.open_source(tmp_path / "pairs.tsv")
    assert data.open_tokenizer("bytes", source).end == 1
    assert data.open_tokenizer({"kind": "bytes", "specials": False}, source).end is None


def test_a_large_source_is_sampled_evenly(tmp_path):
    from weft.data import tokenizers

    (tmp_path / "corpus.txt").write_text("".join(f"{i:07}\n" for i in range(100_000)))
    kept = [int(line) for line in tokenizers._sample_lines(data.open_source(tmp_path / "corpus.txt"), 50_000, None)]
    assert 2_000 < len(kept) < 8_000
    assert len(set(np.diff(kept))) == 1


# What cannot be a tokenizer.


def test_a_missing_tokenizer_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(data.DataError) as caught:
        data.open_tokenizer(tmp_path / "nowhere")
    assert "no tokenizer at" in caught.value.fact and "tokenizer.model" in caught.value.state
    assert "sentencepiece" in caught.value.fix


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json", "tokenizer.bytes.json"])
def test_a_tokenizer_of_garbage_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x01garbage" * 9)
    with pytest.raises(data.DataError, match=name):
        data.open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("spec", "fact"),
    [
        ({"kind": "wordpiece"}, "no kind of tokenizer 'wordpiece'"),
        ({"kind": "bytes", "vocabulary": 3}, "`vocabulary` says nothing"),
        ({"kind": "json"}, "no `path`"),
        ({"kind": "sentencepiece"}, "nothing to learn from"),
    ],
)
def test_a_tokenizer_that_cannot_be_is_refused(spec, fact):
    with pytest.raises(data.DataError) as caught:
        data.open_tokenizer(spec)
    assert fact in caught.value.fact


def test_a_vocabulary_that_the_text_cannot_fill_says_how_large_it_may_be(corpus, tmp_path):
    source = data.open_source(corpus)
    with pytest.raises(data.DataError) as caught:
        data.train_sentencepiece(source, vocab=9000, cache=tmp_path)
    assert "9000 pieces" in caught.value.fact and "or less" in caught.value.fix
    most = int(caught.value.fix.split("`vocab = ")[1].split("`")[0])
    assert data.train_sentencepiece(source, vocab=most, cache=tmp_path).vocab == most
    with pytest.raises(data.DataError, match="10 pieces"):
        data.train_sentencepiece(source, vocab=10, cache=tmp_path)
    with pytest.raises(data.DataError, match="or more") as caught:
        data.train_sentencepiece(source, vocab=270, cache=tmp_path)
    least = int(caught.value.fix.split("`vocab = ")[1].split("`")[0])
    assert data.train_sentencepiece(source, vocab=least, cache=tmp_path).vocab == least
    with pytest.raises(data.DataError, match="no model 'word'"):
        data.train_sentencepiece(source, vocab=10, model="word", cache=tmp_path)


def test_an_end_that_a_tokenizer_does_not_have_is_refused(tmp_path):
    json_tokenizer(tmp_path)
    assert data.load_tokenizer(tmp_path, end="a").end == data.load_tokenizer(tmp_path).encode("a")[0]
    with pytest.raises(data.DataError, match="no token '<end>'"):
        data.load_tokenizer(tmp_path, end="<end>")
    assert "endoftext" in json.dumps(json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"])


def test_a_library_that_is_not_there_is_named_with_the_line_that_installs_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(data.DataError) as caught:
        SentencePieceTokenizer(b"")
    assert caught.value.fix == "run `pip install sentencepiece`"


def gpt2_files(folder, merges=("h e", "l l", "he ll", "hell o", "Ġ w"), **config):
    """A vocabulary of all bytes and what these merges make, in the two files of GPT-2."""
    from tokenizers import pre_tokenizers

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in merges]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2TokenizerFast"])
def test_a_vocabulary_and_its_merges_are_a_tokenizer(kind, tmp_path):
    added = {"261": {"content": "<|im_end|>", "special": True}}
    gpt2_files(tmp_path, tokenizer_class=kind, added_tokens_decoder=added, eos_token="<|im_end|>")
    tokenizer = data.load_tokenizer(tmp_path)
    assert (tokenizer.vocab, tokenizer.end) == (262, 261)
    for text in ("hello world", "  日本 hé\n\n 1234", "hello<|im_end|>hello"):
        assert tokenizer.decode_with_specials(tokenizer.encode(text)) == text
    assert tokenizer.encode("hello<|im_end|>") == [259, 261]
    tokenizer.save(tmp_path / "saved")
    assert data.load_tokenizer(tmp_path / "saved").encode("hello world") == tokenizer.encode("hello world")


def test_numbers_are_parted_as_the_kind_does(tmp_path):
    gpt2_files(tmp_path, ["1 2"], tokenizer_class="GPT2Tokenizer")
    assert len(data.load_tokenizer(tmp_path).encode("12")) == 1
    gpt2_files(tmp_path, ["1 2"], tokenizer_class="Qwen2Tokenizer")
    assert len(data.load_tokenizer(tmp_path).encode("12")) == 2  # each digit is a word


def test_what_is_wrong_with_a_vocabulary_and_its_merges_is_told(tmp_path):
    def problem(**config):
        with pytest.raises(data.DataError) as caught:
            data.load_tokenizer(gpt2_files(tmp_path, **config))
        return caught.value

    error = problem(tokenizer_class="CLIPTokenizer")
    assert "is of a CLIPTokenizer" in error.fact and "tokenizer.json" in error.fix
    added = {"999": {"content": "<|x|>", "special": True}}
    assert "gives '<|x|>' the id 999" in problem(tokenizer_class="GPT2Tokenizer", added_tokens_decoder=added).fact
    gpt2_files(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\nq z\n")
    with pytest.raises(data.DataError, match=r"merges.txt:3 is no merge of two pieces of vocab.json: 'q z'"):
        data.load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(data.DataError, match=r"has no piece for 254 of the 256 bytes"):
        data.load_tokenizer(tmp_path)
