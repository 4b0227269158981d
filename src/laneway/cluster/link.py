"""One socket between two processes of a server: parcels both ways, in order.

    frame:  | length: u32, big endian | a list of parcels, encoded (codec.py) |

What is posted in one turn of the loop leaves in one frame, because a frame costs little more than a parcel. A link
tells its owner when the other end does not keep up, so that what it would send next waits where it came from.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from laneway.cluster.codec import decode, encode

log = logging.getLogger("laneway.cluster")

#: The largest message, and a drain of as many bytes as an inbox takes, fit many times over. More is no frame of ours.
MAX_FRAME_BYTES = 1 << 30
#: With more than this unsent, the other end does not keep up.
UNSENT_BYTES = 8 * 1024 * 1024

_LENGTH_BYTES = 4

Parcel = tuple[Any, ...]


class LinkOwner:
    """Who is told what happens on a link. Each end has its own kind."""

    def link_made(self, link: Link) -> None:
        """The other end is there."""

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        """In the order in which they were posted."""

    def link_lost(self, link: Link) -> None:
        """Called once; nothing comes after it."""

    def link_full(self, link: Link, is_full: bool) -> None:
        """The other end does not take what is sent, or does so again."""


class Link(asyncio.Protocol):
    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        self._posted: list[Parcel] = []
        self._received = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def post(self, parcel: Parcel) -> None:
        """Send it with all that is posted in this turn of the loop. Nothing is sent once the link is lost."""
        if not self._posted:
            self._loop.call_soon(self._send)
        self._posted.append(parcel)

    def _send(self) -> None:
        posted, self._posted = self._posted, []
        if not self.is_open or not posted:
            return
        frame = encode(posted)
        assert self._transport is not None
        self._transport.writelines((len(frame).to_bytes(_LENGTH_BYTES, "big"), frame))

    def close(self) -> None:
        """What was posted still leaves."""
        self._send()
        if self._transport is not None:
            self._transport.close()

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._owner.link_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._posted = []
        self._received = bytearray()
        self._owner.link_lost(self)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTH_BYTES:
            size = int.from_bytes(received[at : at + _LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                self._cut(f"a frame of {size} bytes, {MAX_FRAME_BYTES} are allowed")
                return
            end = at + _LENGTH_BYTES + size
            if end > len(received):
                break
            with memoryview(received) as whole:
                frame = bytes(whole[at + _LENGTH_BYTES : end])
            at = end
            if not self._take(frame):
                return
        del received[:at]

    def _take(self, frame: bytes) -> bool:
        try:
            parcels = decode(frame)
        except Exception as trouble:  # whatever it is: what cannot be read may have been an answer
            self._cut(f"a frame that cannot be read: {trouble}")
            return False
        for parcel in parcels:
            try:
                self._owner.parcel_came(self, parcel)
            except Exception:
                log.exception("a parcel of another process could not be taken")
                self._cut("a parcel that could not be taken")
                return False
        return True

    def _cut(self, why: str) -> None:
        log.error("the link to another process is cut: it sent %s", why)
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._owner.link_full(self, True)

    def resume_writing(self) -> None:
        self._owner.link_full(self, False)
