"""Hot: a socket read full of basic.ack, taken in one loop. Neighbouring single acks become one range of tags."""

from __future__ import annotations

import struct

from laneway.frontends.amqp.spec import FRAME_END

_FEW, _MANY = 8, 1024  # acks that are looked at together
_ACK_BYTES = 21
_ACK = struct.Struct(">QB")
_ACK_ROW = struct.Struct(">11sQBB")
_SKIPS = 16


class Acks:
    """basic.ack of the channel that acked last, one after the other."""

    __slots__ = ("_most", "_prefix", "_skips", "channel")

    def __init__(self) -> None:
        self.channel = 0
        self._prefix = b""
        self._most = _FEW  # so many are looked at together: more, the more there were the last time
        self._skips = 0  # so often it is not worth a look

    def learn(self, channel: int) -> None:
        if channel != self.channel:
            self.channel = channel
            self._prefix = b"\x01" + channel.to_bytes(2, "big") + b"\x00\x00\x00\x0d\x00\x3c\x00\x50"

    def take(self, data: bytes, at: int) -> tuple[int, list[tuple[int, int, bool]]]:
        """(where the acks end, them as (first tag, last tag, multiple): neighbouring single ones as one)"""
        prefix, size = self._prefix, len(data)
        found: list[tuple[int, int, bool]] = []
        first = last = -1  # of neighbouring single ones
        while data.startswith(prefix, at) and at + _ACK_BYTES <= size and data[at + 20] == FRAME_END:
            tag, bits = _ACK.unpack_from(data, at + 11)
            at += _ACK_BYTES
            if first >= 0 and tag == last + 1 and not bits & 1:
                more = self._following(data, at, tag)
                last = tag + more
                at += more * _ACK_BYTES
                continue
            if first >= 0:
                found.append((first, last, False))
            if bits & 1:
                found.append((tag, tag, True))
                first = last = -1
            else:
                first = last = tag
        if first >= 0:
            found.append((first, last, False))
        return at, found

    def _following(self, data: bytes, at: int, tag: int) -> int:
        """How many acks of the next tags stand here one by one; 0 also if there are too few to be looked at at once."""
        count = min((len(data) - at) // _ACK_BYTES, self._most)
        if count < _FEW or self._skips:
            self._skips = max(self._skips - 1, 0)
            return 0
        rows = _ACK_ROW.iter_unpack(memoryview(data)[at : at + count * _ACK_BYTES])
        heads, tags, bits, ends = zip(*rows, strict=True)
        if (
            heads.count(self._prefix) == count
            and ends.count(FRAME_END) == count
            and not any(bits)
            and tags == tuple(range(tag + 1, tag + 1 + count))
        ):
            self._most = min(2 * self._most, _MANY)
            return count
        self._most, self._skips = _FEW, _SKIPS
        return 0
