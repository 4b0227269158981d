"""Accounts of a server of several processes: what one process is told counts at all of them, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from botocore.exceptions import ClientError

from tests.attacks.whole_node import may
from tests.cluster.two_processes import TwoProcesses

BOTH = pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoProcesses]:
    with TwoProcesses(tmp_path_factory.mktemp("processes")) as server:
        server.new_queue("work")
        yield server


@BOTH
def test_a_new_account_can_log_in_at_the_other_process_at_once(server: TwoProcesses, here: int, there: int) -> None:
    for n in range(20):
        name = f"new-{here}-{n}"
        with server.at(here):
            server.account(name, "pw", may("work", "read"))
            access_key = server.key(name, "aws")
        with server.at(there):
            with server.http(name, "pw") as ann:
                assert ann.get("/queues/work").status_code == 200
            server.amqp(name, "pw").close()
            assert server.sqs(access_key).list_queues()["QueueUrls"]


def _delete_account(server: TwoProcesses) -> None:
    with server.http() as root:
        assert root.delete("/accounts/ann").status_code == 204


def _change_password(server: TwoProcesses) -> None:
    with server.http() as root:
        assert root.put("/accounts/ann", json={"password": "another"}).status_code == 200


def _revoke_vhost(server: TwoProcesses) -> None:
    server.permit("ann", {**may("work", "read"), "vhost": "elsewhere"})


@BOTH
@pytest.mark.parametrize(
    ("take_away", "text"),
    [
        (_delete_account, "CONNECTION_FORCED - user 'ann' was deleted"),
        (_change_password, "CONNECTION_FORCED - the password of user 'ann' was changed"),
        (_revoke_vhost, "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"),
    ],
)
def test_an_amqp_connection_of_the_other_process_ends_with_what_it_rests_on(
    server: TwoProcesses, here: int, there: int, take_away: Callable[[TwoProcesses], None], text: str
) -> None:
    server.account("ann", "pw", may("work", "read"))
    with server.at(there):
        wire = server.amqp("ann", "pw")
    with wire, server.at(here):
        assert wire.ask(1, "basic.consume", queue="work", tag="t").name == "basic.consume-ok"
        take_away(server)
        assert wire.expect("connection.close").fields["text"] == text


@BOTH
def test_whoever_waits_at_the_other_process_is_refused(server: TwoProcesses, here: int, there: int) -> None:
    server.account("ann", "pw", may("work", "read"))
    answers: list[httpx.Response] = []

    def wait() -> None:
        with server.http_at(there, "ann", "pw") as ann:
            answers.append(ann.post("/queues/work/dequeue", json={"wait_seconds": 20}))

    waiter = threading.Thread(target=wait)
    waiter.start()
    with server.at(here), server.http() as root:
        while not root.get("/queues/work/stats").json()["consumers_waiting"]:
            pass
        server.permit("ann", may("work", "write"))
    waiter.join(10)
    assert [answer.status_code for answer in answers] == [403]


@BOTH
def test_a_deleted_key_opens_nothing_at_the_other_process(server: TwoProcesses, here: int, there: int) -> None:
    server.account("ann", "pw", may("work", "read"))
    with server.at(here):
        key_id, key = server.key("ann")
        access_key = server.key("ann", "aws")
    with server.at(there), httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}) as by_key:
        sqs = server.sqs(access_key)
        assert by_key.get("/queues/work").status_code == 200 and sqs.list_queues()["QueueUrls"]
        with server.http_at(here) as root:
            for one in (key_id, access_key[0]):
                assert root.delete(f"/accounts/ann/keys/{one}").status_code == 204
        assert by_key.get("/queues/work").status_code == 401
        with pytest.raises(ClientError):
            sqs.list_queues()
