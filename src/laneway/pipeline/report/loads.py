"""The sections about load: which keys, tenants and partitions have most of it, and what it takes to carry it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from laneway.pipeline.report.charts import bar
from laneway.pipeline.report.markup import Child, Html, count, join, moment, percent, tag
from laneway.pipeline.report.tables import (
    Row,
    TableColumn,
    Tables,
    badge,
    more,
    not_made,
    nothing,
    queue_of,
    section,
    table,
)

MOST = 12
HOT = 2.0  # times the mean


def hot(tables: Tables) -> Html:
    title = "Hot keys, tenants and partitions"
    lead = "Where the load is, in messages published. A partition is hot above twice the mean of all."
    made = [tables.get(name) for name in ("hotkeys_keys", "hotkeys_tenants", "hotkeys_partitions")]
    keys, tenants, partitions = made
    if keys is None or tenants is None or partitions is None:
        return section("hot", title, lead, not_made("hotkeys"))
    if not tenants:
        return section("hot", title, lead, nothing("Nothing was published in this time."))
    return section(
        "hot",
        title,
        lead,
        tag("div", _keys(keys), _tenants(tenants), class_="two"),
        tag("h3", "Partitions"),
        _partitions(partitions),
    )


def _keys(rows: Sequence[Row]) -> Html:
    if not rows:
        return tag("div", tag("h3", "Keys"), nothing("No message had a key."))
    return tag("div", tag("h3", "Keys"), _ranking("Keys with the most messages", "key", rows, _key))


def _key(row: Row) -> Child:
    return join(str(row["key"]), tag("span", f" {queue_of(row)}", class_="badge"))


def _tenants(rows: Sequence[Row]) -> Html:
    ranked = _ranking("Messages by tenant", "tenant", rows, lambda row: row["tenant"] or "(none named)")
    return tag("div", tag("h3", "Tenants"), ranked)


def _ranking(caption: str, what: str, rows: Sequence[Row], name: Callable[[Row], Child]) -> Html:
    ordered = sorted(rows, key=lambda row: -row["published"])
    most = ordered[0]["published"] or 1
    columns = [
        TableColumn(what, "head"),
        TableColumn("", "draw"),
        *(TableColumn(one, "n") for one in ("messages", "share", "a second")),
    ]
    body = [
        [
            name(row),
            bar(row["published"] / most),
            count(row["published"]),
            percent(row["share"]),
            count(row["per_second"]),
        ]
        for row in ordered[:MOST]
    ]
    return join(table(caption, columns, body), more(ordered, MOST, f"{what}s"))


def _partitions(rows: Sequence[Row]) -> Html:
    """Each against the level above which it is hot; the level stands at the same place in every bar."""
    highest = max(HOT * 1.25, max((row["times_mean"] for row in rows), default=0.0))
    columns = [
        *(
            TableColumn("partition", "head"),
            TableColumn("times the mean", "draw"),
            TableColumn("", "n"),
            TableColumn("messages", "n"),
        ),
        *(TableColumn("a second", "n"), TableColumn("state"), TableColumn("most of it is")),
    ]
    ordered = sorted(rows, key=lambda row: row["partition"])
    body = [
        [
            f"{row['partition']}",
            bar(row["times_mean"] / highest, colour="bad" if row["is_hot"] else "s0", mark=HOT / highest),
            f"{row['times_mean']:.2f}×",
            count(row["published"]),
            count(row["per_second"]),
            badge("hot", "bad") if row["is_hot"] else badge("fine", "good"),
            _top(row),
        ]
        for row in ordered[:64]
    ]
    return join(table("Load by partition; the mark is twice the mean", columns, body), more(ordered, 64, "partitions"))


def _top(row: Row) -> str:
    if row["top_queue"] is None:
        return "–"
    name = queue_of({"vhost": row["top_vhost"], "queue": row["top_queue"]})
    return f"{name}, key {row['top_key']}" if row["top_key"] is not None else name


def capacity(tables: Tables) -> Html:
    title = "Capacity"
    lead = (
        "Consumers needed: the highest rate of arrivals, divided by what one consumer does, times the margin. "
        "A queue exceeds its limit at the time shown if it goes on growing as it did last."
    )
    rows = tables.get("capacity_queues")
    if rows is None:
        return section("capacity", title, lead, not_made("capacity"))
    if not rows:
        return section("capacity", title, lead, nothing("There are no queues yet."))
    columns = [
        *(
            TableColumn("queue", "head"),
            TableColumn("most arrivals", "n"),
            TableColumn("a consumer does", "n"),
        ),
        *(TableColumn("consumers", "n"), TableColumn("needed", "n"), TableColumn("partitions", "n")),
        *(
            TableColumn("backlog", "n"),
            TableColumn("an hour", "n"),
            TableColumn("limit", "n"),
            TableColumn("exceeds (UTC)", "when"),
        ),
    ]
    body = [
        [
            queue_of(row),
            f"{count(row['arrival_max_per_second'])}/s",
            f"{count(row['consumer_per_second'])}/s" if row["consumer_per_second"] is not None else "–",
            count(row["consumers"]),
            _needed(row),
            count(row["partitions_needed"]),
            count(row["backlog"]),
            _growth(row["backlog_per_hour"]),
            count(row["backlog_limit"]),
            _exceeds(row),
        ]
        for row in sorted(rows, key=_soonest)
    ]
    return section("capacity", title, lead, table("What each queue takes", columns, body))


def _soonest(row: Row) -> tuple[float, str]:
    hours = row["exceeds_in_hours"]
    return math.inf if hours is None else hours, queue_of(row)


def _needed(row: Row) -> Child:
    needed = row["consumers_needed"]
    if needed is None:
        return "–"
    return tag("b", count(needed), class_="bad") if needed > (row["consumers"] or 0) else count(needed)


def _growth(per_hour: float | None) -> str:
    if per_hour is None:
        return "–"
    return f"{'+' if per_hour > 0 else '−' if per_hour < 0 else '±'}{count(abs(per_hour))}"


def _exceeds(row: Row) -> Child:
    hours = row["exceeds_in_hours"]
    if hours is None:
        if row["backlog_limit"] is None:
            return badge("no limit")
        return badge("history too short") if row["backlog_per_hour"] is None else badge("not in sight", "good")
    if hours <= 0:
        return badge("exceeded now", "bad")
    state = badge("soon", "bad") if hours < 24 else badge("later", "warn")
    return join(state, f" {moment(row['exceeds_at'])}")
