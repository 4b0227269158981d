"""The messages of the AMQP cases, encoded before the measurement begins.

Users' messages differ, in what they hold and in their length, so these do too. Only `look_alike` has one property list
for all: a server may recognise it, which is why figures made with it say little about anybody's messages.
"""

from __future__ import annotations

import random
import string
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate

from benchmarks import amqp_frames as amqp

POOL_MESSAGES = 50_000
SERIAL_AT, SERIAL_DIGITS = 3, 8  # in a body: [["00012345","…
SPREAD = 0.1  # bodies are up to this much shorter or longer than their nominal size

Kind = Callable[[random.Random, int | None], bytes]
"""Makes the flags and properties of one more message, with this priority."""


class Pool:
    """Publish frames of distinct messages, one behind the other. Publishers send stretches of it, over and over."""

    def __init__(self, messages: Iterable[bytes]) -> None:
        frames = list(messages)
        self.count = len(frames)
        self.starts = array("Q", accumulate(map(len, frames), initial=0))
        self.content_bytes = array("Q", [len(one) - amqp.frame_length(one, 0) for one in frames])
        self.data = memoryview(b"".join(frames))


def look_alike(chance: random.Random, priority: int | None) -> bytes:
    return amqp.properties(priority=priority)


def with_message_id(chance: random.Random, priority: int | None) -> bytes:
    return amqp.properties(priority=priority, message_id=_uuid(chance))


def distinct(chance: random.Random, priority: int | None) -> bytes:
    """What an application sets by hand: ids, a time and a few headers."""
    return amqp.properties(
        content_type="application/json",
        headers={
            "customer": f"customer-{chance.randrange(100_000)}",
            "trace": f"{chance.getrandbits(128):032x}",
            "attempt": chance.randrange(1_000),
        },
        priority=priority,
        correlation_id=_uuid(chance),
        message_id=_uuid(chance),
        timestamp_s=1_700_000_000 + chance.randrange(100_000_000),
    )


_TASKS = [
    f"{app}.{task}"
    for app in ("shop.tasks", "billing.tasks", "reports.nightly.tasks")
    for task in ("send_mail", "make_invoice", "check_stock", "resize_thumbnail", "sync")
]


def celery_like(chance: random.Random, priority: int | None) -> bytes:
    """What Celery sends with a task."""
    task_id, order = _uuid(chance), chance.randrange(10_000_000)
    headers: dict[str, amqp.Value] = {
        "lang": "py",
        "task": chance.choice(_TASKS),
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": _uuid(chance) if chance.random() < 0.2 else None,
        "retries": chance.randrange(3),
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": _uuid(chance) if chance.random() < 0.3 else None,
        "argsrepr": f"({order}, 'customer-{chance.randrange(100_000)}')",
        "kwargsrepr": f"{{'amount': {chance.randrange(1_000_000)}}}",
        "origin": f"gen{chance.randrange(1, 30_000)}@web-{chance.randrange(20)}",
        "ignore_result": False,
    }
    return amqp.properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        priority=priority or 0,
        correlation_id=task_id,
        reply_to=_uuid(chance),
    )


def bodies(nominal_bytes: int, *, one_size: bool) -> Iterable[bytes]:
    """POOL_MESSAGES different bodies with their serial numbers."""
    chance = random.Random(1)
    text = "".join(chance.choices(string.ascii_letters + string.digits, k=POOL_MESSAGES + 2 * nominal_bytes))
    spread = 0 if one_size else int(nominal_bytes * SPREAD)
    framing = len(_body(0, ""))
    for serial in range(POOL_MESSAGES):
        size = nominal_bytes + chance.randint(-spread, spread) - framing
        yield _body(serial, text[serial : serial + size])


def _body(serial: int, filling: str) -> bytes:
    return f'[["{serial:0{SERIAL_DIGITS}d}","{filling}"]]'.encode()


def _uuid(chance: random.Random) -> str:
    digits = f"{chance.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
