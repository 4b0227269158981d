"""Fair queues: a tenant that holds much of what is in flight lets the others go first."""

from __future__ import annotations

import random
import time

import pytest

from laneway.core import commands
from laneway.core.invariants import check_invariants
from laneway.core.message import Draft, Properties, Settlement
from laneway.core.queue import PURGED
from laneway.core.tenants import NOISY_LEASES
from tests.core.runner import Core, dump, replay


def of(tenant: str, priority: int | None = None, **more: str) -> Draft:
    return Draft(b"x", priority, Properties(tenant=tenant, **more))


def fair(*tenants: str, **settings: object) -> Core:
    """A fair queue with messages 1, 2, … of these tenants."""
    core = Core()
    core.put(**{"fair": True, "lease_ms": 60_000, **settings})
    if tenants:
        core.publish(*map(of, tenants))
    return core


def leased(core: Core, limit: int = 10) -> list[int]:
    check_invariants(core.state)
    taken = [seq for seq, _ in core.take(limit)]
    check_invariants(core.state)
    return taken


def test_the_quiet_go_first_once_a_tenant_holds_thirty() -> None:
    core = fair(*["noisy"] * 100, "quiet", "other", "")
    assert leased(core, 29) == list(range(1, 30))
    assert leased(core, 1) == [30]
    assert leased(core, 5) == [101, 102, 103, 31, 32]


def test_one_selection_is_as_many_of_one_message() -> None:
    core = fair(*["noisy"] * 100, "quiet", "other")
    assert leased(core, 34) == [*range(1, 31), 101, 102, 31, 32]


def test_a_tenth_of_what_is_in_flight_is_not_noisy() -> None:
    core = fair(*["some"] * 30, *[f"t{n}" for n in range(270)], *["some"] * 2, "quiet")
    assert len(leased(core, 300)) == 300
    assert leased(core, 1) == [301]  # it held 30 of 300: no more than a tenth
    assert leased(core, 1) == [303]  # now 31 of 301
    assert leased(core, 1) == [302]


def test_a_tenant_is_quiet_again_when_it_holds_less() -> None:
    core = fair(*["noisy"] * 40, "quiet", "quiet")
    held = core.take(30)
    assert leased(core, 1) == [41]
    core.ack(held[0][1])
    assert leased(core, 1) == [31]
    core.settle(Settlement("release", held[1][1]))
    assert leased(core, 2) == [2, 42]


def test_leases_that_run_out_no_longer_count() -> None:
    core = fair(*["noisy"] * 40, lease_ms=1_000)
    assert len(leased(core, 35)) == 35
    core.tick(after_ms=1_000)
    core.publish(of("quiet"))
    assert leased(core, 1) == [1]


def test_a_higher_priority_goes_first_whoever_it_is_of() -> None:
    core = fair(*["noisy"] * 30)
    core.take(30)
    core.publish(of("quiet", 4), of("noisy", 9), of("quiet", 9), of("noisy", 4))
    # Numbers go by priority: 31 and 32 are the nines, 33 and 34 the fours.
    assert leased(core, 1) == [32]
    assert leased(core, 5) == [31, 33, 34]


def test_noisy_ones_go_by_number_among_themselves() -> None:
    core = fair(*["a", "b", "c"] * 30, "b", "a", "c", "b")
    assert len(leased(core, 90)) == 90
    assert leased(core) == [91, 92, 93, 94]


def test_a_message_of_a_group_keeps_to_its_group() -> None:
    core = fair(*["noisy"] * 30)
    core.take(30)
    core.publish(of("noisy"), of("noisy", group="g"), of("noisy", group="g"), of("quiet"))
    assert leased(core, 1) == [32]
    assert leased(core) == [34, 31]


def test_without_the_setting_tenants_do_not_count() -> None:
    core = fair(*["noisy"] * 40, "quiet", fair=False)
    assert core["q"].tenants is None
    assert leased(core, 41) == list(range(1, 42))


def test_made_fair_it_arranges_what_comes_from_then_on() -> None:
    core = fair(*["noisy"] * 32, fair=False)
    core.take(30)
    core.put(fair=True)
    core.publish(*map(of, ["noisy"] * 32), of("quiet"))
    assert len(leased(core, 32)) == 32  # two of no known tenant, and the first thirty of the others
    assert leased(core) == [65, 63, 64]


