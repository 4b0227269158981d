"""Policies: what they make of settings, when a queue has them, and that it gets back what it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from laneway.broker import interface as i
from laneway.broker.policies import Policies
from laneway.broker.values import POLICIES, Policy
from laneway.core.settings import declared

from .conftest import Bench

Run = Callable[..., None]


def policy(name: str, definition: dict[str, Any], **more: Any) -> i.PutDocument:
    told = Policy(**{"kind": "policy", "vhost": "/", "pattern": ".*", **more}, name=name, definition=definition)
    return i.PutDocument(POLICIES, told.key, msgspec.json.encode(told))


def gone(name: str) -> i.RemoveDocument:
    return i.RemoveDocument(POLICIES, Policy(kind="policy", vhost="/", name=name, pattern="", definition={}).key)


def settings(b: Bench, queue: str = "q") -> Any:
    info = b.find(queue)
    assert info is not None
    return info.settings


def test_a_queue_gets_what_policies_say_and_then_back_what_it_had(run: Run) -> None:
    async def check(b: Bench) -> None:
        await b.queue(max_messages=10, overflow="drop_oldest")
        before = settings(b)
        await b.ask(policy("p", {"max-length": 4, "message-ttl": 1000, "overflow": "reject-publish"}))
        await b.turns()
        now = settings(b)
        assert (now.max_messages, now.message_ttl_ms, now.overflow, now.policy) == (4, 1000, "reject", "p")
        assert declared(now) == before
        await b.ask(policy("q", {"max-length": 20}, priority=1))
        await b.turns()
        assert (settings(b).max_messages, settings(b).message_ttl_ms, settings(b).policy) == (10, None, "q")
        await b.ask(gone("q"))
        await b.ask(gone("p"))
        await b.turns()
        assert settings(b) == before

    run(check)


def test_a_change_of_the_queue_is_one_beneath_its_policy(run: Run) -> None:
    async def check(b: Bench) -> None:
        await b.queue()
        await b.ask(policy("p", {"max-length": 4}))
        await b.turns()
        await b.ask(i.ChangeQueue("/", "q", {"max_messages": 2, "lease_ms": 1000}))
        assert (settings(b).max_messages, settings(b).lease_ms) == (2, 1000)
        await b.ask(i.ChangeQueue("/", "q", {"max_messages": None}))
        assert (settings(b).max_messages, settings(b).policy) == (4, "p")
        await b.ask(gone("p"))
        await b.turns()
        assert (settings(b).max_messages, settings(b).lease_ms) == (None, 1000)

    run(check)


def test_queues_are_given_their_policies_after_a_crash_in_between(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(b: Bench) -> None:
        for number in range(250):
            await b.queue(f"q{number}")
        with monkeypatch.context() as patched:
            patched.setattr(Policies, "changed", lambda self: None)  # the process ends before it has gone through them
            await b.ask(policy("p", {"max-length": 4}, pattern="^q.*[02468]$"))
            await b.stop()
        await b.start()
        await b.turns(8)
        named = {number for number in range(250) if settings(b, f"q{number}").policy == "p"}
        assert named == set(range(0, 250, 2))

    run(check)


def test_a_policy_is_for_the_queues_that_it_says(run: Run) -> None:
    async def check(b: Bench) -> None:
        for name, kind in (("c", "classic"), ("u", "quorum")):
            await b.queue(name, arguments={"x-queue-type": kind})
        for name, apply_to in (("all", "exchanges"), ("some", "quorum_queues")):
            await b.ask(policy(name, {"max-length": 4}, apply_to=apply_to))
        await b.turns()
        assert [settings(b, name).policy for name in "cu"] == ["", "some"]

    run(check)


def test_where_a_policy_sends_dead_letters_needs_no_key_and_a_key_needs_a_place(run: Run) -> None:
    async def check(b: Bench) -> None:
        await b.queue("dead")
        await b.queue("own", dead_letter_queue="dead")
        await b.queue("exchange", dead_letter_exchange="amq.fanout")
        await b.queue("none")
        await b.ask(policy("p", {"dead-letter-routing-key": "k"}))
        await b.turns()
        keys = [settings(b, name).dead_letter_routing_key for name in ("own", "exchange", "none")]
        assert keys == [None, "k", None]
        await b.ask(policy("p", {"dead-letter-routing-key": "k", "dead-letter-exchange": "amq.topic"}))
        await b.turns()
        told = [settings(b, name) for name in ("own", "exchange", "none")]
        assert [(s.dead_letter_exchange, s.dead_letter_routing_key) for s in told] == [
            (None, None),
            ("amq.fanout", "k"),
            ("amq.topic", "k"),
        ]

    run(check)
