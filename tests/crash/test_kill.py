"""kill -9 at random moments under load, again and again: confirmed minus received is empty in the end."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest

from .load import QUEUE, Account, Load, Told
from .server import Connection, Server, eventually

KILLS = 12
SMALL = ("--segment-bytes", "1048576", "--snapshot-events", "1000", "--log-level", "warning")


#: A server with a planted bug: it answers before it writes.
HASTY = """
import time
from laneway.broker.committer import Committer
from laneway.journal.segments.journal import SegmentJournal
flush, write = Committer._flush, SegmentJournal.write

def hasty_flush(self):
    self._before_seal()
    told, self._waiting = self._waiting, []
    flush(self)
    self._tell(told)

def slow_write(self, commit):
    time.sleep(0.05)
    write(self, commit)

Committer._flush, SegmentJournal.write = hasty_flush, slow_write
from laneway.cli import main
main()
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
def test_confirmed_minus_received_is_empty_after_kills_under_load(tmp_path: Path, seed: int) -> None:
    run(Server(tmp_path / "data", *SMALL), seed, KILLS)


@pytest.mark.timeout(180)
def test_a_server_that_answers_before_it_writes_is_found_out(tmp_path: Path) -> None:
    """So the test above can fail."""
    with pytest.raises(AssertionError, match=r"confirmed messages were lost|after its ack was answered"):
        run(Server(tmp_path / "data", *SMALL, program=("-c", HASTY)), 1, 4)


def run(server: Server, seed: int, kills: int) -> None:
    random, account = Random(seed), Account()
    with server:
        connection = server.connect()
        connection.must(201, "PUT", QUEUE, {"max_receive_count": 1_000_000, "retention_seconds": 86_400})
        connection.close()
        load = Load(server, account, seed)
        for name, batch in (("publisher-1", 1), ("publisher-2", 1), ("publisher-3", 30)):
            load.publish(name, batch)
        for name, limit in (("consumer-1", 1), ("consumer-2", 10), ("consumer-3", 50)):
            load.consume(name, limit)
        try:
            for kill in range(kills):
                work_goes_on(account)
                time.sleep(random.random() ** 2)  # the seed draws the moment; nothing is waited for
                if kill == kills - 1:
                    load.stop("consumer")  # so that there is something left to be drained
                    work_goes_on(account)
                end(server, random)
                server.start()
            work_goes_on(account)
        finally:
            server.kill()
            load.stop()
        server.start()
        tail = drain(server, account)
    assert not account.wrong, account.wrong[:5]
    check(account, tail)


def work_goes_on(account: Account) -> None:
    known = len(account.confirmed)
    eventually("work goes on", lambda: len(account.confirmed) > known + 50)


def end(server: Server, random: Random) -> None:
    """Mostly the hard way, at times the gentle one, which is to be no worse."""
    if random.random() < 0.8:
        server.kill()
    else:
        assert server.stop() == 0


def drain(server: Server, account: Account) -> list[Told]:
    """Everything that is left, in the order it comes."""
    connection = server.connect()
    eventually("leases run out", lambda: connection.must(200, "GET", f"{QUEUE}/stats")["in_flight_count"] == 0)
    tail: list[Told] = []
    while messages := dequeue(connection)["messages"]:
        tail += account.receive(time.monotonic(), messages)
        handles = [{"receipt_handle": message["receipt_handle"]} for message in messages]
        connection.must(200, "POST", f"{QUEUE}/ack", handles)
    stats = connection.must(200, "GET", f"{QUEUE}/stats")
    assert stats["approximate_message_count"] == stats["in_flight_count"] == stats["dlq_count"] == 0
    connection.close()
    return tail


def dequeue(connection: Connection) -> Any:
    return connection.must(200, "POST", f"{QUEUE}/dequeue", {"max_messages": 500, "visibility_timeout": 60})


def check(account: Account, tail: list[Told]) -> None:
    received = account.received.keys()
    lost = account.confirmed - received
    assert not lost, f"{len(lost)} of {len(account.confirmed)} confirmed messages were lost: {sorted(lost)[:5]}"
    in_doubt = {told for batch in account.unanswered for told in batch}
    assert received <= account.confirmed | in_doubt, "there is a message that nobody sent"
    for batch in account.unanswered:
        there = [told in received for told in batch]
        assert all(there) or not any(there), f"a batch is there in part: {batch}"
    assert len(tail) == len(set(tail)) and len(tail) > 50
    priorities = [told.priority for told in tail]
    assert priorities == sorted(priorities, reverse=True)
    by_publisher = sorted(tail, key=lambda told: (told.priority, told.publisher))  # stable: keeps the order of arrival
    for _, group in groupby(by_publisher, key=lambda told: (told.priority, told.publisher)):
        numbers = [told.number for told in group]
        assert numbers == sorted(numbers), f"a priority was drained out of order: {numbers}"
