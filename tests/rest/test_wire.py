"""The parts in which the front end is clever, against plain ways to do the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core.message import Draft, messages_of
from laneway.core.settings import RANGES, QueueSettings, check_settings
from laneway.errors import InvalidInput, LanewayError, LeaseStale, QueueFull, Refused, Unavailable
from laneway.frontends.http.chunks import ChunkedBody
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import HeadCache, parse_head
from laneway.frontends.rest.errors import STATUSES, error_object, status_of
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.publishing import decode_publish, is_json_text
from laneway.frontends.rest.times import Timestamps, at_ms_of
from laneway.frontends.rest.words import WORDS, field_on_the_wire, sentence_on_the_wire

# --- names that come twice, without parsing twice

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
#: The members of a message as pairs, so that a name can come twice, with a valid value for each.
members = st.lists(
    st.one_of(
        st.tuples(st.just("payload"), values),
        st.tuples(st.just("priority"), st.integers(0, 9) | st.none()),
        st.tuples(st.just("group"), st.sampled_from(["", ":", "a:b", "é"])),
        st.tuples(
            st.just("attributes"), st.dictionaries(st.sampled_from(["a", ":", "b:c"]), st.sampled_from([1, "::"]))
        ),
    ),
    max_size=4,
)
styles = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])


def text_of(message: list[tuple[str, Any]], style: tuple[str, str], ascii_only: bool) -> str:
    comma, colon = style

    def dump(value: object) -> str:
        return json.dumps(value, separators=style, ensure_ascii=ascii_only)

    return "{" + comma.join(dump(name) + colon + dump(value) for name, value in message) + "}"


@given(st.lists(members, min_size=1, max_size=4), styles, st.booleans(), st.booleans())
def test_a_name_that_comes_twice_is_always_found_and_nothing_else_is(
    messages: list[list[tuple[str, Any]]], style: tuple[str, str], ascii_only: bool, single: bool
) -> None:
    messages = messages[:1] if single else messages
    texts = [text_of(message, style, ascii_only) for message in messages]
    body = (texts[0] if single else f"[{style[0].join(texts)}]").encode()
    repeats = any(len({name for name, _ in message}) < len(message) for message in messages)
    lacks_payload = any("payload" not in dict(message) for message in messages)
    try:
        decoded = decode_publish(body, 1000)
    except InvalidInput as refused:
        assert ("comes twice" in refused.message and repeats) or ("needs payload" in refused.message and lacks_payload)
        return
    assert not repeats and not lacks_payload
    for i, message in enumerate(messages):
        said = dict(message)
        assert json.loads(decoded.bodies[i]) == said["payload"]
        priority = decoded.priorities[i] if decoded.priorities is not None else None
        assert (priority, decoded.groups.get(i, "")) == (said.get("priority"), said.get("group") or "")
    assert len(decoded.bodies) == len(messages)


@pytest.mark.parametrize(
    "body",
    [
        b'[{"payload":1,"attributes":{"a":1e5,"":0,"":0}}]',
        b'[{"payload":1,"key":"","key":"","ttl_seconds":5}%b]' % (b',{"payload":1,"delay_seconds":5}' * 9),
        b'{"payload":1,"group":"\\u003a","key":"a","key":"a"}',
        b'{"payload":1,"group":"\\u003A","attributes":{"a":1,"a":1}}',
        b'[{"payload":1,"deliver_at":"2030-01-01T00:00:00+0100","key":"a","key":"a"}]',
        b'{"payload":1,"payload":2}',
    ],
)
def test_a_name_that_comes_twice_is_found_where_something_else_becomes_longer(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="comes twice"):
        decode_publish(body, 1000)


@given(st.binary(max_size=20) | values.map(lambda value: json.dumps(value, ensure_ascii=False).encode()))
def test_json_is_told_from_other_bytes_as_python_does(body: bytes) -> None:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(body.decode(), parse_constant=refuse)
        expected = True
    except (ValueError, UnicodeDecodeError):
        expected = False
    assert is_json_text(body) is expected


def test_the_shortest_batch_needs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    from laneway.frontends.rest import publishing

    monkeypatch.setattr(publishing, "check_names_once", lambda body: pytest.fail("looked twice"))
    body = b'[{"payload":{"a":":"}},{"priority":10,"payload":1},{"payload":"::","priority":9}]'
    decoded = decode_publish(body, 1000)
    assert decoded == messages_of([Draft(b'{"a":":"}'), Draft(b"1", 10), Draft(b'"::"', 9)])


# --- chunks


@given(st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(1, 30), max_size=40), st.binary(max_size=10))
def test_chunks_come_together_however_they_are_cut(parts: list[bytes], cuts: list[int], after: bytes) -> None:
    raw = b"".join(b"%X;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nT: x\r\n\r\n"
    body = ChunkedBody(RestLimits())
    stream, fed = raw + after, 0
    pieces = iter(cuts)
    while not body.is_complete:
        piece = stream[fed : fed + next(pieces, len(stream))]
        fed += body.feed(piece, 0)
    assert (body.body, fed) == (b"".join(parts), len(raw))


# --- heads


def test_a_remembered_head_is_only_one_of_known_length() -> None:
    cache = HeadCache()
    start = b"POST /queues/q/messages HTTP/1.1\r\nHost: a\r\n"
    for lines, kept in (
        (b"Content-Length: 5\r\n", True),
        (b"", True),
        (b"Transfer-Encoding: chunked\r\n", False),
        (b"Content-Length: 5\r\nExpect: 100-continue\r\n", False),
        (b"Idempotency-Key: unique\r\n", False),
        (b"X: " + b"x" * 3000 + b"\r\n", False),
    ):
        raw = start + lines + b"\r\n"
        head = parse_head(raw, RestLimits())
        assert head is not None
        cache.remember(raw, head)
        assert (raw in cache.known) is kept, lines


def test_the_memory_of_heads_is_bounded() -> None:
    cache = HeadCache()
    for n in range(10_000):
        raw = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n
        head = parse_head(raw, RestLimits())
        assert head is not None
        cache.remember(raw, head)
    assert len(cache.known) <= 4096


# --- times


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_times_are_written_as_python_would(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    at_ms = at_ms_of(moment, "x")
    expected = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    times = Timestamps()
    assert times.text(at_ms) == times.text(at_ms) == expected


def test_a_time_beyond_the_calendar_is_written_as_its_end() -> None:
    assert Timestamps().text(2**50) == "9999-12-31T23:59:59.624Z"
    with pytest.raises(InvalidInput):
        at_ms_of(datetime(1969, 12, 31, tzinfo=UTC) - timedelta(days=1), "deliver_at")


# --- words


@pytest.mark.parametrize("field", sorted(RANGES))
def test_what_core_says_of_a_setting_is_told_in_wire_words(field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_settings(QueueSettings(**{field: RANGES[field][1] + 1000}))
    told = error_object(refused.value)
    assert told["field"] == field_on_the_wire(field)
    assert "_ms" not in str(told["message"]) and str(told["field"]) in str(told["message"])
    highest = RANGES[field][1] // (1000 if field.endswith("_ms") else 1)
    assert str(highest) in str(told["message"])


def test_a_sentence_that_is_in_seconds_already_keeps_its_numbers() -> None:
    sentence = "a lease is from 0 to 43200 seconds, not 50000"
    assert sentence_on_the_wire(sentence, "lease_ms") == sentence
    assert sentence_on_the_wire("lease_ms must be from 0 to 1500, not 2000", "lease_ms") == (
        "visibility_timeout must be from 0 to 1.5, not 2"
    )
    assert sentence_on_the_wire("queue 'a_1000' has lease_ms", "lease_ms") == "queue 'a_1000' has visibility_timeout"


def test_no_word_has_two_meanings() -> None:
    assert len({word.core for word in WORDS}) == len({word.wire for word in WORDS}) == len(WORDS)


# --- errors


def test_every_error_a_caller_can_cause_has_its_status() -> None:
    def below(kind: type[LanewayError]) -> set[type[LanewayError]]:
        return {kind, *(one for child in kind.__subclasses__() for one in below(child))}

    unmapped = {
        kind.__name__
        for kind in below(LanewayError)
        if kind.__module__ == "laneway.errors" and not any(ancestor in STATUSES for ancestor in kind.__mro__)
    }
    assert unmapped == {
        "LanewayError",
        "StartError",
        "JournalLocked",
        "JournalDamaged",
        "JournalVersionUnknown",
        "PipelineError",
        "PipelineUnavailable",
        "JobFailed",
    }
    assert [status_of(kind("x")) for kind in (LeaseStale, QueueFull, Unavailable, Refused)] == [409, 429, 503, 503]
    assert status_of(HttpError(418, "teapot", "x")) == 418
