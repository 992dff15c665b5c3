"""Folders of weights: safetensors files and their index, `config.json`.

Pickles are never read. Whatever is wrong with a folder is found when it is opened; afterwards reading a slice of a
tensor cannot fail. A folder is written beside its place and then moved there, so it is whole or not there.
"""

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import ml_dtypes
import numpy as np

from ..errors import WeftError
from ..libraries import import_library
from ..small_files import MOST_BYTES, Reader, is_file, short

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
DTYPES = {"F32": np.dtype("float32"), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("float16")}
SHARD_BYTES = 5 * 10**9
FolderLike: TypeAlias = str | os.PathLike[str]
_WRITTEN = {dtype: name for name, dtype in DTYPES.items()}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class WeightsError(WeftError):
    """A folder of weights that cannot be read, or a model that cannot be written."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its name, its type and its shape."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Weights:
    """The tensors of a folder, by name: what each is like, and slices of them.

    Those whose names match `unused` may hold what is no float: they are left out.
    """

    def __init__(self, folder: Path, unused: str = ""):
        self.folder, self._unused = folder, unused
        self.stored: dict[str, Stored] = {}
        self._file_of: dict[str, str] = {}
        self._open: dict[str, Any] = {}
        index = _index(folder)
        for file in [WEIGHTS] if index is None else dict.fromkeys(index.values()):
            self._open_file(file)
        if index is not None:
            self._check_index(index)

    def read(self, name: str, ranges: Sequence[slice]) -> np.ndarray:
        """One slice of a tensor; nothing else of it is read."""
        return self._open[self._file_of[name]].get_slice(name)[tuple(ranges)]

    def where(self, name: str) -> str:
        """The file a tensor is in, as errors name it; the folder for one that is in none."""
        return str(self.folder / self._file_of[name]) if name in self._file_of else str(self.folder)

    def _open_file(self, file: str) -> None:
        path, safetensors = self.folder / file, import_library("safetensors", "a file of weights")
        try:
            opened = safetensors.safe_open(path, framework="numpy")
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (it is no mapping)
        except (safetensors.SafetensorError, OSError, ValueError, OverflowError) as error:
            raise _unreadable(path, error) from None
        for name, part in slices.items():
            if part.get_dtype() not in DTYPES and re.fullmatch(self._unused, name):
                self._file_of[name] = file
                continue
            if part.get_dtype() not in DTYPES:
                raise WeightsError(
                    f"tensor `{short(name)}` in {path} holds {part.get_dtype()}",
                    fix=f"convert it to one of {', '.join(map(str, DTYPES.values()))}",
                )
            if name in self.stored:
                raise WeightsError(
                    f"tensor `{short(name)}` is in both {self.where(name)} and {path}",
                    fix="take it out of one of them",
                )
            self.stored[name] = Stored(name, DTYPES[part.get_dtype()], tuple(part.get_shape()))
            self._file_of[name] = file
        self._open[file] = opened

    def _check_index(self, index: Mapping[str, str]) -> None:
        for name, file in index.items():
            if self._file_of.get(name) != file:
                raise WeightsError(
                    f"tensor `{short(name)}` is not in {self.folder / file}, where the index says it is",
                    state=f"index: {self.folder / INDEX}",
                    fix="fetch the file again, or make the index anew",
                )
        if unnamed := next((name for name in self.stored if name not in index), None):
            raise WeightsError(
                f"tensor `{short(unnamed)}` in {self.where(unnamed)} is not in the index {self.folder / INDEX}",
                fix="take the tensor out, or add it to `weight_map`",
            )


def read_json(path: Path) -> dict[str, Any]:
    """What a file of JSON says; it must be an object."""
    if not is_file(path):
        raise WeightsError(
            f"there is no {path}", fix=f"give a folder with `{CONFIG}` and `{WEIGHTS}`, as `transformers` writes it"
        )
    return Reader(WeightsError).json(path)


def _index(folder: Path) -> dict[str, str] | None:
    """Which file each tensor is in, where there are several; None for a single file."""
    if (folder / WEIGHTS).is_file():
        return None
    if not (folder / INDEX).is_file():
        raise _no_weights(folder)
    files = read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise WeightsError(f"{folder / INDEX} has no `weight_map` from tensors to files", fix="fetch the index again")
    for name, file in files.items():
        is_name = Path(file).name == file
        if not is_name or not is_file(folder / file):
            raise WeightsError(
                f"{folder / INDEX} says that tensor `{short(name)}` is in {short(file)!r}, which is no file of the "
                "folder",
                fix=f"fetch {short(file)!r} into {folder}"
                if is_name
                else "fetch the index again: it names files alone",
            )
    return files


def _no_weights(folder: Path) -> WeightsError:
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLES)
    if not pickles:
        return WeightsError(f"there is neither `{WEIGHTS}` nor `{INDEX}` in {folder}", fix="fetch one of them into it")
    return WeightsError(
        f"the weights in {folder} are pickles (`{pickles[0]}`), which are not read: a pickle can run any code",
        fix=f"convert them where you trust them, with `transformers`: `AutoModelForPreTraining.from_pretrained("
        f"'{folder}').save_pretrained(new_folder)`, which writes `{WEIGHTS}`",
    )


def _unreadable(path: Path, error: Exception) -> WeightsError:
    """The error of a file that is not whole; it names the first tensor cut short."""
    with contextlib.suppress(OSError, WeightsError):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            there = path.stat().st_size - 8 - size
            is_held = there >= 0 and size <= MOST_BYTES["JSON"]
            header = Reader(WeightsError).parse_json(file.read(size if is_held else 0), str(path))
        Reader(WeightsError).check(header, {str: dict}, str(path))
        header.pop("__metadata__", None)
        Reader(WeightsError).check(header, {str: {"data_offsets": [int]}}, str(path))
        ends = {name: max(info["data_offsets"], default=0) for name, info in header.items()}
        if cut := sorted((end, name) for name, end in ends.items() if end > there):
            return WeightsError(
                f"{path} is cut short: tensor `{short(cut[0][1])}` ends at byte {cut[0][0]} of the data, which has "
                f"{there}",
                fix="fetch the file again",
            )
    return WeightsError(f"{path} is no safetensors file: {error!s:.200}", fix="fetch the file again")


def check_free(folder: Path) -> None:
    """Raises where something is there already."""
    if folder.is_symlink():
        raise WeightsError(f"{folder} is a link, and a folder that is made takes its place", fix="name a new folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeightsError(f"{folder} is there already, and not empty", fix="name a new folder, or delete this one")


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Sequence[Stored],
    values: Iterable[np.ndarray],
    shard_bytes: int,
    beside: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Writes the folder, tensors' `values` one at a time; `beside` writes the rest."""
    check_free(folder)
    with atomic_folder(folder) as partial:
        _write_json(partial / CONFIG, config)
        beside(partial)
        shards, left = _shards(tensors, shard_bytes), iter(values)
        files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        files = [WEIGHTS] if len(shards) == 1 else files
        for file, shard in zip(files, shards, strict=True):
            _write_shard(partial / file, shard, left)
        if len(shards) > 1:
            names = {tensor.name: file for file, shard in zip(files, shards, strict=True) for tensor in shard}
            total = sum(tensor.bytes for tensor in tensors)
            _write_json(partial / INDEX, {"metadata": {"total_size": total}, "weight_map": names})


def _shards(tensors: Sequence[Stored], most: int) -> list[list[Stored]]:
    """The tensors in their order, cut where a file would grow beyond `most` bytes."""
    shards: list[list[Stored]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(other.bytes for other in shards[-1]) + tensor.bytes > most:
            shards.append([])
        shards[-1].append(tensor)
    return shards


def _write_shard(path: Path, tensors: Sequence[Stored], values: Iterator[np.ndarray]) -> None:
    """Writes one file by tensors: the library writes only what is all in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.bytes
        header[tensor.name] = {
            "dtype": _WRITTEN[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            value = next(values)
            assert (value.shape, value.dtype) == (tensor.shape, tensor.dtype)
            file.write(np.ascontiguousarray(value).view(np.uint8).data)
        _flush(file)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
        _flush(file)


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder that takes the place of `folder` when all is written, or is gone."""
    partial = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
