"""Where the history of one partition is read from: a journal folder, or a running server. One interface for both;
journals.py puts those of several partitions together.

A place is where a commit begins; a span is whole commits of one segment. Sources travel to the tasks of a job, so they
are made of plain values and open what they need when it is needed.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from urllib.parse import quote

from laneway.core.catalogue import QueueName
from laneway.errors import CursorLost, InvalidInput, JournalGap, LanewayError, PipelineError
from laneway.journal.history import follow
from laneway.journal.history.files import RealFiles
from laneway.journal.history.follow import SegmentInfo
from laneway.journal.history.format import HEADER_BYTES, parse_segment_header, segment_name
from laneway.journal.history.scan import damaged
from laneway.journal.interface import Place
from laneway.pipeline.commits import SegmentBytes, Span
from laneway.pipeline.selection import Catalogue

MAX_PIECE_BYTES = 8 << 20  # of one answer of a server
TRIES = 4


class Source(Protocol):
    @property
    def name(self) -> str:
        """For people."""

    def identity(self) -> tuple[int, int]:
        """(store, tag): which journal it is, and what its message ids have in common."""

    def end(self) -> Place:
        """Behind the last commit that may be read."""

    def first_position(self) -> int:
        """From which on history is whole."""

    def place(self, position: int) -> Place:
        """Where a commit begins; JournalGap if it was dropped."""

    def advance(self, place: Place, until: Place, max_events: int) -> Place:
        """At most so many events further, but one commit at least."""

    def segments(self, until: Place) -> list[SegmentInfo]:
        """Those up to a place, oldest first; the last one ends there."""

    def catalogue(self) -> Catalogue: ...

    def open(self, segment: int) -> AbstractContextManager[SegmentBytes]: ...

    def epoch(self, segment: int) -> int:
        """In which a segment was begun."""


class FolderSource:
    """A journal folder on a disk that all machines of the job see. Read only; a server may be running on it."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path.removeprefix("file://"))
        self.name = self.path
        if not os.path.isdir(self.path):
            raise InvalidInput(f"there is no journal folder {self.path}", field="path")

        self._end: Place | None = None  # as it was last time: only what came since is looked at
        self._catalogue: tuple[Catalogue, Place] | None = None
        self._identity: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_end": None, "_catalogue": None}

    def identity(self) -> tuple[int, int]:
        self._identity = self._identity or follow.store(self.path)
        return self._identity

    def end(self) -> Place:
        self._end = follow.end(self.path, self._end)
        return self._end

    def first_position(self) -> int:
        return follow.first_position(self.path)

    def place(self, position: int) -> Place:
        return follow.start(self.path, position, until=self.end())

    def advance(self, place: Place, until: Place, max_events: int) -> Place:
        return follow.advance(self.path, place, until, max_events)

    def segments(self, until: Place) -> list[SegmentInfo]:
        return follow.segments(self.path, until=until)

    def catalogue(self) -> Catalogue:
        known, since = self._catalogue or (None, None)
        end = self.end()
        found = follow.catalogue(self.path, known=known, since=since)
        self._catalogue = found, end
        return found

    def epoch(self, segment: int) -> int:
        with self.open(segment) as opened:
            return opened.epoch

    @contextmanager
    def open(self, segment: int) -> Iterator[_File]:
        files = RealFiles()
        path = os.path.join(self.path, segment_name(segment))
        try:
            file = files.open(path)
        except FileNotFoundError:
            raise JournalGap(f"{path} was dropped before it was read: {HOLD}") from None
        try:
            yield _File(path, segment, files, file)
        finally:
            files.close(file)


HOLD = "give the read a cursor, which holds back what it has not read, or raise history_seconds"


class _File:
    jump_bytes, near_bytes = 16 << 10, 256 << 10

    def __init__(self, path: str, number: int, files: RealFiles, file: int) -> None:
        self.name = path
        self.number = number
        self._files = files
        self._file = file
        self.epoch, self.store = _header(path, self.read(0, HEADER_BYTES))

    def read(self, offset: int, size: int) -> bytes:
        return self._files.read(self._file, size, offset)


def _header(name: str, data: bytes) -> tuple[int, int]:
    found = parse_segment_header(data)
    if found is None:
        raise damaged(name, 0, "the segment header does not check out")
    return found.epoch, found.store


