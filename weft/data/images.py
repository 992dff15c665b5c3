"""Image classification: images and labels from idx files (MNIST and its kin)."""

import math
from pathlib import Path

import numpy as np

from .compression import EXPANSION
from .datasets import choose_part, split_place
from .errors import DataError
from .files import open_file, read_all
from .sources import Source

_MOST_DIMS = 8
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Images:
    """A dataset of images (float32, bytes as 0 to 1), int32 `labels` and `weights`."""

    vocab = None
    bucket_of = None

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    @property
    def classes(self) -> int:
        """How many classes the labels tell apart."""
        return int(self._labels.max()) + 1

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        is_there = numbers >= 0
        images = self._images[np.maximum(numbers, 0)].astype(np.float32)
        if self._images.dtype == np.uint8:
            images /= 255
        images[~is_there] = 0
        labels = np.where(is_there, self._labels[np.maximum(numbers, 0)], 0).astype(np.int32)
        return {"images": images, "labels": labels, "weights": is_there.astype(np.float32)}


def image_dataset(source: Source, *, part: str = "train") -> Images:
    """The images of a source with their labels."""
    if source.format != "images":
        raise DataError(f"a source of {source.format} has no images", fix='say `format = "images"`')
    chosen, side = choose_part(source, part)
    arrays = [read_idx(file, chosen.expansion) for file in chosen.files]
    both = list(zip(arrays[::2], arrays[1::2], strict=True))
    for (images, labels), file in zip(both, chosen.files[::2], strict=True):
        if len(images) != len(labels) or labels.ndim != 1 or images.ndim < 2:
            raise DataError(
                f"{file} has {len(images)} images, and there are {len(labels)} labels", fix="fetch both files again"
            )
    images, labels = (np.concatenate(side) if len(side) > 1 else side[0] for side in zip(*both, strict=True))
    if side != "all":
        cut = split_place(chosen, len(images), "images")
        kept = slice(0, cut) if side == "head" else slice(cut, None)
        images, labels = images[kept], labels[kept]
    return Images(images, labels)


def read_idx(path: Path, expansion: int = EXPANSION) -> np.ndarray:
    """The array in an idx file; no room is made for more than the file holds."""
    with open_file(path, expansion) as (stream, _):
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or not 0 < head[3] <= _MOST_DIMS:
            raise DataError(f"{path} is no idx file", state=f"it begins {head!r}", fix="fetch it again")
        sizes = stream.read(4 * head[3])
        shape = tuple(np.frombuffer(sizes, ">u4").tolist()) if len(sizes) == 4 * head[3] else (0,)
        dtype = np.dtype(_TYPES[head[2]])
        expected = math.prod(shape) * dtype.itemsize
        content = read_all(stream, expected)
        if len(content) != expected or not expected:
            raise DataError(f"{path} is cut short: {len(content):,} bytes of {expected:,}", fix="fetch it again")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
