"""What a run's file says is read; what it cannot say is refused with key, file, line and the nearest that it can."""

from pathlib import Path

import jax
import pytest

from weft.train.config import ConfigError, read
from weft.train.keys import changes_of

ROOT = Path(__file__).parent.parent.parent
WHOLE = """\
name = "first"
data = "python"
tokenizer = "bytes"
mesh = "rows=2,cols=4"
layout = "batch:rows,heads:cols"
seed = 1

[model]
preset = "tiny-lm"
layers = 2

[train]
steps = 20
batch = 8

[schedule]
kind = "cosine"
rate = 3e-3
"""


def config(tmp_path, text=WHOLE, *changes):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return read(path, changes)


def problem(tmp_path, old, new, *changes):
    """What is said where a part of the file is another: fact, place and fix."""
    assert old in WHOLE
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, WHOLE.replace(old, new, 1), *changes)
    return caught.value.fact, caught.value.state.replace(f"{tmp_path}/", ""), caught.value.fix


def test_a_file_says_all_of_a_run(tmp_path):
    found = config(tmp_path)
    assert (found.name, found.seed, found.mesh) == ("first", 1, "rows=2,cols=4")
    assert found.data == {"path": "python"} and found.tokenizer == {"kind": "bytes"}
    assert (found.model.layers, found.train.steps, found.batch) == (2, 20, 8)
    assert found.schedule.rate == 3e-3 and found.optimizer.name == "adamw"


def test_what_is_written_is_read_back_the_same(tmp_path):
    found = config(tmp_path, WHOLE + '[lora]\nrank = 2\n[eval]\nmetrics = ["bleu"]\n')
    assert config(tmp_path, found.to_toml()) == found


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_ready_configs_are_read(path):
    jax.devices()  # before JAX has started, a mesh asks for its processors
    assert read(path).train.steps > 0


def test_changes_stand_above_the_file(tmp_path):
    changes = ["train.steps=7", "seed = 3", "name=x y", "mesh=", "layout=", 'data.path=["a", "b"]', "lora.where=a b"]
    found = config(tmp_path, WHOLE, *changes, "tokenizer.specials=true", "model.layers=3", "schedule.kind=linear")
    assert (found.train.steps, found.seed, found.name, found.mesh) == (7, 3, "x y", "")
    assert found.data == {"path": ["a", "b"]} and found.lora.where == ("a", "b")
    assert found.tokenizer == {"kind": "bytes", "specials": True}
    assert found.model.layers == 3 and found.schedule.kind == "linear"


def test_a_text_stands_for_a_table(tmp_path):
    text = 'model = "tiny-lm"\ndata = "some/folder"\ntokenizer = "some/tokenizer.json"\n'
    found = config(tmp_path, text, "model.layers=3")
    assert found.model.layers == 3 and found.data == {"path": "some/folder"}
    assert found.tokenizer == {"path": "some/tokenizer.json"}


def test_a_batch_is_sequences_or_tokens(tmp_path):
    found = config(tmp_path, WHOLE.replace("batch = 8", "tokens = 1024\nlength = 64"))
    assert (found.batch, found.length) == (16, 64)
    own = config(tmp_path, 'model = {preset = "tiny-lm", batch = 6, length = 32}')
    assert (own.batch, own.length) == (6, 32)


def test_an_unknown_key_of_the_command_line_is_answered_with_the_whole_key(tmp_path):
    (tmp_path / "run.toml").write_text('model = "tiny-lm"\n')
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "run.toml", ["train.step=700"])
    assert caught.value.fix == "did you mean `train.steps`?"
    (tmp_path / "texts.csv").write_text("id,text\n")
    with pytest.raises(ConfigError, match=r"texts\.csv is no run's TOML file") as caught:
        read(tmp_path / "texts.csv")
    assert "weft new mine.toml --data" in caught.value.fix


@pytest.mark.parametrize(
    ("old", "new", "fact", "at", "fix"),
    [
        ("seed = 1", "sed = 1", "`sed` is no key of a run", "at run.toml:6", "did you mean `seed`?"),
        ("[train]", "[trian]", "`trian` is no key", "at run.toml:12", "did you mean `train`?"),
        ("steps = 20", "stepz = 20", "`train.stepz` is no key", "at run.toml:13", "did you mean `steps`?"),
        ("layers = 2", "laers = 2", "no `laers`", "at run.toml:10", "did you mean `layers`?"),
        ('"tiny-lm"', '"tinylm"', "there is no preset 'tinylm'", "at run.toml:9", "did you mean `tiny-lm`?"),
        ('data = "python"', 'data = {pth = "x"}', "`data.pth` is no key", "at run.toml:2", "did you mean `path`?"),
        ('tokenizer = "bytes"', "tokenizer = {knd = 1}", "`tokenizer.knd`", "at run.toml:3", "did you mean `kind`?"),
        ("[train]", "[lora]\nwher = 2\n[train]", "`lora.wher`", "at run.toml:13", "did you mean `where`?"),
    ],
)
def test_an_unknown_key_is_named_with_its_line_and_the_nearest(tmp_path, old, new, fact, at, fix):
    told, place, help_ = problem(tmp_path, old, new)
    assert fact in told and place == at and fix in help_


