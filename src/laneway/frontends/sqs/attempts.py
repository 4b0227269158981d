"""ReceiveRequestAttemptId: a receive from a FIFO queue whose answer was lost is repeated, and gets the same messages.

Remembered are the receipt handles, not the messages: those are read again. In memory, as a lost answer is asked for
soon or never: after a restart a repeat is a receive like any other.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from laneway.broker.broker import Broker
from laneway.broker.values import Delivery
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.errors import value_invalid
from laneway.frontends.sqs.queue_attributes import View

LIFE_MS = 300_000
MOST_REMEMBERED = 10_000
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AttemptKey(NamedTuple):
    vhost: str
    queue: str
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
        return AttemptKey(ask.caller.vhost, view.name, ask.caller.account.name, attempt_id) if view.is_fifo else None

    def again(self, key: AttemptKey, lease_ms: int | None) -> list[Delivery] | None:
        """What it was answered with, held anew from now on; None if it is new, too old, or no longer held as it was."""
        known = self._known.get(key)
        if known is None or known.at_ms + LIFE_MS <= self._broker.now():
            return None
        return self._broker.lease_again(key.vhost, key.queue, known.tokens, known.deadline_ms, lease_ms)

    def note(self, key: AttemptKey, deliveries: Sequence[Delivery]) -> None:
        """What is answered now, for the first time or again."""
        now_ms = self._broker.now()
        known = self._known.pop(key, None)
        if not deliveries:
            return
        tokens = [d.token for d in deliveries]
        is_repeat = known is not None and known.tokens == tokens
        at_ms = known.at_ms if known is not None and is_repeat else now_ms
        self._known[key] = Attempt(at_ms, tokens, deliveries[0].deadline_ms)
        while len(self._known) > MOST_REMEMBERED or next(iter(self._known.values())).at_ms + LIFE_MS <= now_ms:
            self._known.popitem(last=False)
