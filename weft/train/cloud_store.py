"""Checkpoints on gs:// and s3://, by TensorStore.

Objects cannot be renamed, so what counts is said apart from the arrays: below the place,

    steps/STEP.json                  the checkpoint of a step, and the folder of its arrays
    arrays/FOLDER/PATH/...           an array, as Zarr: a chunk is a processor's slice, or a part of one
    saving/FOLDER                    while these are written or removed: nobody's, if no step names them
    written/FOLDER/PROCESS           that a process has written its slices, or why it could not
    set-aside/STEP.json              a checkpoint that was broken

Each save has a folder of its own, and nothing is written over what is whole.
"""

import concurrent.futures
import contextlib
import functools
import itertools
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..libraries import import_library
from ..small_files import summed
from .stores import OLDER, READER, SHAPE, CheckpointError, check_shapes, first_line

_LARGEST_CHUNK = 256 << 20
_MARK = b"done"  # not empty, which some servers do not take
_AT_ONCE = 16  # arrays read at a time
_RETRIES = {"max_retries": 6, "initial_delay": "500ms", "max_delay": "16s"}  # about half a minute
_PATIENCE, _LOOK_EVERY = 1800.0, 0.5  # seconds that the first process waits for the others
_DENIED = "AccessDenied|Forbidden|PERMISSION_DENIED|UNAUTHENTICATED|InvalidAccessKeyId|SignatureDoesNotMatch|redentials"
_DENIED += "|http_response_code='40[13]'"
_CREDENTIALS = {
    "s3": "give credentials that may: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `aws configure`",
    "gs": "give credentials that may: GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
}


def is_cloud(path: str) -> bool:
    """Whether a text names a place as `s3://bucket/folder` does."""
    return "://" in path


