"""A real disk, small and full: publishing is refused, acking works, and space that returns is noticed by itself.

The server runs in a mount namespace of its own, on a tmpfs; that takes root or user namespaces, and fails without.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.wire import Wire, method
from tests.amqp.wire import publish as amqp_publish

from .server import Connection, Server, eventually

QUEUE = "/queues/q"
DISK_MIB = 64
MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Any:
    folder = tmp_path / "disk"
    folder.mkdir()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = f'mount -t tmpfs -o size={DISK_MIB}m tmpfs "$0" && exec "$@"'
    with Server(
        folder, "--segment-bytes", "1048576", before=[*unshare, "sh", "-c", script, str(folder)], log=tmp_path / "log"
    ) as server:
        yield server


def disk_of(server: Server) -> Path:
    """The server's disk, seen from here."""
    return Path(f"/proc/{server.pid}/root{server.folder}")


def fill(server: Server, left_mib: float) -> Path:
    ballast = disk_of(server) / "ballast"
    free = os.statvfs(disk_of(server))
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - int(left_mib * MIB)))
    return ballast


def publish(connection: Connection, payload: str) -> tuple[int, Any]:
    return connection.call("POST", f"{QUEUE}/messages", {"payload": payload})


def refused(connection: Connection, accepted: list[str]) -> Any:
    """The answer once publishing is refused, None as long as it is not; what is taken counts."""
    payload = f"message {len(accepted)}"
    status, answer = publish(connection, payload)
    if status == 201:
        accepted.append(payload)
        return None
    return status, answer


def consume(connection: Connection, expected: list[str]) -> None:
    for payload in expected:
        message = connection.must(200, "POST", f"{QUEUE}/dequeue", {})["messages"][0]
        assert message["payload"] == payload
        handle = {"receipt_handle": message["receipt_handle"]}
        connection.must(204, "DELETE", f"{QUEUE}/messages/{message['message_id']}", handle)


@pytest.mark.parametrize("left_mib", [20, 0])
def test_acking_works_on_a_full_disk_and_publishing_again_when_there_is_space(server: Server, left_mib: float) -> None:
    connection = server.connect()
    connection.must(201, "PUT", QUEUE, {})
    payloads = [f"message {n}" for n in range(200)]
    for payload in payloads:
        assert publish(connection, payload)[0] == 201
    ballast = fill(server, left_mib)
    status, answer = eventually("publishing is refused", lambda: refused(connection, payloads))
    assert (status, answer["error"]["code"]) == (507, "disk_full")
    assert [connection.call("GET", f"/readyz{what}")[0] for what in ("", "/publish", "/consume")] == [503, 503, 200]
    consume(connection, payloads[:100])
    assert publish(connection, "no")[0] == 507
    ballast.unlink()
    eventually("publishing works again", lambda: publish(connection, "again")[0] == 201)
    connection.must(200, "GET", "/readyz")
    consume(connection, [*payloads[100:], "again"])
    assert connection.must(200, "POST", f"{QUEUE}/dequeue", {})["messages"] == []


def test_a_drained_server_takes_messages_again_without_help(server: Server) -> None:
    connection = server.connect()
    connection.must(201, "PUT", QUEUE, {})
    body = "x" * 100_000
    for _ in range(150):
        assert publish(connection, body)[0] == 201
    fill(server, 31)
    eventually("publishing is refused", lambda: refused(connection, []))
    while messages := connection.must(200, "POST", f"{QUEUE}/dequeue", {"max_messages": 100})["messages"]:
        handles = [{"receipt_handle": message["receipt_handle"]} for message in messages]
        connection.must(200, "POST", f"{QUEUE}/ack", handles)
    eventually("the server is ready", lambda: connection.call("GET", "/readyz")[0] == 200)
    assert publish(connection, "again")[0] == 201
    consume(connection, ["again"])


def test_what_is_larger_than_the_free_disk_is_refused_and_all_else_goes_on(server: Server) -> None:
    """In each protocol's own way; the server knows before it begins."""
    connection = server.connect()
    connection.must(201, "PUT", QUEUE, {"max_message_bytes": 16 * MIB})
    for payload in ("one", "two", "three"):
        assert publish(connection, payload)[0] == 201
    fill(server, 40)
    large = base64.b64encode(bytes(9 * MIB)).decode()
    status, answer = connection.call("POST", f"{QUEUE}/messages", {"payload_base64": large})
    assert (status, answer["error"]["code"]) == (507, "too_large_for_disk")
    with Wire(("127.0.0.1", server.amqp_port)) as wire:
        wire.log_in(channels=3)
        wire.ask(1, "confirm.select")
        wire.send(amqp_publish(1, "q", bytes(9 * MIB)))
        assert wire.read().name == "basic.nack"
        wire.send(amqp_publish(1, "q", b"four"))
        assert wire.read().name == "basic.ack"
        wire.ask(2, "tx.select")
        wire.send(amqp_publish(2, "q", bytes(9 * MIB)))
        close = wire.ask(2, "tx.commit")
        assert close.fields["text"].startswith("PRECONDITION_FAILED - the disk has room for messages, but not for")
        wire.send(method(2, "channel.close-ok") + amqp_publish(3, "q", bytes(9 * MIB)))
        assert wire.expect("channel.close").fields["code"] == 406, "without confirms the channel is what can be told"
        wire.send(method(3, "channel.close-ok"))
        got = wire.ask(1, "basic.get", queue="q")
        assert got.name == "basic.get-ok"
        assert (wire.read().name, wire.read().kind) == ("header", 3)
        wire.send(method(1, "basic.ack", delivery=got.fields["delivery"]))
        assert wire.ask(1, "queue.purge", queue="q").fields["messages"] == 3
    assert publish(connection, "five")[0] == 201
    consume(connection, ["five"])
    connection.must(200, "GET", "/readyz")


def test_a_large_message_to_sixty_queues_takes_its_bytes_once(server: Server) -> None:
    """Of the disk, which has no room for sixty of it, and of memory."""
    connection = server.connect()
    connection.must(201, "PUT", "/exchanges/%2F/fan", {"type": "fanout"})
    for n in range(60):
        connection.must(201, "PUT", f"/queues/q{n}", {"max_message_bytes": 16 * MIB, "max_priority": n % 3})
        connection.must(201, "POST", f"/bindings/%2F/e/fan/q/q{n}", {"routing_key": ""})
    memory_kib, disk = status_kib(server, "VmHWM"), used_bytes(server)
    large = {"routing_key": "", "payload_base64": base64.b64encode(bytes(8 * MIB)).decode()}
    assert connection.must(200, "POST", "/exchanges/%2F/fan/publish", large)["queue_count"] == 60
    with Wire(("127.0.0.1", server.amqp_port)) as wire:
        wire.log_in()
        wire.ask(1, "confirm.select")
        wire.send(amqp_publish(1, "", bytes(8 * MIB), exchange="fan"))
        assert wire.read().name == "basic.ack"
    assert used_bytes(server) - disk < 3 * 8 * MIB
    assert status_kib(server, "VmHWM") - memory_kib < 150 * 1024, "some copies of it, and not sixty"
    for n in range(60):
        assert len(connection.must(200, "POST", f"/queues/q{n}/dequeue", {})["messages"]) == 1
        connection.must(200, "POST", f"/queues/q{n}/purge")
    connection.must(200, "GET", "/readyz")


def used_bytes(server: Server) -> int:
    return sum(path.stat().st_blocks * 512 for path in disk_of(server).iterdir() if path.suffix == ".segment")


def status_kib(server: Server, name: str) -> int:
    """A figure of the server's process."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
