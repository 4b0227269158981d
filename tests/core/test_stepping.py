"""The clock is set: what is left of every duration stays, times of day that somebody named stay times of day."""

from __future__ import annotations

from random import Random

import pytest

from laneway.core import clockwork, commands, snapshot
from laneway.core.events import ClockSet
from laneway.core.invariants import check_invariants
from laneway.core.message import Draft, Properties, Receipt, Settlement
from laneway.core.rows import NAMES_TIME, ROW
from laneway.core.state import State
from laneway.core.stepping import ClockMark, set_clock
from tests.core.runner import START_MS, Core

HOUR_MS = 3_600_000
JUMPS = [HOUR_MS, -HOUR_MS, 2 * 24 * HOUR_MS, -2 * 24 * HOUR_MS, -START_MS + 60_000]
jumps = pytest.mark.parametrize("by_ms", JUMPS)


class Stepped(Core):
    """`clock_jumps` does what the broker does when it notices one."""

    def clock_jumps(self, by_ms: int) -> None:
        was_ms, self.now_ms = self.now_ms, self.now_ms + by_ms
        self.run(iter([ClockSet(self.now_ms, was_ms, 0, "boot")]))
        check_invariants(self.state)

    def tick(self) -> None:
        self.run(clockwork.tick(self.state, self.now_ms))
        check_invariants(self.state)

    def counts(self, name: str = "q") -> tuple[int, int, int, int]:
        queue = self[name]
        return queue.ready, queue.leased, queue.delayed, len(queue.dead)

    def pass_time(self, ms: int) -> tuple[int, int, int, int]:
        self.now_ms += ms
        self.tick()
        return self.counts()


@jumps
def test_a_lease_keeps_what_was_left_of_it(by_ms: int) -> None:
    core = Stepped()
    core.put(lease_ms=30_000)
    core.fill(2)
    (_, token), _ = core.take(2)
    core.pass_time(10_000)
    core.clock_jumps(by_ms)
    assert core.pass_time(19_000) == (0, 2, 0, 0)
    _, (settled,) = core.settle(Settlement("ack", token))
    assert isinstance(settled, int)
    assert core.pass_time(999) == (0, 1, 0, 0)
    assert core.pass_time(1) == (1, 0, 0, 0)


@jumps
def test_a_delay_keeps_what_was_left_of_it(by_ms: int) -> None:
    core = Stepped()
    core.put()
    core.publish(Draft(b"x", delay_ms=60_000))
    core.pass_time(10_000)
    core.clock_jumps(by_ms)
    assert core.pass_time(49_999) == (0, 0, 1, 0)
    assert core.pass_time(1) == (1, 0, 0, 0)


@jumps
def test_a_release_with_a_delay_keeps_what_was_left_of_it_even_if_the_message_once_had_a_named_time(by_ms: int) -> None:
    core = Stepped()
    core.put()
    core.publish(Draft(b"x", visible_at_ms=START_MS + 1000))
    core.pass_time(1000)
    ((_, token),) = core.take()
    core.settle(Settlement("release", token, delay_ms=60_000))
    core.restart()  # a replay does not hear when the named time came, only that the message was leased
    core.clock_jumps(by_ms)
    assert core.pass_time(59_999) == (0, 0, 1, 0)
    assert core.pass_time(1) == (1, 0, 0, 0)


def test_a_time_of_day_that_a_publisher_named_stays() -> None:
    core = Stepped()
    core.put(message_ttl_ms=60_000)
    core.publish(Draft(b"x", visible_at_ms=START_MS + 2 * HOUR_MS))
    core.clock_jumps(-HOUR_MS)
    core.now_ms = START_MS + 2 * HOUR_MS - 1
    core.tick()
    assert core.counts() == (0, 0, 1, 0), "neither visible nor expired before its time"
    assert core.pass_time(1) == (1, 0, 0, 0)
    assert core.pass_time(59_000) == (1, 0, 0, 0)
    core.clock_jumps(HOUR_MS)  # from here on its time to live is a duration like others
    assert core.pass_time(900) == (1, 0, 0, 0)
    assert core.pass_time(10_000) == (0, 0, 0, 1), "far deadlines are up to a thousandth late"


