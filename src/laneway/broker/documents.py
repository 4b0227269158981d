"""Small durable documents by collection and key, for layers that keep something of their own in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.broker.interface import Broker, OnDocument, PutDocument, RemoveDocument, SeenDocument


class Documents:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def documents(self, collection: str) -> dict[str, bytes]:
        return self._broker.topology.documents(collection)

    def document(self, collection: str, key: str) -> bytes | None:
        return self._broker.topology.document(collection, key)

    def on_document(self, call: OnDocument) -> None:
        self._broker.topology.on_document(call)

    async def put_document(self, collection: str, key: str, document: bytes, seen: Sequence[SeenDocument]) -> None:
        await self._broker.ask(PutDocument(collection, key, document, seen))

    async def remove_document(self, collection: str, key: str, seen: Sequence[SeenDocument]) -> None:
        await self._broker.ask(RemoveDocument(collection, key, seen))
