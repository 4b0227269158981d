"""One socket between two processes of a server: parcels both ways, in order.

    greeting (greeting.py), then frames

    frame:  | length of what follows: u32, big endian | length of the parcels: u32 | a list of parcels, encoded |
            | the columns of messages in them, encoded apart (codec.py) |

A frame without anything behind its length only shows that this end lives.

What is posted in one turn of the loop leaves together, because a frame costs little more than a parcel. A link tells
its owner when the other end does not keep up, so that what it would send next waits where it came from. Over TCP both
ends send something in every beat, so that each notices when the other is gone without a word.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from laneway.cluster.codec import decode, encode_apart
from laneway.cluster.greeting import CHALLENGE_BYTES, Role, Stranger, greeting

log = logging.getLogger("laneway.cluster")

#: The largest message, and a drain of as many bytes as an inbox takes, fit many times over. More is no frame of ours.
MAX_FRAME_BYTES = 1 << 30
#: With more than this unsent, the other end does not keep up.
UNSENT_BYTES = 8 * 1024 * 1024
#: With more than this unsent before something is added, it is given up: what cannot wait elsewhere ends here.
MAX_UNSENT_BYTES = 256 * 1024 * 1024
#: A frame ends with the parcel that makes it as large as this: it is read in one turn of the loop.
FRAME_BYTES = 256 * 1024
FRAME_PARCELS = 1024
#: After so many bytes were read, others have their turn.
TURN_BYTES = 1024 * 1024
#: The other end has so long to greet.
GREETING_S = 5.0
#: After so many beats without a word it is given up.
SILENT_BEATS = 4

_READ_BYTES = 256 * 1024
_KEPT_BYTES = 4 * _READ_BYTES  # a buffer that has grown larger, for one frame, shrinks again
#: What the kernel takes at once, if it may: a frame then leaves in one piece, and one wake-up at the other end.
_SOCKET_BYTES = 1024 * 1024
_LENGTH_BYTES = 4
_LENGTHS = struct.Struct(">II")
_BEAT = bytes(_LENGTH_BYTES)

Parcel = tuple[Any, ...]


class LinkOwner:
    """Who is told what happens on a link. Each end has its own kind."""

    role: Role
    secret: bytes = b""
    beat_s: float = 0  # 0: the kernel says at once when the other end is gone

    def link_begun(self, link: Link) -> None:
        """Somebody is there, who is to say who it is."""

    def link_made(self, link: Link) -> None:
        """The other end is who it should be."""

    def link_refused(self, link: Link, why: str) -> None:
        """The other end is not who it should be."""

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        """In the order in which they were posted."""

    def link_lost(self, link: Link) -> None:
        """Called once; nothing comes after it."""

    def link_full(self, link: Link, is_full: bool) -> None:
        """The other end does not take what is sent, or does so again."""


class Link(asyncio.BufferedProtocol):
    def __init__(self, owner: LinkOwner, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        self._greeting = greeting(owner.role, owner.secret, random_bytes(CHALLENGE_BYTES))
        self._is_greeted = False
        self._posted: list[Parcel] = []
        self._posted_bytes = 0
        self._buffer = bytearray()  # what came and is not understood yet stands at its head
        self._filled = 0
        self._needed = 0  # so much must be there before it is looked at again
        self._read_bytes = 0  # since others had their turn
        self._timer: asyncio.TimerHandle | None = None
        self._silent_beats = 0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        return self._posted_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    @property
    def peer(self) -> str:
        """Where the other end is, for people."""
        assert self._transport is not None
        found = self._transport.get_extra_info("peername")
        return "{}:{}".format(*found[:2]) if isinstance(found, tuple) else "a Unix socket"

    def post(self, parcel: Parcel, size_bytes: int = 0) -> None:
        """Send it with all that is posted in this turn of the loop. Nothing is sent once the link is lost."""
        if not self._posted:
            self._loop.call_soon(self._send)
        self._posted.append(parcel)
        self._posted_bytes += size_bytes
        if self._posted_bytes >= FRAME_BYTES or len(self._posted) >= FRAME_PARCELS:
            self._send()

    def _send(self) -> None:
        posted, self._posted, self._posted_bytes = self._posted, [], 0
        if not self.is_open or not posted:
            return
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.cut(f"it does not take what it is sent: {MAX_UNSENT_BYTES >> 20} MiB wait")
            return
        try:
            parcels, columns = encode_apart(posted)
            lengths = _LENGTHS.pack(_LENGTH_BYTES + len(parcels) + len(columns), len(parcels))
        except Exception:
            log.exception("what was to be sent to another process cannot be")
            self.cut("something would be missing from what it is sent")
            return
        self._transport.writelines((lengths, parcels, columns))

    def close(self) -> None:
        """What was posted still leaves."""
        self._send()
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Nothing is sent or read any more."""
        if self._transport is not None:
            self._transport.abort()

    def cut(self, why: str) -> None:
        """What was posted is lost."""
        log.error("the link to another process is cut: %s", why)
        self.drop()

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        found = self._transport.get_extra_info("socket")
        if found is not None and found.family == socket.AF_UNIX:  # over TCP the kernel finds out what is right
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._timer = self._loop.call_later(GREETING_S, self.refuse, f"it did not greet within {GREETING_S:g} s")
        self._go_on_greeting(next(self._greeting))
        self._owner.link_begun(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._posted = []
        self._buffer = bytearray()
        if self._timer is not None:
            self._timer.cancel()
        self._owner.link_lost(self)

    def pause_writing(self) -> None:
        self._owner.link_full(self, True)

    def resume_writing(self) -> None:
        self._owner.link_full(self, False)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._silent_beats = 0
        if self._filled >= self._needed:
            if self._is_greeted:
                self._read_frames()
            else:
                self._greet()
        self._read_bytes += nbytes
        if self._read_bytes >= TURN_BYTES and self.is_open:
            self._read_bytes = 0
            assert self._transport is not None
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.is_open:
            assert self._transport is not None
            self._transport.resume_reading()

    # The greeting

    def _greet(self) -> None:
        try:
            step = self._greeting.send(bytes(self._buffer))
        except Stranger as why:
            self.refuse(str(why))
        else:
            self._go_on_greeting(step)

    def refuse(self, why: str) -> None:
        self._owner.link_refused(self, why)
        if self._transport is not None:
            self._transport.abort()

    def _go_on_greeting(self, step: tuple[bytes, int]) -> None:
        """The buffer has room for what the greeting waits for, and for nothing behind it."""
        said, self._needed = step
        assert self._transport is not None
        if said:
            self._transport.write(said)
        self._buffer, self._filled = bytearray(self._needed or _READ_BYTES), 0
        if not self._needed:
            self._is_greeted = True
            self._needed = _LENGTH_BYTES
            assert self._timer is not None
            self._timer.cancel()
            self._timer = None
            if self._owner.beat_s:
                self._beat()
            self._owner.link_made(self)

    def _beat(self) -> None:
        """Beats are counted, and no clock is asked: a process that slept does not take what it did not read meanwhile
        for silence."""
        self._timer = self._loop.call_later(self._owner.beat_s, self._beat)
        if self._silent_beats >= SILENT_BEATS:
            self.cut(f"nothing came from it for {SILENT_BEATS * self._owner.beat_s:g} s")
        elif self.is_open:
            self._silent_beats += 1
            assert self._transport is not None
            self._transport.write(_BEAT)

    # Frames

    def _read_frames(self) -> None:
        """The frames that are there whole. Where the next one ends it goes on."""
        at, filled = 0, self._filled
        with memoryview(self._buffer) as whole:
            while filled - at >= _LENGTH_BYTES:
                size = int.from_bytes(whole[at : at + _LENGTH_BYTES], "big")
                if size > MAX_FRAME_BYTES:
                    self.cut(f"it sent a frame of {size} bytes, {MAX_FRAME_BYTES} are allowed")
                    return
                end = at + _LENGTH_BYTES + size
                if end > filled:
                    break
                if size and not self._take(whole[at + _LENGTH_BYTES : end]):
                    return
                at = end
            left = filled - at
            self._needed = _LENGTH_BYTES if left < _LENGTH_BYTES else end - at
            room = max(self._needed, _READ_BYTES)
            before = self._buffer
            if len(before) < room or len(before) > max(room, _KEPT_BYTES):  # a new one costs as much as a frame
                self._buffer = bytearray(room)
            if at or self._buffer is not before:
                self._buffer[:left] = whole[at:filled]
        self._filled = left

    def _take(self, frame: memoryview) -> bool:
        try:
            end = _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "big")
            parcels = decode(frame[_LENGTH_BYTES:end], frame[end:])
            if type(parcels) is not list:
                raise ValueError("it has no list of parcels")
        except Exception as trouble:  # whatever it is: what cannot be read may have been an answer
            self.cut(f"it sent a frame that cannot be read: {trouble}")
            return False
        for parcel in parcels:
            try:
                self._owner.parcel_came(self, parcel)
            except Exception:
                log.exception("a parcel of another process could not be taken")
                self.cut("it sent a parcel that could not be taken")
                return False
        return True
