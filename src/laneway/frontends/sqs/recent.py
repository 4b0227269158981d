"""What this process remembers about messages that passed through it lately. It saves work and is bounded; nothing is
wrong when it is forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import mod
from typing import Generic, TypeVar

_V = TypeVar("_V")


class Recent(Generic[_V]):
    """A value for each of the latest messages. Message numbers are unique within a store, so each store has a ring,
    found by its tag: there a message pushes out the one whose number is `count` less."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rings: dict[int, list[tuple[int, _V | None]]] = {}

    def note(self, tag: int, seqs: Iterable[int], values: Iterable[_V]) -> None:
        ring, count = self._rings.get(tag) or self._new(tag), self._count
        for entry in zip(seqs, values, strict=False):
            ring[entry[0] % count] = entry

    def get(self, tag: int, seqs: Sequence[int]) -> list[_V | None]:
        ring = self._rings.get(tag) or self._new(tag)
        entries = map(ring.__getitem__, map(mod, seqs, repeat(self._count)))
        return [value if noted == seq else None for seq, (noted, value) in zip(seqs, entries, strict=True)]

    def _new(self, tag: int) -> list[tuple[int, _V | None]]:
        self._rings[tag] = [(0, None)] * self._count  # no message has the number 0
        return self._rings[tag]