@pytest.mark.parametrize(
    ("old", "new", "fact", "fix"),
    [
        ("steps = 20", "steps = 2.5", "`train.steps` is 2.5", "a whole number"),
        ("steps = 20", "steps = true", "`train.steps` is True", "a whole number"),
        ("steps = 20", "steps = 0", "`train.steps` is 0", "above 0"),
        ("steps = 20", "steps = 20\nfreeze = 3", "`train.freeze` is 3", 'give a list: train.freeze = ["a", "b"]'),
        ("steps = 20", "steps = 20\naverage = 1.0", "`train.average` is 1.0", "below 1"),
        ("rate = 3e-3", "rate = nan", "`schedule.rate` is nan", "above 0"),
        ("rate = 3e-3", "rate = inf", "`schedule.rate` is inf", "above 0"),
        ("rate = 3e-3", 'rate = "fast"', "`schedule.rate` is 'fast'", "a number"),
        (
            '"tiny-lm"\nlayers = 2',
            '"tiny-unet"',
            "tiny-unet, a model of images, and runs are fed with tokens",
            "train_step",
        ),
        ('"cosine"', '"cosin"', "`schedule.kind` is 'cosin'", "did you mean `cosine`?"),
        ("[train]", "[optimizer]\nb2 = 1.5\n[train]", "`optimizer.b2` is 1.5", "from 0 on and below 1"),
        ("seed = 1", "seed = -1", "`seed` is -1", "from 0 on"),
        ("seed = 1", "seed = 99999999999", "`seed` is 99999999999", "below 4294967296"),
        ('"first"', '""', "`name` is empty", "name the run"),
        ('data = "python"', "data = 3", "`data` is 3", 'data = "..."'),
        ('data = "python"', "data = {}", "`data` has no `path`", 'path = "python"'),
        ('data = "python"', 'data = {path = ["a", 3]}', "`data.path` is ['a', 3]", "a text or a list"),
        ('data = "python"', 'data = {path = "a", format = "txt"}', "`data.format` is 'txt'", "did you mean `text`?"),
        ('data = "python"', 'data = {path = "a", longest_line = 0}', "`data.longest_line` is 0", "above 0"),
        ('data = "python"', 'data = {path = "a", evaluation = {path = 3}}', "`data.path` is 3", "a text"),
        ('tokenizer = "bytes"', "tokenizer = {vocab = 2.5}", "`tokenizer.vocab` is 2.5", "a whole number"),
        ("layers = 2", "layers = 0", "`layers` is 0", "layers=8"),
        ("layers = 2", "dropout = nan", "`dropout` is nan", "below 1"),
        ('preset = "tiny-lm"\n', "", "the run has no model", 'model = "tiny-lm"'),
    ],
)
def test_a_bad_value_is_named_with_its_line_and_what_may_stand_there(tmp_path, old, new, fact, fix):
    told, place, help_ = problem(tmp_path, old, new)
    assert fact in told and place.startswith("at run.toml:") and fix in help_