def test_a_jump_to_a_named_time_makes_the_message_visible_and_a_jump_back_does_not_take_it_away() -> None:
    core = Stepped()
    core.put()
    core.publish(Draft(b"x", visible_at_ms=START_MS + HOUR_MS))
    core.clock_jumps(HOUR_MS)
    core.tick()
    assert core.counts() == (1, 0, 0, 0)
    core.clock_jumps(-HOUR_MS)
    assert core.counts() == (1, 0, 0, 0)
    for way in ("replay", "snapshot"):
        core.restart(way)
        assert core.counts() == (1, 0, 0, 0), f"after a start from a {way}"


@jumps
def test_a_time_to_live_keeps_what_was_left_of_it(by_ms: int) -> None:
    core = Stepped()
    core.put(message_ttl_ms=10_000)
    core.publish(b"short")
    core.publish(Draft(b"shorter", ttl_ms=5_000))
    core.pass_time(1_000)
    core.clock_jumps(by_ms)
    assert core.pass_time(3_900) == (2, 0, 0, 0)
    assert core.pass_time(200) == (1, 0, 0, 1)
    assert core.pass_time(4_800) == (1, 0, 0, 1)
    assert core.pass_time(200) == (0, 0, 0, 2)


@pytest.mark.parametrize("by_ms", JUMPS[:-1])
def test_retention_counts_days_and_not_what_the_clock_says(by_ms: int) -> None:
    day_ms = 24 * HOUR_MS
    core = Stepped()
    core.put(retention_ms=day_ms, max_receives=1, lease_ms=1000)
    core.fill(1)
    core.fill(1)
    ((_, token),) = core.take(1)
    core.settle(Settlement("reject", token))
    core.pass_time(HOUR_MS)
    core.clock_jumps(by_ms)
    assert core.pass_time(22 * HOUR_MS) == (1, 0, 0, 1)
    core.fill(1)
    assert core.pass_time(2 * HOUR_MS) == (1, 0, 0, 0), "what is older than a day went, the rest stayed"


@jumps
def test_what_is_remembered_is_remembered_for_as_long(by_ms: int) -> None:
    core = Stepped()
    core.put(dedup_window_ms=60_000)

    def is_known() -> bool:
        _, (receipt,) = core.publish(Draft(b"x", properties=_with_id("one")))
        assert isinstance(receipt, Receipt)
        return receipt.duplicate

    core.run(commands.remember_key(core.state, core["q"], "key", b"print", ["id"], core.now_ms, max_ids=10))
    assert not is_known()
    core.pass_time(10_000)
    core.clock_jumps(by_ms)
    core.pass_time(49_000)
    assert is_known()
    assert commands.check_key(core.state, core["q"], "key", b"print", core.now_ms) == ["id"]
    core.pass_time(2_000)
    assert not is_known()
    core.pass_time(commands.KEY_LIFE_MS - 62_000)
    assert commands.check_key(core.state, core["q"], "key", b"print", core.now_ms) == ["id"]
    core.pass_time(2_000)
    assert commands.check_key(core.state, core["q"], "key", b"print", core.now_ms) is None


def _with_id(dedup_id: str) -> Properties:
    return Properties(dedup_id=dedup_id)


def test_the_row_of_a_message_with_a_named_time_says_so() -> None:
    core = Stepped()
    core.put()
    core.publish(Draft(b"a", delay_ms=5), Draft(b"b", visible_at_ms=START_MS + 9), Draft(b"c", visible_at_ms=1))
    flags = [row[3] & NAMES_TIME for row in ROW.iter_unpack(core.paper.commits[-1][1])]
    assert flags == [0, NAMES_TIME, 0], "one that is long over is published like any other"


# --- at random


