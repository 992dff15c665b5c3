"""Checkpoints in a bucket: file:// goes the same way; s3:// and gs:// where servers are installed."""

import json
import os
import shutil
import sys
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from weft.train import Run
from weft.train.checkpoints import CheckpointError, Checkpoints, OtherModelError
from weft.train.cloud_store import CloudStore
from weft.train.config import ConfigError

from .running import config_of, run, sums

ARRAYS = {"params.a": jnp.arange(48.0).reshape(6, 8), "params.b": jnp.ones(3, "bfloat16"), "step": jnp.uint32(7)}
ARRAYS |= {"optimizer.mu": jnp.arange(-3, 3, dtype="int8"), "optimizer.nu": jnp.zeros((2, 0))}
TOLD = {"config": {"seed": 3}, "loss": 2.5}


@pytest.fixture(scope="module")
def s3():
    """The address of a bucket on a server of S3's protocol in this process."""
    server = pytest.importorskip("moto.server", reason="needs a server of S3: pip install 'moto[server]'")
    said = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    said["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in said.items():
            environment.setenv(name, value)
        urllib.request.urlopen(urllib.request.Request(f"{said['AWS_ENDPOINT_URL']}/bucket", method="PUT")).close()
        yield "s3://bucket"
    running.stop()


@pytest.fixture(scope="module")
def gs():
    """The address of a bucket on a server of Google's protocol in this process."""
    why = "needs a server of Google Cloud Storage: pip install gcp-storage-emulator"
    server = pytest.importorskip("gcp_storage_emulator.server", reason=why)
    running = server.create_server("localhost", 0, in_memory=True, default_bucket="bucket")
    running.start()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "testing")
        environment.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://localhost:{running._api._httpd.server_address[1]}")
        yield "gs://bucket"
    running.stop()


