"""What AWS does not let happen within a minute: a queue of the name of one that was just deleted, and a second purge of
a queue.

Kept as documents of the broker, so that every process knows. Each one that is made takes away two of those whose time
is over: so there are never more than those of the last minute and some older ones.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from laneway.broker.interface import Broker, PutDocument, RemoveDocument
from laneway.errors import DocumentChanged

COLLECTION = "sqs_waits"
WAIT_MS = 60_000
DELETED, PURGED = "deleted", "purged"


class Waits:
    def __init__(self, broker: Broker, *, is_on: bool) -> None:
        self._broker = broker
        self._is_on = is_on
        self._noted: OrderedDict[str, bytes] | None = None  # the documents, as they came, once one was looked for

    def is_waiting(self, what: str, vhost: str, name: str) -> bool:
        document = self._broker.topology.document(COLLECTION, _key(what, vhost, name))
        return self._is_on and document is not None and int(document) > self._broker.now()

    async def begin(self, what: str, vhost: str, name: str) -> bool:
        """False if another request was faster."""
        if not self._is_on:
            return True
        if self._noted is None:
            found = self._broker.topology.documents(COLLECTION)
            self._noted = OrderedDict(sorted(found.items(), key=lambda one: int(one[1])))
            self._broker.topology.on_document(self._note)
        key = _key(what, vhost, name)
        seen = ((COLLECTION, key, self._broker.topology.document(COLLECTION, key)),)
        until_ms = self._broker.now() + WAIT_MS
        try:
            await self._broker.ask(PutDocument(COLLECTION, key, str(until_ms).encode(), seen))
        except DocumentChanged:
            return False
        for _ in range(2):
            await self._forget_one(self._noted)
        return True

    async def _forget_one(self, noted: OrderedDict[str, bytes]) -> None:
        key, document = next(iter(noted.items()), ("", b""))
        if document and int(document) <= self._broker.now():
            del noted[key]
            try:
                await self._broker.ask(RemoveDocument(COLLECTION, key, ((COLLECTION, key, document),)))
            except DocumentChanged:
                pass  # it waits again, or somebody else took it away

    def _note(self, collection: str, key: str, document: bytes | None) -> None:
        if collection == COLLECTION and self._noted is not None:
            self._noted.pop(key, None)
            if document is not None:
                self._noted[key] = document


def _key(what: str, vhost: str, name: str) -> str:
    return msgspec.json.encode((what, vhost, name)).decode()
