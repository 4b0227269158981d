"""Front ends work with a broker that every request and answer reaches as bytes (wire_broker.py): a cross-section of
their own tests runs a second time with it, and between them they use every kind of request there is. A third run goes
over a socket, as it would be with the partition in another process (cluster/), a fourth one through an edge, with all
queues in a second partition; and real clients meet a server of two processes. `make test-ways` runs all of their tests
in all ways."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from array import array
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from laneway.broker import interface
from laneway.broker.audiences import Subscription
from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.interface import (
    Ack,
    Broker,
    CreateVhost,
    DeclareQueue,
    DeleteVhost,
    Delivered,
    DescribeQueue,
    Lease,
    Publish,
    Request,
    Subscribe,
)
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.values import Arrival, BrokerLimits, Death, Deliveries, Story
from laneway.core.digits import Tokens
from laneway.core.exchanges import RoutingTable
from laneway.core.message import Messages, Receipts, encode_props
from laneway.core.queue import Queue
from laneway.core.runs import Seqs
from laneway.core.settings import QueueSettings
from laneway.core.state import State
from laneway.errors import IdempotencyConflict, InvalidInput, LanewayError, QueueNotFound
from laneway.journal.interface import Commit, Place
from laneway.journal.segments.journal import SegmentJournal
from tests.wire_broker import REFUSED, NoValue, WireBroker, encoded, through_bytes

ROOT = Path(__file__).parent.parent

#: Chosen so that each kind of request is used, and the frequent ones in many ways.
FILES = {
    "amqp": ["tests/amqp/test_channels.py", "tests/amqp/test_transcripts.py", "tests/amqp/test_limits.py"],
    "rest": [
        "tests/rest/test_publish.py",
        "tests/rest/test_consume.py",
        "tests/rest/test_administration.py",
        "tests/rest/test_exchanges.py",
        "tests/rest/test_vhosts.py",
        "tests/rest/test_producers.py",
        "tests/rest/test_journal.py",
        "tests/rest/test_access_over_http.py",
        "tests/rest/test_rebalancing.py",
        "tests/rest/test_moves.py",
        "tests/doors/test_connections.py",
    ],
    "sqs": [
        "tests/sqs/test_messages.py",
        "tests/sqs/test_receiving.py",
        "tests/sqs/test_dead_letters.py",
        "tests/sqs/test_fifo.py",
    ],
}


#: Of RabbitMQ's clients against a real server.
CLIENTS = [
    "tests/amqp_clients/test_consuming.py",
    "tests/amqp_clients/test_publishing.py",
    "tests/amqp_clients/test_dead_letters.py",
    "tests/amqp_clients/test_exchanges.py",
]

#: What whoever stands before several partitions asks of each: no front end does.
BETWEEN_PARTITIONS = {"Quiet", "StartMoves", "Spread", "Reserve", "Receive"}


def kinds(request: type = Request) -> set[str]:
    return {kind.__name__ for kind in request.__subclasses__()}


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The kinds of requests that the runs below have used."""
    return set()


@pytest.mark.timeout(400)  # as long as a run of its own may take beside another
@pytest.mark.parametrize("front_end", FILES)
def test_a_front_end_passes_its_own_tests_through_bytes(front_end: str, tmp_path: Path, seen: set[str]) -> None:
    file = tmp_path / "kinds"
    run_tests(FILES[front_end], {"LANEWAY_TEST_BROKER": "wire", "LANEWAY_TEST_KINDS": str(file)})
    lines = file.read_text().splitlines()
    assert [line for line in lines if line.startswith(REFUSED)] == []
    seen |= set(lines)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("front_end", FILES)
def test_a_front_end_passes_its_own_tests_over_a_socket(front_end: str) -> None:
    run_tests(FILES[front_end], {"LANEWAY_TEST_BROKER": "socket"})


