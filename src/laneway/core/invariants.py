"""What must always hold. Runs in tests and in the simulator, never in a live node: it looks at every message."""

from __future__ import annotations

from collections import Counter

from laneway.core.digits import SESSION_LEASE
from laneway.core.exchanges import BUILT_IN
from laneway.core.outbox import outbox_name
from laneway.core.partitions import partition_of, queue_id
from laneway.core.queue import Queue
from laneway.core.state import HIDDEN, State
from laneway.core.table import (
    DEAD,
    DELAYED,
    FREE,
    GROUPED,
    HAS_CONSUMER,
    LEASED,
    READY,
    SLAB_BITS,
    SLAB_MASK,
    STORIED,
    TENANTED,
)
from laneway.core.tenants import NOISY_LEASES, Tenant


def check_invariants(state: State) -> None:
    """Raise AssertionError saying what does not hold."""
    counts: Counter[tuple[int, int]] = Counter()
    waiting_bytes: Counter[int] = Counter()
    by_priority: Counter[tuple[int, int]] = Counter()
    extents: Counter[int] = Counter()
    flagged: dict[int, set[int]] = {GROUPED: set(), STORIED: set(), HAS_CONSUMER: set(), TENANTED: set()}
    for number, slab in state.table.slabs.items():
        live = 0
        for i, found in enumerate(slab.state):
            if found == FREE:
                continue
            live += 1
            seq, home = (number << SLAB_BITS) + i, slab.queue[i]
            assert seq < state.table.next_seq, f"message {seq} is above the next number"
            assert home in state.queues, f"message {seq} is in queue {home}, which is gone"
            counts[home, found] += 1
            extents[slab.location[i] >> 32] += 1
            if found in (READY, DELAYED):
                waiting_bytes[home] += slab.size[i]
            if found == READY:
                by_priority[home, slab.priority[i]] += 1
            for flag, members in flagged.items():
                if slab.flags[i] & flag:
                    members.add(seq)
        assert live == slab.live, f"slab {number} says {slab.live} live, has {live}"
        assert len(slab.since_ms) == len(slab.state)
        assert len(slab.enqueued_ms) in (0, len(slab.state)), f"slab {number}: {len(slab.enqueued_ms)} times"
    assert dict(extents) == state.extents, f"extents {state.extents} but records are in {dict(extents)}"
    assert flagged[STORIED] == set(state.stories), "stories and flags differ"
    assert flagged[HAS_CONSUMER] == set(state.consumers), "consumers and flags differ"
    for queue in state.queues.values():
        _check_queue(state, queue, counts, by_priority, waiting_bytes)
        assert {
            s for s in flagged[GROUPED] if state.table.slabs[s >> SLAB_BITS].queue[s & SLAB_MASK] == queue.number
        } == set(queue.group_of), f"{queue.name}: groups and flags differ"
    _check_tenants(state, flagged[TENANTED])
    elsewhere = Counter(state.whereabouts(story.origin) for story in state.stories.values() if story.origin)
    for queue in state.queues.values():
        found = elsewhere[queue_id(state.partition, queue.number)]
        assert queue.dead_elsewhere == found, f"{queue.name}: dead_elsewhere"
    of_others = {number: count for number, count in elsewhere.items() if partition_of(number) != state.partition}
    assert state.dead_of_others == of_others, f"dead letters of {of_others}, but {state.dead_of_others} are counted"
    _check_crossing(state)
    _check_topology(state)
    _check_indexes(state)


def _check_crossing(state: State) -> None:
    outboxes = {queue.number: partition for partition, queue in state.outboxes.items()}
    for seq, story in state.stories.items():
        assert story.tag != state.tag or not story.tag, f"message {seq} was born here"
        slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
        partition = outboxes.get(slab.queue[i])
        assert story.bound_for or story.baggage is None, f"message {seq} goes nowhere and has baggage"
        if story.bound_for:
            assert partition == partition_of(story.bound_for), f"message {seq} is bound for {story.bound_for:#x}"
        else:
            assert partition is None, f"message {seq} is in an outbox and bound for nowhere"
    for partition, queue in state.outboxes.items():
        assert not queue.dead_elsewhere, f"outbox {partition} has dead letters elsewhere"
        assert not (queue.leased or queue.delayed or queue.dead or queue.groups or queue.tenants), f"outbox {partition}"
    for number in state.forwards:
        assert number not in state.queues, f"queue {number} has left, and is there"
    for lease, carried in state.carried.items():
        slab, i = state.table.slabs[carried.seq >> SLAB_BITS], carried.seq & SLAB_MASK
        may_hold = (LEASED,) if lease & SESSION_LEASE else (LEASED, READY, DELAYED)
        assert slab.state[i] in may_hold and slab.lease[i] == lease, f"lease {lease:#x} is of nobody, and is carried"
    assert state.partition not in state.received and state.partition not in state.outboxes


