"""What lies in a folder of checkpoints: a bit that is another is noticed, and no arrays go for a missing file."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from weft.errors import WeftWarning
from weft.train.checkpoints import CheckpointError, Checkpoints, sums_of_bits

from .running import config_of, run

ARRAYS = {"params.a": jnp.arange(6.0).reshape(2, 3), "params.b": jnp.ones(3, "bfloat16")}
ARRAYS |= {"optimizer.mu": jnp.arange(-3, 3, dtype="int8"), "optimizer.nu": jnp.arange(250, 256).astype("uint8")}
TOLD = {"config": {"seed": 3, "train": {"steps": 8}}, "loss": 2.5}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of the checkpoints 2 and 4."""
    found = Checkpoints(tmp_path_factory.mktemp("saved"))
    for step in (2, 4):
        found.save(step, ARRAYS, TOLD)
    found.close()
    return found.store.folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def arrays_in(folder):
    return {path.parent.name for path in folder.glob("*/arrays")}


def test_any_flipped_bit_of_what_was_told_is_noticed(folder):
    path = folder / "4" / "checkpoint.json"
    whole = path.read_bytes()
    found = Checkpoints(folder)
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(whole), 400, replace=False).tolist():
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        is_same = json.loads(whole) == (_parsed(changed) or 0)
        problem = found.problem(4)
        assert (problem is None) == is_same, (bit, problem)
        assert is_same or str(path) in problem
        assert found.best_step() == 2 and found.steps == [2, 4]


def changes_of(content, flips):
    """A file's content, broken in ways that keep its size; a byte of it flipped in so many places."""
    yield "zeros", bytes(len(content))
    yield "noise", np.random.default_rng(len(content)).bytes(len(content))
    for at in np.linspace(0, len(content) - 1, flips, dtype=int).tolist():
        yield f"flipped at {at}", content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


@pytest.mark.parametrize("flips", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_a_broken_file_is_told_by_our_error_alone(folder, capfd, flips):
    files = [path for path in sorted((folder / "4" / "arrays").rglob("*")) if path.is_file() and path.stat().st_size]
    noticed, own = set(), Checkpoints(folder)
    assert own.load(4, ARRAYS) and len(files) > 3
    for path in files:
        whole = path.read_bytes()
        for how, content in changes_of(whole, flips):
            path.write_bytes(content)
            try:
                loaded = Checkpoints(folder).load(4, ARRAYS)
            except CheckpointError as error:
                assert error.fact.startswith(f"the checkpoint {folder / '4'} is broken: "), (path, how, error.fact)
                assert error.fix == "use another step, of 2" and "NoneType" not in error.fact and "\n" not in error.fact
                noticed.add(path)
            else:
                assert all((loaded[name] == ARRAYS[name]).all() for name in ARRAYS), (path, how)
            assert capfd.readouterr() == ("", ""), (path, how)
        path.write_bytes(whole)
    assert len(noticed) > 2


def test_a_sum_of_bits_is_another_where_a_bit_or_a_place_is_another():
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    others = [
        x[::-1],
        x[:, ::-1],
        x.T.reshape(4, 6),
        np.roll(x, 1),
        np.where(x == x[1, 3], -x, x),
        x.reshape(2, 12),
    ]
    sums = [int(value) for value in sums_of_bits({str(i): jnp.asarray(a) for i, a in enumerate([x, *others])}).values()]
    assert len(set(sums)) == len(others) and sums[-1] == sums[0]  # as many numbers in the same order are the same


def _parsed(content):
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_what_was_told_before_there_were_sums_is_read(folder):
    path = folder / "4" / "checkpoint.json"
    told = json.loads(path.read_bytes())
    del told["sum"]
    path.write_text(json.dumps(told))
    assert Checkpoints(folder).problem(4) is None
    path.write_text(json.dumps(told | {"sun": 7}))  # the name of the sum, with a flipped bit
    assert "no sum of its bits" in Checkpoints(folder).problem(4)


@pytest.mark.parametrize(
    "told",
    [b"[]", b"null", b"\xff", b"[" * 100_000, b"1" * 5000, b'{"files": 3}', b'{"files": {"a": "b"}, "sums": {}}',
     b'{"files": {}, "sums": {}, "dtypes": []}', b'{"files": {"\\ud800": 1}, "sums": {}, "dtypes": {}}'],
)  # fmt: skip
def test_metadata_of_another_shape_is_an_error_that_names_the_file(told, folder):
    path = folder / "4" / "checkpoint.json"
    path.write_bytes(told)
    for asked in (
        Checkpoints(folder).metadata,
        Checkpoints(folder).dtypes,
        lambda step: Checkpoints(folder).load(step, {}),
    ):
        with pytest.raises(CheckpointError, match=str(path)) as caught:
            asked(4)
        assert "another step" in caught.value.fix


def test_arrays_without_their_small_file_are_set_aside_and_named(folder):
    (folder / "4" / "checkpoint.json").unlink()
    with pytest.warns(WeftWarning, match=f"{folder / '4'} holds arrays .* now in {folder / 'set-aside-4'}"):
        Checkpoints(folder).remove_torn()
    assert arrays_in(folder) == {"2", "set-aside-4"}
    Checkpoints(folder).check_none_lost()
    shutil.copytree(folder / "set-aside-4", folder / "4")
    with pytest.warns(WeftWarning, match="set-aside-4-2"):
        Checkpoints(folder).remove_torn()
    assert arrays_in(folder) == {"2", "set-aside-4", "set-aside-4-2"}


def test_arrays_set_aside_come_back_with_their_small_file(folder):
    told = (folder / "4" / "checkpoint.json").read_bytes()
    (folder / "4" / "checkpoint.json").unlink()
    with pytest.warns(WeftWarning):
        Checkpoints(folder).remove_torn()
    (folder / "set-aside-4").rename(folder / "4").joinpath("checkpoint.json").write_bytes(told)
    found = Checkpoints(folder).load(4, ARRAYS)
    assert all((found[path] == ARRAYS[path]).all() for path in ARRAYS)


def test_what_was_being_saved_or_removed_when_a_process_died_is_removed(folder):
    (folder / "4" / "checkpoint.json").unlink()
    (folder / "4" / "saving").touch()
    (folder / "2").rename(folder / ".removed-2")
    (folder / "6" / "arrays.orbax-checkpoint-tmp-1").mkdir(parents=True)
    Checkpoints(folder).remove_torn()
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_run_whose_checkpoints_all_lost_their_small_file_does_not_begin_anew(text, tmp_path):
    run(config_of(text), tmp_path, crash_at=7)
    checkpoints = tmp_path / "checkpoints"
    assert not list(checkpoints.glob("*/saving"))
    for path in checkpoints.glob("*/checkpoint.json"):
        path.unlink()
    for _ in range(2):  # also at the second start, when all is set aside already
        with pytest.raises(CheckpointError) as caught:
            run(config_of(text), tmp_path)
        assert arrays_in(checkpoints) == {"set-aside-2", "set-aside-4", "set-aside-6"}
        assert "no checkpoint with its checkpoint.json" in caught.value.fact
        assert "set-aside-6" in caught.value.state and "begin anew" in caught.value.fix


def test_the_best_is_kept_beside_the_last_ones(tmp_path):
    for best, kept in ((True, [2, 4, 5]), (False, [4, 5])):
        found = Checkpoints(tmp_path / str(best), keep=2, best=best)
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
            found.save(step, ARRAYS, {**TOLD, "loss": loss})
        found.close()
        assert found.steps == kept and found.best_step() == (2 if best else 5)
