"""The sections about traffic and objectives: what came and went, how long it waited, what is left of the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from laneway.pipeline.report.charts import COLOURS, Band, LogScale, Mark, Series, bar, colours, spread, timeline
from laneway.pipeline.report.markup import Child, Html, count, duration, join, moment, percent, tag, utc
from laneway.pipeline.report.outages import Outage, outages, together
from laneway.pipeline.report.tables import (
    Row,
    TableColumn,
    Tables,
    badge,
    figures,
    legend,
    more,
    not_made,
    nothing,
    queue_of,
    section,
    table,
)

TIERS = ("critical", "normal", "low")
REST = "all others"

#: What is left of an error budget is told once the history is nearly as long as its window.
SHARE_OF_WINDOW = 0.9


def traffic(tables: Tables) -> Html:
    """What came in and what piled up, by queue."""
    lead = "Messages published a second, and messages in the queues (ready, delayed or leased), by queue."
    rows = tables.get("traffic")
    if rows is None:
        return section("traffic", "Traffic", lead, not_made("report"))
    if not rows:
        return section("traffic", "Traffic", lead, nothing("Nothing was published in this time."))
    grid = _Grid(rows)
    step_s = grid.step_s
    came = grid.series(lambda row: row["published"] / step_s)
    waiting = grid.series(lambda row: row["waiting"])
    columns = [TableColumn("time (UTC)", "head"), TableColumn("queue"), *(TableColumn(name, "n") for name in _FLOWS)]
    cells = (
        [moment(row["time"], seconds=True), queue_of(row), *(count(row[name]) for name in _FLOWS)]
        for row in sorted(rows, key=lambda row: (utc(row["time"]), queue_of(row)))
    )
    return section(
        "traffic",
        "Traffic",
        lead,
        legend(grid.legend),
        tag(
            "div",
            tag(
                "div",
                tag("h3", "Published a second"),
                timeline("Published a second", grid.times, came, bands=grid.bands),
            ),
            tag(
                "div",
                tag("h3", "In the queue"),
                timeline("Messages in the queue", grid.times, waiting, bands=grid.bands),
            ),
            class_="two",
        ),
        _outages(grid.outages),
        figures(f"Traffic by {duration(step_s)} and queue", columns, cells),
    )


def _outages(found: Sequence[Outage]) -> Html:
    if not found:
        return join()
    columns = [
        *(TableColumn("queue", "head"), TableColumn("from (UTC)", "when"), TableColumn("to (UTC)", "when")),
        *(TableColumn("for", "n"), TableColumn("waited at most", "n")),
    ]
    body = [
        [
            one.queue,
            moment(one.start, seconds=True),
            "still" if one.is_open else moment(one.end, seconds=True),
            duration((one.end - one.start).total_seconds()),
            count(one.most),
        ]
        for one in found[:MOST_OUTAGES]
    ]
    return join(
        tag("h3", "Outages"),
        tag("p", "Messages waited all this time, and nobody received any. The charts are shaded there.", class_="soft"),
        table("Times in which nothing was received", columns, body),
        more(found, MOST_OUTAGES, "outages"),
    )


MOST_OUTAGES = 20

_FLOWS = ("published", "delivered", "redelivered", "acked", "died", "waiting")


class _Grid:
    """Rows of one step and one queue each, laid out as series over all steps. Small queues share one line."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._cells = {(utc(row["time"]), queue_of(row)): row for row in rows}
        self.times = sorted({time for time, _ in self._cells})
        self.step_s = float(rows[0]["step_seconds"])
        self.outages = outages(rows)
        self.bands = [Band(words, start, end) for words, start, end in together(self.outages)]
        totals: dict[str, int] = {}
        for row in rows:
            totals[queue_of(row)] = totals.get(queue_of(row), 0) + row["published"] + row["waiting"]
        ordered = sorted(totals, key=lambda name: (-totals[name], name))
        fits = len(ordered) <= COLOURS
        self.own = ordered if fits else ordered[: COLOURS - 1]
        self.shared = [] if fits else ordered[COLOURS - 1 :]
        self.legend = colours(self.own) | ({f"{REST} ({len(self.shared)})": "rest"} if self.shared else {})

    def series(self, value: Callable[[Row], float]) -> list[Series]:
        found = [self.one(name, value) for name in self.own]
        if self.shared:
            together = [self.one(name, value).values for name in self.shared]
            found.append(Series(REST, [sum(one or 0 for one in step) for step in zip(*together, strict=True)], "rest"))
        return found

    def one(self, queue: str, value: Callable[[Row], float | None], empty: float | None = 0.0) -> Series:
        values = [value(row) if (row := self._cells.get((time, queue))) else empty for time in self.times]
        return Series(queue, values, self.legend.get(queue, "rest"))


