"""The arguments that a queue or an exchange is declared with over AMQP (x-message-ttl and its like), as settings.

Here and not in a front end, because HTTP takes the same arguments: both must make the same queue of them. An argument
that nobody knows is kept and has no effect, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from laneway.broker.values import ExchangeSettings, QueueInfo
from laneway.core.settings import RANGES, QueueSettings, check_bounds, declared
from laneway.errors import InvalidInput, QueueExists

MAX_EXPIRY_MS = 10 * 365 * 86_400_000
ACK_TIMEOUT_MS = 30 * 60 * 1000
MIN_ACK_TIMEOUT_MS = 1000
UNLIMITED = -1  # as RabbitMQ writes a delivery limit that is none
DELIVERY_LIMIT = 20  # of a quorum queue that does not say one, as in RabbitMQ 4
QUEUE_TYPES = ("classic", "quorum")
EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")
RETRY_DELAY_MS = 1000
Version = Literal["3.10", "4.0"]  # of RabbitMQ: where their answers differ, the announced one's are given
_OF_CLASSIC = ("x-max-priority", "x-queue-mode", "x-queue-version")
_OF_QUORUM_OF_3 = (
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-max-in-memory-bytes",
    "x-max-in-memory-length",
    "x-quorum-initial-group-size",
)
_OF_QUORUM_SINCE_4 = ("x-delayed-retry-max", "x-delayed-retry-min", "x-delayed-retry-type")
_OF_STREAMS = ("x-initial-cluster-size", "x-max-age", "x-stream-filter-size-bytes", "x-stream-max-segment-size-bytes")
_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
DELAYED_TYPE = "x-delayed-message"

_RETRIES = {"all": "any", "failed": "failure", "returned": "return"}
_OVERFLOWS = {"drop-head": "drop_oldest", "reject-publish": "reject", "reject-publish-dlx": "reject_dead_letter"}
#: What a policy may say of a queue, by the argument that says the same: the setting, and whether it has a bound.
POLICY_SETTINGS = {
    "x-message-ttl": ("message_ttl_ms", True),
    "x-expires": ("expires_ms", True),
    "x-max-length": ("max_messages", True),
    "x-max-length-bytes": ("max_bytes", True),
    "x-overflow": ("overflow", False),
    "x-delivery-limit": ("max_receives", True),
    "x-dead-letter-exchange": ("dead_letter_exchange", False),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", False),
    "x-consumer-timeout": ("lease_ms", False),
}
#: What is about how RabbitMQ stores and copies queues, of which Laneway does its own. Taken, kept and shown.
POLICIES_WITHOUT_EFFECT = frozenset(
    {
        "dead-letter-strategy",
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "queue-leader-locator",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
    }
)
#: What AMQP calls the types of values.
_TYPE_NAMES = (
    (bool, "bool"),
    (int, "signedint"),
    (str, "longstr"),
    (float, "double"),
    (list, "array"),
    (dict, "table"),
    (bytes, "binary"),
)


class ArgumentInvalid(InvalidInput):
    """An argument that cannot be meant. `said` is what RabbitMQ says behind the queue's name, which clients show."""

    def __init__(self, argument: str, message: str, term: str, *, queue_type: str = "") -> None:
        super().__init__(message, field=f"arguments.{argument}", argument=argument)
        self.argument = argument
        self.said = f" of queue type rabbit_{queue_type}_queue" if queue_type else f": {term}"


