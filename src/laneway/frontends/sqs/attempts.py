"""ReceiveRequestAttemptId: a receive from a FIFO queue whose answer was lost is repeated, and gets the same messages.

Remembered are the receipt handles, not the messages: the broker reads those again. In memory, as a client asks for a
lost answer soon or never: after a restart a repeat is a receive like any other.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple

from laneway.broker.interface import Broker, QueueId
from laneway.broker.values import Deliveries
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.errors import value_invalid
from laneway.frontends.sqs.queue_attributes import View

LIFE_MS = 300_000
MOST_REMEMBERED = 10_000
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AttemptKey(NamedTuple):
    queue: QueueId
    account: str
    id: str


class Attempt(NamedTuple):
    at_ms: int  # when it was first answered
    tokens: list[str]
    deadline_ms: int  # of all of them; another one now means that somebody has changed it


class Attempts:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: OrderedDict[AttemptKey, Attempt] = OrderedDict()  # answered longest ago first

    def key(self, ask: Ask, view: View, attempt_id: str) -> AttemptKey | None:
        """None if the receive is not to be remembered."""
        if not _ID.fullmatch(attempt_id):
            raise value_invalid(
                attempt_id,
                "ReceiveRequestAttemptId",
                "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.",
            )
        return AttemptKey(view.queue, ask.caller.account.name, attempt_id) if view.is_fifo else None

    def find(self, key: AttemptKey) -> Attempt | None:
        """None if it is new, or too old."""
        known = self._known.get(key)
        return known if known is not None and known.at_ms + LIFE_MS > self._broker.now() else None

    def note(self, key: AttemptKey, deliveries: Deliveries) -> None:
        """Remember what it is answered with now, for the first time or again."""
        now_ms = self._broker.now()
        known = self._known.pop(key, None)
        if not len(deliveries):
            return
        tokens = deliveries.tokens()
        at_ms = known.at_ms if known is not None and known.tokens == tokens else now_ms
        self._known[key] = Attempt(at_ms, tokens, deliveries.deadline_ms)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        while self._known and next(iter(self._known.values())).at_ms + LIFE_MS <= now_ms:
            self._known.popitem(last=False)