class ServerSource:
    """One partition of a running server, over its HTTP API. Only what is durable is let out by it."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        partition: int = 0,
    ):
        if token is not None and user is not None:
            raise InvalidInput("give a token, or a user and a password, not both", field="token")
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.name = f"{self.url} partition {partition}" if partition else self.url
        self.partition = partition
        self._user, self._password, self._token = user, password, token
        self._http: Any = None
        self._identity: tuple[int, int] | None = None
        self._seen: dict[str, Any] = {}  # what the server last said of its journal
        self._catalogue: tuple[Catalogue, int] | None = None  # and up to which position it is known to be right

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_http": None, "_seen": {}, "_catalogue": None}

    def identity(self) -> tuple[int, int]:
        if self._identity is None:
            found = self._seen or self._look()
            self._identity = int(found["store"]), int(found["tag"])
        return self._identity

    def of(self, partition: int) -> ServerSource:
        """Another partition of the same server, asked in the same name."""
        return ServerSource(self.url, user=self._user, password=self._password, token=self._token, partition=partition)

    @property
    def partition_count(self) -> int:
        """As the server said when it was last asked for its end."""
        return int((self._seen or self._look())["partition_count"])

    def end(self) -> Place:
        return _place(self._look()["end"])

    def first_position(self) -> int:
        return int(self._look()["first_position"])

    def _look(self) -> dict[str, Any]:
        self._seen = self._get("/journal")
        return self._seen

    def place(self, position: int) -> Place:
        return _place(self._get("/journal/place", position=position))

    def advance(self, place: Place, until: Place, max_events: int) -> Place:
        found = _place(self._get("/journal/advance", **place._asdict(), max_events=max_events))
        return min(found, until, key=lambda one: one.position)

    def segments(self, until: Place) -> list[SegmentInfo]:
        seen = self._seen  # mostly from when its end was asked for; who reads notices what was dropped since
        if not seen or seen["end"]["position"] < until.position:
            seen = self._look()
        found = [SegmentInfo(*(one[name] for name in SegmentInfo._fields)) for one in seen["segments"]]
        found = [one for one in found if one.number <= until.segment]
        if found and found[-1].number == until.segment:
            found[-1] = found[-1]._replace(used_bytes=until.offset)
        return found

    def catalogue(self) -> Catalogue:
        """As of the end that was seen last, or later."""
        seen = self._seen or self._look()
        if self._catalogue is None or seen["named_position"] >= self._catalogue[1]:
            found = self._get("/journal/queues")
            queues = {q["number"]: QueueName(q["vhost"], q["name"], q["tier"], q["max_messages"]) for q in found}
            self._catalogue = queues, seen["end"]["position"]
        return self._catalogue[0]

    def epoch(self, segment: int) -> int:
        return _Served(self, segment).epoch

    @contextmanager
    def open(self, segment: int) -> Iterator[_Served]:
        yield _Served(self, segment)

    # --- cursors

    def cursors(self) -> dict[str, dict[str, Any]]:
        """Where all there are stand in this partition, by their names."""
        return self.cursors_of((self.partition,))[self.partition]

    def cursors_of(self, partitions: Iterable[int]) -> dict[int, dict[str, dict[str, Any]]]:
        """The same of several partitions, by one request."""
        found: dict[int, dict[str, dict[str, Any]]] = {partition: {} for partition in partitions}
        for one in self._request("GET", "/journal/cursors").json():
            for part in one["partitions"]:
                if part["partition"] in found:
                    found[part["partition"]][one["name"]] = part
        return found

    def cursor(self, name: str) -> dict[str, Any] | None:
        return self.cursors().get(name)

    def put_cursor(self, name: str, position: int, *, rewind: bool = False) -> None:
        """Hold history of this partition from a position on, and let go what is before it."""
        body = {"positions": {str(self.partition): position}, **({"rewind": True} if rewind else {})}
        self._request("PUT", f"/journal/cursors/{quote(name, safe='')}", json=body)

    def delete_cursor(self, name: str) -> None:
        self._request("DELETE", f"/journal/cursors/{quote(name, safe='')}")

    # --- requests

    def _get(self, path: str, **query: object) -> Any:
        return self._request("GET", path, params={**query, **self._which()}).json()

    def _which(self) -> dict[str, int]:
        return {"partition": self.partition} if self.partition else {}

    def read(self, segment: int, offset: int, size: int) -> bytes:
        query = {"offset": offset, "length": size, **self._which()}
        return bytes(self._request("GET", f"/journal/segments/{segment}", params=query).content)

    def _request(self, method: str, path: str, **how: Any) -> Any:
        """All of these can be repeated without harm, so a connection that breaks is tried again a few times."""
        import httpx

        if self._http is None:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"authorization": f"Bearer {self._token}"} if self._token is not None else {},
                auth=(self._user, self._password or "") if self._user is not None else None,
                timeout=60.0,
                verify=ssl.create_default_context() if self.url.startswith("https://") else True,
                trust_env=False,
            )
        for attempt in range(1, TRIES + 1):
            try:
                answer = self._http.request(method, path, **how)
                break
            except httpx.TransportError as error:
                if attempt == TRIES:
                    raise PipelineError(f"{self.url} cannot be reached: {error!r}") from error
                time.sleep(0.1 * 2**attempt)
        if answer.is_success:
            return answer
        try:
            said = answer.json()["error"]
            code, message = str(said["code"]), str(said["message"])
        except (ValueError, KeyError, TypeError):
            code, message = "", answer.text[:200]
        raise _ERRORS.get(code, PipelineError)(
            f"{method} {self.url}{path} was answered with {answer.status_code} {code}: {message}", status=code
        )


_ERRORS: dict[str, type[LanewayError]] = {kind.code: kind for kind in (JournalGap, CursorLost, InvalidInput)}


class _Served:
    jump_bytes, near_bytes = 1 << 20, 4 << 20

    def __init__(self, server: ServerSource, number: int) -> None:
        self.name = f"{server.url}/journal/segments/{number}"
        self.number = number
        self._server = server
        self.epoch, self.store = _header(self.name, self.read(0, HEADER_BYTES))

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = self._server.read(self.number, offset, min(size, MAX_PIECE_BYTES))
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _place(found: Mapping[str, int]) -> Place:
    return Place(found["segment"], found["offset"], found["position"])


def spans(source: Source, start: Place | None, end: Place) -> list[tuple[SegmentInfo, Span]]:
    """What lies between two places, segment by segment; from the first segment there is if no start is given."""
    found = []
    for info in source.segments(end):
        if start is not None and info.number < start.segment:
            continue
        first = start.offset if start is not None and info.number == start.segment else HEADER_BYTES
        if first < info.used_bytes:
            found.append((info, Span(info.number, first, info.used_bytes)))
    return found
