"""The sections about ends: dead letters, and the audit's proof that every message had one end."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.pipeline.report.charts import stack
from laneway.pipeline.report.markup import Html, count, join, moment, shortened, tag
from laneway.pipeline.report.tables import (
    Row,
    TableColumn,
    Tables,
    badge,
    legend,
    more,
    not_made,
    nothing,
    queue_of,
    section,
    table,
)

MOST_VIOLATIONS = 50
MOST_SIGNATURES = 25
SAMPLES = 5

#: Why messages die, each with its colour.
REASONS = {"rejected": "s0", "max_receives": "s1", "expired": "s4", "overflow": "s2"}

#: What may have become of a message, in the order it is told.
FATES = (
    *("acked", "dead", "moved", "redriven", "expired", "shed", "rejected", "max_receives"),
    *("deleted", "retention", "purged", "queue_deleted", "waiting", "delayed", "leased"),
)
BEGINNINGS = ("published", "moved_in", "copied_in", "from_before")


def verdict(tables: Tables) -> Html:
    """The first thing on the page: was anything lost?"""
    rows = tables.get("audit_verdict")
    if not rows:
        told = tag("p", "Whether every message had exactly one end is not proven yet: laneway pipeline run audit.")
        return tag("div", tag("b", "Not audited"), told, class_="verdict warn", role="status")
    found = rows[0]
    looked_at = f"{count(found['events'])} events, commits {found['first_position']:,} to {found['last_position']:,}"
    if found["verdict"] == "clean":
        words = f"Every confirmed message has exactly one end or is still there, in order: {looked_at} were checked."
        if not found["is_whole"]:
            words += " What came before them is no longer in the history."
        return tag("div", tag("b", "✓ Nothing was lost"), tag("p", words), class_="verdict good", role="status")
    many = f"{found['violations']:,} violation" + ("" if found["violations"] == 1 else "s")
    told = tag("p", f"Found in {looked_at}. ", tag("a", "See what they are", href="#audit"), ".")
    return tag("div", tag("b", f"✗ {many}"), told, class_="verdict bad", role="alert")


def dead_letters(tables: Tables) -> Html:
    """How many died of what, and what was said when they did."""
    title = "Dead letters"
    lead = (
        "By queue and reason, and by error signature: what was said of them, with everything left out that differs "
        "from one to the next."
    )
    rows = tables.get("deadletters")
    if rows is None:
        return section("deadletters", title, lead, not_made("deadletters"))
    if not rows:
        return section("deadletters", title, lead, nothing("Nothing died in this time."))
    return section("deadletters", title, lead, _by_reason(rows), tag("h3", "By signature"), _by_signature(rows))


def _by_reason(rows: Sequence[Row]) -> Html:
    reasons = [*REASONS, *sorted({row["reason"] for row in rows} - REASONS.keys())]
    colours = {reason: REASONS.get(reason, "rest") for reason in reasons}
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        of_queue = counts.setdefault(queue_of(row), dict.fromkeys(reasons, 0))
        of_queue[row["reason"]] += row["letters"]
    most = max(sum(of_queue.values()) for of_queue in counts.values()) or 1
    columns = [TableColumn("queue", "head"), TableColumn("", "draw"), TableColumn("all", "n")]
    columns += [TableColumn(reason.replace("_", " "), "n") for reason in reasons]
    body = [
        [
            queue,
            stack([(of_queue[reason] / most, colours[reason]) for reason in reasons]),
            count(sum(of_queue.values())),
            *(count(of_queue[reason]) if of_queue[reason] else "" for reason in reasons),
        ]
        for queue, of_queue in sorted(counts.items(), key=lambda pair: (-sum(pair[1].values()), pair[0]))
    ]
    shown = {reason.replace("_", " "): colours[reason] for reason in reasons}
    return join(legend(shown), table("Dead letters by queue and reason", columns, body))


def _by_signature(rows: Sequence[Row]) -> Html:
    """Rows of one signature at different times are one here."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((queue_of(row), row["reason"], row["signature"] or ""), []).append(row)
    ordered = sorted(groups.items(), key=lambda pair: (-sum(row["letters"] for row in pair[1]), pair[0]))
    columns = [
        *(
            TableColumn("letters", "n"),
            TableColumn("there still", "n"),
            TableColumn("queue", "head"),
            TableColumn("reason"),
        ),
        *(TableColumn("signature", "wide"), TableColumn("first (UTC)", "when"), TableColumn("last (UTC)", "when")),
    ]
    body = [
        [
            count(sum(row["letters"] for row in found)),
            count(sum(row["waiting"] for row in found)),
            queue,
            badge(reason.replace("_", " ")),
            _signature(signature, found),
            moment(min(row["first_at"] for row in found), seconds=True),
            moment(max(row["last_at"] for row in found), seconds=True),
        ]
        for (queue, reason, signature), found in ordered[:MOST_SIGNATURES]
    ]
    return join(table("Dead letters by error signature", columns, body), more(ordered, MOST_SIGNATURES, "signatures"))


def _signature(signature: str, rows: Sequence[Row]) -> Html:
    """What was said, with one case as it was, and ids to look at."""
    example = next((row["example"] for row in rows if row["example"]), "")
    ids = [one for row in rows for one in row["sample_message_ids"] or []][:SAMPLES]
    what = tag("pre", shortened(signature, 300)) if signature else tag("span", "nothing was said", class_="soft")
    if not ids:
        return what
    said = tag("pre", shortened(example, 1000)) if example and example != signature else None
    lines = [tag("li", tag("span", one, class_="mono")) for one in ids]
    return join(what, tag("details", tag("summary", "for example"), said, tag("ul", lines)))


def audit(tables: Tables) -> Html:
    title = "Audit"
    lead = (
        "Every message that was confirmed must have exactly one end, or still be there; in order inside its priority; "
        "none delivered after its ack was answered; no gap in the history."
    )
    fates, violations = tables.get("audit_fates"), tables.get("audit_violations")
    if fates is None or violations is None:
        return section("audit", title, lead, not_made("audit"))
    return section("audit", title, lead, _fates(fates), tag("h3", "Violations"), _violations(violations))


def _fates(rows: Sequence[Row]) -> Html:
    if not rows:
        return nothing("No queue was in the history.")
    told = [name for name in (*BEGINNINGS, *FATES) if any(row[name] for row in rows)]
    columns = [TableColumn("queue", "head"), *(TableColumn(name.replace("_", " "), "n") for name in told)]
    body = [[queue_of(row), *(count(row[name]) if row[name] else "" for name in told)] for row in rows]
    if len(rows) > 1:
        body.append(["all", *(count(sum(row[name] for row in rows)) for name in told)])
    return table("What has become of the messages of each queue", columns, body)


def _violations(rows: Sequence[Row]) -> Html:
    if not rows:
        return nothing("None.")
    columns = [
        *(
            TableColumn("commit", "n"),
            TableColumn("time (UTC)", "when"),
            TableColumn("what", "head"),
            TableColumn("queue"),
            TableColumn("message"),
        ),
        TableColumn("in words", "wide"),
    ]
    body = [
        [
            f"{row['position']:,}" if row["position"] is not None else "–",
            moment(row["time"], seconds=True),
            str(row["type"]).replace("_", " "),
            queue_of(row),
            tag("span", row["message_id"] or str(row["message"] or "–"), class_="mono"),
            row["words"],
        ]
        for row in rows[:MOST_VIOLATIONS]
    ]
    return join(table("Violations, in the order of history", columns, body), more(rows, MOST_VIOLATIONS, "violations"))
