"""Output: JSON for programs, tables and progress for people. Rich is imported only when a person looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

ELLIPSIS = "…"


def print_json(value: object) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


@dataclass(frozen=True)
class Rows:
    """A table before it is known who will look at it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[str] = ()

    def for_a_person(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=None, pad_edge=False, header_style="bold", show_header=any(self.columns))
        for at, column in enumerate(self.columns):
            justify: Literal["right", "left"] = "right" if column in self.numeric else "left"
            shown.add_column(column, justify=justify, overflow="fold", no_wrap=at == 0)
        for row in self.rows:
            # Text is taken as it is: a queue called [red] must not turn the rest red.
            shown.add_row(*(Text(printable(str(cell))) for cell in row))
        return shown

    def plain(self) -> str:
        """The same for a pipe or a file: lines as long as they need to be, and no waiting for rich."""
        lines = [[printable(str(cell)) for cell in row] for row in self.rows]
        if any(self.columns):
            lines.insert(0, list(self.columns))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        right = [column in self.numeric for column in self.columns]
        aligned = (
            (cell.rjust(width) if is_right else cell.ljust(width))
            for line in lines
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        return "\n".join("  ".join(islice(aligned, len(widths))).rstrip() for _ in lines)


def print_rows(rows: Rows) -> None:
    if sys.stdout.isatty():
        console().print(rows.for_a_person())
    else:
        click.echo(rows.plain())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, numeric: Sequence[str] = ()) -> None:
    print_rows(Rows(columns, rows, numeric))


def print_fields(fields: Mapping[str, object]) -> None:
    print_rows(Rows(("", ""), list(fields.items())))


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False)


def progress(*, as_json: bool) -> AbstractContextManager[Progress | None]:
    """A progress bar on stderr if a person is looking there, else nothing."""
    if as_json or not sys.stderr.isatty():
        return nullcontext(None)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    )


def printable(text: str) -> str:
    """The text without anything that could move the cursor or ring the bell of the terminal it is shown on."""
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + ELLIPSIS


def payload_text(payload: Any, content_type: str) -> str:
    """A payload in one line."""
    if isinstance(payload, bytes):
        text = _text_of(payload) if content_type == "application/octet-stream" else None
        return f"{len(payload)} bytes of {content_type}" if text is None else text
    if isinstance(payload, str) and content_type != "application/json":
        return payload
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def _text_of(payload: bytes) -> str | None:
    """Most AMQP clients say nothing about what they publish, and most of it is text."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return text if text and all(c.isprintable() or c in "\r\n\t" for c in text) else None


def duration(seconds: float | None) -> str:
    """3.2s, 5m 3s, 2h 10m, 7d 3h: two units are enough for a person."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g}s"
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    left = int(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in units:
        if left >= size or parts:
            parts.append((left // size, unit))
            left %= size
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def size(byte_count: float | None) -> str:
    if byte_count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if byte_count < 1024:
            return f"{byte_count:.4g} {unit}"
        byte_count /= 1024
    return f"{byte_count:.4g} TiB"


def age(time: datetime) -> str:
    return duration(max(0.0, (datetime.now(UTC) - time).total_seconds()))
