"""What a client may hold, send and leave undone, and that time is kept."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack

from laneway.frontends.amqp.incoming import Incoming
from tests.amqp.serving import Serving
from tests.amqp.wire import HEADER, Wire, content, frame, method, publish
from tests.in_thread import wait_for
from tests.wire_broker import queues_of

OwnServing = Callable[..., Serving]


def test_who_says_nothing_is_cut_off(own_serving: OwnServing) -> None:
    serving = own_serving(handshake_ms=300)
    with serving.connect() as silent, serving.connect() as started, serving.log_in() as opened:
        started.send(HEADER)
        started.expect("connection.start")
        assert silent.read_until_closed() == b""
        assert started.read_until_closed() == b""
        assert opened.ask(1, "basic.qos").name == "basic.qos-ok"


def test_a_connection_too_many_is_cut_off(own_serving: OwnServing) -> None:
    serving = own_serving(connection_count=2)
    with serving.log_in() as one, serving.log_in(), serving.connect() as third:
        assert third.read_until_closed() == b""
        one.close()
        wait_for(lambda: serving.server.connection_count == 1, "one is gone")
        serving.log_in().close()


def test_a_body_too_large_ends_the_channel_before_it_is_received(own_serving: OwnServing) -> None:
    serving = own_serving(body_bytes=1000)
    with serving.log_in() as wire:
        wire.send(method(1, "basic.publish", key="x") + frame(2, 1, struct.pack(">HHQH", 60, 0, 1 << 60, 0)))
        close = wire.expect("channel.close")
        text = f"PRECONDITION_FAILED - message size {1 << 60} is larger than max size 1000"
        assert (close.fields["code"], close.fields["text"], close.fields["method-id"]) == (406, text, 40)
        wire.send(frame(3, 1, b"ignored") + method(1, "channel.close-ok") + method(1, "channel.open"))
        wire.expect("channel.open-ok")


def test_a_frame_too_large_ends_the_connection(own_serving: OwnServing) -> None:
    serving = own_serving()
    with serving.log_in(frame_max=4096) as wire:
        wire.send(struct.pack(">BHI", 1, 1, 4097))
        close = wire.expect("connection.close")
        assert close.fields["text"] == "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,4097,4088}"


def test_properties_may_fill_a_frame_as_rabbitmq_counts_it(serving: Serving, queue: str) -> None:
    """A payload of as many bytes as frames were agreed to have: what frames it is not counted."""
    with serving.log_in(frame_max=4096) as wire:
        for size, is_taken in ((4096 - 8, True), (4096, True), (4097, False)):
            text = "x" * (size - 14 - 4 - 2 - 5)
            header = content(1, b"b", headers={"h": text})
            assert struct.unpack_from(">I", header, 3) == (size,)
            wire.send(method(1, "basic.publish", key=queue) + header)
            if is_taken:
                assert wire.ask(1, "basic.get", queue=queue, no_ack=1).name == "basic.get-ok"
                assert (wire.read().fields["headers"], wire.read().payload) == ({"h": text}, b"b")
            else:
                assert wire.expect("connection.close").fields["code"] == 501


def test_a_message_that_is_rejected_waits_as_its_quorum_queue_says(own_serving: OwnServing) -> None:
    serving = own_serving()
    with serving.log_in() as wire:
        arguments = {"x-queue-type": "quorum", "x-delayed-retry-type": "failed", "x-delayed-retry-min": 60_000}
        wire.ask(1, "queue.declare", queue="retried", durable=1, arguments=arguments)
        wire.send(publish(1, "retried", b"x"))
        for delivery, (answer, waits_s) in enumerate((("nack", 0), ("reject", 120)), 1):
            assert wire.ask(1, "basic.get", queue="retried").name == "basic.get-ok"
            assert [wire.read().payload for _ in range(2)][1] == b"x"
            wire.send(method(1, f"basic.{answer}", delivery=delivery, requeue=1))
            count = wire.ask(1, "queue.declare", queue="retried", passive=1).fields.get("messages", 0)
            assert count == (0 if waits_s else 1)
            serving.pass_time(waits_s)
        assert wire.ask(1, "queue.declare", queue="retried", passive=1).fields["messages"] == 1


def test_a_body_longer_than_announced_ends_the_connection(serving: Serving) -> None:
    with serving.log_in() as wire:
        wire.send(method(1, "basic.publish", key="x") + content(1, b"1234")[:-9] + frame(3, 1, b"12345"))
        assert wire.expect("connection.close").fields["code"] == 501


def test_large_bodies_travel_in_frames_of_the_agreed_size(serving: Serving) -> None:
    body = bytes(range(256)) * 100
    with serving.log_in(frame_max=4096) as wire:
        wire.ask(1, "queue.declare", queue="large", exclusive=1)
        wire.send(method(1, "basic.publish", key="large") + content(1, body, frame_max=4096))
        wire.send(method(1, "basic.get", queue="large", no_ack=1))
        wire.expect("basic.get-ok")
        assert wire.expect("header").fields["size"] == len(body)
        parts = []
        while sum(map(len, parts)) < len(body):
            parts.append(wire.read().payload)
        assert b"".join(parts) == body and len(parts[0]) == 4088


def test_a_connection_has_only_so_many_consumers(own_serving: OwnServing) -> None:
    serving = own_serving(consumer_count=2)
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        for _ in range(2):
            assert wire.ask(1, "basic.consume", queue="q").name == "basic.consume-ok"
        close = wire.ask(1, "basic.consume", queue="q")
        assert close.fields["text"] == "RESOURCE_ERROR - a connection has at most 2 consumers"


def test_cancelled_consumers_make_room(own_serving: OwnServing) -> None:
    serving = own_serving(consumer_count=2)
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        for _ in range(5):
            assert wire.ask(1, "basic.consume", queue="q", tag="c").name == "basic.consume-ok"
            assert wire.ask(1, "basic.cancel", tag="c").name == "basic.cancel-ok"


def test_a_transaction_has_a_size(own_serving: OwnServing) -> None:
    serving = own_serving(transaction_bytes=100)
    with serving.log_in() as wire:
        wire.ask(1, "tx.select")
        wire.send(publish(1, "x", bytes(60)) * 2)
        assert wire.expect("connection.close").fields["code"] == 506


def test_publishes_beyond_what_the_disk_takes_wait_and_are_not_lost(own_serving: OwnServing) -> None:
    serving = own_serving(unconfirmed_bytes=1000, body_bytes=1000)
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.ask(1, "confirm.select")
        wire.send(publish(1, "q", bytes(500)) * 200)
        last = 0
        while last < 200:
            last = wire.expect("basic.ack").fields["delivery"]
        assert wire.ask(1, "queue.declare", queue="q", passive=1).fields["messages"] == 200


def test_who_takes_nothing_is_sent_nothing_more_and_then_cut_off(own_serving: OwnServing) -> None:
    serving = own_serving(unsent_bytes=65536, send_timeout_ms=500, body_bytes=200_000)
    with serving.log_in() as publisher, serving.log_in() as consumer:
        publisher.ask(1, "queue.declare", queue="q")
        publisher.ask(1, "confirm.select")
        for _ in range(400):
            publisher.send(publish(1, "q", bytes(100_000)))
        last = 0
        while last < 400:
            last = publisher.expect("basic.ack").fields["delivery"]
        consumer.send(method(1, "basic.consume", queue="q"))
        wait_for(lambda: serving.server.connection_count == 1, "the consumer is cut off")
        ready = publisher.ask(1, "queue.declare", queue="q", passive=1).fields["messages"]
        assert ready == 400


# --- heartbeats


def read_heartbeat(wire: Wire) -> float:
    before = time.monotonic()
    assert wire.read().kind == 8
    return time.monotonic() - before


def test_the_server_sends_heartbeats_when_it_has_nothing_else_to_send(serving: Serving) -> None:
    with serving.log_in(heartbeat=1) as wire:
        assert max(read_heartbeat(wire) for _ in range(2)) < 1.5


def test_a_silent_client_is_cut_off_and_what_it_held_goes_back(serving: Serving, queue: str, wire: Wire) -> None:
    wire.send(publish(1, queue, b"held"))
    with serving.log_in(heartbeat=1) as silent:
        assert silent.ask(1, "basic.get", queue=queue).name == "basic.get-ok"
        silent.read_until_closed()
        again = wire.ask(1, "basic.get", queue=queue)
        assert again.name == "basic.get-ok" and again.fields["redelivered"] == 1


def test_any_frame_is_a_sign_of_life(serving: Serving) -> None:
    with serving.log_in(heartbeat=1) as wire:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            wire.send(b"\x08\x00\x00\x00\x00\x00\x00\xce")
            while wire.read().kind != 8:
                pass
        assert wire.ask(1, "basic.qos").name in ("basic.qos-ok", "")


def test_what_no_queue_can_take_ends_the_channel(serving: Serving, wire: Wire, queue: str) -> None:
    largest = bytes(1024 * 1024)  # its properties make it larger
    wire.send(publish(1, queue, largest))
    close = wire.expect("channel.close")
    assert "queue 'q" in close.fields["text"] and "takes 1048576" in close.fields["text"]
    assert (close.fields["class-id"], close.fields["method-id"]) == (60, 40)
    wire.send(method(1, "channel.close-ok") + method(1, "channel.open"))
    wire.expect("channel.open-ok")
    wire.ask(1, "confirm.select")
    wire.send(publish(1, queue, largest))
    assert wire.expect("basic.nack").fields["delivery"] == 1


def test_a_channel_asks_for_only_so_many_messages_without_settling_them(own_serving: OwnServing) -> None:
    serving = own_serving(unacked_count=3)
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.send(publish(1, "q", b"") * 5)
        for _ in range(3):
            assert wire.ask(1, "basic.get", queue="q").name == "basic.get-ok"
            wire.expect("header")
        assert wire.ask(1, "basic.get", queue="q").fields["code"] == 506


def test_a_consumer_without_a_prefetch_limit_is_limited_all_the_same(own_serving: OwnServing) -> None:
    serving = own_serving(unacked_count=3)
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.send(publish(1, "q", b"") * 5)
        wire.ask(1, "basic.consume", queue="q")
        for _ in range(3):
            wire.expect("basic.deliver")
            wire.expect("header")
        assert wire.ask(1, "basic.qos").name == "basic.qos-ok"
        wire.send(method(1, "basic.ack", delivery=3, multiple=1))
        assert wire.expect("basic.deliver").fields["delivery"] == 4


def test_a_deleted_virtual_host_ends_its_connections(own_serving: OwnServing) -> None:
    serving = own_serving()
    serving.call(serving.partition.vhosts.create, "brief")
    with serving.log_in(vhost="brief") as wire:
        serving.run(serving.partition.vhosts.delete("brief"))
        close = wire.expect("connection.close")
        assert (close.fields["code"], close.fields["text"]) == (320, "CONNECTION_FORCED - vhost 'brief' is deleted")


def test_an_exclusive_name_that_went_to_somebody_else_stays(own_serving: OwnServing) -> None:
    serving = own_serving()
    with serving.log_in() as first, serving.log_in() as second:
        first.ask(1, "queue.declare", queue="q", exclusive=1)
        first.ask(1, "queue.delete", queue="q")
        assert second.ask(1, "queue.declare", queue="q").name == "queue.declare-ok"
        first.close()
        wait_for(lambda: serving.server.connection_count == 1, "the first is gone")
        assert second.ask(1, "queue.declare", queue="q", passive=1).name == "queue.declare-ok"


def test_who_takes_little_at_a_time_is_not_cut_off(own_serving: OwnServing) -> None:
    serving = own_serving(unsent_bytes=65536, send_timeout_ms=1000, body_bytes=200_000)
    with serving.log_in() as publisher, serving.log_in() as consumer:
        publisher.ask(1, "queue.declare", queue="q")
        publisher.ask(1, "confirm.select")
        for _ in range(200):
            publisher.send(publish(1, "q", bytes(100_000)))
        last = 0
        while last < 200:
            last = publisher.expect("basic.ack").fields["delivery"]
        consumer.send(method(1, "basic.consume", queue="q"))
        end = time.monotonic() + 3
        while time.monotonic() < end:  # several times the limit
            consumer.read_bytes(100_000)
            time.sleep(0.02)
        assert serving.server.connection_count == 2


# --- what must not grow, and what must not stop


def filled(serving: Serving, wire: Wire, count: int) -> None:
    wire.ask(1, "queue.declare", queue="q")
    wire.ask(1, "confirm.select")
    wire.send(publish(1, "q", bytes(100_000)) * count)
    last = 0
    while last < count:
        last = wire.expect("basic.ack").fields["delivery"]


def test_a_client_may_write_a_lot_before_it_reads_what_was_delivered(own_serving: OwnServing) -> None:
    """One that answers each message before it reads the next would wait for the server, and the server for it."""
    serving = own_serving(unsent_bytes=65536, body_bytes=200_000)
    with serving.log_in() as publisher, serving.log_in() as worker:
        filled(serving, publisher, 300)
        publisher.ask(1, "queue.declare", queue="answers")
        worker.send(method(1, "basic.consume", queue="q"))
        worker.expect("basic.consume-ok")
        wait_for(lambda: any(c.is_writing_paused for c in serving.server.shared.connections), "it is sent too much")
        for _ in range(300):  # far more than sockets hold
            worker.send(publish(1, "answers", bytes(100_000)))
        stats = queues_of(serving.partition).queues.stats
        wait_for(lambda: serving.call(stats, "/", "answers").ready == 300, "all answers are there")


def test_who_asks_and_never_reads_is_not_listened_to_for_ever(own_serving: OwnServing) -> None:
    serving = own_serving(unsent_bytes=65536, unread_bytes=65536, body_bytes=200_000)
    with serving.log_in() as wire:
        wire.socket.settimeout(1)
        one = publish(1, "nowhere", bytes(100_000), mandatory=True)
        try:
            for _ in range(1000):  # each comes back
                wire.send(one)
        except TimeoutError:
            return
        raise AssertionError("100 MB of returns were kept for a client that does not read")


def test_replies_for_somebody_who_does_not_read_come_back(own_serving: OwnServing) -> None:
    serving = own_serving(unsent_bytes=65536, unread_bytes=65536, body_bytes=200_000)
    with serving.log_in() as asker, serving.log_in() as replier:
        asker.ask(1, "queue.declare", queue="rpc")
        asker.send(method(1, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=1))
        asker.expect("basic.consume-ok")
        asker.send(publish(1, "rpc", b"?", reply_to="amq.rabbitmq.reply-to"))
        asker.ask(1, "queue.declare", queue="rpc", passive=1)
        assert replier.ask(1, "basic.get", queue="rpc", no_ack=1).name == "basic.get-ok"
        name = replier.expect("header").fields["reply-to"]
        replier.read()
        for _ in range(300):  # far more than sockets hold
            replier.send(publish(1, name, bytes(100_000), mandatory=True))
            if replier.ask(1, "basic.qos").name == "basic.return":
                return
        raise AssertionError("30 MB of replies were kept for a client that does not read")


def test_the_transactions_of_a_connection_share_its_limit(own_serving: OwnServing) -> None:
    with own_serving(transaction_bytes=1_000).log_in() as wire:
        wire.ask(2, "channel.open")
        for channel in (1, 2):
            wire.ask(channel, "tx.select")
        for _ in range(3):  # what was rolled back or committed does not count
            wire.send(publish(1, "x", b"x" * 700))
            wire.ask(1, "tx.rollback")
            wire.send(publish(2, "x", b"x" * 700))
            wire.ask(2, "tx.commit")
        wire.send(publish(1, "x", b"x" * 700) + publish(2, "x", b"x" * 700))
        assert wire.expect("connection.close").fields["code"] == 506


def test_unfinished_messages_of_a_connection_share_its_limit(own_serving: OwnServing) -> None:
    with own_serving(unfinished_bytes=10_000, body_bytes=6_000).log_in() as wire:
        begun = frame(2, 1, struct.pack(">HHQH", 60, 0, 6_000, 0)) + frame(3, 1, bytes(5_999))
        for _ in range(3):  # what was completed, or ended with its channel, does not count
            wire.send(method(1, "basic.publish", key="x") + begun + frame(3, 1, b"x"))
        for channel in (2, 3):
            wire.ask(channel, "channel.open")
        for channel in (1, 2, 3):
            body = frame(3, channel, bytes(3_000))
            wire.send(method(channel, "basic.publish", key="x") + frame(2, channel, begun[7:21]) + body)
        assert wire.ask(4, "channel.open").name == "channel.open-ok"
        wire.send(frame(3, 1, bytes(2_000)))
        close = wire.expect("connection.close")
        assert (close.fields["code"], "10000 bytes together" in close.fields["text"]) == (506, True)


def test_a_transaction_counts_headers_too(own_serving: OwnServing) -> None:
    with own_serving(transaction_bytes=100_000).log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.ask(1, "tx.select")
        wire.send(publish(1, "q", b"", headers={"a": "x" * 20_000}) * 6)
        assert wire.expect("connection.close").fields["code"] == 506


def test_a_body_in_crumbs_takes_no_more_memory_than_its_size() -> None:
    class Sink:
        def takes(self, channel: int, method: int) -> bool:
            return True

        def on_content_size(self, channel: int, size: int) -> None: ...

        def on_large_content(self, size: int, *, is_alone: bool) -> None: ...
        def give_way(self) -> None: ...

    incoming = Incoming(Sink(), 131072, 1 << 26, 1 << 26)  # type: ignore[arg-type]
    begin = method(1, "basic.publish", key="x") + frame(2, 1, struct.pack(">HHQH", 60, 0, 1 << 20, 0))
    crumbs = (frame(3, 1, b"ab") + frame(3, 1, b"")) * 1000
    tracemalloc.start()
    try:
        incoming.feed(begin)
        for _ in range(100):
            incoming.feed(crumbs)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * 200_000


def test_a_body_in_crumbs_is_put_together(wire: Wire, queue: str) -> None:
    wire.send(method(1, "basic.publish", key=queue) + frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0)))
    wire.send(b"".join(frame(3, 1, part) for part in (b"", b"he", b"", b"l", b"lo")))
    assert wire.ask(1, "basic.get", queue=queue, no_ack=1).name == "basic.get-ok"
    assert wire.expect("header").fields["size"] == 5
    assert wire.read().payload == b"hello"


def test_consumers_remember_little_of_messages_that_are_all_different(own_serving: OwnServing) -> None:
    serving = own_serving()
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.send(method(1, "basic.consume", queue="q", no_ack=1))
        wire.expect("basic.consume-ok")
        for i in range(100):
            wire.send(publish(1, "q", b"x", message_id=str(i), headers={"a": "x" * 1000}))
            wire.expect("basic.deliver")
            assert wire.expect("header").fields["message-id"] == str(i)
            wire.read()
        (connection,) = serving.server.shared.connections
        (consumer,) = connection.channels[1].consumers.values()
        assert len(consumer.dress._known) == 1  # where they came through, and nothing of their own


def test_a_login_that_cannot_be_checked_now_is_not_called_wrong(own_serving: OwnServing) -> None:
    """Clients take a 403 for a wrong password and give up."""
    serving = own_serving()
    serving.access._verifications_waiting = 1 << 20
    with serving.connect() as wire:
        wire.send(HEADER)
        wire.expect("connection.start")
        wire.send(
            method(
                0,
                "connection.start-ok",
                client_properties={"capabilities": {"authentication_failure_close": True}},
                mechanism="PLAIN",
                response="\0guest\0guest",
                locale="en_US",
            )
        )
        close = wire.expect("connection.close")
        assert close.fields["code"] == 320 and "try again" in close.fields["text"]


def test_channels_that_come_and_go_leave_nothing_behind(own_serving: OwnServing) -> None:
    serving = own_serving()
    with serving.log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.send(publish(1, "q", b"held whenever a channel ends"))
        for _ in range(5):
            wire.send(method(2, "channel.open"))
            wire.expect("channel.open-ok")
            assert wire.ask(2, "basic.qos", **{"count": 7, "global": 1}).name == "basic.qos-ok"
            wire.send(method(2, "basic.consume", queue="q"))
            wire.expect("basic.consume-ok")
            wire.expect("basic.deliver")
            wire.read(), wire.read()
            wire.send(method(2, "channel.close"))
            wire.expect("channel.close-ok")
        (connection,) = serving.server.shared.connections
        session = queues_of(serving.partition).sessions.find(connection.session)
        assert session is not None
        assert (session.pools, session.subscriptions, connection.consumers) == ({}, {}, {})


def test_what_one_connection_has_no_time_for_in_one_turn_is_done_in_the_next_ones(own_serving: OwnServing) -> None:
    """With no time at all, each turn takes one publish or one method; nothing is lost, and the order stays."""
    with own_serving(turn_ms=1).log_in(channels=2) as wire:
        for i in range(30):
            assert wire.ask(1, "queue.declare", queue=f"late-{i}").name == "queue.declare-ok"
        wire.ask(1, "confirm.select")
        slow = {"headers": {"a": ["x"] * 3000}, "expiration": "60000"}
        wire.send(b"".join(publish(1, f"late-{i % 30}", b"%d" % i, **slow) for i in range(90)))
        wire.send(method(2, "basic.qos", count=1) * 50 + publish(2, "late-0", b"last"))
        confirmed, answers = 0, 0
        while confirmed < 90 or answers < 50:
            frame_ = wire.read()
            answers += frame_.name == "basic.qos-ok"
            confirmed = frame_.fields["delivery"] if frame_.name == "basic.ack" else confirmed
        bodies = []
        while wire.ask(2, "basic.get", queue="late-0", no_ack=True).name == "basic.get-ok":
            wire.read()
            bodies.append(wire.read().payload)
        assert bodies == [b"0", b"30", b"60", b"last"]


def begun(size: int, sent: int = 0) -> bytes:
    """A publish to the queue q of which so much has come."""
    return method(1, "basic.publish", key="q") + frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0)) + rest(sent)


def rest(size: int) -> bytes:
    return b"".join(frame(3, 1, bytes(min(4000, size - at))) for at in range(0, size, 4000))


def confirming(serving: Serving, stack: ExitStack, count: int) -> list[Wire]:
    wires = [stack.enter_context(serving.log_in(frame_max=4096)) for _ in range(count)]
    wires[0].ask(1, "queue.declare", queue="q")
    for wire in wires:
        wire.ask(1, "confirm.select")
    return wires


def test_large_message_that_does_not_come_keeps_its_room_for_a_while(own_serving: OwnServing) -> None:
    limits = {"frame_bytes": 4096, "receiving_bytes": 20_000, "receive_timeout_ms": 300}
    serving = own_serving(**limits)
    with ExitStack() as stack:
        silent, other = confirming(serving, stack, 2)
        silent.send(begun(12_000, 4000))
        other.send(begun(12_000, 12_000))
        close = silent.expect("connection.close")
        assert (close.fields["code"], "did not come whole in time" in close.fields["text"]) == (506, True)
        other.expect("basic.ack")


def test_who_waits_for_room_is_not_overtaken(own_serving: OwnServing) -> None:
    serving = own_serving(frame_bytes=4096, receiving_bytes=20_000)
    with ExitStack() as stack:
        first, second, third = confirming(serving, stack, 3)
        first.send(begun(12_000))
        wait_for(lambda: serving.server.shared.intake.byte_count >= 12_000, "the first has begun")
        second.send(begun(10_000, 10_000))
        wait_for(lambda: serving.server.shared.intake.is_waited_for, "the second waits")
        third.send(method(1, "queue.declare", queue="q") + begun(6_000, 6_000))
        third.expect("queue.declare-ok")
        first.send(rest(12_000))
        for wire in (first, second, third):
            wire.expect("basic.ack")
        sizes = []
        for _ in range(3):
            first.send(method(1, "basic.get", queue="q", no_ack=1))
            first.expect("basic.get-ok")
            sizes.append(first.read().fields["size"])
            for _ in range(-(-sizes[-1] // (4096 - 8))):
                first.read()
        assert sizes == [12_000, 10_000, 6_000]


def test_many_who_wait_for_room_get_it_one_after_the_other(own_serving: OwnServing) -> None:
    serving = own_serving(frame_bytes=4096, receiving_bytes=10_000)
    with ExitStack() as stack:
        first, *others = confirming(serving, stack, 150)
        first.send(begun(8_000, 4_000))
        wait_for(lambda: serving.server.shared.intake.byte_count >= 8_000, "the first has begun")
        for wire in others:
            wire.send(begun(8_000, 8_000))
        first.send(rest(4_000))
        for wire in (first, *others):
            wire.expect("basic.ack")
        assert serving.server.shared.intake.byte_count == 0


def test_mistake_in_a_later_turn_ends_the_connection_as_well(own_serving: OwnServing) -> None:
    with own_serving(turn_ms=1, transaction_count=1_000).log_in() as wire:
        wire.ask(1, "queue.declare", queue="q")
        wire.ask(1, "tx.select")
        wire.send(publish(1, "q", b"x", expiration="60000") * 1_001)
        assert wire.expect("connection.close").fields["code"] == 506


def test_many_small_messages_that_do_not_come_whole_count_as_well(own_serving: OwnServing) -> None:
    serving = own_serving()
    intake = serving.server.shared.intake
    head, large_headers = method(1, "basic.publish", key="q"), bytes(100_000)
    for header, sent in (
        (struct.pack(">HHQH", 60, 0, 100_000, 0), bytes(99_999)),
        (struct.pack(">HHQH", 60, 0, 1, 0) + large_headers, b""),
    ):
        with serving.log_in(channels=50) as wire:
            for channel in range(1, 51):
                wire.send(method(channel, "basic.publish", key="q") + frame(2, channel, header))
                if sent:
                    wire.send(frame(3, channel, sent))
            wait_for(lambda: intake.byte_count > 50 * 100_000 - (1 << 20), "all but a MiB of them is counted")
        wait_for(lambda: intake.byte_count == 0, "it is gone")
    with serving.log_in() as wire:
        wire.send(frame(1, 1, head[7:-1] + bytes(2_000)))
        assert "method_too_large,20" in wire.expect("connection.close").fields["text"]
