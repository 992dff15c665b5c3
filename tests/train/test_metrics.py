"""Rows of metrics are on disk when they are told, go on where a run goes on, and never stop it."""

import contextlib
import errno
import json
import math
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from weft.train import metrics
from weft.train.metrics import Metrics, MetricsError, read
from weft.train.tensorboard import record, scalars_event, start_event, version_event

ROOT = Path(__file__).parent.parent.parent
NAN, INF = float("nan"), float("inf")


def written(folder, rows, **how):
    with Metrics(folder, tensorboard=False, **how) as note:
        for row in rows:
            note(row)
    return folder / "metrics.jsonl"


def strict(line):
    """Reads JSON as the standard has it."""
    return json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@contextlib.contextmanager
def no_file_larger_than(size):
    """A disk that is full: what goes beyond `size` is refused, after the part that fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Rows.


def test_a_row_is_a_line_and_is_there_at_once(tmp_path):
    with Metrics(tmp_path / "run", tensorboard=False) as note:
        for row in ({"step": 1, "loss": 2.5, "mfu": None}, {"step": 1, "eval": {"loss": 2.25}}):
            note(row)
            lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
            assert strict(lines[-1]) == row
    assert read(tmp_path / "run") == [{"step": 1, "loss": 2.5, "mfu": None}, {"step": 1, "eval": {"loss": 2.25}}]


def test_what_is_not_finite_is_null_and_named_and_comes_back(tmp_path):
    rows = [{"step": 1, "loss": NAN, "mfu": None, "eval": {"loss": INF, "low": -INF, "a.b": NAN}, "a.b": INF}]
    path = written(tmp_path, rows)
    told = strict(path.read_text())
    assert told["loss"] is None and told["eval"] == {"loss": None, "low": None, "a.b": None}
    named = {"loss": "nan", "eval.loss": "inf", "eval.low": "-inf", "eval.a.b": "nan", "a.b": "inf"}
    assert told["not_finite"] == named
    [back] = read(tmp_path)
    assert repr(back) == repr(rows[0])


def test_numbers_of_arrays_are_plain_and_anything_else_is_its_text(tmp_path):
    row = {"step": np.int64(3), "loss": np.float32(0.5), "list": (np.float64(1.0), 2), "flag": True, "path": Path("a")}
    path = written(tmp_path, [row])
    assert strict(path.read_text()) == {"step": 3, "loss": 0.5, "list": [1.0, 2], "flag": True, "path": "a"}


def test_other_processes_write_nothing(tmp_path):
    with Metrics(tmp_path / "run", is_writer=False) as note:
        note({"step": 1, "loss": 2.5})
    assert list(tmp_path.iterdir()) == []


# Going on.


def test_a_run_that_goes_on_forgets_rows_after_its_checkpoint(tmp_path):
    rows = [{"step": step, "loss": 1.0 / step} for step in range(1, 31)]
    path = written(tmp_path, rows)
    begun = path.read_text().splitlines(keepends=True)
    written(tmp_path, [{"step": 21, "loss": 0.5}], from_step=20)
    assert path.read_text().splitlines(keepends=True)[:20] == begun[:20]
    assert [row["step"] for row in read(tmp_path)] == list(range(1, 22))
    assert read(tmp_path)[-1]["loss"] == 0.5
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_that_begins_anew_forgets_all(tmp_path):
    written(tmp_path, [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0}])
    written(tmp_path, [{"step": 1, "loss": 3.5}])
    assert read(tmp_path) == [{"step": 1, "loss": 3.5}]


@pytest.mark.parametrize("cut", [1, 2, 10, 24])
def test_a_torn_last_line_is_skipped_and_then_removed(tmp_path, cut):
    path = written(tmp_path, [{"step": step, "loss": 0.25} for step in (1, 2, 3)])
    path.write_bytes(path.read_bytes()[:-cut])
    whole = [1, 2, 3] if cut == 1 else [1, 2]  # without its line's end alone a row is still whole
    assert [row["step"] for row in read(tmp_path)] == whole
    said = []
    written(tmp_path, [{"step": 4, "loss": 0.25}], from_step=3, say=said.append)
    assert [row["step"] for row in read(tmp_path)] == [*whole, 4]
    assert all(strict(line) for line in path.read_text().splitlines())
    assert len(said) == (cut > 1) and all(f"{path}:3 is not a whole row of metrics and is left out" in x for x in said)


@pytest.mark.parametrize(("content", "what"), [(None, "is gone"), (b"", "is empty"), (b"\n\n", "is empty")])
def test_rows_that_are_lost_are_said_once_where_a_run_goes_on(tmp_path, content, what):
    path = tmp_path / "metrics.jsonl"
    for from_step, expected in ((0, []), (6, [f"{path} {what}: the rows up to step 6 are lost"])):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        said = []
        written(tmp_path, [{"step": 7}, {"step": 8}], from_step=from_step, say=said.append)
        assert said == expected and [row["step"] for row in read(tmp_path)] == [7, 8]


def test_a_part_of_a_row_that_waits_is_not_said_to_be_left_out(tmp_path):
    said, path = [], tmp_path / "metrics.jsonl"
    with Metrics(tmp_path, tensorboard=False, say=said.append) as note:
        note({"step": 1})
        note._rows.whole = path.stat().st_size
        note._rows.waiting.append(b'{"step": 2}\n')
        path.write_bytes(path.read_bytes() + b'{"st')
        note.go_back(2)
    assert said == [] and [row["step"] for row in read(tmp_path)] == [1, 2]


def test_a_broken_line_is_said_once_however_often_the_disk_refuses_to_be_rid_of_it(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st')
    said, write_atomic = [], metrics.write_atomic
    note = Metrics(tmp_path, from_step=1, tensorboard=False, say=said.append)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(metrics, "write_atomic", refuse)
    with note:
        note({"step": 2})
        monkeypatch.setattr(metrics, "write_atomic", write_atomic)
        note({"step": 3})
    assert [sum(word in text for text in said) for word in ("CANNOT", "not a whole row", "written again")] == [1, 1, 1]
    assert [row["step"] for row in read(tmp_path)] == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_said_when_it_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\x00\xff\n{"step": 2}\n')
    said = []
    written(tmp_path, [], from_step=2, say=said.append)
    assert [row["step"] for row in read(tmp_path)] == [1, 2]
    assert len(said) == 1 and said[0].startswith(f"{path}:2 is not a row of metrics and is left out")


def test_killed_at_any_moment_a_run_loses_no_row_up_to_its_checkpoint(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from weft.train.metrics import Metrics\n"
        "begin = int(sys.argv[3])\n"
        "with Metrics(Path(sys.argv[2]), from_step=begin, tensorboard=False) as note:\n"
        "    print('begun', flush=True)\n"
        "    for step in range(begin + 1, begin + 10**7): note({'step': step, 'loss': 1 / step, 'text': 'x' * 500})\n"
    )
    at = 0
    path, size = tmp_path / "metrics.jsonl", 20_000
    for _ in range(2):
        words = [sys.executable, "-c", program, str(ROOT), str(tmp_path), str(at)]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"begun\n"
        while child.poll() is None and not (path.exists() and path.stat().st_size > size):
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        steps = [row["step"] for row in read(tmp_path)]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > at
        at, size = len(steps) * 2 // 3, path.stat().st_size


# Disks that refuse.


def test_a_full_disk_is_said_once_and_what_it_refused_is_written_later(tmp_path):
    said = []
    rows = [{"step": step, "loss": 1.0 / step} for step in range(1, 9)]
    with Metrics(tmp_path, tensorboard=False, say=said.append) as note:
        for row in rows[:3]:
            note(row)
        size = (tmp_path / "metrics.jsonl").stat().st_size
        with no_file_larger_than(size + 7):  # a part of the next line still fits
            for row in rows[3:6]:
                note(row)
        assert (tmp_path / "metrics.jsonl").stat().st_size == size + 7
        assert [row["step"] for row in read(tmp_path)] == [1, 2, 3]
        assert len(said) == 1 and "metrics.jsonl CANNOT BE WRITTEN: File too large" in said[0]
        note(rows[6])
        assert said[1:] == [f"{tmp_path / 'metrics.jsonl'} is written again, with all rows"]
        note(rows[7])
    assert read(tmp_path) == rows and len(said) == 2


def test_a_disk_that_refuses_from_the_start_stops_nothing_and_loses_nothing(tmp_path):
    written(tmp_path, [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}])
    said = []
    note = Metrics(tmp_path, from_step=1, tensorboard=False, say=said.append)
    with no_file_larger_than(10):
        note.__enter__()
        note({"step": 2, "loss": 0.75})
    assert read(tmp_path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}] and len(said) == 1
    note({"step": 3, "loss": 0.25})
    assert [row["loss"] for row in read(tmp_path)] == [1.0, 0.75, 0.25] and len(said) == 2


def test_a_folder_that_cannot_be_made_is_said_and_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    said = []
    with Metrics(tmp_path / "file" / "run", say=said.append) as note:
        for step in range(1, 20):
            note({"step": step, "loss": 1.0})
    begun, ended = said[:2], said[2:]  # once for the rows, once for TensorBoard
    assert all("CANNOT BE WRITTEN: Not a directory. Training goes on" in text for text in begun)
    assert len(ended) == 2 and ended[0].endswith(
        "metrics.jsonl LACKS ITS LAST ROWS, 19 in all: they could not be written"
    )


def test_rows_a_disk_refuses_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics._RecordFile, "MOST", 3)
    said = []
    with Metrics(tmp_path, tensorboard=False, say=said.append) as note:
        with no_file_larger_than(0):
            for step in range(1, 11):
                note({"step": step})
        note({"step": 11})
    assert said[1].endswith("is written again, without 8 rows")
    assert [row["step"] for row in read(tmp_path)] == [9, 10, 11]


# Reading.


@pytest.mark.parametrize(
    ("text", "fact", "fix"),
    [
        (None, "there is no run in {}: no metrics.jsonl", "did you mean `{}x`?"),
        ("", "{}/metrics.jsonl has no rows yet", "try again when the run has told of a step"),
        ('{"st', "{}/metrics.jsonl has no rows yet", "try again when the run has told of a step"),
        ('{"step": 1}\n{"st\n{"step": 2}\n', '{}/metrics.jsonl:2 is not a row of metrics: `{{"st`', "mend that line"),
        ('{"step": 1}\n{"loss": 1}\n', '{}/metrics.jsonl:2 is not a row of metrics: `{{"loss": 1}}`', "mend that line"),
        ("[1]\n", "{}/metrics.jsonl:1 is not a row of metrics: `[1]`", "mend that line or remove it"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, text, fact, fix):
    run = tmp_path / "run"
    written(tmp_path / "runx", [{"step": 1}])
    if text is not None:
        run.mkdir()
        (run / "metrics.jsonl").write_text(text)
    with pytest.raises(MetricsError) as error:
        read(run)
    assert error.value.fact == fact.format(run) and error.value.fix.startswith(fix.format(run))


def test_where_there_is_no_run_at_all_the_fix_shows_one(tmp_path):
    with pytest.raises(MetricsError) as error:
        read(tmp_path / "nowhere" / "run")
    assert error.value.fix == "give the folder of a run, like `runs/tiny`"


# TensorBoard.


FORMAT = """
name: "event.proto" syntax: "proto3"
message_type { name: "Value"
  field { name: "tag" number: 1 type: TYPE_STRING } field { name: "simple_value" number: 2 type: TYPE_FLOAT } }
