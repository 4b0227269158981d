"""Histories of the real core as rows of the events table, made without the decoder: what an audit of them says is
checked against the core's own counts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

from laneway.core import commands, lease_commands, topology_commands
from laneway.core.burial import delete_dead
from laneway.core.events import Cause, Event
from laneway.core.exchanges import Binding, ExchangeSettings
from laneway.core.message import Draft, Properties, Settlement, decode_props, message_id
from laneway.pipeline.schema import spark_schema
from tests.core.runner import Core

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]


def frame(spark: SparkSession, rows: Rows) -> DataFrame:
    schema = spark_schema()
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in rows], schema)


class Recorded(Core):
    """Each command is one commit, as if nothing else happened meanwhile."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.ids: dict[int, str] = {}  # by the number that a message has or had
        self.position = 0
        super().__init__()

    def run(self, command: Iterator[Event]) -> list[Event]:
        queues = {number: (q.vhost, q.name) for number, q in self.state.queues.items()}
        events = super().run(command)
        queues |= {number: (q.vhost, q.name) for number, q in self.state.queues.items()}
        self.position += 1 if events else 0
        made = [row for event in events for row in self._rows(event, queues)]
        self.rows += [{**row, "partition": 0, "position": self.position, "index": i} for i, row in enumerate(made)]
        return events

    def _rows(self, event: Any, queues: dict[int, tuple[str, str]]) -> Iterator[dict[str, Any]]:
        kind = event.kind.name.lower()
        base: dict[str, Any] = {"kind": kind, "time": at(event.at_ms)}
        number = getattr(event, "queue", 0)
        if number:
            base |= {"queue_number": number, "vhost": queues[number][0], "queue": queues[number][1]}
        cause = getattr(event, "cause", Cause.NONE)
        if cause:
            base["reason"] = cause.name.lower()
        if kind == "published":
            for i, props in enumerate(event.props):
                properties = decode_props(props)
                seq = event.first_seq + i
                self.ids[seq] = message_id(event.at_ms, self.state.tag, seq)
                yield base | {
                    "message": seq,
                    "message_id": self.ids[seq],
                    "priority": event.priorities[i],
                    "tenant": properties.tenant or None,
                    "group": properties.group or None,
                    "visible_at": at(event.visible_at[i] or event.at_ms),
                }
            return
        if kind == "queue_purged":
            base["message"] = event.before_seq
        if not hasattr(event, "seqs"):
            yield base
            return
        for i, seq in enumerate(event.seqs):
            row = base | {"message": seq, "message_id": self.ids[seq]}
            if kind == "leased":
                row |= {"lease": event.first_lease + i, "receive_count": event.receives[i]}
            elif kind == "acked":
                row["lease"] = event.leases[i]
            elif kind == "released":
                row["visible_at"] = at(event.due_ms[i] or event.at_ms)
            elif kind in ("moved", "copied"):
                vhost, name = queues[event.target]
                self.ids[event.first_seq + i] = self.ids[seq]
                row |= {
                    "target_vhost": vhost,
                    "target_queue": name,
                    "target_queue_number": event.target,
                    "target_message": event.first_seq + i,
                }
            yield row


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


QUEUES: dict[str, dict[str, Any]] = {
    "graveyard": {"max_receives": None},
    "work": {"dead_letter_queue": "graveyard", "max_receives": 2, "lease_ms": 2_000},
    "kept": {"max_receives": 2, "lease_ms": 3_000, "retention_ms": 60_000},
    "narrow": {"overflow": "drop_oldest", "max_messages": 6, "keep_dead": False, "lease_ms": 1_000},
    "shared": {
        "dead_letter_exchange": "all",
        "message_ttl_ms": 4_000,
        "max_priority": 3,
        "lease_ms": 1_500,
        "max_receives": 1,
    },
    "brief": {"durable": False, "keep_dead": False, "message_ttl_ms": 3_000},
}