def act(cores: list[Stepped], random: Random) -> None:
    """The same with each of them."""
    kind = random.choice(("publish", "lease", "settle", "pass", "pass"))
    if kind == "publish":
        delay_ms = random.choice((None, None, 5_000, 20_000))
        ttl_ms = random.choice((None, None, 8_000, 30_000))
        dedup_id = random.choice(("", "", "a", "b"))
        for core in cores:
            core.publish(Draft(b"x", delay_ms=delay_ms, ttl_ms=ttl_ms, properties=_with_id(dedup_id)))
    elif kind == "lease":
        count, lease_ms = random.randint(1, 3), random.choice((1_000, 10_000))
        held = [core.take(count, lease_ms=lease_ms) for core in cores]
        if held[0] and random.random() < 0.7:
            action = random.choice(("ack", "release", "reject", "extend"))
            options = {"release": {"delay_ms": 3_000}, "extend": {"lease_ms": 15_000}}.get(action, {})
            for core, tokens in zip(cores, held, strict=True):
                core.settle(Settlement(action, tokens[0][1], **options))  # type: ignore[arg-type]
    elif kind == "pass":
        ms = random.choice((100, 1_000, 9_000))
        for core in cores:
            core.pass_time(ms)


@pytest.mark.parametrize("seed", range(40))
def test_a_history_with_jumps_goes_as_it_would_without(seed: int) -> None:
    random = Random(seed)
    plain, jumping = Stepped(), Stepped()
    for core in (plain, jumping):
        core.put(dedup_window_ms=15_000, retention_ms=60_000, max_receives=4)
    for _ in range(60):
        act([plain, jumping], random)
        if random.random() < 0.2:
            jumping.clock_jumps(random.choice((1_500, -1_500, HOUR_MS, -HOUR_MS, 48 * HOUR_MS, -48 * HOUR_MS)))
        if random.random() < 0.1:
            way = random.choice(("replay", "snapshot"))
            jumping.restart(way)
            plain.restart(way)
        for core in (plain, jumping):
            core.tick()
        assert plain.counts() == jumping.counts()
        assert len(plain["q"].dedup) == len(jumping["q"].dedup)


# --- at a start


def begun(mark: ClockMark | None, known_ms: int, now_ms: int, uptime_ms: int, boot: str) -> int:
    """By how much a start takes the clock to have been set."""
    state = State()
    state.clock, state.known_ms = mark, known_ms
    (event,) = set_clock(state, now_ms, uptime_ms, boot)
    assert (event.at_ms, event.uptime_ms, event.boot) == (now_ms, uptime_ms, boot)
    state.apply(event)
    assert state.clock == ClockMark(boot, now_ms - uptime_ms)
    return event.at_ms - event.was_ms


@pytest.mark.parametrize(
    ("mark", "known_ms", "now_ms", "uptime_ms", "boot", "jump_ms"),
    [
        (None, 0, 5_000_000, 100, "a", 0),  # the first start of all
        (ClockMark("a", 1_000_000), 1_000_500, 1_009_000, 9_000, "a", 0),  # time passed
        (ClockMark("a", 1_000_000), 1_000_500, 1_009_900, 9_000, "a", 0),  # … and clocks drift
        (ClockMark("a", 1_000_000), 1_000_500, 1_009_000 + HOUR_MS, 9_000, "a", HOUR_MS),
        (ClockMark("a", 9_000_000), 9_000_500, 9_009_000 - HOUR_MS, 9_000, "a", -HOUR_MS),
        (ClockMark("a", 1_000_000), 1_000_500, 1_000_500 + HOUR_MS, 9_000, "b", 0),  # the machine was off, nobody knows
        (ClockMark("a", 9_000_000), 9_000_500, 9_000_500 - HOUR_MS, 9_000, "b", -HOUR_MS),  # time does not go back
        (ClockMark("a", 1_000_000), 1_009_000, 1_009_000, 1_000, "a", 0),  # in a time namespace: uptime begins anew
        (ClockMark("", 1_000_000), 1_000_500, 1_009_000 + HOUR_MS, 9_000, "", 0),  # a system that does not say
    ],
)
def test_a_start_tells_time_that_passed_from_a_clock_that_was_set(
    mark: ClockMark | None, known_ms: int, now_ms: int, uptime_ms: int, boot: str, jump_ms: int
) -> None:
    assert begun(mark, known_ms, now_ms, uptime_ms, boot) == jump_ms


def test_a_snapshot_keeps_where_the_clock_stood() -> None:
    core = Stepped()
    core.run(iter([ClockSet(START_MS, START_MS, 77, "boot")]))
    state = snapshot.thaw(list(snapshot.chunks(snapshot.freeze(core.state, START_MS + 5))))
    assert (state.clock, state.known_ms) == (ClockMark("boot", START_MS - 77), START_MS + 5)