message_type { name: "Summary"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Value" } }
message_type { name: "SessionLog" field { name: "status" number: 1 type: TYPE_INT32 } }
message_type { name: "Event"
  field { name: "wall_time" number: 1 type: TYPE_DOUBLE } field { name: "step" number: 2 type: TYPE_INT64 }
  field { name: "file_version" number: 3 type: TYPE_STRING }
  field { name: "summary" number: 5 type: TYPE_MESSAGE type_name: "Summary" }
  field { name: "session_log" number: 7 type: TYPE_MESSAGE type_name: "SessionLog" } }
"""
START = 1
RECORDS = {  # as tensorboardX 2.6.5 writes them
    "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c": version_event(1.5),
    "100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4": start_event(1.5, 301),
    "33000000000000000ca7205609000000000000f83f10c8012a250a110a0a747261696e2f6c6f737315000020400a100a096576616c2f6c6f"
    "7373150000c07f9e6b81ba": scalars_event(1.5, 200, {"train/loss": 2.5, "eval/loss": NAN}),
}


def masked_crc32c(data):
    """The checksum of the format, bit by bit."""
    crc = 0xFFFFFFFF
    for bit in (byte >> n & 1 for byte in data for n in range(8)):
        crc = crc >> 1 ^ (0x82F63B78 if (crc ^ bit) & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def events(file):
    """The events of a file, read by Protobuf and by the format's own lengths and checksums."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(FORMAT, descriptor_pb2.FileDescriptorProto()))
    event = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    data, found = file.read_bytes(), []
    while data:
        (length,), head = struct.unpack("<Q", data[:8]), data[:8]
        body, data = data[12 : 12 + length], data[8:]
        assert struct.unpack("<I", data[:4])[0] == masked_crc32c(head)
        assert struct.unpack("<I", data[4 + length : 8 + length])[0] == masked_crc32c(body)
        found.append(event.FromString(body))
        data = data[8 + length :]
    return found


@pytest.mark.parametrize("written", RECORDS)
def test_a_record_is_what_others_write(written):
    assert record(RECORDS[written]).hex() == written


def test_tensorboard_gets_the_same_numbers_by_step(tmp_path):
    with Metrics(tmp_path, from_step=9) as note:
        note({"step": 10, "loss": 2.5, "tokens_per_s": 1e5, "mfu": None, "text": "x"})
        note({"step": 10, "eval": {"loss": NAN, "perplexity": 1e300}})
    [file] = (tmp_path / "tensorboard").iterdir()
    version, start, *rest = events(file)
    assert version.file_version == "brain.Event:2"
    assert start.session_log.status == START and start.step == 10  # hides what was told of it before
    told = [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in rest]
    assert told[0] == (10, {"train/loss": 2.5, "train/tokens_per_s": 1e5})
    assert told[1][0] == 10 and math.isnan(told[1][1]["eval/loss"]) and told[1][1]["eval/perplexity"] == INF
    assert abs(rest[0].wall_time - time.time()) < 600


def test_each_start_of_a_run_has_a_file_of_its_own_for_tensorboard_in_order(tmp_path):
    for begin in (0, 5):
        with Metrics(tmp_path, from_step=begin) as note:
            note({"step": begin + 1, "loss": 1.0})
    first, second = sorted((tmp_path / "tensorboard").iterdir())
    assert [events(file)[1].step for file in (first, second)] == [1, 6]
    assert first.name.startswith("events.out.tfevents.")


def test_a_full_disk_leaves_whole_events(tmp_path):
    said = []
    with Metrics(tmp_path, say=said.append) as note:
        note({"step": 1, "loss": 1.0})
        [file] = (tmp_path / "tensorboard").iterdir()
        with no_file_larger_than(file.stat().st_size + 5):
            note({"step": 2, "loss": 1.0})
            note({"step": 3, "loss": 1.0})
        note({"step": 4, "loss": 1.0})
    assert [event.step for event in events(file)[2:]] == [1, 2, 3, 4]
    assert len([text for text in said if "tfevents" in text]) == 2
