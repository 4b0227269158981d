"""What the history tells of queues, first of all their names: rows know a queue by its number alone.

For whoever reads a journal without having a State.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class QueueName(NamedTuple):
    vhost: str
    name: str
    tier: str  # as last known, like the next
    max_messages: int | None = None


class _Settings(msgspec.Struct, frozen=True):
    tier: str = "normal"
    max_messages: int | None = None


class _Document(msgspec.Struct):
    vhost: str
    name: str
    settings: _Settings = _Settings()

    def named(self) -> QueueName:
        return QueueName(self.vhost, self.name, self.settings.tier, self.settings.max_messages)


class _Numbered(_Document):
    number: int = 0


class _Head(msgspec.Struct):
    tag: int
    queues: list[_Numbered]


def of_document(document: bytes) -> QueueName:
    """What the event that put or deleted a queue says of it."""
    return msgspec.json.decode(document, type=_Document).named()


def of_snapshot(first_chunk: bytes) -> tuple[int, dict[int, QueueName]]:
    """The tag of the store's message ids and the queues there were, from a snapshot's first chunk (snapshot.py)."""
    head = msgspec.msgpack.decode(first_chunk, type=_Head)
    return head.tag, {q.number: q.named() for q in head.queues}
