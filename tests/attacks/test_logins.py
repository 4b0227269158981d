"""Whoever guesses passwords is slowed down, alone; and what is logged of strangers is one true line."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import select
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import ClientError

from laneway.access import AccessLimits, Origin
from laneway.access.failures import FailedLogins
from laneway.errors import TooManyLogins
from laneway.logs import formatter
from laneway.telemetry.floods import FloodLog
from tests.amqp.wire import HEADER, Wire, method
from tests.attacks.test_memory import locked
from tests.crash.server import Server, eventually

NEIGHBOUR = "127.0.0.2"
STRANGER = "127.0.0.3"


def ask(server: Server, path: str, authorization: str = "", source: str = NEIGHBOUR) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20, source_address=(source, 0))
    connection.request("GET", path, headers={"Authorization": authorization} if authorization else {})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    connection.close()
    return answer.status, data


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def guess(server: Server, stack: ExitStack, count: int, *, name: str = "root") -> list[socket.socket]:
    """So many connections that have each sent another wrong password."""
    made = []
    for i in range(count):
        stream = stack.enter_context(
            socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(STRANGER, 0))
        )
        head = f"GET /queues HTTP/1.1\r\nHost: x\r\nAuthorization: {basic(name, str(i))}\r\n\r\n"
        stream.sendall(head.encode())
        made.append(stream)
    return made


def statuses(streams: list[socket.socket]) -> Counter[int]:
    found: Counter[int] = Counter()
    for stream in streams:
        ready, _, _ = select.select([stream], [], [], 20)
        assert ready
        found[int(stream.recv(4096).split()[1])] += 1
    return found


def test_wrong_passwords_do_not_keep_others_from_being_answered(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, ExitStack() as stack:
        root = locked(server)
        root.must(201, "PUT", "/accounts/ann", {"password": "pw"})
        guessing = guess(server, stack, 300)
        for path in ("/healthz", "/readyz", "/readyz/publish", "/openapi.json"):
            assert ask(server, path)[0] == 200
        assert root.must(200, "GET", "/queues") is not None
        assert root.must(201, "PUT", "/accounts/ben", {"password": "pw"})  # a password to hash, too
        assert ask(server, "/whoami", basic("ann", "pw"))[1]["name"] == "ann"  # never verified before
        told = statuses(guessing)
        assert set(told) == {401, 429} and told[401] <= 30
        assert ask(server, "/whoami", basic("root", "secret"), STRANGER)[0] == 200  # it was verified elsewhere


def test_right_password_is_taken_again_after_a_while(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, ExitStack() as stack:
        locked(server).must(201, "PUT", "/accounts/ann", {"password": "pw"})
        statuses(guess(server, stack, 30, name="ann"))
        status, answer = ask(server, "/whoami", basic("ann", "pw"), STRANGER)
        assert (status, answer["error"]["code"]) == (429, "too_many_logins")
        assert ask(server, "/whoami", basic("ann", "pw"), NEIGHBOUR)[0] == 200
        stack.close()
        eventually("it is taken", lambda: ask(server, "/whoami", basic("ann", "pw"), STRANGER)[0] == 200)


def test_wrong_keys_are_counted_and_the_right_one_is_taken(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        root = locked(server)
        root.must(201, "PUT", "/accounts/ann", {"password": "pw"})
        key = root.must(201, "POST", "/accounts/ann/keys")["key"]
        told = Counter(ask(server, "/whoami", f"Bearer lw_{i}", STRANGER)[0] for i in range(40))
        assert told[401] >= 20 and told[429] >= 10
        assert ask(server, "/whoami", f"Bearer {key}", STRANGER)[0] == 200


def test_wrong_signatures_are_counted_by_key(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        root = locked(server)
        root.must(201, "PUT", "/accounts/ann", {"password": "pw", "permissions": [{"queue": "*", "read": True}]})
        keys = [root.must(201, "POST", "/accounts/ann/keys", {"kind": "aws"}) for _ in range(2)]

        def list_queues(key: dict[str, str], secret: str) -> str:
            session = boto3.Session(
                aws_access_key_id=key["key_id"], aws_secret_access_key=secret, region_name="us-east-1"
            )
            sqs = session.client(
                "sqs",
                endpoint_url=f"http://127.0.0.1:{server.port}",
                config=BotoConfig(retries={"total_max_attempts": 1}),
            )
            try:
                sqs.list_queues()
            except ClientError as error:
                return str(error.response["Error"]["Code"])
            return "listed"

        told = Counter(list_queues(keys[0], "wrong") for _ in range(30))
        assert told["InvalidSignatureException"] + told["SignatureDoesNotMatch"] >= 20 and told["RequestThrottled"] >= 5
        for i in range(110):  # more than an address may fail; these cost nothing to refuse
            assert ask(server, "/whoami", basic(f"n{i}", "x" * 2000), "127.0.0.1")[0] == 401
        assert list_queues(keys[0], "wrong") == "RequestThrottled"
        for key in keys:  # whoever else is at this address, or knows the id of the key
            assert list_queues(key, key["key"]) == "listed"


def _start(wire: Wire, mechanism: str, response: str) -> Any:
    wire.send(HEADER)
    wire.expect("connection.start")
    properties = {"capabilities": {"authentication_failure_close": True}}
    wire.send(
        method(
            0,
            "connection.start-ok",
            client_properties=properties,
            mechanism=mechanism,
            response=response,
            locale="en_US",
        )
    )
    return wire.expect("connection.close")


def test_amqp_tells_who_has_to_wait_from_who_is_wrong(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        locked(server)
        codes = []
        for i in range(25):
            with Wire(("127.0.0.1", server.amqp_port)) as wire:
                codes.append(_start(wire, "PLAIN", f"\0root\0{i}").fields["code"])
        assert codes[:20] == [403] * 20 and codes[-1] == 320


def test_log_lines_cannot_be_forged(tmp_path: Path) -> None:
    forged = "2026-01-01 00:00:00,000 INFO laneway.access: account 'root' was deleted"
    with Server(tmp_path / "data") as server:
        locked(server)
        with Wire(("127.0.0.1", server.amqp_port)) as wire:
            _start(wire, f"X\n{forged}\x1b[2J", "")
        with Wire(("127.0.0.1", server.amqp_port)) as wire:
            _start(wire, "PLAIN", f"\0ann\n{forged}\0pw")
        ask(server, "/whoami", basic(f"bob\n{forged}", "pw"))
        lines = server.log().split("\n")
        assert not any(line.startswith("2026-01-01") or "\x1b" in line for line in lines)
        assert sum("2026-01-01" in line for line in lines) >= 3
        assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} |$", line) for line in lines)


def test_log_tells_who_came_in_who_did_not_and_who_changed_what(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        root = locked(server)
        root.must(200, "PUT", "/accounts/root", {"password": "changed"})
        root = server.connect(user="root", password="changed")
        permissions = [{"queue": "secret-plans", "read": True}]
        root.must(201, "PUT", "/accounts/ann", {"password": "hidden", "permissions": permissions})
        made = root.must(201, "POST", "/accounts/ann/keys")
        root.must(204, "DELETE", f"/accounts/ann/keys/{made['key_id']}")
        root.must(204, "DELETE", "/accounts/ann")
        ask(server, "/whoami", basic("ann", "hidden"))
        with Wire(("127.0.0.1", server.amqp_port)) as wire:
            wire.log_in("root", "changed")
        with Wire(("127.0.0.1", server.amqp_port)) as wire:
            _start(wire, "PLAIN", "\0ann\0hidden")
        log = eventually("all is logged", lambda: server.log() if "closed before it was opened" in server.log() else "")
        for expected in (
            r"account 'root' created by 'guest' from 127\.0\.0\.1:\d+: roles admin; given: password, roles",
            r"account 'root' changed by 'root' from 127\.0\.0\.1:\d+: roles admin; given: password",
            r"account 'ann' created by 'root' from 127\.0\.0\.1:\d+: roles user; given: password, permissions",
            rf"key '{made['key_id']}' \(api\) of account 'ann' created by 'root' from 127\.0\.0\.1:\d+",
            rf"key '{made['key_id']}' \(api\) of account 'ann' deleted by 'root' from 127\.0\.0\.1:\d+",
            r"account 'ann' deleted by 'root' from 127\.0\.0\.1:\d+",
            r"login refused: HTTP Basic from 127\.0\.0\.2:\d+ as 'ann': the account's name or its password is wrong",
            r"login refused: AMQP PLAIN from 127\.0\.0\.1:\d+ as 'ann': the account's name or its password is wrong",
            r"AMQP connection from 127\.0\.0\.1:\d+ opened: account 'root', virtual host '/'",
            r"AMQP connection from 127\.0\.0\.1:\d+ closed: account 'root', \d+ s",
            r"AMQP connection from 127\.0\.0\.1:\d+ closed before it was opened, \d+ s",
        ):
            assert re.search(expected, log), f"{expected}\n{log}"
        for secret in ("hidden", "changed'", made["key"], basic("ann", "hidden").split()[1]):
            assert secret not in log


def test_flood_of_failures_is_counted_and_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    floods = FloodLog(lambda: now_s)
    log = logging.getLogger("laneway.access")

    def knock(count: int, source: str) -> None:
        for i in range(count):
            floods.say(log, logging.WARNING, "refused logins", source, "refused %d", i)

    with caplog.at_level(logging.WARNING):
        knock(1000, "10.0.0.1")
        knock(3, "10.0.0.2")
        assert caplog.messages == [f"refused {i}" for i in range(20)] + [f"refused {i}" for i in range(3)]
        caplog.clear()
        now_s = 61.0
        floods.flush()
        assert caplog.messages == ["980 more refused logins from 10.0.0.1 within 61 s"]
        caplog.clear()
        for i in range(5000):
            knock(1, f"10.1.{i // 250}.{i % 250}")
        assert len(caplog.messages) == 200
        caplog.clear()
        floods.flush(is_last=True)
        assert len(caplog.messages) <= 1001 and "other addresses" in caplog.messages[-1]


def test_failures_are_forgiven_and_forgotten() -> None:
    now_ms = 0
    limits = AccessLimits()
    failures = FailedLogins(limits, FloodLog(), lambda: now_ms)
    neighbour, stranger = Origin("x", "p", "10.0.0.1"), Origin("x", "p", "10.0.0.2")
    for _ in range(limits.failures_per_name):
        failures.failed(stranger, "ann", "wrong")
    with pytest.raises(TooManyLogins):
        failures.check(stranger, "ann")
    failures.check(stranger, "ben")
    failures.check(neighbour, "ann")
    now_ms = limits.failure_of_name_ms
    failures.check(stranger, "ann")
    failures.begin(stranger, "ann")
    with pytest.raises(TooManyLogins):
        failures.check(stranger, "ann")
    failures.succeeded(stranger, "ann")
    failures.check(stranger, "ann")
    for i in range(limits.failures_per_address):
        failures.failed(stranger, f"n{i}", "wrong")
    with pytest.raises(TooManyLogins):
        failures.check(stranger, "somebody else")
    now_ms += 200_000
    failures.check(neighbour, "ann")
    assert not failures.used


def test_who_failed_far_too_often_waits_no_longer_than_who_failed_too_often() -> None:
    now_ms = 0
    limits = AccessLimits()
    failures = FailedLogins(limits, FloodLog(), lambda: now_ms)
    neighbour = Origin("x", "p", "10.0.0.1")
    for _ in range(10_000):
        failures.failed(neighbour, "guest", "from elsewhere")
    with pytest.raises(TooManyLogins):
        failures.check(neighbour, "ann")
    now_ms = limits.failure_of_address_ms
    failures.check(neighbour, "ann")


def test_one_network_of_ipv6_is_one_address_and_there_are_not_too_many() -> None:
    failures = FailedLogins(AccessLimits(), FloodLog(), lambda: 0)
    for i in range(20):
        failures.failed(Origin("x", "p", f"2001:db8::{i:x}"), "ann", "wrong")
    with pytest.raises(TooManyLogins):
        failures.check(Origin("x", "p", "2001:db8::ffff"), "ann")
    for i in range(30_000):
        failures.failed(Origin("x", "p", f"10.0.{i // 256}.{i % 256}"), "ann", "wrong")
    assert len(failures.used) <= 20_000


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x1b[31m", "\u2028", "\u202e", "\x00", "\x7f", "\ud800"])
def test_no_line_of_the_log_ends_or_moves_where_a_client_wants(text: str) -> None:
    record = logging.LogRecord("laneway", logging.INFO, "", 0, "it said %s", (text,), None)
    try:
        raise ValueError(text)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *rest = formatter("text").format(record).split("\n")
    assert first.isprintable() and "it said" in first
    assert rest and all(line.startswith("  | ") and line.isprintable() for line in rest)
    assert len(formatter("json").format(record).split("\n")) == 1
