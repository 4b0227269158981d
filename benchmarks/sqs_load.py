"""What SQS clients say, as scripts for the load generator: AWS JSON 1.0, each request signed on its own, as SDKs do.

What is known beforehand is signed before the load begins, so that the time that is measured has no signing in it.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.http_load import Script
from benchmarks.laneway_load import Tally
from benchmarks.load import LoadFailed

REGION = "us-east-1"
_SIGNED = "amz-sdk-invocation-id;content-type;host;x-amz-date;x-amz-target"
_HANDLE = b'"ReceiptHandle":"'
_SPACED_HANDLE = b'"ReceiptHandle": "'


class Signer:
    """Makes whole requests. An id in each makes each head and signature its own: no server is spared reading them."""

    def __init__(self, address: tuple[str, int], key: tuple[str, str]) -> None:
        self._host = f"{address[0]}:{address[1]}"
        self._key_id, secret = key
        self._day = time.strftime("%Y%m%d", time.gmtime())
        derived = f"AWS4{secret}".encode()
        for part in (self._day, REGION, "sqs", "aws4_request"):
            derived = hmac.digest(derived, part.encode(), "sha256")
        self._hmac = hmac.new(derived, digestmod="sha256")
        self._numbers = itertools.count(1)

    def request(self, action: str, body: bytes) -> bytes:
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        number = f"{next(self._numbers):032x}"
        kind, target = "application/x-amz-json-1.0", f"AmazonSQS.{action}"
        canonical = (
            f"POST\n/\n\namz-sdk-invocation-id:{number}\ncontent-type:{kind}\nhost:{self._host}\nx-amz-date:{at}\n"
            f"x-amz-target:{target}\n\n{_SIGNED}\n{hashlib.sha256(body).hexdigest()}"
        )
        scope = f"{self._day}/{REGION}/sqs/aws4_request"
        digest = self._hmac.copy()
        digest.update(f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}".encode())
        head = (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {kind}\r\nX-Amz-Target: {target}\r\n"
            f"X-Amz-Date: {at}\r\namz-sdk-invocation-id: {number}\r\nAuthorization: AWS4-HMAC-SHA256 "
            f"Credential={self._key_id}/{scope}, SignedHeaders={_SIGNED}, Signature={digest.hexdigest()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def requests(self, action: str, bodies: Sequence[bytes], count: int) -> Iterator[bytes]:
        """So many requests, with these bodies in turn, signed now; then the same ones again, and so on."""
        return itertools.cycle([self.request(action, bodies[at % len(bodies)]) for at in range(count)])


def send_body(queue_url: str, text: str) -> bytes:
    return json.dumps({"QueueUrl": queue_url, "MessageBody": text}).encode()


def batch_body(queue_url: str, texts: Sequence[str], attributes: Sequence[Mapping[str, str]] = ()) -> bytes:
    """`attributes`, if any, are the String attributes of each message."""
    entries: list[dict[str, object]] = [{"Id": str(at), "MessageBody": text} for at, text in enumerate(texts)]
    for entry, values in zip(entries, attributes, strict=False):
        shown = {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
        entry["MessageAttributes"] = shown
    return json.dumps({"QueueUrl": queue_url, "Entries": entries}).encode()


def sender(requests: Iterator[bytes], batch: int, tally: Tally, *, limit: int | None = None) -> Script:
    """Sends these, one after another; all senders together stop at the limit."""
    while limit is None or tally.published < limit:
        tally.published += batch
        reply = yield next(requests)
        if reply.count(b'"MessageId"') != batch:
            raise LoadFailed(f"not all were taken: {reply[:600].decode(errors='replace')}")


def receiver(signer: Signer, asks: Iterator[bytes], queue_url: str, tally: Tally) -> Script:
    """Receives and deletes until the queue is empty."""
    while handles := receipt_handles((yield next(asks))):
        tally.received += len(handles)
        reply = yield deletion(signer, queue_url, handles)
        if b'"Failed":[{' in reply.replace(b" ", b""):
            raise LoadFailed(f"not all were deleted: {reply[:600].decode(errors='replace')}")
        tally.acked += len(handles)


def receive_body(queue_url: str, batch: int, *, with_attributes: bool = False) -> bytes:
    body = {"QueueUrl": queue_url, "MaxNumberOfMessages": batch, "VisibilityTimeout": 600}
    return json.dumps({**body, "MessageAttributeNames": ["All"]} if with_attributes else body).encode()


def deletion(signer: Signer, queue_url: str, handles: Sequence[str]) -> bytes:
    """A request that deletes one or several."""
    if len(handles) == 1:
        body = json.dumps({"QueueUrl": queue_url, "ReceiptHandle": handles[0]}).encode()
        return signer.request("DeleteMessage", body)
    entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
    return signer.request("DeleteMessageBatch", json.dumps({"QueueUrl": queue_url, "Entries": entries}).encode())


def receipt_handles(reply: bytes) -> list[str]:
    mark = _HANDLE if _HANDLE in reply else _SPACED_HANDLE
    return [part[: part.index(b'"')].decode() for part in reply.split(mark)[1:]]
