"""kill -9 at random moments under AMQP's load: what was confirmed or committed is there, whole, and once settled for
certain it stays away."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path
from random import Random

import pytest

from tests.amqp.wire import method

from .amqp_load import (
    FAN,
    LEFT,
    MOVED,
    OTHER,
    PLAIN,
    QUEUES,
    RANKED,
    RIGHT,
    SOURCE,
    TOP_PRIORITY,
    Account,
    Client,
    Load,
    Told,
    told_by,
)
from .server import Server, eventually
from .test_kill import HASTY, SMALL, end

KILLS = 8
HOLD = 5  # messages of a client that never settles them


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1])
def test_confirms_and_transactions_hold_after_kills_under_load(tmp_path: Path, seed: int) -> None:
    run(Server(tmp_path / "data", *SMALL), seed, KILLS)


@pytest.mark.timeout(180)
def test_a_server_that_confirms_before_it_writes_is_found_out(tmp_path: Path) -> None:
    """So the test above can fail."""
    with pytest.raises(AssertionError, match=r"were lost|is torn|is not there|was durable"):
        run(Server(tmp_path / "data", *SMALL, program=("-c", HASTY)), 1, KILLS)


def run(server: Server, seed: int, kills: int) -> None:
    print(f"seed {seed}, {kills} kills")
    random, account = Random(seed), Account()
    with server:
        declare(server, account)
        load = Load(server, account, seed)
        for name in ("plain-1", "plain-2"):
            load.publisher(name, (PLAIN,))
        load.publisher("ranked", (RANKED,), priorities=True)
        load.publisher("fan", (LEFT, RIGHT), exchange=FAN)
        for name, queue in (("consumer-1", PLAIN), ("consumer-2", PLAIN), ("consumer-3", RANKED), ("consumer-4", LEFT)):
            load.consumer(name, queue)
        for name in ("groups-1", "groups-2"):
            load.transactions(name)
        load.mover("mover")
        try:
            for kill in range(kills):
                work_goes_on(account)
                moment_s = random.random() ** 2
                time.sleep(moment_s)  # the seed draws the moment; nothing is waited for
                print(f"kill {kill}: {moment_s:.3f} s after work went on")
                end(server, random)
                account.life += 1
                server.start()
            work_goes_on(account)
            client, held = hold(server, account)
        finally:
            server.kill()
            load.stop()
        client.wire.close()
        account.life += 1
        server.start()
        nothing_is_leased(server)
        found = {queue: drain(server, queue, account) for queue in QUEUES}
    print(f"confirmed {[*map(len, account.confirmed.values())]}, committed {len(account.committed)}")
    print(f"moves {account.moved}, acks {len(account.acked_s)}, left {[*map(len, found.values())]}")
    assert not account.wrong, account.wrong[:5]
    assert found[RIGHT][:HOLD] == [(told.body, True) for told in held], "what a dead client held is not next"
    check_confirms(account)
    check_order(found)
    check_transactions(account, found)


def declare(server: Server, account: Account) -> None:
    client = Client(server, account)
    for queue in QUEUES:
        arguments = {"x-max-priority": TOP_PRIORITY} if queue == RANKED else {}
        client.ask(1, "queue.declare", queue=queue, durable=1, arguments=arguments)
    client.ask(1, "exchange.declare", exchange=FAN, type="fanout", durable=1)
    for queue in (LEFT, RIGHT):
        client.ask(1, "queue.bind", queue=queue, exchange=FAN)
    client.wire.close()


def work_goes_on(account: Account) -> None:
    known = account.progress()

    def all_went_on() -> bool:
        assert not account.wrong, account.wrong[:5]
        return all(now >= before + 20 for now, before in zip(account.progress(), known, strict=True))

    eventually("work goes on", all_went_on)


def hold(server: Server, account: Account) -> tuple[Client, list[Told]]:
    """Take messages and keep them until after the leases are durable; the connection is left open."""
    client = Client(server, account)
    held = []
    for _ in range(HOLD):
        got = client.ask(1, "basic.get", queue=RIGHT)
        held.append(account.receive(RIGHT, client.life, got, *client.message(got)))
    got_s = time.monotonic()
    eventually("the leases are durable", lambda: account.durable_s[client.life] > got_s)
    return client, held


def nothing_is_leased(server: Server) -> None:
    """The connections of before are gone, and nobody waits until their time is up."""
    connection = server.connect()
    for queue in QUEUES:
        stats = connection.must(200, "GET", f"/queues/{queue}/stats")
        assert stats["in_flight_count"] == 0, f"{queue}: {stats}"
    connection.close()


def drain(server: Server, queue: str, account: Account) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of everything in a queue, in the order it comes."""
    client = Client(server, account)
    count = client.ask(1, "queue.declare", queue=queue, passive=1).fields["messages"]
    found: list[tuple[bytes, bool]] = []
    client.ask(1, "basic.qos", count=500)
    client.ask(1, "basic.consume", queue=queue, tag="drain")
    while len(found) < count:
        got = client.expect("basic.deliver")
        header, body = client.message(got)
        found.append((body, bool(got.fields["redelivered"])))
        if queue in (PLAIN, RANKED, LEFT, RIGHT):
            account.receive(queue, client.life, got, header, body)
        if len(found) % 100 == 0 or len(found) == count:
            client.wire.send(method(1, "basic.ack", delivery=len(found), multiple=1))
    left = client.ask(1, "queue.declare", queue=queue, passive=1).fields["messages"]
    assert left == 0, f"{left} more came into {queue}"
    client.wire.close()
    return found