def traffic(seed: int, steps: int, *, grouped: float = 0.15) -> Recorded:
    """All kinds of operations, drawn from the seed; such a share of the messages is in a group."""
    random = Random(seed)
    core = Recorded()
    for name, settings in QUEUES.items():
        core.put(name, **settings)
    fanout = ExchangeSettings(type="fanout")
    core.run(topology_commands.declare_exchange(core.state, "/", "all", fanout, core.now_ms, max_exchanges=10))
    for name in ("graveyard", "kept"):
        binding = Binding("all", "queue", name)
        core.run(topology_commands.bind(core.state, "/", binding, core.now_ms, max_bindings=10))
    held: list[tuple[str, str]] = []
    for _ in range(steps):
        _step(core, random, held, grouped)
    return core


def _step(core: Recorded, random: Random, held: list[tuple[str, str]], grouped: float) -> None:
    core.now_ms += random.choice((0, 0, 1, 20, 300))
    names = [name for name in QUEUES if ("/", name) in core.state.by_name]
    queue = random.choice(names)
    what = random.choices(
        ("publish", "lease", "settle", "tick", "purge", "delete", "redrive", "bury", "relocate", "restart", "put"),
        (30, 25, 30, 12, 1, 0.4, 4, 2, 2, 0.5, 1),
    )[0]
    if what == "publish":
        core.publish(
            *[_draft(random, core[queue].settings.max_priority, grouped) for _ in range(random.randint(1, 8))],
            queue=queue,
        )
    elif what == "lease":
        held += [(queue, token) for _, token in core.take(random.randint(1, 6), queue)]
    elif what == "settle" and held:
        random.shuffle(held)
        queue, _ = held[-1]
        tokens = [held.pop()[1] for _ in range(random.randint(1, 4)) if held and held[-1][0] == queue]
        if ("/", queue) in core.state.by_name:
            core.settle(*[_settlement(random, token) for token in tokens], queue=queue)
    elif what == "tick":
        core.tick(random.choice((0, 500, 2_000)))
    elif what == "purge":
        core.run(commands.purge_queue(core.state, core[queue], core.now_ms))
    elif what == "delete" and queue not in ("graveyard", "work"):
        core.run(commands.delete_queue(core.state, core[queue], core.now_ms, if_empty=False))
    elif what in ("redrive", "bury"):
        dead = [*core[queue].dead, *[seq for seq in core.state.stories if random.random() < 0.3]]
        if what == "redrive":
            core.redrive(dead, queue)
        else:
            core.run(delete_dead(core.state, core[queue], dead[:2], core.now_ms))
    elif what == "relocate":
        core.relocate(core.waiting(queue)[:3])
    elif what == "restart":
        core.restart(random.choice(("replay", "snapshot")))
        core.run(topology_commands.drop_transient(core.state, core.now_ms))
        core.run(lease_commands.end_sessions(core.state, core.now_ms))
    else:
        for name, settings in QUEUES.items():
            if ("/", name) not in core.state.by_name:
                core.put(name, **settings)


def _draft(random: Random, top: int, grouped: float) -> Draft:
    chance = random.random()
    properties = Properties(
        group=random.choice("ab") if chance < grouped else "", tenant=random.choice("xy") if chance > 0.9 else ""
    )
    return Draft(
        b"x" * random.randint(1, 30),
        priority=random.choice((None, 0, 1, top)),
        properties=properties,
        delay_ms=random.choice((1, 400, 5_000)) if random.random() < 0.15 else None,
        ttl_ms=random.choice((1_000, 6_000)) if random.random() < 0.15 else None,
    )


def _settlement(random: Random, token: str) -> Settlement:
    action = random.choice(("ack", "ack", "ack", "release", "reject", "extend"))
    if action == "release":
        return Settlement(action, token, delay_ms=random.choice((0, 700)))
    if action == "extend":
        return Settlement(action, token, lease_ms=random.choice((0, 3_000)))
    return Settlement(action, token, reason="no" if action == "reject" else "")
