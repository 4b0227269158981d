"""`laneway pipeline …`: run jobs on Spark, and look at the tables they made. Spark is imported when a job runs."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from laneway.cli.session import CliSession, FailingGroup, Failure, names_a_server, pass_session, prints_json
from laneway.cli.show import age, print_json, print_table, size
from laneway.errors import InvalidInput, PipelineError, PipelineUnavailable
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, REDRIVE, Job, JobSetting, Options, Result, moment, run, run_every

warehouse_option = click.option(
    "--warehouse", default="warehouse", metavar="DIR", show_default=True, help="Folder of the tables."
)


@click.group(cls=FailingGroup, short_help="Run jobs over the history of a queue, on Spark.")
def pipeline() -> None:
    """Run jobs over the history of a queue, on Spark. Needs `pip install 'laneway[pipeline]'` and Java 17.

    \b
    laneway pipeline list
    laneway pipeline run slo --source ./data
    laneway pipeline show slo
    """


@pipeline.group(cls=FailingGroup, name="run", short_help="Run a job.")
def run_() -> None:
    """Run a job: once, or again and again with --every. Each has its own options: `laneway pipeline run JOB --help`.

    \b
    laneway pipeline run slo --source ./data
    laneway pipeline run slo --source http://127.0.0.1:8080 --key … --since 2h
    laneway pipeline run capacity --source lake --master spark://spark:7077 --every 300
    """


def _time(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """As it was typed, once it is known to be a time."""
    try:
        if text is not None:
            moment(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from error
    return text


def _confs(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _setting_option(setting: JobSetting) -> click.Option:
    """A job's own option, checked while the command line is read."""

    def check(ctx: click.Context, parameter: click.Parameter, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        try:
            return setting.read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    shown = "" if setting.default in (None, "", False) else f" Default: {setting.default}."
    named: dict[str, Any] = {"is_flag": True} if setting.is_flag else {"metavar": setting.metavar}
    return click.Option(
        [f"--{setting.name.replace('_', '-')}", setting.name],
        help=f"{setting.help}{shown}",
        default=None,
        callback=check,
        **named,
    )


def spark_options(command: Any) -> Any:
    """The options of every command that runs on Spark."""
    options = (
        click.option(
            "--source",
            default="data",
            metavar="FOLDER|URL|lake",
            show_default=True,
            help="Where events are read: a data folder, the URL of a server, or lake, the archive in the warehouse.",
        ),
        warehouse_option,
        click.option(
            "--master",
            metavar="MASTER",
            help="Which Spark: local[N] (default: all cores), local-cluster[…], spark://…, k8s://…, yarn or sc://….",
        ),
        click.option(
            "--conf", "confs", multiple=True, callback=_confs, metavar="NAME=VALUE", help="A setting of Spark."
        ),
        click.option(
            "--since", callback=_time, metavar="TIME", help="Events from then on: 2026-11-16T18:00, or 2h for ago."
        ),
        click.option("--until", callback=_time, metavar="TIME", help="Events before then."),
        names_a_server,
    )
    for option in reversed(options):
        command = option(command)
    return command


def begin(job: Job, options: Options, master: str | None, confs: dict[str, str]) -> Any:
    """The Spark session of a command; a clear word if there cannot be one, or if there is nothing to read."""
    from laneway.pipeline.masters import check_master, is_connect
    from laneway.pipeline.session import check_available

    check_master(master)
    check_available(master)
    if job.reads_source and not is_connect(master):  # there, folders are those of another machine
        options.check_source()
    options.say(f"{job.name}: starting Spark")
    return quiet_session(master, "laneway", confs)


def quiet_session(master: str | None, app: str, confs: dict[str, str]) -> Any:
    """A session whose Spark says nothing on stderr, unless its log is asked for."""
    from laneway.pipeline.noise import keeping_quiet
    from laneway.pipeline.session import session as spark_session

    if "spark.log.level" in confs:
        return spark_session(master, app, **confs)
    # They say in JSON and in stack traces what we say in words.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "pyspark.sql.connect", "py4j"):
        logging.getLogger(name).disabled = True
    with keeping_quiet() as noise:
        try:
            return spark_session(master, app, **confs)
        except PipelineUnavailable as error:
            if "JAVA_GATEWAY_EXITED" not in error.message:
                raise
            raise PipelineUnavailable(f"Java ended before Spark began: {noise.last_line()}") from error


def options_of(
    session: CliSession, source: str, warehouse: str, since_text: str | None, until_text: str | None
) -> Options:
    now = datetime.now(UTC)
    since, until = (None if text is None else moment(text, now) for text in (since_text, until_text))
    if since is not None and until is not None and since >= until:
        raise click.UsageError(f"--since {since:%Y-%m-%dT%H:%M:%S} is not before --until {until:%Y-%m-%dT%H:%M:%S}")
    key, user, password = session.credentials()
    if any(session.tls().values()):
        raise click.UsageError(
            "Spark's workers know nothing of --ca and --cert: let SSL_CERT_FILE name who signed the certificate"
        )
    return Options(
        source=source,
        warehouse=Warehouse(warehouse),
        since=since,
        until=until,
        typed=(since_text, until_text),
        server=session.url(),
        key=key,
        user=user,
        password=password,
        say=teller(session),
    )


def teller(session: CliSession) -> Any:
    """Lines about how far it is: on stderr, and only for a person."""
    if session.json or not sys.stderr.isatty():
        return lambda line: None
    begun = time.monotonic()
    return lambda line: click.echo(f"{time.monotonic() - begun:7.1f} s  {line}", err=True)


def job_command(job: Job) -> click.Command:
    """The command that runs one job."""

    @click.option("--once", is_flag=True, help="One run, then end: the default.")
    @click.option("--every", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Run after run.")
    @spark_options
    @pass_session
    def command(
        session: CliSession,
        source: str,
        warehouse: str,
        master: str | None,
        confs: dict[str, str],
        since: str | None,
        until: str | None,
        once: bool = False,
        every: float | None = None,
        **given: Any,
    ) -> None:
        if once and every is not None:
            raise click.UsageError("--once and --every contradict each other: give one")
        own = {name: value for name, value in given.items() if value is not None}
        from dataclasses import replace

        options = replace(options_of(session, source, warehouse, since, until), settings=own)
        spark = begin(job, options, master, confs)
        try:
            if every is None:
                print_result(session, job, run(job, spark, options))
            else:
                for result in run_every(job, spark, options, every):
                    if isinstance(result, PipelineError):
                        click.echo(f"laneway: {result.message}; the next run is another try", err=True)
                    else:
                        print_result(session, job, result)
        finally:
            spark.stop()

    made = click.command(job.name, short_help=job.help, help=f"{job.help}\n\ndocs/pipeline.md explains its tables.")(
        command
    )
    if not job.repeats:
        made.params = [one for one in made.params if one.name not in ("once", "every")]
    made.params.extend(_setting_option(setting) for setting in job.settings)
    return made


def print_result(session: CliSession, job: Job, result: Result) -> None:
    if session.json:
        print_json({"job": job.name, **result.as_dict()})
    else:
        if result.rows:
            _print_rows(result)
        for note in result.notes:
            click.echo(note)
        for name, count in result.tables.items():
            click.echo(f"{name}: {count} row{'' if count == 1 else 's'}")
        for file in result.files:
            click.echo(file)
    if result.is_failure:
        raise Failure(f"the job {job.name} found what must not be", code="violations_found")


def _print_rows(result: Result) -> None:
    """As a table; columns that hold numbers stand to the right."""
    numeric = [
        column
        for at, column in enumerate(result.columns)
        if any(isinstance(row[at], int | float) for row in result.rows)
    ]
    print_table(result.columns, [[shown(cell) for cell in row] for row in result.rows], numeric=numeric)


def shown(cell: Any) -> str:
    """A value for a person."""
    if cell is None:
        return "-"
    if isinstance(cell, datetime):
        return f"{cell:%Y-%m-%d %H:%M:%S}" if not cell.microsecond else f"{cell:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:.0f}"
    if isinstance(cell, list | tuple):
        return ", ".join(shown(one) for one in cell)
    return str(cell)


for _job in JOBS.values():
    run_.add_command(job_command(_job))
pipeline.add_command(job_command(REDRIVE))
pipeline.add_command(job_command(JOBS["replay"]))


@pipeline.command("list", short_help="List the jobs, and the tables there are.")
@warehouse_option
@prints_json
@pass_session
def list_(session: CliSession, warehouse: str) -> None:
    """List the jobs, and the tables in the warehouse. Needs neither Spark nor Java."""
    tables = Warehouse(warehouse).tables() if _has_arrow() else []
    if session.json:
        for job in JOBS.values():
            settings = {setting.name: setting.default for setting in job.settings}
            print_json({"job": job.name, "help": job.help, "settings": settings})
        for table in tables:
            print_json({"table": table.name, **{name: value for name, value in vars(table).items() if name != "name"}})
        return
    print_table(("job", "what it does"), [(job.name, job.help) for job in JOBS.values()])
    if tables:
        click.echo()
        columns = ("table", "rows", "size", "files", "written")
        rows = [(one.name, one.rows, size(one.bytes), one.files, f"{age(one.written_at)} ago") for one in tables]
        print_table(columns, rows, numeric=("rows", "size", "files"))


@pipeline.command(short_help="Print a table of the warehouse.")
@click.argument("table", metavar="TABLE")
@warehouse_option
@click.option("--columns", metavar="A,B,…", help="Only these columns.")
@click.option("--sort", metavar="COLUMN", help="By this column; -COLUMN: highest first.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), metavar="N", help="So many rows.")
@prints_json
@pass_session
def show(session: CliSession, table: str, warehouse: str, columns: str | None, sort: str | None, limit: int) -> None:
    """Print a table of the warehouse; with --json, one row on each line. Needs no Java.

    \b
    laneway pipeline show slo --sort -wait_p99_ms --limit 5
    """
    if not _has_arrow():
        raise PipelineUnavailable("the pipeline needs pyarrow: pip install 'laneway[pipeline]'")
    found = Warehouse(warehouse).read_arrow(table)
    wanted = columns.split(",") if columns else list(found.column_names)
    for name in [*wanted, *([sort.removeprefix("-")] if sort else [])]:
        if name not in found.column_names:
            raise click.UsageError(f"{table} has no column {name!r}; it has {', '.join(found.column_names)}")
    if sort:
        found = found.sort_by([(sort.removeprefix("-"), "descending" if sort.startswith("-") else "ascending")])
    rows = found.select(wanted).slice(0, limit).to_pylist()
    if session.json:
        for row in rows:
            print_json(row)
        return
    _print_rows(Result(columns=wanted, rows=[list(row.values()) for row in rows]))
    if found.num_rows > limit:
        click.echo(f"… {found.num_rows - limit} more: --limit shows them")


def _has_arrow() -> bool:
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None
