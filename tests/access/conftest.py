"""Access over a plain dictionary of documents, with a clock and a randomness source that never surprise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from laneway.access import Access, AccessLimits, Account, passwords
from laneway.access import access as access_module
from laneway.access.access import SeenDocument
from laneway.errors import DocumentChanged

T = TypeVar("T")


class DictStore:
    """Documents in dictionaries. `hold`, when set, is waited for before a change is taken."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, bytes]] = {}
        self.hold: asyncio.Event | None = None
        self._listeners: list[Callable[[str, str, bytes | None], None]] = []

    def documents(self, collection: str) -> dict[str, bytes]:
        return dict(self.collections.get(collection, {}))

    def document(self, collection: str, key: str) -> bytes | None:
        return self.collections.get(collection, {}).get(key)

    def on_document(self, call: Callable[[str, str, bytes | None], None]) -> None:
        self._listeners.append(call)

    async def put_document(self, collection: str, key: str, document: bytes, seen: Sequence[SeenDocument]) -> None:
        await self._held(seen)
        self.collections.setdefault(collection, {})[key] = document
        self._tell(collection, key, document)

    async def remove_document(self, collection: str, key: str, seen: Sequence[SeenDocument]) -> None:
        await self._held(seen)
        del self.collections[collection][key]
        self._tell(collection, key, None)

    async def _held(self, seen: Sequence[SeenDocument]) -> None:
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()
        if any(self.document(collection, key) != document for collection, key, document in seen):
            raise DocumentChanged("somebody was faster")

    def _tell(self, collection: str, key: str, document: bytes | None) -> None:
        for call in self._listeners:
            call(collection, key, document)


class CountedBytes:
    """A randomness source that never repeats and never surprises."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        return self.calls.to_bytes(size, "big")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def access(store: DictStore) -> Access:
    return reopened(store)


def reopened(store: DictStore, limits: AccessLimits | None = None) -> Access:
    clock = iter(range(1_000, 1_000_000))
    return Access(store, now_ms=lambda: next(clock), random_bytes=CountedBytes(), limits=limits)


@pytest.fixture
def scrypt_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hashes that passwords were compared with, each at the price of one scrypt."""
    calls: list[str] = []

    def counted(password: str, stored: str) -> bool:
        calls.append(stored)
        return passwords.password_matches(password, stored)

    monkeypatch.setattr(access_module, "password_matches", counted)
    yield calls


def login(access: Access, name: str, password: str, *, from_loopback: bool = True) -> Account:
    return run(access.authenticate_password(name, password, from_loopback=from_loopback))
