"""The journals that a read is of, by number: all partitions of a data folder or a server, or several of one partition
each. Partitions may be added while a stream goes on, so it is asked again and again which there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from laneway.core.partitions import queue_id
from laneway.errors import InvalidInput, NotFound
from laneway.journal.interface import Place
from laneway.pipeline.selection import Catalogue
from laneway.pipeline.sources import FolderSource, ServerSource, Source

PARTITIONS = "partitions"  # the folder in a data folder that has all partitions but 0, which is the data folder itself


class Journals(Protocol):
    @property
    def name(self) -> str:
        """For people."""

    def ends(self) -> dict[int, Place]:
        """Behind the last commit that may be read, of each journal there is by now."""

    def source(self, number: int) -> Source: ...

    def elsewhere(self) -> Catalogue:
        """The names of queues by their ids, if there are several partitions: what messages are bound for that departed
        from one of them."""


def _by_ids(sources: Mapping[int, Source]) -> Catalogue:
    if len(sources) == 1:
        return {}
    return {
        queue_id(number, queue): name
        for number, source in sources.items()
        for queue, name in source.catalogue().items()
    }


class FolderJournals:
    """Partition 0 is the data folder itself, partition N is `partitions/N` in it."""

    def __init__(self, path: str) -> None:
        self._sources: dict[int, FolderSource] = {0: FolderSource(path)}

    @property
    def name(self) -> str:
        return self._sources[0].name

    def ends(self) -> dict[int, Place]:
        found = {0: self._sources[0].end()}
        for number in self._numbers():
            try:
                found[number] = self.source(number).end()
            except (NotFound, InvalidInput):  # it is being made, and nothing has happened there yet
                continue
        return found

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(os.path.join(self._sources[0].path, PARTITIONS))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and int(name) > 0)

    def source(self, number: int) -> FolderSource:
        if number not in self._sources:
            path = os.path.join(self._sources[0].path, PARTITIONS, str(number))
            self._sources[number] = FolderSource(path)
        return self._sources[number]

    def elsewhere(self) -> Catalogue:
        return _by_ids({number: self.source(number) for number in self.ends()})


class ServerJournals:
    """All partitions of a running server."""

    def __init__(self, server: ServerSource) -> None:
        self._sources = {0: server}

    @property
    def name(self) -> str:
        return self._sources[0].name

    def ends(self) -> dict[int, Place]:
        first = self._sources[0]
        found = {0: first.end()}  # this says how many there are
        return found | {number: self.source(number).end() for number in range(1, first.partition_count)}

    def elsewhere(self) -> Catalogue:
        return _by_ids({number: self.source(number) for number in range(self._sources[0].partition_count)})

    def source(self, number: int) -> ServerSource:
        if number not in self._sources:
            self._sources[number] = self._sources[0].of(number)
        return self._sources[number]


class SeveralJournals:
    """Unrelated journals of one partition each, numbered as they were given."""

    def __init__(self, given: Sequence[FolderJournals | ServerJournals]) -> None:
        self._given = tuple(given)
        self.name = ", ".join(one.name for one in given)

    def ends(self) -> dict[int, Place]:
        found = {}
        for number, one in enumerate(self._given):
            ends = one.ends()
            if len(ends) > 1:
                raise InvalidInput(
                    f"{one.name} has {len(ends)} partitions: read it alone, or give the folders of its partitions",
                    field="path",
                )
            found[number] = ends[0]
        return found

    def source(self, number: int) -> Source:
        return self._given[number].source(0)

    def elsewhere(self) -> Catalogue:
        return {}


class ChosenJournals:
    """Some of the partitions."""

    def __init__(self, all: Journals, numbers: frozenset[int]) -> None:
        self._all = all
        self._numbers = numbers
        self.name = all.name

    def ends(self) -> dict[int, Place]:
        found = self._all.ends()
        unknown = sorted(self._numbers - found.keys())
        if unknown:
            raise InvalidInput(
                f"there is no partition {unknown[0]} in {self.name}; there are {_listed(found)}", field="partitions"
            )
        return {number: end for number, end in found.items() if number in self._numbers}

    def source(self, number: int) -> Source:
        return self._all.source(number)

    def elsewhere(self) -> Catalogue:
        return self._all.elsewhere()


def _listed(found: Mapping[int, Place]) -> str:
    return ", ".join(str(number) for number in sorted(found))
