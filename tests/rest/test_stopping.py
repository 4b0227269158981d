"""A graceful stop: nobody is cut off, nobody is kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from laneway.broker.interface import DescribeQueue
from tests.in_thread import wait_for
from tests.rest.serving import Serving, request, take_responses
from tests.rest.test_consume import dequeue, publish


def stopping(serving: Serving, grace_ms: int = 5000) -> threading.Thread:
    thread = threading.Thread(target=lambda: serving.run(serving.server.stop(grace_ms)))
    thread.start()
    return thread


def test_idle_connections_close_long_polls_end_empty_and_requests_are_answered(
    own_serving: Callable[..., Serving],
) -> None:
    serving = own_serving()
    with serving.connect() as idle, serving.connect() as poll, serving.connect() as half:
        idle.ask("PUT", "/queues/q")
        raw = request("POST", "/queues/q/messages", b'{"payload":1}')
        half.send(raw[:-3])
        poll.send(request("POST", "/queues/q/dequeue", b'{"wait_seconds":20}'))
        wait_for(lambda: serving.ask(DescribeQueue("/", "q")).consumers_waiting == 1, "the long poll waits")
        wait_for(lambda: serving.server.connection_count == 3, "all are connected")
        thread = stopping(serving)
        assert idle.read_to_the_end() == b""
        (ended,) = take_responses(poll.read_to_the_end())
        assert ended.json() == {"messages": []} and ended.header("connection") == "close"
        half.send(raw[-3:])
        (answered,) = take_responses(half.read_to_the_end())
        assert answered.status == 201 and answered.header("connection") == "close"
        thread.join(5)
        assert not thread.is_alive()


def test_pipelined_requests_in_flight_are_all_answered(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.connect() as wire:
        wire.ask("PUT", "/queues/q")

        async def feed_and_stop() -> None:
            (connection,) = serving.server._shared.connections
            connection.data_received(request("POST", "/queues/q/messages", b'{"payload":1}') * 10)
            await serving.server.stop(5000)

        serving.run(feed_and_stop())
        answers = take_responses(wire.read_to_the_end())
        assert [a.status for a in answers] == [201] * 10
        assert [a.header("connection") for a in answers] == [None] * 9 + ["close"]


def test_what_does_not_end_in_the_grace_is_cut(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.connect() as half:
        half.send(b"GET /healthz HTTP/1.1\r\nHost: loc")
        wait_for(lambda: serving.server.connection_count == 1, "it is connected")
        started = time.monotonic()
        stopping(serving, 100).join(5)
        assert time.monotonic() - started < 4
        wait_for(lambda: serving.server.connection_count == 0, "it is cut")


def test_a_stopped_server_accepts_no_more(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    stopping(serving).join(5)
    try:
        serving.connect().close()
    except ConnectionError:
        return
    raise AssertionError("somebody still listens")


def test_leases_stay_valid_across_a_restart(tmp_path: Path) -> None:
    with Serving(tmp_path) as serving, serving.client() as http:
        http.put("/queues/q")
        publish(http, "/queues/q", "survivor")
        (message,) = dequeue(http, "/queues/q", visibility_timeout=600)
    with Serving(tmp_path) as serving, serving.client() as http:
        assert dequeue(http, "/queues/q") == []
        path = f"/queues/q/messages/{message['message_id']}"
        assert http.delete(path, params={"receipt_handle": message["receipt_handle"]}).status_code == 204
