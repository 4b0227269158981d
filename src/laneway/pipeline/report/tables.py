"""What sections share: the rows they are made of, names of queues, tables as HTML, legends, words for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laneway.pipeline.report.markup import Child, Html, join, tag

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
"""The warehouse's tables by name; one that is not there was not made yet."""


def queue_of(row: Row) -> str:
    """A queue's name, with its virtual host where that says something."""
    name, vhost = row.get("queue") or "(no queue)", row.get("vhost")
    return str(name) if vhost in ("/", None) else f"{vhost} · {name}"


def section(key: str, title: str, lead: Child, *children: Child) -> Html:
    heading = tag("h2", title, id=f"{key}-title")
    return tag("section", heading, tag("p", lead, class_="lead"), *children, id=key, aria_labelledby=f"{key}-title")


def nothing(words: str) -> Html:
    return tag("p", words, class_="none")


def not_made(job: str) -> Html:
    return tag(
        "p", "This table is not in the warehouse yet: ", tag("code", f"laneway pipeline run {job}"), class_="none"
    )


class TableColumn:
    """A column of an HTML table. `kind`: "" text · "n" numbers · "draw" a drawing · "wide" long text · "when" times ·
    "head" the row's name."""

    def __init__(self, title: str, kind: str = "") -> None:
        self.title = title
        self.kind = kind


def table(caption: str, columns: Sequence[TableColumn], rows: Iterable[Sequence[Child]]) -> Html:
    """With a caption for those who listen, and in a box that scrolls on a narrow screen."""
    head = tag("tr", [tag("th", column.title, scope="col", class_=_class(column)) for column in columns])
    body = [tag("tr", [_cell(column, cell) for column, cell in zip(columns, cells, strict=True)]) for cells in rows]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(column: TableColumn, cell: Child) -> Html:
    if column.kind == "head":
        return tag("th", cell, scope="row")
    return tag("td", cell, class_=_class(column))


def _class(column: TableColumn) -> str | None:
    return column.kind if column.kind in ("n", "draw", "wide", "when") else None


def figures(
    caption: str, columns: Sequence[TableColumn], rows: Iterable[Sequence[Child]], shown: str = "As a table"
) -> Html:
    """A table that is folded away, beside a chart that shows the same."""
    return tag("details", tag("summary", shown), table(caption, columns, rows))


def legend(entries: Mapping[str, str]) -> Html:
    """{name: class of its colour}"""
    items = [
        tag("li", tag("svg", tag("circle", cx="5", cy="5", r="5", class_=colour), width="10", height="10"), name)
        for name, colour in entries.items()
    ]
    return tag("ul", items, class_="legend")


def badge(text: str, state: str = "") -> Html:
    return tag("span", text, class_=f"badge {state}".strip())


def more(rows: Sequence[Any], most: int, what: str) -> Html:
    """A line that says that not everything is shown."""
    left = len(rows) - most
    return tag("p", f"… and {left:,} more {what}.", class_="soft") if left > 0 else join()
