"""Stands in for journal/segments/follow.py until that is there."""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec

from laneway.core.events import Kind
from laneway.core.rows import ROW, ROW_BYTES
from laneway.errors import NotFound
from laneway.journal.segments.files import RealFiles
from laneway.journal.segments.format import HEADER_BYTES, rows_at, segment_name, segment_numbers
from laneway.journal.segments.recovery import read_segment
from laneway.journal.segments.scan import SegmentScan


class Place(NamedTuple):
    segment: int
    offset: int
    position: int


def _walk(folder: str):  # type: ignore[no-untyped-def]
    files = RealFiles()
    for number in segment_numbers(files.list_folder(folder)):
        segment, store = read_segment(files, folder, number)
        path = os.path.join(folder, segment_name(number))
        file = files.open(path)
        scan = SegmentScan(files, path, file, number=number, store=store)
        offset = HEADER_BYTES
        while (commit := scan.commit_at(offset)) is not None:
            yield segment, store, commit
            offset += commit.header.length
        files.close(file)


def end(folder: str) -> Place:
    place = Place(1, HEADER_BYTES, 1)
    for segment, _, commit in _walk(folder):
        place = Place(segment.number, commit.offset + commit.header.length, commit.header.position + 1)
    return place


def start(folder: str, position: int) -> Place:
    first = 0
    for segment, _, commit in _walk(folder):
        first = first or commit.header.position
        if commit.header.position == position:
            return Place(segment.number, commit.offset, position)
    last = end(folder)
    if last.position == position:
        return last
    raise NotFound(f"commit {position} is not there; {first} is the first")


def advance(folder: str, place: Place, until: Place, max_events: int) -> Place:
    count = 0
    for segment, _, commit in _walk(folder):
        if commit.header.position < place.position:
            continue
        if commit.header.position >= until.position or (count and count + commit.header.row_count > max_events):
            break
        count += commit.header.row_count
        place = Place(segment.number, commit.offset + commit.header.length, commit.header.position + 1)
    return place


def segments(folder: str) -> list[tuple[int, int, int, int]]:
    found: dict[int, tuple[int, int, int, int]] = {}
    for segment, _, commit in _walk(folder):
        at = rows_at(commit.header)
        first_ms = ROW.unpack_from(commit.data, at)[6]
        number, first, _, ms = found.get(segment.number, (segment.number, commit.header.position, 0, first_ms))
        found[segment.number] = (number, first, commit.offset + commit.header.length, ms)
    return list(found.values())


def catalogue(folder: str) -> dict[int, tuple[str, str, str]]:
    found = {}
    for _, _, commit in _walk(folder):
        rows = commit.data[rows_at(commit.header) : -HEADER_BYTES]
        for at in range(0, len(rows), ROW_BYTES):
            if rows[at] == Kind.QUEUE_PUT:
                row = ROW.unpack_from(rows, at)
                document = msgspec.json.decode(commit.data[row[12] : row[12] + row[13]])
                tier = document["settings"].get("tier", "normal")
                found[row[4]] = (document["vhost"], document["name"], tier)
    return found


def store(folder: str) -> tuple[int, int]:
    for _, number, commit in _walk(folder):
        rows = commit.data[rows_at(commit.header) : -HEADER_BYTES]
        if rows[0] == Kind.OPENED:
            return number, ROW.unpack_from(rows)[8]
    raise NotFound(f"{folder} has no history")
