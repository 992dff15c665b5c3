"""TensorBoard event files: scalars by step, in records with checksums.

Imports nothing of weft. What is needed of the format is three messages of a few fields each and a CRC, so they are
written out here: the writers of libraries wait for ever on a full disk, and the file must stay whole on one.

https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto
"""

import struct
from collections.abc import Mapping

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed


def record(event: bytes) -> bytes:
    """An event as it stands in a file: its length, the event, and a checksum of each."""
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked_crc(length)) + event + struct.pack("<I", _masked_crc(event))


def version_event(seconds: float) -> bytes:
    """The first event of a file."""
    return _event(seconds, 0, _bytes(3, b"brain.Event:2"))


def start_event(seconds: float, step: int) -> bytes:
    """The start of a session at a step, which hides what was said of later steps."""
    return _event(seconds, step, _bytes(7, _number(1, 1)))


def scalars_event(seconds: float, step: int, values: Mapping[str, float]) -> bytes:
    """Numbers of a step, each under its tag."""
    summary = (_bytes(1, _bytes(1, tag.encode()) + b"\x15" + _float(x)) for tag, x in values.items())
    return _event(seconds, step, _bytes(5, b"".join(summary)))


def _event(seconds: float, step: int, content: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", seconds) + (_number(2, step) if step else b"") + content


# Protobuf: a field is its number and the kind of what follows, and then that.


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _varint(value: int) -> bytes:
    """Seven bits a byte, the least first; all but the last have the eighth set."""
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + _varint(value >> 7)


def _crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and moved as the format wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
