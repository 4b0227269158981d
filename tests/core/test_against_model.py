"""The core against the plain model of model.py: whatever is done to both, both answer alike.

Two ways to the same end. Hypothesis chooses steps and shrinks a failure to the few that matter. Long walks with a
seed reach states that take hundreds of steps; a failure prints its seed and its last steps, and
`CORE_WALKS=first:last pytest tests/core/test_against_model.py -k walk` tries others.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.core.conftest import shrink
from tests.core.twin import LETTER_WAYS, NAMES, Twin, step

WALKS = range(*map(int, os.environ.get("CORE_WALKS", "0:50").split(":")))
WALK_STEPS = 250

names = st.sampled_from(NAMES)
queue_settings = st.fixed_dictionaries(
    {
        "max_priority": st.sampled_from([3, 3, 1]),
        "lease_ms": st.sampled_from([500, 5_000]),
        "retention_ms": st.sampled_from([60_000, 600_000]),
        "delay_ms": st.sampled_from([0, 0, 700]),
        "message_ttl_ms": st.sampled_from([None, None, 3_000, 40_000]),
        "max_receives": st.sampled_from([None, 1, 2, 3]),
        "max_messages": st.sampled_from([None, None, 4, 12]),
        "max_bytes": st.sampled_from([None, None, 300, 1200]),
        "overflow": st.sampled_from(["reject", "drop_oldest", "reject_dead_letter"]),
        "keep_dead": st.booleans(),
        "durable": st.sampled_from([True, True, False]),
        "fair": st.booleans(),
    }
)
queue_settings = st.builds(lambda rest, way: {**rest, **way}, queue_settings, st.sampled_from(LETTER_WAYS))
drafts = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([None, 0, 1, 2, 3, 4]),
        "size": st.sampled_from([1, 30]),
        "routing_key": st.sampled_from(["", *NAMES]),
        "group": st.sampled_from(["", "g", "h"]),
        "tenant": st.sampled_from(["t", "u", "v"]),
        "dedup_id": st.sampled_from(["", "x", "y"]),
        "delay_ms": st.sampled_from([0, 100, 2_000, 30_000]),
        "visible_in_ms": st.sampled_from([-5, 0, 1_000, 70_000]),
        "ttl_ms": st.sampled_from([0, 100, 1_500, 100_000]),
    },
)
settlements = st.one_of(
    st.fixed_dictionaries({"action": st.just("ack"), "late": st.booleans()}),
    st.fixed_dictionaries({"action": st.just("reject"), "reason": st.sampled_from(["", "bad"])}),
    st.fixed_dictionaries(
        {"action": st.just("extend"), "lease_ms": st.sampled_from([0, 100, 60_000]), "late": st.booleans()}
    ),
    st.fixed_dictionaries(
        {"action": st.just("release"), "delay_ms": st.sampled_from([0, 400, 20_000]), "backoff": st.booleans()}
    ),
)
picks = st.lists(st.integers(0, 1000), min_size=1, max_size=4)


class Machine(RuleBasedStateMachine):
    """Every rule does one thing to the core and to the model; Twin compares what they answer."""

    @initialize(first=queue_settings, second=queue_settings)
    def begin(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.twin = Twin()
        self.twin.put("a", **{k: v for k, v in first.items() if k != "dead_letter_queue"})
        self.twin.put("b", **second)

    @rule(name=names, chosen=queue_settings)
    def put(self, name: str, chosen: dict[str, Any]) -> None:
        self.twin.put(name, **chosen)

    @rule(name=names, batch=st.lists(drafts, min_size=1, max_size=6))
    def publish(self, name: str, batch: list[dict[str, Any]]) -> None:
        self.twin.publish(name, *batch)

    @rule(name=names, limit=st.integers(1, 6), lease_ms=st.sampled_from([None, 0, 900, 9_000]), named=st.booleans())
    def lease(self, name: str, limit: int, lease_ms: int | None, named: bool) -> None:
        self.twin.lease(name, limit, lease_ms, "me" if named else "")

    @rule(name=names, limit=st.integers(1, 6))
    def lease_that_is_refused(self, name: str, limit: int) -> None:
        self.twin.lease_refused(name, limit)

    @rule(chosen=st.lists(st.tuples(st.integers(0, 10), settlements), min_size=1, max_size=5), first=st.integers(0, 10))
    def settle(self, chosen: list[tuple[int, dict[str, Any]]], first: int) -> None:
        """Of the latest deliveries, in the queue of the first of them."""
        count = len(self.twin.deliveries)
        if count:
            batch = [{**entry, "delivery": max(0, count - 1 - first - back)} for back, entry in chosen]
            self.twin.settle(self.twin.deliveries[batch[0]["delivery"]][0], *batch)

    @rule(ms=st.sampled_from([1, 100, 450, 1_000, 15_000, 70_000]), tick=st.booleans())
    def pass_time(self, ms: int, tick: bool) -> None:
        self.twin.pass_time(ms)
        if tick:
            self.twin.tick()

    @rule(accepted=st.integers(0, 2))
    def tick_that_is_refused(self, accepted: int) -> None:
        self.twin.tick_refused(accepted)

    @rule(name=names, chosen=picks, to=st.sampled_from([None, *NAMES]))
    def redrive(self, name: str, chosen: list[int], to: str | None) -> None:
        self.twin.redrive(name, chosen, to)

    @rule(name=names, chosen=picks)
    def delete_dead(self, name: str, chosen: list[int]) -> None:
        self.twin.delete_dead(name, chosen)

    @rule(name=names, wanted=st.booleans())
    def bind(self, name: str, wanted: bool) -> None:
        self.twin.bind(name, wanted)

    @rule(name=names, leased=st.booleans())
    def purge(self, name: str, leased: bool) -> None:
        self.twin.purge(name, leased)

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.twin.delete(name)

    @rule(chosen=picks)
    def relocate(self, chosen: list[int]) -> None:
        self.twin.relocate(chosen)

    @rule()
    def freeze(self) -> None:
        self.twin.freeze()

    @rule(how=st.sampled_from(["follower", "replay", "snapshot"]))
    def compare(self, how: str) -> None:
        {
            "follower": self.twin.check_follower,
            "replay": self.twin.check_replay,
            "snapshot": self.twin.check_snapshot,
        }[how]()

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        if from_snapshot:
            self.twin.reopen_from_snapshot()
        else:
            self.twin.reopen()

    @invariant()
    def alike(self) -> None:
        self.twin.check()

    def teardown(self) -> None:
        if hasattr(self, "twin"):
            self.twin.tick()
            self.twin.check_follower()
            self.twin.check_replay()


# Always the same examples, so that a red run is red again; raise max_examples to look further.
SEARCH = settings(max_examples=80, stateful_step_count=40, derandomize=True, deadline=None)


def test_any_steps_answer_as_the_model_does(either_size: str) -> None:
    run_state_machine_as_test(Machine, settings=SEARCH)


@pytest.mark.parametrize("seed", WALKS)
def test_a_long_walk_answers_as_the_model_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        shrink(monkeypatch)
    twin = Twin()
    rng = random.Random(seed)
    done: list[str] = []
    twin.on_step = done.append
    try:
        for _ in range(WALK_STEPS):
            step(twin, rng)
            twin.check()
        twin.tick()
        twin.check_follower()
        twin.check_replay()
    except BaseException as failure:
        failure.add_note(f"walk {seed}, after {len(done)} steps; the last ones:\n" + "\n".join(done[-15:]))
        raise
