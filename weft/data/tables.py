"""Tables: rows of Parquet and Arrow files, and saved Hugging Face `datasets`.

Imports errors and small_files alone; pyarrow is loaded where a table is read. At no time are more rows in memory than a
batch of them, and only the columns that are asked for are read.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import closest
from ..small_files import Reader
from .compression import ALWAYS, EXPANSION, refuse_expansion
from .errors import DataError, import_library
from .files import Watch
from .remote import RemotePath, open_bytes

SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
FORMATS = ("parquet", "arrow")
_STATE, _SPLITS = "state.json", "dataset_dict.json"
_ROWS = 256  # in memory at a time
_FETCH = "fetch the file again, or write it anew"


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder is what `datasets` made by `save_to_disk`."""
    return (folder / _STATE).is_file() or (folder / _SPLITS).is_file()


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of a saved dataset in order; where it has splits, of `train`."""
    reader = Reader(DataError, "save it again: `dataset.save_to_disk(folder)`")
    if not (folder / _STATE).is_file():
        splits = reader.json(folder / _SPLITS, {"splits": [str]})["splits"]
        if "train" not in splits:
            known = ", ".join(f"`{split}`" for split in splits) or "none"
            named = splits[0] if splits else "train"
            raise DataError(
                f"{folder} is a saved dataset with no split `train`",
                state=f"its splits: {known}",
                fix=f'name one: `path = "{folder / named}"`',
            )
        folder = folder / "train"
    listed = reader.json(folder / _STATE, {"_data_files": [{"filename": str}], "_indices_data_files": (list, None)})
    if listed.get("_indices_data_files"):
        raise DataError(
            f"{folder} is a saved dataset whose rows stand in another order than its files",
            fix="save it again as it is: `dataset.flatten_indices().save_to_disk(folder)`",
        )
    files = []
    for name in (entry["filename"] for entry in listed["_data_files"]):
        if Path(name).name != name:
            raise DataError(f"{folder / _STATE} names the file {name!r}, which is not beside it", fix=_FETCH)
        if not (folder / name).is_file():
            raise DataError(f"there is no {folder / name}, and {_STATE} names it", fix="copy the whole folder")
        files.append(folder / name)
    return files


def table_rows(
    path: Path, needed: Sequence[str], optional: Sequence[str] = (), watch: Watch | None = None, limit: int = EXPANSION
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table with their numbers, from 1, and these columns of each."""
    import_library("pyarrow.parquet", f"{path}, a table,")
    most, taken, number = max(ALWAYS, limit * path.stat().st_size), 0, 0
    with contextlib.ExitStack() as held:
        with _reading(path, lambda: "its beginning"):
            names, rows, batches = _open(path, held)
        if missing := next((name for name in needed if name not in names), None):
            raise DataError(
                f"{path} has no column `{missing}`",
                state=f"its columns: {', '.join(f'`{name}`' for name in names[:8])}",
                fix=f"say `field`, or `fields`; {closest(missing, names)}",
            )
        columns = [name for name in (*needed, *optional) if name in names]
        stream = batches(columns)
        while True:
            with _reading(path, lambda at=number: f"row {at}"):
                batch = next(stream, None)
                if batch is None:
                    break
                taken += batch.nbytes
                content = batch.to_pylist() if taken <= most else []
            if taken > most:
                raise refuse_expansion(path, most)
            for record in content:
                number += 1
                taken += sum(len(value) for value in record.values() if isinstance(value, str))
                yield number, record
            if watch is not None and rows:
                watch.at(path.stat().st_size * number // rows)
    if watch is not None:
        watch.finish(path)


def _open(path: Path, held: contextlib.ExitStack) -> tuple[list[str], int, Any]:
    """The columns of a table, how many rows it has if that is known, and its batches."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    is_here = not isinstance(path, RemotePath)
    file = held.enter_context(arrow.memory_map(str(path)) if is_here else arrow.PythonFile(open_bytes(path), "r"))
    begin = bytes(file.read(8))
    file.seek(0)
    if begin.startswith(b"PAR1") or path.suffix == ".parquet":
        table = parquet.ParquetFile(file)
        return table.schema_arrow.names, table.metadata.num_rows, lambda names: table.iter_batches(_ROWS, columns=names)
    if begin.startswith(b"ARROW1"):
        read = arrow.ipc.open_file(file)
        stream = (read.get_batch(i) for i in range(read.num_record_batches))
    else:
        read = arrow.ipc.open_stream(file)
        stream = iter(read)
    return read.schema.names, 0, lambda names: _cut(stream, names)


def _cut(batches: Iterator[Any], names: Sequence[str]) -> Iterator[Any]:
    """Batches of a few rows each, with these columns; they lie where the file does."""
    for batch in batches:
        batch = batch.select(list(names))
        for first in range(0, batch.num_rows, _ROWS):
            yield batch.slice(first, _ROWS)


@contextlib.contextmanager
def _reading(path: Path, where: Any) -> Iterator[None]:
    """Turns what pyarrow raises into an error that names the file and the place."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"{path} cannot be read beyond {where()}: {why}", fix=_FETCH) from None