@pytest.fixture(params=["s3", "gs"])
def bucket(request):
    """The address of a bucket on a server of either protocol."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "bucket"


def opened(place, **options):
    return Checkpoints(place if "://" in str(place) else f"file://{place}", **options)


def save(place, *steps, **options):
    found = opened(place, **options)
    for step, loss in steps:
        found.save(step, ARRAYS, {**TOLD, "loss": loss})
    found.close()
    return found


def names(place, kind):
    """What there is of a kind; folders without files are none in a bucket."""
    return sorted({path.relative_to(place / kind).parts[0] for path in (place / kind).rglob("*") if path.is_file()})


def check_goes_there_and_back(place):
    found = save(place, (2, 2.0), (4, 1.0))
    assert found.steps == [2, 4] == opened(place).steps and found.metadata(4)["config"] == {"seed": 3}
    loaded = opened(place).load(4, ARRAYS)
    for path, x in ARRAYS.items():
        assert loaded[path].dtype == x.dtype and np.array_equal(np.asarray(loaded[path]), np.asarray(x))


def test_what_is_saved_comes_back(place):
    check_goes_there_and_back(place)


def test_what_is_saved_on_one_mesh_is_read_onto_another(place):
    mesh = jax.make_mesh((2, 4), ("rows", "cols"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = np.arange(64, dtype="float32").reshape(8, 8)
    layouts = [
        PartitionSpec("rows", "cols"),
        PartitionSpec(None, "rows"),
        PartitionSpec(("rows", "cols")),
        PartitionSpec(),
    ]
    for step, spec in enumerate(layouts):
        found = opened(place, keep=9)
        found.save(step, {"x": jax.device_put(x, NamedSharding(mesh, spec))}, TOLD)
        found.close()
        for other in layouts:
            like = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, other))
            loaded = found.load(step, {"x": like})["x"]
            assert loaded.sharding == like.sharding and np.array_equal(np.asarray(loaded), x)


def test_arrays_that_are_overwritten_after_saving_began_are_saved_as_they_were(place):
    found = opened(place)
    x = jnp.ones((512, 512))
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    found.save(1, {"x": x}, TOLD)
    for _ in range(20):
        x = step(x)
    found.close()
    assert (np.asarray(found.load(1, {"x": x})["x"]) == 1).all()


def test_the_last_and_the_best_are_kept_and_nothing_else_stays(place):
    found = save(place, (1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5), keep=2)
    assert found.steps == [2, 4, 5] and found.best_step() == 2
    assert {name.partition("-")[0] for name in names(place, "arrays")} == {"2", "4", "5"}
    assert names(place, "saving") == []


def test_what_was_being_saved_or_removed_when_a_process_died_is_removed(place):
    save(place, (2, 2.0), (4, 1.0))
    two, four = names(place, "arrays")
    (place / "saving" / two).touch()  # its removal had begun: its step is gone already
    (place / "steps" / "2.json").unlink()
    (place / "saving" / four).touch()  # whole, but its mark stands yet
    torn = place / "arrays" / "6-1" / "params.a" / "zarr.json"
    torn.parent.mkdir(parents=True)
    torn.write_text("{")
    (place / "saving" / "6-1").touch()
    (place / "saving" / "4-99").touch()  # another try of a step that is whole
    found = opened(place)
    assert found.steps == [4]
    found.remove_torn()
    assert names(place, "arrays") == [four] and names(place, "saving") == [] and opened(place).load(4, ARRAYS)


def largest(place, step):
    (folder,) = (path for path in (place / "arrays").glob(f"{step}-*"))
    return next((folder / "params.a" / "c").rglob("0/0"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 255
    path.write_bytes(content)


BROKEN = {
    "half of a chunk": lambda place: os.truncate(largest(place, 4), largest(place, 4).stat().st_size // 2),
    "another bit": lambda place: flip(largest(place, 4)),
    "no chunk": lambda place: largest(place, 4).unlink(),
    "no array": lambda place: shutil.rmtree(largest(place, 4).parents[2]),
    "no arrays": lambda place: shutil.rmtree(largest(place, 4).parents[3]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_an_error_that_names_it_and_another(case, place, capfd):
    save(place, (2, 2.0), (4, 1.0))
    BROKEN[case](place)
    with pytest.raises(CheckpointError, match=f"the checkpoint file://{place}/steps/4.json is broken: ") as caught:
        opened(place).load(4, ARRAYS)
    assert caught.value.fix == "use another step, of 2"
    assert capfd.readouterr() == ("", "")


def test_small_files_that_are_broken_do_not_count(place):
    save(place, (2, 2.0), (4, 1.0))
    path = place / "steps" / "4.json"
    told = json.loads(path.read_bytes())
    path.write_text(json.dumps({**told, "loss": 0.5}))
    assert "sum of its bits is another" in opened(place).problem(4) and opened(place).best_step() == 2


def test_a_checkpoint_of_another_model_is_no_broken_one(place):
    save(place, (2, 2.0))
    for like, told in [({"params.c": ARRAYS["params.a"]}, "has no `params.c`"), ({"params.a": jnp.ones(3)}, "[6, 8]")]:
        with pytest.raises(OtherModelError) as caught:
            opened(place).load(2, like)
        assert told in caught.value.fact


def test_what_is_set_aside_no_longer_counts_and_comes_back(place):
    save(place, (4, 1.0))
    found = opened(place)
    assert found.set_aside(4) == f"file://{place}/set-aside/4.json" and found.steps == []
    with pytest.raises(CheckpointError, match="arrays that were set aside") as caught:
        found.check_none_lost()
    assert "steps/4.json" in caught.value.fix
    (place / "set-aside" / "4.json").rename(place / "steps" / "4.json")
    assert opened(place).load(4, ARRAYS)


def test_a_run_goes_on_from_a_bucket_on_a_machine_without_its_folder(text, straight, tmp_path):
    config = config_of(text, checkpoint={"path": f"file://{tmp_path / 'bucket'}"})
    run(config, tmp_path / "first", crash_at=7)
    assert not (tmp_path / "first" / "checkpoints").exists()
    outcome, _ = run(config, tmp_path / "second")
    assert outcome.is_finished and Run(tmp_path / "second").checkpoints.steps == [4, 6, 8]
    last = Run(tmp_path / "second").checkpoints.metadata(8)
    assert last["sums"] == sums(straight, 8)
    Run(tmp_path / "second").load()


@pytest.mark.slow
def test_a_run_whose_last_checkpoint_in_a_bucket_is_broken_takes_the_one_before_it(text, straight, tmp_path):
    config = config_of(text, checkpoint={"path": f"file://{tmp_path / 'bucket'}"})
    run(config, tmp_path / "run", crash_at=7)
    for chunk in (tmp_path / "bucket" / "arrays").glob("6-*/params.*/c/**/*"):
        if chunk.is_file():
            chunk.write_bytes(b"")
    outcome, heard = run(config, tmp_path / "run")
    assert outcome.is_finished and any("the one before it is taken" in message for message in heard.messages)
    assert Run(tmp_path / "run").checkpoints.metadata(8)["sums"] == sums(straight, 8)


def test_checkpoints_that_lie_elsewhere_than_is_said_stop_a_run(text, tmp_path):
    here, there = config_of(text), config_of(text, checkpoint={"path": f"file://{tmp_path / 'bucket'}"})
    run(here, tmp_path / "run", crash_at=3)
    with pytest.raises(ConfigError, match=r"lie in .*/run/checkpoints, and none in file://") as caught:
        run(there, tmp_path / "run")
    assert "leave out `checkpoint.path`" in caught.value.fix


@pytest.mark.parametrize("path", ["s3://bucket", "s3:/bucket/a", "az://bucket/a", "runs/a", "s3:///a", "file://"])
def test_a_place_that_is_no_folder_of_a_bucket_is_refused(path, text):
    with pytest.raises(ConfigError, match="no folder of a bucket"):
        config_of(text, checkpoint={"path": path})


SAID = {
    "NOT_FOUND: NoSuchBucket: The specified bucket does not exist [http_response_body='<?xml": (
        "there is no bucket `b`", "make it"),
    "PERMISSION_DENIED: AccessDenied: Access Denied [http_response_body='<?xml": (
        "it cannot be listed: PERMISSION_DENIED: AccessDenied: Access Denied", "AWS_ACCESS_KEY_ID"),
    "UNAVAILABLE: CURL error Could not connect to server: Failed to connect [tensorstore_spec='{": (
        "it cannot be listed: UNAVAILABLE: CURL error", "can be reached"),
}  # fmt: skip


@pytest.mark.parametrize("text", SAID)
def test_what_a_service_says_is_told_in_a_line_with_what_to_do(text):
    error = CloudStore("s3://b/c").explain(ValueError(text), "it cannot be listed")
    fact, fix = SAID[text]
    assert error.fact.startswith("s3://b/c: ") and fact in error.fact and fix in error.fix and "[" not in error.fact


def test_a_missing_library_is_said_with_how_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(CheckpointError, match="a checkpoint on gs:// or s3:// needs `tensorstore`") as caught:
        _ = Checkpoints("s3://bucket/a").steps
    assert "pip install tensorstore" in caught.value.fix


# Servers of the protocols.


@pytest.mark.slow
def test_what_is_saved_in_a_bucket_comes_back(bucket):
    check_goes_there_and_back(f"{bucket}/arrays")


@pytest.mark.slow
def test_a_run_goes_on_from_s3_on_a_machine_without_its_folder(s3, text, straight, tmp_path):
    config = config_of(text, checkpoint={"path": f"{s3}/run"})
    run(config, tmp_path / "first", crash_at=7)
    assert run(config, tmp_path / "second")[0].is_finished
    assert Run(tmp_path / "second").checkpoints.metadata(8)["sums"] == sums(straight, 8)


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_an_error_of_its_own(s3):
    with pytest.raises(CheckpointError, match="there is no bucket `nowhere`"):
        _ = Checkpoints("s3://nowhere/run").steps