def run_tests(files: list[str], settings: dict[str, str]) -> None:
    environment = os.environ | settings
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5_000:]


def test_every_kind_of_request_was_used(seen: set[str]) -> None:
    assert kinds() == {name for name, kind in vars(interface).items() if _is_request(kind)}
    assert kinds() - seen == BETWEEN_PARTITIONS


def _is_request(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Request) and kind is not Request


# The stand-in itself


def test_values_come_out_as_they_went_in() -> None:
    messages = Messages([b"a", b"b"], [b"", b""], [1, None], groups={1: "g"})
    request = Publish([(1,), (2, 3)], messages, ("key", b"print"))
    assert through_bytes(request) == request
    arrival = Arrival(7, None, Receipts(1, range(5, 8), [1, 2, 3], 9))
    assert through_bytes([arrival]) == [arrival]
    assert through_bytes(memoryview(b"body")) == b"body"


@pytest.mark.parametrize(
    "error", [InvalidInput("no", field="x", limit=3), IdempotencyConflict("twice"), LanewayError("?")]
)
def test_errors_come_out_with_all_they_say(error: LanewayError) -> None:
    found = through_bytes(error)
    assert type(found) is type(error)
    assert (found.message, found.field, found.details, str(found)) == (
        error.message,
        error.field,
        error.details,
        str(error),
    )


def test_deliveries_come_out_with_bodies_of_their_own() -> None:
    """What was read from the journal are views of all that was read with it."""
    whole = memoryview(b"..first..second")
    story = Story(1, 2, (Death("q", "rejected", 3, 4),))
    bodies, enqueued_at_ms = [whole[2:7], whole[9:]], array("Q", [4, 4])
    deliveries = Deliveries(
        7, "q", 1, 9, Seqs([5, 8]), range(3, 5), [1, 2], enqueued_at_ms, (b"", b""), bodies, b"\1\5", {8: story}
    )
    found = through_bytes(Delivered(3, deliveries)).deliveries
    assert found == deliveries and [type(body) for body in found.bodies] == [bytes, bytes]
    assert type(found.seqs) is Seqs and found.tokens() == deliveries.tokens()
    assert through_bytes(Ack(7, Tokens([(range(5, 9), range(1, 5))]))).tokens.runs == [(range(5, 9), range(1, 5))]
    assert through_bytes(Place(1, 2, 3)) == Place(1, 2, 3)


class Live:
    def method(self) -> None:
        pass


class Sly(msgspec.Struct):
    """A struct is no value because it is one: somebody must have said so."""

    inside: object = None


LIVE: dict[str, tuple[object, str]] = {
    "object": (Live(), "Live"),
    "struct of another": (Sly(), "Sly"),
    "callable": (lambda: 0, "lambda"),
    "method": (Live().method, "method"),
    "method of a value": (Messages([], []).at, "at"),
    "partial": (partial(int, "1"), "partial"),
    "function of a module of values": (encode_props, "encode_props"),
    "builtin": (open, "open"),
    "path": (Path("/"), "Path"),
    "lock": (threading.Lock(), "lock"),
    "generator": ((n for n in "x"), "generator"),
    "state": (State(), "State|lambda"),
    "queue": (Queue(1, "/", "q", QueueSettings(), 0), "Queue"),
    "topology": (RoutingTable({}, {}), "RoutingTable"),
    "commit": (Commit(1, 1, 1, None), "Commit"),
    "subscription": (Subscription(mock.Mock(), Subscribe(1, 1, 1), None), "Subscription|Mock"),
}


@pytest.mark.parametrize("live", LIVE)
def test_what_is_no_value_is_refused_by_name(live: str) -> None:
    value, name = LIVE[live]
    for holder in (Lease(value, 1), {"deep": [(value,)]}, InvalidInput("no", given=value)):  # type: ignore[arg-type]
        with pytest.raises(NoValue, match=name):
            through_bytes(holder)


