"""AWS JSON 1.0: the action in X-Amz-Target, a JSON object in, a JSON object out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from laneway.frontends.sqs.errors import SqsError, decode_error

TARGET_PREFIX = b"AmazonSQS."

_ENCODER = msgspec.json.Encoder()
_encode, _encode_into = _ENCODER.encode, _ENCODER.encode_into


class JsonForm:
    content_type = b"application/x-amz-json-1.0"

    def __init__(self) -> None:
        self._decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}

    def decode(self, kind: type[Any], body: bytes) -> Any:
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        try:
            return decoder.decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise decode_error(error) from None

    def result(self, action: str, result: Any, request_id: str) -> bytes:
        return b"{}" if result is None else _encode(result)

    def failure(self, error: SqsError, request_id: str) -> tuple[bytes, bytes]:
        kind = error.kind
        fault = "Sender" if kind.is_senders else "Receiver"
        headers = f"x-amzn-query-error: {kind.code};{fault}\r\n".encode()
        return _encode({"__type": kind.type, "message": error.message}), headers


# Hot: the answers that are given most often, put together without an object for each message.


def message_heads(id_beginnings: Sequence[str], handles: Sequence[str], md5s: Sequence[str]) -> list[bytes]:
    """Of messages with nothing but a body, all that stands before it; the end of a handle is the end of its message's
    id."""
    return [
        f'}},{{"MessageId":"{beginning}{handle[16:]}","ReceiptHandle":"{handle}","MD5OfBody":"{md5}","Body":'.encode()
        for beginning, handle, md5 in zip(id_beginnings, handles, md5s, strict=True)
    ]


def messages_json(heads: Sequence[bytes], bodies: Sequence[bytes]) -> bytearray:
    """The answer to a receive, of such heads and of bodies that are text. Each body is encoded right where it is to
    stand: kilobytes that live for a moment are dear to allocate."""
    out = bytearray(b'{"Messages":[')
    begin = 2  # before the first there is none to end
    for head, body in zip(heads, bodies, strict=True):
        out += head[begin:]
        _encode_into(body.decode(), out, -1)
        begin = 0
    out += b"}]}"
    return out


def sent_json(ids: Sequence[str], md5s: Sequence[str], message_ids: Sequence[str]) -> bytes:
    """The answer to a batch of nothing but bodies that were all taken; of such ids as ids_json takes."""
    entries = [
        f'{{"Id":"{one}","MD5OfMessageBody":"{md5}","MessageId":"{message_id}"}}'
        for one, md5, message_id in zip(ids, md5s, message_ids, strict=True)
    ]
    return b'{"Successful":[%b]}' % ",".join(entries).encode()


def ids_json(ids: Sequence[str]) -> bytes:
    """The answer to a batch that went well, of ids which were found to be letters, digits, hyphens and underscores."""
    return b'{"Successful":[{"Id":"%b"}]}' % '"},{"Id":"'.join(ids).encode()
