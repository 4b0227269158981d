"""What holds between methods: order of replies, confirms, prefetch, what happens when a channel or connection ends."""

from __future__ import annotations

import pytest

from laneway.errors import Unavailable
from tests.amqp.serving import Serving
from tests.amqp.wire import Frame, Wire, method, publish
from tests.in_thread import wait_for
from tests.wire_broker import queues_of


def deliveries(wire: Wire, count: int) -> list[tuple[int, bytes]]:
    got = []
    for _ in range(count):
        deliver = wire.expect("basic.deliver")
        size = wire.expect("header").fields["size"]
        got.append((deliver.fields["delivery"], wire.read().payload if size else b""))
    return got


def nothing_comes(wire: Wire, channel: int = 1) -> None:
    """A reply that is asked for now comes before anything else."""
    assert wire.ask(channel, "basic.qos").name == "basic.qos-ok"


def get(wire: Wire, queue: str, no_ack: bool = True) -> tuple[Frame, bytes] | None:
    got = wire.ask(1, "basic.get", queue=queue, no_ack=no_ack)
    if got.name == "basic.get-empty":
        return None
    size = wire.expect("header").fields["size"]
    return got, wire.read().payload if size else b""


def test_replies_come_in_the_order_of_their_methods(wire: Wire, queue: str) -> None:
    """Some wait for the disk and some do not."""
    asked = [
        ("queue.declare", {"queue": f"{queue}.other"}),
        ("basic.qos", {"count": 10}),
        ("exchange.declare", {"exchange": f"{queue}.x", "type": "fanout"}),
        ("basic.get", {"queue": queue}),
        ("queue.bind", {"queue": queue, "exchange": f"{queue}.x"}),
        ("channel.flow", {"active": 1}),
        ("queue.delete", {"queue": f"{queue}.other"}),
        ("queue.declare", {"queue": queue, "passive": 1}),
    ]
    wire.send(b"".join(method(1, name, **given) for name, given in asked))
    answers = [wire.read().name for _ in asked]
    assert answers == [f"{name}-ok" if name != "basic.get" else "basic.get-empty" for name, _ in asked]


def test_a_mistake_is_told_after_the_replies_before_it_and_what_follows_is_ignored(wire: Wire, queue: str) -> None:
    wire.send(
        method(1, "queue.declare", queue=f"{queue}.2")
        + method(1, "queue.declare", queue="not there", passive=1)
        + publish(1, queue, b"ignored")
        + method(1, "queue.declare", queue=f"{queue}.3")
    )
    assert [wire.read().name for _ in range(2)] == ["queue.declare-ok", "channel.close"]
    wire.send(method(1, "channel.close-ok") + method(1, "channel.open"))
    assert wire.read().name == "channel.open-ok"
    assert wire.ask(1, "queue.declare", queue=queue, passive=1).fields["messages"] == 0


def test_confirms_of_a_read_are_told_together_and_in_order(wire: Wire, queue: str) -> None:
    wire.ask(1, "confirm.select")
    wire.send(publish(1, queue, b"x") * 500)
    last, acks = 0, 0
    while last < 500:
        ack = wire.expect("basic.ack")
        assert ack.fields["delivery"] > last
        last, acks = ack.fields["delivery"], acks + 1
    assert acks < 100


