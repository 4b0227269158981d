"""A message that leaves with its whole queue goes on in the other partition as it was: events in, events out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from laneway.core import snapshot
from laneway.core.commands import put_queue
from laneway.core.departing import current_seqs, current_tokens, depart, held_by, some_alive, some_dead, times_to_live
from laneway.core.digits import token
from laneway.core.events import Event, Kind, QueueDeparted, QueuePut
from laneway.core.invariants import check_invariants
from laneway.core.lease_commands import lease, settle, settle_held
from laneway.core.letters import Outline, arrive, letter
from laneway.core.message import Messages, Properties, Settlement, encode_props
from laneway.core.partitions import queue_id
from laneway.core.publishing import publish
from laneway.core.rows import decode, encode
from laneway.core.settings import QueueSettings
from laneway.core.state import State, queue_document

NOW = 1_000_000


def state_of(partition: int) -> State:
    state = State()
    state.partition, state.tag = partition, partition + 1
    return state


def _blob(data: bytes, at: int, size: int) -> bytes:
    return data[at : at + size]


def run(state: State, command: Iterable[Event]) -> list[Event]:
    """As an engine does, each event through its stored form."""
    done: list[Event] = []
    for event in command:
        rows, blobs = encode(event, 0)
        (stored,) = decode(rows, partial(_blob, b"".join(blobs)), lambda at: 1 << 32 | at)
        state.apply(stored if event.kind in (Kind.MOVED, Kind.ARRIVED, Kind.RESUMED) else event)
        done.append(event)
    return done


def with_messages() -> tuple[State, State]:
    """One partition with a queue of messages in every state; another one that has the same queue, empty."""
    here, there = state_of(0), state_of(1)
    for state in (here, there):
        run(state, put_queue(state, "/", "q", QueueSettings(max_priority=9), NOW, max_queues=9))
    run(there, put_queue(there, "/", "other", QueueSettings(), NOW, max_queues=9))
    run(there, publish(there, [(there.queues[2], 1)], Messages([b"x"], [b""]), NOW, []))  # numbers differ
    queue = here.queues[1]
    plain = Messages([b"%d" % n for n in range(6)], [b""] * 6, [None, None, None, 9, None, None])
    later = Messages([b"later", b"dies"], [b"", b""], delays_ms=[9_000, None], ttls_ms=[None, 5_000])
    group = Messages([b"g1", b"g2"], [encode_props(Properties(group="g"))] * 2, groups={0: "g", 1: "g"})
    for messages in (plain, later, group):
        run(here, publish(here, [(queue, len(messages))], messages, NOW, []))
    run(here, lease(here, [(queue, 1)], 30_000, "worker", NOW, first_lease=1 << 62 | 77))  # by a token
    run(here, lease(here, [(queue, 2)], 30_000, "", NOW, of_session=True))
    rejected = max(_leases(here), key=lambda lease: lease if not lease >> 62 else 0)
    (seq,) = [seq for seq in range(1, 11) if here.table.slabs[0].lease[seq] == rejected]
    run(here, settle_held(here, [(1, 1)], [seq], [rejected], "reject", NOW))
    check_invariants(here)
    return here, there


def move(here: State, there: State, target: int) -> None:
    queue, expires_at = here.queues[1], {}
    for at_ms, some in times_to_live(here, queue):
        expires_at.update(dict.fromkeys(some, at_ms))
    seqs, reached = some_alive(here, queue, 0, 100)
    assert reached is None
    of_group = encode_props(Properties(group="g"))
    contents = {seq: (of_group if seq in queue.group_of else b"", b"%d" % seq) for seq in [*seqs, *queue.dead]}
    for some in (seqs, some_dead(queue, 10)):
        if some:
            run(here, depart(here, queue, some, target, expires_at, {}, 3, NOW + 1))
    check_invariants(here)
    for seq in list(here.stories):
        story = here.stories[seq]
        if story.bound_for:
            given = letter(0, Outline(story, NOW + 1, NOW, here.tag), *contents[story.record_seq])
            run(there, arrive(there, 0, given, NOW + 2))
    check_invariants(there)


def test_messages_are_there_as_they_were() -> None:
    here, there = with_messages()
    before = here.queues[1]
    counts = before.ready, before.leased, before.delayed, len(before.dead), before.ready_by_priority()
    move(here, there, queue_id(1, 1))
    after = there.queues[1]
    assert (after.ready, after.leased, after.delayed, len(after.dead), after.ready_by_priority()) == counts
    assert after.totals == [0] * len(after.totals)  # these come by themselves
    assert some_alive(here, before, 0, 10) == ([], None)
    assert list(after.groups) == ["g"] and list(there.consumers.values()) == ["worker"]
    assert sorted(at for at, _ in times_to_live(there, after)) == sorted(at for at, _ in times_to_live(here, before))
    again = snapshot.thaw(snapshot.chunks(snapshot.freeze(there)), 1)
    check_invariants(again)
    assert again.carried == there.carried and len(there.carried) == counts[1]


def test_leases_of_before_are_good() -> None:
    here, there = with_messages()
    (by_token,) = [lease for lease in _leases(here) if lease >> 62]
    (of_session,) = [lease for lease in _leases(here) if not lease >> 62]
    numbers = {lease: seq for seq, lease in ((s, here.table.slabs[0].lease[s]) for s in range(1, 7))}
    move(here, there, queue_id(1, 1))
    given = token(by_token, numbers[by_token])
    (now,) = current_tokens(there.carried, [given])
    assert now != given and current_tokens(there.carried, [now, "none"]) == [now, "none"]
    results: list[object] = []
    run(there, settle(there, there.queues[1], [Settlement("ack", now)], NOW + 3, results))  # type: ignore[arg-type]
    assert results == [0] and by_token not in there.carried
    ((_, lease_id),) = held_by(there, 3)[1]
    assert lease_id == of_session and held_by(there, 0) == {}
    seqs = current_seqs(there.carried, [numbers[of_session]], [of_session])
    run(there, settle_held(there, [(1, 1)], seqs, [of_session], "release", NOW + 3))
    assert there.queues[1].leased == 0 and there.carried == {}
    check_invariants(there)


def _leases(state: State) -> list[int]:
    slab = state.table.slabs[0]
    return [slab.lease[i] for i in range(len(slab.state)) if slab.state[i] == 2]


def test_a_queue_that_has_left_leaves_its_address() -> None:
    here, there = with_messages()
    move(here, there, queue_id(1, 1))
    run(here, [QueueDeparted(1, NOW, queue_id(1, 1), queue_document(here.queues[1]))])
    assert here.by_name == {} and here.whereabouts(1) == queue_id(1, 1)
    check_invariants(here)
    again = snapshot.thaw(snapshot.chunks(snapshot.freeze(here)))
    assert again.forwards == {1: queue_id(1, 1)}
    # It comes back under another number.
    document = QueuePut(here.next_queue, NOW, b'{"vhost":"/","name":"q","settings":{},"arriving":[1,1]}')
    told: list[Event] = []
    here.follow(told.append)
    run(here, [document])
    assert here.by_name == {} and told == [] and here.arriving[1, 1].number == document.queue
    check_invariants(here)
    run(here, [QueuePut(document.queue, NOW, b'{"vhost":"/","name":"q","settings":{}}')])
    assert here.by_name["/", "q"].number == document.queue and len(told) == 1 and here.arriving == {}
    check_invariants(here)
