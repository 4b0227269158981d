"""aio-pika: robust connections, confirms, iterators, transactions, and its own patterns RPC and Master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError, QueueEmpty
from aio_pika.patterns import RPC, Master

Name = Callable[[str], str]
WAIT_S = 15.0


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await work

    asyncio.run(bounded())


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AbstractRobustChannel]:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel(**options)
        yield channel  # type: ignore[misc]


def test_a_message_goes_there_and_back(broker_url: str, queue: str) -> None:
    async def work() -> None:
        async with opened(broker_url) as channel:
            declared = await channel.declare_queue(queue, durable=True)
            headers = {"double": 2.5, "big": 2**50, "text": "grüße", "list": [1, "a", None], "table": {"x": True}}
            message = aio_pika.Message(
                b"hello", headers=headers, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, priority=3, expiration=60
            )
            await channel.default_exchange.publish(message, queue)
            got = await declared.get()
            assert (got.body, dict(got.headers), got.priority, got.expiration) == (b"hello", headers, 3, 60)
            await got.ack()
            with pytest.raises(QueueEmpty):
                await declared.get()

    run(work())


def test_many_are_published_at_once_and_each_is_confirmed(broker_url: str, queue: str) -> None:
    async def work() -> None:
        async with opened(broker_url) as channel:
            declared = await channel.declare_queue(queue, durable=True)
            publishing = [
                channel.default_exchange.publish(aio_pika.Message(str(number).encode()), queue) for number in range(300)
            ]
            await asyncio.gather(*publishing)
            assert (await declared.purge()).message_count == 300

    run(work())


def test_an_iterator_takes_messages_in_order(broker_url: str, queue: str) -> None:
    async def work() -> None:
        async with opened(broker_url) as channel:
            await channel.set_qos(prefetch_count=5)
            declared = await channel.declare_queue(queue, arguments={"x-max-priority": 10})
            for priority in (1, 9, 5, 9):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % priority, priority=priority), queue)
            taken = []
            async with declared.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        taken.append(message.body)
                    if len(taken) == 4:
                        break
            assert taken == [b"9", b"9", b"5", b"1"]

    run(work())


def test_a_failed_process_rejects_into_the_dead_letters(broker_url: str, name: Name) -> None:
    async def work() -> None:
        async with opened(broker_url) as channel:
            dead = await channel.declare_queue(name("dead"))
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("dead")}
            declared = await channel.declare_queue(name("queue"), arguments=arguments)
            await channel.default_exchange.publish(aio_pika.Message(b"bad"), name("queue"))
            message = await declared.get()
            with pytest.raises(ZeroDivisionError):
                async with message.process():
                    raise ZeroDivisionError
            arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
            await dead.consume(arrived.put, no_ack=True)
            assert (await arrived.get()).headers["x-death"][0]["reason"] == "rejected"

    run(work())


def test_an_unroutable_message_raises(broker_url: str, queue: str) -> None:
    async def work() -> None:
        async with opened(broker_url, on_return_raises=True) as channel:
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"?"), queue, mandatory=True)

    run(work())


def test_a_nack_raises(broker_url: str, queue: str) -> None:
    async def work() -> None:
        async with opened(broker_url) as channel:
            await channel.declare_queue(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            await channel.default_exchange.publish(aio_pika.Message(b"1"), queue)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"2"), queue)

    run(work())


def test_another_declaration_raises_and_the_connection_goes_on(broker_url: str, queue: str) -> None:
    async def work() -> None:
        connection = await aio_pika.connect(broker_url)
        async with connection:
            channel = await connection.channel()
            await channel.declare_queue(queue, durable=True)
            with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
                await channel.declare_queue(queue, durable=False)
            again = await (await connection.channel()).declare_queue(queue, durable=True)
            assert again.name == queue

    run(work())


def test_a_transaction_commits_or_rolls_back_as_a_whole(broker_url: str, queue: str) -> None:
    async def work() -> None:
        async with opened(broker_url, publisher_confirms=False) as channel:
            declared = await channel.declare_queue(queue)
            async with channel.transaction():
                for body in (b"1", b"2"):
                    await channel.default_exchange.publish(aio_pika.Message(body), queue)
            with pytest.raises(ZeroDivisionError):
                async with channel.transaction():
                    await channel.default_exchange.publish(aio_pika.Message(b"3"), queue)
                    raise ZeroDivisionError
            assert [(await declared.get(no_ack=True)).body for _ in range(2)] == [b"1", b"2"]
            with pytest.raises(QueueEmpty):
                await declared.get()

    run(work())


def test_topics_reach_bound_queues(broker_url: str, name: Name) -> None:
    async def work() -> None:
        async with opened(broker_url) as channel:
            exchange = await channel.declare_exchange(name("exchange"), aio_pika.ExchangeType.TOPIC, auto_delete=True)
            declared = await channel.declare_queue(exclusive=True)
            await declared.bind(exchange, "orders.*")
            await exchange.publish(aio_pika.Message(b"no"), "bills.new")
            await exchange.publish(aio_pika.Message(b"yes"), "orders.new")
            message = await declared.get(no_ack=True)
            assert (message.body, message.routing_key, message.exchange) == (b"yes", "orders.new", name("exchange"))

    run(work())


def test_calls_of_its_rpc_pattern_are_answered(broker_url: str, name: Name) -> None:
    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def work() -> None:
        async with opened(broker_url) as channel:
            rpc = await RPC.create(channel)
            await rpc.register(name("multiply"), multiply, auto_delete=True)
            answers = await asyncio.gather(
                *(rpc.call(name("multiply"), kwargs={"x": number, "y": 2}) for number in range(20))
            )
            assert answers == [number * 2 for number in range(20)]
            await rpc.close()

    run(work())


def test_its_master_pattern_hands_out_work(broker_url: str, name: Name) -> None:
    async def work() -> None:
        done: asyncio.Queue[int] = asyncio.Queue()

        async def task(*, number: int) -> None:
            await done.put(number)

        async with opened(broker_url) as channel:
            master = Master(channel)
            worker = await master.create_worker(name("task"), task, auto_delete=True)
            for number in range(5):
                await master.create_task(name("task"), {"number": number})
            assert sorted([await done.get() for _ in range(5)]) == [0, 1, 2, 3, 4]
            await worker.close()

    run(work())


def test_a_robust_connection_comes_back_and_consumes_on(broker_url: str, queue: str) -> None:
    async def work() -> None:
        connection = await aio_pika.connect_robust(broker_url, reconnect_interval=0.05)
        async with connection:
            channel = await connection.channel()
            declared = await channel.declare_queue(queue, durable=True)
            taken: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
            await declared.consume(taken.put)
            await channel.default_exchange.publish(aio_pika.Message(b"before"), queue)
            assert (await taken.get()).body == b"before"
            restored = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: restored.set())
            await connection.transport.connection.close(ConnectionError("pulled out"))
            await restored.wait()
            again = await taken.get()  # it was not acked
            assert (again.body, again.redelivered) == (b"before", True)
            await again.ack()

    run(work())
