"""What was taken away is taken away at once, from what is under way too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.amqp.wire import Wire, method, publish
from tests.attacks.whole_node import WholeNode, may
from tests.in_thread import wait_for
from tests.rest.serving import request


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("revocation")) as node:
        node.new_queue("work")
        yield node


def _delete_account(node: WholeNode) -> None:
    with node.http() as root:
        assert root.delete("/accounts/ann").status_code == 204


def _change_password(node: WholeNode) -> None:
    with node.http() as root:
        assert root.put("/accounts/ann", json={"password": "another"}).status_code == 200


def _revoke_read(node: WholeNode) -> None:
    node.permit("ann", may("other", "read"), may("work", "write"))


def _revoke_vhost(node: WholeNode) -> None:
    node.permit("ann", {**may("work", "read"), "vhost": "elsewhere"})


def _consumer(node: WholeNode, password: str = "pw", user: str = "ann") -> Wire:
    wire = node.amqp(user, password)
    assert wire.ask(1, "basic.consume", queue="work", tag="t").name == "basic.consume-ok"
    return wire


# --- AMQP


@pytest.mark.parametrize(
    ("take_away", "code", "text"),
    [
        (_delete_account, 320, "CONNECTION_FORCED - user 'ann' was deleted"),
        (_change_password, 320, "CONNECTION_FORCED - the password of user 'ann' was changed"),
        (_revoke_vhost, 530, "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"),
    ],
)
def test_amqp_connection_ends_with_what_it_rests_on(
    node: WholeNode, take_away: Callable[[WholeNode], None], code: int, text: str
) -> None:
    node.account("ann", "pw", may("work", "read"))
    with _consumer(node) as wire:
        take_away(node)
        close = wire.expect("connection.close")
    assert (close.fields["code"], close.fields["text"]) == (code, text)


def test_amqp_connection_of_a_deleted_key_ends_and_others_go_on(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "read"))
    key_id, key = node.key("ann")
    with _consumer(node, key, user="") as by_key, _consumer(node) as by_password:
        with node.http() as root:
            assert root.delete(f"/accounts/ann/keys/{key_id}").status_code == 204
        assert "the API key of user 'ann' was deleted" in by_key.expect("connection.close").fields["text"]
        assert by_password.ask(1, "basic.cancel", tag="t").name == "basic.cancel-ok"


def test_amqp_channel_of_a_consumer_that_may_no_longer_read_is_closed(node: WholeNode) -> None:
    """What it held goes back to the queue, for those who may read it."""
    node.account("ann", "pw", may("work", "read"))
    with node.http() as root, _consumer(node) as wire:
        sent = root.post("/queues/work/messages", json={"payload": 1})
        assert sent.status_code == 201, sent.text
        assert [wire.read().name for _ in range(2)] == ["basic.deliver", "header"]
        wire.read()
        _revoke_read(node)
        close = wire.expect("channel.close")
        assert close.fields["code"] == 403
        assert "access to queue 'work' in vhost '/' refused for user 'ann'" in close.fields["text"]
        assert (close.fields["class-id"], close.fields["method-id"]) == (60, 20)
        got = root.post("/queues/work/dequeue", json={"wait_seconds": 5}).json()["messages"]
        assert len(got) == 1
        root.delete(
            f"/queues/work/messages/{got[0]['message_id']}", params={"receipt_handle": got[0]["receipt_handle"]}
        )
        wire.send(method(1, "channel.close-ok") + method(2, "channel.open"))
        assert wire.expect("channel.open-ok").channel == 2  # the connection goes on


def test_a_change_that_takes_nothing_away_ends_nothing(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "read"))
    with _consumer(node) as wire:
        node.permit("ann", may("work", "read"), may("other", "write"))
        assert wire.ask(1, "basic.cancel", tag="t").name == "basic.cancel-ok"


def test_transaction_is_not_committed_to_what_may_no_longer_be_written(node: WholeNode) -> None:
    node.account("ann", "pw", may("amq.default", "write"), may("work", "read"))
    with node.amqp("ann", "pw") as wire:
        assert wire.ask(1, "tx.select").name == "tx.select-ok"
        wire.send(publish(1, "work", b"x"))
        assert wire.ask(1, "basic.qos", count=1).name == "basic.qos-ok"  # it has been read
        node.permit("ann", may("work", "read"))
        assert wire.ask(1, "tx.commit").fields["code"] == 403
    with node.http() as root:
        assert root.get("/queues/work/stats").json()["approximate_message_count"] == 0


# --- HTTP


def _wait_over_http(node: WholeNode, headers: str) -> Any:
    wire = node.http_wire()
    wire.send(request("POST", "/queues/work/dequeue", b'{"wait_seconds": 20}', headers))
    _until_one_waits(node)
    return wire


def _until_one_waits(node: WholeNode) -> None:
    with node.http() as root:
        wait_for(
            lambda: root.get("/queues/work/stats").json()["consumers_waiting"] == 1, "somebody waits for a message"
        )


BASIC = "Authorization: Basic YW5uOnB3\r\n"  # ann:pw


@pytest.mark.parametrize(
    ("take_away", "status"),
    [(_delete_account, 401), (_change_password, 401), (_revoke_read, 403), (_revoke_vhost, 403)],
)
def test_long_poll_ends_with_what_it_rests_on(
    node: WholeNode, take_away: Callable[[WholeNode], None], status: int
) -> None:
    node.account("ann", "pw", may("work", "read"))
    with _wait_over_http(node, BASIC) as wire:
        take_away(node)
        assert wire.read().status == status
        assert wire.ask("GET", "/queues/work", headers=BASIC).status in (401, 403)  # on the same connection, too


def test_long_poll_with_a_deleted_key_ends(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "read"))
    key_id, key = node.key("ann")
    with _wait_over_http(node, f"Authorization: Bearer {key}\r\n") as wire, node.http() as root:
        assert root.delete(f"/accounts/ann/keys/{key_id}").status_code == 204
        assert wire.read().status == 401


def test_long_poll_goes_on_when_other_things_change(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "read"))
    with _wait_over_http(node, BASIC) as wire, node.http() as root:
        node.permit("ann", may("work", "read"), may("other", "write"))
        node.account("ben")
        root.post("/queues/work/messages", json={"payload": "now"})
        answer = wire.read()
        assert (answer.status, len(answer.json()["messages"])) == (200, 1)
        root.post("/queues/work/ack", json=[{"receipt_handle": answer.json()["messages"][0]["receipt_handle"]}])


def test_message_that_comes_after_is_left_to_others(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "read"))
    with _wait_over_http(node, BASIC) as wire, node.http() as root:
        _revoke_read(node)
        root.post("/queues/work/messages", json={"payload": "secret"})
        assert wire.read().status == 403
        got = root.post("/queues/work/dequeue", json={"wait_seconds": 5}).json()["messages"]
        assert [message["payload"] for message in got] == ["secret"]
        root.post("/queues/work/ack", json=[{"receipt_handle": got[0]["receipt_handle"]}])


def test_staged_part_is_not_committed_to_what_may_no_longer_be_written(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "write"))
    with node.http("ann", "pw") as ann:
        part = [{"queue": "work", "body": "eA=="}]
        assert ann.put("/producers/p/stages/s/parts/a", json=part).status_code == 201
        node.permit("ann", may("work", "read"))
        assert ann.post("/producers/p/batches/1/commit", json={"stage": "s", "parts": ["a"]}).status_code == 403


# --- SQS


def _receive(sqs: Any, url: str, told: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            told.append(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        except ClientError as error:
            told.append(error.response["Error"]["Code"])

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("take_away", "codes"),
    [
        (_delete_account, ("InvalidClientTokenId", "UnrecognizedClientException")),
        (_revoke_read, ("AccessDenied", "AccessDeniedException")),
    ],
)
def test_sqs_receive_ends_with_what_it_rests_on(
    node: WholeNode, take_away: Callable[[WholeNode], None], codes: tuple[str, ...]
) -> None:
    node.account("ann", "pw", may("work", "read"))
    sqs = node.sqs(node.key("ann", "aws"))
    told: list[Any] = []
    thread = _receive(sqs, sqs.get_queue_url(QueueName="work")["QueueUrl"], told)
    _until_one_waits(node)
    take_away(node)
    thread.join(10)
    assert told and told[0] in codes


def test_sqs_receive_with_a_deleted_key_ends(node: WholeNode) -> None:
    node.account("ann", "pw", may("work", "read"))
    key = node.key("ann", "aws")
    sqs = node.sqs(key)
    told: list[Any] = []
    thread = _receive(sqs, sqs.get_queue_url(QueueName="work")["QueueUrl"], told)
    _until_one_waits(node)
    with node.http() as root:
        assert root.delete(f"/accounts/ann/keys/{key[0]}").status_code == 204
    thread.join(10)
    assert told and told[0] in ("InvalidClientTokenId", "UnrecognizedClientException")
