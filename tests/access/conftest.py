"""Access over a plain dictionary of documents, with a clock and a randomness source that never surprise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from laneway.access import Access, AccessLimits, Account, passwords
from laneway.access import access as access_module

T = TypeVar("T")


class DictStore:
    """Documents in dictionaries. `hold`, when set, is waited for before a change is taken."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, bytes]] = {}
        self.hold: asyncio.Event | None = None

    def documents(self, collection: str) -> dict[str, bytes]:
        return dict(self.collections.get(collection, {}))

    async def put_document(self, collection: str, key: str, document: bytes) -> None:
        await self._held()
        self.collections.setdefault(collection, {})[key] = document

    async def remove_document(self, collection: str, key: str) -> None:
        await self._held()
        del self.collections[collection][key]

    async def _held(self) -> None:
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()


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
