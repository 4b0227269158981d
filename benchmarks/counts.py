"""make bench ARGS="--part counts": what one message costs the server, counted instead of timed.

The server's own parts run in this process, on transports that hand over recorded bytes and keep what is written, with
a journal in memory (a tmpfs). So there is no network, no disk and no thread in it, and the counts of a case are the
same on a busy machine as on a quiet one:

    calls       Python functions of Laneway that were entered
    built-ins   functions in C that those called
    bytecodes   instructions of the interpreter, in Laneway's own code
    CPU µs      the least of many short repetitions; little on a quiet machine, and still the one figure that moves

What it leaves out is the kernel: sockets, syncs, and the hand-over to the writer thread.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import cycle, islice
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from benchmarks import amqp_frames as amqp
from benchmarks import laneway_load as laneway
from benchmarks import sqs_load
from benchmarks.amqp_load import consuming, single_acks
from benchmarks.amqp_messages import Kind, celery_like, distinct, look_alike, with_message_id
from benchmarks.forwarded import forwarding, name_elsewhere
from benchmarks.http_load import queue_path, request
from benchmarks.load import LoadFailed
from benchmarks.turns import is_chosen
from laneway.access import Access, TrustedProxies
from laneway.broker.clock import Clock
from laneway.broker.committer import OnWritten, write_or_mark
from laneway.broker.documents import Documents
from laneway.broker.engine import Engine
from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.reading import InlineReader
from laneway.cluster.following import FollowedTopology
from laneway.frontends.amqp import connection as amqp_connection
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.shared import AmqpShared
from laneway.frontends.doors.directory import LocalDirectory
from laneway.frontends.http import protocol
from laneway.frontends.http.responses import Framer
from laneway.frontends.rest.api import RestApi
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.sqs.api import SqsApi
from laneway.frontends.sqs.names import SqsOptions
from laneway.journal.interface import Commit, Journal
from laneway.journal.segments.journal import SegmentJournal
from laneway.resources.intake import Intake
from laneway.telemetry.floods import FloodLog

KILOBYTE = 1024
BATCH = 100
SINGLES = 32  # connections with one request each under way
READ_MESSAGES = 200  # of 1 KB: what one read from a busy publisher's socket holds, about
SOURCES = str(Path(protocol.__file__).parents[2])

Turn = Callable[[], Awaitable[int]]  # one repetition of a case; how many messages it was
Prepare = Callable[["Server"], Awaitable[Turn]]
_MEMORY = Path("/dev/shm")


class Transport(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        super().__init__()
        self.connection = connection
        self.written: list[bytes] = []
        connection.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written.append(data)

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What is not read waits in the connection."""

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        raise LoadFailed(f"the server ended a connection: {self.take()[-600:]!r}")

    abort = close


