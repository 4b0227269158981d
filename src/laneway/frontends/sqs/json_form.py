"""AWS JSON 1.0: the action in X-Amz-Target, a JSON object in, a JSON object out."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from laneway.frontends.sqs.errors import SqsError, decode_error

TARGET_PREFIX = b"AmazonSQS."

_encode = msgspec.json.Encoder().encode
_UNUSUAL_ESCAPE = re.compile(rb"\\[bfu]")


class JsonForm:
    content_type = b"application/x-amz-json-1.0"

    def __init__(self) -> None:
        self._decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}

    def decode(self, kind: type[Any], body: bytes, queue_path: str = "") -> Any:
        """`queue_path`: that of a queue's URL, if it was asked there: then the request need not name the queue."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        try:
            if queue_path and b'"QueueUrl"' not in body:
                members = msgspec.json.decode(body or b"{}", type=dict[str, msgspec.Raw])
                body = _encode({**members, "QueueUrl": queue_path})
            return decoder.decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise decode_error(error) from None

    def is_allowed(self, body: bytes) -> bool:
        """Hot: JSON has control characters only as escapes, and of the short ones only these two are not allowed."""
        return body.isascii() and _UNUSUAL_ESCAPE.search(body) is None

    def result(self, action: str, result: Any, request_id: str) -> bytes:
        return b"{}" if result is None else _encode(result)

    def failure(self, error: SqsError, request_id: str) -> tuple[bytes, bytes]:
        kind = error.kind
        fault = "Sender" if kind.is_senders else "Receiver"
        headers = f"x-amzn-query-error: {kind.code};{fault}\r\n".encode()
        return _encode({"__type": kind.type, "message": error.message}), headers
