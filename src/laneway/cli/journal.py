"""`laneway journal …`: looking into a data folder while no server uses it, without changing anything."""

from __future__ import annotations

from pathlib import Path

import click

from laneway.cli.session import FailingGroup, Failure, Session, pass_session, prints_json
from laneway.cli.show import print_fields, print_json, progress, size

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group(cls=FailingGroup, short_help="Look into the journal of a server that is not running.")
def journal() -> None:
    """Look into the journal of a server that is not running. Nothing is ever changed.

    \b
    laneway journal check ./data
    laneway journal dump ./data --queue orders --limit 100
    """


@journal.command(short_help="Read a whole journal and say whether it is intact.")
@folder_argument
@prints_json
@pass_session
def check(session: Session, folder: Path) -> None:
    """Read the whole journal in DIR and say whether it is intact. Exit code 1 if it is damaged."""
    import msgspec

    from laneway.journal.segments.inspect import check as check_folder

    with progress(as_json=session.json) as bar:
        task = bar.add_task("read", total=None) if bar is not None else None

        def told(done_bytes: int, total_bytes: int) -> None:
            if bar is not None and task is not None:
                bar.update(task, completed=done_bytes, total=total_bytes)

        report = check_folder(folder, told)
    shown = msgspec.to_builtins(report)
    if session.json:
        print_json(shown)
    else:
        print_fields({name: size(value) if name.endswith("_bytes") else value for name, value in shown.items()})
    if not report.intact:
        raise Failure(f"the journal in {folder} is damaged", code="damaged")


@journal.command(short_help="Print the events of a journal.")
@folder_argument
@click.option("--after", default=0, type=click.IntRange(min=0), metavar="N", help="Begin after this commit.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only events of this kind; may be repeated.")
@click.option("--queue", metavar="NAME", help="Only events of this queue.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after so many.")
def dump(folder: Path, after: int, kinds: tuple[str, ...], queue: str | None, limit: int | None) -> None:
    """Print the events of the journal in DIR, oldest first, one JSON object on each line.

    \b
    laneway journal dump ./data --limit 10
    laneway journal dump ./data --queue orders --kind published --kind acked
    """
    from laneway.journal.segments.inspect import dump as dump_folder

    for event in dump_folder(folder, after=after, kinds=kinds or None, queue=queue, limit=limit):
        print_json(event)
