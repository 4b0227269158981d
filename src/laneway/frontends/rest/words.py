"""The one table between core's words and HTTP's: names of fields, and the units their values are told in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from laneway.errors import InvalidInput


class Word(NamedTuple):
    core: str
    wire: str
    to_wire: Callable[[int], str] = str  # a number in core's unit, as text in the wire's


def seconds_text(ms: int) -> str:
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


WORDS = (
    # queue settings
    Word("lease_ms", "visibility_timeout", seconds_text),
    Word("retention_ms", "retention_seconds", seconds_text),
    Word("delay_ms", "delay_seconds", seconds_text),
    Word("message_ttl_ms", "message_ttl_seconds", seconds_text),
    Word("max_receives", "max_receive_count"),
    Word("dedup_window_ms", "dedup_window_seconds", seconds_text),
    Word("expires_ms", "expires_seconds", seconds_text),
    Word("retry_delay_ms", "retry_delay_seconds", seconds_text),
    Word("max_retry_delay_ms", "max_retry_delay_seconds", seconds_text),
    # messages and what is asked about them
    Word("ttl_ms", "ttl_seconds", seconds_text),
    Word("visible_at_ms", "deliver_at"),
    Word("wait_ms", "wait_seconds", seconds_text),
    Word("older_than_ms", "older_than_seconds", seconds_text),
    Word("newer_than_ms", "newer_than_seconds", seconds_text),
    Word("receives", "receive_count"),
    Word("token", "receipt_handle"),
    Word("body", "payload"),
    Word("consumer", "consumer_id"),
    Word("queue", "queue_name"),
    Word("states", "state"),
)

BY_CORE = {word.core: word for word in WORDS}
BY_WIRE = {word.wire: word for word in WORDS}

# In sentences only names that cannot be plain English are replaced; "body" or "queue" mean just that.
_NAMES = re.compile(r"\b(" + "|".join(word.core for word in WORDS if "_" in word.core) + r")\b")
_NUMBER = re.compile(r"(?<![\w.'\"])\d+(?![\w.'\"])")


#: How the default exchange, which has no name, is called in paths and permissions.
DEFAULT_EXCHANGE = "amq.default"


def exchange_of(name: str) -> str:
    return "" if name == DEFAULT_EXCHANGE else name


def name_of(exchange: str) -> str:
    return exchange or DEFAULT_EXCHANGE


def field_on_the_wire(field: str) -> str:
    """'lease_ms' -> 'visibility_timeout'; an index before it ('[3].lease_ms') stays."""
    head, dot, last = field.rpartition(".")
    word = BY_CORE.get(last)
    return f"{head}{dot}{word.wire}" if word else field


def sentence_on_the_wire(sentence: str, field: str | None) -> str:
    """The same sentence in wire words. Where it names its field, its numbers are in that field's unit: they are
    converted with it."""
    word = BY_CORE.get(field.rpartition(".")[2]) if field else None
    if word is not None and word.to_wire is not str and word.core in sentence:
        to_wire = word.to_wire
        sentence = _NUMBER.sub(lambda number: to_wire(int(number[0])), sentence)
    return _NAMES.sub(lambda name: BY_CORE[name[0]].wire, sentence)


def milliseconds(seconds: float, field: str) -> int:
    """Seconds as they came over the wire, fractions allowed, in core's unit."""
    if not math.isfinite(seconds) or abs(seconds) > 1e12:
        raise InvalidInput(f"{field} is {seconds}: a number of seconds is expected", field=field)
    return round(seconds * 1000)


def seconds(ms: int) -> int | float:
    return ms / 1000 if ms % 1000 else ms // 1000
