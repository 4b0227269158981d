"""Every metric there is: its name, its kind, its labels and what it means. docs/metrics.md says the same, as a test
makes sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from laneway.telemetry.histograms import COMMIT_BYTES, DISK_SECONDS, WAITING_SECONDS

Kind = Literal["gauge", "counter", "histogram"]

_PROCESS = ("process",)
_PARTITION = ("process", "partition")
_QUEUE = ("partition", "vhost", "queue", "tier")


class Family(NamedTuple):
    """`name` is without the _total that a counter's samples end with."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    bounds: Sequence[float] = ()  # of a histogram

    @property
    def shown_name(self) -> str:
        return f"laneway_{self.name}" + ("_total" if self.kind == "counter" else "")


FAMILIES = (
    # Processes
    Family("process_up", "gauge", _PROCESS, "1 if the process answers, 0 if not"),
    Family("process_takes_messages", "gauge", _PROCESS, "1 if the process takes messages, 0 if its state forbids it"),
    Family("process_uptime_seconds", "gauge", _PROCESS, "How long the process has been running"),
    Family("process_cpu_seconds", "counter", _PROCESS, "CPU time that the process has used"),
    Family("process_resident_bytes", "gauge", _PROCESS, "Memory that the process uses"),
    Family("process_memory_limit_bytes", "gauge", _PROCESS, "Memory above which publishers wait"),
    Family("process_slow_turns", "counter", _PROCESS, "Turns of the event loop that took 100 ms and more"),
    Family("process_slow_turn_seconds", "counter", _PROCESS, "Time that slow turns of the event loop took together"),
    Family("process_longest_turn_seconds", "gauge", _PROCESS, "The longest turn of the event loop since the start"),
    Family("connections", "gauge", (*_PROCESS, "protocol"), "Open connections; SQS comes over those of http"),
    Family("channels", "gauge", _PROCESS, "Open channels of AMQP connections"),
    Family(
        "errors",
        "counter",
        (*_PROCESS, "protocol", "cause", "code"),
        "Errors that clients were answered with; cause is client (its mistake) or server (no room, not ready, failed)",
    ),
    # Partitions
    Family("partition_led", "gauge", _PARTITION, "1 if a process that answers leads the partition, 0 if none does"),
    Family("partition_takes_messages", "gauge", _PARTITION, "1 if the partition takes messages, 0 if not"),
    Family("partition_epoch", "gauge", _PARTITION, "Number of the leadership: rises with every start"),
    Family("queues", "gauge", _PARTITION, "Queues in the partition"),
    Family("messages", "gauge", (*_PARTITION, "state"), "Messages of all queues: waiting, leased, delayed or dead"),
    Family("priority_messages", "gauge", (*_PARTITION, "priority"), "Waiting messages of all queues, by priority"),
    Family("waiting_bytes", "gauge", _PARTITION, "Size of waiting and delayed messages of all queues"),
    Family("oldest_message_age_seconds", "gauge", _PARTITION, "Age of the oldest waiting message of any queue"),
    Family(
        "consumers",
        "gauge",
        (*_PARTITION, "kind"),
        "Consumers: subscribed (messages are pushed to them) or waiting (for the answer to a request)",
    ),
    Family(
        "message_events",
        "counter",
        (*_PARTITION, "event"),
        "What became of messages of all queues since the process began, deleted queues included",
    ),
    Family(
        "operations",
        "counter",
        (*_PARTITION, "protocol", "operation"),
        "Messages that clients asked something for: publish, deliver, ack, release, reject, extend, set_aside",
    ),
    Family(
        "refused_messages",
        "counter",
        (*_PARTITION, "protocol", "code"),
        "Messages for which that was refused, by the code of the error",
    ),
    Family(
        "publish_seconds",
        "histogram",
        (*_PARTITION, "protocol"),
        "From a publish to its being durable: all messages of a commit count as having waited as long as the first",
        DISK_SECONDS,
    ),
    Family(
        "waiting_seconds",
        "histogram",
        (*_PARTITION, "protocol"),
        "From a message's publish to its first lease, delays included, by the protocol of the consumer",
        WAITING_SECONDS,
    ),
    Family(
        "processing_seconds",
        "histogram",
        (*_PARTITION, "protocol"),
        "From a lease to its ack, of a sample of messages: one from each batch that is leased",
        WAITING_SECONDS,
    ),
    Family("commit_bytes", "histogram", _PARTITION, "Size of commits", COMMIT_BYTES),
    Family(
        "commit_seconds",
        "histogram",
        _PARTITION,
        "Time to write a commit and sync it, the way to the writing thread and back included",
        DISK_SECONDS,
    ),
    Family("journal_bytes", "gauge", _PARTITION, "Disk space that the journal takes"),
    Family("disk_free_bytes", "gauge", _PARTITION, "Free space of the disk that the journal is on"),
    Family(
        "cursor_lag_commits",
        "gauge",
        (*_PARTITION, "cursor"),
        "Commits that the readers of a cursor are behind; the 100 cursors that are furthest behind",
    ),
    Family("cursor_held_bytes", "gauge", (*_PARTITION, "cursor"), "History that is kept for a cursor alone"),
    Family("cursor_lost", "gauge", (*_PARTITION, "cursor"), "1 if history that a cursor needed has been dropped"),
    Family("alarms", "gauge", (*_PARTITION, "alarm"), "Alarms of a partition that are raised, by kind"),
    # Queues
    Family("queue_messages", "gauge", (*_QUEUE, "state"), "Messages: waiting, leased, delayed, dead, dead_elsewhere"),
    Family(
        "queue_priority_messages",
        "gauge",
        (*_QUEUE, "priority"),
        "Waiting messages by priority: the 16 priorities with the most, the others together as other",
    ),
    Family("queue_waiting_bytes", "gauge", _QUEUE, "Size of waiting and delayed messages"),
    Family("queue_oldest_message_age_seconds", "gauge", _QUEUE, "Age of the oldest waiting message, 0 if none waits"),
    Family("queue_consumers", "gauge", _QUEUE, "Consumers, subscribed or waiting for the answer to a request"),
    Family("queue_message_events", "counter", (*_QUEUE, "event"), "What became of messages since the queue was made"),
    Family("other_queues", "gauge", (), "Queues that are not shown by name"),
    Family("other_queues_messages", "gauge", ("state",), "Messages in them: waiting, leased, delayed or dead"),
    Family("collect_seconds", "gauge", (), "How long it took to collect all this"),
)
