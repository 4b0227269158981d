"""Showing the same thing again and again: live on a terminal, one table after the other into a pipe or a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import count
from typing import TypeVar

import click

from laneway.cli.show import Rows, console, print_rows

T = TypeVar("T")


def rounds(fetch: Callable[[], T], every_seconds: float, times: int | None = None) -> Iterator[T]:
    """What is fetched every so often, so many times, or until somebody stops it."""
    for done in count(1):
        yield fetch()
        if done == times:
            return
        time.sleep(every_seconds)


def show_rounds(found: Iterator[T], render: Callable[[T], Sequence[Rows]]) -> None:
    """Tables below each other, until Ctrl-C: that is the way to end it, not a failure."""
    try:
        if sys.stdout.isatty():
            _live(found, render)
        else:
            _one_after_the_other(found, render)
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the reader has seen enough


def _live(found: Iterator[T], render: Callable[[T], Sequence[Rows]]) -> None:
    from rich.console import Group
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for one in found:
            tables = [part for rows in render(one) for part in ("", rows.for_a_person())][1:]
            live.update(Group(*tables), refresh=True)


def _one_after_the_other(found: Iterator[T], render: Callable[[T], Sequence[Rows]]) -> None:
    """Each under its time, written when it is made."""
    for one in found:
        click.echo(f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}")
        for rows in render(one):
            print_rows(rows)
            click.echo()
        sys.stdout.flush()