def test_no_longer_fair_it_goes_by_number_again() -> None:
    core = fair(*["noisy"] * 33, "quiet", "noisy")
    core.take(30)
    core.put(fair=False)
    core.publish(of("quiet"))
    assert leased(core) == [31, 32, 33, 34, 35, 36]


def test_a_fair_queue_without_tenants_hands_out_runs() -> None:
    core = fair(*[""] * 50)
    assert core["q"].tenants is None
    core.take(20)
    slab = core.state.table.slabs[0]
    assert not any(slab.flags) and not slab.tenant


def test_the_last_message_of_a_tenant_takes_it_along() -> None:
    core = fair("a", "b", "a")
    tenants = core["q"].tenants
    assert tenants is not None and set(tenants.by_name) == {"a", "b"}
    held = core.take(3)
    core.ack(held[1][1])
    assert set(tenants.by_name) == {"a"}
    core.ack(held[0][1], held[2][1])
    assert core["q"].tenants is None
    core.publish(of("c"))
    check_invariants(core.state)


@pytest.mark.parametrize("target_is_fair", [True, False])
def test_dead_letters_and_redriven_ones_keep_their_tenant(target_is_fair: bool) -> None:
    core = Core()
    core.put("dead", fair=target_is_fair)
    core.put("q", fair=True, dead_letter_queue="dead", lease_ms=60_000)
    core.publish(*map(of, ["a", "b", "", "a"]))
    core.settle(*[Settlement("reject", text) for _, text in core.take(4)])
    there = core["dead"].tenants
    assert (there is not None) == target_is_fair
    if there is not None:
        assert {t.name: t.count for t in there.by_number.values()} == {"a": 2, "b": 1}
    assert core["q"].tenants is None
    core.redrive(list(core.state.stories), "dead")
    back = core["q"].tenants
    assert back is not None and {t.name: t.count for t in back.by_number.values()} == {"a": 2, "b": 1}
    check_invariants(core.state)


def test_a_dead_letter_that_stays_belongs_to_nobody_until_it_is_redriven() -> None:
    core = fair("a", "a")
    core.settle(*[Settlement("reject", text) for _, text in core.take(2)])
    assert core["q"].tenants is None
    core.redrive(list(core["q"].dead))
    assert core["q"].tenants is not None and core["q"].tenants.by_name["a"].count == 2


def test_what_is_pushed_out_is_the_oldest_whoever_it_is_of() -> None:
    core = fair(*["a", "b", "a", "", "b"], max_messages=5, overflow="drop_oldest")
    core.publish(*map(of, ["c", "c", "c"]))
    assert list(core["q"].dead) == [1, 2, 3]
    core.publish(of("d"), of("d"))
    assert list(core["q"].dead) == [1, 2, 3, 4, 5]
    check_invariants(core.state)
    assert leased(core) == [6, 7, 8, 9, 10]


def test_what_time_takes_of_a_tenant() -> None:
    core = fair(retention_ms=60_000)
    core.publish(of("a"), Draft(b"x", None, Properties(tenant="a"), ttl_ms=1_000))
    core.publish(Draft(b"x", None, Properties(tenant="b"), delay_ms=5_000))
    core.tick(after_ms=1_100)
    assert list(core["q"].dead) == [2]
    core.tick(after_ms=4_000)
    assert core["q"].ready_by_priority() == {5: 2}
    core.tick(after_ms=56_000)
    assert core["q"].ready == 1
    core.tick(after_ms=10_000)
    assert core["q"].tenants is None
    check_invariants(core.state)


def test_purge_takes_the_waiting_ones_and_leaves_what_is_held() -> None:
    core = fair(*["a"] * 5, "b")
    held = core.take(2)
    core.run(commands.purge_queue(core.state, core["q"], core.now_ms))
    check_invariants(core.state)
    tenants = core["q"].tenants
    assert tenants is not None and (tenants.by_name["a"].count, tenants.by_name["a"].leased) == (2, 2)
    assert "b" not in tenants.by_name
    core.settle(Settlement("release", held[0][1]))
    assert leased(core) == [1]


