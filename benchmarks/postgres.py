"""The queue that many build on PostgreSQL: one table, batches leased with SKIP LOCKED, acked by deleting.

It is given every fair advantage: one statement per batch, one commit per statement, prepared statements, only the index
that the order needs, several connections. It is as durable as Laneway: a call returns when its commit is on disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg

from benchmarks.machine import Watch
from benchmarks.servers import PostgresServer

QUEUE = "bench"

# What Laneway keeps of a message, in the cheapest types that can hold it: a payload checked to be JSON, attributes,
# times, a receive count and a token that makes a late ack fail. visible_at and lease are in no index, so that leasing
# can stay a heap-only update, and there is room on each page for it.
SCHEMA = """
DROP TABLE IF EXISTS messages;
CREATE TABLE messages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    priority smallint NOT NULL,
    receives smallint NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    visible_at timestamptz NOT NULL DEFAULT now(),
    lease uuid,
    attributes jsonb,
    payload json NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX messages_in_order ON messages (queue, priority DESC, id);
"""

PUBLISH = """
INSERT INTO messages (queue, priority, payload)
SELECT $1, m.priority, m.payload FROM unnest($2::smallint[], $3::json[]) AS m(priority, payload)
RETURNING id, enqueued_at
"""

LEASE = """
UPDATE messages SET visible_at = now() + interval '60 seconds', receives = receives + 1, lease = gen_random_uuid()
WHERE id IN (
    SELECT id FROM messages WHERE queue = $1 AND visible_at <= now()
    ORDER BY priority DESC, id LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING id, priority, payload, attributes, enqueued_at, receives, lease, visible_at
"""

ACK = """
DELETE FROM messages USING unnest($1::bigint[], $2::uuid[]) AS held(id, lease)
WHERE messages.id = held.id AND messages.lease = held.lease
RETURNING messages.id
"""


@dataclass(frozen=True)
class Crew:
    """How many connections publish and how many consume at once, and how many batches a consumer takes at once."""

    publishers: int
    consumers: int
    taken: int = 1


class Run(NamedTuple):
    seconds: float
    notes: dict[str, float]


Publish = Callable[[Sequence[int], Sequence[str]], Awaitable[object]]  # priorities, payloads
Consume = Callable[[], Awaitable[int]]  # how many were leased and acked


class PostgresQueue:
    name = "PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(host="127.0.0.1", port=self._server.port, user="laneway", database="postgres")

    async def reset(self) -> None:
        """An empty table and nothing left to write, so that every round starts from the same place."""
        connection = await self.connect()
        await connection.execute(SCHEMA)
        await connection.execute("CHECKPOINT")
        await connection.close()

    async def publish_over(self, connection: asyncpg.Connection) -> Publish:
        statement = await connection.prepare(PUBLISH)
        return lambda priorities, payloads: statement.fetch(QUEUE, priorities, payloads)

    async def consume_over(self, connection: asyncpg.Connection, limit: int) -> Consume:
        lease, ack = await connection.prepare(LEASE), await connection.prepare(ACK)

        async def consume() -> int:
            rows = await lease.fetch(QUEUE, limit)
            return len(await ack.fetch([row["id"] for row in rows], [row["lease"] for row in rows])) if rows else 0

        return consume

    async def end_to_end(self, payloads: Sequence[str], priorities: Sequence[int], batch: int, crew: Crew) -> Run:
        """From the first publish to the last ack of all these messages, publishing and consuming at once."""
        await self.reset()
        publishing = [await self.connect() for _ in range(crew.publishers)]
        consuming = [await self.connect() for _ in range(crew.consumers)]
        batches = [(priorities[at : at + batch], payloads[at : at + batch]) for at in range(0, len(payloads), batch)]
        left = len(payloads)

        async def publisher(connection: asyncpg.Connection) -> None:
            publish = await self.publish_over(connection)
            while batches:
                await publish(*batches.pop())

        async def consumer(connection: asyncpg.Connection) -> None:
            nonlocal left
            consume = await self.consume_over(connection, batch * crew.taken)
            while left:
                acked = await consume()
                left -= acked
                if not acked:
                    await asyncio.sleep(0.002)  # what there is was leased by the others; it is soon acked

        watch, began = Watch(self._server.pid), time.perf_counter()
        await asyncio.gather(*map(publisher, publishing), *map(consumer, consuming))
        # Each connection is a process of the server's, whose use cannot be read once it has ended.
        run = Run(time.perf_counter() - began, watch.notes(len(payloads)))
        for connection in (*publishing, *consuming):
            await connection.close()
        return run

    async def lone_publishes(self, payload: str, count: int) -> list[int]:
        """The nanoseconds of each of `count` single inserts, one after another on one connection."""
        await self.reset()
        connection = await self.connect()
        statement = await connection.prepare(PUBLISH)
        taken: list[int] = []
        for _ in range(count):
            began = time.perf_counter_ns()
            await statement.fetch(QUEUE, [5], [payload])
            taken.append(time.perf_counter_ns() - began)
        await connection.close()
        return taken
