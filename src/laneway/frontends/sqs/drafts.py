"""A message as it is sent over SQS: checked as AWS checks it, then a Draft."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from laneway.broker.values import Draft, Properties
from laneway.frontends.sqs import message_attributes
from laneway.frontends.sqs.errors import SqsError, invalid, missing, value_invalid
from laneway.frontends.sqs.queue_attributes import View
from laneway.frontends.sqs.recent import md5_of
from laneway.frontends.sqs.wire import AttributeValues, MessageEntry

TEXT = "text/plain"
PRIORITY = "Laneway.Priority"  # what SQS lacks, as message attributes
DELIVER_AT = "Laneway.DeliverAt"
TRACE = "AWSTraceHeader"

_ID = re.compile(r"[\x21-\x7e]{1,128}")  # AWS: alphanumeric and punctuation
_NO_REST = (None,) * 5  # of a message with nothing but a body
_rest_of = attrgetter(
    "MessageAttributes", "DelaySeconds", "MessageGroupId", "MessageDeduplicationId", "MessageSystemAttributes"
)
_body_of = attrgetter("MessageBody")
_BETWEEN = " "  # of group and dedup id, where the window is per group: neither can have one


class Sent(msgspec.Struct, gc=False):
    """A draft and what its sender is told beside its id."""

    draft: Draft
    size_bytes: int
    md5_body: str
    md5_attributes: str | None
    md5_system: str | None


class Senders:
    """Makes drafts. Messages with nothing but a body share the properties of their sender, so that these are encoded
    once for a whole batch."""

    def __init__(self) -> None:
        self._plain: dict[str, Properties] = {}

    def sent(self, entry: MessageEntry, view: View, sender: str, *, is_allowed: bool) -> Sent:
        """`is_allowed`: its characters are known to be such as AWS lets through."""
        body = entry.MessageBody.encode()
        if not body:
            raise missing("MessageBody")
        if not is_allowed and not message_attributes.has_only_allowed(entry.MessageBody, body):
            raise SqsError("InvalidMessageContents", "Invalid characters found in the message body.")
        md5_attributes = md5_system = None
        size_bytes = len(body)
        attributes = entry.MessageAttributes or {}
        if attributes:
            size_bytes += message_attributes.check(attributes)
            md5_attributes = message_attributes.md5_of(attributes)
        if entry.MessageSystemAttributes:
            _check_system(entry.MessageSystemAttributes)
            md5_system = message_attributes.md5_of(entry.MessageSystemAttributes)
        if size_bytes > view.max_bytes:
            raise invalid(
                f"One or more parameters are invalid. Reason: Message must be shorter than {view.max_bytes} bytes."
            )
        draft = Draft(body, None, self._properties(entry, view, sender, body))
        _set_times(draft, entry, view)
        if PRIORITY in attributes:
            draft.priority = _priority(attributes)
        if DELIVER_AT in attributes:
            if entry.DelaySeconds is not None:
                raise value_invalid(entry.DelaySeconds, "DelaySeconds", f"Give DelaySeconds or {DELIVER_AT}, not both.")
            draft.visible_at_ms = _deliver_at_ms(attributes)
        return Sent(draft, size_bytes, md5_of(body).hex(), md5_attributes, md5_system)

    def plain(self, sender: str) -> Properties:
        """The properties of messages with nothing but a body."""
        known = self._plain.get(sender)
        if known is None:
            if len(self._plain) >= 1024:
                self._plain.clear()
            known = self._plain[sender] = Properties(TEXT, extra={"sqs": {"sender": sender}})
        return known

    def _properties(self, entry: MessageEntry, view: View, sender: str, body: bytes) -> Properties:
        group, dedup_id = _ids(entry, view, body)
        if not (entry.MessageAttributes or entry.MessageSystemAttributes or group):
            return self.plain(sender)
        values, types = message_attributes.kept(entry.MessageAttributes or {})
        own: dict[str, Any] = {"sender": sender}
        if types:
            own["types"] = types
        system = entry.MessageSystemAttributes or {}
        if TRACE in system:
            own["trace"] = system[TRACE].StringValue
        if not view.is_fifo:
            return Properties(TEXT, tenant=group, attributes=values, extra={"sqs": own})
        if view.dedups_group:
            own["dedup_id"] = dedup_id
            dedup_id = group + _BETWEEN + dedup_id
        return Properties(TEXT, group=group, dedup_id=dedup_id, attributes=values, extra={"sqs": own})


def plain_bodies(entries: Sequence[MessageEntry], view: View, *, is_allowed: bool) -> list[bytes] | None:
    """Hot: the bodies of messages that have nothing else and are in order; None if one of them wants a closer look."""
    if list(map(_rest_of, entries)).count(_NO_REST) != len(entries):
        return None
    texts = list(map(_body_of, entries))
    bodies = list(map(str.encode, texts))
    if not all(bodies) or max(map(len, bodies)) > view.max_bytes:
        return None
    return bodies if is_allowed or all(map(message_attributes.has_only_allowed, texts, bodies)) else None


def _ids(entry: MessageEntry, view: View, body: bytes) -> tuple[str, str]:
    """(group, dedup id) as the queue wants them. On a standard queue a group names a tenant."""
    group, dedup_id = entry.MessageGroupId, entry.MessageDeduplicationId
    if group is not None and not _ID.fullmatch(group):
        raise value_invalid(group, "MessageGroupId", _ID_REASON.format("MessageGroupId"))
    if dedup_id is not None and not _ID.fullmatch(dedup_id):
        raise value_invalid(dedup_id, "MessageDeduplicationId", _ID_REASON.format("MessageDeduplicationId"))
    if not view.is_fifo:
        if dedup_id is not None:
            raise value_invalid(
                dedup_id,
                "MessageDeduplicationId",
                "The request includes a parameter that is not valid for this queue type.",
            )
        return group or "", ""
    if group is None:
        raise missing("MessageGroupId")
    if dedup_id is None:
        if not view.dedups_content:
            raise invalid(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )
        dedup_id = hashlib.sha256(body).hexdigest()
    return group, dedup_id


_ID_REASON = "{} can only include alphanumeric and punctuation characters. 1 to 128 in length."


def _check_system(attributes: AttributeValues) -> None:
    for name, value in attributes.items():
        if name != TRACE:
            raise invalid(f"Message system attribute name '{name[:100]}' is invalid.")
        if value.DataType != "String" or not value.StringValue:
            raise invalid(f"The message system attribute '{name}' must be a non-empty String.")


def _set_times(draft: Draft, entry: MessageEntry, view: View) -> None:
    delay = entry.DelaySeconds
    if delay is None:
        return
    if not 0 <= delay <= 900:
        raise value_invalid(delay, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
    if view.is_fifo:
        if delay:
            raise value_invalid(
                delay, "DelaySeconds", "The request include parameter that is not valid for this queue type."
            )
        return
    draft.delay_ms = delay * 1000


def _priority(attributes: AttributeValues) -> int:
    text = attributes[PRIORITY].StringValue or ""
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise value_invalid(text, PRIORITY, "Must be a whole number from 0 to the queue's max_priority.")
    return int(text)


def _deliver_at_ms(attributes: AttributeValues) -> int:
    """Seconds since 1970 as a Number, or a time with its zone as ISO 8601 writes it."""
    given = attributes[DELIVER_AT]
    text = given.StringValue or ""
    try:
        if given.DataType.startswith("Number"):
            return round(float(text) * 1000)
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError
        return round(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise value_invalid(text, DELIVER_AT, "Must be seconds since 1970, or a time with its zone.") from None
