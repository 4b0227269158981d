"""kill -9 of the processes of one server, one at a time and all at once, under the load of clients that nobody tells:
pika, boto3 and plain HTTP. A longer run than that of the tests: `python -m tests.processes.kills --kills 100 --seed 3`.

Queues come in pairs, one in each partition, so most of what a client asks crosses from its process to another one.
"""

from __future__ import annotations

import argparse
import base64
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import boto3
import botocore.exceptions
import pika
import pika.exceptions
from botocore.config import Config

from laneway.core.partitions import home
from tests.crash.server import BROKEN, Connection, Server, eventually
from tests.processes.several import SeveralProcesses

SMALL = ("--segment-bytes", "1048576", "--snapshot-events", "1000", "--log-level", "warning")
STEP = 5  # of everything so many must have been done between two kills
LEASE_S = 3


def pair(kind: str, suffix: str = "") -> tuple[str, str]:
    """A name at home in each of two partitions."""
    names = [f"{kind}{n}{suffix}" for n in range(50)]
    first, second = (next(name for name in names if home("/", name, 2) == at) for at in (0, 1))
    return first, second


PLAIN, FANNED, MOVING = pair("plain"), pair("fanned"), pair("moving")
STANDARD, FIFO, KEYED = pair("standard"), pair("fifo", ".fifo"), pair("keyed")
QUEUES = (*PLAIN, *FANNED, *MOVING, *STANDARD, *FIFO, *KEYED)
FAN = "fan"

Left = dict[str, tuple[list[str], list[str]]]  # what is ready in each queue, and what is leased or delayed

#: Queues whose clients repeat what they have no answer to: of these alone a message may be there twice.
REPEATED = STANDARD


