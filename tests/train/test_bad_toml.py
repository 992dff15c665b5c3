"""Whatever a run's file or `--set` says, what comes out is a configuration or an error that names it."""

import pytest

from weft.small_files import short
from weft.train.config import ConfigError, model_in, read
from weft.train.keys import changes_of
from weft.train.runs import Run, RunError

PLAIN = 'model = "tiny-lm"\n[train]\nsteps = 3\n'
BAD = {
    "nested": "a = " + "[" * 3000,
    "dotted": "a." * 3000 + "a = 1",
    "401 digits": "seed = " + "9" * 401,
    "4301 digits": "seed = " + "9" * 4301,
    "hexadecimal": "seed = 0x" + "f" * 4000,
    "an empty key": '[model]\npreset = "tiny-lm"\n"" = 3',
    "an empty key of data": '[data]\n"" = 3',
    "a model that is a list": "model = []",
    "a date": "seed = 1979-05-27",
    "not finite": "[schedule]\nrate = inf",
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_is_refused(case, tmp_path):
    (tmp_path / "config.toml").write_text(BAD[case])
    for asked in (lambda: read(tmp_path / "config.toml"), lambda: Run(tmp_path).settings):
        with pytest.raises((ConfigError, RunError)) as caught:
            asked()
        assert "config.toml" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"model = 3", b"", b"[model]\n" + b"a." * 3000 + b"a = 1"])
def test_a_model_in_a_folder_that_cannot_be_is_refused(content, tmp_path):
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        model_in(tmp_path)


@pytest.mark.parametrize(
    "change",
    ["seed=" + "9" * 401, "seed=" + "9" * 4301, "seed=" + "[" * 3000, "a." * 3000 + "a=1", "name=\udcff", "\udcff=1",
     "seed=1\nname = 3", "=3", "seed", "train.steps.x=1", "=", "model.=3", ".=3",
     "na\udce9me", "name=a\udce9", 'name="a\udce9"', "train.\udce9=1", "train.steps.\udce9=1",
     'data.path=["\udce9"]'],
)  # fmt: skip
def test_a_change_that_cannot_be_is_refused_and_can_be_shown(change, tmp_path):
    (tmp_path / "run.toml").write_text(PLAIN)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "run.toml", [change])
    str(caught.value).encode()


@pytest.mark.parametrize("change", ["name=a\udce9", 'name="a\udce9"', "name\udce9=a"])
def test_half_a_character_in_a_change_is_named_as_such(change, tmp_path):
    (tmp_path / "run.toml").write_text(PLAIN)
    with pytest.raises(ConfigError, match="half a character") as caught:
        read(tmp_path / "run.toml", [change])
    assert "in UTF-8" in caught.value.fix


def test_a_folder_in_place_of_a_file_is_named_and_the_file_in_it_is_the_fix(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    assert caught.value.fact == f"{tmp_path} is a folder" and "there is none in it" in caught.value.fix
    (tmp_path / "run.toml").write_text(PLAIN)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    assert caught.value.fix == f"give its TOML file: `{short(tmp_path / 'run.toml')}`"


@pytest.mark.parametrize(
    "before", [{"train": 3}, {"train": []}, {"train": {"steps": {"a": 1}}}, {"train": {"steps": []}}]
)
def test_a_configuration_of_another_shape_differs_from_one_that_is_read(before):
    changed, free = changes_of(before, {"train": {"steps": 8}})
    assert changed and "train" in changed[0] and not free
    assert changes_of({"train": {"steps": 8}}, before)[0]
