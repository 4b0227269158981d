"""The real core and the model side by side: every step is done to both, and every answer is compared.

Beside them runs a follower: a second State that sees nothing but the stored form of the events, as a node that
recovers or a reader of the journal does.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from laneway.core import burial, commands, lease_commands, snapshot, topology_commands
from laneway.core.digits import token
from laneway.core.events import Cause, Copied, DeadLettered, Event, Moved, Released, Removed
from laneway.core.exchanges import Binding
from laneway.core.invariants import check_invariants
from laneway.core.message import Death, Draft, Properties, Receipt, Settlement, encode_props, parse_message_id
from laneway.core.publishing import MAX_SCHEDULE_MS
from laneway.core.queue import TOTALS
from laneway.core.settings import QueueSettings
from laneway.core.state import State
from laneway.core.stories import REASONS
from laneway.errors import LanewayError
from tests.core.model import Model, ModelDeath, ModelDraft, ModelSettlement
from tests.core.runner import Core, codes, dump, replay, tick_until_done

NAMES = ("a", "b", "c")
DEDUP_WINDOW_MS = 20_000
LETTER_WAYS: tuple[dict[str, str], ...] = (
    {},
    *({"dead_letter_queue": name} for name in NAMES),
    *({"dead_letter_exchange": "", "dead_letter_routing_key": name} for name in NAMES),
    {"dead_letter_exchange": ""},
    *({"dead_letter_exchange": "amq.fanout"} for name in NAMES),
    {"dead_letter_exchange": "amq.fanout", "dead_letter_routing_key": "new"},
    {"dead_letter_exchange": "not there"},
)


P = ParamSpec("P")
R = TypeVar("R")


def told(method: Callable[Concatenate[Twin, P], R]) -> Callable[Concatenate[Twin, P], R]:
    """Write down each step as the call that repeats it."""

    @wraps(method)
    def step(self: Twin, *args: P.args, **kwargs: P.kwargs) -> R:
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        self.on_step(f"twin.{method.__name__}({', '.join(given)})")
        return method(self, *args, **kwargs)

    return step


class Twin:
    def __init__(self) -> None:
        self.core = Core()
        self.model = Model()
        self.follower = State()
        self.followed = 0
        self.deliveries: list[tuple[str, str, int, int]] = []  # every one ever made: (queue, token, number, delivery)
        self.frozen: tuple[snapshot.Frozen, int] | None = None
        self.ticked = True  # nothing is due that has not been handled
        self.on_step: Callable[[str], object] = lambda _: None

    @property
    def now_ms(self) -> int:
        return self.core.now_ms

    # Steps. Each takes plain values, so that a failure can be written down as a list of calls.

    @told
    def put(self, name: str, **settings: Any) -> None:
        wanted = QueueSettings(dedup_window_ms=DEDUP_WINDOW_MS, **settings)
        if wanted.dead_letter_queue is not None and wanted.dead_letter_queue not in self.model.queues:
            return
        if wanted.dead_letter_queue == name:
            return
        self.core.put(name, dedup_window_ms=DEDUP_WINDOW_MS, **settings)
        self.model.put_queue(name, wanted)
        self.ticked = False  # a shorter retention is noticed at the next tick

    @told
    def delete(self, name: str) -> None:
        if name not in self.model.queues:
            return
        expected = self.model.delete_queue(name)
        try:
            self.core.run(commands.delete_queue(self.core.state, self.core[name], self.now_ms, if_empty=False))
            assert expected is None
        except LanewayError as refused:
            assert refused.code == expected

    @told
    def bind(self, name: str, wanted: bool) -> None:
        """Let amq.fanout lead to the queue, or no longer."""
        if name not in self.model.queues:
            return
        binding = Binding("amq.fanout", "queue", name)
        if wanted:
            self.core.run(topology_commands.bind(self.core.state, "/", binding, self.now_ms, max_bindings=9))
            self.model.bound.add(name)
        else:
            self.core.run(topology_commands.unbind(self.core.state, "/", binding, self.now_ms))
            self.model.bound.discard(name)

    @told
    def purge(self, name: str, leased: bool = False) -> None:
        if name in self.model.queues:
            self.model.purge(name, leased=leased)
            self.core.run(commands.purge_queue(self.core.state, self.core[name], self.now_ms, leased=leased))

    @told
    def publish(self, name: str, *drafts: dict[str, Any]) -> None:
        """A draft is {priority, delay_ms, visible_in_ms, ttl_ms, group, tenant, dedup_id, size}, all optional."""
        if name not in self.model.queues:
            return
        real: list[Draft] = []
        plain: list[ModelDraft] = []
        for given in drafts:
            d = dict(given)
            key = d.pop("routing_key", "")
            names = {name: d.pop(name, "") for name in ("group", "tenant", "dedup_id")}
            properties = Properties(**names, routing_key=key)
            body = b"x" * d.pop("size", 1)
            if "visible_in_ms" in d:
                d["visible_at_ms"] = self.now_ms + min(d.pop("visible_in_ms"), MAX_SCHEDULE_MS)
                d.pop("delay_ms", None)
            stored = 24 + len(encode_props(properties)) + len(body)
            real.append(Draft(body, properties=properties, **d))
            plain.append(ModelDraft(stored, **names, routing_key=key, **d))
        _, results = self.core.publish(*real, queue=name)
        answers = [(parse_message_id(r.message_id)[2], r.duplicate) if isinstance(r, Receipt) else r for r in results]
        assert codes(answers) == self.model.publish(name, plain, self.now_ms)
        self.ticked = False

    @told
    def lease(self, name: str, limit: int, lease_ms: int | None = None, consumer: str = "") -> list[int]:
        if name not in self.model.queues:
            return []
        events = self.core.lease(limit, name, lease_ms, consumer)
        given = [(seq, e.first_lease + i) for e in events for i, seq in enumerate(e.seqs)]  # type: ignore[union-attr]
        expected = self.model.lease(name, limit, lease_ms, self.now_ms)
        assert [seq for seq, _ in given] == [m.number for m in expected], "leased in another order or other messages"
        assert [r for e in events for r in e.receives] == [m.receives for m in expected]  # type: ignore[union-attr]
        for (seq, lease_id), m in zip(given, expected, strict=True):
            self.deliveries.append((name, token(lease_id, seq), seq, m.delivery))
        self.ticked = self.ticked and lease_ms != 0
        return [len(self.deliveries) - len(given) + i for i in range(len(given))]

    @told
    def lease_refused(self, name: str, limit: int) -> None:
        """A lease whose event the journal does not take: nobody gets anything, and nothing changes."""
        if name in self.model.queues:
            expected = [m.number for m in copy.deepcopy(self.model).lease(name, limit, None, self.now_ms)]
            assert self.core.lease_refused(limit, name) == expected

    @told
    def settle(self, name: str, *entries: dict[str, Any]) -> None:
        """An entry is {action, delivery: index into deliveries, …}: also of long ago, of other queues, twice."""
        if name not in self.model.queues or not self.deliveries:
            return
        real: list[Settlement] = []
        plain: list[ModelSettlement] = []
        for given in entries:
            d = dict(given)
            _, text, number, delivery = self.deliveries[d.pop("delivery") % len(self.deliveries)]
            real.append(Settlement(token=text, **d))
            plain.append(ModelSettlement(number=number, delivery=delivery, **d))
        _, results = self.core.settle(*real, queue=name)
        assert codes(results) == self.model.settle(name, plain, self.now_ms)
        self.ticked = False  # what comes back may have outlived its retention

    @told
    def redrive(self, name: str, picks: list[int], target: str | None) -> None:
        if name not in self.model.queues or (target is not None and target not in self.model.queues):
            return
        seqs = self._pick_dead_letters(name, picks)
        _, failed = self.core.redrive(seqs, name, target)
        assert failed == self.model.redrive(name, seqs, target, self.now_ms)
        self.ticked = False

    @told
    def delete_dead(self, name: str, picks: list[int]) -> None:
        if name in self.model.queues:
            seqs = self._pick_dead_letters(name, picks)
            self.core.run(burial.delete_dead(self.core.state, self.core[name], seqs, self.now_ms))
            self.model.delete_dead(name, seqs)

    def _pick_dead_letters(self, name: str, picks: list[int]) -> list[int]:
        """Mostly dead letters of the queue; sometimes a number that is none, sometimes one twice."""
        there = [m.number for m in self.model.dead_letters(name)]
        return [there[p % len(there)] if there and p % 7 else p % (self.model.next_number + 2) for p in picks]

    @told
    def relocate(self, picks: list[int]) -> None:
        here = [m.number for m in self.model.messages]
        self.core.relocate(sorted({here[p % len(here)] for p in picks if here}))

    @told
    def reopen(self) -> None:
        """A start of the node: what it keeps in memory is what the journal says, under a new epoch."""
        self.core.state = replay(self.core.paper.read())
        self.core.open()
        self.core.run(topology_commands.drop_transient(self.core.state, self.now_ms))
        self.model.restart()
        for queue in self.model.queues.values():
            del queue.totals["deduplicated"]
        self.ticked = False
        self.tick()  # as the broker does before it looks at anything

    @told
    def reopen_from_snapshot(self) -> None:
        if self.frozen is None:
            return
        frozen, covered = self.frozen
        self.frozen = None
        state = snapshot.thaw(list(snapshot.chunks(frozen)))
        self.core.state = replay(self.core.paper.read(covered), state)
        self.core.open()
        self.core.run(topology_commands.drop_transient(self.core.state, self.now_ms))
        self.model.restart()
        for queue in self.model.queues.values():
            number = self.core[queue.name].totals[TOTALS.index("deduplicated")]
            queue.totals["deduplicated"] = number  # no event counts these, so a restart forgets the last ones
        self.ticked = False
        self.tick()

    @told
    def pass_time(self, ms: int) -> None:
        self.core.now_ms += ms
        self.ticked = False

    @told
    def tick(self) -> None:
        """Until nothing is due: one tick has a limit, and what is over it comes a millisecond later."""
        while True:
            events = self.core.tick()
            self.model.ripen(self.now_ms)
            for event in events:
                self._tell_model(event)
            self.model.all_told()
            self.model.note_overdue(self.now_ms)
            late = self.model.what_is_overdue(self.now_ms)
            if not late or not events:
                break
            self.core.now_ms += 1
        assert not late, f"these should have ended by {self.now_ms}: {late}"
        self.model.all_done()
        self.ticked = True

    @told
    def tick_refused(self, accepted: int) -> None:
        """A tick of which the journal takes so many events and no more: the next one makes up for the rest."""
        events = self.core.tick_refused(accepted)
        self.model.ripen(self.now_ms)
        for event in events:
            self._tell_model(event)
        self.model.cut_short()
        self.core.now_ms += 1
        self.tick()

    def _tell_model(self, event: Event) -> None:
        numbers = list(event.seqs)  # type: ignore[union-attr]
        now_ms = self.now_ms
        if isinstance(event, Released) and event.cause == Cause.LEASE_EXPIRED:
            for number in numbers:
                self.model.lease_ran_out(number, now_ms)
        elif isinstance(event, Removed) and event.cause == Cause.RETENTION:
            self.model.outlived(numbers, now_ms)
        elif isinstance(event, DeadLettered | Moved | Removed) and event.cause in REASONS:
            target = self.core.state.queues[event.target].name if isinstance(event, Moved) else None
            is_kept = isinstance(event, DeadLettered)
            self.model.died(numbers, REASONS[event.cause], target, is_kept, now_ms)
        elif isinstance(event, Copied):
            self.model.copied(numbers, REASONS[event.cause], self.core.state.queues[event.target].name, now_ms)
        else:
            raise AssertionError(f"time alone does not do this: {event}")

    # What is compared

    def check(self) -> None:
        state, model = self.core.state, self.model
        check_invariants(state)
        assert {q.name for q in state.queues.values()} == set(model.queues)
        for name in model.queues:
            q = self.core[name]
            assert {
                "ready": q.ready,
                "leased": q.leased,
                "delayed": q.delayed,
                "dead": len(q.dead),
                "dead_elsewhere": q.dead_elsewhere,
                "waiting_bytes": q.bytes_waiting,
                "ready_by_priority": q.ready_by_priority(),
                "totals": {t: n for t, n in sorted(zip(TOTALS, q.totals, strict=True)) if n},
            } == model.counts(name)
        deaths = {m.number: m.deaths for m in model.messages if m.deaths}
        told = {
            seq: [_as_in_the_model(d, i < story.redriven) for i, d in enumerate(story.deaths)]
            for seq, story in state.stories.items()
        }
        assert told == deaths
        ways = {m.number: (m.exchange, m.routing_key) for m in model.messages if m.deaths}
        assert {seq: (story.exchange, story.routing_key) for seq, story in state.stories.items()} == ways
        records = {m.number: m.record for m in model.messages if m.record != m.number}
        assert {seq: s.record_seq for seq, s in state.stories.items() if s.record_seq != seq} == records
        numbers: dict[int, list[int]] = {}
        for number, record in records.items():
            numbers.setdefault(record, []).append(number)
        assert state.moved == {record: max(of_record) for record, of_record in numbers.items()}
        assert state.copies == {record: sorted(several) for record, several in numbers.items() if len(several) > 1}

    @told
    def check_follower(self) -> None:
        """The stored form of the events, applied to another state, makes the same state."""
        self._be_up_to_date()
        for event in self.core.paper.read(self.followed):
            self.follower.apply(event)
        self.followed = len(self.core.paper.commits)
        self._compare(self.follower, "a follower")

    @told
    def check_replay(self) -> None:
        """All events from the beginning make the same state."""
        self._be_up_to_date()
        self._compare(replay(self.core.paper.read()), "a replay")

    @told
    def freeze(self) -> None:
        if self.frozen is None:
            self.frozen = snapshot.freeze(self.core.state), len(self.core.paper.commits)

    @told
    def check_snapshot(self) -> None:
        """A snapshot frozen a while ago, written only now, and the events since then make the same state."""
        if self.frozen is not None:
            self._be_up_to_date()
            frozen, covered = self.frozen
            self.frozen = None
            thawed = snapshot.thaw(list(snapshot.chunks(frozen)))
            self._compare(replay(self.core.paper.read(covered), thawed), "a snapshot with its events")

    def _be_up_to_date(self) -> None:
        """No event tells that a delay ended: two states are alike once time has done its work on both."""
        if not self.ticked:
            self.tick()

    def _compare(self, other: State, what: str) -> None:
        def refuse(command: Iterator[Event]) -> list[Event]:
            more = next(command, None)
            assert more is None, f"{what} finds due what the live state does not: {more}"
            return []

        tick_until_done(other, self.now_ms, refuse)
        check_invariants(other)
        assert dump(other, self.now_ms) == dump(self.core.state, self.now_ms), f"{what} differs"
        if other is not self.follower:
            self._compare_to_the_end(other)

    def _compare_to_the_end(self, other: State) -> None:
        """Lease all there is from the other state and from the model's copy: the order is the same to the end."""
        model = copy.deepcopy(self.model)
        limit = 1 + self.now_ms % 4
        for name in model.queues:
            for _ in range(1000):
                queue = other.by_name["/", name]
                given: list[int] = []
                for event in lease_commands.lease(other, [(queue, limit)], 1000, "", self.now_ms):
                    other.apply(event)
                    given += event.seqs
                assert given == [m.number for m in model.lease(name, limit, 1000, self.now_ms)]
                if not given:
                    break
        check_invariants(other)