class CloudStore:
    """A folder of a bucket."""

    has_set_aside = "copy such a file to `steps/{step}.json` again"

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._last_steps: list[int] | None = None
        self._folder = ""
        self._writing: list[Any] = []

    def __str__(self) -> str:
        return self.url

    def name(self, step: int) -> str:
        return f"{self.url}/steps/{step}.json"

    def steps(self) -> list[int]:
        try:
            names = self._list("steps/")
        except CheckpointError:
            if self._last_steps is None:
                raise
            return self._last_steps  # as it was when it could be reached last: a run goes on without
        self._last_steps = sorted(int(found[1]) for name in names if (found := re.fullmatch(r"(\d+)\.json", name)))
        return self._last_steps

    def metadata(self, step: int) -> dict[str, Any]:
        key = f"steps/{step}.json"
        content = self._do(f"{key} cannot be read", lambda: self._store.read(key).result())
        if content.state != "value":
            raise CheckpointError(f"there is no {self.url}/{key}", fix=READER.fix)
        return READER.parse_summed(content.value, self.name(step), {**SHAPE, "arrays": str}, older=OLDER)

    # Writing.

    def free(self, needed: int) -> int:
        return needed

    def begin(self, step: int) -> int:
        number = 1 + secrets.randbelow((1 << 31) - 2)
        self._store.write(f"saving/{step}-{number}", _MARK).result()
        return number

    def write(self, step: int, number: int, arrays: dict[str, Any]) -> None:
        self._folder = f"{step}-{number}"
        opened = {path: self._create(f"arrays/{self._folder}/{path}/", x) for path, x in arrays.items()}
        self._writing = []
        for path, x in arrays.items():
            array = opened[path].result()
            for shard in x.addressable_shards:
                if not shard.replica_id:  # a copy: the next step overwrites its memory
                    self._writing.append(array[shard.index].write(np.array(shard.data)).commit)

    def wait_written(self) -> None:
        count, me = jax.process_count(), jax.process_index()
        problem = ""
        try:
            for future in self._writing:
                future.result()
        except Exception as error:
            problem = first_line(error)
            raise
        finally:
            self._writing = []
            if me:
                self._store.write(f"written/{self._folder}/{me}", problem.encode() or _MARK).result()
        if me or count == 1:
            return
        until = time.monotonic() + _PATIENCE
        while len(told := self._list(f"written/{self._folder}/")) < count - 1:
            if time.monotonic() > until:
                raise CheckpointError(f"only processes {', '.join(sorted(told))} wrote their slices", fix="try again")
            time.sleep(_LOOK_EVERY)
        for process in told:
            if (why := self._store.read(f"written/{self._folder}/{process}").result().value) != _MARK:
                raise CheckpointError(f"process {process} could not write its slices: {why.decode()}", fix="try again")

    def commit(self, step: int, metadata: dict[str, Any]) -> None:
        told = summed({**metadata, "files": {}, "arrays": self._folder})
        self._store.write(f"steps/{step}.json", told).result()
        self._forget(self._folder)

    def discard(self, step: int) -> None:
        if self._folder.startswith(f"{step}-"):
            with contextlib.suppress(Exception):  # the next start removes it
                self._remove_arrays(self._folder)

    def remove(self, step: int) -> None:
        folder = self.metadata(step)["arrays"]
        self._store.write(f"saving/{folder}", _MARK).result()
        self._store.write(f"steps/{step}.json", None).result()
        self._remove_arrays(folder)

    def remove_torn(self) -> None:
        counts = {}
        for folder in self._list("saving/"):
            step = int(folder.partition("-")[0])
            if step not in counts:
                counts[step] = self.metadata(step).get("arrays") if step in self.steps() else None
            self._do(
                "what was half written could not be removed",
                functools.partial(self._forget if counts[step] == folder else self._remove_arrays, folder),
            )

    def _remove_arrays(self, folder: str) -> None:
        self._delete(f"arrays/{folder}/")
        self._forget(folder)

    def _forget(self, folder: str) -> None:
        self._delete(f"written/{folder}/")
        self._store.write(f"saving/{folder}", None).result()

    def set_aside(self, step: int) -> str | None:
        for again in itertools.chain([""], (f"-{number}" for number in range(2, 1000))):
            key = f"set-aside/{step}{again}.json"
            with contextlib.suppress(Exception):
                if self._store.read(key).result().state == "value":
                    continue
                self._store.write(key, self._store.read(f"steps/{step}.json").result().value).result()
                self._store.write(f"steps/{step}.json", None).result()
                return f"{self.url}/{key}"
            return None
        return None

    def aside(self) -> list[str]:
        return [f"set-aside/{name}" for name in sorted(self._list("set-aside/"))]

    def close(self) -> None: ...

    # Reading.

    def problem(self, step: int, metadata: Mapping[str, Any]) -> str | None:
        return None  # bits of arrays are summed where they are read

    def read(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        ts, metadata = _tensorstore(), self.metadata(step)
        there = {path: path for path in metadata["dtypes"]}
        check_shapes(self.name(step), {path: x for path, x in like.items() if path not in there}, there)
        stored = {path: ts.open(self._array(f"arrays/{metadata['arrays']}/{path}/"), open=True) for path in like}
        opened = {path: _ZarrArray(future.result()) for path, future in stored.items()}
        check_shapes(self.name(step), like, opened)
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
            slices = threads.map(lambda path: opened[path].slices(like[path].sharding), like)
            return {path: _array_of(like[path], each) for path, each in zip(like, slices, strict=True)}

    # Objects.

    @functools.cached_property
    def _store(self) -> Any:
        return (
            _tensorstore().KvStore.open({**self._place, "path": self._place["path"] + "/"}, context=_context()).result()
        )

    @functools.cached_property
    def _place(self) -> dict[str, Any]:
        scheme, _, rest = self.url.partition("://")
        bucket, _, path = rest.partition("/")
        if scheme == "file":
            return {"driver": "file", "path": rest}
        place = {"driver": "gcs" if scheme == "gs" else "s3", "bucket": bucket, "path": path}
        return place | (_of_aws() if scheme == "s3" else {})

    def _array(self, key: str) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {**self._place, "path": f"{self._place['path']}/{key}"}}

    def _create(self, key: str, x: Any) -> Any:
        """An array to be written: what it is is written by the first process."""
        chunk = _chunk(x.sharding.shard_shape(x.shape), x.dtype.itemsize)
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        about = {"shape": list(x.shape), "data_type": x.dtype.name, "chunk_grid": grid, "codecs": [{"name": "zstd"}]}
        first = jax.process_index() == 0
        how = {"create": True} if first else {"open": True, "assume_metadata": True}
        return _tensorstore().open({**self._array(key), "metadata": about}, context=_context(), **how)

    def _list(self, prefix: str) -> list[str]:
        """The names of objects below a prefix, without it; some servers list others too."""
        span = _tensorstore().KvStore.KeyRange(prefix, _after(prefix))
        keys = self._do("it cannot be listed", lambda: self._store.list(span).result())
        return [name.removeprefix(prefix) for key in keys if (name := key.decode()).startswith(prefix)]

    def _delete(self, prefix: str) -> None:
        for gone in [self._store.write(f"{prefix}{name}", None) for name in self._list(prefix)]:
            gone.result()

    def _do(self, fact: str, act: Any) -> Any:
        try:
            return act()
        except CheckpointError:
            raise
        except Exception as error:  # each driver has errors of its own
            raise self.explain(error, fact) from None

    def explain(self, error: BaseException, fact: str) -> CheckpointError:
        """What a driver says, and what to do."""
        text, scheme = str(error), self.url.partition("://")[0]
        if re.search("NoSuchBucket|bucket does not exist", text, re.IGNORECASE):
            bucket = self.url.split("/")[2]
            return CheckpointError(
                f"{self.url}: there is no bucket `{bucket}`", fix="make it, or name another: `checkpoint.path`"
            )
        why = first_line(error)[:200]
        if re.search(_DENIED, text):
            fix = _CREDENTIALS.get(scheme, "see who may read and write it")
        else:
            fix = "see that it is named rightly and can be reached, then give the same command again"
        return CheckpointError(f"{self.url}: {fact}: {why}", fix=fix)


