"""Direct replies to callers at another process, whose answers come when the test says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway.frontends.amqp.replies import Heard, Reply
from tests.amqp.serving import Serving
from tests.amqp.wire import Wire, method, publish
from tests.in_thread import wait_for

ELSEWHERE = "amq.rabbitmq.reply-to.1.token"


class OtherProcess:
    """Process 1 of a server whose process 0 is tested."""

    process = 0

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.is_there = True
        self.came: list[tuple[str, Reply | None]] = []
        self.heard: list[Heard | None] = []

    def deliver(self, name: str, what: Reply | None) -> bool:
        raise NotImplementedError

    def send(self, process: int, name: str, what: Reply | None, heard: Heard | None = None) -> bool:
        if process != 1 or not self.is_there:
            return False
        self.came.append((name, what))
        self.heard.append(heard)
        return True

    def answer(self, is_taken: bool) -> None:
        wait_for(lambda: self.heard, "it is sent")
        heard = self.heard.pop(0)
        assert heard is not None
        self._serving.call(heard, is_taken)


@pytest.fixture
def other(serving: Serving) -> Iterator[OtherProcess]:
    shared = serving.server.shared
    shared.reply_post = other = OtherProcess(serving)
    yield other
    shared.reply_post = None


def durable(serving: Serving) -> None:
    """All that was published is on disk, and its publishers were told."""
    with serving.log_in() as wire:
        wire.ask(1, "confirm.select")
        wire.send(publish(1, "nowhere", b""))
        wire.expect("basic.ack")


def test_a_confirm_waits_until_a_mandatory_reply_is_taken(
    serving: Serving, wire: Wire, queue: str, other: OtherProcess
) -> None:
    wire.ask(1, "confirm.select")
    wire.send(publish(1, queue, b"1") + publish(1, ELSEWHERE, b"4", mandatory=True) + publish(1, queue, b"2"))
    wait_for(lambda: other.heard, "it is sent")
    durable(serving)
    assert wire.ask(1, "basic.qos").name == "basic.qos-ok"  # and no confirm before it
    other.answer(True)
    assert str(wire.read()) == "1 basic.ack delivery=3 multiple=1"
    assert other.came == [(ELSEWHERE, (b"\0\0", b"4"))]


def test_a_mandatory_reply_that_nobody_took_comes_back_before_its_confirm(wire: Wire, other: OtherProcess) -> None:
    wire.ask(1, "confirm.select")
    wire.send(publish(1, ELSEWHERE, b"first", mandatory=True) + publish(1, ELSEWHERE, b"second", mandatory=True))
    other.answer(True)
    other.answer(False)
    assert wire.expect("basic.return").fields["code"] == 312
    wire.expect("header")
    assert wire.read().payload == b"second"
    assert str(wire.read()) == "1 basic.ack delivery=2 multiple=1"


def test_a_commit_waits_until_its_mandatory_replies_are_taken(
    serving: Serving, wire: Wire, other: OtherProcess
) -> None:
    wire.ask(1, "tx.select")
    wire.send(publish(1, ELSEWHERE, b"4", mandatory=True) + method(1, "tx.commit"))
    wait_for(lambda: other.heard, "it is sent")
    durable(serving)
    other.answer(True)
    wire.expect("tx.commit-ok")  # and no return before it
    wire.send(publish(1, ELSEWHERE, b"5", mandatory=True) + method(1, "tx.commit"))
    other.answer(False)
    wire.expect("basic.return")
    wire.expect("header"), wire.read()
    wire.expect("tx.commit-ok")


def test_nobody_waits_for_other_replies(wire: Wire, other: OtherProcess) -> None:
    wire.ask(1, "confirm.select")
    wire.send(publish(1, ELSEWHERE, b"4"))
    wire.expect("basic.ack")
    assert other.heard == [None]


@pytest.mark.parametrize("name", [ELSEWHERE, ELSEWHERE[:-6], "amq.rabbitmq.reply-to.x.token", "amq.rabbitmq.reply-to."])
def test_a_reply_that_cannot_be_sent_comes_back(wire: Wire, other: OtherProcess, name: str) -> None:
    other.is_there = False
    wire.send(publish(1, name, b"4", mandatory=True))
    wire.expect("basic.return")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_declare_asks_the_other_process(wire: Wire, other: OtherProcess, is_there: bool) -> None:
    wire.send(method(1, "queue.declare", queue=ELSEWHERE, passive=1) + method(1, "basic.qos"))
    other.answer(is_there)
    assert other.came == [(ELSEWHERE, None)]
    if is_there:
        assert str(wire.read()) == f'1 queue.declare-ok queue="{ELSEWHERE}" consumers=1'
        wire.expect("basic.qos-ok")
    else:
        assert wire.expect("channel.close").fields["code"] == 404


def test_an_answer_for_a_channel_that_is_gone_is_passed_over(serving: Serving, wire: Wire, other: OtherProcess) -> None:
    wire.ask(1, "confirm.select")
    wire.send(publish(1, ELSEWHERE, b"4", mandatory=True))
    wait_for(lambda: other.heard, "it is sent")
    durable(serving)
    assert wire.ask(1, "channel.close").name == "channel.close-ok"
    other.answer(False)
    wire.ask(1, "channel.open")
    assert wire.ask(1, "basic.qos").name == "basic.qos-ok"
