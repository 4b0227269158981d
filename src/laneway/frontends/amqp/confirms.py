"""Publisher confirms: every publish of a channel gets a number, and is told once it is durable or refused.

Told in the order of the numbers, and together: what became durable with one commit leaves as one ack.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from laneway.frontends.amqp.spec import BY_NAME

_ACK = BY_NAME["basic.ack"]
_NACK = BY_NAME["basic.nack"]


class Confirms:
    __slots__ = ("_channel", "_is_planned", "_last", "_plan", "_settled", "_told", "_write")

    def __init__(
        self, channel: int, write: Callable[[bytes], None], plan: Callable[[Callable[[], None]], None]
    ) -> None:
        self._channel = channel
        self._write = write
        self._plan = plan  # calls something a little later, when its neighbours are known too
        self._is_planned = False
        self._last = 0
        self._told = 0  # all up to this number
        self._settled: list[tuple[int, int, bool]] = []  # a heap: from number, to number, whether they were taken

    def next(self, count: int = 1) -> int:
        """The number of the publish that just came, the last one of several."""
        self._last += count
        return self._last

    def settle(self, first: int, last: int, taken: bool) -> None:
        heappush(self._settled, (first, last, taken))
        if not self._is_planned:
            self._is_planned = True
            self._plan(self.tell)

    def end(self) -> None:
        """The channel ended: nobody is left to be told."""
        self._write = _drop

    def tell(self) -> None:
        self._is_planned = False
        settled = self._settled
        while settled and settled[0][0] == self._told + 1:
            first, last, taken = heappop(settled)
            while settled and settled[0][0] == last + 1 and settled[0][2] is taken:
                last = heappop(settled)[1]
            self._told = last
            if taken:
                self._write(_ACK.encode(self._channel, last, last > first))
            else:
                self._write(_NACK.encode(self._channel, last, True, True))


def _drop(data: bytes) -> None:
    pass