def waiting(tables: Tables) -> Html:
    """How long messages waited for their first delivery, against the objective."""
    title = "Waiting time"
    lead = (
        "From when a message could be received until it was, first delivery. "
        "The mark is the objective of the queue's tier: what is right of it is late."
    )
    rows = tables.get("slo_queues")
    if rows is None:
        return section("waiting", title, lead, not_made("slo"))
    measured = [row for row in rows if row["measured"]]
    if not measured:
        return section("waiting", title, lead, nothing("No message was delivered in this time."))
    known = [row[f"wait_{rank}_ms"] for row in measured for rank in _RANKS] + [
        row["objective_seconds"] * 1000 for row in measured if row["objective_seconds"]
    ]
    scale = LogScale.around([max(1.0, value) for value in known if value is not None])
    columns = [
        *(TableColumn("queue", "head"), TableColumn("tier"), TableColumn("objective", "n")),
        TableColumn(f"{_ms(scale.lowest)} … {_ms(scale.highest)}", "draw"),
        *(TableColumn(rank, "n") for rank in _RANKS),
    ]
    body = [
        [
            queue_of(row),
            badge(row["tier"]),
            duration(row["objective_seconds"]),
            spread(
                [(dot, row[f"wait_{rank}_ms"]) for rank, dot in _DOTS],
                row["objective_seconds"] * 1000 if row["objective_seconds"] else None,
                scale,
            ),
            *(_judged(row[f"wait_{rank}_ms"], row["objective_seconds"]) for rank in _RANKS),
        ]
        for row in sorted(measured, key=_by_tier)
    ]
    dots = {"p50": "s0", "p95": "s4", "p99": "s1", "max": "rest"}
    return section(
        "waiting",
        title,
        lead,
        legend(dots),
        table("Waiting time by queue, on a scale of powers of ten", columns, body),
        _waiting_over_time(tables, measured),
    )


_RANKS = ("p50", "p95", "p99", "max")
_DOTS = (("max", "rest"), ("p99", "s1"), ("p95", "s4"), ("p50", "s0"))


def _waiting_over_time(tables: Tables, queues: Sequence[Row]) -> Html:
    """The 95th percentile, one chart a tier, because each has an objective of its own."""
    rows = tables.get("traffic") or []
    if not rows:
        return join()
    grid = _Grid(rows)
    charts = []
    for tier in TIERS:
        names = [queue_of(row) for row in queues if row["tier"] == tier and queue_of(row) in grid.own]
        objectives = [row["objective_seconds"] for row in queues if row["tier"] == tier and row["objective_seconds"]]
        series = [grid.one(name, _p95_seconds, None) for name in names]
        highest = max((value for one in series for value in one.values if value is not None), default=None)
        if highest is None:
            continue
        # An objective far above everything would press the lines to the ground; the words say it instead.
        is_near = bool(objectives) and objectives[0] <= 4 * highest
        words = f"objective {duration(objectives[0])}" if objectives else "no objective"
        charts.append(
            tag(
                "div",
                tag("h3", f"{tier}: 95 % waited no longer than", tag("span", f" · {words}", class_="soft")),
                legend({name: grid.legend[name] for name in names}),
                timeline(
                    f"Waiting time of {tier} queues, 95th percentile",
                    grid.times,
                    series,
                    shown=duration,
                    marks=[Mark(words, objectives[0])] if is_near else [],
                    bands=grid.bands,
                    height=170,
                ),
            )
        )
    return tag("div", charts, class_="two")


