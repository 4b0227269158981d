"""`laneway journal …`: looking into a journal, whether a server uses it or not; copying; the schema of a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laneway.cli.session import CliSession, FailingGroup, Failure, pass_session, prints_json
from laneway.cli.show import print_json, print_table, progress, size

if TYPE_CHECKING:
    from laneway.journal.copying import Readable
    from laneway.journal.history.inspect import CheckReport
    from laneway.journal.postgres import Database


class _Place(click.ParamType[str]):
    """A folder, or the URL of a PostgreSQL database."""

    name = "place"

    def __init__(self, *, exists: bool = True) -> None:
        self._path = click.Path(exists=exists, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value if "://" in str(value) else self._path.convert(value, param, ctx))


folder_argument = click.argument("folder", metavar="DIR|URL", type=_Place())
partition_option = click.option(
    "--partition", default=0, type=click.IntRange(min=0), metavar="N", help="With a URL: of which partition (0)."
)


def _database(url: str) -> Database:
    try:
        from laneway.journal.postgres import Database
    except ImportError as missing:
        raise Failure(f"the package {missing.name} is not installed: pip install laneway[postgres]") from None
    return Database(url)


def _readable(place: str, partition: int) -> Readable:
    """A journal, to be read."""
    from laneway.journal.copying import Readable
    from laneway.journal.history.files import RealFiles

    if "://" not in place:
        return Readable(RealFiles(), place)
    from laneway.journal.postgres import PostgresFiles

    database = _database(place)
    database.check_schema()
    return Readable(PostgresFiles(database, partition), f"{database.name} partition {partition}")


@click.group(cls=FailingGroup, short_help="Look into a journal, or copy it.")
def journal() -> None:
    """Look into a journal, whether a server uses it or not: in a data folder, DIR, or in a PostgreSQL database, URL.

    \b
    laneway journal check ./data
    laneway journal dump ./data --queue orders --limit 100
    laneway journal migrate postgresql://laneway@db/laneway
    laneway journal copy ./data postgresql://laneway@db/laneway
    """


@journal.command(short_help="Read a whole journal and say whether it is intact.")
@folder_argument
@partition_option
@prints_json
@pass_session
def check(session: CliSession, folder: str, partition: int) -> None:
    """Read the whole journal in DIR or at URL, every commit, record and snapshot, and say whether it is intact.

    Exit code 1 if it is damaged; each damage is shown with its file and offset.
    """
    import msgspec

    from laneway.journal.history.inspect import check as check_folder

    with progress(as_json=session.json) as bar:
        task = bar.add_task("read", total=None) if bar is not None else None

        def told(done_bytes: int, total_bytes: int) -> None:
            if bar is not None and task is not None:
                bar.update(task, completed=done_bytes, total=total_bytes)

        source = _readable(folder, partition)
        report = check_folder(source.folder, told, files=source.files)
    if session.json:
        print_json({"is_sound": report.is_sound, **msgspec.to_builtins(report)})
    else:
        _print_report(report)
    if not report.is_sound:
        problems = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
        raise Failure(
            f"the journal in {source.folder} has {problems}: keep a copy of it before anything else",
            code="damaged",
        )


def _print_report(report: CheckReport) -> None:
    rows = [
        (
            Path(one.file).name,
            one.first_position,
            one.last_position,
            one.commit_count,
            one.event_count,
            size(one.file_bytes),
        )
        for one in report.segments
    ]
    columns = ("segment", "first commit", "last commit", "commits", "events", "size")
    print_table(columns, rows, numeric=columns[1:])
    for snapshot in report.snapshots:
        state = "" if snapshot.is_sound else ", damaged"
        click.echo(f"snapshot at commit {snapshot.position}, {size(snapshot.file_bytes)}{state}")
    for note in report.notes:
        click.echo(f"note: {note}")
    for problem in report.problems:
        click.echo(f"problem: {problem.file}, byte {problem.offset}: {problem.what}")
    if report.is_sound:
        commits = sum(one.commit_count for one in report.segments)
        click.echo(f"intact: {commits} commits, {sum(one.event_count for one in report.segments)} events")


@journal.command(short_help="Print the events of a journal.")
@folder_argument
@partition_option
@click.option("--after", default=0, type=click.IntRange(min=0), metavar="N", help="Begin after this commit.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only events of this kind; may be repeated.")
@click.option("--queue", metavar="NAME", help="Only events of this queue, by name or number.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after so many.")
def dump(folder: str, partition: int, after: int, kinds: tuple[str, ...], queue: str | None, limit: int | None) -> None:
    """Print the events of the journal in DIR or at URL, oldest first, a JSON object on each line; bodies are left out.

    \b
    laneway journal dump ./data --limit 10
    laneway journal dump ./data --queue orders --kind published --kind acked
    """
    from laneway.journal.history.inspect import dump as dump_folder

    source = _readable(folder, partition)
    wanted = {"after": after, "kinds": kinds or None, "queue": queue, "limit": limit}
    for event in dump_folder(source.folder, files=source.files, **wanted):  # type: ignore[arg-type]
        print_json(event)


@journal.command(short_help="Make or upgrade the tables of a database.")
@click.argument("url", metavar="URL")
def migrate(url: str) -> None:
    """Make the tables that journals need in the PostgreSQL database at URL, or bring them up to date.

    \b
    laneway journal migrate postgresql://laneway@db/laneway
    """
    database = _database(url)
    run = database.migrate()
    for name in run:
        click.echo(f"ran {name}")
    if not run:
        click.echo(f"{database.name} is up to date")


@journal.command(short_help="Copy all partitions to another place, and compare.")
@click.argument("source", metavar="FROM", type=_Place())
@click.argument("target", metavar="TO", type=_Place(exists=False))
@prints_json
@pass_session
def copy(session: CliSession, source: str, target: str) -> None:
    """Copy the journals of all partitions from one place to another that has none: each a data folder, or the URL of a
    PostgreSQL database. No server may run on either. What was copied is read again and compared, by counts and by a
    checksum over all bytes.

    \b
    laneway journal copy ./data postgresql://laneway@db/laneway
    laneway journal copy postgresql://laneway@db/laneway ./data-again
    """
    from laneway.journal.copying import check as check_source
    from laneway.journal.copying import copy_to_database, copy_to_folder

    with _sources(source) as sources:
        for one in sources:
            check_source(one)
        if "://" in target:
            copied = copy_to_database(sources, _database(target))
        else:
            copied = copy_to_folder(sources, target, _partition_folder)
    found = [{"partition": number, **one._asdict()} for number, one in enumerate(copied)]
    if session.json:
        print_json(found)
        return
    columns = ("partition", "segments", "first commit", "last commit", "commits", "events", "checksum")
    names = ("partition", "segment_count", "first_position", "last_position", "commit_count", "event_count", "digest")
    print_table(columns, [tuple(one[name] for name in names) for one in found], numeric=columns[1:-1])
    click.echo("copied, read again, and found equal")


@contextmanager
def _sources(place: str) -> Iterator[list[Readable]]:
    """The journals of all partitions, while no server uses them."""
    if "://" in place:
        database = _database(place)
        database.check_schema()
        numbers = database.journals()
        for number in numbers:
            database.check_unused(number)
        yield [_readable(place, number) for number in numbers]
        return
    from laneway.journal.copying import locked
    from laneway.node.folder import DataFolder

    count = DataFolder(Path(place)).partition_count()
    with ExitStack() as locks:
        for number in range(count):
            locks.enter_context(locked(_partition_folder(place, number)))
        yield [_readable(_partition_folder(place, number), 0) for number in range(count)]


def _partition_folder(place: str, number: int) -> str:
    from laneway.node.folder import DataFolder

    return str(DataFolder(Path(place)).partition(number))
