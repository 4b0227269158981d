"""What this process knows about messages of late, by their numbers: no more than a help, and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import md5
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Recent(Generic[_T]):
    """At least so many are remembered, and at most twice as many. In two generations, of which the older goes as a
    whole: a dict that is emptied from its front gets slow."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._newer: dict[int, _T] = {}
        self._older: dict[int, _T] = {}

    def update(self, known: Mapping[int, _T]) -> None:
        if len(self._newer) >= self._count:
            self._older, self._newer = self._newer, {}
        self._newer.update(known)

    def get(self, number: int) -> _T | None:
        found = self._newer.get(number)
        return self._older.get(number) if found is None else found

    def take(self, number: int) -> _T | None:
        """What is known, which is forgotten with that."""
        found = self._newer.pop(number, None)
        return self._older.pop(number, None) if found is None else found


class Md5s:
    """The MD5s that senders were told, so that those who receive the messages soon cost none of their own."""

    def __init__(self, count: int) -> None:
        self._known: Recent[str] = Recent(count)
        self.note = self._known.update

    def of(self, numbers: Sequence[int], bodies: Sequence[bytes]) -> list[str]:
        """Those of messages, by their numbers and bodies. Most are received once: what was known is forgotten."""
        take = self._known.take
        return [take(number) or md5_of(body) for number, body in zip(numbers, bodies, strict=True)]


_MD5 = md5(usedforsecurity=False)  # making one from scratch takes longer than copying it


def md5_of(body: bytes) -> str:
    digest = _MD5.copy()
    digest.update(body)
    return digest.hexdigest()