class Account:
    """What was answered; everything under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.confirmed: dict[str, set[str]] = defaultdict(set)  # by queue
        self.received: dict[str, set[str]] = defaultdict(set)
        self.gone_s: dict[tuple[str, str], float] = {}  # when the answer to its ack came
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()  # that clients met, and went on after
        self.wrong: list[str] = []

    def confirm(self, *queues: str, body: str) -> None:
        with self.lock:
            for queue in queues:
                self.confirmed[queue].add(body)

    def receive(self, queue: str, body: str, asked_s: float) -> None:
        with self.lock:
            if self.gone_s.get((queue, body), asked_s) < asked_s:
                self.wrong.append(f"{body} came from {queue} after its ack was answered")
            self.received[queue].add(body)

    def gone(self, queue: str, body: str) -> None:
        with self.lock:
            self.gone_s[queue, body] = time.monotonic()


#: What a client whose server is killed may meet. Anything else is wrong.
AMQP_BROKEN = (OSError, pika.exceptions.AMQPConnectionError, pika.exceptions.ChannelWrongStateError)


class Load:
    """Threads that work until told to stop. One whose connection breaks makes another, and any process may take it."""

    def __init__(self, server: Server, account: Account) -> None:
        self.server = server
        self.account = account
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def spawn(self, work: Callable[[str, Callable[[], bool]], None], name: str) -> None:
        def run() -> None:
            while not self._stop.is_set():
                try:
                    work(name, lambda: not self._stop.wait(0.002))
                except (*AMQP_BROKEN, *BROKEN) as error:
                    with self.account.lock:
                        self.account.errors[type(error).__name__] += 1
                    self._stop.wait(0.02)
                except Exception as error:
                    self.account.wrong.append(f"{name} ended with {error!r}")
                    return

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def start(self) -> None:
        for work in (
            *(self.publish_plain, self.consume_plain, self.publish_fanned, self.feed_moving, self.move),
            *(self.send_standard, self.send_fifo, self.receive_all, self.publish_keyed, self.consume_keyed),
        ):
            self.spawn(work, work.__name__)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} does not end"

    def note(self, name: str) -> None:
        with self.account.lock:
            self.account.done[name] += 1

    def number(self, name: str) -> str:
        with self.account.lock:
            self.account.done["bodies"] += 1
            return f"{name}-{self.account.done['bodies']:07d}"

    # AMQP

    def amqp(self) -> Any:
        parameters = pika.ConnectionParameters("127.0.0.1", self.server.amqp_port, socket_timeout=5)
        parameters.blocked_connection_timeout = 30
        return pika.BlockingConnection(parameters)

    def _publish(self, name: str, goes_on: Callable[[], bool], exchange: str, *queues: tuple[str, ...]) -> None:
        connection = self.amqp()
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        try:
            while goes_on():
                for its in queues:
                    body = self.number(name)
                    try:
                        channel.basic_publish(exchange, "" if exchange else its[0], body.encode(), properties)
                    except pika.exceptions.NackError:
                        self.account.errors["nack"] += 1  # what became of it is not known
                        continue
                    self.account.confirm(*its, body=body)
                    self.note(name)
        finally:
            if connection.is_open:
                connection.close()

    def publish_plain(self, name: str, goes_on: Callable[[], bool]) -> None:
        self._publish(name, goes_on, "", *((queue,) for queue in PLAIN))

    def publish_fanned(self, name: str, goes_on: Callable[[], bool]) -> None:
        self._publish(name, goes_on, FAN, FANNED)

    def feed_moving(self, name: str, goes_on: Callable[[], bool]) -> None:
        self._publish(name, goes_on, "", MOVING[:1])

    def consume_plain(self, name: str, goes_on: Callable[[], bool]) -> None:
        connection = self.amqp()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)

        def came(channel: Any, method: Any, _: Any, body: bytes) -> None:
            self.account.receive(queues[method.consumer_tag], body.decode(), time.monotonic())
            channel.basic_ack(method.delivery_tag)
            self.note(name)

        queues = {channel.basic_consume(queue, came): queue for queue in PLAIN}
        try:
            while goes_on():
                connection.process_data_events(0.05)
        finally:
            if connection.is_open:
                connection.close()

    def move(self, name: str, goes_on: Callable[[], bool]) -> None:
        """From a queue of one partition to one of the other, in a transaction each: in one of them, and once."""
        connection = self.amqp()
        channel = connection.channel()
        channel.tx_select()
        try:
            while goes_on():
                method, _, body = channel.basic_get(MOVING[0])
                if method is None:
                    continue
                channel.basic_publish("", MOVING[1], body, pika.BasicProperties(delivery_mode=2))
                channel.basic_ack(method.delivery_tag)
                channel.tx_commit()
                self.account.confirm(MOVING[1], body=body.decode())
                self.account.gone(MOVING[0], body.decode())
                self.note(name)
        except pika.exceptions.ChannelClosedByBroker as refused:
            # What it settled went back to its queue, or whether it was done is not known.
            assert refused.reply_code in (406, 506), refused
            self.account.errors[f"transaction {refused.reply_code}"] += 1
        finally:
            if connection.is_open:
                connection.close()

    # SQS

    def sqs(self) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{self.server.port}",
            region_name="us-east-1",
            aws_access_key_id="guest",
            aws_secret_access_key="guest",
            config=Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 5, "mode": "standard"}),
        )

    def asked(self, call: Callable[..., Any], **given: Any) -> Any:
        """None if the client gave up."""
        try:
            return call(**given)
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            if isinstance(error, botocore.exceptions.ClientError):
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                is_late = "receipt handle has expired" in str(error)  # its process was away meanwhile
                assert status == 503 or is_late, f"SQS was answered with {error}"
            with self.account.lock:
                self.account.errors[type(error).__name__] += 1
            return None

    def send_standard(self, name: str, goes_on: Callable[[], bool]) -> None:
        sqs = self.sqs()
        while goes_on():
            for queue in STANDARD:
                body = self.number(name)
                if self.asked(sqs.send_message, QueueUrl=queue, MessageBody=body):
                    self.account.confirm(queue, body=body)
                    self.note(name)

    def send_fifo(self, name: str, goes_on: Callable[[], bool]) -> None:
        """Each is sent until it is answered for: its deduplication id makes it one."""
        sqs = self.sqs()
        while goes_on():
            for queue in FIFO:
                body = self.number(name)
                given = {"QueueUrl": queue, "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": body}
                while not self.asked(sqs.send_message, **given):
                    if not goes_on():
                        return
                self.account.confirm(queue, body=body)
                self.note(name)

    def receive_all(self, name: str, goes_on: Callable[[], bool]) -> None:
        sqs = self.sqs()
        while goes_on():
            for queue in (*STANDARD, *FIFO):
                asked_s = time.monotonic()
                found = self.asked(sqs.receive_message, QueueUrl=queue, MaxNumberOfMessages=10)
                for message in (found or {}).get("Messages", ()):
                    self.account.receive(queue, message["Body"], asked_s)
                    done = self.asked(sqs.delete_message, QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                    if done is not None and queue in FIFO:  # of the others there may be another one of the same body
                        self.account.gone(queue, message["Body"])
                    self.note(name)

    # HTTP

    def _http(self, work: Callable[[Connection], bool]) -> None:
        connection = self.server.connect()
        try:
            while work(connection):
                pass
        finally:
            connection.close()

    def _was(self, status: int, wanted: int, answer: Any) -> bool:
        assert status in (wanted, 503), f"{status}: {answer}"
        if status == 503:
            with self.account.lock:
                self.account.errors[f"503 {answer['error']['code']}"] += 1
        return status == wanted

    def publish_keyed(self, name: str, goes_on: Callable[[], bool]) -> None:
        """Each is sent until it is answered for, with a key that makes it one."""
        while goes_on():
            for queue in KEYED:
                body, is_done = self.number(name), False
                while not is_done:
                    try:
                        connection = self.server.connect()
                        connection._headers["Idempotency-Key"] = body
                        answer = connection.call("POST", f"/queues/{queue}/messages", {"payload": body})
                        is_done = self._was(answer[0], 201, answer[1])
                    except BROKEN as error:
                        with self.account.lock:
                            self.account.errors[type(error).__name__] += 1
                    finally:
                        connection.close()
                    if not is_done and not goes_on():
                        return
                self.account.confirm(queue, body=body)
                self.note(name)

    def consume_keyed(self, name: str, goes_on: Callable[[], bool]) -> None:
        def once(connection: Connection) -> bool:
            for queue in KEYED:
                asked_s = time.monotonic()
                given = {"max_messages": 5, "visibility_timeout": LEASE_S}
                status, answer = connection.call("POST", f"/queues/{queue}/dequeue", given)
                for message in answer["messages"] if self._was(status, 200, answer) else ():
                    self.account.receive(queue, message["payload"], asked_s)
                    path = f"/queues/{queue}/messages/{message['message_id']}"
                    status, answer = connection.call("DELETE", path, {"receipt_handle": message["receipt_handle"]})
                    if status == 204:
                        self.account.gone(queue, message["payload"])
                        self.note(name)
                    else:  # the lease may have run out while its process was away
                        assert status in (409, 503), f"{status}: {answer}"
            return goes_on()

        self._http(once)


class Killed(SeveralProcesses):
    """On ports that stay when all of it is killed and started again, as clients know no others."""

    def __init__(self, folder: Path, **more: Any) -> None:
        http, amqp = free_ports(2)
        super().__init__(folder, *SMALL, "--http", f"127.0.0.1:{http}", "--amqp", f"127.0.0.1:{amqp}", **more)

    def kill_all(self) -> None:
        pids = [*self.children(), self.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.kill()

    def is_ready(self) -> bool:
        try:
            connection = self.connect()
            try:
                return self.whole() and connection.call("GET", "/readyz")[0] == 200
            finally:
                connection.close()
        except BROKEN:
            return False


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def declare(server: Server) -> None:
    connection = server.connect()
    for queue in (*PLAIN, *FANNED, *MOVING, *STANDARD, *KEYED):
        given = {"max_receive_count": 1_000_000, "visibility_timeout": LEASE_S}
        connection.must(201, "PUT", f"/queues/{queue}", given)
    connection.close()
    load = Load(server, Account())
    for queue in FIFO:
        attributes = {"FifoQueue": "true", "VisibilityTimeout": str(LEASE_S)}
        load.sqs().create_queue(QueueName=queue, Attributes=attributes)
    amqp = load.amqp()
    channel = amqp.channel()
    channel.exchange_declare(FAN, "fanout", durable=True)
    for queue in FANNED:
        channel.queue_bind(queue, FAN)
    amqp.close()


def run(server: Killed, seed: int, kills: int, *, keeps_history: bool = False) -> Account:
    """Leaves the server stopped."""
    random, account = Random(seed), Account()
    with server:
        declare(server)
        if keeps_history:
            connection = server.connect()
            connection.must(201, "PUT", "/journal/cursors/kept", {"positions": {"0": 1, "1": 1}})
            connection.close()
        load = Load(server, account)
        load.start()
        try:
            for kill in range(kills):
                work_goes_on(account)
                time.sleep(random.random() ** 2 * 0.5)  # the seed draws the moment; nothing is waited for
                if kill % 4 == 3:
                    server.kill_all()
                    server.start()
                else:
                    server.kill_child(random.randrange(2))
            eventually("all processes are there", server.is_ready, within_s=60)
            work_goes_on(account)
        finally:
            load.stop()
        assert not account.wrong, account.wrong[:5]
        left = all_left(server)
        assert server.stop() == 0, server.log()[-2000:]
    check(account, left)
    return account


def work_goes_on(account: Account) -> None:
    with account.lock:
        before = Counter(account.done)

    def has_gone_on() -> bool:
        assert not account.wrong, account.wrong[:5]
        with account.lock:
            return all(account.done[name] >= count + STEP for name, count in before.items()) and len(before) > 10

    if len(before) <= 10:  # each kind of work has begun
        eventually("all begin to work", lambda: len(account.done) > 10, within_s=60)
        return work_goes_on(account)
    return eventually("work goes on", has_gone_on, within_s=60)


def all_left(server: Server) -> Left:
    """What is in the queues once nothing is on its way from one partition to another."""
    connection = server.connect(60)
    seen: list[Left] = []

    def is_still() -> bool:
        seen.append(
            {queue: (peek(connection, queue, "ready"), peek(connection, queue, "leased,delayed")) for queue in QUEUES}
        )
        return len(seen) > 5 and seen[-1] == seen[-5]

    eventually("nothing moves", is_still, within_s=60)
    connection.close()
    return seen[-1]


def peek(connection: Connection, queue: str, states: str) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page = connection.must(200, "GET", f"/queues/{queue}/messages?state={states}&limit=1000{cursor}")
        found += map(text_of, page["messages"])
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def text_of(message: dict[str, Any]) -> str:
    return str(message["payload"]) if "payload" in message else base64.b64decode(message["payload_base64"]).decode()


def check(account: Account, left: Left) -> None:
    found = {queue: [*ready, *held] for queue, (ready, held) in left.items()}
    for queue, bodies in found.items():
        seen = account.received[queue] | set(bodies)
        if queue == MOVING[0]:
            seen |= {body for at, body in account.gone_s if at == queue} | set(found[MOVING[1]])
        lost = account.confirmed[queue] - seen
        assert not lost, (
            f"{len(lost)} of {len(account.confirmed[queue])} confirmed ones are lost in {queue}: {min(lost)}"
        )
        back = [body for body in bodies if (queue, body) in account.gone_s]
        assert not back, f"{back[:3]} came back into {queue} after their acks were answered"
        if queue not in REPEATED:
            twice = [body for body, count in Counter(bodies).items() if count > 1]
            assert not twice, f"{twice[:3]} are in {queue} twice"
    both = set(found[MOVING[0]]) & set(found[MOVING[1]])
    assert not both, f"{sorted(both)[:3]} were moved and stayed"
    for queue in (*FANNED, *FIFO, *KEYED):  # each has one sender
        ready = left[queue][0]
        assert ready == sorted(ready), f"{queue} is out of order"
    assert set(found[FANNED[0]]) == set(found[FANNED[1]]), "a fan-out reached one queue and not the other"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the data there, to look at it afterwards")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        account = run(Killed(folder / "data"), arguments.seed, arguments.kills)
    print(f"{arguments.kills} kills, done {dict(account.done)}, errors {dict(account.errors)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
