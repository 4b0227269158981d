"""What commands know of queues that other partitions have."""

from __future__ import annotations

import pytest

from laneway.core import commands, lease_commands
from laneway.core.events import Cause, DeadLettered, Extended, Released
from laneway.core.exchanges import RoutingTable
from laneway.core.partitions import queue_id
from laneway.core.queue import Queue
from laneway.core.settings import QueueSettings
from laneway.errors import InvalidInput, LimitExceeded, QueueInUse
from tests.core.runner import START_MS, Core


class Elsewhere:
    """A world of the queues of one state and of some of partition 1."""

    def __init__(self, core: Core, *names: str, **settings: object) -> None:
        others = [
            Queue(queue_id(1, n), "/", name, QueueSettings(**settings), START_MS) for n, name in enumerate(names, 1)
        ]
        self.queues = core.state.queues | {queue.number: queue for queue in others}
        self.by_name = {(queue.vhost, queue.name): queue for queue in self.queues.values()}
        self.senders = dict(core.state.senders)
        for queue in others:
            if queue.settings.dead_letter_queue is not None:
                self.senders["/", queue.settings.dead_letter_queue] = {queue.number}
        self.routing = RoutingTable(self.queues, self.by_name)
        self.vhosts = {"/"}
        self.owners: dict[int, int] = {}
        self.is_complete = True

    def home(self, vhost: str, name: str) -> int:
        return 0


def test_a_dead_letter_queue_may_be_in_another_partition() -> None:
    core = Core()
    with pytest.raises(InvalidInput):
        core.put(dead_letter_queue="there")
    core.state.world = Elsewhere(core, "there")
    core.put(dead_letter_queue="there")
    assert core["q"].settings.dead_letter_queue == "there"


def test_all_queues_of_the_server_count() -> None:
    core = Core()
    core.state.world = Elsewhere(core, "there", "where")
    with pytest.raises(LimitExceeded, match="2 queues already"):
        core.run(commands.put_queue(core.state, "/", "q", QueueSettings(), core.now_ms, max_queues=2))


def test_a_queue_that_gets_dead_letters_from_another_partition_stays() -> None:
    core = Core()
    core.put("dead")
    core.state.world = Elsewhere(core, "sender", dead_letter_queue="dead")
    with pytest.raises(QueueInUse):
        core.run(commands.delete_queue(core.state, core["dead"], core.now_ms, if_empty=False))


def test_what_has_no_try_left_waits_until_it_is_known_where_it_may_go() -> None:
    core = Core()
    core.put(max_receives=1)
    core.publish(b"1", b"2")
    core.run(lease_commands.lease(core.state, [(core["q"], 2)], 60_000, "", core.now_ms, of_session=True))
    world = core.state.world = Elsewhere(core)
    world.is_complete = False
    assert core.run(lease_commands.end_sessions(core.state, core.now_ms)) == [
        Extended(1, START_MS, [1, 2], START_MS, None)
    ]
    world.is_complete = True
    assert core.tick() == [DeadLettered(1, START_MS, [1, 2], Cause.MAX_RECEIVES, "")]


def test_what_has_tries_left_does_not_wait() -> None:
    core = Core()
    core.put(max_receives=2)
    core.publish(b"1")
    core.run(lease_commands.lease(core.state, [(core["q"], 2)], 60_000, "", core.now_ms, of_session=True))
    world = core.state.world = Elsewhere(core)
    world.is_complete = False
    assert core.run(lease_commands.end_sessions(core.state, core.now_ms)) == [
        Released(1, START_MS, [1], [0], Cause.RELEASED)
    ]


def test_queue_made_after_a_start_has_no_number_that_a_crash_may_have_taken() -> None:
    """Another partition may have something on its way to a queue that was made, and lost before it was durable."""
    core = Core()
    core.put("before")
    core.open()
    core.put("after")
    assert core["after"].number - core["before"].number > 10_000
