"""The page as a whole: tables in, one HTML document out. Nothing is read, nothing is written, no clock is looked at."""

from __future__ import annotations

from datetime import datetime
from importlib.resources import files

from laneway.pipeline.report import ends, loads, sections
from laneway.pipeline.report.markup import Html, count, join, moment, percent, tag, utc
from laneway.pipeline.report.tables import Tables

#: The page has no script and loads nothing. Should markup ever get past the escaping, the browser still runs nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

CONTENTS = {
    "traffic": "Traffic",
    "waiting": "Waiting time",
    "objectives": "Objectives",
    "hot": "Hot keys",
    "deadletters": "Dead letters",
    "capacity": "Capacity",
    "audit": "Audit",
}


def page(tables: Tables, *, made_at: datetime, source: str = "", title: str = "Laneway report") -> str:
    """The report over these tables; those that are missing are named, with the command that makes them."""
    span = sections.span(tables)
    when = _span(*span) if span else "no traffic yet"
    head = tag(
        "header",
        tag("h1", title),
        tag("p", f"{when} · read from {source}" if source else when, class_="lead"),
        tag("nav", [tag("a", name, href=f"#{key}") for key, name in CONTENTS.items()], aria_label="Sections"),
        ends.verdict(tables),
        tiles(tables),
        class_="top",
    )
    body = tag(
        "main",
        sections.traffic(tables),
        sections.waiting(tables),
        sections.objectives(tables),
        loads.hot(tables),
        ends.dead_letters(tables),
        loads.capacity(tables),
        ends.audit(tables),
    )
    foot = tag(
        "footer",
        tag(
            "p",
            f"Made {moment(made_at, seconds=True)} UTC from the tables of the warehouse by ",
            tag("code", "laneway pipeline run report"),
            ". The page is one file: it loads nothing, and can be sent by mail.",
        ),
    )
    document = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", title),
            tag("style", Html(_style())),
        ),
        tag("body", head, body, foot),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def _span(start: datetime, end: datetime) -> str:
    is_short = (end - start).total_seconds() < 600
    last = (
        f"{utc(end):%H:%M:%S}" if is_short and utc(start).date() == utc(end).date() else moment(end, seconds=is_short)
    )
    return f"{moment(start, seconds=is_short)} to {last} UTC"


def _style() -> str:
    return files("laneway.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")


def tiles(tables: Tables) -> Html:
    """The few figures that are looked at first."""
    traffic = tables.get("traffic")
    queues = tables.get("slo_queues")
    shown: list[tuple[str, str]] = []
    if traffic is not None:
        for name, words in (
            ("published", "messages published"),
            ("acked", "acked"),
            ("redelivered", "deliveries again"),
            ("died", "dead letters"),
        ):
            shown.append((count(sum(row[name] for row in traffic)), words))
    if queues:
        measured = sum(row["measured"] + row["missed"] + row["overdue"] for row in queues)
        late = sum(row["late"] + row["missed"] + row["overdue"] for row in queues)
        shown.append((percent(1 - late / measured) if measured else "–", "received in time"))
        used = [row for row in queues if row["measured"] + row["missed"] + row["overdue"]]
        broken = sum(row["budget_left_hours"] is not None and row["budget_left_hours"] < 0 for row in used)
        shown.append((f"{broken} of {len(used)}", "queues over their error budget"))
    if not shown:
        return join()
    return tag("ul", [tag("li", tag("b", figure), tag("span", words)) for figure, words in shown], class_="tiles")
