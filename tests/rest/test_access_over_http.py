"""Who may do what, over HTTP: credentials, accounts and keys, and the guard against web pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import httpx
import msgspec
import pytest

from laneway.access import Peer, is_loopback
from laneway.frontends.http.protocol import HttpConnection
from laneway.frontends.rest.answers import AccountAnswer, AccountsAnswer, KeysAnswer, NewKeyAnswer
from tests.in_thread import wait_for
from tests.rest.serving import RecordingTransport, Serving, Wire, request, take_responses
from tests.rest.test_consume import dequeue, error, publish


@pytest.fixture
def locked(own_serving: Callable[..., Serving]) -> Serving:
    """A server with accounts, on which nobody is guest unasked any more."""
    serving = own_serving()
    with serving.client() as http:
        http.put("/queues/orders")
        http.put("/queues/other")
        assert http.put("/accounts/root", json={"password": "secret", "roles": ["admin"]}).status_code == 201
    return serving


def as_root(serving: Serving) -> httpx.Client:
    return serving.client(auth=("root", "secret"))


def make(serving: Serving, name: str, **account: object) -> httpx.Client:
    with as_root(serving) as root:
        assert root.put(f"/accounts/{name}", json={"password": name, **account}).status_code == 201
    return serving.client(auth=(name, name))


def test_without_credentials_one_is_guest_until_there_is_an_account(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.client() as http:
        assert http.get("/whoami").json()["name"] == "guest"
        http.put("/accounts/first", json={"password": "x"})
        answer = http.get("/whoami")
        assert error(answer)[:2] == (401, "unauthenticated")
        assert answer.headers.get_list("WWW-Authenticate") == [
            'Bearer realm="laneway"',
            'Basic realm="laneway", charset="UTF-8"',
        ]


@pytest.mark.parametrize(
    "authorization",
    ["Bearer", "Bearer lw_unknown", "Basic !!!", "Basic bm9jb2xvbg==", "Basic cm9vdDp3cm9uZw==", "Digest x", "lw_x"],
)
def test_wrong_credentials_are_refused(locked: Serving, authorization: str) -> None:
    with locked.client(headers={"Authorization": authorization}) as http:
        assert error(http.get("/whoami"))[:2] == (401, "unauthenticated")


def test_a_key_is_shown_once_works_and_stops_working_at_once(locked: Serving) -> None:
    with as_root(locked) as root:
        answer = root.post("/accounts/root/keys", json={"label": "ci"})
        made = msgspec.json.decode(answer.content, type=NewKeyAnswer)
        assert answer.status_code == 201 and made.key.startswith("lw_")
        listed = msgspec.json.decode(root.get("/accounts/root/keys").content, type=KeysAnswer)
        assert [(k.key_id, k.label) for k in listed.keys] == [(made.key_id, "ci")]
        assert made.key not in root.get("/accounts/root/keys").text
        with locked.client(headers={"Authorization": f"Bearer {made.key}"}) as http:
            assert http.get("/whoami").json()["name"] == "root"
            assert root.delete(f"/accounts/root/keys/{made.key_id}").status_code == 204
            assert error(http.get("/whoami"))[0] == 401  # on the same open connection
        assert error(root.delete(f"/accounts/root/keys/{made.key_id}"))[:2] == (404, "not_found")


def test_accounts_are_created_changed_shown_and_deleted(locked: Serving) -> None:
    permission = {"queue": "orders*", "vhost": "/", "read": True, "write": False, "configure": False}
    with as_root(locked) as root:
        created = root.put("/accounts/reader", json={"password": "x", "permissions": [permission]})
        told = msgspec.json.decode(created.content, type=AccountAnswer)
        assert (created.status_code, told.name, told.roles) == (201, "reader", ["user"])
        assert created.json()["permissions"] == [permission] and "password" not in created.text
        changed = root.put("/accounts/reader", json={"roles": ["monitor"]})
        assert (changed.status_code, changed.json()["roles"]) == (200, ["monitor"])
        assert changed.json()["permissions"] == [permission]
        assert root.get("/accounts/reader").json() == changed.json()
        listed = msgspec.json.decode(root.get("/accounts").content, type=AccountsAnswer)
        assert [account.name for account in listed.accounts] == ["guest", "reader", "root"]
        assert root.delete("/accounts/reader").status_code == 204
        assert error(root.get("/accounts/reader"))[:2] == (404, "account_not_found")
        assert error(root.put("/accounts/x", json={"roles": ["king"]})) == (400, "invalid_input", "roles")
        assert error(root.put("/accounts/x", json={"permissions": [{"reed": True}]}))[2] == "permissions[0].reed"


def test_a_redrive_to_where_they_came_from_takes_the_permission_to_write_there(locked: Serving) -> None:
    with as_root(locked) as root:
        root.put("/queues/graves")
        root.put("/queues/orders", json={"dead_letter_queue": "graves"})
        publish(root, "/queues/orders", 1)
        (message,) = dequeue(root, "/queues/orders")
        root.post("/queues/orders/reject", json=[{"receipt_handle": message["receipt_handle"]}])
        own = [{"queue": "graves", "configure": True, "read": True}]
        with make(locked, "digger", permissions=own) as digger:
            assert error(digger.post("/queues/graves/redrive"))[:2] == (403, "forbidden")
            root.put("/accounts/digger", json={"permissions": [*own, {"queue": "orders", "write": True}]})
            assert digger.post("/queues/graves/redrive").status_code == 202
        wait_for(lambda: len(dequeue(root, "/queues/orders")) == 1, "it is back")


def test_permissions_decide_per_queue(locked: Serving) -> None:
    with make(locked, "writer", permissions=[{"queue": "orders", "write": True}]) as writer:
        publish(writer, "/queues/orders", 1)
        assert error(writer.post("/queues/orders/dequeue"))[:2] == (403, "forbidden")
        assert error(writer.post("/queues/other/messages", json={"payload": 1}))[:2] == (403, "forbidden")
        assert error(writer.put("/queues/mine"))[:2] == (403, "forbidden")
        assert error(writer.get("/accounts"))[:2] == (403, "forbidden")
        assert error(writer.get("/queues/orders/messages"))[:2] == (403, "forbidden")
        assert [q["queue_name"] for q in writer.get("/queues").json()["queues"]] == ["orders"]
    with make(locked, "reader", permissions=[{"queue": "orders", "read": True}]) as reader:
        (message,) = dequeue(reader, "/queues/orders")
        answer = reader.post("/queues/orders/ack", json=[{"receipt_handle": message["receipt_handle"]}])
        assert answer.status_code == 200
        assert error(reader.post("/queues/orders/purge"))[:2] == (403, "forbidden")
        assert error(reader.post("/queues/orders/redrive"))[:2] == (403, "forbidden")
    with make(locked, "mover", permissions=[{"queue": "orders", "configure": True}]) as mover:
        assert mover.post("/queues/orders/redrive").status_code == 202
        assert error(mover.post("/queues/orders/redrive", json={"target": "other"}))[:2] == (403, "forbidden")


def test_a_monitor_counts_but_sees_no_message(locked: Serving) -> None:
    with make(locked, "watch", roles=["monitor"]) as watch:
        assert watch.get("/queues/orders/stats").status_code == 200
        assert watch.get("/queues/orders").status_code == 200
        assert len(watch.get("/queues").json()["queues"]) == 2
        assert error(watch.get("/queues/orders/messages"))[:2] == (403, "forbidden")
        assert error(watch.post("/queues/orders/dequeue"))[:2] == (403, "forbidden")


def test_a_change_of_permissions_counts_on_open_connections(locked: Serving) -> None:
    with make(locked, "temp", permissions=[{"write": True}]) as temp, as_root(locked) as root:
        publish(temp, "/queues/orders", 1)
        root.put("/accounts/temp", json={"permissions": []})
        assert error(temp.post("/queues/orders/messages", json={"payload": 1}))[:2] == (403, "forbidden")
        root.delete("/accounts/temp")
        assert error(temp.post("/queues/orders/messages", json={"payload": 1}))[0] == 401


def test_everybody_may_change_their_own_password_and_keys_alone(locked: Serving) -> None:
    with make(locked, "ann") as ann:
        assert error(ann.put("/accounts/ann", json={"roles": ["admin"]}))[0] == 403
        assert error(ann.put("/accounts/root", json={"password": "x"}))[0] == 403
        assert error(ann.post("/accounts/root/keys"))[0] == 403
        assert ann.get("/accounts/ann").status_code == 200
        assert ann.post("/accounts/ann/keys").status_code == 201
        assert ann.put("/accounts/ann", json={"password": "new"}).status_code == 200
        assert error(ann.get("/whoami"))[0] == 401
    with locked.client(auth=("ann", "new")) as ann:
        assert ann.get("/whoami").json()["name"] == "ann"


def test_requests_behind_a_password_check_keep_their_order(locked: Serving) -> None:
    basic = "Authorization: Basic cm9vdDpzZWNyZXQ=\r\n"  # root:secret, not seen by this server yet
    raw = b"".join(request("POST", "/queues/orders/messages", b'{"payload":%d}' % n, basic) for n in range(10))
    written, _ = locked.transcript([raw + request("DELETE", "/queues/orders", headers=basic)], 11)
    assert [r.status for r in take_responses(written)] == [201] * 10 + [204]


def test_a_long_poll_behind_a_password_check_holds_up_nobody(locked: Serving) -> None:
    basic = "Authorization: Basic cm9vdDpzZWNyZXQ=\r\n"
    poll = request("POST", "/queues/orders/dequeue", b'{"wait_seconds":20}', basic)
    publish_one = request("POST", "/queues/orders/messages", b'{"payload":1}', basic)
    written, _ = locked.transcript([poll + publish_one], 2)
    dequeued, published = take_responses(written)
    assert dequeued.json()["messages"][0]["message_id"] == published.json()["message_id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: localhost\r\n", 200),
        ("Host: LOCALHOST:80\r\n", 200),
        ("Host: 127.0.0.9:8080\r\n", 200),
        ("Host: [::1]:8080\r\n", 200),
        ("Host: evil.example\r\n", 403),
        ("Host: localhost.evil.example\r\n", 403),
        ("Host: 127.0.0.1.evil.example\r\n", 403),
        ("Host: 127.evil.example\r\n", 403),
        ("Host: \r\n", 403),
        ("Host: localhost:8080\r\nOrigin: http://localhost:8080\r\n", 200),
        ("Host: localhost:8080\r\nOrigin: http://localhost:9090\r\n", 403),
        ("Host: localhost:8080\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: localhost:8080\r\nOrigin: null\r\n", 403),
        ("Host: localhost:8080\r\nSec-Fetch-Site: none\r\n", 200),
        ("Host: localhost:8080\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("Host: evil.example\r\nOrigin: http://evil.example\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n", 403),
    ],
)
def test_a_web_page_cannot_act_as_guest(wire: Wire, headers: str, status: int) -> None:
    wire.send(f"GET /whoami HTTP/1.1\r\n{headers}\r\n".encode())
    answer = wire.read()
    assert answer.status == status
    if status == 403:
        assert re.search("send (an API key|the credentials of another account)", answer.error["message"])


def test_where_nobody_is_guest_a_request_without_credentials_is_asked_for_them(locked: Serving) -> None:
    for headers in ({"Host": "queue.example"}, {"Origin": "http://evil.example"}):
        with locked.client(headers=headers) as http:
            answer = http.get("/whoami")
            assert answer.status_code == 401 and "Basic" in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("1270.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_elsewhere(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_guest_cannot_come_from_elsewhere(serving: Serving) -> None:
    """A connection from elsewhere cannot be had in a test, so one is told that it is."""

    async def from_elsewhere(headers: str) -> int:
        transport = RecordingTransport()
        connection = HttpConnection(serving.server._shared)
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.peer = Peer("10.0.0.9", 80, False, False)
        connection.peer_kind = connection.peer.kind
        connection.data_received(request("GET", "/whoami", headers=headers))
        while not transport.written:
            await asyncio.sleep(0.001)
        connection.connection_lost(None)
        return take_responses(transport.written)[0].status

    assert serving.run(from_elsewhere("")) == 401
    assert serving.run(from_elsewhere("Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n")) == 401