def test_a_refused_publish_among_others_is_nacked_alone(wire: Wire, queue: str) -> None:
    full = f"{queue}.full"
    wire.ask(1, "queue.declare", queue=full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    wire.ask(1, "confirm.select")
    wire.send(publish(1, full, b"1") + publish(1, full, b"2") + publish(1, queue, b"3"))
    told: dict[int, str] = {}
    while len(told) < 3:
        got = wire.read()
        assert got.name in ("basic.ack", "basic.nack")
        for number in range(1 if got.fields["multiple"] else got.fields["delivery"], got.fields["delivery"] + 1):
            told.setdefault(number, got.name)
    assert told == {1: "basic.ack", 2: "basic.nack", 3: "basic.ack"}


def test_prefetch_bounds_what_a_consumer_holds(wire: Wire, queue: str) -> None:
    wire.send(b"".join(publish(1, queue, str(n).encode()) for n in range(10)))
    wire.ask(1, "basic.qos", count=3)
    wire.ask(1, "basic.consume", queue=queue, tag="c")
    assert deliveries(wire, 3) == [(1, b"0"), (2, b"1"), (3, b"2")]
    nothing_comes(wire)
    wire.send(method(1, "basic.ack", delivery=2, multiple=1))
    assert deliveries(wire, 2) == [(4, b"3"), (5, b"4")]
    wire.send(method(1, "basic.reject", delivery=3))
    assert deliveries(wire, 1) == [(6, b"5")]
    nothing_comes(wire)


def test_a_prefetch_of_the_channel_is_shared_and_can_be_changed(wire: Wire, queue: str) -> None:
    wire.ask(1, "basic.qos", count=2, **{"global": 1})
    for tag in ("a", "b"):
        wire.ask(1, "basic.consume", queue=queue, tag=tag)
    wire.send(publish(1, queue, b"x") * 5)
    assert len(deliveries(wire, 2)) == 2
    nothing_comes(wire)
    wire.send(method(1, "basic.qos", count=3, **{"global": 1}))
    assert wire.read().name == "basic.qos-ok"
    assert len(deliveries(wire, 1)) == 1
    nothing_comes(wire)
    wire.send(method(1, "basic.qos", **{"global": 1}))
    assert wire.read().name == "basic.qos-ok"
    assert len(deliveries(wire, 2)) == 2


def test_consumers_take_turns_and_higher_priority_comes_first(wire: Wire, queue: str) -> None:
    wire.ask(1, "basic.qos", count=1)
    for tag in ("a", "b"):
        wire.ask(1, "basic.consume", queue=queue, tag=tag)
    wire.ask(1, "basic.consume", queue=queue, tag="first", arguments={"x-priority": 1})
    wire.send(publish(1, queue, b"1"))
    assert wire.expect("basic.deliver").fields["tag"] == "first"
    wire.expect("header"), wire.read()
    wire.send(publish(1, queue, b"2") + publish(1, queue, b"3"))
    tags = set()
    for _ in range(2):
        tags.add(wire.expect("basic.deliver").fields["tag"])
        wire.expect("header"), wire.read()
    assert tags == {"a", "b"}


def test_what_a_channel_held_goes_back_to_its_place_when_it_closes(serving: Serving, wire: Wire, queue: str) -> None:
    wire.send(b"".join(publish(1, queue, str(n).encode()) for n in range(4)))
    with serving.log_in() as other:
        other.ask(1, "basic.consume", queue=queue)
        assert len(deliveries(other, 4)) == 4
        other.send(method(1, "basic.ack", delivery=2) + method(1, "channel.close"))
        other.expect("channel.close-ok")
        bodies = [found[1] if (found := get(wire, queue)) else None for _ in range(4)]
        assert bodies == [b"0", b"2", b"3", None]


@pytest.mark.parametrize("politely", [True, False])
def test_what_a_connection_held_goes_back_and_its_exclusive_queues_go(
    serving: Serving, wire: Wire, queue: str, politely: bool
) -> None:
    wire.send(publish(1, queue, b"held"))
    with serving.log_in() as other:
        own = other.ask(1, "queue.declare", exclusive=1).fields["queue"]
        other.ask(1, "basic.get", queue=queue)
        other.expect("header"), other.read()
        if politely:
            other.send(method(0, "connection.close", code=200))
            other.expect("connection.close-ok")
        else:
            other.close()
        wait_for(lambda: serving.call(serving.broker.topology.queue, "/", own) is None, "the exclusive queue goes")
    found = get(wire, queue)
    assert found is not None and found[0].fields["redelivered"] == 1 and found[1] == b"held"


def test_a_client_that_does_not_know_cancel_notices_is_not_sent_any(serving: Serving, wire: Wire, queue: str) -> None:
    with serving.log_in(publisher_confirms=True) as other:
        other.ask(1, "basic.consume", queue=queue)
        wire.ask(1, "queue.delete", queue=queue)
        nothing_comes(other)


def test_the_same_channel_number_can_be_used_again(wire: Wire, queue: str) -> None:
    for _ in range(3):
        wire.ask(1, "basic.consume", queue=queue, tag="c")
        assert wire.ask(1, "channel.close").name == "channel.close-ok"
        assert wire.ask(1, "channel.open").name == "channel.open-ok"
    wire.send(publish(1, queue, b"x"))
    assert get(wire, queue) is not None


def test_a_lease_that_runs_out_returns_one_message_and_nothing_else(serving: Serving, wire: Wire, queue: str) -> None:
    wire.send(publish(1, queue, b"slow"))
    wire.ask(1, "basic.consume", queue=queue, tag="c", arguments={"x-consumer-timeout": 60_000})
    assert deliveries(wire, 1) == [(1, b"slow")]
    serving.pass_time(61)
    again = wire.expect("basic.deliver")
    assert again.fields["delivery"] == 2 and again.fields["redelivered"] == 1
    wire.expect("header"), wire.read()
    wire.send(method(1, "basic.ack", delivery=1) + method(1, "basic.ack", delivery=2))  # the first comes too late
    wire.ask(1, "basic.cancel", tag="c")
    assert get(wire, queue) is None


def test_a_consumer_extends_its_time(serving: Serving, wire: Wire, queue: str) -> None:
    wire.send(publish(1, queue, b"1") + publish(1, queue, b"2"))
    wire.ask(1, "basic.consume", queue=queue, tag="c", arguments={"x-consumer-timeout": 60_000})
    assert len(deliveries(wire, 2)) == 2
    for _ in range(3):
        serving.pass_time(40)
        wire.send(publish(1, "amq.laneway.extend", b""))
        nothing_comes(wire)
    serving.pass_time(40)
    wire.send(publish(1, "amq.laneway.extend", b"", headers={"delivery-tag": 2}))
    nothing_comes(wire)
    serving.pass_time(40)
    assert deliveries(wire, 1) == [(3, b"1")]
    wire.send(publish(1, "amq.laneway.extend", b"", headers={"delivery-tag": 77}))
    assert wire.expect("channel.close").fields["text"] == "PRECONDITION_FAILED - unknown delivery tag 77"


@pytest.mark.parametrize("way", ["consume", "get"])
def test_time_is_extended_by_what_the_queue_allows_for(serving: Serving, wire: Wire, queue: str, way: str) -> None:
    timed = f"{queue}.timed"
    wire.ask(1, "queue.declare", queue=timed, arguments={"x-consumer-timeout": 60_000})
    wire.send(publish(1, timed, b"slow"))
    if way == "consume":
        wire.ask(1, "basic.consume", queue=timed)
        assert deliveries(wire, 1) == [(1, b"slow")]
    else:
        assert get(wire, timed, no_ack=False) is not None
    serving.pass_time(40)
    wire.send(publish(1, "amq.laneway.extend", b""))
    nothing_comes(wire)
    serving.pass_time(40)
    assert serving.call(queues_of(serving.partition).queues.stats, "/", timed).leased == 1
    serving.pass_time(30)
    if way == "consume":
        assert deliveries(wire, 1) == [(2, b"slow")]
    else:
        assert serving.call(queues_of(serving.partition).queues.stats, "/", timed).ready == 1


def test_direct_replies_reach_the_channel_that_asked(serving: Serving, wire: Wire, queue: str) -> None:
    wire.ask(1, "basic.consume", queue="amq.rabbitmq.reply-to", tag="replies", no_ack=1)
    wire.send(publish(1, queue, b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="7"))
    with serving.log_in() as answerer:
        answerer.ask(1, "basic.get", queue=queue, no_ack=1)
        properties = answerer.expect("header").fields
        assert answerer.read().payload == b"question"
        name = properties["reply-to"]
        assert name.startswith("amq.rabbitmq.reply-to.")
        assert str(answerer.ask(1, "queue.declare", queue=name, passive=1)) == (
            f'1 queue.declare-ok queue="{name}" consumers=1'
        )
        answerer.ask(1, "confirm.select")
        answerer.send(publish(1, name, b"answer", mandatory=True, correlation_id="7"))
        answerer.expect("basic.ack")
        deliver = wire.expect("basic.deliver")
        assert str(deliver) == f'1 basic.deliver tag="replies" delivery=1 key="{name}"'
        assert wire.expect("header").fields == {"size": 6, "correlation-id": "7"}
        assert wire.read().payload == b"answer"
        wire.ask(1, "basic.cancel", tag="replies")
        answerer.send(publish(1, name, b"too late", mandatory=True))
        assert answerer.expect("basic.return").fields["text"] == "NO_ROUTE"


def test_a_rolled_back_or_lost_transaction_leaves_nothing(serving: Serving, wire: Wire, queue: str) -> None:
    wire.send(publish(1, queue, b"there"))
    with serving.log_in() as other:
        other.ask(1, "tx.select")
        other.ask(1, "basic.get", queue=queue)
        other.expect("header"), other.read()
        other.send(publish(1, queue, b"not there") + method(1, "basic.ack", delivery=1))
        other.ask(1, "basic.qos")
    wait_for(
        lambda: serving.call(queues_of(serving.partition).queues.stats, "/", queue).ready == 1, "the ack is undone"
    )
    found = get(wire, queue)
    assert found is not None and found[1] == b"there"
    assert get(wire, queue) is None


def test_a_transaction_is_one_commit_of_the_journal(serving: Serving, wire: Wire, queue: str) -> None:
    wire.ask(1, "tx.select")
    wire.send(publish(1, queue, b"x") * 50)
    wire.ask(1, "basic.qos")
    sealed: list[int] = []
    journal = queues_of(serving.partition).engine.journal
    seal = journal.seal

    def count() -> object:
        commit = seal()
        if commit is not None:
            sealed.append(commit.position)
        return commit

    journal.seal = count  # type: ignore[method-assign,assignment]
    try:
        assert wire.ask(1, "tx.commit").name == "tx.commit-ok"
    finally:
        journal.seal = seal  # type: ignore[method-assign]
    assert len(sealed) == 1
    assert wire.ask(1, "queue.declare", queue=queue, passive=1).fields["messages"] == 50


def test_stopping_tells_connections_and_takes_their_goodbye(serving: Serving, own_serving) -> None:  # type: ignore[no-untyped-def]
    own = own_serving()
    with own.log_in() as wire:
        own._loop.call_soon_threadsafe(own._stop.set)
        close = wire.expect("connection.close")
        assert close.fields["code"] == 320
        wire.send(method(0, "connection.close-ok"))
        assert wire.read_until_closed() == b""


def test_when_the_disk_is_full_publishers_wait_and_are_told(serving: Serving, own_serving) -> None:  # type: ignore[no-untyped-def]
    own = own_serving()
    journal = queues_of(own.partition).engine.journal
    with own.log_in() as wire, own.log_in() as other:
        wire.ask(1, "queue.declare", queue="q")
        wire.ask(1, "confirm.select")
        has_room = journal.has_room
        journal.has_room = lambda need_bytes=0: False
        assert wire.expect("connection.blocked").fields["reason"] == "low on disk"
        other.expect("connection.blocked")
        wire.send(publish(1, "q", b"waits") + method(1, "basic.qos"))
        with own.log_in(channels=0) as declarer:
            declarer.expect("connection.blocked")
            assert declarer.ask(1, "channel.open").name == "channel.open-ok"
            declarer.send(method(1, "queue.declare", queue="later"))
            assert other.ask(1, "queue.declare", queue="q", passive=1).fields["messages"] == 0
            journal.has_room = has_room
            assert {declarer.read().name for _ in range(2)} == {"connection.unblocked", "queue.declare-ok"}
        other.expect("connection.unblocked")
        told = {wire.read().name for _ in range(3)}
        assert told == {"connection.unblocked", "basic.ack", "basic.qos-ok"}
        assert other.ask(1, "queue.declare", queue="q", passive=1).fields["messages"] == 1


def test_no_confirm_reaches_a_channel_that_took_the_number_of_a_closed_one(wire: Wire, queue: str) -> None:
    wire.ask(1, "confirm.select")
    for _ in range(20):
        wire.send(publish(1, queue, b"x") * 3 + method(1, "channel.close"))
        while (got := wire.read()).name != "channel.close-ok":
            assert got.name == "basic.ack"
        wire.send(method(1, "channel.open"))
        assert wire.read().name == "channel.open-ok"
        assert wire.ask(1, "confirm.select").name == "confirm.select-ok"


def test_a_confirm_never_overtakes_the_return_of_its_message(wire: Wire, queue: str) -> None:
    wire.ask(1, "confirm.select")
    wire.send(method(1, "queue.declare", queue=f"{queue}.new") + publish(1, "nowhere", b"", mandatory=True))
    assert [wire.read().name for _ in range(4)] == ["queue.declare-ok", "basic.return", "header", "basic.ack"]


def test_a_transaction_that_a_queue_refuses_in_part_ends_the_channel(wire: Wire, queue: str) -> None:
    full = f"{queue}.full"
    wire.ask(1, "queue.declare", queue=full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    wire.ask(1, "tx.select")
    wire.send(publish(1, full, b"1") + publish(1, full, b"2"))
    close = wire.ask(1, "tx.commit")
    assert close.fields["text"] == "PRECONDITION_FAILED - partial tx completion"
    assert (close.fields["class-id"], close.fields["method-id"]) == (90, 20)


def test_a_transaction_waits_as_a_whole_for_a_full_disk(own_serving) -> None:  # type: ignore[no-untyped-def]
    own = own_serving()
    journal = queues_of(own.partition).engine.journal
    with own.log_in() as wire, own.log_in() as other:
        wire.ask(1, "queue.declare", queue="q")
        wire.ask(1, "tx.select")
        wire.send(publish(1, "q", b"x") * 3)
        wire.ask(1, "basic.qos")
        has_room = journal.has_room
        journal.has_room = lambda need_bytes=0: False
        wire.expect("connection.blocked")
        wire.send(method(1, "tx.commit"))
        other.expect("connection.blocked")
        assert other.ask(1, "queue.declare", queue="q", passive=1).fields["messages"] == 0
        journal.has_room = has_room
        assert {wire.read().name for _ in range(2)} == {"connection.unblocked", "tx.commit-ok"}
        other.expect("connection.unblocked")
        assert other.ask(1, "queue.declare", queue="q", passive=1).fields["messages"] == 3


def test_publishers_wait_for_a_disk_that_does_not_keep_up(own_serving) -> None:  # type: ignore[no-untyped-def]
    own = own_serving()
    with own.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.ask(1, "confirm.select")
        partition = queues_of(own.partition)
        check, refusals = partition.check_writable, []

        def refuse(need_bytes: int = 0) -> None:
            refusals.append(1)
            if len(refusals) <= 2:
                raise Unavailable("the disk does not keep up")
            check()

        partition.check_writable = refuse
        wire.send(b"".join(publish(1, "q", str(n).encode()) for n in range(50)))
        last = 0
        while last < 50:
            last = wire.expect("basic.ack").fields["delivery"]
        partition.check_writable = check
        assert len(refusals) > 2
        assert [found[1] for _ in range(50) if (found := get(wire, "q"))] == [str(n).encode() for n in range(50)]


def test_an_acknowledgement_timeout_of_nothing_is_a_second(wire: Wire, queue: str) -> None:
    short = f"{queue}.short"
    wire.ask(1, "queue.declare", queue=short, arguments={"x-consumer-timeout": 0})
    wire.send(publish(1, short, b"x"))
    wire.ask(1, "basic.consume", queue=short, arguments={"x-consumer-timeout": -5})
    assert deliveries(wire, 1) == [(1, b"x")]
    nothing_comes(wire)
    assert deliveries(wire, 1) == [(2, b"x")]


def test_a_channel_that_is_opened_again_speaks_after_the_old_one_has_closed(wire: Wire, queue: str) -> None:
    wire.send(
        publish(1, queue, b"x")
        + method(1, "channel.close")
        + method(1, "channel.open")
        + method(1, "queue.declare", queue=queue, passive=1)
    )
    wire.expect("channel.close-ok")
    wire.expect("channel.open-ok")
    assert wire.expect("queue.declare-ok").fields["messages"] == 1


def test_what_comes_behind_a_commit_is_of_the_next_transaction(wire: Wire, serving: Serving, queue: str) -> None:
    """Sent in one go: the first commit is not durable yet when the publish behind it is read."""
    wire.ask(1, "tx.select")
    wire.send(publish(1, queue, b"first") + method(1, "tx.commit") + publish(1, queue, b"second"))
    wire.send(method(1, "tx.rollback"))
    wire.expect("tx.commit-ok")
    wire.expect("tx.rollback-ok")
    assert wire.ask(1, "queue.declare", queue=queue, passive=1).fields["messages"] == 1
