"""Publisher confirms: every publish of a channel gets a number, and is told once it is durable or refused.

Told in the order of the numbers, and together: what became durable with one commit leaves as one ack.
"""

from __future__ import annotations

from collections.abc import Callable

from laneway.frontends.amqp.spec import BY_NAME

_ACK = BY_NAME["basic.ack"]
_NACK = BY_NAME["basic.nack"]


class Confirms:
    __slots__ = ("_channel", "_last", "_plan", "_settled", "_told", "_write")

    def __init__(
        self, channel: int, write: Callable[[bytes], None], plan: Callable[[Callable[[], None]], None]
    ) -> None:
        self._channel = channel
        self._write = write
        self._plan = plan  # calls something a little later, when its neighbours are known too
        self._last = 0
        self._told = 0  # all up to this number
        self._settled: dict[int, bool] = {}  # number -> whether it was taken

    def next(self) -> int:
        """The number of the publish that just came."""
        self._last += 1
        return self._last

    def settle(self, number: int, taken: bool) -> None:
        if not self._settled:
            self._plan(self.tell)
        self._settled[number] = taken

    def tell(self) -> None:
        settled = self._settled
        first = number = self._told + 1
        while number in settled:
            taken = settled.pop(number)
            number += 1
            if settled.get(number) is not taken:
                self._tell(first, number - 1, taken)
                first = number
        self._told = number - 1

    def _tell(self, first: int, last: int, taken: bool) -> None:
        if taken:
            self._write(_ACK.encode(self._channel, last, last > first))
        else:
            self._write(_NACK.encode(self._channel, last, True, True))
