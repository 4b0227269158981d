"""Which jobs there are, what they take, and how one is run: once or again and again. Knows nothing of the terminal.

The registry names modules and imports one only to run it, so that listing jobs needs neither Spark nor Java.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from laneway.errors import InvalidInput, JobFailed, LanewayError, NotFound, PipelineError
from laneway.pipeline.lake import Warehouse, new_run_id
from laneway.pipeline.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE = "lake"
HIDDEN = ""  # the virtual host of queues in which messages wait for other partitions


@dataclass(frozen=True)
class JobSetting:
    """An option of one job. `read` makes the value of what was typed, and raises ValueError saying what is wrong."""

    name: str
    help: str
    default: Any = None
    read: Callable[[str], Any] = str
    metavar: str = "VALUE"
    is_flag: bool = False


@dataclass(frozen=True)
class Job:
    name: str
    help: str
    module: str
    settings: tuple[JobSetting, ...] = ()
    reads_source: bool = True  # False: the lake, whatever the source is
    repeats: bool = True  # False: what it does it does once; run again, it would do it again

    def load(self) -> Callable[[SparkSession, Options], Result]:
        """The job's run(spark, options)."""
        run: Callable[[SparkSession, Options], Result] = import_module(self.module).run
        return run


@dataclass
class Result:
    """What a run did: rows for people, and all of it for programs."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()
    tables: Mapping[str, int] = field(default_factory=dict)  # rows in each table that was written
    files: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # what programs want beside the rows
    is_failure: bool = False  # the job ran, and found what must not be: exit code 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "is_failure": self.is_failure,
            "tables": dict(self.tables),
            "files": list(self.files),
            **self.facts,
            "notes": list(self.notes),
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


def _say_nothing(line: str) -> None:
    pass


@dataclass(frozen=True)
class Options:
    """Where a job reads and writes. `settings` holds its own options by name, defaults filled in."""

    source: str = "data"  # a data folder, the URL of a server, or "lake"
    warehouse: Warehouse = field(default_factory=lambda: Warehouse("warehouse"))
    since: datetime | None = None
    until: datetime | None = None
    server: str = "http://127.0.0.1:8080"  # for jobs that talk to one
    key: str | None = None
    user: str | None = None
    password: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = _say_nothing
    run_id: str = field(default_factory=lambda: new_run_id("run"))
    typed: tuple[str | None, str | None] = (None, None)  # since and until as they were given: 2h is later in each run

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    @property
    def is_lake(self) -> bool:
        return self.source == LAKE

    @property
    def is_server(self) -> bool:
        return bool(re.match(r"https?://", self.source))

    def events(
        self, spark: SparkSession, *columns: str, kinds: Sequence[str] = (), outboxes: bool = False
    ) -> DataFrame:
        """The events of the source from `since` on and before `until`: these columns, or all but body and attributes.
        The source reads only what is asked for. `outboxes`: those of hidden queues too, which are no user's; they are
        told by `vhost`."""
        from pyspark.sql import functions as F

        frame = self._source(spark, columns, kinds)
        if kinds:
            frame = frame.where(F.col("kind").isin(*kinds))
        if not outboxes and (not columns or "vhost" in columns):
            frame = frame.where(F.coalesce(F.col("vhost") != HIDDEN, F.lit(True)))
        if self.since is not None:
            frame = frame.where(F.col("time") >= F.lit(self.since))
        if self.until is not None:
            frame = frame.where(F.col("time") < F.lit(self.until))
        return frame

    def _source(self, spark: SparkSession, columns: Sequence[str], kinds: Sequence[str]) -> DataFrame:
        from laneway.pipeline.schema import EVENTS, column

        wanted = [column(name) for name in columns] or [one for one in EVENTS if one.is_default]
        if self.is_lake:
            frame = self.warehouse.read_events(spark)
            missing = [one.name for one in wanted if one.name not in frame.columns]
            if missing:
                raise InvalidInput(
                    f"the archive in {self.warehouse.events} has no {', '.join(missing)}: it was made without",
                    field="source",
                )
            return frame.select(*(one.name for one in wanted))
        schema = ", ".join(f"`{one.name}` {one.type}" for one in wanted)
        reader = spark.read.format("laneway").schema(schema)
        for name, value in {**self.source_options(), **self._selected(kinds)}.items():
            reader = reader.option(name, value)
        return reader.load()

    def _selected(self, kinds: Sequence[str]) -> dict[str, str]:
        """The same filters as options of the data source: session.py says why they are not left to Spark."""
        times = {"startTime": self.since, "endTime": self.until}
        said = {name: time.isoformat() for name, time in times.items() if time is not None}
        return {**said, **({"kinds": ",".join(kinds)} if kinds else {})}

    def renewed(self, job: Job) -> Options:
        """For another run: a time ago is so long before now, not before the first run."""
        now = datetime.now(UTC)
        since, until = (None if text is None else moment(text, now) for text in self.typed)
        return replace(
            self,
            run_id=new_run_id(job.name),
            settings=settled(job, self.settings),
            since=since or self.since,
            until=until or self.until,
        )

    def check_source(self) -> None:
        """Raise what is wrong with the source: it takes a moment, and to start Spark takes many."""
        if self.is_lake:
            if not any(self.warehouse.events.glob("day=*/folder=*/*.parquet")):
                raise NotFound(
                    f"there is no archive in {self.warehouse.path}: `laneway pipeline run archive` makes one",
                    field="source",
                )
            return
        from laneway.pipeline.options import read_options

        read_options(self.source_options()).journals.ends()

    def source_options(self) -> dict[str, str]:
        """The data source's options that say where to read, and as whom."""
        if not self.is_server:
            return {"path": self.source}
        said = {"url": self.source, "user": self.user, "password": self.password, "token": self.key}
        return {name: value for name, value in said.items() if value}


