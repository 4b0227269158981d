"""Idempotency keys, and what each was answered with, oldest first.

Plain state: state.py changes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """What an idempotency key was answered with."""

    fingerprint: bytes
    message_ids: list[str]  # "" for a message of a batch that was refused
    expires_ms: int


class Keys:
    """By (queue number, key); those of one queue are found without a look at the others."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, str], Remembered] = OrderedDict()
        self.by_queue: dict[int, set[str]] = {}
        self.id_count = 0  # message ids in all answers: what this takes of memory goes by them

    def __len__(self) -> int:
        return len(self._known)

    def get(self, queue: int, key: str) -> Remembered | None:
        return self._known.get((queue, key))

    def items(self) -> Iterable[tuple[tuple[int, str], Remembered]]:
        return self._known.items()

    def remember(self, queue: int, key: str, answer: Remembered) -> None:
        """From now on the youngest."""
        before = self._known.pop((queue, key), None)
        self._known[queue, key] = answer
        self.id_count += len(answer.message_ids) - (len(before.message_ids) if before is not None else 0)
        self.by_queue.setdefault(queue, set()).add(key)

    def forget_until(self, at_ms: int) -> int:
        """Forget those that expire by then; when the next one does, 0 if there is none."""
        known = self._known
        while known:
            queue, key = next(iter(known))
            if known[queue, key].expires_ms > at_ms:
                return known[queue, key].expires_ms
            self.id_count -= len(known.pop((queue, key)).message_ids)
            self.by_queue[queue].remove(key)
            if not self.by_queue[queue]:
                del self.by_queue[queue]
        return 0

    def move(self, moved: Callable[[int], int]) -> None:
        """The clock was set: they expire when `moved` says."""
        for key, answer in self._known.items():
            self._known[key] = msgspec.structs.replace(answer, expires_ms=moved(answer.expires_ms))

    def youngest_ms(self) -> int:
        """When the youngest expires, 0 if there is none."""
        return next(reversed(self._known.values())).expires_ms if self._known else 0

    def crowded_until(self, id_count: int) -> int:
        """Until when those expire that must go so that no more than so many ids are left; 0 if none must."""
        until_ms, excess = 0, self.id_count - id_count
        for answer in self._known.values():
            if excess <= 0:
                break
            until_ms, excess = answer.expires_ms, excess - len(answer.message_ids)
        return until_ms

    def queue_deleted(self, queue: int) -> None:
        for key in self.by_queue.pop(queue, ()):
            self.id_count -= len(self._known.pop((queue, key)).message_ids)
