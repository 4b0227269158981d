"""Finding commits in one segment file: used to recover (recovery.py) and to look (inspect.py). Reads, never writes.

The file is read in big pieces and not mapped, so that a bad disk sector is an error to report and not a signal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from laneway.core.events import Event
from laneway.core.rows import decode
from laneway.errors import JournalDamaged
from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.format import (
    COMMIT,
    COMMIT_MAGIC,
    HEADER_BYTES,
    LAST_MARK,
    MARK,
    NO_MARK,
    UNIT_BYTES,
    CommitHeader,
    checksum,
    parse_commit_header,
    rows_at,
)

PIECE_BYTES = 4 << 20


class FoundCommit(NamedTuple):
    offset: int
    header: CommitHeader
    data: memoryview  # the whole commit


class Tail(NamedTuple):
    """What stands after the last good commit of a segment."""

    end: int  # offset after the last byte that is not zero; where the tail begins if there is none
    is_empty: bool  # nothing but zeros
    proof_at: int | None  # offset of a header which says that the commit missing here had been durable


def damaged(path: str, offset: int, what: str) -> JournalDamaged:
    folder = os.path.dirname(path) or "."
    return JournalDamaged(
        f"{path} is damaged at byte {offset}: {what}. Nothing was changed. "
        f"Run `laneway journal check {folder}` to see how far the damage goes; then restore the folder from a backup.",
        file=path,
        offset=offset,
    )


class SegmentScan:
    def __init__(
        self, files: ReadableFiles, path: str, file: int, *, number: int, store: int, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._files = files
        self._file = file
        self._store = store
        self._extent = number << 32
        self._piece_bytes = piece_bytes
        self._piece = b""
        self._piece_at = 0
        self.path = path
        self.size = files.size(file)

    def view(self, offset: int, size: int) -> memoryview:
        """Bytes of the file; fewer than asked at its end."""
        start = offset - self._piece_at
        if start < 0 or start + size > len(self._piece):
            try:
                self._piece = self._files.read(self._file, max(size, self._piece_bytes), offset)
            except OSError as error:
                raise damaged(self.path, offset, f"it cannot be read ({error})") from error
            self._piece_at, start = offset, 0
        return memoryview(self._piece)[start : start + size]

    def forget(self) -> None:
        """Read anew from the file from now on: it may be growing."""
        self._piece = b""
        self.size = self._files.size(self._file)

    def header_at(self, offset: int) -> CommitHeader | None:
        """The header of the commit that begins here and lies wholly in the file; its body is not looked at."""
        view = self.view(offset, HEADER_BYTES)
        header = parse_commit_header(view, 0, store=self._store, location=self._extent | offset)
        if header is None or header.kind != COMMIT or offset + header.length > self.size:
            return None
        return header

    def commit_at(self, offset: int) -> FoundCommit | None:
        """The commit that begins here, with its checksum verified."""
        header = self.header_at(offset)
        if header is None:
            return None
        data = self.view(offset, header.length)
        if len(data) < header.length or checksum(data[HEADER_BYTES:-HEADER_BYTES]) != header.body_checksum:
            return None
        return FoundCommit(offset, header, data)

    def mark_of(self, offset: int, header: CommitHeader) -> int:
        """0 if the commit at this offset has no mark, else MARK or LAST_MARK.

        Nothing but a mark is ever written there, so even a mark that does not check out is one.
        """
        at = offset + header.length - HEADER_BYTES
        view = self.view(at, HEADER_BYTES)
        if view == NO_MARK:
            return 0
        mark = parse_commit_header(view, 0, store=self._store, location=self._extent | at)
        return LAST_MARK if mark is not None and mark.kind == LAST_MARK else MARK

    def mark_is_damaged(self, offset: int, header: CommitHeader) -> bool:
        at = offset + header.length - HEADER_BYTES
        view = self.view(at, HEADER_BYTES)
        if view == NO_MARK:
            return False
        mark = parse_commit_header(view, 0, store=self._store, location=self._extent | at)
        return mark is None or mark.kind == COMMIT or mark.position != header.position

    def headers_from(self, offset: int) -> Iterator[tuple[int, CommitHeader]]:
        """Every valid header, of commits and marks, at or after an offset, whatever stands between them."""
        for at, piece in self._pieces(offset):
            found = piece.find(COMMIT_MAGIC)
            while found >= 0:
                if found % UNIT_BYTES == 0:
                    header = parse_commit_header(piece, found, store=self._store, location=self._extent | at + found)
                    if header is not None:
                        yield at + found, header
                found = piece.find(COMMIT_MAGIC, found + 1)

    def tail(self, offset: int, position: int) -> Tail:
        """What stands from an offset on, where the commit of this position should begin but does not."""
        zeros = bytes(PIECE_BYTES)
        end = offset
        for at, piece in self._pieces(offset):
            if piece != zeros[: len(piece)]:
                end = at + len(piece.rstrip(b"\0"))
        if end == offset:
            return Tail(end, True, None)
        proofs = (at for at, header in self.headers_from(offset) if header.durable >= position)
        return Tail(end, False, next(proofs, None))

    def events(self, commit: FoundCommit) -> list[Event]:
        offset, header, data = commit
        base = self._extent | offset
        rows = data[rows_at(header) : -HEADER_BYTES]
        try:
            return list(decode(rows, lambda at, size: bytes(data[at : at + size]), base.__add__))
        except Exception as error:  # the checksum is right, so it was written so: by another version, or by mistake
            raise damaged(
                self.path, offset, f"commit {header.position} holds an event that cannot be decoded ({error!r})"
            ) from error

    def _pieces(self, offset: int) -> Iterator[tuple[int, bytes]]:
        while offset < self.size:
            try:
                piece = self._files.read(self._file, PIECE_BYTES, offset)
            except OSError as error:
                raise damaged(self.path, offset, f"it cannot be read ({error})") from error
            if not piece:
                return
            yield offset, piece
            offset += len(piece)