def settings_from_arguments(
    arguments: Mapping[str, Any],
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    max_message_bytes: int,
    version: Version = "4.0",
) -> QueueSettings:
    """The settings of a queue as an AMQP client declares it. Raises ArgumentInvalid for the first wrong argument."""
    check_bounds(arguments)
    given = plain_arguments(arguments)
    values = _checked(given, version)
    usual = DELIVERY_LIMIT if values.get("x-queue-type") == "quorum" and version != "3.10" else None
    limit = values.get("x-delivery-limit", usual)
    retry = values.get("x-delayed-retry-type", "disabled")
    ttl_ms = values.get("x-message-ttl")
    return QueueSettings(
        durable=durable,
        exclusive=exclusive,
        auto_delete=auto_delete,
        max_priority=values.get("x-max-priority", 0),
        default_priority=0,
        lease_ms=ack_timeout_ms(values.get("x-consumer-timeout", ACK_TIMEOUT_MS)),
        retention_ms=None,
        message_ttl_ms=None if ttl_ms is None else min(ttl_ms, RANGES["message_ttl_ms"][1]),
        max_receives=None if limit is None else min(limit + 1, RANGES["max_receives"][1]),
        max_messages=_at_most(values.get("x-max-length"), "max_messages"),
        max_bytes=_at_most(values.get("x-max-length-bytes"), "max_bytes"),
        overflow=_OVERFLOWS[values.get("x-overflow", "drop-head")],  # type: ignore[arg-type]
        max_message_bytes=max_message_bytes,
        expires_ms=_at_most(values.get("x-expires"), "expires_ms"),
        dead_letter_exchange=values.get("x-dead-letter-exchange"),
        dead_letter_routing_key=values.get("x-dead-letter-routing-key"),
        keep_dead=False,
        single_active_consumer=values.get("x-single-active-consumer", False),
        retry_delay_ms=None if retry == "disabled" else values.get("x-delayed-retry-min", RETRY_DELAY_MS),
        max_retry_delay_ms=None if retry == "disabled" else values.get("x-delayed-retry-max"),
        retry_delay_after=_RETRIES.get(retry, "any"),  # type: ignore[arg-type]
        arguments=given,
    )


