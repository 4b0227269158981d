"""Snapshots: the whole state as bytes and back, taken at one moment and written at leisure."""

from __future__ import annotations

from threading import Thread

import msgspec
import pytest

from laneway.core import commands, lease_commands, snapshot
from laneway.core.births import births
from laneway.core.events import DocumentPut, DocumentRemoved
from laneway.core.invariants import check_invariants
from laneway.core.message import Settlement
from laneway.core.state import State
from laneway.errors import JournalDamaged, JournalVersionUnknown
from tests.core.runner import START_MS, TAG, Core, draft, dump, replay


def take(core: Core, count: int, queue: str, consumer: str) -> list[tuple[int, str]]:
    """In as many leases as it takes: each hands out a bounded number of bytes."""
    out: list[tuple[int, str]] = []
    while len(out) < count and (more := core.take(count - len(out), queue, consumer=consumer)):
        out += more
    return out


def busy() -> Core:
    """Something of everything a state can hold."""
    core = Core(extent_bytes=4000)
    core.put("dead", message_ttl_ms=50_000)
    core.put("q", dead_letter_queue="dead", max_receives=3)
    core.put("plain", max_receives=1)
    core.put("idle")
    core.run(iter([DocumentPut(START_MS, "accounts", "guest", b"{}"), DocumentPut(START_MS, "tasks", "1", b"x")]))
    core.run(commands.remember_key(core.state, core["q"], "key", b"print", ["id"], START_MS, max_ids=9))
    for queue in ("q", "plain"):
        core.fill(1500, queue)
        core.publish(draft(priority=9), draft(priority=0, group="g"), draft(group="g", dedup_id="d"), queue=queue)
        core.publish(draft(delay_ms=20_000), draft(ttl_ms=40_000), draft(group="h", delay_ms=1000), queue=queue)
        leased = take(core, 1100, queue, "me")
        core.ack(*[t for _, t in leased[:1030]], queue=queue)
        core.settle(*[Settlement("reject", t, reason="no") for _, t in leased[1030:1040]], queue=queue)
        core.settle(*[Settlement("release", t) for _, t in leased[1040:1050]], queue=queue)
        core.settle(*[Settlement("release", t, delay_ms=9000) for _, t in leased[1050:1060]], queue=queue)
    core.redrive([min(core["plain"].dead)], "plain")
    return core


def thaw(state: State) -> State:
    return snapshot.thaw(list(snapshot.chunks(snapshot.freeze(state))))


def drain(state: State, now_ms: int) -> list[tuple[str, int, int]]:
    """All that can be leased: (queue, number, receives), in order."""
    out = []
    for queue in state.queues.values():
        while events := list(map_apply(state, lease_commands.lease(state, [(queue, 7)], 1000, "", now_ms))):
            out += [(queue.name, *pair) for e in events for pair in zip(e.seqs, e.receives, strict=True)]
    return out


def map_apply(state: State, command):  # type: ignore[no-untyped-def]
    for event in command:
        state.apply(event)
        yield event


def test_a_thawed_state_is_the_frozen_one(either_size: str) -> None:
    core = busy()
    thawed = thaw(core.state)
    check_invariants(thawed)
    assert dump(thawed, core.now_ms) == dump(core.state, core.now_ms)
    totals = {q.name: q.totals for q in core.state.queues.values()}
    assert {q.name: q.totals for q in thawed.queues.values()} == totals
    assert drain(thawed, core.now_ms) == drain(core.state, core.now_ms)


def test_a_new_state_is_frozen_and_thawed_too() -> None:
    thawed = thaw(State())
    assert thawed.table.next_seq == 1 and thawed.queues == {}
    check_invariants(thawed)


def test_deadlines_are_found_again() -> None:
    live, other = busy(), busy()
    other.state = thaw(other.state)
    for span_ms in (1000, 8000, 11_000, 12_000, 30_000, 700_000_000, 700_000_000):
        live_events, other_events = live.tick(span_ms), other.tick(span_ms)
        assert sorted(map(str, map(shape, other_events))) == sorted(map(str, map(shape, live_events)))
        assert dump_without_numbers(other) == dump_without_numbers(live)
    assert len(live.state.table) == 0


def shape(event: object) -> tuple[object, ...]:
    """An event without the order of its messages: what falls due in one millisecond may come in any order."""
    return (type(event).__name__, event.queue, event.at_ms, sorted(event.seqs), event.cause)  # type: ignore[attr-defined]


def dump_without_numbers(core: Core) -> object:
    return {q.name: (q.ready, q.leased, q.delayed, len(q.dead), q.totals) for q in core.state.queues.values()}


def test_idempotency_keys_dedup_ids_and_documents_are_kept() -> None:
    core = busy()
    thawed = thaw(core.state)
    queue = thawed.by_name["/", "q"]
    assert commands.check_key(thawed, queue, "key", b"print", core.now_ms) == ["id"]
    assert thawed.documents == {"accounts": {"guest": b"{}"}, "tasks": {"1": b"x"}}
    core.state = thawed
    _, (again,) = core.publish(draft(dedup_id="d"))
    assert again.duplicate
    core.tick(300_000)
    assert core["q"].dedup == {}
    core.tick(86_400_000)
    assert not core.state.keys


