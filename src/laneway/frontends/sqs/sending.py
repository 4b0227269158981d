"""The messages of one send: checked as AWS checks them, and parsed into the columns that the broker takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from laneway.core.message import MAX_ATTRIBUTE_BYTES, Messages, Properties, encode_props
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.sqs.errors import SqsError, invalid, missing, value_invalid
from laneway.frontends.sqs.message_attributes import NOT_ALLOWED, has_only_allowed, md5_text, read_attributes
from laneway.frontends.sqs.queue_attributes import View
from laneway.frontends.sqs.wire import AttributeValues, MessageEntry

TEXT = "text/plain"
PRIORITY = "Laneway.Priority"  # what SQS lacks, as message attributes
DELIVER_AT = "Laneway.DeliverAt"
TRACE = "AWSTraceHeader"

_ID = re.compile(r"[\x21-\x7e]{1,128}")  # AWS: alphanumeric and punctuation
_BETWEEN = " "  # of group and dedup id, where the window is per group: neither can have one
_NO_TEXTS = encode_props(Properties(TEXT))  # the texts of a props block, if nothing but the content type is given
_encode_rest = msgspec.msgpack.Encoder().encode  # and what follows the texts, if something does: see core.message


class Outgoing:
    """The messages of one request, and the MD5s that their sender is told. A message that AWS would refuse is in
    `refused`; the broker passes it over."""

    __slots__ = (
        "_now",
        "_sender",
        "_trace",
        "_view",
        "attribute_md5s",
        "md5s",
        "messages",
        "refused",
        "size_bytes",
        "system_md5s",
    )

    def __init__(
        self,
        entries: Sequence[MessageEntry],
        view: View,
        sender: str,
        trace: str,
        now: Callable[[], int],
        *,
        is_allowed: bool,
    ) -> None:
        """`trace`: of those that bring none of their own. `is_allowed`: the caller knows that all characters are such
        as AWS lets through."""
        count = len(entries)
        bodies = [entry.MessageBody.encode() for entry in entries]
        self.messages = Messages(bodies, [_plain_props(sender)] * count)
        self.md5s = list(map(md5_text, bodies))
        self.attribute_md5s: list[str | None] = [None] * count
        self.system_md5s: list[str | None] = [None] * count
        self.size_bytes = 0  # of those that are not refused, as AWS counts
        self.refused: dict[int, LanewayError] = {}  # in AWS's words, which the broker does not know
        self._view = view
        self._sender = sender
        self._trace = trace
        self._now = now
        for i, entry in enumerate(entries):
            try:
                self._read(i, entry, bodies[i], is_allowed=is_allowed)
            except LanewayError as wrong:
                self.refused[i] = wrong
                self.messages.refused[i] = InvalidInput("refused")

    def _read(self, i: int, entry: MessageEntry, body: bytes, *, is_allowed: bool) -> None:
        size_bytes = len(body)
        if not size_bytes:
            raise missing("MessageBody")
        if not is_allowed and not has_only_allowed(entry.MessageBody, body):
            raise SqsError("InvalidMessageContents", NOT_ALLOWED)
        view = self._view
        own: dict[str, Any] = {}
        values: dict[str, Any] = {}
        if entry.MessageAttributes:
            values, types, self.attribute_md5s[i], more_bytes = read_attributes(
                entry.MessageAttributes, is_allowed=is_allowed
            )
            size_bytes += more_bytes
            if types:
                own["types"] = types
            if PRIORITY in values or DELIVER_AT in values:
                self._read_wishes(i, entry, entry.MessageAttributes)
        if entry.MessageSystemAttributes:
            _check_system(entry.MessageSystemAttributes)
            system, _, self.system_md5s[i], _ = read_attributes(entry.MessageSystemAttributes, is_allowed=is_allowed)
            own["trace"] = system[TRACE]
        elif self._trace:
            own["trace"] = self._trace
        if size_bytes > view.max_bytes:
            raise invalid(
                f"One or more parameters are invalid. Reason: Message must be shorter than {view.max_bytes} bytes."
            )
        texts = _NO_TEXTS
        if view.is_fifo or entry.MessageGroupId is not None or entry.MessageDeduplicationId is not None:
            texts = self._read_ids(i, entry, body, own)
        if values or own or texts is not _NO_TEXTS:
            own["sender"] = self._sender
            rest = _encode_rest({"a": values, "x": {"sqs": own}})
            if len(rest) > MAX_ATTRIBUTE_BYTES:
                raise invalid(f"The attributes take {len(rest)} bytes, {MAX_ATTRIBUTE_BYTES} are allowed.")
            self.messages.props[i] = texts + rest
        if entry.DelaySeconds is not None:
            self._read_delay(i, entry.DelaySeconds)
        self.size_bytes += size_bytes

    def _read_ids(self, i: int, entry: MessageEntry, body: bytes, own: dict[str, Any]) -> bytes:
        """The texts of the props block. On a standard queue a group names a tenant."""
        view, messages = self._view, self.messages
        group, dedup_id = entry.MessageGroupId, entry.MessageDeduplicationId
        for text, parameter in ((group, "MessageGroupId"), (dedup_id, "MessageDeduplicationId")):
            if text is not None and not _ID.fullmatch(text):
                reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
                raise value_invalid(text, parameter, reason)
        if dedup_id is not None and not view.is_fifo:
            reason = "The request includes a parameter that is not valid for this queue type."
            raise value_invalid(dedup_id, "MessageDeduplicationId", reason)
        if group is None:
            raise missing("MessageGroupId")
        if not view.is_fifo:
            messages.tenants[i] = group
            return encode_props(Properties(TEXT, tenant=group))
        if dedup_id is None:
            if not view.dedups_content:
                raise no_dedup_id()
            dedup_id = hashlib.sha256(body).hexdigest()
        if view.dedups_group(self._now()):
            own["dedup_id"] = dedup_id
            dedup_id = group + _BETWEEN + dedup_id
        messages.groups[i], messages.dedup_ids[i] = group, dedup_id
        return encode_props(Properties(TEXT, group=group, dedup_id=dedup_id))

    def _read_delay(self, i: int, delay_s: int) -> None:
        if not 0 <= delay_s <= 900:
            raise value_invalid(delay_s, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
        if not self._view.is_fifo:
            self.messages.delays_ms = _with(self.messages.delays_ms, i, delay_s * 1000, len(self.md5s))
        elif delay_s:
            reason = "The request include parameter that is not valid for this queue type."
            raise value_invalid(delay_s, "DelaySeconds", reason)

    def _read_wishes(self, i: int, entry: MessageEntry, attributes: AttributeValues) -> None:
        """The attributes by which senders ask for what SQS lacks."""
        messages, count = self.messages, len(self.md5s)
        if PRIORITY in attributes:
            messages.priorities = _with(messages.priorities, i, _priority(attributes), count)
        if DELIVER_AT in attributes:
            if entry.DelaySeconds is not None:
                reason = f"Give DelaySeconds or {DELIVER_AT}, not both."
                raise value_invalid(entry.DelaySeconds, "DelaySeconds", reason)
            messages.visible_at_ms = _with(messages.visible_at_ms, i, _deliver_at_ms(attributes), count)


def no_dedup_id() -> SqsError:
    return invalid(
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )


@lru_cache(maxsize=1024)
def _plain_props(sender: str) -> bytes:
    """The props block of messages that have nothing but a body."""
    return encode_props(Properties(TEXT, extra={"sqs": {"sender": sender}}))


def _with(column: list[int | None] | None, i: int, value: int, count: int) -> list[int | None]:
    """A column that most messages do not need, with one value more."""
    column = column or [None] * count
    column[i] = value
    return column


def _check_system(attributes: AttributeValues) -> None:
    for name, value in attributes.items():
        if name != TRACE:
            raise invalid(f"Message system attribute name '{name[:100]}' is invalid.")
        if value.DataType != "String" or not value.StringValue:
            raise invalid(f"The message system attribute '{name}' must be a non-empty String.")


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
