"""What a channel sends, in the order in which its causes came: a reply that waits for the disk holds back what follows.

Deliveries, returns and confirms go through here too: a confirm must not overtake the return of its message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

#: What is written; a large body is cut into views of itself, so that it is nowhere copied.
Data = bytes | memoryview


class Slot:
    """A place in the order, for what is not known or not allowed to leave yet."""

    __slots__ = ("_outbox", "data")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.data: Sequence[Data] | None = None

    def fill(self, *data: Data) -> None:
        self.data = data
        self._outbox.flush()


class Outbox:
    __slots__ = ("_waiting", "_write")

    def __init__(self, write: Callable[[Data], None]) -> None:
        self._write = write
        self._waiting: deque[Slot | Data] = deque()

    def send(self, data: Data) -> None:
        if self._waiting:
            self._waiting.append(data)
        else:
            self._write(data)

    def hold(self) -> Slot:
        slot = Slot(self)
        self._waiting.append(slot)
        return slot

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def flush(self) -> None:
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            data = first.data if isinstance(first, Slot) else (first,)
            if data is None:
                return
            waiting.popleft()
            for piece in data:
                self._write(piece)

    def clear(self) -> None:
        self._waiting.clear()
        self._write = _drop


def _drop(data: Data) -> None:
    """The channel is gone; so is whom this was for."""