class OnTheLoop:
    """A writer without a thread: each commit is written when it is put, and reported in the next turn of the loop."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, on_written: OnWritten) -> None:
        self._journal, self._loop, self._on_written = journal, loop, on_written
        self._is_closed = False

    def put(self, commit: Commit) -> None:
        if self._is_closed:
            return
        error = write_or_mark(self._journal, commit)
        if commit.position or error is not None:
            self._loop.call_soon(self._on_written, commit, error)

    async def close(self) -> None:
        self._is_closed = True


class Server:
    """All front ends on one broker. `forwards`: its queues lie in another process (forwarded.py)."""

    def __init__(self, broker: Broker, access: Access, *, forwards: bool = False) -> None:
        self._forwards = forwards
        limits = RestLimits()
        applications = [SqsApi(broker, access, SqsOptions()), RestApi(broker, access, limits)]
        self.broker, self.access = broker, access
        ticks, proxies = protocol.Ticks(limits, 1000), TrustedProxies()
        intake = Intake(most_connections=1000, most_bytes=1 << 30)
        framer, floods, directory = Framer(time.time), FloodLog(), LocalDirectory(lambda: 0)
        self._http = protocol.HttpShared(applications, limits, intake, framer, ticks, proxies, floods, directory)
        self._amqp = AmqpShared(
            broker, access, AmqpLimits(turn_ms=60_000), intake, lambda: "any", proxies, floods, directory
        )

    def name(self, stem: str) -> str:
        """Of a queue."""
        return name_elsewhere(stem) if self._forwards else stem

    def http(self, count: int) -> list[Transport]:
        return [Transport(protocol.HttpConnection(self._http)) for _ in range(count)]

    async def amqp(self) -> Transport:
        """A connection with one open channel."""
        client = Transport(amqp_connection.AmqpConnection(self._amqp))
        start_ok = amqp.table({}) + amqp.short_text("PLAIN") + amqp.long_bytes(b"\0guest\0guest")
        for said in (
            amqp.PROTOCOL_HEADER,
            amqp.method(amqp.START_OK, start_ok + amqp.short_text("en_US"), 0),
            amqp.method(amqp.TUNE_OK, b"\x07\xff\x00\x02\x00\x00\x00\x00", 0)
            + amqp.method(amqp.OPEN, amqp.short_text("/") + b"\0\0", 0),
            amqp.method(amqp.CHANNEL_OPEN, b"\0"),
        ):
            await answers([client], [said])
        return client


@asynccontextmanager
async def serving(folder: Path, *, forwards: bool = False) -> AsyncIterator[Server]:
    partitions: list[Partition] = []

    async def open_partition(number: int = 0, model: FollowedTopology | None = None) -> LocalBroker:
        partition = Partition(
            Engine(SegmentJournal(folder / str(number)), new_tag=lambda: 1, partition=number, world=model),
            clock=Clock(look_every_ms=0),
            new_writer=OnTheLoop,
            new_reader=InlineReader,
        )
        partitions.append(partition)
        await partition.start()
        return LocalBroker(partition)

    if forwards:
        async with forwarding(open_partition) as edge:
            yield Server(edge, Access(Documents(edge), now_ms=lambda: 0), forwards=True)
    else:
        broker = await open_partition()
        yield Server(broker, Access(Documents(broker), now_ms=lambda: 0))
    for partition in partitions:
        await partition.stop()


async def answers(clients: Sequence[Transport], said: Sequence[bytes]) -> list[bytes]:
    """Each of them says something, and the loop turns until all have been answered."""
    for client, data in zip(clients, said, strict=True):
        client.connection.data_received(data)  # type: ignore[attr-defined]
    await answered(clients)
    return [client.take() for client in clients]


async def answered(clients: Sequence[Transport]) -> None:
    began = time.monotonic()
    while not all(client.written for client in clients):
        await asyncio.sleep(0)
        if time.monotonic() - began > 10:
            raise LoadFailed("a request was not answered")


# --- the cases: each gives back what makes one repetition


async def http_single(server: Server) -> Turn:
    payloads = laneway.payload_texts(KILOBYTE, SINGLES)
    clients, queue = server.http(SINGLES), server.name("single")
    await answers(clients[:1], [request("PUT", queue_path(queue), {})])
    said = [laneway.single_publish(queue, payload) for payload in payloads]

    async def turn() -> int:
        told = await answers(clients, said)
        return _expect(told, b"201 Created", SINGLES)

    return turn


async def http_end_to_end(server: Server) -> Turn:
    """Two connections publish, two dequeue and ack what was published the turn before, all at once."""
    payloads = laneway.payload_texts(KILOBYTE, BATCH)
    clients, queue = server.http(4), server.name("batches")
    await answers(clients[:1], [request("PUT", queue_path(queue), {})])
    publish = [laneway.batch_publish(queue, payloads, [5] * BATCH)] * 2
    asked = {"max_messages": BATCH, "wait_seconds": 20, "visibility_timeout": 600}
    dequeue = [request("POST", queue_path(queue, "/dequeue"), asked)] * 2
    await answers(clients[:2], publish)

    async def turn() -> int:
        told = await answers(clients, publish + dequeue)
        with uncounted():
            _expect(told[:2], b"201 Created", 2)
            acks = [
                request("POST", queue_path(queue, "/ack"), [{"receipt_handle": one.decode()} for one in handles])
                for handles in map(laneway.receipt_handles, told[2:])
            ]
        told = await answers(clients[2:], acks)
        return _expect(told, b'"acked"', 2 * BATCH)

    return turn


def amqp_queues(
    queues: int,
    *,
    single_acks_only: bool = False,
    settings: dict[str, int | str] | None = None,
    priorities: Sequence[int | None] = (None,),
    kind: Kind = look_alike,
    body_bytes: int = KILOBYTE,
) -> Prepare:
    async def prepare(server: Server) -> Turn:
        publishers = [await server.amqp() for _ in range(queues)]
        consumers = [await server.amqp() for _ in range(queues)]
        names = [
            server.name(f"{kind.__name__}-{queues}-{single_acks_only}-{len(settings or ())}-{len(priorities)}-{at}")
            for at in range(queues)
        ]
        for client, name in zip(publishers, names, strict=True):
            declare = amqp.method(amqp.DECLARE, b"\0\0" + amqp.short_text(name) + b"\x02" + amqp.table(settings or {}))
            await answers([client], [declare])
            await answers([client], [amqp.method(amqp.SELECT, b"\0")])
        for client, name in zip(consumers, names, strict=True):
            await answers([client], [amqp.method(amqp.QOS, b"\0\0\0\0\x03\xe8\0")])
            await answers([client], [consuming(name, "bench")])
        bodies = [text.encode() for text in laneway.payload_texts(body_bytes, READ_MESSAGES)]
        levels, chance = list(islice(cycle(priorities), len(bodies))), random.Random(1)
        said = [
            b"".join(
                [amqp.published(name, body, kind(chance, level)) for body, level in zip(bodies, levels, strict=True)]
            )
            for name in names
        ]
        done = 0

        async def turn() -> int:
            nonlocal done
            for client, data in zip(publishers, said, strict=True):
                client.connection.data_received(data)  # type: ignore[attr-defined]
            await answered(publishers)
            await answered(consumers)
            first, done = done + 1, done + READ_MESSAGES
            if single_acks_only:
                acks = bytes(single_acks(first, READ_MESSAGES))
            else:
                acks = b"".join([amqp.ack(tag, multiple=True) for tag in range(first + 99, done + 1, 100)])
            for client in consumers:
                client.connection.data_received(acks)  # type: ignore[attr-defined]
            confirms = [client.take() for client in publishers]
            delivered = [client.take() for client in consumers]
            if any(len(data) < READ_MESSAGES * body_bytes for data in delivered) or not all(confirms):
                raise LoadFailed(f"some were not delivered: {[len(data) for data in delivered]}")
            return READ_MESSAGES * queues

        return turn

    return prepare


def amqp_many_queues(queues: int, rounds: int) -> Prepare:
    """One publisher that sends to all queues in turn, and one connection that consumes from all of them."""

    async def prepare(server: Server) -> Turn:
        publisher, consumer = await server.amqp(), await server.amqp()
        names = [f"many-{queues}-{at}" for at in range(queues)]
        for name in names:
            declare = amqp.method(amqp.DECLARE, b"\0\0" + amqp.short_text(name) + b"\x02" + amqp.table({}))
            await answers([publisher], [declare])
            await answers([consumer], [consuming(name, name)])
        await answers([publisher], [amqp.method(amqp.SELECT, b"\0")])
        chance, count = random.Random(1), queues * rounds
        bodies = cycle([text.encode() for text in laneway.payload_texts(KILOBYTE, READ_MESSAGES)])
        said = [amqp.published(name, next(bodies), distinct(chance, None)) for name in names * rounds]
        reads = [b"".join(said[at : at + READ_MESSAGES]) for at in range(0, count, READ_MESSAGES)]
        done = 0

        async def turn() -> int:
            nonlocal done
            for data in reads:
                publisher.connection.data_received(data)  # type: ignore[attr-defined]
            first, done = done + 1, done + count
            channel = consumer.connection.channels[1]  # type: ignore[attr-defined]
            while channel.last_delivery < done:
                await answered([consumer])
                consumer.take()
            publisher.take()
            acks = b"".join([amqp.ack(tag, multiple=True) for tag in range(first + 99, done + 1, 100)])
            consumer.connection.data_received(acks)  # type: ignore[attr-defined]
            return count

        return turn

    return prepare


def amqp_fan_out(queues: int) -> Prepare:
    """One publisher to an exchange that has all queues, and one consumer each; what is counted is deliveries."""

    async def prepare(server: Server) -> Turn:
        publisher, consumers = await server.amqp(), [await server.amqp() for _ in range(queues)]
        exchange = amqp.short_text("fan")
        declare = b"\0\0" + exchange + amqp.short_text("fanout") + b"\x02" + amqp.table({})
        await answers([publisher], [amqp.method(amqp.EXCHANGE_DECLARE, declare)])
        for at, client in enumerate(consumers):
            name = amqp.short_text(f"fan-{at}")
            await answers([publisher], [amqp.method(amqp.DECLARE, b"\0\0" + name + b"\x02" + amqp.table({}))])
            bind = b"\0\0" + name + exchange + amqp.short_text("") + b"\0" + amqp.table({})
            await answers([publisher], [amqp.method(amqp.BIND, bind)])
            await answers([client], [amqp.method(amqp.QOS, b"\0\0\0\0\x03\xe8\0")])
            await answers([client], [consuming(f"fan-{at}", "bench")])
        await answers([publisher], [amqp.method(amqp.SELECT, b"\0")])
        chance = random.Random(1)
        said = b"".join(
            [
                amqp.published("", text.encode(), distinct(chance, None), exchange="fan")
                for text in laneway.payload_texts(KILOBYTE, READ_MESSAGES)
            ]
        )
        done = 0

        async def turn() -> int:
            nonlocal done
            publisher.connection.data_received(said)  # type: ignore[attr-defined]
            await answered([publisher])
            await answered(consumers)
            first, done = done + 1, done + READ_MESSAGES
            acks = b"".join([amqp.ack(tag, multiple=True) for tag in range(first + 99, done + 1, 100)])
            for client in consumers:
                client.connection.data_received(acks)  # type: ignore[attr-defined]
            publisher.take()
            if any(len(client.take()) < READ_MESSAGES * KILOBYTE for client in consumers):
                raise LoadFailed("some were not delivered")
            return READ_MESSAGES * queues

        return turn

    return prepare


async def sqs_signer(server: Server) -> tuple[sqs_load.Signer, list[Transport]]:
    access = server.access
    if not any(account.name == "bench" for account in access.accounts()):
        await access.put_account("bench", roles=["admin"])
    return sqs_load.Signer(("127.0.0.1", 80), await access.create_key("bench", kind="aws")), server.http(SINGLES)


async def sqs_queue(signer: sqs_load.Signer, clients: list[Transport], name: str) -> str:
    body = b'{"QueueName":"%b"}' % name.encode()
    told = await answers(clients[:1], [signer.request("CreateQueue", body)])
    return told[0].decode().partition('"QueueUrl":"')[2].partition('"')[0]


def sqs_send(batch: int) -> Prepare:
    async def prepare(server: Server) -> Turn:
        signer, clients = await sqs_signer(server)
        url = await sqs_queue(signer, clients, f"send-{batch}")
        texts = laneway.payload_texts(KILOBYTE, max(batch, SINGLES))
        action = "SendMessage" if batch == 1 else "SendMessageBatch"

        async def turn() -> int:
            with uncounted():
                bodies = [
                    sqs_load.send_body(url, text) if batch == 1 else sqs_load.batch_body(url, texts[:batch])
                    for text in texts
                ]
                said = [signer.request(action, body) for body in bodies]
            told = await answers(clients, said)
            return _expect(told, b'"MessageId"', SINGLES * batch)

        return turn

    return prepare


def sqs_receive(batch: int) -> Prepare:
    """Receive and delete one or ten at a time, of what was sent before in ways that are not counted."""

    async def prepare(server: Server) -> Turn:
        signer, clients = await sqs_signer(server)
        url = await sqs_queue(signer, clients, f"receive-{batch}")
        send = sqs_load.batch_body(url, laneway.payload_texts(KILOBYTE, batch))
        ask = b'{"QueueUrl":"%b","MaxNumberOfMessages":%d,"VisibilityTimeout":600}' % (url.encode(), batch)

        async def turn() -> int:
            with uncounted():
                await answers(clients, [signer.request("SendMessageBatch", send) for _ in clients])
                said = [signer.request("ReceiveMessage", ask) for _ in clients]
            told = await answers(clients, said)
            with uncounted():
                handles = list(map(sqs_load.receipt_handles, told))
                _expect(told, b'"Body"', SINGLES * batch)
                said = [sqs_load.deletion(signer, url, some) for some in handles]
            told = await answers(clients, said)
            return _expect(told, b'"Id"', SINGLES * batch) if batch > 1 else _expect(told, b"200 OK", SINGLES)

        return turn

    return prepare


def _expect(told: Sequence[bytes], word: bytes, count: int) -> int:
    found = sum(reply.count(word) for reply in told)
    if found != count:
        raise LoadFailed(f"{count} of {word!r} were expected, {found} came: {told[0][:600]!r}")
    return count


CASES: dict[str, Prepare] = {
    "HTTP single publish, 1 KB": http_single,
    "HTTP end to end, 100 × 1 KB": http_end_to_end,
    "AMQP one queue": amqp_queues(1),
    "AMQP celery-like": amqp_queues(1, kind=celery_like),
    "AMQP message ids, 100 B": amqp_queues(1, kind=with_message_id, body_bytes=100),
    "AMQP ten priorities": amqp_queues(1, settings={"x-max-priority": 10}, priorities=range(1, 11)),
    "AMQP two queues": amqp_queues(2),
    "AMQP ten queues": amqp_queues(10),
    "AMQP a thousand queues": amqp_many_queues(1000, rounds=2),
    "AMQP fan-out to ten queues": amqp_fan_out(10),
    "AMQP one queue, single acks": amqp_queues(1, single_acks_only=True),
    "AMQP one quorum queue": amqp_queues(1, settings={"x-queue-type": "quorum"}),
    "SQS send, 1 × 1 KB": sqs_send(1),
    "SQS send, 10 × 1 KB": sqs_send(10),
    "SQS receive + delete, 1 × 1 KB": sqs_receive(1),
    "SQS receive + delete, 10 × 1 KB": sqs_receive(10),
}

_ALSO_FORWARDED = (
    "HTTP single publish, 1 KB",
    "HTTP end to end, 100 × 1 KB",
    "AMQP celery-like",
    "AMQP message ids, 100 B",
    "AMQP ten queues",
    "AMQP one queue, single acks",
)
#: The same with clients of one process and queues of another: what both do for a message (forwarded.py).
FORWARDED = {f"forwarded: {case}": CASES[case] for case in _ALSO_FORWARDED}

# --- counting


class Counter:
    """What Laneway's own code does while it is on."""

    def __init__(self) -> None:
        self.calls = self.built_ins = self.bytecodes = 0
        self.seen: dict[str, int] = {}

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename.startswith(SOURCES):
            if event == "call":
                self.calls += 1
                name = frame.f_code.co_qualname
                self.seen[name] = self.seen.get(name, 0) + 1
            elif event == "c_call":
                self.built_ins += 1

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.bytecodes += 1
        return self._opcode