def test_loop_and_futures_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for live in (loop, loop.create_future(), asyncio.Event(), asyncio.current_task()):
            with pytest.raises(NoValue):
                through_bytes(live)

    asyncio.run(main())


def test_what_is_refused_on_its_way_is_written_down(tmp_path: Path) -> None:
    """The server that meets it may go on: whoever runs the tests must hear of it all the same."""
    file = tmp_path / "kinds"
    answers: list[Any] = [[Arrival(1, None, Live())]]  # type: ignore[arg-type]
    inner = mock.Mock(send=lambda request, done: done(answers[0]), limits=BrokerLimits())
    broker = WireBroker(inner, file)
    with pytest.raises(NoValue, match="Live"):
        broker.send(Lease(1, 1), lambda answer: pytest.fail("told"))
    with pytest.raises(NoValue, match="lambda"):
        broker.send(Publish((1,), Messages([lambda: 0], [])), lambda answer: None)  # type: ignore[list-item]
    lines = file.read_text().splitlines()
    assert (lines[0], lines[2]) == ("Lease", "Publish") and broker.kinds == {"Lease", "Publish"}
    assert lines[1].startswith(f"{REFUSED} ") and "Live" in lines[1] and "lambda" in lines[3]
    with pytest.raises(AssertionError, match="no request"):
        broker.send(Delivered(1, mock.Mock()), lambda answer: None)  # type: ignore[arg-type]


def test_everything_that_a_broker_says_is_a_copy(tmp_path: Path) -> None:
    async def main() -> None:
        partition = Partition(
            Engine(SegmentJournal(tmp_path), new_tag=lambda: 7), clock=Clock.steady(lambda: 1_800_000_000_000)
        )
        broker = WireBroker(LocalBroker(partition))
        await partition.start()
        try:
            await converse(broker, partition)
        finally:
            await partition.stop()

    async def converse(broker: WireBroker, partition: Partition) -> None:
        declared = await broker.ask(DeclareQueue("/", "q", QueueSettings()))
        info = broker.topology.find_queue("/", "q")
        assert info == declared.info == LocalBroker(partition).topology.find_queue("/", "q")
        assert info is not broker.topology.find_queue("/", "q")
        with pytest.raises(QueueNotFound, match="there is no queue 'none'") as refused:
            broker.topology.find_queue("/", "none")
        assert refused.value.details == {"queue": "none"}
        with pytest.raises(QueueNotFound):
            await broker.ask(DescribeQueue("/", "none"))
        pushed: list[Any] = []
        session = broker.open_session(pushed.extend)
        await broker.ask(Subscribe(session, 1, info.queue))
        body = b"body"
        (arrival,) = await broker.ask(Publish((info.queue,), Messages([body], [b""])))
        assert arrival.result[0].message_id.endswith("0001")
        async with asyncio.timeout(5):
            while not pushed:
                await asyncio.sleep(0)
        assert pushed[0].deliveries.bodies == [body] and pushed[0].deliveries.bodies[0] is not body
        told: list[Any] = []
        broker.send(Lease(99, 1), told.append)
        assert isinstance(told[0], QueueNotFound)
        assert broker.health() == partition.health() and broker.now() == partition.now()
        gone: list[str] = []
        broker.topology.on_vhost_deleted(gone.append)
        await broker.ask(CreateVhost("v"))
        await broker.ask(DeleteVhost("v"))
        assert gone == ["v"] and broker.limits == partition.limits
        assert broker.kinds >= {"DeclareQueue", "Publish", "Lease", "Subscribe", "CreateVhost"}

    asyncio.run(main())


def test_the_stand_in_has_all_that_a_broker_has() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in (*vars(kind), *kind.__annotations__) if not name.startswith("_")}

    broker = WireBroker(mock.Mock(limits=BrokerLimits()))
    assert all(hasattr(broker, name) for name in public(Broker))
    assert len(encoded(b"x")) < 50
