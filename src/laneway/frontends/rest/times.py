"""Times on the wire: RFC 3339 in UTC with milliseconds, made from cached halves because every answer holds some."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from laneway.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REMEMBERED_SECONDS = 4096


class Timestamps:
    """`text(at_ms)` joins a remembered "2026-01-01T10:00:00" with one of the thousand endings ".123Z"."""

    def __init__(self) -> None:
        self._endings = [f".{ms:03d}Z" for ms in range(1000)]
        self._seconds: dict[int, str] = {}

    def text(self, at_ms: int) -> str:
        second, ms = divmod(at_ms, 1000)
        start = self._seconds.get(second)
        if start is None:
            if len(self._seconds) >= _REMEMBERED_SECONDS:
                self._seconds.clear()
            start = self._seconds[second] = _second_text(second)
        return start + self._endings[ms]

    def text_or_none(self, at_ms: int | None) -> str | None:
        return None if at_ms is None else self.text(at_ms)


def _second_text(second: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return "9999-12-31T23:59:59"  # further than the calendar goes


def at_ms_of(moment: datetime, field: str) -> int:
    """An RFC 3339 time of a request, which msgspec has read and seen to have a time zone, in milliseconds."""
    try:
        at_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError:
        raise InvalidInput(f"{field} is outside the calendar", field=field) from None
    if at_ms < 0:
        raise InvalidInput(f"{field} is before 1970: {moment.isoformat()}", field=field)
    return at_ms