def _as_in_the_model(d: Death, is_over: bool) -> ModelDeath:
    assert d.routing_keys is None or len(d.routing_keys) == 1
    key = d.routing_keys[0] if d.routing_keys else None
    return ModelDeath(
        d.queue, d.reason, d.at_ms, d.receives, d.detail, d.count, d.first_at_ms, d.is_first, d.exchange, key, is_over
    )


def random_settings(rng: random.Random) -> dict[str, Any]:
    return {
        "max_priority": rng.choice([3, 3, 1]),
        "lease_ms": rng.choice([500, 5_000]),
        "retention_ms": rng.choice([60_000, 60_000, 600_000]),
        "delay_ms": rng.choice([0, 0, 0, 700]),
        "message_ttl_ms": rng.choice([None, None, None, 3_000, 40_000]),
        "max_receives": rng.choice([None, 1, 2, 3]),
        **rng.choice(LETTER_WAYS),
        "keep_dead": rng.random() < 0.6,
        "durable": rng.random() < 0.9,
        "max_messages": rng.choice([None, None, 4, 12]),
        "max_bytes": rng.choice([None, None, 300, 1200]),
        "overflow": rng.choice(["reject", "drop_oldest", "drop_oldest", "reject_dead_letter"]),
        "fair": rng.random() < 0.6,
    }