def _p95_seconds(row: Row) -> float | None:
    return None if row["wait_p95_ms"] is None else row["wait_p95_ms"] / 1000


def objectives(tables: Tables) -> Html:
    """The share that came in time, and what is left of the error budget."""
    title = "Objectives and error budget"
    rows = tables.get("slo_queues")
    if rows is None:
        return section("objectives", title, "The share of messages that were received in time.", not_made("slo"))
    if not rows:
        return section("objectives", title, "The share of messages in time.", nothing("There are no queues yet."))
    target = rows[0]["objective_share"]
    budget = rows[0]["budget_hours"]
    window_s = budget / (1 - target) * 3600 if target < 1 else 0.0
    covered = span(tables)
    is_whole = covered is not None and (covered[1] - covered[0]).total_seconds() >= SHARE_OF_WINDOW * window_s
    lead = (
        f"Of each queue's messages {percent(target)} shall be received in time: the rest is the error budget. "
        "What is spent of it is told of the time on this page. "
        + (
            f"Over a window of {duration(window_s)} it is {duration(budget * 3600)} in which everything is late."
            if is_whole
            else f"What that leaves of a window of {duration(window_s)} is not told: this history is too short."
        )
    )
    columns = [
        *(TableColumn("queue", "head"), TableColumn("tier"), TableColumn("in time", "draw"), TableColumn("share", "n")),
        *(TableColumn(name, "n") for name in ("measured", "late", "missed", "overdue")),
        TableColumn("budget spent", "n"),
        *([TableColumn("budget left", "n")] if is_whole else []),
    ]
    body = []
    for row in sorted(rows, key=_by_tier):
        share, left = row["within_share"], row["budget_left_hours"]
        state = "good" if share is None or share >= target else "warn" if share >= 0.95 else "bad"
        body.append(
            [
                queue_of(row),
                badge(row["tier"]),
                bar(share or 0.0, colour=state, mark=target) if share is not None else "",
                tag("span", percent(share), class_=state),
                *(count(row[name]) for name in ("measured", "late", "missed", "overdue")),
                _spent(share, target),
                *([_budget(left)] if is_whole else []),
            ]
        )
    words = "measured: delivered at least once · late: after the objective · missed: died before anyone received it · "
    return section(
        "objectives",
        title,
        lead,
        table("Share in time and error budget by queue", columns, body),
        tag("p", words + "overdue: waits longer than that even now", class_="soft"),
    )


def _spent(share: float | None, target: float) -> Child:
    """Of the error budget of the time that was measured: more than all of it is so many times as much."""
    if share is None or target >= 1:
        return "–"
    spent = (1 - share) / (1 - target)
    return tag("b", f"{count(spent)}×", class_="bad") if spent > 1 else percent(spent)


def _budget(left: float | None) -> Child:
    if left is None:
        return "–"
    if left < 0:
        return join(badge("overspent", "bad"), f" {duration(-left * 3600)}")
    return duration(left * 3600)


def _judged(wait_ms: float | None, objective_s: float | None) -> Child:
    is_late = wait_ms is not None and objective_s is not None and wait_ms > objective_s * 1000
    return tag("b", _ms(wait_ms), class_="bad") if is_late else _ms(wait_ms)


def _ms(value: float | None) -> str:
    return duration(None if value is None else value / 1000)


def _by_tier(row: Row) -> tuple[int, str]:
    tier = row["tier"]
    return TIERS.index(tier) if tier in TIERS else len(TIERS), queue_of(row)


def span(tables: Tables) -> tuple[datetime, datetime] | None:
    """From when to when the page tells."""
    times = [utc(row["time"]) for row in tables.get("traffic") or [] if row["time"] is not None]
    return (min(times), max(times)) if times else None
