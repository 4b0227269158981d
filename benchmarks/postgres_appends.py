"""What an append to PostgreSQL costs its client, by driver and by how many are under way. Run as a module.

One row a commit, in the statement that the journal uses. Both drivers prepare it and send the bytes as they are.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import asyncpg
import psycopg
from psycopg.types.numeric import Int8

from benchmarks.servers import PostgresServer

SIZES = (16 << 10, 256 << 10)
SECONDS = 1.0
ROUNDS = 5
APPEND = (
    "WITH mine AS (UPDATE journals SET position = position + 1 WHERE number = {0} AND position = {1} RETURNING number) "
    "INSERT INTO commits SELECT number, {1}, {2} FROM mine"
)
SCHEMA = """
    DROP TABLE IF EXISTS journals, commits;
    CREATE TABLE journals (number bigint PRIMARY KEY, position bigint NOT NULL) WITH (fillfactor = 50);
    CREATE TABLE commits (number bigint, position bigint, data bytea) WITH (autovacuum_enabled = false);
    ALTER TABLE commits ALTER COLUMN data SET STORAGE EXTERNAL;
    INSERT INTO journals VALUES (0, 0)
"""


class Result(NamedTuple):
    commits_per_second: float
    cpu_us: float  # of the client, for each commit


def measured(run: Callable[[Callable[[], bool]], int]) -> Result:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    count = run(lambda: time.perf_counter() - began_s < SECONDS)
    return Result(count / (time.perf_counter() - began_s), (time.process_time() - cpu_s) / count * 1e6)


def with_psycopg(url: str, data: bytes, depth: int) -> Result:
    statement = APPEND.format("%b", "%b", "%b")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA)

        def run(goes_on: Callable[[], bool]) -> int:
            position = 0
            while goes_on():
                if depth == 1:
                    connection.execute(statement, [Int8(0), Int8(position), Int8(position), data], prepare=True)
                else:
                    with connection.pipeline() as pipeline:
                        for at in range(position, position + depth):
                            connection.execute(statement, [Int8(0), Int8(at), Int8(at), data], prepare=True)
                            pipeline.sync()
                position += depth
            return position

        return measured(run)


def with_asyncpg(url: str, data: bytes, depth: int) -> Result:
    """As a thread with a loop of its own would use it."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url))
        runner.run(connection.execute(SCHEMA))
        statement = runner.run(connection.prepare(APPEND.format("$1", "$2", "$3")))

        def run(goes_on: Callable[[], bool]) -> int:
            position = 0
            while goes_on():
                runner.run(statement.fetch(0, position, data))
                position += 1
            return position

        result = measured(run)
        runner.run(connection.close())
        return result


def main() -> None:
    kinds: dict[str, Callable[[str, bytes], Result]] = {
        "psycopg": lambda url, data: with_psycopg(url, data, 1),
        "asyncpg": lambda url, data: with_asyncpg(url, data, 1),
        "psycopg, 4 in a pipeline": lambda url, data: with_psycopg(url, data, 4),
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with PostgresServer(Path(folder, "postgres"), frozenset(os.sched_getaffinity(0))) as server:
            url = f"postgresql://laneway@127.0.0.1:{server.port}/postgres"
            print("| commit | driver | commits/s | CPU of the client, µs a commit |")
            print("|---|---|---:|---:|")
            for size in SIZES:
                found: dict[str, list[Result]] = {name: [] for name in kinds}
                for _ in range(ROUNDS):
                    for name, kind in kinds.items():
                        found[name].append(kind(url, os.urandom(size)))
                for name, results in found.items():
                    rate = sorted(one.commits_per_second for one in results)[ROUNDS // 2]
                    cpu_us = min(one.cpu_us for one in results)
                    print(f"| {size >> 10} KB | {name} | {rate:,.0f} | {cpu_us:,.0f} |")


if __name__ == "__main__":
    main()
