"""Chats: written by their template, learned from in their answers alone, packed whole."""

import json
import os

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import tokenizers

from weft import WeftWarning, data
from weft.data import sandbox, templates

TOKENIZER = data.ByteTokenizer(specials=True)
CHATS = [
    [("user", "hi"), ("assistant", "héllo")],
    [("system", "be brief"), ("user", "two?"), ("assistant", "2"), ("user", "three?"), ("assistant", "3 日")],
    [("user", "bye"), ("assistant", "so long"), ("user", "?")],
]
MARKED = """{% for m in messages %}<{{ m.role }}>{% if m.role == "assistant" %}
{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"""
FORGETFUL = """{% for m in messages %}[{{ m.role }}]
{{- m.content if loop.last or m.role == "user" else "..." }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


def messages(chat):
    return [{"role": role, "content": content} for role, content in chat]


def chats_file(folder, chats=CHATS, name="chats.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps({"messages": messages(chat)}) + "\n" for chat in chats))
    return path


def dataset(folder, path, template="chatml", length=200, **how):
    table, how = {"path": path, "format": "chat", "template": template}, dict(how)
    for key in ("answers", "field", "fields", "held_out"):
        if key in how:
            table[key] = how.pop(key)
    source = data.open_source(table)
    opened = template if isinstance(template, data.ChatTemplate) else data.open_template(source.template)
    return data.chat_dataset(source, TOKENIZER, opened, length=length, cache=folder / "cache", **how)


def learned(made):
    """What each conversation is learned in, a text for each run of tokens that count."""
    rows = made.take(np.arange(len(made)))
    found = []
    for targets, weights, segments in zip(rows["targets"], rows["weights"], rows["segments"], strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], weights, [0]]))).reshape(-1, 2)
        found += [(int(segments[begin]), TOKENIZER.decode(targets[begin:end])) for begin, end in edges]
    return found


def test_only_answers_are_learned(tmp_path):
    rows = dataset(tmp_path, chats_file(tmp_path), pack=False)
    assert [text for _, text in learned(rows)] == [
        "héllo<|im_end|>\n", "2<|im_end|>\n", "3 日<|im_end|>\n", "so long<|im_end|>\n"
    ]  # fmt: skip
    last = dataset(tmp_path, chats_file(tmp_path), pack=False, answers="last")
    assert [text for _, text in learned(last)] == ["héllo<|im_end|>\n", "3 日<|im_end|>\n", "so long<|im_end|>\n"]


def test_a_template_may_say_itself_what_an_answer_is(tmp_path):
    template = data.ChatTemplate(MARKED, {}, "mine")
    rows = dataset(tmp_path, chats_file(tmp_path), template, pack=False)
    assert [text for _, text in learned(rows)] == ["héllo</s>", "2</s>", "3 日</s>", "so long</s>"]
    row = rows.take(np.array([0]))
    there = row["segments"][0] > 0
    assert TOKENIZER.decode(row["inputs"][0][there]) == "<user>hi<assistant>héllo</s"


@pytest.mark.parametrize("pack", [True, False])
def test_conversations_stand_whole_in_rows_each_with_the_token_after_as_target(pack, tmp_path):
    path = chats_file(tmp_path, CHATS * 5)
    made = dataset(tmp_path, path, pack=pack)
    rows = made.take(np.arange(len(made)))
    with data.open_template("chatml").running() as running:
        texts = sorted(running.render(messages(chat)) for chat in CHATS * 5)
    found = []
    for i in range(len(made)):
        for segment in range(1, rows["segments"][i].max() + 1):
            here = rows["segments"][i] == segment
            inputs, targets = rows["inputs"][i][here], rows["targets"][i][here]
            assert np.array_equal(inputs[1:], targets[:-1])
            assert np.array_equal(rows["positions"][i][here], np.arange(len(inputs)))
            found.append(TOKENIZER.decode([*inputs, targets[-1]]))
    assert sorted(found) == texts and (len(made) < 15) == pack
    assert not any(rows[name][rows["segments"] == 0].any() for name in rows)


def test_ctrl_c_does_not_reach_the_process_of_a_template():
    with data.open_template("chatml").running() as running:
        assert os.getsid(running._process.pid) == running._process.pid != os.getsid(0)


def test_padding_rows_of_an_evaluation_count_nothing(tmp_path):
    batches = list(data.Batches(dataset(tmp_path, chats_file(tmp_path), pack=False), batch=2).evaluation())
    assert [batch["weights"].any(axis=1).tolist() for batch in batches] == [[True, True], [True, False]]


def test_chats_that_are_too_long_are_cut_and_told(tmp_path):
    chats = [*CHATS[:2], [("user", "x" * 90), ("assistant", "late")], [("user", "x"), ("assistant", "y" * 90)]]
    with pytest.warns(WeftWarning, match=r"3 of 4 chats are longer than 92 tokens and are cut; 1 whose answers come"):
        made = dataset(tmp_path, chats_file(tmp_path, chats), length=92, pack=False)
    assert [text for _, text in learned(made)] == ["héllo<|im_end|>\n", "2", "y" * 42]
    with pytest.raises(data.DataError, match=r"none of the chats .* answer within its first 8 tokens") as caught:
        dataset(tmp_path, chats_file(tmp_path, chats), length=8)
    assert "train.length" in caught.value.fix


def test_a_share_of_the_chats_is_held_out(tmp_path):
    path = chats_file(tmp_path, CHATS * 10)
    parts = [dataset(tmp_path, path, held_out=0.2, part=part).conversations for part in ("train", "evaluation", "all")]
    assert parts == [24, 6, 30]


def test_fields_of_questions_and_answers_are_chats(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"ask": "hi", "say": "ho"}\n')
    assert learned(dataset(tmp_path, tmp_path / "a.jsonl", fields=["ask", "say"])) == [(1, "ho<|im_end|>\n")]


def test_chats_in_a_table_and_with_other_names_are_the_same(tmp_path):
    expected = learned(dataset(tmp_path, chats_file(tmp_path)))
    table = arrow.table({"messages": [messages(chat) for chat in CHATS]})
    parquet.write_table(table, tmp_path / "a.parquet")
    columns = [{"role": [r for r, _ in chat], "content": [c for _, c in chat]} for chat in CHATS]
    parquet.write_table(arrow.table({"messages": columns}), tmp_path / "b.parquet")
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    lines = [{"conversations": [{"from": names[r], "value": c} for r, c in chat]} for chat in CHATS]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, field in (("a.parquet", "messages"), ("b.parquet", "messages"), ("c.jsonl", "conversations")):
        assert learned(dataset(tmp_path, tmp_path / name, field=field)) == expected


def test_tokens_that_touch_an_answer_are_learned(tmp_path):
    """As in transformers: of a token that holds letters before an answer too, all counts."""
    model = tokenizers.models.WordLevel({"ab": 0, "c": 1, "d": 2, "[UNK]": 3}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = data.tokenizers.JsonTokenizer(made.to_str())
    ids, places = tokenizer.encode_places(["ab c d"])[0]
    assert (list(ids), places.tolist()) == ([0, 1, 2], [[0, 2], [3, 4], [5, 6]])


# What is wrong with chats.


def problem(tmp_path, line, template="chatml", **how):
    path = tmp_path / "bad.jsonl"
    good = json.dumps({"messages": messages(CHATS[0]), "ask": "a", "say": "b"})
    path.write_text(good + "\n" + (line if isinstance(line, str) else json.dumps(line)) + "\n")
    with pytest.raises(data.DataError) as caught:
        dataset(tmp_path, path, template, **how)
    assert str(caught.value).splitlines()[-1].startswith("  fix: ")
    assert not list((tmp_path / "cache").glob("chats-*"))
    return caught.value


BAD = {
    "no answer": ({"messages": messages([("user", "x")])}, "bad.jsonl:2 is a chat without an answer", "assistant"),
    "an empty one": ({"messages": messages([("user", "x"), ("assistant", "")])}, "without an answer", "assistant"),
    "no messages": ({"text": "x"}, "bad.jsonl:2 has no field `messages`", "messages"),
    "another name": ({"message": []}, "no field `messages`", "did you mean `message`?"),
    "none in it": ({"messages": []}, "no list of messages in its field `messages`", "role"),
    "a text": ({"messages": "hi"}, "no list of messages", "role"),
    "a message": ({"messages": ["hi"]}, "message 1 of the chat in", "role"),
    "a role": ({"messages": messages([("asistant", "x")])}, "has the role 'asistant'", "did you mean `assistant`?"),
    "no role": ({"messages": [{"content": "x"}]}, "has the role None", "use one of: `assistant`"),
    "no content": ({"messages": [{"role": "user"}]}, "message 1 of the chat in", "give a text"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "has the content", "images"),
    "half": ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "half a character", "mend"),
    "no JSON": ('{"messages": [', "bad.jsonl:2 is not JSON", "mend the line"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_chat_is_told_with_file_and_line(name, tmp_path):
    line, fact, fix = BAD[name]
    error = problem(tmp_path, line)
    assert fact in error.fact and f"{tmp_path / 'bad.jsonl'}:2" in error.fact and fix in error.fix


def test_a_field_without_a_text_is_told(tmp_path):
    error = problem(tmp_path, {"ask": "x"}, fields=["ask", "say"])
    assert error.fact == f"{tmp_path / 'bad.jsonl'}:2 has no text in a field `say`"


def test_a_template_that_writes_answers_otherwise_later_is_told(tmp_path):
    template = data.ChatTemplate(FORGETFUL, {}, "forgetful")
    chat = {"messages": messages(CHATS[1])}
    error = problem(tmp_path, chat, template)
    assert "where message 3 of the chat in" in error.fact and 'answers = "last"' in error.fix
    path = chats_file(tmp_path, [CHATS[1]])
    assert learned(dataset(tmp_path, path, template, answers="last")) == [(1, "3 日")]


HOSTILE = {
    "attributes": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a module": ("{{ cycler.__init__.__globals__.os.system('touch pwned') }}", "unsafe"),
    "a namespace": ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "no '__class__'"),
    "a list": ("{{ messages.append(1) }}", "unsafe"),
    "memory": ("{{ 'a' * 10 ** 11 }}", "MemoryError"),
    "a long text": ("{{ 'a' * 20000000 }}", "it writes 20,000,000 letters"),
    "no such name": ("{{ messages.foo.bar }}", "no attribute 'foo'"),
    "include": ("{% include '/etc/passwd' %}", "no loader"),
    "time": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 1 seconds"),
}


@pytest.mark.quick("a module", "memory", "a long text")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_does_no_harm_and_is_told(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    monkeypatch.chdir(tmp_path)
    text, why = HOSTILE[name]
    error = problem(tmp_path, "", data.ChatTemplate(text, {}, "theirs"))
    assert f"the chat template in theirs fails for the chat in {tmp_path / 'bad.jsonl'}:1: " in error.fact
    assert why in error.fact
    assert not (tmp_path / "pwned").exists()


def test_a_template_that_is_none_or_refuses_is_told(tmp_path):
    error = problem(tmp_path, "", data.ChatTemplate("{% for x in messages %}", {}, "theirs"))
    assert error.fact.startswith("the chat template in theirs is no Jinja: ") and "in its line 1" in error.fact
    refusing = "{% if messages[0].role != 'system' %}{{ raise_exception('say who you are') }}{% endif %}"
    error = problem(tmp_path, "", data.ChatTemplate(refusing, {}, "theirs"))
    assert "theirs refuses the chat in" in error.fact and error.fact.endswith("bad.jsonl:1: say who you are")


def test_a_template_is_found_beside_a_tokenizer(tmp_path):
    with pytest.raises(data.DataError, match="no template says how they are written") as caught:
        data.open_template(None)
    assert '`template = "chatml"`' in caught.value.fix
    with pytest.raises(data.DataError, match="there is no chat template in"):
        data.open_template(None, tmp_path)
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ bos_token }}", **tokens}))
    (tmp_path / "tokenizer.json").write_text("{}")
    for where in (tmp_path, tmp_path / "tokenizer.json"):
        found = data.open_template(None, where)
        assert (found.text, found.tokens) == ("{{ bos_token }}", {"bos_token": "<s>", "eos_token": "</s>"})
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert data.open_template(str(tmp_path)).text == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert (
        data.open_template(None, tmp_path).text == data.open_template(str(tmp_path / "chat_template.jinja")).text == "J"
    )
    templates.ChatTemplate("X", {"eos_token": "e"}, "x").save(tmp_path / ".." / tmp_path.name)
    assert data.open_template(str(tmp_path)).text == "J"


def test_without_jinja_its_install_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert problem(tmp_path, "").fix == "run `pip install jinja2`"