@contextmanager
def uncounted() -> Iterator[None]:
    """Inside a turn: what is only there to prepare it."""
    profile, trace = sys.getprofile(), sys.gettrace()
    sys.setprofile(None)
    sys.settrace(None)
    began = time.thread_time_ns()
    yield
    _skipped_ns[0] += time.thread_time_ns() - began
    sys.setprofile(profile)
    sys.settrace(trace)


_skipped_ns = [0]


async def count(turn: Turn, repetitions: int, warm_up: int) -> tuple[Counter, int, float]:
    """The counts of one turn, its messages, and its least CPU time in µs."""
    for _ in range(warm_up):
        messages = await turn()
    least_ns = 1 << 62
    gc.collect()
    gc.disable()
    for _ in range(repetitions):
        _skipped_ns[0] = 0
        began = time.thread_time_ns()
        messages = await turn()
        least_ns = min(least_ns, time.thread_time_ns() - began - _skipped_ns[0])
    gc.enable()
    counter = Counter()
    for switch, tool in ((sys.setprofile, counter.profile), (sys.settrace, counter.trace)):
        switch(tool)  # type: ignore[operator]
        await turn()
        switch(None)  # type: ignore[operator]
    return counter, messages, least_ns / 1000


async def measure(case: str, repetitions: int, warm_up: int = 20) -> tuple[Counter, int, float]:
    """A case, on a server of its own."""
    prepare, forwards = (CASES | FORWARDED)[case], case in FORWARDED
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        async with serving(Path(folder), forwards=forwards) as server:
            return await count(await prepare(server), repetitions, warm_up)


async def run(options: argparse.Namespace) -> None:
    print(f"{'per message':40} {'calls':>9} {'built-ins':>9} {'bytecodes':>9} {'CPU µs':>9}")
    for case in (*CASES, *FORWARDED):
        if is_chosen(case, options):
            counter, n, least_us = await measure(case, options.repetitions)
            print(
                f"{case:40} {counter.calls / n:9.2f} {counter.built_ins / n:9.2f} {counter.bytecodes / n:9.1f}"
                f" {least_us / n:9.2f}",
                flush=True,
            )
            if options.names:
                for name, times in sorted(counter.seen.items(), key=lambda one: -one[1])[: options.names]:
                    print(f"    {times:6} {name}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counts", description=__doc__)
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument("--repetitions", type=int, default=200, help="turns that are timed (%(default)s)")
    parser.add_argument("--names", type=int, default=0, help="also the functions called most often")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
