"""Whatever bytes come: they are answered the same however they are cut, and nothing ever goes wrong inside."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.broker.interface import PutQueue
from laneway.core.settings import QueueSettings
from laneway.frontends.http.protocol import HttpConnection
from tests.in_thread import DEADLINE_S
from tests.rest.serving import RecordingTransport, Serving, request, take_responses

GOOD = [
    request("GET", "/healthz"),
    request("GET", "/nothing"),
    request("GET", "/nothing", headers="Connection: close\r\n"),
    request("POST", "/queues/fuzzed/messages", b'{"payload":{"a":[1,2,3]}}'),
    request("POST", "/queues/fuzzed/messages", b'[{"payload":1},{"payload":"\xc3\xa9","priority":3}]'),
    request("POST", "/queues/fuzzed/messages?priority=3", b"raw bytes", "Content-Type: text/plain\r\n"),
    request("POST", "/queues/fuzzed/stats", b"{}", "Authorization: Bearer lw_x\r\n"),
    b"POST /queues/fuzzed/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'4;x=y\r\n{"pa\r\nb\r\nyload":true}\r\n0\r\nA: b\r\n\r\n',
    b"POST /queues/fuzzed/ack HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n[]",
    b"GET /queues HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET /whoami HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    b"\r\n\r\n",
]
SPICE = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b"\xff",
    b":",
    b" ",
    b"0",
    b"-1",
    b"Content-Length: 3\r\n",
    b"HTTP/1.1",
    b"{",
    b'"',
]

mutations = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 3), st.sampled_from(SPICE)), max_size=3)


def mutated(stream: bytes, changes: Sequence[tuple[int, int, bytes]]) -> bytes:
    for at, removed, inserted in changes:
        at %= len(stream) + 1
        stream = stream[:at] + inserted + stream[at + removed :]
    return stream


def cut(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [piece for piece in (*pieces, stream) if piece]


async def spoken(serving: Serving, pieces: Sequence[bytes]) -> tuple[list[tuple[int, str]], bool]:
    """(status, error code) of every answer, and whether the connection was ended, once all is quiet."""
    transport = RecordingTransport()
    connection = HttpConnection(serving.server._shared)
    connection.connection_made(transport)  # type: ignore[arg-type]
    deadline = time.monotonic() + DEADLINE_S
    for piece in pieces:
        while not transport.reading and not transport.closed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0)
        if transport.closed:
            break
        connection.data_received(piece)
    while connection._slots or (connection._rest and not transport.reading):
        assert time.monotonic() < deadline, (pieces, transport.written)
        await asyncio.sleep(0.0002)
    connection.connection_lost(None)
    told = []
    for response in take_responses(transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")):
        code = response.error["code"] if response.status >= 400 and response.body else ""
        told.append((response.status, code))
    return told, transport.closed


@pytest.fixture
def fuzzed(serving: Serving) -> Serving:
    serving.ask(PutQueue("/", "fuzzed", QueueSettings()))
    return serving


@settings(
    max_examples=400,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.sampled_from(GOOD), min_size=1, max_size=5),
    mutations,
    st.lists(st.integers(1, 60), max_size=30),
)
def test_a_stream_of_bytes_is_answered_the_same_however_it_is_cut(
    fuzzed: Serving,
    caplog: pytest.LogCaptureFixture,
    requests: list[bytes],
    changes: list[tuple[int, int, bytes]],
    sizes: list[int],
) -> None:
    stream = mutated(b"".join(requests), changes)
    whole = fuzzed.run(spoken(fuzzed, [stream]))
    assert fuzzed.run(spoken(fuzzed, cut(stream, sizes))) == whole
    assert all(status < 500 or status in (501, 505) for status, _ in whole[0])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
