"""Output: JSON for programs, tables and progress for people. Rich is imported only when a person looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

ELLIPSIS = "…"


def print_json(value: object) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Sequence[str] = ()) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        shown.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        # Text is taken as it is: a queue called [red] must not turn the rest red.
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    return shown


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Sequence[str] = ()) -> None:
    console().print(table(columns, rows, numeric=numeric), soft_wrap=not sys.stdout.isatty())


def print_fields(fields: Mapping[str, object]) -> None:
    shown = table(("", ""), fields.items())
    shown.show_header = False
    console().print(shown, soft_wrap=not sys.stdout.isatty())


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Into a file or a pipe, a line is as long as it needs to be.
    return Console(file=stream, width=None if stream.isatty() else 10_000, highlight=False, markup=False)


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
        return f"{len(payload)} bytes of {content_type}"
    if isinstance(payload, str) and content_type != "application/json":
        return payload
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


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
