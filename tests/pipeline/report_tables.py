"""Hand-made tables for the report: a short day with an outage, in the columns that the jobs write."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 11, 16, 18, 0, tzinfo=UTC)
QUEUES = {
    "payments": "critical",
    "fraud-checks": "critical",
    "orders": "normal",
    "emails": "normal",
    "analytics": "low",
}
OBJECTIVES = {"critical": 5.0, "normal": 30.0, "low": 300.0}


def traffic(steps: int = 48, step_seconds: int = 2) -> list[dict[str, Any]]:
    rows = []
    for number, queue in enumerate(QUEUES):
        waiting = 0
        for at in range(steps):
            published = round((20 + 12 * number) * (1 + math.sin(math.pi * at / steps)))
            is_down = queue in ("payments", "orders", "emails") and 0.45 <= at / steps < 0.62
            acked = 0 if is_down else min(waiting + published, round((20 + 12 * number) * 2.6))
            waiting += published - acked
            rows.append(
                {
                    "time": START + timedelta(seconds=at * step_seconds),
                    "step_seconds": step_seconds,
                    "vhost": "/",
                    "queue": queue,
                    "published": published,
                    "delivered": acked,
                    "redelivered": acked // 20,
                    "acked": acked,
                    "died": acked // 50,
                    "waiting": waiting,
                    "unreceived": waiting,
                    "wait_p95_ms": None if is_down else 15.0 + 30 * waiting,
                }
            )
    return rows


def slo_queues() -> list[dict[str, Any]]:
    rows = []
    for number, (queue, tier) in enumerate(QUEUES.items()):
        late = (410, 0, 0, 130, 0)[number]
        measured = 4000 * (number + 1)
        rows.append(
            {
                "vhost": "/",
                "queue": queue,
                "tier": tier,
                "measured": measured,
                "late": late,
                "missed": 60 if queue == "emails" else 0,
                "overdue": 0,
                "wait_p50_ms": 8.0 * (number + 1),
                "wait_p95_ms": 400.0 * (number + 1),
                "wait_p99_ms": 9_200.0,
                "wait_max_ms": 14_500,
                "objective_seconds": OBJECTIVES[tier],
                "objective_share": 0.999,
                "within_share": 1 - late / measured,
                "budget_hours": 0.72,
                "budget_left_hours": 720 * (0.001 - late / measured),
            }
        )
    return rows


FATES = (
    "acked expired shed rejected max_receives deleted retention purged queue_deleted moved redriven dead waiting "
    "delayed leased"
).split()


def audit_fates() -> list[dict[str, Any]]:
    return [
        {
            "partition": 0,
            "vhost": "/",
            "queue": queue,
            "queue_number": number + 1,
            "published": 4000 * (number + 1),
            "moved_in": 0,
            "copied_in": 0,
            "from_before": 0,
            **dict.fromkeys(FATES, 0),
            "acked": 4000 * (number + 1) - 40,
            "dead": 40,
        }
        for number, queue in enumerate(QUEUES)
    ]


def audit_verdict(violations: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "verdict": "violated" if violations else "clean",
            "violations": violations,
            "is_whole": True,
            "first_position": 1,
            "last_position": 5231,
            "until": START + timedelta(minutes=2),
            "events": 182_340,
            "published": 60_000,
            "moved_in": 0,
            "copied_in": 0,
            "from_before": 0,
            **dict.fromkeys(FATES, 0),
        }
    ]


def violations() -> list[dict[str, Any]]:
    return [
        {
            "partition": 0,
            "position": 812,
            "index": 3,
            "time": START,
            "type": "acked_twice",
            "vhost": "/",
            "queue": "orders",
            "queue_number": 3,
            "message": 9123,
            "message_id": "01JCT3X5W8-000000002393",
            "words": "acked again at commit 812, index 3",
        }
    ]


KEYS = (
    ("payments", "hooli-001", 4),
    ("emails", "hooli-001", 3),
    ("orders", "acme-001", 2),
    ("orders", "globex-001", 1),
)


def hotkeys_keys() -> list[dict[str, Any]]:
    return [
        {
            "vhost": "/",
            "queue": queue,
            "key": key,
            "published": 310 * n,
            "bytes": 9,
            "per_second": 3.4 * n,
            "share": n / 50,
        }
        for queue, key, n in KEYS
    ]


def hotkeys_tenants() -> list[dict[str, Any]]:
    shares = {"hooli": 0.36, "acme": 0.24, "globex": 0.18, "initech": 0.12, "umbrella": 0.06, None: 0.04}
    return [
        {"tenant": name, "published": int(60_000 * share), "bytes": 9, "per_second": 660 * share, "share": share}
        for name, share in shares.items()
    ]


def hotkeys_partitions() -> list[dict[str, Any]]:
    times = (0.3, 0.4, 3.9, 0.8, 0.0, 1.2, 0.9, 0.5)
    return [
        {
            "partition": at,
            "published": int(7_500 * one),
            "bytes": 9,
            "units": 1,
            "per_second": 83 * one,
            "share": one / 8,
            "times_mean": one,
            "is_hot": one > 2,
            "top_vhost": "/" if one else None,
            "top_queue": "orders" if one else None,
            "top_key": None,
        }
        for at, one in enumerate(times)
    ]


DEATHS = (
    ("payments", "rejected", "InvalidAmount: <text> is not a decimal number (invoice INV-<n>)", 31),
    ("payments", "rejected", "LedgerRefused: account <n> is closed since <n> (request <hex>)", 19),
    ("emails", "expired", "", 260),
    ("emails", "rejected", "SMTP <n> <n> <customer<n>@mail.example>: mailbox does not exist", 44),
    ("orders", "max_receives", "", 22),
    ("analytics", "overflow", "", 133),
)


def deadletters() -> list[dict[str, Any]]:
    return [
        {
            "hour": START,
            "vhost": "/",
            "queue": queue,
            "reason": reason,
            "signature": signature,
            "letters": letters,
            "waiting": letters - 1,
            "first_at": START + timedelta(seconds=3),
            "last_at": START + timedelta(seconds=80),
            "example": signature.replace("<n>", "4711").replace("<text>", '"12,50"') or None,
            "sample_message_ids": [f"01JCT3X5W8-00000000{at:04d}" for at in range(3)],
        }
        for queue, reason, signature, letters in DEATHS
    ]


def capacity_queues() -> list[dict[str, Any]]:
    hours = {"emails": 3.5, "orders": 90.0, "payments": 0.0}
    return [
        {
            "vhost": "/",
            "queue": queue,
            "arrived": 9_000,
            "acked": 8_900,
            "arrival_max_per_second": 61.5 * (number + 1),
            "arrival_peak_per_second": 80.0,
            "consumer_per_second": 55.25,
            "consumers": 3,
            "consumers_needed": 2 * (number + 1),
            "partitions_needed": 1,
            "backlog": 110 * number,
            "backlog_per_hour": 125.0 if queue in hours else -3.0,
            "backlog_limit": None if queue == "analytics" else 100_000,
            "exceeds_in_hours": hours.get(queue),
            "exceeds_at": START + timedelta(hours=hours[queue]) if queue in hours else None,
        }
        for number, queue in enumerate(QUEUES)
    ]


def tables() -> dict[str, list[dict[str, Any]]]:
    return {
        "traffic": traffic(),
        "slo_queues": slo_queues(),
        "hotkeys_keys": hotkeys_keys(),
        "hotkeys_tenants": hotkeys_tenants(),
        "hotkeys_partitions": hotkeys_partitions(),
        "deadletters": deadletters(),
        "capacity_queues": capacity_queues(),
        "audit_verdict": audit_verdict(),
        "audit_fates": audit_fates(),
        "audit_violations": [],
    }
