"""What Laneway's HTTP clients say, as scripts for the load generator, and the messages they say it with."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.http_load import Script, queue_path, request
from benchmarks.load import LoadFailed

_HANDLE = b'"receipt_handle":"'


@dataclass
class Tally:
    """What the scripts of one measurement have done together."""

    published: int = 0
    received: int = 0
    acked: int = 0


def payload_texts(size_bytes: int, count: int, *, seed: int = 1) -> list[str]:
    """JSON objects of exactly this size with different contents, so that nothing can profit from sameness."""
    chance = random.Random(seed)
    frame = len('{"order":"00000000","data":""}')
    texts = []
    for number in range(count):
        filling = "".join(chance.choices(string.ascii_letters + string.digits, k=size_bytes - frame))
        texts.append(f'{{"order":"{number:08d}","data":"{filling}"}}')
    return texts


def single_publish(queue: str, payload: str, priority: int = 5) -> bytes:
    body = f'{{"priority":{priority},"payload":{payload}}}'
    return request("POST", queue_path(queue, "/messages"), body.encode())


def batch_publish(
    queue: str, payloads: Sequence[str], priorities: Sequence[int], fields: Sequence[str] | None = None
) -> bytes:
    """`fields` are the JSON of what else the messages have, each with a comma before it."""
    others = fields or [""] * len(payloads)
    entries = [
        f'{{"priority":{priority},"payload":{payload}{other}}}'
        for payload, priority, other in zip(payloads, priorities, others, strict=True)
    ]
    return request("POST", queue_path(queue, "/messages"), f"[{','.join(entries)}]".encode())


def publisher(requests: Sequence[bytes], batch: int, tally: Tally, *, limit: int | None = None) -> Script:
    """Publishes these requests over and over, one after another; all publishers together stop at the limit."""
    at = 0
    while limit is None or tally.published < limit:
        tally.published += batch
        yield requests[at]
        at = (at + 1) % len(requests)


def consumer(queue: str, batch: int, tally: Tally, *, lease_seconds: int = 600) -> Script:
    """Dequeues and acks batches for ever, waiting at the server when there is nothing."""
    ask = {"max_messages": batch, "wait_seconds": 20, "visibility_timeout": lease_seconds}
    dequeue = request("POST", queue_path(queue, "/dequeue"), ask)
    head = (
        f"POST {queue_path(queue, '/ack')} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n".encode()
    )
    while True:
        handles = receipt_handles((yield dequeue))
        if not handles:
            continue
        tally.received += len(handles)
        body = b'[{"receipt_handle":"' + b'"},{"receipt_handle":"'.join(handles) + b'"}]'
        reply = yield b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
        acked = reply.count(b'"acked"')
        if acked != len(handles):
            raise LoadFailed(f"of {len(handles)} acks {acked} succeeded: {reply[:600].decode(errors='replace')}")
        tally.acked += acked


def leaser(queue: str, batch: int, tally: Tally, *, limit: int, lease_seconds: int) -> Script:
    """Dequeues without ever settling."""
    ask = {"max_messages": batch, "visibility_timeout": lease_seconds}
    dequeue = request("POST", queue_path(queue, "/dequeue"), ask)
    while tally.received < limit:
        count = len(receipt_handles((yield dequeue)))
        if not count:
            raise LoadFailed(f"the queue was empty after {tally.received} of {limit} messages")
        tally.received += count


def receipt_handles(reply: bytes) -> list[bytes]:
    # A handle has no character that JSON escapes. Splitting is the one pass over the bodies that cannot be avoided.
    return [part[: part.index(b'"')] for part in reply.split(_HANDLE)[1:]]


def check_delivery(answer: object, payload: str) -> None:
    """That a delivery holds what was published: measured once before the load, which looks at handles alone."""
    messages = answer.get("messages") if isinstance(answer, dict) else None
    if not messages or messages[0].get("payload") != json.loads(payload):
        raise LoadFailed(f"published {payload[:80]}…, received {json.dumps(answer)[:300]}")
