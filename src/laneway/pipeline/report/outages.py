"""When messages waited and nobody received any, told from the table traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from laneway.pipeline.report.markup import utc
from laneway.pipeline.report.tables import Row, queue_of

#: Fewer steps than these are a pause.
FEWEST_STEPS = 3


@dataclass(frozen=True)
class Outage:
    queue: str
    start: datetime
    end: datetime
    most: int  # messages that waited for their first delivery
    is_open: bool  # it lasted when the history ended


def outages(rows: Sequence[Row]) -> list[Outage]:
    """Of each queue, in the order of time: steps in a row in which nothing was delivered, while messages that could be
    received waited at the end of each."""
    by_queue: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: utc(row["time"])):
        by_queue.setdefault(queue_of(row), []).append(row)
    found = [one for queue, steps in by_queue.items() for one in _of_queue(queue, steps)]
    return sorted(found, key=lambda one: (one.start, one.queue))


def _of_queue(queue: str, steps: Sequence[Row]) -> list[Outage]:
    found, run = [], list[Row]()
    for row in [*steps, None]:
        if row is not None and row.get("unreceived", 0) > 0 and not row["delivered"]:
            run.append(row)
            continue
        if len(run) >= FEWEST_STEPS:
            end = utc(run[-1]["time"]) + timedelta(seconds=run[-1]["step_seconds"])
            most = max(one["unreceived"] for one in run)
            found.append(Outage(queue, utc(run[0]["time"]), end, most, is_open=row is None))
        run = []
    return found


def together(found: Sequence[Outage]) -> list[tuple[str, datetime, datetime]]:
    """Outages that overlap as one, with the names of their queues: charts show several queues."""
    merged: list[tuple[list[str], datetime, datetime]] = []
    for one in found:
        if merged and one.start <= merged[-1][2]:
            names, start, end = merged[-1]
            merged[-1] = ([*names, one.queue], start, max(end, one.end))
        else:
            merged.append(([one.queue], one.start, one.end))
    return [(f"nothing received: {', '.join(dict.fromkeys(names))}", start, end) for names, start, end in merged]
