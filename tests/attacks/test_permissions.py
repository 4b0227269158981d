"""Every kind of request asks for every permission that it needs, on every front end, and tells whoever lacks them
nothing: what is there is refused as what is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from botocore.exceptions import ClientError

from laneway.frontends.amqp.channel import _BY_NAME
from laneway.frontends.sqs.api import _actions
from tests.amqp.wire import Wire, method, publish
from tests.attacks.whole_node import WholeNode, may
from tests.in_thread import wait_for

Need = tuple[str, str]  # of which thing (its name below), what permission

#: Names of what is there, and of what is not.
THERE = {"q": "work", "x": "bus", "other": "elsewhere", "dlq": "graves"}
MISSING = {"q": "work-none", "x": "bus-none", "other": "elsewhere-none", "dlq": "graves-none"}

READ, WRITE, CONFIGURE = "read", "write", "configure"
SEE = "see"  # any of them will do


def http(verb: str, path: str, body: Any = None) -> Callable[[WholeNode, dict[str, str]], str]:
    def ask(node: WholeNode, names: dict[str, str]) -> str:
        with node.http("ann", "pw") as client:
            filled = _filled(body, names) if isinstance(body, (dict, list)) else body
            answer = client.request(verb, path.format(**names), json=filled)
        return f"refused: {_message(answer)}" if answer.status_code == 403 else "done"

    ask.__dict__["asks"] = verb, path.partition("?")[0]
    return ask


def _message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


def _filled(body: Any, names: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {key: _filled(value, names) for key, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, names) for value in body]
    return body.format(**names) if isinstance(body, str) and body.startswith("{") and body.endswith("}") else body


def sqs(action: str, **parameters: Any) -> Callable[[WholeNode, dict[str, str]], str]:
    def ask(node: WholeNode, names: dict[str, str]) -> str:
        given = {key: value.format(**names) if isinstance(value, str) else value for key, value in parameters.items()}
        if "QueueUrl" in given:
            given["QueueUrl"] = f"{node.url}/000000000000/{given['QueueUrl']}"
        for key in ("SourceArn", "DestinationArn"):
            if key in given:
                given[key] = f"arn:aws:sqs:us-east-1:000000000000:{given[key]}"
        try:
            getattr(node.sqs(_KEYS[node]), action)(**given)
        except ClientError as error:
            told = error.response["Error"]
            return f"refused: {told['Message']}" if told["Code"] == "AccessDenied" else "done"
        return "done"

    ask.__dict__["asks"] = "sqs", action.replace("_", "")
    return ask


def amqp(name: str, **fields: Any) -> Callable[[WholeNode, dict[str, str]], str]:
    def ask(node: WholeNode, names: dict[str, str]) -> str:
        given = {key: value.format(**names) if isinstance(value, str) else value for key, value in fields.items()}
        with node.amqp("ann", "pw") as wire:
            if name == "basic.publish":
                wire.send(publish(1, given["key"], b"x", exchange=given["exchange"]))
                wire.send(method(1, "basic.qos"))
                answer = wire.read()
            else:
                answer = wire.ask(1, name, **given)
            if answer.name == "channel.close" and answer.fields["code"] == 403:
                return f"refused: {answer.fields['text']}"
        return "done"

    ask.__dict__["asks"] = "amqp", name
    return ask


_HANDLES = [{"receipt_handle": "0" * 28}]
_MESSAGE = "00000000-0000-8000-8000-000000000000"
_HANDLE = {"receipt_handle": "0" * 28}

TABLE: dict[str, tuple[list[Need], Callable[[WholeNode, dict[str, str]], str]]] = {
    # HTTP: queues
    "http describe": ([("q", READ)], http("GET", "/queues/{q}")),
    "http stats": ([("q", READ)], http("GET", "/queues/{q}/stats")),
    "http peek": ([("q", READ)], http("GET", "/queues/{q}/messages")),
    "http get": ([("q", READ)], http("GET", "/queues/{q}/get")),
    "http dequeue": ([("q", READ)], http("POST", "/queues/{q}/dequeue", {})),
    "http acks": ([("q", READ)], http("POST", "/queues/{q}/ack", _HANDLES)),
    "http nacks": ([("q", READ)], http("POST", "/queues/{q}/nack", _HANDLES)),
    "http visibilities": (
        [("q", READ)],
        http("POST", "/queues/{q}/visibility", [{**_HANDLES[0], "visibility_timeout": 5}]),
    ),
    "http rejects": ([("q", READ)], http("POST", "/queues/{q}/reject", _HANDLES)),
    "http ack": ([("q", READ)], http("DELETE", f"/queues/{{q}}/messages/{_MESSAGE}", _HANDLE)),
    "http nack": ([("q", READ)], http("POST", f"/queues/{{q}}/messages/{_MESSAGE}/nack", _HANDLE)),
    "http reject": ([("q", READ)], http("POST", f"/queues/{{q}}/messages/{_MESSAGE}/reject", _HANDLE)),
    "http visibility": (
        [("q", READ)],
        http("PATCH", f"/queues/{{q}}/messages/{_MESSAGE}/visibility", {**_HANDLE, "visibility_timeout": 5}),
    ),
    "http consumers": ([("q", READ)], http("GET", "/queues/{q}/consumers")),
    "http redrives": ([("q", READ)], http("GET", "/queues/{q}/redrive")),
    "http publish": ([("q", WRITE)], http("POST", "/queues/{q}/messages", {"payload": 1})),
    "http create": ([("q", CONFIGURE)], http("PUT", "/queues/{q}")),
    "http change": ([("q", CONFIGURE)], http("PATCH", "/queues/{q}", {"max_receive_count": 3})),
    "http purge": ([("q", CONFIGURE)], http("POST", "/queues/{q}/purge")),
    "http delete": ([("q", CONFIGURE)], http("DELETE", "/queues/{q}")),
    "http delete dead": ([("q", CONFIGURE)], http("POST", "/queues/{q}/dead-letters/delete", {"all": True})),
    "http redrive": ([("q", CONFIGURE), ("q", WRITE)], http("POST", "/queues/{q}/redrive", {})),
    "http redrive to": (
        [("q", CONFIGURE), ("other", WRITE)],
        http("POST", "/queues/{q}/redrive", {"target": "{other}"}),
    ),
    "http reprocess": ([("q", CONFIGURE), ("q", WRITE)], http("POST", "/queues/{q}/reprocess", {})),
    "http create with graves": (
        [("q", CONFIGURE), ("dlq", WRITE)],
        http("PUT", "/queues/{q}", {"dead_letter_queue": "{dlq}"}),
    ),
    "http change graves": (
        [("q", CONFIGURE), ("dlq", WRITE)],
        http("PATCH", "/queues/{q}", {"dead_letter_queue": "{dlq}"}),
    ),
    "http dead to exchange": (
        [("q", CONFIGURE), ("x", WRITE)],
        http("PUT", "/queues/{q}", {"dead_letter_exchange": "{x}"}),
    ),
    # HTTP: exchanges and bindings
    "http exchange": ([("x", READ)], http("GET", "/exchanges/%2F/{x}")),
    "http route": ([("x", READ)], http("POST", "/exchanges/%2F/{x}/route", {"routing_key": "k"})),
    "http publish to": (
        [("x", WRITE)],
        http("POST", "/exchanges/%2F/{x}/publish", {"routing_key": "k", "payload": 1}),
    ),
    "http declare": ([("x", CONFIGURE)], http("PUT", "/exchanges/%2F/{x}")),
    "http alternate": (
        [("x", CONFIGURE), ("other", WRITE)],
        http("PUT", "/exchanges/%2F/{x}", {"alternate_exchange": "{other}"}),
    ),
    "http delete exchange": ([("x", CONFIGURE)], http("DELETE", "/exchanges/%2F/{x}")),
    "http bind": ([("x", READ), ("q", WRITE)], http("POST", "/bindings/%2F/e/{x}/q/{q}", {"routing_key": "k"})),
    "http bind to exchange": (
        [("x", READ), ("other", WRITE)],
        http("POST", "/bindings/%2F/e/{x}/e/{other}", {"routing_key": "k"}),
    ),
    "http unbind": ([("x", READ), ("q", WRITE)], http("DELETE", "/bindings/%2F/e/{x}/q/{q}?routing_key=k")),
    "http bindings": ([("x", READ), ("q", SEE)], http("GET", "/bindings/%2F/e/{x}/q/{q}")),
    "http bindings of exchange": ([("x", READ), ("other", SEE)], http("GET", "/bindings/%2F/e/{x}/e/{other}")),
    "http unbind exchange": (
        [("x", READ), ("other", WRITE)],
        http("DELETE", "/bindings/%2F/e/{x}/e/{other}?routing_key=k"),
    ),
    "http stage": (
        [("q", WRITE), ("x", WRITE)],
        http(
            "PUT",
            "/producers/ann/stages/s/parts/p",
            [{"queue": "{q}", "body": "eA=="}, {"exchange": "{x}", "routing_key": "k", "body": "eA=="}],
        ),
    ),
    # SQS
    "sqs url": ([("q", SEE)], sqs("get_queue_url", QueueName="{q}")),
    "sqs attributes": ([("q", READ)], sqs("get_queue_attributes", QueueUrl="{q}", AttributeNames=["All"])),
    "sqs sources": ([("q", READ)], sqs("list_dead_letter_source_queues", QueueUrl="{q}")),
    "sqs tags": ([("q", READ)], sqs("list_queue_tags", QueueUrl="{q}")),
    "sqs receive": ([("q", READ)], sqs("receive_message", QueueUrl="{q}")),
    "sqs delete message": ([("q", READ)], sqs("delete_message", QueueUrl="{q}", ReceiptHandle="x")),
    "sqs delete messages": (
        [("q", READ)],
        sqs("delete_message_batch", QueueUrl="{q}", Entries=[{"Id": "1", "ReceiptHandle": "x"}]),
    ),
    "sqs visibility": (
        [("q", READ)],
        sqs("change_message_visibility", QueueUrl="{q}", ReceiptHandle="x", VisibilityTimeout=1),
    ),
    "sqs visibilities": (
        [("q", READ)],
        sqs(
            "change_message_visibility_batch",
            QueueUrl="{q}",
            Entries=[{"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1}],
        ),
    ),
    "sqs send": ([("q", WRITE)], sqs("send_message", QueueUrl="{q}", MessageBody="x")),
    "sqs send batch": (
        [("q", WRITE)],
        sqs("send_message_batch", QueueUrl="{q}", Entries=[{"Id": "1", "MessageBody": "x"}]),
    ),
    "sqs create": ([("q", CONFIGURE)], sqs("create_queue", QueueName="{q}")),
    "sqs set": ([("q", CONFIGURE)], sqs("set_queue_attributes", QueueUrl="{q}", Attributes={"DelaySeconds": "0"})),
    "sqs tag": ([("q", CONFIGURE)], sqs("tag_queue", QueueUrl="{q}", Tags={"a": "b"})),
    "sqs untag": ([("q", CONFIGURE)], sqs("untag_queue", QueueUrl="{q}", TagKeys=["a"])),
    "sqs permit": (
        [("q", CONFIGURE)],
        sqs("add_permission", QueueUrl="{q}", Label="l", AWSAccountIds=["000000000000"], Actions=["*"]),
    ),
    "sqs forbid": ([("q", CONFIGURE)], sqs("remove_permission", QueueUrl="{q}", Label="l")),
    "sqs purge": ([("q", CONFIGURE)], sqs("purge_queue", QueueUrl="{q}")),
    "sqs delete": ([("q", CONFIGURE)], sqs("delete_queue", QueueUrl="{q}")),
    "sqs delete graves": ([("dlq", CONFIGURE), ("source", CONFIGURE)], sqs("delete_queue", QueueUrl="{dlq}")),
    "sqs move": ([("dlq", CONFIGURE), ("source", WRITE)], sqs("start_message_move_task", SourceArn="{dlq}")),
    "sqs move to": (
        [("dlq", CONFIGURE), ("other", WRITE)],
        sqs("start_message_move_task", SourceArn="{dlq}", DestinationArn="{other}"),
    ),
    "sqs moves": ([("dlq", CONFIGURE)], sqs("list_message_move_tasks", SourceArn="{dlq}")),
    # AMQP
    "amqp declare": ([("q", CONFIGURE)], amqp("queue.declare", queue="{q}", durable=1)),
    "amqp passive": ([("q", SEE)], amqp("queue.declare", queue="{q}", passive=1)),
    "amqp delete": ([("q", CONFIGURE)], amqp("queue.delete", queue="{q}")),
    "amqp purge": ([("q", READ)], amqp("queue.purge", queue="{q}")),
    "amqp consume": ([("q", READ)], amqp("basic.consume", queue="{q}")),
    "amqp get": ([("q", READ)], amqp("basic.get", queue="{q}")),
    "amqp bind": (
        [("x", READ), ("q", WRITE)],
        amqp("queue.bind", queue="{q}", exchange="{x}", key="k"),
    ),
    "amqp unbind": (
        [("x", READ), ("q", WRITE)],
        amqp("queue.unbind", queue="{q}", exchange="{x}", key="k"),
    ),
    "amqp publish": ([("x", WRITE)], amqp("basic.publish", exchange="{x}", key="k")),
    "amqp declare exchange": ([("x", CONFIGURE)], amqp("exchange.declare", exchange="{x}", type="direct", durable=1)),
    "amqp passive exchange": ([("x", SEE)], amqp("exchange.declare", exchange="{x}", type="direct", passive=1)),
    "amqp delete exchange": ([("x", CONFIGURE)], amqp("exchange.delete", exchange="{x}")),
    "amqp unbind exchange": (
        [("x", READ), ("other", WRITE)],
        amqp("exchange.unbind", destination="{other}", source="{x}", key="k"),
    ),
    "amqp bind exchange": (
        [("x", READ), ("other", WRITE)],
        amqp("exchange.bind", destination="{other}", source="{x}", key="k"),
    ),
}

_KEYS: dict[WholeNode, tuple[str, str]] = {}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("permissions")) as node:
        node.account("ann")
        _KEYS[node] = node.key("ann", "aws")
        yield node


def furnish(node: WholeNode) -> None:
    """What is there: with a dead letter each in the queue itself and in the dead-letter queue of another."""
    with node.http() as root:
        for name in ("source", "work", "graves", "elsewhere"):
            root.delete(f"/queues/{name}")
        for name in ("bus", "elsewhere"):
            root.delete(f"/exchanges/%2F/{name}")
            root.put(f"/exchanges/%2F/{name}")
        for name in ("work", "graves", "elsewhere"):
            assert root.put(f"/queues/{name}").status_code == 201
        assert root.put("/queues/source", json={"dead_letter_queue": "graves"}).status_code == 201
        root.post("/bindings/%2F/e/bus/q/work", json={"routing_key": "k"})
        for name in ("work", "source"):
            root.post(f"/queues/{name}/messages", json={"payload": 1})
            (message,) = root.post(f"/queues/{name}/dequeue").json()["messages"]
            root.post(f"/queues/{name}/reject", json=[{"receipt_handle": message["receipt_handle"]}])
        root.delete("/producers/ann/stages/s")


@pytest.mark.parametrize("kind", TABLE)
def test_each_kind_of_request_asks_for_each_permission(node: WholeNode, kind: str) -> None:
    needs, ask = TABLE[kind]
    for missing in (None, *needs):
        furnish(node)
        granted: dict[str, set[str]] = {"nothing": {READ}}  # or the virtual host would be closed
        for thing, need in needs:
            if (thing, need) != missing:
                granted.setdefault(thing, set()).add(WRITE if need == SEE else need)
        if missing is not None and missing[1] != SEE:  # all else that can be had there is not enough
            granted.setdefault(missing[0], set()).update({READ, WRITE, CONFIGURE} - {missing[1]})
        node.permit("ann", *(may(THERE.get(thing, thing), *held) for thing, held in granted.items()))
        told = ask(node, THERE)
        assert told.startswith("done" if missing is None else "refused"), (missing, told)


@pytest.mark.parametrize("kind", list(TABLE))
def test_what_is_there_is_refused_as_what_is_not(node: WholeNode, kind: str) -> None:
    furnish(node)
    node.permit("ann", may("nothing", "read"))
    _, ask = TABLE[kind]
    told = [ask(node, names) for names in (THERE, MISSING)]
    assert told[0].startswith("refused")
    for there, missing in zip(THERE.values(), MISSING.values(), strict=True):
        told[1] = told[1].replace(missing, there)
    assert told[0] == told[1]


#: What leads to no one queue or exchange that a permission could name, or is only answered.
_OF_NONE = {
    *("basic.ack", "basic.nack", "basic.reject", "basic.recover", "basic.recover-async", "basic.qos", "basic.cancel"),
    *("confirm.select", "tx.select", "tx.commit", "tx.rollback", "channel.flow", "access.request"),
    *("listqueues", "cancelmessagemovetask"),  # tested below
}
_PATHS = ("/queues/{queue}", "/exchanges/{vhost}/{exchange}", "/bindings/{vhost}/e/{exchange}")
_NAMES = {"{queue}": "{q}", "{exchange}": "{x}", "{vhost}": "%2F", "{destination}": "{other}", "{message_id}": _MESSAGE}


def test_the_table_has_every_kind_there_is(node: WholeNode) -> None:
    asked = {ask.__dict__["asks"] for _, ask in TABLE.values()}
    for path, methods in httpx.get(f"{node.url}/openapi.json").json()["paths"].items():
        if path.startswith(_PATHS):
            for name, filled in _NAMES.items():
                path = path.replace(name, filled)
            missing = {(verb.upper(), path) for verb in methods if verb != "head"} - asked
            assert not missing, missing
    actions = _actions(*[MagicMock()] * 3)
    names = {("sqs", action.lower()) for action in actions} | {("amqp", name) for name in _BY_NAME}
    assert {one for one in names - asked if one[1] not in _OF_NONE} == set()


#: For everybody, or about what is one's own: tested below, and where these are.
_FOR_ALL = re.compile(
    r"/(healthz|readyz|ready.*|openapi\.json|whoami|stats)?|/vhosts|/tasks/.*|/producers.*|/connections.*|/(queues|exchanges|bindings)/.*|/queues"
    r"|/vhosts/\{vhost\}/(queues|exchanges|bindings).*"
)


def test_everything_else_takes_a_role(node: WholeNode) -> None:
    """Of another account, or of the node: whatever queues one may use."""
    node.permit("ann", {**may("*", READ, WRITE, CONFIGURE), "vhost": "somewhere"})
    refused: dict[str, int] = {}
    with node.http("ann", "pw") as ann:
        for path, methods in ann.get("/openapi.json").json()["paths"].items():
            if not _FOR_ALL.fullmatch(path):
                filled = re.sub(r"\{segment\}", "1", re.sub(r"\{name\}", "root", path))
                for verb in methods:
                    answer = ann.request(verb.upper(), re.sub(r"\{.*?\}", "x", filled))
                    refused[f"{verb} {path}"] = answer.status_code
    assert len(refused) > 20
    assert {asked: status for asked, status in refused.items() if status != 403} == {}


# --- lists, and what answers say of other things


def test_lists_pass_over_what_one_may_not_see(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("bus", "read"), may("elsewhere", "write"))
    with node.http() as root, node.http("ann", "pw") as ann:
        root.post("/bindings/%2F/e/bus/e/elsewhere", json={"routing_key": "e"})
        root.post("/bindings/%2F/e/elsewhere/q/work", json={"routing_key": "e"})
        assert [one["queue_name"] for one in ann.get("/queues").json()["queues"]] == ["elsewhere"]
        assert ann.get("/stats").json()["queues"] == []  # counts take the permission to read
        assert [one["destination"] for one in ann.get("/bindings/%2F").json()["bindings"]] == ["elsewhere"]
        names = [one["exchange_name"] for one in ann.get("/exchanges/%2F").json()["exchanges"]]
        assert names == ["bus", "elsewhere"]
    urls = node.sqs(_KEYS[node]).list_queues()["QueueUrls"]
    assert [url.rpartition("/")[2] for url in urls] == ["elsewhere"]


@pytest.mark.parametrize("path", ["/vhosts/{}/queues", "/vhosts/{}", "/exchanges/{}", "/bindings/{}"])
def test_a_virtual_host_is_not_betrayed(node: WholeNode, path: str) -> None:
    node.permit("ann", {**may("nothing", "read"), "vhost": "/"})
    with node.http() as root, node.http("ann", "pw") as ann:
        root.put("/vhosts/hidden")
        answers = [ann.get(path.format(name)) for name in ("hidden", "none")]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert _message(answers[0]).replace("hidden", "none") == _message(answers[1])


def test_the_route_tester_tells_of_what_one_may_see_alone(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("bus", "read"), may("amq.default", "read"))
    with node.http("ann", "pw") as ann:
        for exchange, there, none in (("bus", "k", "none"), ("amq.default", "work", "none")):
            answers = [
                ann.post(f"/exchanges/%2F/{exchange}/route", json={"routing_key": key}).json() for key in (there, none)
            ]
            assert answers[0] == answers[1]
            assert not answers[0]["routed"] and answers[0]["queues"] == answers[0]["routes"] == []
        node.permit("ann", may("bus", "read"), may("work", "write"))
        answer = ann.post("/exchanges/%2F/bus/route", json={"routing_key": "k"}).json()
        assert answer["routed"] and answer["queues"] == ["work"]
    with node.http() as root, node.http("ann", "pw") as ann:  # nor of an exchange on the way
        root.post("/bindings/%2F/e/bus/e/elsewhere", json={"routing_key": "e"})
        root.post("/bindings/%2F/e/elsewhere/q/work", json={"routing_key": "e"})
        assert "elsewhere" not in ann.post("/exchanges/%2F/bus/route", json={"routing_key": "e"}).text
        assert "elsewhere" in root.post("/exchanges/%2F/bus/route", json={"routing_key": "e"}).text


def test_a_full_queue_that_one_may_not_see_is_not_named(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("bus", "write"))
    with node.http() as root, node.http("ann", "pw") as ann:
        root.put("/queues/work", json={"max_messages": 1})
        for _ in range(2):
            answer = ann.post("/exchanges/%2F/bus/publish", json={"routing_key": "k", "payload": 1})
        assert answer.status_code == 429 and "work" not in answer.text


def test_a_queue_whose_dead_letters_come_from_others_does_not_tell_from_which(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("graves", "configure"))
    with node.http("ann", "pw") as ann:
        answer = ann.delete("/queues/graves")
    assert answer.status_code == 409 and "source" not in answer.text
    assert "source" not in TABLE["sqs delete graves"][1](node, THERE)
    with node.http() as root:
        assert root.get("/queues/source").json()["dead_letter_queue"] == "graves"


def test_counts_are_for_readers(node: WholeNode) -> None:
    furnish(node)
    with node.http() as root:
        root.post("/queues/work/messages", json={"payload": 1})
    for needs, count in ((("write",), 0), (("read",), 1)):
        node.permit("ann", may("work", *needs))
        with node.amqp("ann", "pw") as wire:
            assert wire.ask(1, "queue.declare", queue="work", passive=1).fields["messages"] == count


def test_a_task_of_a_queue_that_one_may_not_see_is_none(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("nothing", "read"))
    with node.http() as root, node.http("ann", "pw") as ann:
        task = root.post("/queues/work/redrive", json={}).json()["task_id"]
        for path in (f"/tasks/{task}", f"/tasks/{task}/cancel"):
            answers = [ann.request("POST" if "cancel" in p else "GET", p) for p in (path, path.replace(task, "none"))]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert _message(answers[0]).replace(task, "none") == _message(answers[1])


# --- redrives


def test_a_redrive_without_a_target_goes_back_only_where_one_may_write(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("graves", "configure", "read"), may("elsewhere", "write"))
    with node.http() as root, node.http("ann", "pw") as ann:
        refused = ann.post("/queues/graves/redrive", json={})
        assert refused.status_code == 403 and "source" not in refused.text
        assert root.get("/queues/source/stats").json()["approximate_message_count"] == 0
        node.permit("ann", may("graves", "configure", "read"), may("source", "write"))
        assert ann.post("/queues/graves/redrive", json={}).status_code == 202
        wait_for(lambda: root.get("/queues/source/stats").json()["approximate_message_count"] == 1, "it is back")


# --- what a connection has for itself alone


@pytest.fixture
def private(node: WholeNode) -> Iterator[tuple[Wire, str]]:
    with node.amqp("root", "secret") as owner:
        name = owner.ask(1, "queue.declare", queue="", exclusive=1).fields["queue"]
        owner.send(publish(1, name, b"mine"))
        yield owner, name


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("GET", "/queues/{}/messages", None),
        ("GET", "/queues/{}/get", None),
        ("POST", "/queues/{}/dequeue", {}),
        ("POST", "/queues/{}/ack", _HANDLES),
        ("POST", "/queues/{}/purge", None),
        ("PUT", "/queues/{}", {}),
        ("PATCH", "/queues/{}", {"max_receive_count": 1}),
        ("DELETE", "/queues/{}", None),
        ("POST", "/queues/{}/redrive", {}),
        ("POST", "/queues/{}/dead-letters/delete", {"all": True}),
        ("POST", "/bindings/%2F/e/amq.topic/q/{}", {"routing_key": "k"}),
        ("DELETE", "/bindings/%2F/e/amq.topic/q/{}?routing_key=k", None),
    ],
)
def test_http_leaves_the_queue_of_a_connection_alone(
    node: WholeNode, private: tuple[Wire, str], verb: str, path: str, body: Any
) -> None:
    owner, name = private
    with node.http() as root:
        answer = root.request(verb, path.format(name), json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "queue_in_use"), answer.text
        assert root.get("/bindings/%2F").status_code == 200
    assert owner.ask(1, "queue.declare", queue=name, passive=1).fields["messages"] == 1


def test_sqs_leaves_the_queue_of_a_connection_alone(node: WholeNode, private: tuple[Wire, str]) -> None:
    owner, name = private
    root = node.sqs(node.key("root", "aws"))
    url = f"{node.url}/000000000000/{name}"
    for call in (root.receive_message, root.purge_queue, root.delete_queue):
        with pytest.raises(ClientError):
            call(QueueUrl=url)
    assert owner.ask(1, "queue.declare", queue=name, passive=1).fields["messages"] == 1


def test_its_owner_does_with_it_what_it_likes(node: WholeNode, private: tuple[Wire, str]) -> None:
    owner, name = private
    bound = owner.ask(1, "queue.bind", queue=name, exchange="amq.topic", key="k")
    unbound = owner.ask(1, "queue.unbind", queue=name, exchange="amq.topic", key="k")
    assert (bound.name, unbound.name) == ("queue.bind-ok", "queue.unbind-ok")
    assert owner.ask(1, "queue.purge", queue=name).fields["messages"] == 1
    assert owner.ask(1, "queue.delete", queue=name).name == "queue.delete-ok"


def test_others_may_publish_to_it(node: WholeNode, private: tuple[Wire, str]) -> None:
    """As in RabbitMQ: so replies come."""
    owner, name = private
    with node.http() as root:
        assert root.post(f"/queues/{name}/messages", json={"payload": 1}).status_code == 201
    assert owner.ask(1, "queue.declare", queue=name, passive=1).fields["messages"] == 2


# --- idempotency keys


def test_accounts_that_choose_the_same_idempotency_key_do_not_hear_of_each_other(node: WholeNode) -> None:
    furnish(node)
    node.permit("ann", may("*", "write"))
    key = {"Idempotency-Key": "1"}
    with node.http() as root, node.http("ann", "pw") as ann:
        for path, body in (
            ("/queues/work/messages", {"payload": 1}),
            ("/exchanges/%2F/bus/publish", {"routing_key": "k", "payload": 1}),
        ):
            first = root.post(path, json=body, headers=key)
            again = root.post(path, json=body, headers=key)
            hers = ann.post(path, json=body, headers=key)
            assert first.status_code == again.status_code == hers.status_code
            assert again.headers["Idempotency-Replayed"] == "true"
            assert "Idempotency-Replayed" not in hers.headers and hers.json() != first.json()
            key = {"Idempotency-Key": "3"}