class _ZarrArray:
    """An array that is stored, with its dtype as NumPy has it."""

    def __init__(self, array: Any):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype.numpy_dtype

    def slices(self, sharding: Any) -> dict[str, np.ndarray]:
        """What this process needs of it: each slice once."""
        wanted = sharding.addressable_devices_indices_map(tuple(self.shape)).values()
        reading = {str(index): self._array[index].read() for index in wanted}
        return {index: future.result() for index, future in reading.items()}


def _array_of(like: Any, slices: Mapping[str, np.ndarray]) -> jax.Array:
    return jax.make_array_from_callback(tuple(like.shape), like.sharding, lambda index: slices[str(index)])


def _chunk(shape: tuple[int, ...], itemsize: int) -> list[int]:
    """A part of a slice that is not too large for an object, and divides it.

    >>> _chunk((1 << 16, 3 << 12), 4)
    [4096, 12288]
    """
    chunk = [max(size, 1) for size in shape]
    for axis in range(len(chunk)):
        while math.prod(chunk) * itemsize > _LARGEST_CHUNK and chunk[axis] > 1:
            chunk[axis] //= next((prime for prime in (2, 3, 5, 7) if chunk[axis] % prime == 0), chunk[axis])
    return chunk


def _after(prefix: str) -> str:
    """The first key after all that begin with this prefix, which ends in a slash."""
    return prefix[:-1] + chr(ord("/") + 1)


def _of_aws() -> dict[str, Any]:
    """What AWS's own variables say of S3, as its other tools read them."""
    said: dict[str, Any] = {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        said = {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
    elif region:
        said = {"aws_region": region}
    if os.environ.get("AWS_ACCESS_KEY_ID"):  # the whole chain would complain of files that are not there
        said["aws_credentials"] = {"type": "environment"}
    return said


@functools.cache
def _context() -> Any:
    return _tensorstore().Context({"s3_request_retries": _RETRIES, "gcs_request_retries": _RETRIES})


def _tensorstore() -> Any:
    return import_library("tensorstore", "a checkpoint on gs:// or s3://", CheckpointError)