def test_a_deep_backlog_of_tenants_is_purged_as_any_other(either_size: str) -> None:
    core = fair()
    for first in range(0, 3_000, 500):
        core.publish(*[of("ab"[n % 2], n % 3) for n in range(first, first + 500)])
    (kept, text), *_ = core.take(3)
    core.publish(*[of("c")] * 20, Draft(b"x"), of("a"))
    core.settle(Settlement("release", text, delay_ms=1_000))
    before = core.state.table.next_seq
    core.run(commands.purge_queue(core.state, core["q"], core.now_ms))
    check_invariants(core.state)
    queue = core["q"]
    assert (queue.ready, queue.delayed, queue.leased, queue.bytes_waiting) == (0, 0, 2, 0)
    assert queue.totals[PURGED] == before - 1 - 2
    core.publish(of("a"), of("c"))
    assert leased(core) == [before, before + 1] and kept < before
    check_invariants(replay(core.paper.read()))
    assert dump(replay(core.paper.read()), core.now_ms) == dump(core.state, core.now_ms)
    core.run(commands.delete_queue(core.state, queue, core.now_ms, if_empty=False))
    check_invariants(core.state)


@pytest.mark.parametrize("recover", ["replay", "snapshot"])
def test_who_is_noisy_is_known_after_a_start(recover: str) -> None:
    core = fair(*["noisy"] * 40, "quiet")
    core.take(30)
    before = dump(core.state, core.now_ms)
    core.restart(recover)
    assert {**dump(core.state, core.now_ms), "counters": 0} == {**before, "counters": 0}
    tenants = core["q"].tenants
    assert tenants is not None and [t.name for t in tenants.noisy(core["q"].leased)] == ["noisy"]
    assert leased(core, 2) == [41, 31]


def test_a_lease_that_comes_to_nothing_changes_nothing() -> None:
    core = fair(*["noisy"] * 40, "quiet")
    core.take(30)
    for _ in range(3):
        assert core.lease_refused(4) == [41, 31, 32, 33]
        check_invariants(core.state)
    assert leased(core, 4) == [41, 31, 32, 33]


def test_what_is_not_durable_is_passed_over() -> None:
    core = fair(*["noisy"] * 33, "", "quiet", "noisy")
    core.take(30)
    queue, table = core["q"], core.state.table
    for below, wanted in ((31, []), (33, [31, 32]), (35, [34, 31, 32, 33]), (36, [34, 35, 31, 32, 33])):
        seqs = queue.select(10, table, below)
        assert seqs == wanted
        queue.unselect(seqs, table)
        check_invariants(core.state)
    assert leased(core) == [34, 35, 31, 32, 33, 36]


def test_a_selection_costs_the_same_however_many_tenants_wait() -> None:
    """Each tenant has a message, and one has so many in flight that it is passed over every time."""

    def seconds(tenants: int) -> float:
        core = fair()
        core.publish(*[of("noisy")] * (NOISY_LEASES + 2_000))
        core.take(NOISY_LEASES)
        for first in range(0, tenants, 1_000):
            core.publish(*[of(f"t{n}") for n in range(first, first + 1_000)])
        queue, table = core["q"], core.state.table
        best = 1.0
        for _ in range(5):
            begin = time.perf_counter()
            seqs = queue.select(100, table)
            best = min(best, time.perf_counter() - begin)
            assert len(seqs) == 100 and min(seqs) > 2_000
            queue.unselect(seqs, table)
        return best

    assert seconds(40_000) < 8 * seconds(1_000)  # a scan would take forty times as long


def test_a_message_with_a_tenant_takes_little_memory() -> None:
    core = Core(extent_bytes=1 << 40)
    core.paper.write = lambda event: 1 << 32  # type: ignore[method-assign]
    core.put(fair=True)
    for _ in range(20):
        core.publish(*[of("noisy")] * 1_000)
    tenants = core["q"].tenants
    assert tenants is not None
    lane = tenants.by_name["noisy"].lanes[5]
    assert sum(chunk.itemsize * len(chunk) for chunk in lane.chunks) == 8 * 20_000
    assert len(tenants.heads[5]) == 1


def test_heads_that_no_longer_hold_do_not_pile_up() -> None:
    core = fair(*[f"t{n % 50}" for n in range(500)], max_receives=None)
    rng = random.Random(1)
    for _ in range(1_000):  # those that come back with ever lower numbers leave the most behind
        held = core.take(rng.randrange(1, 200))
        core.settle(*[Settlement("release", text) for _, text in reversed(held)])
    tenants = core["q"].tenants
    assert tenants is not None and len(tenants.heads[5]) < 1_200
    assert sorted(leased(core, 500)) == list(range(1, 501))
