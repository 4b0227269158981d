"""A queue's configuration: its fields, defaults, ranges, and what is said when a value is out of range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from laneway.errors import InvalidInput

_encode = msgspec.msgpack.encode

SECOND_MS = 1_000
DAY_MS = 86_400_000

#: field -> (lowest, highest); None is allowed where the default is None.
RANGES: dict[str, tuple[int, int]] = {
    "max_priority": (0, 255),
    "default_priority": (0, 255),
    "lease_ms": (0, 43_200 * SECOND_MS),
    "retention_ms": (60 * SECOND_MS, 14 * DAY_MS),
    "delay_ms": (0, 900 * SECOND_MS),
    "message_ttl_ms": (0, (1 << 32) - 1),
    "max_receives": (1, 1_000_000),
    "max_messages": (0, 1 << 40),
    "max_bytes": (0, 1 << 50),
    "dedup_window_ms": (0, DAY_MS),
    "max_message_bytes": (1, 256 * 1024 * 1024),
    "expires_ms": (1, (1 << 32) - 1),
    "retry_delay_ms": (1, (1 << 32) - 1),
    "max_retry_delay_ms": (1, (1 << 32) - 1),
}

MAX_DEPTH = 16  # of lists and objects in arguments
MAX_ARGUMENTS_BYTES = 16 * 1024


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be set on a queue. Times are in milliseconds; None means "no limit" or "not set"."""

    max_priority: int = 10
    default_priority: int | None = None  # None: the middle, (max_priority + 1) // 2
    lease_ms: int = 30 * SECOND_MS
    retention_ms: int | None = 7 * DAY_MS  # None: a message is kept until it is settled
    delay_ms: int = 0
    message_ttl_ms: int | None = None
    max_receives: int | None = 5
    dead_letter_queue: str | None = None  # a name in the same virtual host; None: dead letters stay in the queue
    max_messages: int | None = None
    max_bytes: int | None = None
    #: reject: a newcomer is refused · drop_oldest: the oldest of the lowest priority becomes a dead letter ·
    #: reject_dead_letter: a newcomer is refused, and becomes a dead letter
    overflow: Literal["reject", "drop_oldest", "reject_dead_letter"] = "reject"
    dedup_window_ms: int = 300 * SECOND_MS
    max_message_bytes: int = 256 * 1024
    durable: bool = True  # False: gone when the store is opened again
    exclusive: bool = False  # one connection's alone, and gone when the store is opened again
    auto_delete: bool = False  # goes with its last consumer
    expires_ms: int | None = None  # goes when nobody has used it for so long
    dead_letter_exchange: str | None = None  # an exchange of the same virtual host, "" is the default one
    dead_letter_routing_key: str | None = None  # None: the one the message has
    keep_dead: bool = True  # without a place for dead letters they stay in the queue; False: they are dropped
    single_active_consumer: bool = False
    #: A message that comes back from a consumer waits for so long, times the deliveries it had; None: it is next again.
    retry_delay_ms: int | None = None
    max_retry_delay_ms: int | None = None  # … and so long at most
    retry_delay_after: Literal["any", "failure", "return"] = "any"  # whether it failed, or was merely given back
    #: How soon its messages are meant to be worked off. No more than a word for reports: see the pipeline's objectives.
    tier: Literal["critical", "normal", "low"] = "normal"
    fair: bool = False  # a tenant that holds much of what is leased lets those that hold little go first
    arguments: dict[str, Any] = {}  # as declared, for comparison and display: plain JSON values
    policy: str = ""  # the name of the policy that says more of it, and of the operators' one
    operator_policy: str = ""
    beneath: dict[str, Any] = {}  # what the settings would be that these have changed

    @property
    def priority_when_unset(self) -> int:
        if self.default_priority is not None:
            return self.default_priority
        return (self.max_priority + 1) // 2


def declared(settings: QueueSettings) -> QueueSettings:
    """What a queue was given by whoever declared or changed it, without what policies make of that."""
    if not (settings.policy or settings.operator_policy):
        return settings
    return msgspec.structs.replace(settings, **settings.beneath, policy="", operator_policy="", beneath={})


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
        if settings.dead_letter_exchange is not None:
            raise InvalidInput(
                "dead letters go to a dead_letter_queue or to a dead_letter_exchange, not to both",
                field="dead_letter_exchange",
            )
    if settings.dead_letter_exchange:
        check_queue_name(settings.dead_letter_exchange, field="dead_letter_exchange", noun="an exchange name")
    key = settings.dead_letter_routing_key
    if key is not None:
        if settings.dead_letter_exchange is None:
            raise InvalidInput(
                "dead_letter_routing_key needs a dead_letter_exchange to go with", field="dead_letter_routing_key"
            )
        if len(key.encode("utf-8", "surrogatepass")) > 255 or any(0xD800 <= ord(c) <= 0xDFFF for c in key):
            raise InvalidInput(
                f"a routing key has at most 255 bytes of UTF-8: {key[:80]!r}", field="dead_letter_routing_key"
            )
    if settings.arguments:
        check_arguments(settings.arguments)
    return settings


def check_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments are kept as JSON: what would come back as something else is refused."""
    check_bounds(arguments)
    if not _is_plain(arguments):
        raise InvalidInput("arguments hold text, numbers, booleans, null, lists and objects", field="arguments")
    return arguments


def check_bounds(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that are too large or nested too deep, before anything walks through them."""
    try:
        size = len(_encode(arguments))
    except (OverflowError, RecursionError, TypeError, ValueError) as wrong:
        raise InvalidInput(f"the arguments cannot be stored: {wrong}", field="arguments") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise InvalidInput(f"the arguments take {size} bytes, {MAX_ARGUMENTS_BYTES} are allowed", field="arguments")
    if not is_shallow(arguments):
        raise InvalidInput(f"the arguments are nested more than {MAX_DEPTH} deep", field="arguments")


def is_shallow(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether lists and objects are nested no deeper than that."""
    if isinstance(value, dict):
        return levels > 0 and all(is_shallow(inner, levels - 1) for inner in value.values())
    if isinstance(value, list):
        return levels > 0 and all(is_shallow(inner, levels - 1) for inner in value)
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_text(name) and _is_plain(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor "not a number"
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    return value is None or _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any(0xD800 <= ord(c) <= 0xDFFF for c in value)


def check_queue_name(name: str, *, field: str = "queue", noun: str = "a queue name") -> str:
    """A queue name is 1 to 255 bytes of UTF-8 without control characters; so are the others checked with this."""
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= 255:
        raise InvalidInput(
            f"{noun} has 1 to 255 bytes, this one has {len(name.encode('utf-8', 'surrogatepass'))}", field=field
        )
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise InvalidInput(f"{noun} has no control characters: {name!r}", field=field)
    return name
