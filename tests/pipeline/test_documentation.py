"""docs/pipeline.md names every column of every table, and every option of the jobs and of the data source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laneway.pipeline.jobs import capacity, deadletters, hotkeys, slo
from laneway.pipeline.options import READ_OPTIONS
from laneway.pipeline.runner import JOBS
from laneway.pipeline.schema import EVENTS
from laneway.pipeline.stays import stays
from tests.pipeline.events import at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.pipeline.conftest import MakeEvents

PAGE = (Path(__file__).parent.parent.parent / "docs" / "pipeline.md").read_text()


def table_of(name: str) -> list[str]:
    """The columns that the page lists for a table, in order."""
    found = re.search(rf"^\| `{name}` \|.*\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found, f"docs/pipeline.md has no table | `{name}` |"
    return [column for line in found[1].splitlines() for column in re.findall(r"`(\w+)`", line.split(" | ")[0])]


def section(title: str) -> str:
    return re.split(r"\n#{2,3} ", PAGE.split(f"\n{title}\n", 1)[1], maxsplit=1)[0]


def test_every_column_of_events_is_on_the_page_with_its_type() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", section("## The events table"), re.MULTILINE)
    told = {name: kind.replace("&lt;", "<").replace("&gt;", ">") for name, kind in rows}
    assert told == {column.name: column.type for column in EVENTS}


def test_every_option_of_the_data_source_is_on_the_page() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section("## Reading from Spark"), re.MULTILINE))
    assert told.keys() == READ_OPTIONS.keys()


@pytest.mark.parametrize("name", ["slo", "hotkeys", "deadletters", "capacity"])
def test_every_option_of_a_job_is_on_the_page_with_its_default(name: str) -> None:
    text = section(f"### {name}")
    for setting in JOBS[name].settings:
        row = re.search(rf"^\| `--{setting.name.replace('_', '-')}[ `].*\| (.*) \|$", text, re.MULTILINE)
        assert row, f"--{setting.name} of {name}"
        if setting.default:
            shown = row[1].strip("`")
            assert shown == setting.default or float(shown) == setting.default, setting.name


def test_every_column_of_every_table_is_on_the_page(make_events: MakeEvents, spark: SparkSession) -> None:
    """Analysed, not run: Spark knows a table's columns before it knows its rows."""
    events = make_events([], attributes=True)
    found, units = slo.measured(events), hotkeys.units(events)
    periods = capacity.per_period(stays(events), at(0), at(1))
    letters = deadletters.letters(events)
    tables: dict[str, DataFrame] = {
        "slo": slo.per_minute(found),
        "slo_queues": slo.per_queue(found, at(0)),
        "hotkeys_partitions": hotkeys.per_partition(units, 8, 1.0),
        "hotkeys_keys": hotkeys.top_keys(events, 1.0),
        "hotkeys_tenants": hotkeys.per_tenant(events, 1.0),
        "deadletters": deadletters.grouped(letters),
        "deadletters_messages": letters,
        "capacity": periods,
        "capacity_queues": capacity.per_queue(periods, capacity.limits_of(spark, []), at(0)),
    }
    for name, frame in tables.items():
        assert set(table_of(name)) == set(frame.columns), name