def run(job: Job, spark: SparkSession, options: Options) -> Result:
    """One run. What Spark says when it fails is cut down to what was wrong."""
    from pyspark.errors import PySparkException

    options = options.renewed(job)
    options.say(f"{job.name}: reading {options.warehouse.events if options.is_lake else options.source}")
    try:
        return job.load()(spark, options)
    except LanewayError:
        raise
    except PySparkException as error:
        raise JobFailed(f"the job {job.name} failed: {reason(str(error))}", job=job.name) from error
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            raise JobFailed(f"the job {job.name} failed: {reason(str(error))}", job=job.name) from error
        raise


def run_every(
    job: Job, spark: SparkSession, options: Options, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Result | PipelineError]:
    """Run after run, each begun so long after the one before; one that takes longer is followed at once. Once it has
    worked, a failure of Spark or of a server out of reach is told, and the next run is another try."""
    has_worked = False
    while True:
        begun = time.monotonic()
        try:
            yield run(job, spark, options)
            has_worked = True
        except PipelineError as error:
            if not has_worked:
                raise
            yield error
        sleep(max(0.0, begun + seconds - time.monotonic()))


def settled(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {setting.name: setting for setting in job.settings}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        there = ", ".join(known) or "none"
        raise InvalidInput(f"the job {job.name} has no option {', '.join(unknown)}; it has: {there}", field=unknown[0])
    values = {name: setting.default for name, setting in known.items()}
    for name, value in given.items():
        try:
            values[name] = known[name].read(value) if isinstance(value, str) else value
        except ValueError as error:
            raise InvalidInput(f"{name}: {error}", field=name) from error
    return values


def moment(text: str, now: datetime | None = None) -> datetime:
    """A point in time: 2026-11-16, 2026-11-16T18:00 (UTC unless a zone is named), or so long ago: 90m, 12h, 7d."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if ago:
        seconds = float(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[ago[2]]
        return (now or datetime.now(UTC)) - timedelta(seconds=seconds)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{text!r} is no point in time: give one like 2026-11-16T18:00, or a time ago like 90m, 12h or 7d"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# --- values of settings


def whole(text: str) -> int:
    """A whole number above zero."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise ValueError(f"{text!r} is no whole number above 0")
    return int(text)


def number(text: str) -> float:
    """A number above zero."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) <= 0:
        raise ValueError(f"{text!r} is no number above 0")
    return float(text)


def percent(text: str) -> float:
    """Above 0 and below 100."""
    if number(text) >= 100:
        raise ValueError(f"{text!r} is no share below 100 percent")
    return float(text)


def hours(text: str) -> float:
    """A number above zero, or none, which is never."""
    return math.inf if text == "none" else number(text)


def one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return read


_MODULES = "laneway.pipeline.jobs"

_JOBS: tuple[Job, ...] = (
    Job(
        "slo",
        "Waiting and processing times, and what is left of the error budget.",
        f"{_MODULES}.slo",
        (
            JobSetting("objective", "Percent of messages that must be in time.", 99.9, percent, "PERCENT"),
            JobSetting("critical_seconds", "In time: first delivered within so long, tier critical.", 5.0, number, "N"),
            JobSetting("normal_seconds", "The same of tier normal.", 30.0, number, "N"),
            JobSetting("low_seconds", "The same of tier low.", 300.0, number, "N"),
            JobSetting("window_days", "Over how long the error budget is counted.", 30.0, number, "N"),
        ),
    ),
    Job(
        "hotkeys",
        "Load by partition, key and tenant, and a plan that cools hot partitions.",
        f"{_MODULES}.hotkeys",
        (
            JobSetting("partitions", "So many partitions, if there is one journal.", 8, whole, "N"),
            JobSetting("by", "What can be moved: a queue, or each key of a queue.", "queue", one_of("queue", "key")),
            JobSetting("hot_above", "A partition is hot above so many times the mean.", 2.0, number, "N"),
            JobSetting("top", "So many keys.", 10, whole, "N"),
        ),
    ),
    Job(
        "deadletters",
        "What died and why: letters by queue, reason and error, and each of them.",
        f"{_MODULES}.deadletters",
        (JobSetting("no_attributes", "Leave the attributes of messages out.", False, is_flag=True),),
    ),
    Job(
        "capacity",
        "What comes and what is done by the hour, consumers needed, and when a queue is too long.",
        f"{_MODULES}.capacity",
        (
            JobSetting("period_seconds", "By how long: an hour.", 3600, whole, "N"),
            JobSetting("margin", "So many times what the rate asks for.", 1.5, number, "N"),
            JobSetting("partition_rate", "Messages a second that one partition takes.", 10_000.0, number, "N"),
            JobSetting("trend_periods", "Look ahead from so many periods.", 24, whole, "N"),
            JobSetting("trend_hours", "Look ahead from no less history.", 1.0, number, "N"),
            JobSetting("backlog_limit", "Most waiting messages of queues without max_messages.", None, whole, "N"),
        ),
    ),
    Job(
        "audit",
        "The proof that nothing was lost: what became of every message, and what cannot have happened.",
        f"{_MODULES}.audit",
        (JobSetting("show", "So many violations are printed; all are in audit_violations.", 20, whole, "N"),),
    ),
    Job(
        "archive",
        "History into the lake, exactly once, by day and queue.",
        f"{_MODULES}.archive",
        (
            JobSetting(
                "bodies", "Of which messages: all, none or dead.", "all", one_of("all", "none", "dead"), "WHICH"
            ),
            JobSetting(
                "cursor", "The cursor that holds back a server's journal; none: a lake's own.", None, str, "NAME"
            ),
            JobSetting("batch_events", "So many events are taken in at once.", 2_000_000, whole, "N"),
            JobSetting(
                "dead_letters_after",
                "Delete dead letters that died so long ago and are in the lake from their queues; of a server: 24.",
                None,
                hours,
                "HOURS|none",
            ),
            JobSetting(
                "allow_gap", "Go on where history has been dropped before it was archived.", False, is_flag=True
            ),
        ),
    ),
    Job(
        "replay",
        "Messages of the lake, chosen with SQL, published again, each once.",
        f"{_MODULES}.replay",
        (
            JobSetting("where", "Which of them, in SQL over the events table.", "true", str, "SQL"),
            JobSetting("to", "Into this queue; none: the one each was in.", None, str, "QUEUE"),
            JobSetting("rate", "So many messages a second at most.", None, number, "N"),
            JobSetting("name", "Of the run: begun again under the same name, it goes on.", None, str, "NAME"),
        ),
        reads_source=False,
        repeats=False,
    ),
    Job(
        "report",
        "One HTML page with charts over the tables of the other jobs.",
        f"{_MODULES}.report",
        (JobSetting("title", "What stands at its top.", "Laneway report", str, "TEXT"),),
    ),
)

#: No job of `run`, because it changes a queue: `laneway pipeline redrive`.
REDRIVE = Job(
    "redrive",
    "Dead letters, chosen with SQL, back to where they came from.",
    f"{_MODULES}.redrive",
    (
        JobSetting("where", "Which of them, in SQL over the columns of deadletters_messages.", None, str, "SQL"),
        JobSetting("yes", "Do it; without, it is only shown what would be done.", False, is_flag=True),
        JobSetting("to", "Into this queue; none: the one each first died in.", None, str, "QUEUE"),
        JobSetting("max_per_second", "So many a second at most.", None, whole, "N"),
    ),
    repeats=False,
)

JOBS: dict[str, Job] = {one.name: one for one in _JOBS}


def job(name: str) -> Job:
    if name not in JOBS:
        raise InvalidInput(f"there is no job {name!r}; there are: {', '.join(JOBS)}", field="job")
    return JOBS[name]
