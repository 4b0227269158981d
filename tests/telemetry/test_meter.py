"""Histograms, and what a partition counts and times."""

from __future__ import annotations

from laneway.telemetry.histograms import Histogram
from laneway.telemetry.load import Choice, QueueLoad, chosen, pattern_of
from laneway.telemetry.meter import MAX_FOLLOWED, TIMED_EVERY_S, Meter


class _Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_value_at_a_bound_is_counted_below_it() -> None:
    histogram = Histogram((1.0, 10.0))
    for value, count in ((1.0, 2), (1.5, 1), (10.0, 1), (11.0, 3)):
        histogram.add(value, count)
    assert histogram.buckets().counts == [2, 2, 3]
    assert histogram.buckets().total == 2 + 1.5 + 10 + 33


def test_times_of_a_batch_are_counted_as_each_alone_would_be() -> None:
    times_ms = [1_000, 9_000, 9_990, 10_000, 9_999, 5_000]
    together, alone = Histogram((0.001, 0.5, 1.0, 5.0)), Histogram((0.001, 0.5, 1.0, 5.0))
    together.add_since(10_000, times_ms)
    for at_ms in times_ms:
        alone.add((10_000 - at_ms) / 1000)
    assert together.buckets().counts == alone.buckets().counts == [2, 1, 1, 1, 1]
    assert together.buckets().total == alone.buckets().total
    same = Histogram((0.001, 0.5))
    same.add_since(10_000, [9_900, 9_800])
    assert same.buckets().counts == [0, 2, 0]


def test_messages_between_two_timed_commits_are_counted_with_the_second() -> None:
    now = _Time()
    meter = Meter(now)
    meter.messages["http", "publish"] += 3
    meter.committed(100, began_s=now.now_s - 0.2, sealed_s=now.now_s - 0.002)
    assert meter.commit_due_s == now.now_s + TIMED_EVERY_S
    meter.messages["http", "publish"] += 5  # with a commit that is not timed
    meter.messages["amqp", "publish"] += 7
    now.now_s += 1
    meter.committed(100, began_s=now.now_s - 0.002, sealed_s=now.now_s - 0.001)
    found = meter.reading()
    assert sum(found.publish["http"].counts) == 8 and sum(found.publish["amqp"].counts) == 7
    assert found.publish["http"].counts[8] == 3  # up to 0.25 s
    assert sum(found.commit_seconds.counts) == sum(found.commit_bytes.counts) == 2


def test_only_first_deliveries_count_as_waiting() -> None:
    meter = Meter(_Time())
    meter.leased("amqp", [1, 2, 3], [1, 4, 1], [9_000, 1_000, 9_500], 10_000)
    assert sum(meter.reading().waiting["amqp"].counts) == 2
    meter.leased("amqp", [2], [5], [1_000], 10_000)
    assert sum(meter.reading().waiting["amqp"].counts) == 2


def test_followed_message_is_timed_until_its_ack_and_not_if_it_goes_back() -> None:
    now = _Time()
    meter = Meter(now)
    meter.leased("sqs", [7], [1], [0], 0)
    meter.leased("sqs", [8], [1], [0], 0)
    now.now_s += 31
    meter.let_go([8])
    meter.acked(range(1, 100))
    found = meter.reading().processing["sqs"]
    assert found.counts[11] == 1 and sum(found.counts) == 1  # 30 s to a minute
    assert not meter.followed


def test_no_more_are_followed_than_there_is_room_for() -> None:
    now = _Time()
    meter = Meter(now)
    for seq in range(MAX_FOLLOWED + 10):
        meter.leased("http", [seq], [1], [0], 0)
    assert len(meter.followed) == MAX_FOLLOWED
    now.now_s += 5 * 3600  # whatever became of those
    meter.leased("http", [1 << 20], [1], [0], 0)
    assert list(meter.followed) == [1 << 20]


def test_what_nobody_asked_for_is_not_shown() -> None:
    meter = Meter(_Time())
    meter.messages["", "publish"] += 1
    meter.refused("", "disk_full")
    assert (meter.reading().messages, meter.reading().refused) == ({}, {})


def _queue(name: str, *, waiting: int = 0, dead: int = 0, rate: float = 0.0) -> QueueLoad:
    return QueueLoad(
        vhost="/",
        name=name,
        partition=0,
        tier="normal",
        waiting=waiting,
        leased=0,
        delayed=0,
        dead=dead,
        dead_elsewhere=0,
        waiting_bytes=0,
        oldest_age_s=None,
        consumers=0,
        consumers_waiting=0,
        waiting_by_priority={},
        totals={},
        published_per_second=rate,
        delivered_per_second=0.0,
        acked_per_second=0.0,
    )


def test_queues_are_chosen_by_rank_and_by_name() -> None:
    queues = [_queue("deep", waiting=9), _queue("deeper", waiting=10), _queue("dead", dead=1), _queue("orders.eu")]
    choice = Choice(rankings={"depth": 1, "dead": 5}, pattern=pattern_of("orders.*, x"))
    assert sorted(one.name for one in chosen(queues, choice)) == ["dead", "deeper", "orders.eu"]
    assert chosen(queues, Choice()) == []
    busy = [_queue("slow", rate=1.0), _queue("quick", rate=2.0)]
    assert [one.name for one in chosen(busy, Choice(rankings={"rate": 2}))] == ["quick", "slow"]


def test_names_in_a_setting_are_texts_with_two_wild_cards() -> None:
    def fits(names: str, name: str) -> bool:
        found = Choice(pattern=pattern_of(names)).names
        return found is not None and found.search(f"/\n{name}") is not None

    assert fits("a.b", "a.b") and not fits("a.b", "axb") and not fits("a.b", "xa.b") and not fits("a.b", "a.bc")
    assert fits("*.b", "a\n.b") and fits("a?c, d", "abc") and fits("a?c, d", "d") and not fits("a?c", "ac")
    assert pattern_of(None) is pattern_of(" , ") is None