@pytest.mark.parametrize(
    ("old", "new", "fact", "fix"),
    [
        ("batch = 8", "batch = 8\ntokens = 512", "`train.batch` and `train.tokens` are both given", "give one"),
        ("batch = 8", "tokens = 5\nlength = 64", "less than one sequence of 64", "at least 64"),
        ("batch = 8", "batch = 8\nmicrobatches = 3", "`train.microbatches` is 3", "divides 8"),
        ("batch = 8", "batch = 8\nmicrobatches = 8", "on the mesh a batch is 2 parts of 4", "that divides 4"),
        ("batch = 8", "batch = 7", "`batch` is 7, and axis rows splits it by 2", "(nearest: 6, 8)"),
        ("heads:cols", "d_ff:cols", "`decoder.layers.feed_forward.w_in` does not fit the mesh", "(nearest: 60, 64)"),
        ("cols=4", "colz=4", "axis `cols`, which the mesh does not have", "did you mean `colz`?"),
        ("rows=2", "rows=two", "is not `axis=size`", "rows=4"),
        ("batch:rows", "bach:rows", "rule `bach:rows` matches nothing", "did you mean `batch`?"),
        ('mesh = "rows=2,cols=4"\n', "", "only one of `mesh` and `layout`", "both, or neither"),
        ("batch = 8", 'batch = 8\nfreeze = ["embeding.*"]', "'embeding.*'", "did you mean `embedding.table`?"),
        ("batch = 8", 'batch = 8\nfreeze = ["*"]', "`train.freeze` names all weights", "leave some"),
        ("[train]", '[lora]\nrank = 2\nwhere = ["*.q_"]\n[train]', "`lora.where` names '*.q_'", "attention.q"),
        ("[train]", "[optimizer]\nblock_size = 48\n[train]", "`optimizer.block_size` is 48", "give 32"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_runs(tmp_path, old, new, fact, fix):
    changes = ["model.d_ff=62"] if "d_ff" in new else []
    told, place, help_ = problem(tmp_path, old, new, *changes)
    assert fact in told and ("at --set model.d_ff" if changes else "at run.toml:") in place and fix in help_


def test_a_change_that_is_wrong_is_named_as_one(tmp_path):
    assert problem(tmp_path, "seed", "seed", "train.stepz=3")[1] == "at --set train.stepz"
    assert problem(tmp_path, "seed", "seed", "train.steps=often")[0] == "`train.steps` is 'often'"
    assert "says nothing" in problem(tmp_path, "seed", "seed", "train.steps")[0]
    assert problem(tmp_path, "seed", "seed", "seed.a=3")[:2] == ("`seed` is no table", "at --set seed.a")


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        (["mesh=rows=3,cols=4"], "mesh"),
        (["layout=batch:rows,heads:colz"], "layout"),
        (["train.batch=7"], "train.batch"),
        (["train.batch=6", "train.microbatches=4"], "train.microbatches"),
        (["train.tokens=8"], "train.tokens"),
        (["model=tiny-ml"], "model"),
        (["model.layers=0"], "model.layers"),
        (["model.heads=3"], "model.heads"),
        (["name=../x"], "name"),
        (["train.freeze=nothing"], "train.freeze"),
    ],
)
def test_what_a_change_breaks_is_blamed_on_the_change_and_not_on_a_line_of_the_file(tmp_path, changes, blamed):
    _, place, help_ = problem(tmp_path, "seed", "seed", *changes)
    assert place.endswith(f"at --set {blamed}") and "run.toml" not in place and "drop(" not in help_


def test_what_a_change_leaves_as_it_was_is_blamed_on_its_line(tmp_path):
    assert problem(tmp_path, "steps = 20", "stepz = 20", "train.batch=8")[1] == "at run.toml:13"


def test_the_fix_of_a_layout_is_written_as_the_layout_was(tmp_path):
    bad = "batch:rows,head:cols"
    in_file = problem(tmp_path, "batch:rows,heads:cols", bad)[2]
    assert in_file.endswith('drop the rule: `layout = "batch:rows"`'), in_file
    assert problem(tmp_path, "seed", "seed", f"layout={bad}")[2].endswith("drop the rule: `--set layout=batch:rows`")


def test_a_file_that_is_no_toml_or_is_not_there_is_named(tmp_path):
    told, place, _ = problem(tmp_path, "seed = 1", "seed = one")
    assert "is not TOML" in told and place == "at run.toml:6"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "rum.toml")
    assert "there is no file" in caught.value.fact and "run.toml" in caught.value.fix
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"run.toml:1 is not TOML: .* is no UTF-8"):
        read(tmp_path / "run.toml")


def test_keys_that_change_nothing_learned_are_told_apart(tmp_path):
    old = config(tmp_path).to_dict()
    new = config(tmp_path, WHOLE, "mesh=rows=2,cols=2", "checkpoint.keep=9", "optimizer.clip=0", "train.average=0.9")
    changed, free = changes_of(old, new.to_dict())
    assert changed == ["optimizer.clip: 1.0, now 0.0", "train.average: None, now 0.9"]
    assert free == ["checkpoint.keep: 3, now 9", "mesh: rows=2,cols=4, now rows=2,cols=2"]


def test_a_mixture_is_read_with_the_lines_of_its_parts(tmp_path):
    path = tmp_path / "run.toml"
    parts = '[[data.mixture]]\npath = "a.txt"\nweight = 3\n\n[[data.mixture]]\npath = "b.txt"\n'
    path.write_text(f'model = "tiny-lm"\n\n[data]\nheld_out = 0.1\n\n{parts}')
    config = read(path)
    assert config.data == {"held_out": 0.1, "mixture": [{"path": "a.txt", "weight": 3}, {"path": "b.txt"}]}
    assert config.place("data.mixture") == f"{path}:6"
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert read(tmp_path / "again.toml").data == config.data
    with pytest.raises(ConfigError, match=r"`data.mixture` is \['a.txt'\]"):
        read(path, ['data.mixture=["a.txt"]'])
