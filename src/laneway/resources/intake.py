"""What callers may take up of one process, all of them together and over all protocols: connections, and memory for
requests and messages that have not come whole yet. Asked before the connection or the bytes are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: Callers of whom nobody knows yet who they are get this part of the bytes: those who are known always have the rest.
_STRANGERS_SHARE = 2

Waits = tuple[int, Callable[[], None]]


class Intake:
    def __init__(self, *, most_connections: int, most_bytes: int) -> None:
        self.most_connections = most_connections
        self.connection_count = 0
        self._most_bytes = most_bytes
        self.byte_count = 0
        self._strangers_byte_count = 0
        self._waiting: deque[Waits] = deque()
        self.is_memory_short = False  # whoever does not take what they are owed is cut off soon

    def admit(self) -> bool:
        """Whether there may be one more connection; if so, it counts until it leaves."""
        if self.connection_count >= self.most_connections:
            return False
        self.connection_count += 1
        return True

    def leave(self) -> None:
        self.connection_count -= 1

    def take(self, byte_count: int, *, is_known: bool) -> bool:
        """Whether so many bytes more may be kept for a caller; if so, they count until they are given back."""
        if self.byte_count + byte_count > self._most_bytes:
            return False
        if not is_known:
            if self._strangers_byte_count + byte_count > self._most_bytes // _STRANGERS_SHARE:
                return False
            self._strangers_byte_count += byte_count
        self.byte_count += byte_count
        return True

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody who came earlier waits for room."""
        return bool(self._waiting)

    def take_later(self, byte_count: int, then: Callable[[], None]) -> Waits:
        """Take so many bytes for a known caller and call `then` once there is room, after all who wait already."""
        waits = (byte_count, then)
        self._waiting.append(waits)
        return waits

    def stop_waiting(self, waits: Waits) -> None:
        self._waiting.remove(waits)

    def give_back(self, byte_count: int, *, is_known: bool = True) -> None:
        self.byte_count -= byte_count
        if not is_known:
            self._strangers_byte_count -= byte_count
        while self._waiting and (not self.byte_count or self.take(self._waiting[0][0], is_known=True)):
            wanted_count, then = self._waiting.popleft()
            if not self.byte_count:  # more than there is ever room for has it all for itself
                self.byte_count += wanted_count
            then()
