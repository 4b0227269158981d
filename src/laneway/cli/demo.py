"""`laneway demo`: a server of its own, an hour-like workload in a minute or two, the jobs, and the report."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laneway.cli.kinds import duration as seconds_of
from laneway.cli.session import CliSession, Failure, pass_session, prints_json
from laneway.cli.show import Rows, console, duration, print_json, print_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from laneway.demo.plan import Plan
    from laneway.demo.play import Outcome, Progress

STOPPED = 130  # as shells say of a command that Ctrl-C ended

#: In this order, with what differs from the usual: an hour that lasts a minute is looked at by the minute.
JOBS: dict[str, dict[str, Any]] = {
    "archive": {},
    "slo": {},
    "hotkeys": {},
    "deadletters": {},
    "capacity": {"period_seconds": 60},
    "audit": {},
    "report": {"title": "Laneway demo"},
}

#: Settled history may go by itself; the jobs want all of it.
KEEP_HISTORY = ("--history-seconds", "86400")

COLUMNS = ("queue", "tier", "published", "acked", "redelivered", "waiting", "dead")


@dataclass(frozen=True)
class Places:
    """Where everything is."""

    data: Path
    warehouse: Path

    @property
    def log(self) -> Path:
        return self.data.with_name(f"{self.data.name}.log")


@click.command(short_help="See it all at work: a server, an hour's traffic in a minute, a report.")
@click.option("--seconds", default="90s", type=seconds_of, show_default=True, help="How long messages are published.")
@click.option("--seed", default=1, show_default=True, metavar="N", help="Another one gives other messages.")
@click.option(
    "--rate", default=250.0, type=click.FloatRange(1, 5000), show_default=True, help="Messages a second, on average."
)
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="The server's folder.  [default: a temporary one]"
)
@click.option(
    "--warehouse",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where tables and report go.  [default: `warehouse` beside the server's folder]",
)
@click.option("--master", metavar="MASTER", help="The Spark to run the jobs on.  [default: this machine]")
@click.option("--no-jobs", is_flag=True, help="Only the server and its messages: needs neither Spark nor Java.")
@click.option("--no-open", is_flag=True, help="Do not open the report in a browser.")
@prints_json
@pass_session
def demo(
    session: CliSession,
    seconds: float,
    seed: int,
    rate: float,
    data: Path | None,
    warehouse: Path | None,
    master: str | None,
    no_jobs: bool,
    no_open: bool,
) -> None:
    """Start a server of its own, play the shape of an hour in a minute or two, run the jobs over its history, and open
    the report.

    \b
    laneway demo
    laneway demo --seconds 30s --no-open
    laneway demo --no-jobs --json

    Six tenants publish to five queues of three tiers. One tenant is noisy, some keys are hot, some messages are poison,
    some expire, and in the middle the consumers of three queues are down for a while. Rates are squeezed, times are
    not: an hour's messages come in a minute, but a second of waiting is a second. Everything is on this machine: the
    server listens on loopback, on a free port, and stops with the demo.
    """
    if not 2 <= seconds <= 3600:
        raise click.UsageError(f"--seconds is from 2 s to 1 h, not {duration(seconds)}")
    if not no_jobs:
        _check_jobs_can_run(master)
    places = _places(data, warehouse)
    try:
        with _ended_like_ctrl_c():
            report = _run(session, places, seconds, seed, rate, master, with_jobs=not no_jobs)
    except KeyboardInterrupt:
        click.echo(f"laneway: stopped; what was there by then is in {places.data}", err=True)
        click.get_current_context().exit(STOPPED)
    page = report["report"]
    if page is not None and not session.json and not no_open:
        report["opened"] = _open(Path(page))
    if session.json:
        print_json(report)
    else:
        _print_ends(report, places)
    if not report["is_good"]:
        click.get_current_context().exit(1)


def _check_jobs_can_run(master: str | None) -> None:
    """Before a minute is spent on what cannot be looked at afterwards."""
    from laneway.errors import PipelineUnavailable
    from laneway.pipeline.masters import check_master, check_reachable
    from laneway.pipeline.session import check_available

    check_master(master)
    try:
        check_available(master)
        check_reachable(master)
    except PipelineUnavailable as error:
        raise PipelineUnavailable(f"{error.message}; --no-jobs plays the workload without") from None


def _places(data: Path | None, warehouse: Path | None) -> Places:
    """Empty folders: what was there before would be counted as the demo's."""
    if data is None:
        data = Path(tempfile.mkdtemp(prefix="laneway-demo-")) / "data"
    places = Places(data.absolute(), (warehouse or data.parent / "warehouse").absolute())
    for option, folder in (("--data", places.data), ("--warehouse", places.warehouse)):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise click.UsageError(f"{option} {folder} is not an empty folder: the demo begins with nothing")
    places.data.parent.mkdir(parents=True, exist_ok=True)
    return places


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Whatever ends the demo, its server ends with it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    session: CliSession, places: Places, seconds: float, seed: int, rate: float, master: str | None, *, with_jobs: bool
) -> dict[str, Any]:
    from laneway.client import Client
    from laneway.demo.ledger import disagreements
    from laneway.demo.plan import LANES, draw
    from laneway.demo.play import Player
    from laneway.demo.server import OwnServer, ServerFailed

    plan = draw(seconds, seed, rate)
    say = _say_nothing if session.json else _say
    say(
        f"{plan.message_count:,} messages in {duration(seconds)}: an hour's shape, its rates squeezed and not its times"
    )
    try:
        with OwnServer(places.data, places.log, *KEEP_HISTORY) as server:
            say(f"a server of the demo's own is at {server.url}")
            with _shown(session, plan) as told:
                outcome = Player(plan, server.url).play(told)
            with Client(server.url) as client:
                stats = {lane.name: client.stats(lane.name) for lane in LANES}
            differences = (
                []
                if not outcome.is_drained
                else disagreements(outcome.tallies, {name: found["totals"] for name, found in stats.items()})
            )
            jobs = _run_jobs(places, server.url, master, say) if with_jobs else {}
    except ServerFailed as error:
        raise Failure(str(error), code="demo_server_failed") from error
    return _summary(plan, places, outcome, differences, jobs)


