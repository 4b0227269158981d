"""Which rows are wanted: by kind, by queue, by time. What Spark pushes down and what the options say, as one thing.

Names have few values, all of them known when a read is planned: a filter on a name is tried on each of them once, in
plain Python, and what remains for the millions of rows is a look into a table of yes and no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from laneway.core.catalogue import QueueName
from laneway.core.events import Kind
from laneway.pipeline.commits import Rows

Bools = npt.NDArray[np.bool_]
KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
FAR_PAST_MS, FAR_FUTURE_MS = -(1 << 62), 1 << 62


Catalogue = Mapping[int, QueueName]  # by queue number
NameFilter = Callable[[str | None], bool]
QueueFilter = Callable[[int | None, QueueName | None], bool]


class Selection(NamedTuple):
    """All of these must hold. It travels to the tasks, so it is made of plain values."""

    kinds: frozenset[int] | None = None  # None: all
    queues: frozenset[int] | None = None  # numbers; 0 stands for no queue
    unknown_queues: bool = True  # whether rows of queues that the catalogue does not have are wanted
    known_queues: frozenset[int] = frozenset()  # the numbers of the catalogue, if `queues` is given
    since_ms: int = FAR_PAST_MS
    until_ms: int = FAR_FUTURE_MS  # inclusive

    @property
    def is_everything(self) -> bool:
        return (
            self.kinds is None
            and self.queues is None
            and self.since_ms == FAR_PAST_MS
            and self.until_ms == FAR_FUTURE_MS
        )

    @property
    def is_nothing(self) -> bool:
        return (
            self.since_ms > self.until_ms
            or self.kinds == frozenset()
            or (self.queues == frozenset() and not self.unknown_queues)
        )

    def with_kinds(self, wanted: NameFilter) -> Selection:
        found = {number for number, name in KIND_NAMES.items() if wanted(name)}
        return self._replace(kinds=frozenset(found if self.kinds is None else found & self.kinds))

    def with_queues(self, catalogue: Catalogue, wanted: QueueFilter) -> Selection:
        found = {number for number, names in catalogue.items() if wanted(number, names)}
        if wanted(None, None):
            found.add(0)
        return self._replace(
            queues=frozenset(found if self.queues is None else found & self.queues),
            known_queues=frozenset(catalogue),
            unknown_queues=self.unknown_queues and wanted(None, None),
        )

    def between(self, since_ms: int = FAR_PAST_MS, until_ms: int = FAR_FUTURE_MS) -> Selection:
        """Both inclusive."""
        return self._replace(since_ms=max(since_ms, self.since_ms), until_ms=min(until_ms, self.until_ms))


class Sieve:
    """A selection made ready for many rows."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._kinds: Bools | None = None
        if selection.kinds is not None:
            self._kinds = np.zeros(256, np.bool_)
            self._kinds[list(selection.kinds)] = True
        self._queues: Bools | None = None
        if selection.queues is not None:
            self._make_queues(selection.queues)

    def _make_queues(self, queues: frozenset[int]) -> None:
        """A table up to the highest known number; above it all are unknown."""
        known = self._selection.known_queues
        table = np.full(max(known, default=0) + 2, self._selection.unknown_queues, np.bool_)
        table[list(known | {0})] = False
        table[list(queues)] = True
        self._queues = table

    def mask(self, rows: Rows) -> Bools | None:
        """None: all of them."""
        selection = self._selection
        masks: list[Bools] = []
        if self._kinds is not None:
            masks.append(self._kinds[rows["kind"]])
        if self._queues is not None:
            masks.append(self._queues[np.minimum(rows["queue"], len(self._queues) - 1)])
        if selection.since_ms > FAR_PAST_MS:
            masks.append(rows["at_ms"].astype(np.int64) >= selection.since_ms)
        if selection.until_ms < FAR_FUTURE_MS:
            masks.append(rows["at_ms"].astype(np.int64) <= selection.until_ms)
        if not masks:
            return None
        result = masks[0]
        for mask in masks[1:]:
            result = result & mask
        return result
