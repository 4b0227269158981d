"""Events of a made-up afternoon: a seed in, rows out, in the order a server would write them. Plain Python, so that
what the jobs count can be counted again without Spark.

Three queues with tiers, tenants, skewed keys, consumers that ack, release, reject and die, delays, lives that end,
letters that are kept, moved, dropped and redriven, and a purge.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.pipeline.events import Row, row

QUEUES = {
    "orders": {"queue": "orders", "queue_number": 1, "tier": "critical"},
    "mail": {"queue": "mail", "queue_number": 2, "tier": "normal"},
    "reports": {"queue": "reports", "queue_number": 3, "tier": "low"},
    "dead": {"queue": "dead", "queue_number": 4, "tier": "low"},
}
SECONDS_TO_WORK = {"orders": 1.5, "mail": 4.0, "reports": 30.0, "dead": 5.0}


@dataclass
class Message:
    number: int
    id: str
    visible_at: float
    expires_at: float | None
    priority: int
    receives: int = 0


@dataclass
class Afternoon:
    """The state of the made-up server, and all it wrote."""

    seed: int
    chance: random.Random = field(init=False)
    rows: list[Row] = field(default_factory=list)
    waiting: dict[str, list[Message]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    leased: list[tuple[float, str, Message, str]] = field(default_factory=list)  # until, queue, message, how it ends
    kept: list[tuple[str, Message]] = field(default_factory=list)
    next_number: int = 1

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def write(self, time: float, kind: str, queue: str, message: Message | None = None, **given: Any) -> None:
        about = {} if message is None else {"message_id": message.id}
        number = None if message is None else message.number
        self.rows.append(row(time, kind, number, **QUEUES[queue], **about, **given))

    def number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def publish(self, time: float, queue: str) -> None:
        chance, number = self.chance, self.number()
        delay = chance.choice([0, 0, 0, 0, 20])
        life = chance.choice([None, None, 45.0 + delay])
        message = Message(number, f"id-{number}", time + delay, life and time + life, chance.randrange(4))
        self.write(
            *(time, "published", queue, message),
            visible_at=time + delay,
            expires_at=message.expires_at,
            priority=message.priority,
            tenant=chance.choice(["acme", "acme", "acme", "umbrella", None]),
            key=f"key-{min(int(chance.expovariate(0.4)), 30)}",
            size=chance.randrange(100, 2000),
            attributes={"region": chance.choice(["eu", "us"])},
        )
        self.waiting[queue].append(message)

    def lease(self, time: float, queue: str, consumer: str) -> None:
        ready = [one for one in self.waiting[queue] if one.visible_at <= time]
        if not ready:
            return
        message = max(ready, key=lambda one: (one.priority, -one.number))
        self.waiting[queue].remove(message)
        message.receives += 1
        work = self.chance.expovariate(1 / SECONDS_TO_WORK[queue])
        how = self.chance.choices(["ack", "release", "reject", "lapse"], [80, 8, 6, 6])[0]
        self.write(
            time, "leased", queue, message, receive_count=message.receives, consumer=consumer, deadline=time + 60
        )
        self.leased.append((time + (60 if how == "lapse" else round(work, 3)), queue, message, how))

    def settle(self, time: float, queue: str, message: Message, how: str) -> None:
        if how == "ack":
            self.write(time, "acked", queue, message)
        elif how == "reject":
            words = self.chance.choice(["no stock for item {}", "user '{}' unknown", "code 0x{:08x}"])
            self.bury(time, queue, message, "rejected", words.format(self.chance.randrange(10_000)))
        elif message.receives >= 3:
            self.bury(time, queue, message, "max_receives", "")
        else:
            delay = self.chance.choice([0, 10])
            reason = "released" if how == "release" else "lease_expired"
            self.write(time, "released", queue, message, reason=reason, visible_at=time + delay)
            message.visible_at = time + delay
            self.waiting[queue].append(message)

    def bury(self, time: float, queue: str, message: Message, reason: str, detail: str) -> None:
        """orders has a dead-letter queue, mail keeps its letters, the others drop them."""
        words = {"reason": reason, "detail": detail or None}
        if queue == "orders":
            self.move(time, queue, "dead", message, **words)
        elif queue == "mail":
            self.write(time, "dead_lettered", queue, message, **words)
            self.kept.append((queue, message))
        else:
            self.write(time, "removed", queue, message, reason=reason, detail=f"not kept: {detail}".rstrip(": "))

    def move(self, time: float, queue: str, target: str, message: Message, **words: Any) -> None:
        number = self.number()
        self.write(
            *(time, "moved", queue, message),
            **{"target_vhost": "/", "target_queue": target, "target_message": number, **words},
        )
        self.waiting[target].append(Message(number, message.id, time, None, message.priority))

    def second(self, time: float) -> None:
        for until, queue, message, how in sorted(self.leased, key=lambda one: one[0]):
            if until < time:
                self.leased.remove((until, queue, message, how))
                self.settle(until, queue, message, how)
        for queue, waiting in self.waiting.items():
            for message in [one for one in waiting if one.expires_at is not None and one.expires_at < time]:
                waiting.remove(message)
                self.bury(time, queue, message, "expired", "")
        if self.kept and self.chance.random() < 0.02:
            queue, message = self.kept.pop(0)
            self.move(time, queue, queue, message, reason="redriven")
        for queue, rate in (("orders", 0.8), ("mail", 0.5), ("reports", 0.15)):
            if self.chance.random() < rate:
                self.publish(time + 0.125, queue)
        is_outage = 300 <= time < 420
        for queue, consumers in (("orders", 2), ("mail", 2), ("reports", 3)):
            for number in range(0 if is_outage and queue == "orders" else consumers):
                if self.chance.random() < 0.4:
                    self.lease(time + 0.25, queue, f"{queue}-{number}")
        if time % 100 == 99 and self.chance.random() < 0.5:
            self.lease(time + 0.5, "dead", "undertaker")
        if time == 500:
            self.write(time + 0.75, "queue_purged", "reports", message=None)
            self.rows[-1]["message"] = self.next_number
            self.waiting["reports"].clear()


def afternoon(seed: int, seconds: int = 900) -> list[Row]:
    """So many seconds of it."""
    made = Afternoon(seed)
    for queue in QUEUES:
        made.write(0, "queue_put", queue)
    for time in range(1, seconds):
        made.second(float(time))
    return made.rows