def random_draft(rng: random.Random) -> dict[str, Any]:
    d: dict[str, Any] = {"priority": rng.choice([None, 0, 1, 1, 2, 3, 4]), "size": rng.choice([1, 1, 30])}
    if rng.random() < 0.5:
        d["routing_key"] = rng.choice([*NAMES, "nowhere"])
    if rng.random() < 0.3:
        d["group"] = rng.choice(["g", "h"])
    if rng.random() < 0.6:
        d["tenant"] = rng.choice("ttttuuvw")
    if rng.random() < 0.1:
        d["dedup_id"] = rng.choice(["x", "y", "z"])
    if rng.random() < 0.15:
        d["delay_ms"] = rng.choice([0, 100, 2_000, 30_000])
    elif rng.random() < 0.1:
        d["visible_in_ms"] = rng.choice([-5, 0, 1_000, 70_000, 200_000])
    if rng.random() < 0.25:
        d["ttl_ms"] = rng.choice([0, 100, 1_500, 10_000, 100_000])
    return d


def random_settlement(rng: random.Random, recent: int, total: int) -> dict[str, Any]:
    at = rng.randrange(total) if rng.random() < 0.15 else max(0, total - 1 - rng.randrange(max(1, recent)))
    action = rng.choice(["ack", "ack", "ack", "release", "release", "reject", "extend"])
    d: dict[str, Any] = {"action": action, "delivery": at}
    if action == "release":
        d["delay_ms"] = rng.choice([0, 0, 400, 20_000])
        d["backoff"] = rng.random() < 0.2
    elif action == "reject":
        d["reason"] = rng.choice(["", "bad", "worse"])
    elif action == "extend":
        d["lease_ms"] = rng.choice([0, 0, 100, 3_000, 60_000])
    if rng.random() < 0.2:
        d["late"] = True
    return d