def _run_jobs(places: Places, url: str, master: str | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Spark for as long as the jobs take."""
    from laneway.cli.pipeline import quiet_session

    say("starting Spark for the jobs")
    logging.disable(logging.ERROR)  # Py4J tells at length of calls that Ctrl-C ended
    spark = None
    try:
        with _not_interrupted():
            spark = quiet_session(master, "laneway demo", {})
        return run_jobs(spark, places, url, say)
    finally:
        if spark is not None:
            spark.stop()


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """What would end the demo waits: in the middle of its start, a JVM would be left behind that nobody ends. Spark's
    own handling of Ctrl-C, which calls the JVM in the middle of a call to it, is undone."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def run_jobs(spark: Any, places: Places, url: str, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Each job's result by its name."""
    from laneway.pipeline.lake import Warehouse
    from laneway.pipeline.runner import JOBS as known
    from laneway.pipeline.runner import Options, run

    warehouse = Warehouse(places.warehouse)
    results = {}
    for name in (name for name in JOBS if name in known):
        begun = time.monotonic()
        options = Options(
            source=str(places.data), warehouse=warehouse, server=url, settings=JOBS[name], say=lambda _: None
        )
        results[name] = run(known[name], spark, options).as_dict()
        say(f"{name} took {duration(time.monotonic() - begun)}")
    return results


def _summary(
    plan: Plan, places: Places, outcome: Outcome, differences: list[str], jobs: Mapping[str, Any]
) -> dict[str, Any]:
    page = places.warehouse / "report.html"
    return {
        "seconds": plan.seconds,
        "seed": plan.seed,
        "rate": plan.rate,
        "messages": plan.message_count,
        "took_seconds": round(outcome.seconds, 1),
        "is_drained": outcome.is_drained,
        "queues": {name: tally.as_dict() for name, tally in outcome.tallies.items()},
        "differences": differences,
        "jobs": dict(jobs),
        "data": str(places.data),
        "warehouse": str(places.warehouse) if jobs else None,
        "report": str(page) if jobs else None,
        "is_good": outcome.is_drained and not differences and not any(one["is_failure"] for one in jobs.values()),
    }


# --- for people


def _say_nothing(_: str) -> None:
    pass


def _say(line: str) -> None:
    click.echo(f"laneway: {line}", err=True)


@contextmanager
def _shown(session: CliSession, plan: Plan) -> Iterator[Callable[[Progress], None]]:
    """Calls to show how it stands: a table that changes for a person, a line a chapter for a file, nothing for JSON."""
    if session.json:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.live import Live

        with Live(console=console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda progress: live.update(_view(plan, progress), refresh=True)
    else:
        told: set[str] = set()

        def tell(progress: Progress) -> None:
            if progress.chapter not in told:
                told.add(progress.chapter)
                _say(progress.chapter)

        yield tell


def _view(plan: Plan, progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    minute = min(60, int(60 * progress.at_s / plan.seconds))
    head = Text(f"minute {minute:2} of the hour\n", style="bold")
    head.append(progress.chapter, style="not bold")
    bar = ProgressBar(total=plan.seconds, completed=min(plan.seconds, progress.at_s), width=60)
    rows = [(lane.name, lane.tier, *_counts(progress, lane.name)) for lane in _lanes()]
    total = [sum(_counts(progress, lane.name)[at] for lane in _lanes()) for at in range(5)]
    table = Rows(COLUMNS, [_written(row) for row in [*rows, ("all", "", *total)]], COLUMNS[2:]).for_a_person()
    return Group(head, bar, table)


def _counts(progress: Progress, queue: str) -> tuple[int, ...]:
    tally = progress.tallies[queue]
    return tally.published, tally.acked, tally.redelivered, progress.waiting[queue], progress.dead[queue]


def _written(row: tuple[object, ...]) -> list[str]:
    return [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row]


def _lanes() -> Any:
    from laneway.demo.plan import LANES

    return LANES


def _print_ends(report: dict[str, Any], places: Places) -> None:
    columns = ("queue", "published", "acked", "redelivered", "rejected", "tried out", "expired", "shed")
    names = ("published", "acked", "redelivered", "rejected", "exhausted", "expired", "overflowed")
    rows = [_written((queue, *(tally[name] for name in names))) for queue, tally in report["queues"].items()]
    print_rows(Rows(columns, rows, columns[1:]))
    click.echo()
    if not report["is_drained"]:
        click.echo("Not everything was worked off in time: this machine is too slow for the rate. Try a lower --rate.")
    elif report["differences"]:
        click.echo("The demo and the server do NOT count the same:")
        for line in report["differences"]:
            click.echo(f"  {line}")
    else:
        click.echo("The demo counted every message itself, and the server's totals are the same.")
    _print_places(report, places)


def _print_places(report: dict[str, Any], places: Places) -> None:
    fields: dict[str, object] = {"journal": places.data, "its log": places.log}
    if report["report"]:
        opened = " (opened in your browser)" if report.get("opened") else ""
        fields = {"report": f"{report['report']}{opened}", "tables": places.warehouse, **fields}
    print_rows(Rows(("", ""), list(fields.items())))
    click.echo("\nWhat to try next:")
    lines = [f"laneway serve --data {places.data}", "laneway stats", "laneway peek payments-dead"]
    if report["report"]:
        at = f"--warehouse {places.warehouse}"
        lines += [
            f"laneway pipeline show slo {at}",
            f"laneway pipeline run audit --source {places.data} {at}",
            "laneway pipeline redrive --where \"reason='expired' AND attributes['region']='eu'\" "
            f"--source {places.data} {at}",
        ]
    for line in lines:
        click.echo(f"  {line}")


def _open(page: Path) -> bool:
    """In a browser with windows. One that takes over the terminal would hide what is printed here."""
    has_windows = sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return (has_windows or "BROWSER" in os.environ) and webbrowser.open(page.as_uri())