def _check_queue(
    state: State,
    queue: Queue,
    counts: Counter[tuple[int, int]],
    by_priority: Counter[tuple[int, int]],
    waiting_bytes: Counter[int],
) -> None:
    n, name = queue.number, queue.name
    assert queue.ready == counts[n, READY], f"{name}: ready {queue.ready}, table has {counts[n, READY]}"
    assert queue.leased == counts[n, LEASED], f"{name}: leased {queue.leased}, table has {counts[n, LEASED]}"
    assert queue.delayed == counts[n, DELAYED], f"{name}: delayed {queue.delayed}, table has {counts[n, DELAYED]}"
    if queue.delayed_order is not None:
        lost = set(state.table.find(n, DELAYED)) - {seq for _, seq in queue.delayed_order}
        assert not lost, f"{name}: delayed messages {lost} have no place in the order"
    assert len(queue.dead) == counts[n, DEAD], f"{name}: dead {len(queue.dead)}, table has {counts[n, DEAD]}"
    assert queue.bytes_waiting == waiting_bytes[n], f"{name}: bytes {queue.bytes_waiting} != {waiting_bytes[n]}"
    for priority, count in queue.ready_by_priority().items():
        assert count == by_priority[n, priority], f"{name}: priority {priority}"
    assert sum(queue.ready_by_priority().values()) == queue.ready
    for priority, lane in queue.lanes.items():
        entries = list(lane.after(0, state.table))
        assert entries == sorted(set(entries)), f"{name}: lane {priority} is out of order"
        assert len(entries) == lane.count, f"{name}: lane {priority} counts {lane.count}, names {len(entries)}"
        assert bool(queue.bitmap >> priority & 1) == bool(lane.count), f"{name}: bitmap of {priority}"
        assert lane.entries == sum(map(len, lane.chunks)) - lane.head
    for group in queue.groups.values():
        members = list(group.members)
        assert members and members == sorted(members), f"{name}: group {group.name} is out of order"
        if state.table.state(members[0]) == READY:
            assert group.offered == members[0], f"{name}: group {group.name} waits but is not offered"
            assert members[0] in queue.offered()
        else:
            assert not group.offered, f"{name}: group {group.name} is offered but must wait"


def _check_tenants(state: State, flagged: set[int]) -> None:
    found: dict[int, dict[int, list[int]]] = {}  # queue -> number of a tenant -> its messages
    for seq in flagged:
        slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
        assert not slab.flags[i] & GROUPED, f"message {seq} is of a group and of a tenant"
        found.setdefault(slab.queue[i], {}).setdefault(slab.tenant[i], []).append(seq)
    for queue in state.queues.values():
        here = found.get(queue.number, {})
        tenants = queue.tenants
        if tenants is None:
            assert not here, f"{queue.name}: {here} are of tenants that nobody knows"
            continue
        assert tenants.by_number and set(tenants.by_number) == set(here), f"{queue.name}: tenants and flags differ"
        assert {t.name: t.number for t in tenants.by_number.values()} == {
            n: t.number for n, t in tenants.by_name.items()
        }
        assert sorted([*tenants.by_number, *tenants.free]) == list(range(1, len(here) + len(tenants.free) + 1))
        suspects = {t.number for t in tenants.by_number.values() if t.leased >= NOISY_LEASES}
        assert set(tenants.suspects) == suspects, f"{queue.name}: {suspects} may be noisy, not {tenants.suspects}"
        ready: Counter[int] = Counter()
        for tenant in tenants.by_number.values():
            _check_tenant(state, queue, tenant, here[tenant.number])
            ready.update({priority: lane.count for priority, lane in tenant.lanes.items() if lane.count})
        assert ready == tenants.ready, f"{queue.name}: {tenants.ready} ready of tenants, lanes have {dict(ready)}"
        assert tenants.bitmap == sum(1 << priority for priority in ready)
        for priority, heap in tenants.heads.items():
            offered = {id(lane) for seq, lane in heap if lane.offered == seq}
            for there, lane in tenants.lanes():
                if there == priority and lane.offered:
                    assert id(lane) in offered, f"{queue.name}: {lane.tenant.name} is not offered"