def step(twin: Twin, rng: random.Random) -> None:
    """One random step, weighted so that queues neither stay empty nor only grow."""
    name = rng.choice(NAMES)
    choice = rng.random()
    if not twin.model.queues or choice < 0.03:
        twin.put(name, **random_settings(rng))
        twin.bind(rng.choice(NAMES), rng.random() < 0.8)
    elif choice < 0.30:
        twin.publish(name, *[random_draft(rng) for _ in range(rng.choice([1, 1, 2, 5, 9]))])
    elif choice < 0.52:
        if rng.random() < 0.8:
            twin.tick()
        if rng.random() < 0.05:
            twin.lease_refused(name, rng.choice([1, 3, 7]))
        twin.lease(name, rng.choice([1, 1, 2, 3, 7]), rng.choice([None, None, 0, 900, 9_000]), rng.choice(["", "me"]))
    elif choice < 0.74 and twin.deliveries:
        total = len(twin.deliveries)
        batch = [random_settlement(rng, 12, total) for _ in range(rng.choice([1, 1, 3, 6]))]
        twin.settle(twin.deliveries[batch[0]["delivery"]][0] if rng.random() < 0.95 else name, *batch)
    elif choice < 0.84:
        twin.pass_time(rng.choice([0, 1, 10, 450, 1_000, 4_000, 15_000, 70_000]))
        if rng.random() < 0.7:
            twin.tick()
        elif rng.random() < 0.2:
            twin.tick_refused(rng.choice([0, 1, 3]))
    elif choice < 0.88:
        picks = [rng.randrange(1000) for _ in range(rng.choice([1, 3]))]
        twin.redrive(name, picks, rng.choice([None, None, *NAMES]))
    elif choice < 0.90:
        twin.delete_dead(name, [rng.randrange(1000) for _ in range(rng.choice([1, 3]))])
    elif choice < 0.91:
        twin.purge(name)
    elif choice < 0.915:
        twin.delete(name)
    elif choice < 0.93:
        twin.relocate([rng.randrange(1000) for _ in range(3)])
    elif choice < 0.95:
        twin.freeze()
    elif choice < 0.965:
        twin.check_snapshot()
    elif choice < 0.975:
        twin.check_replay()
    elif choice < 0.99:
        twin.check_follower()
    elif choice < 0.995:
        twin.reopen()
    else:
        twin.reopen_from_snapshot()
