"""Direct reply-to over a real server of two processes: caller and server at the same one, and at different ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from uuid import uuid4

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp_clients.speaking import Consumer, channel_closed, eventually, get, publish
from tests.processes.several import SeveralProcesses

REPLY_TO = "amq.rabbitmq.reply-to"
PLACES = list(product(range(2), repeat=2))  # of caller and server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralProcesses]:
    with SeveralProcesses(tmp_path_factory.mktemp("replies") / "data") as server:
        yield server


class Caller:
    """A channel that asks, and gets the answers itself."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self.channel = connection.channel()
        self._calls = f"calls.{uuid4()}"  # after a kill, a queue of all would give earlier callers' calls again
        self.channel.queue_declare(self._calls)
        self.answers = Consumer(self.channel, REPLY_TO, auto_ack=True)
        self.address = self.ask(self.channel)

    def ask(self, server: BlockingChannel) -> str:
        """The address for answers, as the server gets it."""
        publish(self.channel, self._calls, "?", reply_to=REPLY_TO)
        return str(get(server, self._calls).properties.reply_to)

    @property
    def process(self) -> int:
        return int(self.address.removeprefix(REPLY_TO + ".").partition(".")[0])


def callers(server: SeveralProcesses, count: int = 1) -> list[list[Caller]]:
    """So many at each process. The kernel chooses which one takes a connection."""
    found: list[list[Caller]] = [[], []]

    def all_found() -> bool:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp_port))
        caller = Caller(connection)
        if len(found[caller.process]) < count:
            found[caller.process].append(caller)
        else:
            connection.close()
        return all(len(some) == count for some in found)

    eventually("a connection to each process", all_found, within_s=60)
    return found


@pytest.fixture
def at(server: SeveralProcesses) -> Iterator[list[list[Caller]]]:
    """By process: some callers there."""
    found = callers(server, 2)
    yield found
    for caller in [*found[0], *found[1]]:
        if caller.channel.connection.is_open:
            caller.channel.connection.close()


def returned(channel: BlockingChannel, address: str) -> bool:
    try:
        channel.basic_publish("", address, b"too late", mandatory=True)
    except pika.exceptions.UnroutableError as error:
        (message,) = error.messages
        assert (message.method.reply_code, message.method.reply_text) == (312, "NO_ROUTE")
        return True
    return False


@pytest.mark.parametrize(("here", "there"), PLACES)
def test_a_call_is_answered_wherever_caller_and_server_are(at: list[list[Caller]], here: int, there: int) -> None:
    caller, other = at[here][0], at[there][1]
    address = caller.ask(other.channel)
    assert address == caller.address
    found = other.channel.queue_declare(address, passive=True).method
    assert (found.queue, found.message_count, found.consumer_count) == (address, 0, 1)
    for number in range(100):
        other.channel.basic_publish("", address, b"%d" % number, pika.BasicProperties(correlation_id="77"))
    assert caller.answers.wait(100) == [b"%d" % number for number in range(100)]
    answer = caller.answers.messages[0]
    assert (answer.properties.correlation_id, answer.method.routing_key) == ("77", address)
    assert other.answers.settle_down() == []


@pytest.mark.parametrize(("here", "there"), PLACES)
def test_a_mandatory_answer_is_confirmed_or_comes_back(at: list[list[Caller]], here: int, there: int) -> None:
    caller, channel = at[here][0], at[there][1].channel
    channel.confirm_delivery()
    assert not returned(channel, caller.address)
    assert caller.answers.wait(1) == [b"too late"]
    assert returned(channel, caller.address + "x")
    caller.channel.connection.close()
    eventually("the return", lambda: returned(channel, caller.address))
    with channel_closed(404, f"NOT_FOUND - no queue '{caller.address}' in vhost '/'"):
        channel.queue_declare(caller.address, passive=True)


def test_an_answer_of_a_transaction_reaches_its_caller(at: list[list[Caller]]) -> None:
    for here, there in PLACES:
        caller, channel = at[here][0], at[there][1].channel.connection.channel()
        came_back: list[bytes] = []
        channel.add_on_return_callback(lambda ch, method, properties, body, kept=came_back: kept.append(body))
        channel.tx_select()
        before = len(caller.answers.bodies)
        channel.basic_publish("", caller.address, b"first", mandatory=True)
        channel.basic_publish("", caller.address + "x", b"nobody's", mandatory=True)
        channel.basic_publish("", caller.address, b"second")
        channel.tx_commit()
        channel.connection.process_data_events(0)
        assert came_back == [b"nobody's"], (here, there)
        assert caller.answers.wait(before + 2)[before:] == [b"first", b"second"]


@pytest.mark.parametrize("lost", [0, 1])
def test_answers_reach_callers_of_a_process_that_came_back(tmp_path: Path, lost: int) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        before = callers(server)
        left, gone = before[1 - lost][0], before[lost][0]
        server.kill_child(lost)
        left.channel.confirm_delivery()
        eventually("the return", lambda: returned(left.channel, gone.address))
        again = callers(server)[lost][0]
        assert not returned(left.channel, again.address)
        assert again.answers.wait(1) == [b"too late"]
        assert returned(left.channel, gone.address)
