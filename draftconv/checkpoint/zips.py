"""Where the members of an uncompressed zip archive lie, read from its central directory.

Only what torch archives need: stored members, zip64, sizes from the central directory (the
local headers of torch archives leave them out). Nothing is decompressed, so a few bytes can
never become many.

zipfile is not used: it tells nobody where a member's bytes lie, and takes archives with other bytes before or
behind them, in which two readers may find two different checkpoints.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from draftconv import limits
from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 65535
_FULL32 = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Member:
    """A member: `header` is the offset of its local header, see `data_offset`."""

    name: str
    header: int
    size: int
    crc: int
    stored: bool


def read_members(file: DataFile) -> dict[str, Member]:
    """All members by name.

    Raises:
        BadCheckpoint: no zip archive, truncated, a name twice.
    """
    start, length, count = _directory(file)
    limits.ZIP_DIRECTORY.check(length, f"{show(file.name)}: its directory claims {length} bytes")
    raw = file.read(start, length)
    members: dict[str, Member] = {}
    position = 0
    while position < len(raw):
        member, position = _central_entry(file, raw, position)
        if member.name in members:
            raise _bad(file, f"it holds {show(member.name)} twice")
        members[member.name] = member
    if len(members) != count:
        raise _bad(file, f"its directory lists {len(members)} members and claims {count}")
    return members


def data_offset(file: DataFile, member: Member) -> int:
    """Offset of the member's first byte in the file.

    Raises:
        BadCheckpoint: it is compressed, is not there or leaves the file.
    """
    if not member.stored:
        raise BadCheckpoint(
            f"{show(file.name)}: its member {show(member.name)} is compressed or encrypted",
            why="torch.save stores its members as they are",
            cure="load it with torch (weights_only=True) and save it as safetensors",
        )
    magic, _, _, method, *_, name_length, extra_length = _LOCAL.unpack(file.read(member.header, _LOCAL.size))
    name = file.read(member.header + _LOCAL.size, name_length)
    if magic != b"PK\x03\x04" or method != 0 or name != member.name.encode("utf-8"):
        raise _bad(file, f"{show(member.name)} is not where its directory says")
    offset: int = member.header + _LOCAL.size + name_length + extra_length
    if offset + member.size > file.size:
        raise _bad(file, f"{show(member.name)} leaves the file")
    return offset


def read_member(file: DataFile, member: Member) -> bytes:
    """A whole member, its checksum compared; whoever asks knows that it is small."""
    data = file.read(data_offset(file, member), member.size)
    if zlib.crc32(data) != member.crc:
        raise _bad(file, f"the checksum of {show(member.name)} is wrong")
    return data


def _directory(file: DataFile) -> tuple[int, int, int]:
    """Start, length and number of entries of the central directory."""
    tail_start = max(0, file.size - _END.size - _LONGEST_COMMENT)
    tail = file.read(tail_start, file.size - tail_start)
    position = tail.rfind(b"PK\x05\x06")
    if position < 0 or position + _END.size > len(tail):
        raise _bad(file, "it has no zip directory at its end")
    _, _, _, _, count, length, start, comment = _END.unpack_from(tail, position)
    if position + _END.size + comment != len(tail):
        raise _bad(file, "bytes follow its zip directory")
    end = tail_start + position
    if end >= _END64_LOCATOR.size:
        magic, _, end64, _ = _END64_LOCATOR.unpack(file.read(end - _END64_LOCATOR.size, _END64_LOCATOR.size))
        if magic == b"PK\x06\x07":
            fields = _END64.unpack(file.read(end64, _END64.size))
            if fields[0] != b"PK\x06\x06":
                raise _bad(file, "its zip64 directory is not where it says")
            count, length, start = fields[7], fields[8], fields[9]
    if start + length > end:
        raise _bad(file, "its zip directory leaves the file")
    return start, length, count


def _central_entry(file: DataFile, raw: bytes, position: int) -> tuple[Member, int]:
    if position + _CENTRAL.size > len(raw):
        raise _bad(file, "its zip directory is cut off")
    (
        magic,
        _,
        _,
        flags,
        method,
        _,
        _,
        crc,
        stored,
        size,
        name_length,
        extra_length,
        comment_length,
        *_,
        header,
    ) = _CENTRAL.unpack_from(raw, position)
    begin = position + _CENTRAL.size
    stop = begin + name_length + extra_length + comment_length
    if magic != b"PK\x01\x02" or stop > len(raw):
        raise _bad(file, "its zip directory is broken")
    try:
        name = raw[begin : begin + name_length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(file, "it holds a member whose name is not UTF-8") from error
    extra = raw[begin + name_length : begin + name_length + extra_length]
    size, stored, header = _widen(file, name, extra, (size, stored, header))
    return Member(name, header, size, crc, method == 0 and size == stored and not flags & 1), stop


def _widen(file: DataFile, name: str, extra: bytes, fields: tuple[int, int, int]) -> tuple[int, int, int]:
    """Replace the fields that are full by their 64-bit values from the zip64 extra field."""
    if _FULL32 not in fields:
        return fields
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + length]
        if kind == 1:
            wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            size, stored, header = (next(wide, -1) if value == _FULL32 else value for value in fields)
            if -1 in (size, stored, header):
                break
            return size, stored, header
        position += 4 + length
    raise _bad(file, f"{show(name)} lacks its 64-bit sizes")


def _bad(file: DataFile, fault: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{show(file.name)}: {fault}",
        why="torch would not load it either",
        cure="download or export it again",
    )
