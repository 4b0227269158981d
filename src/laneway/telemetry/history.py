"""The main figures of the last hour, in memory: one row every ten seconds, and no more rows than fit into an hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from laneway.telemetry.load import Loads

STEP_S = 10
ROWS = 360

#: Of all partitions and processes together; of the oldest message, the age.
FIGURES = (
    "waiting",
    "leased",
    "delayed",
    "dead",
    "oldest_age_seconds",
    "published_per_second",
    "delivered_per_second",
    "acked_per_second",
    "connections",
    "resident_bytes",
    "cpu_share",
    "journal_bytes",
)
_LARGEST = FIGURES.index("oldest_age_seconds")


class HistoryRow(msgspec.Struct, frozen=True, array_like=True):
    at_s: int  # seconds since 1970, a multiple of STEP_S
    figures: list[float]


class FigureHistory:
    """Of one process."""

    def __init__(self) -> None:
        self.rows: deque[HistoryRow] = deque(maxlen=ROWS)

    def note(self, now_s: float, loads: Loads) -> None:
        partitions, processes = loads.partitions, loads.processes
        figures = [
            *(sum(getattr(one, name) for one in partitions) for name in ("waiting", "leased", "delayed", "dead")),
            max((one.oldest_age_s for one in partitions), default=0.0),
            *(sum(one.rates[place] for one in partitions) for place in range(3)),
            *(sum(getattr(one, n) for one in processes) for n in ("connection_count", "resident_bytes", "cpu_share")),
            sum(one.journal_bytes for one in partitions),
        ]
        at_s = int(now_s) // STEP_S * STEP_S
        if self.rows and self.rows[-1].at_s >= at_s:  # the clock was set back, or this came early
            return
        self.rows.append(HistoryRow(at_s, [round(figure, 3) for figure in figures]))


def joined_rows(histories: Iterable[Iterable[HistoryRow]]) -> list[HistoryRow]:
    """Of several processes, time by time. Of one that did not run at a time, nothing is in its row."""
    found: dict[int, list[float]] = {}
    for rows in histories:
        for row in rows:
            known = found.get(row.at_s)
            if known is None:
                found[row.at_s] = list(row.figures)
                continue
            for place, figure in enumerate(row.figures):
                known[place] = max(known[place], figure) if place == _LARGEST else known[place] + figure
    return [HistoryRow(at_s, found[at_s]) for at_s in sorted(found)][-ROWS:]
