"""Queue attributes: AWS's names, ranges and texts ⇄ QueueSettings.

What core has is core's: VisibilityTimeout is lease_ms, and so on, so every protocol sees the same. What only SQS knows
is kept in the settings' arguments under "sqs", with the tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from laneway.broker.values import QueueInfo, QueueSettings, QueueStats
from laneway.core.settings import is_shallow
from laneway.frontends.sqs.errors import SqsError, value_invalid
from laneway.frontends.sqs.names import is_fifo

SQS = "sqs"  # the argument that holds what core does not know
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_VISIBILITY_S = 43_200
#: Core counts a message's properties too, in its own encoding: this much more may they take than SQS counts.
PROPERTIES_ROOM_BYTES = 64 * 1024

_WHOLE: dict[str, tuple[int, int]] = {
    "DelaySeconds": (0, 900),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
    "MaximumMessageSize": (1024, MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, MAX_VISIBILITY_S),
}
_MS = {"DelaySeconds": "delay_ms", "MessageRetentionPeriod": "retention_ms", "VisibilityTimeout": "lease_ms"}
_WORDS: dict[str, tuple[str, ...]] = {
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
    "SqsManagedSseEnabled": ("true", "false"),
}
_BOOLEANS = ("ContentBasedDeduplication", "FifoQueue", "SqsManagedSseEnabled")
_HIGH_THROUGHPUT = ("DeduplicationScope", "FifoThroughputLimit")
_SCOPE = "DeduplicationScope"
_EARLIER_SCOPE = "earlier_scope"  # what counts until another one takes effect, and until when
#: What a change of an attribute may take at AWS until it takes effect.
SETTLING_MS = 60_000
_TEXTS = ("KmsMasterKeyId", "Policy", "RedriveAllowPolicy")
SETTABLE = frozenset({*_WHOLE, *_WORDS, *_TEXTS, "RedrivePolicy", "FifoQueue"})
_KEPT = frozenset({*_WORDS, *_TEXTS, *_WHOLE} - {"DelaySeconds", "MessageRetentionPeriod", "VisibilityTimeout"})
_COUNTS = {
    "ApproximateNumberOfMessages": "ready",
    "ApproximateNumberOfMessagesDelayed": "delayed",
    "ApproximateNumberOfMessagesNotVisible": "leased",
}
GETTABLE = frozenset({*SETTABLE, *_COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"})

#: Of a queue that SQS creates, where AWS's default is not core's.
NEW_QUEUE = QueueSettings(
    retention_ms=345_600_000, max_receives=None, max_message_bytes=MAX_MESSAGE_BYTES + PROPERTIES_ROOM_BYTES
)


def new_queue(name: str) -> QueueSettings:
    """Before its attributes. A standard queue is fair as soon as messages name tenants."""
    return msgspec.structs.replace(NEW_QUEUE, fair=not is_fifo(name))


ArnOf = Callable[[str], str]  # a queue's name to its ARN
NameOf = Callable[[str], str | None]  # and back; None if it is none of this account and region


class View:
    """What the frequent actions want to know about a queue, worked out once for its settings."""

    __slots__ = ("_earlier", "_scope", "dedups_content", "is_fifo", "lease_ms", "max_bytes", "queue", "wait_ms")

    def __init__(self, info: QueueInfo) -> None:
        settings = info.settings
        kept = own_of(settings)
        own: dict[str, str] = kept.get("attributes", {})
        self.queue = info.queue
        self.lease_ms = settings.lease_ms
        self.is_fifo = is_fifo(info.name)
        self.dedups_content = own.get("ContentBasedDeduplication") == "true"
        self._scope = own.get(_SCOPE)
        self._earlier: tuple[str, int] = kept.get(_EARLIER_SCOPE, ("", 0))
        default = MAX_MESSAGE_BYTES if SQS in settings.arguments else settings.max_message_bytes
        self.max_bytes = min(int(own.get("MaximumMessageSize", default)), settings.max_message_bytes)
        self.wait_ms = int(own.get("ReceiveMessageWaitTimeSeconds", 0)) * 1000

    def dedups_group(self, now_ms: int) -> bool:
        """Whether deduplication ids are those of their groups, or of the whole queue."""
        scope, until_ms = self._earlier
        return (scope if now_ms < until_ms else self._scope) == "messageGroup"


def own_of(settings: QueueSettings) -> dict[str, Any]:
    """What SQS keeps of a queue: {"attributes": {…}, "tags": {…}, …}, to be read only. An argument of that name may
    also be what an AMQP client made up: what SQS would not have kept does not count."""
    kept = settings.arguments.get(SQS)
    if not isinstance(kept, dict):
        return {}
    attributes, tags = _texts(kept.get("attributes")), _texts(kept.get("tags"))
    own: dict[str, Any] = {
        "attributes": {name: text for name, text in attributes.items() if name in _KEPT and not _is_bad(name, text)},
        "tags": tags,
    }
    match kept.get(_EARLIER_SCOPE):
        case [str(scope), int(until_ms)]:
            own[_EARLIER_SCOPE] = [scope, until_ms]
    return own


def with_earlier_scope(settings: QueueSettings, before: QueueSettings, now_ms: int) -> QueueSettings:
    """Another scope of deduplication takes effect later, if there was one that counts until then."""
    scope = own_of(before).get("attributes", {}).get(_SCOPE, "queue")
    own = own_of(settings)
    if own["attributes"].get(_SCOPE, "queue") == scope:
        return settings
    return with_own(settings, {**own, _EARLIER_SCOPE: [scope, now_ms + SETTLING_MS]})


def _texts(given: Any) -> dict[str, str]:
    return {k: v for k, v in given.items() if isinstance(v, str)} if isinstance(given, dict) else {}


def with_own(settings: QueueSettings, own: dict[str, Any]) -> QueueSettings:
    return msgspec.structs.replace(settings, arguments={**settings.arguments, SQS: own})


def changed(name: str, settings: QueueSettings, given: Mapping[str, str], name_of: NameOf) -> QueueSettings:
    """The settings with these attributes; raises as AWS does for what is wrong with them."""
    own = own_of(settings)
    attributes: dict[str, str] = dict(own.get("attributes", {}))
    changes: dict[str, Any] = {}
    _check_encryption(given)
    for attribute, value in given.items():
        if attribute in _BOOLEANS:
            value = value.lower()
        _check(name, attribute, value)
        if attribute in _MS:
            changes[_MS[attribute]] = int(value) * 1000
        elif attribute == "RedrivePolicy":
            changes |= _redrive_changes(name, value, name_of)
        elif attribute == "FifoQueue":
            continue
        elif value == "":
            attributes.pop(attribute, None)
        else:
            attributes[attribute] = value
            if attribute == "MaximumMessageSize":
                changes["max_message_bytes"] = int(value) + PROPERTIES_ROOM_BYTES
            elif attribute == "KmsMasterKeyId":  # one kind of encryption takes the place of the other
                attributes["SqsManagedSseEnabled"] = "false"
            elif attribute == "SqsManagedSseEnabled" and value == "true":
                attributes.pop("KmsMasterKeyId", None)
    if attributes.get("FifoThroughputLimit") == "perMessageGroupId" and (
        attributes.get("DeduplicationScope") != "messageGroup"
    ):
        raise SqsError(
            "InvalidAttributeValue",
            "The perMessageGroupId value for FifoThroughputLimit is allowed only when the value for "
            "DeduplicationScope is messageGroup.",
        )
    return with_own(msgspec.structs.replace(settings, **changes), {**own, "attributes": attributes})


def _check(name: str, attribute: str, value: str) -> None:
    if attribute in _HIGH_THROUGHPUT and not is_fifo(name):
        text = f"You can specify the {attribute} only when FifoQueue is set to true."
        raise SqsError("InvalidAttributeName", text)
    only_fifo = ("ContentBasedDeduplication", "FifoQueue")
    if attribute not in SETTABLE or (attribute in only_fifo and not is_fifo(name)):
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {attribute}.")
    if attribute == "FifoQueue" and value == "false":
        text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
        raise SqsError("InvalidAttributeValue", text)
    if _is_bad(attribute, value):
        raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {attribute}.")
    if attribute == "RedriveAllowPolicy" and value:
        _check_allow_policy(value)


def _check_encryption(given: Mapping[str, str]) -> None:
    if given.get("KmsMasterKeyId") and given.get("SqsManagedSseEnabled", "").lower() == "true":
        raise SqsError(
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS "
            "SSE.",
        )


def _is_bad(attribute: str, value: str) -> bool:
    if attribute in _WHOLE:
        lowest, highest = _WHOLE[attribute]
        return re.fullmatch(r"[0-9]{1,10}", value) is None or not lowest <= int(value) <= highest
    if attribute in _WORDS:
        return value not in _WORDS[attribute]
    if attribute == "FifoQueue":
        return value != "true"
    return attribute in ("Policy", "RedriveAllowPolicy") and bool(value) and not isinstance(_json(value), dict)


def _json(text: str) -> Any:
    """What a text says, if it is JSON that is not nested too deep."""
    try:
        value = msgspec.json.decode(text)
        return value if is_shallow(value) else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _check_allow_policy(text: str) -> None:
    policy = _json(text)
    permission, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise value_invalid(text, "RedriveAllowPolicy", "redrivePermission is allowAll, denyAll or byQueue.")
    if (permission == "byQueue") != isinstance(arns, list) or (isinstance(arns, list) and not 1 <= len(arns) <= 10):
        raise value_invalid(
            text, "RedriveAllowPolicy", "byQueue goes with 1 to 10 sourceQueueArns, and nothing else does."
        )


def allows_source(settings: QueueSettings, source_arn: str) -> bool:
    """Whether a dead-letter queue lets this queue use it."""
    text = own_of(settings).get("attributes", {}).get("RedriveAllowPolicy")
    policy = _json(text) if text else {}
    permission, arns = policy.get("redrivePermission", "allowAll"), policy.get("sourceQueueArns")
    return permission == "allowAll" or (permission == "byQueue" and isinstance(arns, list) and source_arn in arns)


def _redrive_changes(name: str, text: str, name_of: NameOf) -> dict[str, Any]:
    if text == "":
        return {"dead_letter_queue": None, "max_receives": None}

    def wrong(reason: str) -> SqsError:
        return value_invalid(text, "RedrivePolicy", reason)

    policy = _json(text)
    if not isinstance(policy, dict):
        raise wrong("Redrive policy is not a valid JSON map.")
    if set(policy) - {"deadLetterTargetArn", "maxReceiveCount"}:
        raise wrong("Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].")
    for attribute in ("deadLetterTargetArn", "maxReceiveCount"):
        if policy.get(attribute) is None:
            raise wrong(f"Redrive policy does not contain mandatory attribute: {attribute}.")
    arn, count = policy["deadLetterTargetArn"], policy["maxReceiveCount"]
    if not re.fullmatch(r"[0-9]{1,4}", str(count)) or not 1 <= int(count) <= 1000:
        raise wrong(f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.")
    target = name_of(str(arn))
    if target is None:
        raise wrong("Invalid value for deadLetterTargetArn.")
    if is_fifo(target) != is_fifo(name):
        raise wrong("Dead-letter queue must be same type of queue as the source.")
    return {"dead_letter_queue": target, "dead_letter_exchange": None, "max_receives": int(count)}


def told(info: QueueInfo, stats: QueueStats, names: list[str], arn_of: ArnOf) -> dict[str, str]:
    """What GetQueueAttributes answers; an empty list asks for nothing."""
    for name in names:
        if name != "All" and name not in GETTABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    if not names:
        return {}
    everything = _everything(info, stats, arn_of)
    return everything if "All" in names else {name: everything[name] for name in names if name in everything}


def _everything(info: QueueInfo, stats: QueueStats, arn_of: ArnOf) -> dict[str, str]:
    settings = info.settings
    attributes = {
        "QueueArn": arn_of(info.name),
        "CreatedTimestamp": str(info.created_at_ms // 1000),
        "LastModifiedTimestamp": str(info.changed_at_ms // 1000),
        "ReceiveMessageWaitTimeSeconds": "0",
        "MaximumMessageSize": str(View(info).max_bytes),
        "SqsManagedSseEnabled": "true",
    }
    attributes |= {name: str(getattr(stats, count)) for name, count in _COUNTS.items()}
    for name, field in _MS.items():
        value = getattr(settings, field)  # None: messages are kept for ever, which SQS has no word for
        attributes[name] = str(_WHOLE[name][1] if value is None else value // 1000)
    if is_fifo(info.name):
        attributes |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "false",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }
    if settings.dead_letter_queue is not None and settings.max_receives is not None:
        policy = {
            "deadLetterTargetArn": arn_of(settings.dead_letter_queue),
            "maxReceiveCount": settings.max_receives,
        }
        attributes["RedrivePolicy"] = msgspec.json.encode(policy).decode()
    own: dict[str, str] = own_of(settings).get("attributes", {})
    return attributes | own


def difference(info: QueueInfo, wanted: QueueSettings, given: Mapping[str, str]) -> str | None:
    """The first of the given attributes that an existing queue has with another value."""
    have, want = info.settings, wanted
    own, new = own_of(have).get("attributes", {}), own_of(want).get("attributes", {})
    for attribute in given:
        if attribute in _MS:
            same = getattr(have, _MS[attribute]) == getattr(want, _MS[attribute])
        elif attribute == "RedrivePolicy":
            same = (have.dead_letter_queue, have.max_receives) == (want.dead_letter_queue, want.max_receives)
        elif attribute == "FifoQueue":
            same = True  # the name says it
        elif attribute == "MaximumMessageSize":
            same = View(info).max_bytes == int(given[attribute])
        else:
            default = {"ContentBasedDeduplication": "false", "SqsManagedSseEnabled": "true"}.get(attribute, "")
            default = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}.get(attribute, default)
            same = own.get(attribute, default) == new.get(attribute, default)
        if not same:
            return attribute
    return None


def visibility_ms(seconds: int) -> int:
    if not 0 <= seconds <= MAX_VISIBILITY_S:
        raise value_invalid(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
    return seconds * 1000
