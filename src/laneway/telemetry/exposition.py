"""Loads as metrics in the form that Prometheus reads. Nothing is counted here: it runs when somebody asks, and beside
the loop, as very many lines take their time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from laneway.telemetry.families import FAMILIES, Family
from laneway.telemetry.histograms import Buckets
from laneway.telemetry.load import Loads, PartitionSurvey, ProcessLoad, QueueLoad

_MOST_PRIORITIES = 16  # of one queue
_TAKES = "ready"  # the state in which messages are taken

_Sample = tuple[str, tuple[object, ...], float | Buckets]  # of a family, the values of its labels


def render(loads: Loads, took_s: float, accept: str) -> tuple[bytes, str]:
    """The metrics and their content type, in the form that an Accept header asks for."""
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(_samples(loads, took_s))), content_type


class _Collected:
    """What the encoder takes its metrics from."""

    def __init__(self, samples: Iterable[_Sample]) -> None:
        self._by_family = defaultdict[str, list[_Sample]](list)
        for sample in samples:
            self._by_family[sample[0]].append(sample)

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            if family.name in self._by_family:
                yield _metric(family, self._by_family.pop(family.name))
        assert not self._by_family, f"metrics that are no family: {list(self._by_family)}"


def _metric(family: Family, samples: list[_Sample]) -> Metric:
    name = f"laneway_{family.name}"
    metric = Metric(name, family.help, family.kind)
    for _, values, value in samples:
        labels = dict(zip(family.labels, map(str, values), strict=True))
        if isinstance(value, Buckets):
            bounds = [*map(floatToGoString, family.bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(value.counts), strict=True):
                metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{name}_count", labels, sum(value.counts))
            metric.add_sample(f"{name}_sum", labels, value.total)
        else:
            metric.add_sample(family.shown_name, labels, value)
    return metric


def _samples(loads: Loads, took_s: float) -> Iterator[_Sample]:
    leaders: dict[int, object] = {}
    for process in loads.processes:
        leaders.update(dict.fromkeys(process.partitions, process.process))
        yield from _of_process(process)
    for partition in loads.partitions:
        yield from _of_partition(partition, (leaders.get(partition.partition, ""), partition.partition))
    for queue in loads.queues:
        yield from _of_queue(queue)
    yield from _of_others(loads)
    yield "collect_seconds", (), took_s


def _of_process(p: ProcessLoad) -> Iterator[_Sample]:
    own = (p.process,)
    yield "process_up", own, p.pid is not None
    yield "process_takes_messages", own, p.state == _TAKES
    if p.pid is None:
        return
    yield "process_uptime_seconds", own, p.uptime_s
    yield "process_cpu_seconds", own, p.cpu_s
    yield "process_resident_bytes", own, p.resident_bytes
    yield "process_memory_limit_bytes", own, p.memory_limit_bytes
    yield "process_slow_turns", own, p.slow_turns
    yield "process_slow_turn_seconds", own, p.slow_turns_s
    yield "process_longest_turn_seconds", own, p.longest_turn_ms / 1000
    for protocol, count in p.connections.items():
        yield "connections", (*own, protocol), count
    yield "channels", own, p.channel_count
    for protocol, cause, code, count in p.errors:
        yield "errors", (*own, protocol, cause, code), count


def _of_partition(p: PartitionSurvey, own: tuple[object, ...]) -> Iterator[_Sample]:
    yield "partition_led", own, p.meter is not None
    yield "partition_takes_messages", own, p.state == _TAKES
    if p.meter is None:
        return
    yield "partition_epoch", own, p.epoch
    yield "queues", own, p.queue_count
    for state in _STATES:
        yield "messages", (*own, state), getattr(p, state)
    for priority, count in sorted(p.waiting_by_priority.items()):
        yield "priority_messages", (*own, priority), count
    yield "waiting_bytes", own, p.waiting_bytes
    yield "oldest_message_age_seconds", own, p.oldest_age_s
    yield "consumers", (*own, "subscribed"), p.consumers
    yield "consumers", (*own, "waiting"), p.consumers_waiting
    for event, count in p.totals.items():
        yield "message_events", (*own, event), count
    for protocol, counts in p.meter.messages.items():
        for operation, count in counts.items():
            yield "operations", (*own, protocol, operation), count
    for protocol, counts in p.meter.refused.items():
        for code, count in counts.items():
            yield "refused_messages", (*own, protocol, code), count
    for name in ("publish", "waiting", "processing"):
        for protocol, buckets in getattr(p.meter, name).items():
            yield f"{name}_seconds", (*own, protocol), buckets
    yield "commit_bytes", own, p.meter.commit_bytes
    yield "commit_seconds", own, p.meter.commit_seconds
    yield "journal_bytes", own, p.journal_bytes
    if p.free_bytes is not None:
        yield "disk_free_bytes", own, p.free_bytes
    for cursor in p.cursors:
        yield "cursor_lag_commits", (*own, cursor.name), cursor.lag_commits
        yield "cursor_held_bytes", (*own, cursor.name), cursor.held_bytes
        yield "cursor_lost", (*own, cursor.name), cursor.is_lost
    for alarm, count in Counter(alarm.partition(":")[0] for alarm in p.alarms).items():
        yield "alarms", (*own, alarm), count


_STATES = ("waiting", "leased", "delayed", "dead")


def _of_queue(q: QueueLoad) -> Iterator[_Sample]:
    own = (q.partition, q.vhost, q.name, q.tier)
    for state in (*_STATES, "dead_elsewhere"):
        yield "queue_messages", (*own, state), getattr(q, state)
    for priority, count in _most(q.waiting_by_priority):
        yield "queue_priority_messages", (*own, priority), count
    yield "queue_waiting_bytes", own, q.waiting_bytes
    yield "queue_oldest_message_age_seconds", own, q.oldest_age_s or 0.0
    yield "queue_consumers", own, q.consumers + q.consumers_waiting
    for event, count in q.totals.items():
        yield "queue_message_events", (*own, event), count


def _most(by_priority: dict[int, int]) -> Sequence[tuple[object, int]]:
    found: list[tuple[object, int]] = sorted(by_priority.items(), key=lambda one: -one[1])
    rest = sum(count for _, count in found[_MOST_PRIORITIES:])
    return [*found[:_MOST_PRIORITIES], *([("other", rest)] if rest else [])]


def _of_others(loads: Loads) -> Iterator[_Sample]:
    """The queues that are not named. They and the named ones are looked at together, and still a message may have moved
    on between the two counts of it."""
    yield "other_queues", (), max(0, sum(p.queue_count for p in loads.partitions) - len(loads.queues))
    for state in _STATES:
        named = sum(getattr(queue, state) for queue in loads.queues)
        yield "other_queues_messages", (state,), max(0, sum(getattr(p, state) for p in loads.partitions) - named)