def check_confirms(account: Account) -> None:
    for queue, confirmed in account.confirmed.items():
        received = {told for name, told in account.received if name == queue}
        lost = confirmed - received
        assert not lost, f"{len(lost)} of {len(confirmed)} confirmed messages were lost in {queue}: {sorted(lost)[:5]}"
        assert received <= account.sent[queue], f"there is a message in {queue} that nobody sent"
    for (queue, told), receipts in account.received.items():
        durable = False
        for receipt in receipts:
            assert receipt.redelivered or not durable, f"{told} in {queue} is not marked, and its lease was durable"
            durable = durable or receipt.at_s < account.durable_s[receipt.life]
    assert len(account.acked_s) > 50, "too few acks are known to be durable"


def check_order(found: dict[str, list[tuple[bytes, bool]]]) -> None:
    """Of one publisher's channel and one priority in the order they were sent, the highest priority first."""
    for queue in (PLAIN, RANKED, LEFT, RIGHT):
        tail = [told_by(body) for body, _ in found[queue]]
        assert len(set(tail)) == len(tail), f"{queue} has a message twice"
        priorities = [told.priority for told in tail]
        assert priorities == sorted(priorities, reverse=True)
        tail.sort(key=lambda told: (told.priority, told.publisher))  # stable: keeps the order of arrival
        for _, group in groupby(tail, key=lambda told: (told.priority, told.publisher)):
            numbers = [told.number for told in group]
            assert numbers == sorted(numbers), f"a priority of {queue} was drained out of order: {numbers}"


def check_transactions(account: Account, found: dict[str, list[tuple[bytes, bool]]]) -> None:
    bodies = [body for queue in (SOURCE, MOVED, OTHER) for body, _ in found[queue]]
    there = set(bodies)
    assert len(bodies) == len(there), "a message was moved and stayed"
    for group in account.groups:
        present = group.members() & there
        if group in account.committed:
            assert present == group.members(), f"{group} was committed and is not there: {sorted(present)}"
        assert not present or group not in account.rolled_back, f"{group} was rolled back and is there"
        assert present in (set(), group.members()), f"{group} is torn: {sorted(present)}"
    assert there <= {body for group in account.groups for body in group.members()}
