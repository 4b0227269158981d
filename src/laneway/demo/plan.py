"""What will be published, and what will go wrong: the whole scenario, drawn from a seed before anything is sent.

It is the shape of an hour — a morning, a peak, a burst of one tenant, an outage, an evening — squeezed into a minute or
two. Rates are squeezed, times are not: an hour's worth of messages comes in a minute, but a second of waiting is a
second, a lease lasts as long as it says, and the objectives of the tiers are the real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

NOISY = "hooli"
TENANTS = {"acme": 30, "globex": 22, "initech": 16, "umbrella": 12, "wayne": 8, NOISY: 12}  # shares, in percent
REGIONS = {"eu": 45, "us": 35, "ap": 20}
KEYS_PER_TENANT = 120
ZIPF = 1.15  # the k-th key of a tenant is as frequent as k to the power of minus this

#: Parts of the hour, from 0 to 1.
BURST = (0.18, 0.34)
OUTAGE = (0.45, 0.62)

# What the payload's field "fault" does to the consumer that handles it.
TRANSIENT = "transient"  # fails at first, works when it comes back
ALWAYS = "always"  # fails each time, is given back each time, runs out of tries
CRASH_ONCE = "crash_once"  # the consumer says nothing more; the lease ends by itself
CRASH = "crash"  # the same, each time
POISON = "poison"  # rejected at once, with words

ERRORS: dict[str, tuple[str, ...]] = {
    "payments": (
        'InvalidAmount: "{n},{m}" is not a decimal number (invoice INV-{k})',
        "LedgerRefused: account {k} is closed since 2024-{m:02d}-11 (request {h})",
    ),
    "orders": (
        "KeyError: 'shipping_address' in order ORD-{k}",
        "SchemaError: items[{m}].sku must be text, not null (order ORD-{k})",
        "PriceMismatch: basket says {n}.90 EUR, catalogue says {m}.90 EUR",
    ),
    "emails": (
        "SMTP 550 5.1.1 <customer{k}@mail.example>: mailbox does not exist",
        "TemplateError: line {m}: variable 'first_name' is undefined (template {h})",
    ),
}


@dataclass(frozen=True)
class DemoQueue:
    """One queue of the scenario. Rates and bounds are worked out from the plan's."""

    name: str
    tier: str
    share: float  # of all messages
    headroom: float  # what its consumers manage, over its average rate
    consumers: int
    batch: int
    faults: dict[str, float] = field(default_factory=dict)  # fault -> share of the messages
    max_receives: int = 5
    dead_letter_queue: str | None = None
    is_down: bool = False  # in the outage
    expiring: float = 0.0  # share of the messages that have a time to live
    delayed: float = 0.0  # share that is published for later
    is_bounded: bool = False  # takes only so many, and pushes out the oldest
    is_short: bool = False  # short leases, for consumers that crash


LANES = (
    DemoQueue(
        "payments", "critical", 0.20, 2.4, 2, 4, {POISON: 0.012, TRANSIENT: 0.03}, 4, "payments-dead", is_down=True
    ),
    DemoQueue("fraud-checks", "critical", 0.10, 2.0, 2, 2, {CRASH: 0.010, CRASH_ONCE: 0.02}, 3, is_short=True),
    DemoQueue(
        "orders", "normal", 0.30, 2.0, 3, 6, {POISON: 0.008, TRANSIENT: 0.02, ALWAYS: 0.004}, is_down=True, delayed=0.03
    ),
    DemoQueue("emails", "normal", 0.25, 1.5, 2, 8, {POISON: 0.010, TRANSIENT: 0.01}, is_down=True, expiring=0.15),
    DemoQueue("analytics", "low", 0.15, 1.12, 1, 10, is_bounded=True),
)


@dataclass(frozen=True)
class Planned:
    """One message, and when it is to be published, in seconds from the start."""

    at_s: float
    priority: int
    tenant: str
    key: str
    payload: dict[str, Any]
    attributes: dict[str, str]
    ttl_s: float | None = None
    delay_s: float | None = None

    def to_client(self) -> dict[str, Any]:
        """As Client.publish_batch takes it."""
        return {
            "payload": self.payload,
            "priority": self.priority,
            "tenant": self.tenant,
            "key": self.key,
            "attributes": self.attributes,
            "ttl_seconds": self.ttl_s,
            "delay_seconds": self.delay_s,
        }


