"""Exchanges through the broker: checked and done at once, durable a little later, published through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker.values import Arrival, Binding, Draft, ExchangeSettings, Properties
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


async def publish(bench: Bench, exchange: str, key: str, draft: Draft) -> tuple[list[str], LanewayError | None]:
    """The queues it reached, and the first refusal if there was one."""
    answer: asyncio.Future[list[Arrival]] = asyncio.get_running_loop().create_future()
    names = bench.broker.exchanges.publish("/", exchange, key, draft, answer.set_result)
    arrivals = await asyncio.wait_for(answer, 5)
    assert [arrival.queue for arrival in arrivals] == names
    return names, next((one.result for one in arrivals if isinstance(one.result, LanewayError)), None)


def test_what_is_declared_is_there_at_once_and_after_a_restart(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.queue("q")
        exchanges = bench.broker.exchanges
        about = exchanges.declare("/", "x", ExchangeSettings(type="topic"))
        assert (about.name, about.settings.type, about.is_built_in, about.binding_count) == ("x", "topic", False, 0)
        binding = Binding("x", "queue", "q", "k.#", {"p": b"\xff"})
        assert exchanges.bind("/", binding) and not exchanges.bind("/", binding)
        number = bench.broker.find_queue("/", "q").number
        assert exchanges.route("/", "x", "k.l") == (number,)
        version = exchanges.version
        await bench.restart()
        exchanges = bench.broker.exchanges
        assert exchanges.route("/", "x", "k.l") == (number,)
        assert exchanges.info("/", "x") is not None and exchanges.info("/", "y") is None
        assert exchanges.bindings("/") == [binding]
        assert [route.queue for route in exchanges.explain("/", "x", "k")] == ["q"]
        assert exchanges.unbind("/", binding) and not exchanges.unbind("/", binding)
        assert exchanges.version > 0 and version > 0
        exchanges.delete("/", "x")
        with pytest.raises(ExchangeNotFound):
            exchanges.route("/", "x", "k")

    run(scenario)


def test_a_call_alone_becomes_durable(run: Run) -> None:
    """Nobody waits for it, and nothing else is written."""

    async def scenario(bench: Bench) -> None:
        position = bench.journal._writer.written
        bench.broker.exchanges.declare("/", "x", ExchangeSettings())
        for _ in range(200):
            if bench.journal._writer.written > position:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it was never written")

    run(scenario)


def test_what_is_not_durable_is_gone_after_a_restart(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        bench.broker.exchanges.declare("/", "x", ExchangeSettings(durable=False))
        bench.broker.exchanges.declare("/", "y", ExchangeSettings())
        await bench.queue("t", durable=False)
        await bench.queue("q")
        for queue in ("t", "q"):
            bench.broker.exchanges.bind("/", Binding("y", "queue", queue, "k"))
        await bench.restart()
        assert [e.name for e in bench.broker.exchanges.list("/") if not e.is_built_in] == ["y"]
        assert [b.destination for b in bench.broker.exchanges.bindings("/")] == ["q"]
        assert [q.name for q in bench.broker.queues.list(vhost="/")] == ["q"]

    run(scenario)


def test_exchanges_and_bindings_are_listed(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.queue("p")
        await bench.queue("q")
        exchanges = bench.broker.exchanges
        exchanges.declare("/", "q", ExchangeSettings(type="fanout"))
        first = Binding("amq.topic", "queue", "q", "#")
        second = Binding("amq.topic", "exchange", "q", "k")
        third = Binding("q", "queue", "p", "")
        for binding in (first, second, third):
            exchanges.bind("/", binding)
        names = [info.name for info in exchanges.list("/")]
        assert names[0] == "" and names == sorted(names) and {"amq.topic", "amq.match", "q"} <= set(names)
        assert {info.name: info.binding_count for info in exchanges.list("/")}["amq.topic"] == 2
        assert exchanges.bindings("/") == [first, second, third]
        assert exchanges.bindings("/", source="amq.topic") == [first, second]
        assert exchanges.bindings("/", destination="q") == [first, second]
        assert exchanges.bindings("/", destination="q", kind="queue") == [first]
        assert exchanges.bindings("/", source="amq.topic", destination="q", kind="exchange") == [second]
        assert exchanges.bindings("/", source="") == [Binding("", "queue", n, n) for n in ("p", "q")]
        assert exchanges.bindings("/", source="", destination="p") == [Binding("", "queue", "p", "p")]
        assert exchanges.bindings("/", source="nowhere") == exchanges.bindings("other") == []

    run(scenario)


def test_refusals(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.queue("q")
        exchanges = bench.broker.exchanges
        with pytest.raises(VhostNotFound):
            exchanges.declare("nowhere", "x", ExchangeSettings())
        with pytest.raises(VhostNotFound):
            exchanges.bind("nowhere", Binding("amq.topic", "exchange", "amq.fanout", "#"))
        exchanges.declare("/", "x", ExchangeSettings())
        with pytest.raises(ExchangeExists):
            exchanges.declare("/", "x", ExchangeSettings(type="topic"))
        with pytest.raises(LimitExceeded):
            exchanges.declare("/", "y", ExchangeSettings())
        exchanges.bind("/", Binding("x", "queue", "q", "k"))
        with pytest.raises(LimitExceeded):
            exchanges.bind("/", Binding("x", "queue", "q", "l"))
        with pytest.raises(InvalidInput):
            exchanges.explain("/", "x", "k" * 256)
        await bench.broker.stop()
        for call in (lambda: exchanges.delete("/", "x"), lambda: exchanges.unbind("/", exchanges.bindings("/")[0])):
            with pytest.raises(Unavailable):
                call()
        await bench.start()

    run(scenario, max_exchanges=1, max_bindings=1)


def test_a_deleted_virtual_host_takes_its_exchanges_along(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        bench.broker.vhosts.create("v")
        exchanges = bench.broker.exchanges
        exchanges.declare("v", "x", ExchangeSettings())
        exchanges.bind("v", Binding("amq.fanout", "exchange", "x"))
        bench.broker.vhosts.delete("v")
        bench.broker.vhosts.create("v")
        assert exchanges.info("v", "x") is None and exchanges.bindings("v") == []

    run(scenario)


# Publishing


def test_a_message_reaches_every_queue_that_its_key_and_attributes_match(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("a", "b", "c"):
            await bench.queue(name)
        exchanges = bench.broker.exchanges
        exchanges.declare("/", "x", ExchangeSettings(type="topic"))
        exchanges.bind("/", Binding("x", "queue", "a", "k.*"))
        exchanges.bind("/", Binding("x", "exchange", "amq.headers", "#"))
        exchanges.bind("/", Binding("amq.headers", "queue", "b", "", {"p": 1}))
        draft = Draft(b"1", properties=Properties(attributes={"p": 1}))
        names, refused = await publish(bench, "x", "k.l", draft)
        assert (sorted(names), refused) == (["a", "b"], None)
        for name in names:
            (delivery,) = await bench.lease(queue=name)
            assert delivery.body == b"1" and delivery.properties.attributes == {"p": 1}
            assert (delivery.properties.exchange, delivery.properties.routing_key) == ("x", "k.l")
        assert (draft.properties.exchange, draft.visible_at_ms) == ("", None), "the caller's draft stays as it was"
        assert await publish(bench, "x", "other", Draft(b"2")) == ([], None)
        assert await publish(bench, "", "c", Draft(b"3")) == (["c"], None)
        assert bodies(await bench.lease(queue="c")) == [b"3"]

    run(scenario)


def test_a_queue_that_is_full_refuses_for_itself(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.queue("full", max_messages=1)
        await bench.queue("q")
        for name in ("full", "q"):
            bench.broker.exchanges.bind("/", Binding("amq.fanout", "queue", name))
        assert await publish(bench, "amq.fanout", "", Draft(b"1")) == (["full", "q"], None)
        names, refused = await publish(bench, "amq.fanout", "", Draft(b"2"))
        assert names == ["full", "q"] and isinstance(refused, QueueFull)
        assert bodies(await bench.lease(queue="q")) == [b"1", b"2"]

    run(scenario)


def test_a_priority_above_what_a_queue_has_is_its_highest(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.queue("few", max_priority=3)
        await bench.queue("many", max_priority=200)
        for name in ("few", "many"):
            bench.broker.exchanges.bind("/", Binding("amq.fanout", "queue", name))
        assert (await publish(bench, "amq.fanout", "", Draft(b"1", priority=100)))[1] is None
        assert [d.priority for name in ("few", "many") for d in await bench.lease(queue=name)] == [3, 100]

    run(scenario)


def test_a_delayed_exchange_holds_messages_back(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.queue("q")
        bench.broker.exchanges.declare("/", "later", ExchangeSettings(type="fanout", delayed=True))
        bench.broker.exchanges.bind("/", Binding("later", "queue", "q"))

        def with_delay(body: bytes, **attributes: Any) -> Draft:
            return Draft(
                body, properties=Properties(attributes={k.replace("_", "-"): v for k, v in attributes.items()})
            )

        day_ms = 86_400_000
        assert (await publish(bench, "later", "", with_delay(b"day", x_delay=day_ms)))[1] is None
        assert (await publish(bench, "later", "", with_delay(b"now")))[1] is None
        _, refused = await publish(bench, "later", "", with_delay(b"never", x_delay=1000 * day_ms))
        assert isinstance(refused, InvalidInput)
        await publish(bench, "amq.fanout", "", with_delay(b"no such exchange", x_delay=5))
        assert bodies(await bench.lease()) == [b"now"]
        bench.pass_time(day_ms - 1)
        assert b"day" not in bodies(await bench.lease())
        bench.pass_time(1)
        assert b"day" in bodies(await bench.lease())

    run(scenario)


def test_what_cannot_be_published_to(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        exchanges = bench.broker.exchanges
        exchanges.declare("/", "inside", ExchangeSettings(internal=True))
        wrong: list[tuple[type[LanewayError], tuple[str, str, str]]] = [
            (InvalidInput, ("/", "inside", "k")),
            (ExchangeNotFound, ("/", "nowhere", "k")),
            (VhostNotFound, ("nowhere", "amq.fanout", "k")),
            (InvalidInput, ("/", "amq.fanout", "k" * 256)),
        ]
        for error, place in wrong:
            with pytest.raises(error):
                exchanges.publish(*place, Draft(b"1"), lambda _: None)

    run(scenario)
