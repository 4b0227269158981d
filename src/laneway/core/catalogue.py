"""The names of queues as the history tells them: rows know a queue by its number alone.

For whoever reads a journal without having a State.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class QueueName(NamedTuple):
    vhost: str
    name: str
    tier: str


class _Settings(msgspec.Struct, frozen=True):
    tier: str = "normal"


class _Document(msgspec.Struct):
    vhost: str
    name: str
    settings: _Settings = _Settings()


class _Numbered(_Document):
    number: int = 0


class _Head(msgspec.Struct):
    tag: int
    queues: list[_Numbered]


def of_document(document: bytes) -> QueueName:
    """What the event that put or deleted a queue says of it."""
    found = msgspec.json.decode(document, type=_Document)
    return QueueName(found.vhost, found.name, found.settings.tier)


def of_snapshot(first_chunk: bytes) -> tuple[int, dict[int, QueueName]]:
    """The tag of the store's message ids and the queues there were, from a snapshot's first chunk (snapshot.py)."""
    head = msgspec.msgpack.decode(first_chunk, type=_Head)
    return head.tag, {q.number: QueueName(q.vhost, q.name, q.settings.tier) for q in head.queues}
