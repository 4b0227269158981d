"""Small durable documents by collection and key, for layers that keep something of their own in the journal."""

from __future__ import annotations

from laneway.broker.interface import Broker, PutDocument, RemoveDocument


class Documents:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def documents(self, collection: str) -> dict[str, bytes]:
        return self._broker.topology.documents(collection)

    async def put_document(self, collection: str, key: str, document: bytes) -> None:
        await self._broker.ask(PutDocument(collection, key, document))

    async def remove_document(self, collection: str, key: str) -> None:
        await self._broker.ask(RemoveDocument(collection, key))