def settings_from_policy(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy says of queues, by setting. Raises ArgumentInvalid for the first wrong value, and InvalidInput for
    what no policy says here."""
    check_bounds(definition)
    given = {f"x-{name}": value for name, value in plain_arguments(definition).items()}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in POLICY_SETTINGS:
            field, most = POLICY_SETTINGS[name]
            # The exchange that the key goes with may be one that queues are declared with.
            check: Callable[[str, Any, dict[str, Any]], Any] = _text if "routing-key" in name else _CHECKS[name]
            value = check(name, value, given)
            if field == "overflow":
                value = _OVERFLOWS[value]
            elif field == "max_receives":
                value = None if value is None else value + 1
            elif field == "lease_ms":
                value = ack_timeout_ms(value)
            found[field] = _at_most(value, field) if most else value
        elif name.removeprefix("x-") not in POLICIES_WITHOUT_EFFECT:
            raise InvalidInput(
                f"{name.removeprefix('x-')} is no setting of a policy here", field=name.removeprefix("x-")
            )
    return found


def _checked(given: dict[str, Any], version: Version) -> dict[str, Any]:
    """The arguments that have a meaning, in the order in which RabbitMQ looks at them: those that fit the type of the
    queue first, then whether there are others."""
    values: dict[str, Any] = {}
    kind = "classic"
    if "x-queue-type" in given:
        kind = values["x-queue-type"] = _CHECKS["x-queue-type"]("x-queue-type", given["x-queue-type"], given)
    others = _of_other_types(kind, version)
    for name, check in _CHECKS.items():
        if name in given and name not in others:
            values[name] = check(name, given[name], given)
    for name in others:
        if name in given:
            raise ArgumentInvalid(name, f"{name} is not for {kind} queues", "", queue_type=kind)
    return values


def _of_other_types(kind: str, version: Version) -> tuple[str, ...]:
    if kind == "quorum":
        return (*_OF_CLASSIC, *_OF_STREAMS)
    if version == "3.10":
        return (*_OF_QUORUM_OF_3, "x-queue-leader-locator", *_OF_STREAMS)
    return (*_OF_QUORUM_OF_3, *_OF_QUORUM_SINCE_4, *_OF_STREAMS)


def check_same_declaration(there: QueueInfo, declared: QueueSettings) -> None:
    """Refuse to declare a queue again in another way."""
    have, want = there.settings, declared
    for field in ("durable", "exclusive", "auto_delete"):
        if getattr(have, field) != getattr(want, field):
            raise QueueExists(
                f"queue {there.name!r} exists with {field} {getattr(have, field)}, not {getattr(want, field)}",
                field=field,
            )
    for name in sorted({*have.arguments, *want.arguments}):
        if not agrees(name, want.arguments, have):
            old, new = arguments_now(have).get(name), want.arguments.get(name)
            raise QueueExists(
                f"queue {there.name!r} exists with {name} {_shown(old)}, not {_shown(new)}", field=f"arguments.{name}"
            )


def agrees(name: str, given: Mapping[str, Any], there: QueueSettings) -> bool:
    """Whether an argument, or its absence, is right for a queue that exists: it is what the queue was declared with, or
    what its settings say by now, however they came to, but for policies. What was never declared need not be given."""
    there = declared(there)
    if name not in there.arguments and name not in given:
        return True
    if name in there.arguments and name in given and is_same(given[name], there.arguments[name]):
        return True
    if name not in _IN_EFFECT:
        return False
    setting, default = _IN_EFFECT[name]
    return is_same(given.get(name, default), setting(there))


def arguments_now(there: QueueSettings) -> dict[str, Any]:
    """The arguments of a queue as its settings say by now; those that change nothing only if it was declared so."""
    there = declared(there)
    now = {name: value for name, value in there.arguments.items() if name not in _IN_EFFECT}
    is_quorum = there.arguments.get("x-queue-type") == "quorum"
    for name, (setting, default) in _IN_EFFECT.items():
        value = setting(there)
        usual = DELIVERY_LIMIT if is_quorum and name == "x-delivery-limit" else default
        if value is not None and (name in there.arguments or not (is_same(value, default) or is_same(value, usual))):
            now[name] = value
    return now


def is_same(one: Any, other: Any) -> bool:
    """Whole numbers of all sizes are alike; true is not 1, and neither is 1.0."""
    if isinstance(one, int) and isinstance(other, int) and isinstance(one, bool) == isinstance(other, bool):
        return one == other
    return type(one) is type(other) and bool(one == other)


def exchange_from_arguments(
    type: str, arguments: Mapping[str, Any], *, durable: bool, auto_delete: bool, internal: bool
) -> ExchangeSettings:
    """The settings of an exchange as an AMQP client declares it; its type is known to be one there is."""
    check_bounds(arguments)
    given = plain_arguments(arguments)
    alternate = given.get("alternate-exchange")
    if alternate is not None:
        alternate = _text("alternate-exchange", alternate, given)
    delayed = type == DELAYED_TYPE
    if delayed:
        name = "x-delayed-type"
        if name not in given:
            raise ArgumentInvalid(name, f"an exchange of type {DELAYED_TYPE} needs {name}", "missing")
        type = _one_of(EXCHANGE_TYPES, "\"unknown exchange type '%'\"")(name, given[name], given)
    elif type not in EXCHANGE_TYPES:
        choices = ", ".join((*EXCHANGE_TYPES, DELAYED_TYPE))
        raise InvalidInput(f"the type of an exchange is one of {choices}, not {_shown(type)}", field="type")
    return ExchangeSettings(
        type=type,  # type: ignore[arg-type]
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        alternate_exchange=alternate,
        delayed=delayed,
        arguments=given,
    )


def ack_timeout_ms(asked_ms: int) -> int:
    """A second at least: with less, a message would go round without ever being consumed."""
    return max(MIN_ACK_TIMEOUT_MS, min(asked_ms, RANGES["lease_ms"][1]))


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they are kept: text, numbers, booleans, null, lists and objects."""
    return {str(name): _plain(value) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return plain_arguments(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)  # a time, a decimal


def _at_most(value: int | None, field: str) -> int | None:
    return None if value is None else min(value, RANGES[field][1])


# --- the checks: (name, value, all arguments) -> the value, or ArgumentInvalid


def _type_name(value: Any) -> str:
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "void")


def _integer(name: str, value: Any, _: dict[str, Any]) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        kind = _type_name(value)
        raise ArgumentInvalid(name, f"{name} is a whole number, not {_shown(value)}", f'"expected integer, got {kind}"')
    if value < 0:
        raise ArgumentInvalid(name, f"{name} is {value}: it cannot be negative", f"{{value_negative,{value}}}")
    return value


def _delivery_limit(name: str, value: Any, given: dict[str, Any]) -> int | None:
    """None: as often as it takes, which RabbitMQ writes as any negative number."""
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        return None
    return _integer(name, value, given)


def _milliseconds(name: str, value: Any, given: dict[str, Any]) -> int:
    number = _integer(name, value, given)
    if number > MAX_EXPIRY_MS:
        message = f"{name} is {number} ms, {MAX_EXPIRY_MS} are the most: ten years"
        raise ArgumentInvalid(name, message, f"{{value_too_large,{number}}}")
    return number


def _expiry(name: str, value: Any, given: dict[str, Any]) -> int:
    number = _milliseconds(name, value, given)
    if number == 0:
        raise ArgumentInvalid(name, f"{name} is 0: a queue lives a millisecond at least", "{value_zero,0}")
    return number


def _retry_delay(name: str, value: Any, given: dict[str, Any]) -> int:
    number = _integer(name, value, given)
    if number == 0:
        raise ArgumentInvalid(name, f"{name} is 0: a delay is a millisecond at least", "{value_zero,0}")
    lowest = given.get("x-delayed-retry-min", 0)
    if name == "x-delayed-retry-max" and isinstance(lowest, int) and number < lowest:
        text = f"{name} is {number}, less than x-delayed-retry-min {lowest}"
        raise ArgumentInvalid(name, text, f"{{value_too_small,{number}}}")
    return min(number, RANGES["retry_delay_ms"][1])


def _count(name: str, value: Any, given: dict[str, Any]) -> int:
    number = _integer(name, value, given)
    if number == 0:
        raise ArgumentInvalid(name, f"{name} is 0: one is the least", "{value_zero,0}")
    return number


def _queue_version(name: str, value: Any, given: dict[str, Any]) -> int:
    number = _integer(name, value, given)
    if number not in (1, 2):
        raise ArgumentInvalid(name, f"{name} is 1 or 2, not {number}", f"\"unsupported queue version '{number}'\"")
    return number


def _priority(name: str, value: Any, given: dict[str, Any]) -> int:
    number = _integer(name, value, given)
    highest = RANGES["max_priority"][1]
    if number > highest:
        raise ArgumentInvalid(name, f"{name} is {number}, {highest} is the highest", f"{{max_value_exceeded,{number}}}")
    return number


def _boolean(name: str, value: Any, _: dict[str, Any]) -> bool:
    if not isinstance(value, bool):
        raise ArgumentInvalid(
            name, f"{name} is true or false, not {_shown(value)}", f"{{unacceptable_type,{_type_name(value)}}}"
        )
    return value


def _text(name: str, value: Any, _: dict[str, Any]) -> str:
    if not isinstance(value, str):
        raise ArgumentInvalid(
            name, f"{name} is text, not {_shown(value)}", f"{{unacceptable_type,{_type_name(value)}}}"
        )
    if len(value.encode("utf-8", "surrogatepass")) > 255:
        raise ArgumentInvalid(name, f"{name} has at most 255 bytes: {_shown(value)}", "{value_too_long,255}")
    return value


def _dead_letter_key(name: str, value: Any, given: dict[str, Any]) -> str:
    text = _text(name, value, given)
    if "x-dead-letter-exchange" not in given:
        raise ArgumentInvalid(
            name, f"{name} needs an x-dead-letter-exchange to go with", "routing_key_but_no_dlx_defined"
        )
    return text


def _one_of(allowed: tuple[str, ...], term: str) -> Callable[[str, Any, dict[str, Any]], str]:
    def check(name: str, value: Any, given: dict[str, Any]) -> str:
        text = _text(name, value, given)
        if text not in allowed:
            raise ArgumentInvalid(
                name, f"{name} is one of {', '.join(allowed)}, not {_shown(text)}", term.replace("%", text)
            )
        return text

    return check


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


# --- and the other way round: what the settings of a queue would be as arguments


def _exchange_of(settings: QueueSettings) -> str | None:
    return settings.dead_letter_exchange if settings.dead_letter_queue is None else ""


def _key_of(settings: QueueSettings) -> str | None:
    return settings.dead_letter_routing_key if settings.dead_letter_queue is None else settings.dead_letter_queue


def _delivery_limit_of(settings: QueueSettings) -> int:
    return UNLIMITED if settings.max_receives is None else settings.max_receives - 1


def _retry_type_of(settings: QueueSettings) -> str:
    if settings.retry_delay_ms is None:
        return "disabled"
    return next(name for name, after in _RETRIES.items() if after == settings.retry_delay_after)


def _overflow_of(settings: QueueSettings) -> str:
    return next(name for name, policy in _OVERFLOWS.items() if policy == settings.overflow)


#: argument -> (its value in effect, that of a queue declared without it)
_IN_EFFECT: dict[str, tuple[Callable[[QueueSettings], Any], Any]] = {
    "x-expires": (lambda s: s.expires_ms, None),
    "x-message-ttl": (lambda s: s.message_ttl_ms, None),
    "x-dead-letter-exchange": (_exchange_of, None),
    "x-dead-letter-routing-key": (_key_of, None),
    "x-max-length": (lambda s: s.max_messages, None),
    "x-max-length-bytes": (lambda s: s.max_bytes, None),
    "x-max-priority": (lambda s: s.max_priority, 0),
    "x-overflow": (_overflow_of, "drop-head"),
    "x-single-active-consumer": (lambda s: s.single_active_consumer, False),
    "x-delivery-limit": (_delivery_limit_of, UNLIMITED),
    "x-delayed-retry-type": (_retry_type_of, "disabled"),
    "x-delayed-retry-min": (lambda s: s.retry_delay_ms, None),
    "x-delayed-retry-max": (lambda s: s.max_retry_delay_ms, None),
}


_CHECKS: dict[str, Callable[[str, Any, dict[str, Any]], Any]] = {
    "x-expires": _expiry,
    "x-message-ttl": _milliseconds,
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _one_of(("at-most-once", "at-least-once"), "invalid_dlx_strategy"),
    "x-max-length": _integer,
    "x-max-length-bytes": _integer,
    "x-max-priority": _priority,
    "x-overflow": _one_of(tuple(_OVERFLOWS), "invalid_overflow"),
    "x-queue-mode": _one_of(("default", "lazy"), "\"unsupported queue mode '%'\""),
    "x-queue-type": _one_of(QUEUE_TYPES, "\"unsupported queue type '%'\""),
    "x-delivery-limit": _delivery_limit,
    "x-single-active-consumer": _boolean,
    "x-consumer-timeout": _integer,
    "x-delayed-retry-type": _one_of(("disabled", *_RETRIES), "invalid_delayed_retry_type"),
    "x-delayed-retry-min": _retry_delay,
    "x-delayed-retry-max": _retry_delay,
    # Where its leader and its replicas are, and how it is stored: checked, and of no effect.
    "x-queue-leader-locator": _one_of(_LOCATORS, "invalid_queue_locator_arg"),
    "x-quorum-initial-group-size": _count,
    "x-max-in-memory-length": _integer,
    "x-max-in-memory-bytes": _integer,
    "x-queue-version": _queue_version,
}
