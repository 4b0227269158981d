"""Writing from Spark: each row a message, each batch published exactly once, whatever dies on the way.

A task stages its rows on the server in parts whose names no other attempt has, and tells the driver which those are.
The driver commits the parts of the attempts that count, under the producer's name and the number of the batch; the
server publishes them in one commit of its journal, together with that number. So

    a task fails or is repeated      its parts are not named in the commit, and are never published
    the driver dies before it        the batch is written again, under new names
    the driver dies after it         the batch is written again, and the server says that it has it already
    an old driver comes back         what it commits has been committed, or is refused as too old

Spark tells write() of a stream neither the number of the batch nor anything else about it, and commit() is called on
another writer, in another process: what is needed there travels in the messages.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from laneway.client import Client, ClientError
from laneway.errors import InvalidInput, PipelineError
from laneway.pipeline.messages import MessageChunks, WriteOptions, check_columns, write_options

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

log = logging.getLogger("laneway.pipeline")

#: The server cannot be reached, has no room, or is starting: worth another try. Everything else stays as it is.
WORTH_ANOTHER_TRY = (0, 429, 503, 507)
LONGEST_PAUSE_S = 2.0


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    stage: str
    partition: int
    parts: list[str]
    message_count: int


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For df.write: with neither producer nor batchId, a producer of its own."""
    wanted = _checked(options, schema, overwrite)
    if (wanted.producer is None) != (wanted.batch is None):
        raise InvalidInput(
            "give producer and batchId, so that a repeat of the batch is known as one, or neither of them",
            field="batchId" if wanted.batch is None else "producer",
        )
    return BatchWriter(wanted)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For df.writeStream: the number of a batch is Spark's, which begins anew with every checkpoint."""
    wanted = _checked(options, schema, overwrite)
    if wanted.producer is None:
        raise InvalidInput(
            "a stream needs option('producer', …): a name of its own under which the server remembers its last batch; "
            "keep it as long as the checkpoint, and take another with another checkpoint",
            field="producer",
        )
    if wanted.batch is not None:
        raise InvalidInput("batchId is for df.write; the batches of a stream are numbered by Spark", field="batchId")
    return StreamWriter(wanted)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    if overwrite:
        raise InvalidInput("messages are added to queues, nothing is replaced: write with mode append", field="mode")
    wanted = write_options(options)
    check_columns(schema, wanted)
    return wanted


class Stager:
    """What both writers share: staging on the executors, committing on the driver."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.stage = uuid.uuid4().hex

    def stage_rows(self, producer: str, batches: Iterator[pa.RecordBatch]) -> Staged:
        partition, attempt = _task()
        name = f"{partition}.{attempt}.{uuid.uuid4().hex[:12]}"  # another attempt may still be running somewhere
        parts: list[str] = []
        count = 0
        with self.client() as client:
            for messages in MessageChunks(self.options).chunks(batches):
                part = f"{name}.{len(parts)}"
                self.insist(partial(client.stage_part, producer, self.stage, part, messages))
                parts.append(part)
                count += len(messages)
        return Staged(self.stage, partition, parts, count)

    def commit_parts(
        self, producer: str, batch: int, messages: Sequence[WriterCommitMessage | None], *, temporary: bool
    ) -> None:
        staged = sorted((m for m in messages if isinstance(m, Staged)), key=lambda m: m.partition)
        stages = {m.stage for m in staged if m.parts} or {self.stage}
        if len(stages) != 1:
            raise PipelineError(f"batch {batch} was staged in {len(stages)} places, which cannot be")
        parts = [part for m in staged for part in m.parts]
        how = {"temporary": temporary, "mandatory": self.options.unrouted == "fail"}
        with self.client() as client:
            done = self.insist(partial(client.commit_batch, producer, batch, stages.pop(), parts, **how))
        if done["unrouted"]:
            log.warning("batch %d of %s: %d messages reached no queue and are gone", batch, producer, done["unrouted"])

    def give_up(self, producer: str, messages: Sequence[WriterCommitMessage | None]) -> None:
        """As far as it can be reached: what is left behind ends with its lifetime on the server."""
        stages = {self.stage, *(m.stage for m in messages if isinstance(m, Staged))}
        with suppress(ClientError), self.client() as client:
            for stage in stages:
                client.give_up_stage(producer, stage)

    def client(self) -> Client:
        o = self.options
        return Client(o.url, key=o.token, user=o.user, password=o.password, timeout_seconds=o.timeout_s, attempts=1)

    def insist(self, call: Callable[[], T]) -> T:
        """Staging a part and committing a batch may be repeated: both do the same a second time."""
        deadline_s = time.monotonic() + self.options.retry_s
        pause_s = 0.1
        while True:
            try:
                return call()
            except ClientError as error:
                if error.status not in WORTH_ANOTHER_TRY or time.monotonic() + pause_s > deadline_s:
                    where = f" ({error.field})" if error.field else ""
                    raise PipelineError(f"{self.options.url}: {error.code}: {error.message}{where}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._stager = Stager(options)
        self._temporary = options.producer is None
        self._producer = options.producer or f"spark-{self._stager.stage}"
        self._batch = options.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._stager.stage_rows(self._producer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._stager.commit_parts(self._producer, self._batch, messages, temporary=self._temporary)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._stager.give_up(self._producer, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._stager = Stager(options)
        assert options.producer is not None
        self._producer = options.producer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._stager.stage_rows(self._producer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._stager.commit_parts(self._producer, batchId, messages, temporary=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._stager.give_up(self._producer, messages)


def _task() -> tuple[int, int]:
    """(partition, attempt) of the task this runs in; outside of Spark, as in tests, of none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
