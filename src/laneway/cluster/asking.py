"""What an edge has asked of one leader and has no answer to yet: sent, or held back because the leader has not granted
more. Bounded in count and bytes, so that a leader which is stuck or away costs its edges no memory.

Held back are requests that bring something, and those that must not overtake them. What settles or leases goes past
them: it is what makes room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from laneway.broker.interface import (
    Ack,
    Lease,
    LeaseAgain,
    ListConsumers,
    Publish,
    PutDocument,
    Receive,
    Request,
    Reserve,
    Settle,
    Spread,
    StagePart,
    Subscribe,
    Transact,
    Unsubscribe,
)
from laneway.core.outbox import Letter, OutboxEntry
from laneway.errors import Unavailable

log = logging.getLogger("laneway.cluster")

Done = Callable[[Any], None]

#: With more than this unanswered, requests are refused; those that make room at twice as much.
MAX_BYTES = 64 * 1024 * 1024
MAX_COUNT = 50_000

_PASSES = {Ack, Lease, LeaseAgain, Reserve, Settle, Subscribe, Unsubscribe}
#: Refused as late as those. An edge asks one of them to hear that all before it is carried out (spreading.py): refused
#: because so much is before it, it would say the opposite.
_REFUSED_LATE = {*_PASSES, ListConsumers}
_REQUEST_BYTES = 500  # what one takes beside what it brings
_MESSAGE_BYTES = 100
_TOKEN_BYTES = 100


def size_of(request: Request) -> int:
    """About what a request takes of memory, and of a link."""
    kind = type(request)
    if kind is Publish or kind is Transact or kind is Spread:
        m = request.messages  # type: ignore[attr-defined]
        return sum(map(len, m.bodies)) + sum(map(len, m.props)) + _MESSAGE_BYTES * len(m.bodies) + _REQUEST_BYTES
    if isinstance(request, Ack):
        return _REQUEST_BYTES + _TOKEN_BYTES * len(request.tokens)
    if isinstance(request, Settle):
        return _REQUEST_BYTES + _TOKEN_BYTES * len(request.settlements)
    if isinstance(request, StagePart):
        return _REQUEST_BYTES + sum([len(m.draft.body) + _REQUEST_BYTES for m in request.messages])
    if isinstance(request, Receive):
        return _REQUEST_BYTES + sum([_entry_bytes(entry) for entry in request.entries])
    if isinstance(request, PutDocument):
        return _REQUEST_BYTES + len(request.document)
    return _REQUEST_BYTES


def _entry_bytes(entry: OutboxEntry) -> int:
    what = entry.what
    if isinstance(what, Letter):
        return _REQUEST_BYTES + len(what.body) + len(what.props)
    return _REQUEST_BYTES + sum(map(len, what.bodies)) + sum(map(len, what.props))


class Asked:
    """A request that is not answered yet."""

    __slots__ = ("done", "passes", "request", "size_bytes")

    def __init__(self, request: Request, done: Done) -> None:
        self.request = request
        self.done = done
        self.size_bytes = size_of(request)
        self.passes = type(request) in _PASSES


class Asking:
    def __init__(self, send: Callable[[int, Asked], None]) -> None:
        self._send = send
        self._last = 0
        self._all: dict[int, Asked] = {}  # by number, in the order in which they were asked
        self._held: dict[int, Asked] = {}  # of those, what was not sent
        self._bytes = 0  # of all
        self._under_way_bytes = 0  # of those that were sent and do not pass
        self.credit_bytes = 0
        self.is_open = False  # there is a leader
        self.is_full = False  # … which does not take what is sent

    def __contains__(self, number: int) -> bool:
        return number in self._all

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def ask(self, request: Request, done: Done) -> int:
        """Send it, now or when it may be; its number. Raises Unavailable if too much waits already."""
        asked = Asked(request, done)
        share = 2 if type(request) in _REFUSED_LATE else 1
        if self._bytes > MAX_BYTES * share or len(self._all) >= MAX_COUNT * share:
            raise Unavailable(
                f"{len(self._all)} requests with {self._bytes >> 20} MiB wait for the process that has the queue, it "
                "does not keep up; try again later"
            )
        number = self.next_number()
        self._all[number] = asked
        self._bytes += asked.size_bytes
        if self._may_be_sent(asked):
            self._go(number, asked)
        else:
            self._held[number] = asked
        return number

    def _may_be_sent(self, asked: Asked) -> bool:
        if asked.passes:
            return self.is_open
        return not self._held and self._has_credit(asked)

    def _has_credit(self, asked: Asked) -> bool:
        """What is larger than all the credit there is goes alone."""
        under_way = self._under_way_bytes
        return (
            self.is_open and not self.is_full and (not under_way or under_way + asked.size_bytes <= self.credit_bytes)
        )

    def _go(self, number: int, asked: Asked) -> None:
        if not asked.passes:
            self._under_way_bytes += asked.size_bytes
        self._send(number, asked)

    def open(self, credit_bytes: int) -> None:
        """There is a leader: ask it for what waits."""
        self.is_open, self.is_full, self.credit_bytes = True, False, credit_bytes
        for number, asked in list(self._held.items()):
            if asked.passes:
                del self._held[number]
                self._go(number, asked)
        self.go_on()

    def close(self) -> None:
        self.is_open = False

    def go_on(self) -> None:
        """Send what was held back, as far as it may be."""
        held = self._held
        while held and self.is_open:
            number = next(iter(held))
            asked = held[number]
            if not self._has_credit(asked):
                return
            del held[number]
            self._go(number, asked)

    def end(self, number: int) -> Asked:
        """It was answered, or nobody waits for it any more."""
        asked = self._all.pop(number)
        self._bytes -= asked.size_bytes
        if self._held.pop(number, None) is None and not asked.passes:
            self._under_way_bytes -= asked.size_bytes
        if self._held:
            self.go_on()
        return asked

    def hold(self, number: int) -> None:
        """It was sent, and is to be sent again."""
        self._held[number] = self._all[number]

    def is_held(self, number: int) -> bool:
        return number in self._held

    def numbers(self) -> list[int]:
        return list(self._all)

    def __getitem__(self, number: int) -> Asked:
        return self._all[number]


def tell(done: Done, answer: Any) -> None:
    """One that fails to take its answer keeps nobody else from theirs."""
    try:
        done(answer)
    except Exception:
        log.exception("a caller failed to take its answer")