def _check_tenant(state: State, queue: Queue, tenant: Tenant, seqs: list[int]) -> None:
    where = f"{queue.name}: tenant {tenant.name}"
    states = [state.table.state(seq) for seq in seqs]
    assert tenant.count == len(seqs), f"{where} counts {tenant.count}, has {len(seqs)}"
    assert tenant.leased == states.count(LEASED), f"{where}: leased {tenant.leased}, table has {states.count(LEASED)}"
    assert sum(lane.count for lane in tenant.lanes.values()) == states.count(READY), f"{where}: ready"
    for priority, lane in tenant.lanes.items():
        entries = list(lane.after(0, state.table))
        assert lane.tenant is tenant
        assert entries == sorted(set(entries)) and set(entries) <= set(seqs), f"{where}: lane {priority}"
        assert len(entries) == lane.count, f"{where}: lane {priority} counts {lane.count}, names {len(entries)}"
        assert not entries or 0 < lane.offered <= entries[0], f"{where}: {entries[0]} waits but is not offered"


def _check_indexes(state: State) -> None:
    """What is kept only to be found quickly says the same as what it was made of."""
    by_queue: dict[int, set[str]] = {}
    id_count = until_ms = 0
    for (number, key), answer in state.keys.items():
        assert answer.expires_ms >= until_ms, f"idempotency key {key!r} is older than the one before it"
        until_ms = answer.expires_ms
        id_count += len(answer.message_ids)
        assert number in state.queues, f"idempotency key {key!r} is of queue {number}, which is gone"
        by_queue.setdefault(number, set()).add(key)
    hidden = {outbox_name(partition): queue for partition, queue in state.outboxes.items()}
    for queue in state.queues.values():
        if queue.arriving is not None:
            found = state.arriving.get(queue.arriving)
        else:
            found = hidden.pop(queue.name) if queue.vhost == HIDDEN else state.by_name.get((queue.vhost, queue.name))
        assert found is queue, f"queue {queue.number} is not found as {queue.name!r}"
    there = sum(queue.arriving is not None for queue in state.queues.values())
    assert len(state.arriving) == there, f"{len(state.arriving)} queues are on their way here, {there} say so"
    assert not hidden, f"outboxes {list(hidden)} are gone"
    assert by_queue == state.keys.by_queue, f"keys {by_queue}, but {state.keys.by_queue} are found"
    assert id_count == state.keys.id_count, f"keys have {id_count} ids, but {state.keys.id_count} are counted"
    dedup_count = sum(len(queue.dedup) for queue in state.queues.values())
    assert dedup_count == state.dedup_count, f"{dedup_count} dedup ids, but {state.dedup_count} are counted"
    senders: dict[tuple[str, str], set[int]] = {}
    for queue in state.queues.values():
        if queue.settings.dead_letter_queue is not None:
            senders.setdefault((queue.vhost, queue.settings.dead_letter_queue), set()).add(queue.number)
    assert senders == state.senders, f"dead letters go {senders}, but {state.senders} is found"


def _check_topology(state: State) -> None:
    topology = state.topology
    declared = bound = 0
    for vhost, there in topology.exchanges.items():
        assert there, f"virtual host {vhost!r} is kept without an exchange"
        for name, exchange in there.items():
            assert (exchange.vhost, exchange.name) == (vhost, name)
            assert exchange.bindings or name not in BUILT_IN, f"{name} is kept without a binding"
            declared += name not in BUILT_IN
            bound += len(exchange.bindings)
            elsewhere = [exchange.bindings[key] for key in exchange.ids]
            for binding in exchange.bindings.values():
                end = binding.destination
                assert binding.source == name
                if binding in elsewhere:
                    pass
                elif binding.kind == "queue":
                    assert (vhost, end) in state.by_name, f"{name} is bound to queue {end}, which is gone"
                else:
                    assert topology.find(vhost, end) is not None, f"{name} is bound to exchange {end}, which is gone"
                assert binding in topology.into(vhost, binding.kind, end), f"{binding} is unknown to its destination"
    assert declared == topology.declared_count, f"{declared} exchanges, but {topology.declared_count} are counted"
    assert bound == topology.binding_count, f"{bound} bindings, but {topology.binding_count} are counted"
    assert bound == topology.arriving_count(), "a destination knows a binding that its source does not"
