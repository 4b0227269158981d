"""PgQueuer: a SKIP LOCKED queue on PostgreSQL that others wrote and keep, through its own calls and in its own tables.

What its worker does with a batch is done here by the same calls: dequeue, then log_jobs, which takes finished jobs out
of the queue. The task that its worker makes of each job is left out. Its settings are its own defaults: queue and log
of what was finished are durable, as Laneway's journal is, which holds both.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from benchmarks.postgres import QUEUE, Consume, PostgresQueue, Publish

_LEASE = timedelta(seconds=60)


class PgQueuerQueue(PostgresQueue):
    name = "PgQueuer"

    async def reset(self) -> None:
        connection = await self.connect()
        queries = Queries(AsyncpgDriver(connection))
        await queries.uninstall()
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.execute("CHECKPOINT")
        await connection.close()

    async def publish_over(self, connection: asyncpg.Connection) -> Publish:
        queries = Queries(AsyncpgDriver(connection))

        async def publish(priorities: Sequence[int], payloads: Sequence[str]) -> object:
            return await queries.enqueue(
                [QUEUE] * len(payloads), [text.encode() for text in payloads], list(priorities)
            )

        return publish

    async def consume_over(self, connection: asyncpg.Connection, limit: int) -> Consume:
        queries = Queries(AsyncpgDriver(connection))
        entrypoints, worker = {QUEUE: EntrypointExecutionParameter(concurrency_limit=0)}, uuid.uuid4()

        async def consume() -> int:
            jobs = await queries.dequeue(limit, entrypoints, worker, None, _LEASE)
            if jobs:
                await queries.log_jobs([(job, "successful", None) for job in jobs])
            return len(jobs)

        return consume