def test_a_thawed_state_goes_on_counting() -> None:
    core = busy()
    before = (core.state.table.next_seq, core.state.next_queue, core.state.next_lease, core.state.epoch, core.state.tag)
    core.state = thaw(core.state)
    assert before == (
        core.state.table.next_seq,
        core.state.next_queue,
        core.state.next_lease,
        core.state.epoch,
        core.state.tag,
    )
    core.publish(b"new")
    core.put("one more")
    check_invariants(core.state)
    assert core.state.tag == TAG


def test_what_changes_after_the_freeze_is_not_in_the_snapshot(either_size: str) -> None:
    core = busy()
    covered = len(core.paper.commits)
    expected = dump(core.state, core.now_ms)
    source = snapshot.chunks(snapshot.freeze(core.state))
    mix_up(core)
    first = next(source)
    mix_up(core)
    thawed = snapshot.thaw([first, *source])
    check_invariants(thawed)
    assert dump(thawed, START_MS) == expected
    replay(core.paper.read(covered), thawed)
    check_invariants(thawed)
    assert dump(thawed, core.now_ms)["messages"].keys() == dump(core.state, core.now_ms)["messages"].keys()


def mix_up(core: Core) -> None:
    core.run(iter([DocumentRemoved(core.now_ms, "tasks", "1"), DocumentPut(core.now_ms, "accounts", "guest", b"new")]))
    core.put("idle", lease_ms=5)
    core.put(f"queue {core.now_ms}")
    for queue in ("q", "plain", "dead"):
        core.fill(20, queue)
        core.publish(draft(group="g"), draft(delay_ms=50, dedup_id="e"), queue=queue)
        leased = take(core, 300, queue, "you")
        core.ack(*[t for _, t in leased[:200]], queue=queue)
        core.settle(*[Settlement("reject", t) for _, t in leased[200:205]], queue=queue)
        core.settle(*[Settlement("release", t) for _, t in leased[205:220]], queue=queue)
    core.relocate(range(1, 4000, 7))
    core.tick(10_000)
    core.run(commands.purge_queue(core.state, core["plain"], core.now_ms))


def test_chunks_may_be_made_in_another_thread_while_the_state_changes() -> None:
    core = busy()
    expected = dump(core.state, core.now_ms)
    source = snapshot.chunks(snapshot.freeze(core.state))
    made: list[bytes] = []
    thread = Thread(target=lambda: made.extend(source))
    thread.start()
    while thread.is_alive():
        mix_up(core)
    thread.join()
    assert dump(snapshot.thaw(made), START_MS) == expected


def test_two_snapshots_in_a_row_are_each_of_their_own_moment() -> None:
    core = busy()
    first, expected_first = snapshot.freeze(core.state), dump(core.state, core.now_ms)
    mix_up(core)
    second, expected_second = snapshot.freeze(core.state), dump(core.state, core.now_ms)
    mix_up(core)
    assert dump(snapshot.thaw(list(snapshot.chunks(second))), START_MS + 10_000) == expected_second
    assert dump(snapshot.thaw(list(snapshot.chunks(first))), START_MS) == expected_first


def test_a_snapshot_that_was_cut_short_is_refused() -> None:
    whole = list(snapshot.chunks(snapshot.freeze(busy().state)))
    assert len(whole) >= 3
    for count in range(len(whole)):
        with pytest.raises(JournalDamaged, match="ends too early"):
            snapshot.thaw(whole[:count])


def test_a_snapshot_of_another_version_is_refused() -> None:
    first, *rest = snapshot.chunks(snapshot.freeze(busy().state))
    head = msgspec.msgpack.decode(first)
    for version in (snapshot.VERSION + 1, 0, None):
        head["version"] = version
        with pytest.raises(JournalVersionUnknown):
            snapshot.thaw([msgspec.msgpack.encode(head), *rest])
    del head["version"]
    with pytest.raises(JournalVersionUnknown):
        snapshot.thaw([msgspec.msgpack.encode(head), *rest])


def test_a_lane_with_dead_entries_at_its_front_is_thawed_and_replayed() -> None:
    core = Core()
    core.put(max_receives=None)
    core.publish(draft(), draft(ttl_ms=10), draft(), draft())
    core.tick(10)
    core.ack(core.take(1)[0][1])
    core.restart("snapshot")
    ((seq, t),) = core.take(1)
    core.settle(Settlement("release", t))
    core.publish(draft(group="g"))
    assert seq == 3
    assert [s for s, _ in core.take()] == [3, 4, 5]
    check_invariants(core.state)


def test_a_snapshot_of_the_version_before_is_read() -> None:
    core = Core()
    core.put("dead")
    core.put(dead_letter_queue="dead")
    core.publish(draft(), draft(), draft(delay_ms=500))
    core.now_ms += 100
    core.settle(Settlement("reject", core.take(1)[0][1]))
    first, slabs, end = snapshot.chunks(snapshot.freeze(core.state))
    # It had no columns for when messages were published and whose they are.
    older = [row[:-2] for row in msgspec.msgpack.decode(slabs)]
    head = msgspec.msgpack.encode({**msgspec.msgpack.decode(first), "version": 1})
    state = snapshot.thaw([head, msgspec.msgpack.encode(older), end])
    check_invariants(state)
    assert [births(core.state, [seq]).enqueued_ms[0] for seq in (2, 3, 4)] == [START_MS] * 3
    # What was never delayed nor moved has had one time all along; of the others it is not known any more.
    assert [births(state, [seq]).enqueued_ms[0] for seq in (2, 3, 4)] == [START_MS, 0, 0]