@dataclass(frozen=True)
class Plan:
    seconds: float
    seed: int
    rate: float  # messages a second, on average
    messages: dict[str, list[Planned]]  # by queue, in order

    @property
    def message_count(self) -> int:
        return sum(map(len, self.messages.values()))

    def settings(self, lane: DemoQueue) -> dict[str, Any]:
        """What the queue is created with."""
        settings: dict[str, Any] = {
            "tier": lane.tier,
            "max_receive_count": lane.max_receives,
            "visibility_timeout": self.lease_s(lane),
        }
        if lane.dead_letter_queue:
            settings["dead_letter_queue"] = lane.dead_letter_queue
        if lane.is_bounded:
            settings |= {"max_messages": max(10, int(self.rate * lane.share * self.seconds * 0.03))}
            settings["overflow"] = "drop_oldest"
        return settings

    def lease_s(self, lane: DemoQueue) -> float:
        """Long enough for a consumer that is alive on a machine that is busy."""
        return round(min(2.0, max(1.0, self.seconds / 45)), 3) if lane.is_short else 60.0

    def service_s(self, lane: DemoQueue) -> float:
        """How long a consumer works on one message, on average."""
        return lane.consumers / (self.rate * lane.share * lane.headroom)

    def is_out(self, lane: DemoQueue, at_s: float) -> bool:
        """Whether the consumers of this queue are down at that moment."""
        return lane.is_down and OUTAGE[0] * self.seconds <= at_s < OUTAGE[1] * self.seconds

    def chapter(self, at_s: float) -> str:
        """What is going on at that moment, in words."""
        hour = at_s / self.seconds
        if hour >= 1:
            return "the evening: nothing new comes, what is left is worked off"
        if OUTAGE[0] <= hour < OUTAGE[1]:
            return f"an outage: the consumers of {', '.join(x.name for x in LANES if x.is_down)} are down"
        if BURST[0] <= hour < BURST[1]:
            return f"the tenant {NOISY} sends far more mail than usual"
        if hour >= OUTAGE[1]:
            return "the consumers are back and work off what has piled up"
        return "a usual morning" if hour < BURST[0] else "noon: the peak of the hour"


def draw(seconds: float, seed: int, rate: float = 250.0) -> Plan:
    """The scenario for this seed; the same arguments give the same messages."""
    plan = Plan(seconds, seed, rate, {})
    for lane in LANES:
        random = Random(f"{seed}/{lane.name}")
        count = max(1, round(rate * seconds * lane.share))
        times = [_moment(random) for _ in range(count)]
        messages = [_message(random, lane, plan, number, at * seconds) for number, at in enumerate(times)]
        if lane.name == "emails":
            messages += _burst(random, lane, plan, count)
        plan.messages[lane.name] = sorted(messages, key=lambda planned: planned.at_s)
    return plan


def _moment(random: Random) -> float:
    """A time of the hour: few at its ends, most in the middle."""
    while True:
        at = random.random()
        if random.random() * 1.35 < 0.65 + 0.6 * math.sin(math.pi * at) ** 2 + 0.1 * math.sin(23 * at):
            return at


def _burst(random: Random, lane: DemoQueue, plan: Plan, usual: int) -> list[Planned]:
    start, end = BURST
    times = [random.uniform(start, end) * plan.seconds for _ in range(round(usual * 0.45))]
    return [_message(random, lane, plan, usual + number, at, tenant=NOISY) for number, at in enumerate(times)]


def _message(random: Random, lane: DemoQueue, plan: Plan, number: int, at_s: float, tenant: str = "") -> Planned:
    tenant = tenant or random.choices(*_columns(TENANTS))[0]
    key = f"{tenant}-{_zipf(random):03d}"
    region = random.choices(*_columns(REGIONS))[0]
    payload: dict[str, Any] = {
        "id": f"{lane.name}-{number:06d}",
        "customer": key,
        "amount": round(random.lognormvariate(3.2, 0.9), 2),
        "text": "lorem ipsum dolor sit amet "[: random.randint(5, 27)] * random.randint(1, 6),
    }
    fault = _fault(random, lane)
    if fault:
        payload["fault"] = fault
    if fault == POISON:
        template = random.choices(ERRORS[lane.name], [3, 2, 1][: len(ERRORS[lane.name])])[0]
        payload["error"] = template.format(
            n=random.randint(10, 99),
            m=random.randint(1, 9),
            k=random.randint(10_000, 99_999),
            h=f"{random.getrandbits(64):016x}",
        )
    # A fault and a time to live in one message would leave its end to chance, and the count could not be exact.
    ttl_s = None
    if not fault and random.random() < lane.expiring:
        ttl_s = round(max(0.3, plan.seconds * random.uniform(0.03, 0.08)), 3)
    delay_s = round(random.uniform(0.2, min(5.0, plan.seconds / 10)), 3) if random.random() < lane.delayed else None
    return Planned(at_s, _priority(random, lane), tenant, key, payload, {"region": region}, ttl_s, delay_s)


def _fault(random: Random, lane: DemoQueue) -> str:
    at = random.random()
    for fault, upto in zip(lane.faults, accumulate(lane.faults.values()), strict=True):
        if at < upto:
            return fault
    return ""


def _priority(random: Random, lane: DemoQueue) -> int:
    if lane.tier == "low":
        return 1
    return random.choices((9, 7, 5, 3), (8, 22, 50, 20))[0]


def _columns(shares: dict[str, int]) -> tuple[list[str], list[int]]:
    return list(shares), list(shares.values())


def _zipf_weights() -> Callable[[Random], int]:
    weights = list(accumulate(1 / rank**ZIPF for rank in range(1, KEYS_PER_TENANT + 1)))
    ranks = range(1, KEYS_PER_TENANT + 1)
    return lambda random: random.choices(ranks, cum_weights=weights)[0]


_zipf = _zipf_weights()
