"""What `.option(…)` of the data source says, checked: every reader is made from this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from laneway.core.events import Kind
from laneway.errors import InvalidInput
from laneway.pipeline.journals import ChosenJournals, FolderJournals, Journals, ServerJournals, SeveralJournals
from laneway.pipeline.selection import Catalogue, Selection
from laneway.pipeline.sources import ServerSource

EARLIEST, LATEST = "earliest", "latest"
DEFAULT_PARTITION_BYTES = 128 << 20  # as Spark has it for files

#: Every option for reading, with what it does.
READ_OPTIONS = {
    "path": "a data folder, with all its partitions; or several of one each, in a JSON list or separated by commas",
    "url": "the address of a running server instead, with all its partitions; or several of one each",
    "user": "who reads, with `password`",
    "password": "of `user`",
    "token": "a key instead of a user and a password",
    "partitions": "only these partitions, by their numbers",
    "startPosition": "earliest, latest, or the first commit to read of one partition, with nothing missing behind",
    "endPosition": "of one partition the number of the first commit not to read (batch)",
    "startTime": "events from this time on, ISO 8601; UTC unless it says otherwise",
    "endTime": "events before this time",
    "kinds": "only these kinds of events, in a JSON list or separated by commas",
    "queues": "only events of queues with these names",
    "body": "true: with a column `body`",
    "attributes": "true: with a column `attributes`",
    "cursor": "the name of a cursor on the server, which holds back what was not read yet (stream)",
    "maxEventsPerBatch": "no batch of a stream has more events than this, unless a single commit has",
    "partitionBytes": "about how much of the journal one task reads",
    "failOnDataLoss": "false: go on with what is there when history was dropped before it was read",
}
_SPELLED = {name.lower(): name for name in (*READ_OPTIONS, "paths")}


class ReadOptions(NamedTuple):
    journals: Journals
    start: int | str | None  # a position, EARLIEST, LATEST
    end_position: int | None
    since_ms: int | None
    until_ms: int | None  # exclusive
    kinds: frozenset[str] | None
    queues: frozenset[str] | None
    cursor: str | None
    max_events: int | None
    partition_bytes: int
    fail_on_data_loss: bool

    def selection(self, catalogue: Catalogue) -> Selection:
        found = Selection()
        if self.since_ms is not None:
            found = found.between(since_ms=self.since_ms)
        if self.until_ms is not None:
            found = found.between(until_ms=self.until_ms - 1)
        kinds, queues = self.kinds, self.queues
        if kinds is not None:
            found = found.with_kinds(lambda name: name in kinds)
        if queues is not None:
            found = found.with_queues(catalogue, lambda _, names: names is not None and names.name in queues)
        return found


def read_options(given: Mapping[str, str]) -> ReadOptions:
    named = {}
    for name, value in given.items():
        if name.lower() not in _SPELLED:
            raise InvalidInput(
                f"there is no option {name!r} for reading; there are {', '.join(READ_OPTIONS)}", field=name
            )
        named[_SPELLED[name.lower()]] = value
    flag(named, "body"), flag(named, "attributes")
    read = ReadOptions(
        journals=_journals(named),
        start=_start(named.get("startPosition")),
        end_position=_number(named, "endPosition"),
        since_ms=_time_ms(named, "startTime"),
        until_ms=_time_ms(named, "endTime"),
        kinds=_kinds(named),
        queues=frozenset(_list(named["queues"])) if "queues" in named else None,
        cursor=named.get("cursor"),
        max_events=_number(named, "maxEventsPerBatch"),
        partition_bytes=_number(named, "partitionBytes") or DEFAULT_PARTITION_BYTES,
        fail_on_data_loss=flag(named, "failOnDataLoss", default=True),
    )
    if isinstance(read.journals, SeveralJournals):
        check_positions(read, 2)
    return read


def check_positions(options: ReadOptions, journal_count: int) -> None:
    """A position is of one journal. How many partitions there are is known when a read begins."""
    if journal_count > 1 and (isinstance(options.start, int) or options.end_position is not None):
        raise InvalidInput(
            "a position is of one partition: choose it with partitions, or read all from earliest or latest",
            field="startPosition",
        )


def flag(given: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    text = next((value for key, value in given.items() if key.lower() == name.lower()), None)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidInput(f"{name} is true or false, not {text!r}", field=name)
    return text.lower() == "true"


def _journals(named: Mapping[str, str]) -> Journals:
    paths = [*_list(named.get("path", "")), *_list(named.get("paths", ""))]
    urls = _list(named.get("url", ""))
    if bool(paths) == bool(urls):
        raise InvalidInput("say where to read from: path (a journal folder) or url (a running server)", field="path")
    if paths and "cursor" in named:
        raise InvalidInput(
            "a cursor is kept by a server: read from its url, or leave the cursor out; a folder is read without "
            "holding anything back",
            field="cursor",
        )
    user, password, token = (named.get(name) for name in ("user", "password", "token"))
    given: list[FolderJournals | ServerJournals] = [FolderJournals(path) for path in paths]
    given += [ServerJournals(ServerSource(url, user=user, password=password, token=token)) for url in urls]
    all: Journals = given[0] if len(given) == 1 else SeveralJournals(given)
    numbers = _list(named.get("partitions", ""))
    wrong = [text for text in numbers if not (text.isascii() and text.isdigit())]
    if wrong:
        raise InvalidInput(f"partitions are numbers such as 0,2, not {wrong[0]!r}", field="partitions")
    return ChosenJournals(all, frozenset(map(int, numbers))) if numbers else all


def _list(text: str) -> list[str]:
    if text.strip().startswith("["):
        try:
            return [str(one) for one in json.loads(text)]
        except ValueError:
            raise InvalidInput(f"not a JSON list: {text[:80]!r}") from None
    return [one.strip() for one in text.split(",") if one.strip()]


def _start(text: str | None) -> int | str | None:
    if text is None or text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdigit():
        return max(int(text), 1)
    raise InvalidInput(f"startPosition is earliest, latest or a number, not {text!r}", field="startPosition")


def _number(named: Mapping[str, str], name: str) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidInput(f"{name} is a number above 0, not {text!r}", field=name)
    return int(text)


def _time_ms(named: Mapping[str, str], name: str) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} is a time such as 2026-11-16T18:00:00Z, not {text!r}", field=name) from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return -(-micros(time) // 1000)  # rounded up: both bounds begin with the first whole millisecond from there on


def micros(time: datetime) -> int:
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _kinds(named: Mapping[str, str]) -> frozenset[str] | None:
    if "kinds" not in named:
        return None
    known = {kind.name.lower() for kind in Kind}
    wanted = _list(named["kinds"])
    for kind in wanted:
        if kind not in known:
            raise InvalidInput(f"{kind!r} is no kind of event; there are {', '.join(sorted(known))}", field="kinds")
    return frozenset(wanted)
