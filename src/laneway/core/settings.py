"""A queue's configuration: its fields, defaults, ranges, and what is said when a value is out of range."""

from __future__ import annotations

from typing import Literal

import msgspec

from laneway.errors import InvalidInput

SECOND_MS = 1_000
DAY_MS = 86_400_000

#: field -> (lowest, highest); None is allowed where the default is None.
RANGES: dict[str, tuple[int, int]] = {
    "max_priority": (0, 255),
    "default_priority": (0, 255),
    "lease_ms": (0, 43_200 * SECOND_MS),
    "retention_ms": (60 * SECOND_MS, 14 * DAY_MS),
    "delay_ms": (0, 900 * SECOND_MS),
    "message_ttl_ms": (0, 14 * DAY_MS),
    "max_receives": (1, 1_000_000),
    "max_messages": (1, 1 << 40),
    "max_bytes": (1, 1 << 50),
    "dedup_window_ms": (0, DAY_MS),
    "max_message_bytes": (1, 256 * 1024 * 1024),
}


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be set on a queue. Times are in milliseconds; None means "no limit" or "not set"."""

    max_priority: int = 10
    default_priority: int | None = None  # None: the middle, (max_priority + 1) // 2
    lease_ms: int = 30 * SECOND_MS
    retention_ms: int = 7 * DAY_MS
    delay_ms: int = 0
    message_ttl_ms: int | None = None
    max_receives: int | None = 5
    dead_letter_queue: str | None = None  # a name in the same virtual host; None: dead letters stay in the queue
    max_messages: int | None = None
    max_bytes: int | None = None
    overflow: Literal["reject", "drop_oldest"] = "reject"
    dedup_window_ms: int = 300 * SECOND_MS
    max_message_bytes: int = 256 * 1024

    @property
    def priority_when_unset(self) -> int:
        if self.default_priority is not None:
            return self.default_priority
        return (self.max_priority + 1) // 2


def check_settings(settings: QueueSettings) -> QueueSettings:
    """Raise InvalidInput naming the first field out of its range; return the settings otherwise."""
    for field, (lowest, highest) in RANGES.items():
        value = getattr(settings, field)
        if value is not None and not lowest <= value <= highest:
            raise InvalidInput(f"{field} must be from {lowest} to {highest}, not {value}", field=field)
    if settings.default_priority is not None and settings.default_priority > settings.max_priority:
        raise InvalidInput(
            f"default_priority {settings.default_priority} is above max_priority {settings.max_priority}",
            field="default_priority",
        )
    if settings.dead_letter_queue is not None:
        check_queue_name(settings.dead_letter_queue, field="dead_letter_queue")
    return settings


def check_queue_name(name: str, *, field: str = "queue") -> str:
    """A queue name is 1 to 255 bytes of UTF-8 without control characters."""
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= 255:
        raise InvalidInput(
            f"a queue name has 1 to 255 bytes, this one has {len(name.encode('utf-8', 'surrogatepass'))}", field=field
        )
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise InvalidInput(f"a queue name has no control characters: {name!r}", field=field)
    return name
