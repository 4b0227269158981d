"""Exchanges through the broker: checked and done at once, durable a little later, published through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker import interface as i
from laneway.broker.values import Arrival, Binding, Draft, ExchangeSettings, Properties, Receipts
from laneway.core.message import messages_of
from laneway.errors import (
    ExchangeExists,
    ExchangeNotFound,
    InvalidInput,
    LanewayError,
    LimitExceeded,
    QueueFull,
    Unavailable,
    VhostNotFound,
)

from .conftest import Bench, bodies

Run = Callable[..., None]


async def publish(b: Bench, exchange: str, key: str, draft: Draft) -> tuple[list[str], LanewayError | None]:
    """The queues it reached, and the first refusal if there was one."""
    queues, routed = b.partition.exchanges.targets("/", exchange, key, draft)
    numbers = tuple(queue.number for queue in queues)
    arrivals: list[Arrival] = await b.ask(i.Publish(numbers, messages_of([routed], clamps=True)))
    assert tuple(arrival.queue for arrival in arrivals) == numbers
    told = [one.result.each()[0] for one in arrivals if isinstance(one.result, Receipts)]
    return [queue.name for queue in queues], next((one for one in told if isinstance(one, LanewayError)), None)


def test_what_is_declared_is_there_at_once_and_after_a_restart(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("q")
        about = await b.ask(i.DeclareExchange("/", "x", ExchangeSettings(type="topic")))
        assert (about.name, about.settings.type, about.is_built_in, about.binding_count) == ("x", "topic", False, 0)
        binding = Binding("x", "queue", "q", "k.#", {"p": b"\xff"})
        assert await b.ask(i.Bind("/", binding)) and not await b.ask(i.Bind("/", binding))
        number = b.id("q")
        assert b.topology.route("/", "x", "k.l") == (number,)
        version = b.topology.version
        await b.restart()
        assert b.topology.route("/", "x", "k.l") == (number,)
        assert b.topology.exchange("/", "x") is not None and b.topology.exchange("/", "y") is None
        assert b.topology.bindings("/") == [binding]
        assert [route.queue for route in b.topology.explain("/", "x", "k")] == ["q"]
        assert await b.ask(i.Unbind("/", binding)) and not await b.ask(i.Unbind("/", binding))
        assert b.topology.version > 0 and version > 0
        await b.ask(i.DeleteExchange("/", "x"))
        with pytest.raises(ExchangeNotFound):
            b.topology.route("/", "x", "k")

    run(scenario)


def test_a_call_alone_becomes_durable(run: Run) -> None:
    """Nobody waits for it, and nothing else is written."""

    async def scenario(b: Bench) -> None:
        position = b.journal._writer.written
        b.send(i.DeclareExchange("/", "x", ExchangeSettings()))
        for _ in range(200):
            if b.journal._writer.written > position:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it was never written")

    run(scenario)


def test_what_is_not_durable_is_gone_after_a_restart(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(i.DeclareExchange("/", "x", ExchangeSettings(durable=False)))
        await b.ask(i.DeclareExchange("/", "y", ExchangeSettings()))
        await b.queue("t", durable=False)
        await b.queue("q")
        for queue in ("t", "q"):
            await b.ask(i.Bind("/", Binding("y", "queue", queue, "k")))
        await b.restart()
        assert [e.name for e in b.topology.exchanges("/") if not e.is_built_in] == ["y"]
        assert [b.destination for b in b.topology.bindings("/")] == ["q"]
        assert [q.name for q in b.topology.queues(vhost="/")] == ["q"]

    run(scenario)


def test_exchanges_and_bindings_are_listed(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("p")
        await b.queue("q")
        await b.ask(i.DeclareExchange("/", "q", ExchangeSettings(type="fanout")))
        first = Binding("amq.topic", "queue", "q", "#")
        second = Binding("amq.topic", "exchange", "q", "k")
        third = Binding("q", "queue", "p", "")
        for binding in (first, second, third):
            await b.ask(i.Bind("/", binding))
        names = [info.name for info in b.topology.exchanges("/")]
        assert names[0] == "" and names == sorted(names) and {"amq.topic", "amq.match", "q"} <= set(names)
        assert {info.name: info.binding_count for info in b.topology.exchanges("/")}["amq.topic"] == 2
        assert b.topology.bindings("/") == [first, second, third]
        assert b.topology.bindings("/", source="amq.topic") == [first, second]
        assert b.topology.bindings("/", destination="q") == [first, second]
        assert b.topology.bindings("/", destination="q", kind="queue") == [first]
        assert b.topology.bindings("/", source="amq.topic", destination="q", kind="exchange") == [second]
        assert b.topology.bindings("/", source="") == [Binding("", "queue", n, n) for n in ("p", "q")]
        assert b.topology.bindings("/", source="", destination="p") == [Binding("", "queue", "p", "p")]
        assert b.topology.bindings("/", source="nowhere") == b.topology.bindings("other") == []

    run(scenario)


def test_refusals(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("q")
        with pytest.raises(VhostNotFound):
            await b.ask(i.DeclareExchange("nowhere", "x", ExchangeSettings()))
        with pytest.raises(VhostNotFound):
            await b.ask(i.Bind("nowhere", Binding("amq.topic", "exchange", "amq.fanout", "#")))
        await b.ask(i.DeclareExchange("/", "x", ExchangeSettings()))
        with pytest.raises(ExchangeExists):
            await b.ask(i.DeclareExchange("/", "x", ExchangeSettings(type="topic")))
        with pytest.raises(LimitExceeded):
            await b.ask(i.DeclareExchange("/", "y", ExchangeSettings()))
        await b.ask(i.Bind("/", Binding("x", "queue", "q", "k")))
        with pytest.raises(LimitExceeded):
            await b.ask(i.Bind("/", Binding("x", "queue", "q", "l")))
        with pytest.raises(InvalidInput):
            b.topology.explain("/", "x", "k" * 256)
        await b.stop()
        for request in (i.DeleteExchange("/", "x"), i.Unbind("/", b.topology.bindings("/")[0])):
            with pytest.raises(Unavailable):
                await b.ask(request)
        await b.start()

    run(scenario, max_exchanges=1, max_bindings=1)


def test_a_deleted_virtual_host_takes_its_exchanges_along(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(i.CreateVhost("v"))
        await b.ask(i.DeclareExchange("v", "x", ExchangeSettings()))
        await b.ask(i.Bind("v", Binding("amq.fanout", "exchange", "x")))
        await b.ask(i.DeleteVhost("v"))
        await b.ask(i.CreateVhost("v"))
        assert b.topology.exchange("v", "x") is None and b.topology.bindings("v") == []

    run(scenario)


# Publishing


def test_a_message_reaches_every_queue_that_its_key_and_attributes_match(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("a", "b", "c"):
            await b.queue(name)
        await b.ask(i.DeclareExchange("/", "x", ExchangeSettings(type="topic")))
        await b.ask(i.Bind("/", Binding("x", "queue", "a", "k.*")))
        await b.ask(i.Bind("/", Binding("x", "exchange", "amq.headers", "#")))
        await b.ask(i.Bind("/", Binding("amq.headers", "queue", "b", "", {"p": 1})))
        draft = Draft(b"1", properties=Properties(attributes={"p": 1}))
        names, refused = await publish(b, "x", "k.l", draft)
        assert (sorted(names), refused) == (["a", "b"], None)
        for name in names:
            (delivery,) = await b.lease(queue=name)
            assert delivery.body == b"1" and delivery.properties.attributes == {"p": 1}
            assert (delivery.properties.exchange, delivery.properties.routing_key) == ("x", "k.l")
        assert (draft.properties.exchange, draft.visible_at_ms) == ("", None), "the caller's draft stays as it was"
        assert await publish(b, "x", "other", Draft(b"2")) == ([], None)
        assert await publish(b, "", "c", Draft(b"3")) == (["c"], None)
        assert bodies(await b.lease(queue="c")) == [b"3"]

    run(scenario)


def test_a_queue_that_is_full_refuses_for_itself(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("full", max_messages=1)
        await b.queue("q")
        for name in ("full", "q"):
            await b.ask(i.Bind("/", Binding("amq.fanout", "queue", name)))
        assert await publish(b, "amq.fanout", "", Draft(b"1")) == (["full", "q"], None)
        names, refused = await publish(b, "amq.fanout", "", Draft(b"2"))
        assert names == ["full", "q"] and isinstance(refused, QueueFull)
        assert bodies(await b.lease(queue="q")) == [b"1", b"2"]

    run(scenario)


def test_a_priority_above_what_a_queue_has_is_its_highest(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("few", max_priority=3)
        await b.queue("many", max_priority=200)
        for name in ("few", "many"):
            await b.ask(i.Bind("/", Binding("amq.fanout", "queue", name)))
        assert (await publish(b, "amq.fanout", "", Draft(b"1", priority=100)))[1] is None
        assert [d.priority for name in ("few", "many") for d in await b.lease(queue=name)] == [3, 100]

    run(scenario)


def test_a_delayed_exchange_holds_messages_back(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("q")
        await b.ask(i.DeclareExchange("/", "later", ExchangeSettings(type="fanout", delayed=True)))
        await b.ask(i.Bind("/", Binding("later", "queue", "q")))

        def with_delay(body: bytes, **attributes: Any) -> Draft:
            return Draft(
                body, properties=Properties(attributes={k.replace("_", "-"): v for k, v in attributes.items()})
            )

        day_ms = 86_400_000
        assert (await publish(b, "later", "", with_delay(b"day", x_delay=day_ms)))[1] is None
        assert (await publish(b, "later", "", with_delay(b"now")))[1] is None
        _, refused = await publish(b, "later", "", with_delay(b"never", x_delay=1000 * day_ms))
        assert isinstance(refused, InvalidInput)
        await publish(b, "amq.fanout", "", with_delay(b"no such exchange", x_delay=5))
        assert bodies(await b.lease()) == [b"now"]
        b.pass_time(day_ms - 1)
        assert b"day" not in bodies(await b.lease())
        b.pass_time(1)
        assert b"day" in bodies(await b.lease())

    run(scenario)


def test_what_cannot_be_published_to(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(i.DeclareExchange("/", "inside", ExchangeSettings(internal=True)))
        wrong: list[tuple[type[LanewayError], tuple[str, str, str]]] = [
            (InvalidInput, ("/", "inside", "k")),
            (ExchangeNotFound, ("/", "nowhere", "k")),
            (VhostNotFound, ("nowhere", "amq.fanout", "k")),
            (InvalidInput, ("/", "amq.fanout", "k" * 256)),
        ]
        for error, place in wrong:
            with pytest.raises(error):
                b.partition.exchanges.targets(*place, Draft(b"1"))

    run(scenario)
