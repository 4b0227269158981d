"""From the protocol header to the open virtual host, and what is said when something is wrong on the way."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.access import Permission
from tests.amqp.serving import Serving
from tests.amqp.wire import CAPABILITIES, HEADER, Wire, method, table

ALTERNATE = {"alternate-exchange": "a"}
REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see the broker logfile."


def start_ok(mechanism: str = "PLAIN", response: Any = "\0guest\0guest", capabilities: Any = CAPABILITIES) -> bytes:
    properties = {"capabilities": capabilities} if capabilities else {}
    return method(0, "connection.start-ok", client_properties=properties, mechanism=mechanism, response=response)


def tune_ok(**given: int) -> bytes:
    return method(0, "connection.tune-ok", **{"channel_max": 2047, "frame_max": 131072, **given})


def started(serving: Serving) -> Wire:
    wire = serving.connect()
    wire.send(HEADER)
    wire.expect("connection.start")
    return wire


def closed_with(wire: Wire) -> tuple[int, str, int, int]:
    close = wire.expect("connection.close")
    wire.send(method(0, "connection.close-ok"))
    assert wire.read_until_closed() == b""
    return close.fields["code"], close.fields["text"], close.fields["class-id"], close.fields["method-id"]


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"]
)
def test_another_protocol_is_told_the_right_one(serving: Serving, header: bytes) -> None:
    with serving.connect() as wire:
        wire.send(header)
        assert wire.read_until_closed() == b"AMQP\x00\x00\x09\x01"


def test_a_header_in_crumbs_is_a_header(serving: Serving) -> None:
    with serving.connect() as wire:
        for byte in HEADER:
            wire.send(bytes([byte]))
        assert wire.read().name == "connection.start"


def test_the_header_of_0_9_is_taken_too(serving: Serving) -> None:
    with serving.connect() as wire:
        wire.send(b"AMQP\x01\x01\x00\x09")
        assert wire.read().name == "connection.start"


def test_the_server_says_what_libraries_look_for(serving: Serving) -> None:
    with serving.connect() as wire:
        wire.send(HEADER)
        start = wire.expect("connection.start").fields
    assert (start["version-major"], start["version-minor"]) == (0, 9)
    assert start["mechanisms"] == "PLAIN AMQPLAIN" and start["locales"] == "en_US"
    properties = start["server-properties"]
    assert properties["capabilities"] == dict.fromkeys(
        [
            *("publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify"),
            *("connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos"),
            "direct_reply_to",
        ],
        True,
    )
    # kombu compares these two to choose how it asks for a prefetch.
    assert properties["product"] == "RabbitMQ" and int(properties["version"].split(".")[0]) >= 3


def test_the_whole_way(serving: Serving) -> None:
    with started(serving) as wire:
        wire.send(start_ok())
        tune = wire.expect("connection.tune").fields
        assert tune == {"channel-max": 2047, "frame-max": 131072, "heartbeat": 60}
        wire.send(tune_ok() + method(0, "connection.open", virtual_host="/"))
        assert str(wire.expect("connection.open-ok")) == "0 connection.open-ok"
        wire.send(method(0, "connection.close", code=200))
        assert str(wire.expect("connection.close-ok")) == "0 connection.close-ok"


def test_amqplain(serving: Serving) -> None:
    with started(serving) as wire:
        wire.send(start_ok("AMQPLAIN", table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]))
        wire.expect("connection.tune")


def test_an_api_key_is_as_good_as_a_password(serving: Serving) -> None:
    serving.run(serving.access.put_account("keyed"))
    _, key = serving.run(serving.access.create_key("keyed"))
    for name in ("keyed", ""):
        with started(serving) as wire:
            wire.send(start_ok(response=f"\0{name}\0{key}"))
            wire.expect("connection.tune")
    with started(serving) as wire:
        wire.send(start_ok(response=f"\0guest\0{key}"))
        assert closed_with(wire) == (403, REFUSED.format("PLAIN"), 0, 0)


@pytest.mark.parametrize("response", ["\0guest\0wrong", "\0nobody\0guest", "\0guest\0lw_unknown"])
def test_a_wrong_password_is_refused(serving: Serving, response: str) -> None:
    with started(serving) as wire:
        wire.send(start_ok(response=response))
        assert closed_with(wire) == (403, REFUSED.format("PLAIN"), 0, 0)


def test_a_client_that_cannot_hear_the_refusal_is_cut_off(serving: Serving) -> None:
    with started(serving) as wire:
        wire.send(start_ok(response="\0guest\0wrong", capabilities={}))
        assert wire.read_until_closed() == b""


@pytest.mark.parametrize(
    ("frames", "code", "text"),
    [
        (start_ok("MAGIC"), 503, "COMMAND_INVALID - unknown authentication mechanism 'MAGIC'"),
        (start_ok("EXTERNAL"), 503, "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'"),
        (start_ok(response="x"), 501, "FRAME_ERROR - the response of PLAIN is \\0, the name, \\0, the password"),
        (start_ok("AMQPLAIN", "x"), 501, "FRAME_ERROR - AMQPLAIN auth info is not a table with LOGIN and PASSWORD"),
        (tune_ok(), 504, "CHANNEL_ERROR - unexpected method in connection state starting"),
        (method(0, "connection.open"), 504, "CHANNEL_ERROR - unexpected method in connection state starting"),
        (method(1, "channel.open"), 504, "CHANNEL_ERROR - expected 'channel.open'"),
    ],
)  # fmt: skip
def test_a_wrong_start(serving: Serving, frames: bytes, code: int, text: str) -> None:
    with started(serving) as wire:
        wire.send(frames)
        assert closed_with(wire)[:2] == (code, text)


@pytest.mark.parametrize(
    ("tune", "text"),
    [
        ({"frame_max": 100}, "negotiated frame_max = 100 is lower than the minimum allowed value (4096)"),
        ({"frame_max": 131073}, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
    ],
)
def test_sizes_that_the_server_does_not_offer(serving: Serving, tune: dict[str, int], text: str) -> None:
    with started(serving) as wire:
        wire.send(start_ok() + tune_ok(**tune))
        wire.expect("connection.tune")
        assert closed_with(wire) == (530, f"NOT_ALLOWED - {text}", 10, 31)


def test_a_client_may_leave_the_sizes_to_the_server(serving: Serving) -> None:
    with started(serving) as wire:
        wire.send(start_ok() + tune_ok(frame_max=0, channel_max=0) + method(0, "connection.open", virtual_host="/"))
        wire.expect("connection.tune")
        wire.expect("connection.open-ok")


def test_a_virtual_host_that_is_not_there_or_not_for_this_account(serving: Serving) -> None:
    serving.run(serving.access.put_account("outsider", password="pw"))
    with started(serving) as wire:
        wire.send(start_ok() + tune_ok() + method(0, "connection.open", virtual_host="nowhere"))
        wire.expect("connection.tune")
        assert closed_with(wire) == (530, "NOT_ALLOWED - vhost nowhere not found", 10, 40)
    with started(serving) as wire:
        wire.send(start_ok(response="\0outsider\0pw") + tune_ok() + method(0, "connection.open", virtual_host="/"))
        wire.expect("connection.tune")
        text = "NOT_ALLOWED - access to vhost '/' refused for user 'outsider'"
        assert closed_with(wire) == (530, text, 10, 40)


def test_virtual_hosts_are_worlds_of_their_own(serving: Serving) -> None:
    serving.call(serving.partition.vhosts.create, "other")
    with serving.log_in() as here, serving.log_in(vhost="other") as there:
        assert here.ask(1, "queue.declare", queue="mine").name == "queue.declare-ok"
        close = there.ask(1, "queue.declare", queue="mine", passive=1)
        assert close.fields["text"] == "NOT_FOUND - no queue 'mine' in vhost 'other'"


def test_more_channels_than_agreed(serving: Serving) -> None:
    with serving.log_in(channel_max=2, channels=2) as wire:
        wire.send(method(9, "channel.open"))
        text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
        assert closed_with(wire) == (530, text, 0, 0)


def test_a_method_that_does_not_exist(serving: Serving) -> None:
    for number in ("003203e7", "0fff000a"):
        with serving.log_in() as wire:
            wire.send(bytes.fromhex(f"01000100000004{number}ce"))
            assert closed_with(wire)[0] == 503


# --- permissions


@pytest.fixture(scope="module")
def limited(shared_serving: Serving) -> Serving:
    permission = Permission("own*", "*", read=True, write=True, configure=True)
    shared_serving.run(shared_serving.access.put_account("limited", password="pw", permissions=[permission]))
    return shared_serving


@pytest.mark.parametrize(
    ("name", "given", "resource"),
    [
        ("queue.declare", {"queue": "q"}, "queue 'q'"),
        ("queue.declare", {"queue": "ownx", "arguments": {"x-dead-letter-exchange": "x"}}, "exchange 'x'"),
        ("queue.declare", {"queue": "ownx", "arguments": {"x-dead-letter-exchange": ""}}, "exchange 'amq.default'"),
        ("queue.delete", {"queue": "q"}, "queue 'q'"),
        ("queue.purge", {"queue": "q"}, "queue 'q'"),
        ("queue.bind", {"queue": "ownq", "exchange": "amq.direct"}, "exchange 'amq.direct'"),
        ("queue.bind", {"queue": "q", "exchange": "own"}, "queue 'q'"),
        ("queue.unbind", {"queue": "q", "exchange": "own"}, "queue 'q'"),
        ("basic.get", {"queue": "q"}, "queue 'q'"),
        ("basic.consume", {"queue": "q"}, "queue 'q'"),
        ("exchange.declare", {"exchange": "e", "type": "direct"}, "exchange 'e'"),
        ("exchange.declare", {"exchange": "own", "type": "fanout", "arguments": ALTERNATE}, "exchange 'a'"),
        ("exchange.delete", {"exchange": "e"}, "exchange 'e'"),
        ("exchange.bind", {"destination": "e", "source": "own"}, "exchange 'e'"),
        ("exchange.unbind", {"destination": "own", "source": "e"}, "exchange 'e'"),
    ],
)  # fmt: skip
def test_what_an_account_may_not_do(limited: Serving, name: str, given: dict[str, Any], resource: str) -> None:
    with limited.log_in("limited", "pw") as wire:
        close = wire.ask(1, name, **given)
        text = f"ACCESS_REFUSED - access to {resource} in vhost '/' refused for user 'limited'"
        assert (close.fields["code"], close.fields["text"]) == (403, text)


def test_publishing_needs_write_on_the_exchange_each_time(limited: Serving) -> None:
    from tests.amqp.wire import publish

    with limited.log_in() as admin, limited.log_in("limited", "pw") as wire:
        for key in ("one", "two"):  # the second has been seen before, from somebody who may
            admin.send(publish(1, key, b""))
            admin.ask(1, "basic.qos")
            wire.send(publish(1, key, b""))
            close = wire.expect("channel.close")
            text = "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'limited'"
            assert (close.fields["text"], close.fields["class-id"], close.fields["method-id"]) == (text, 60, 40)
            wire.send(method(1, "channel.close-ok") + method(1, "channel.open"))
            wire.expect("channel.open-ok")


def test_a_permission_that_is_taken_away_is_gone_on_open_connections(limited: Serving) -> None:
    limited.run(limited.access.put_account("brief", password="pw", permissions=[Permission("*", "*", configure=True)]))
    with limited.log_in("brief", "pw") as wire:
        assert wire.ask(1, "queue.declare", queue="brief").name == "queue.declare-ok"
        limited.run(limited.access.put_account("brief", permissions=[Permission("*", "*", write=True)]))
        assert wire.ask(1, "queue.declare", queue="brief").fields["code"] == 403
