"""`laneway journal …`: looking into a data folder, without changing anything, whether a server uses it or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from laneway.cli.session import CliSession, FailingGroup, Failure, pass_session, prints_json
from laneway.cli.show import print_json, print_table, progress, size

if TYPE_CHECKING:
    from laneway.journal.history.inspect import CheckReport

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))


@click.group(cls=FailingGroup, short_help="Look into the journal in a data folder.")
def journal() -> None:
    """Look into the journal in a data folder, whether a server uses it or not. Nothing is ever changed.

    \b
    laneway journal check ./data
    laneway journal dump ./data --queue orders --limit 100
    """


@journal.command(short_help="Read a whole journal and say whether it is intact.")
@folder_argument
@prints_json
@pass_session
def check(session: CliSession, folder: str) -> None:
    """Read the whole journal in DIR, every commit, record and snapshot, and say whether it is intact.

    Exit code 1 if it is damaged; each damage is shown with its file and offset.
    """
    import msgspec

    from laneway.journal.history.inspect import check as check_folder

    with progress(as_json=session.json) as bar:
        task = bar.add_task("read", total=None) if bar is not None else None

        def told(done_bytes: int, total_bytes: int) -> None:
            if bar is not None and task is not None:
                bar.update(task, completed=done_bytes, total=total_bytes)

        report = check_folder(folder, told)
    if session.json:
        print_json({"is_sound": report.is_sound, **msgspec.to_builtins(report)})
    else:
        _print_report(report)
    if not report.is_sound:
        count = len(report.problems)
        raise Failure(
            f"the journal in {folder} has {count} problem{'' if count == 1 else 's'}: keep a copy of the folder before "
            "anything else",
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
@click.option("--after", default=0, type=click.IntRange(min=0), metavar="N", help="Begin after this commit.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only events of this kind; may be repeated.")
@click.option("--queue", metavar="NAME", help="Only events of this queue, by name or number.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after so many.")
def dump(folder: str, after: int, kinds: tuple[str, ...], queue: str | None, limit: int | None) -> None:
    """Print the events of the journal in DIR, oldest first, one JSON object on each line; bodies are left out.

    \b
    laneway journal dump ./data --limit 10
    laneway journal dump ./data --queue orders --kind published --kind acked
    """
    from laneway.journal.history.inspect import dump as dump_folder

    for event in dump_folder(folder, after=after, kinds=kinds or None, queue=queue, limit=limit):
        print_json(event)
