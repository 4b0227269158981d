"""What strangers make happen is logged line by line, up to a number of lines; what goes beyond is counted and told in
one line: whoever knocks a thousand times a second must not fill the log, nor hide in it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

_PERIOD_S = 60.0
_LINES_A_SOURCE = 20  # in a period, of one kind
_LINES = 200  # … from all sources
_MOST_SOURCES = 1000  # counted apart
_OTHERS = "other addresses"


class FloodLog:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._said: Counter[tuple[str, str]] = Counter()  # lines, by kind and source
        self._said_of_kind: Counter[str] = Counter()
        self._unsaid: Counter[tuple[logging.Logger, str, str]] = Counter()

    def say(self, log: logging.Logger, level: int, kind: str, source: str, text: str, *values: object) -> None:
        """A line about something of this kind ("refused logins") that came from an address."""
        self.flush()
        if self._said[kind, source] < _LINES_A_SOURCE and self._said_of_kind[kind] < _LINES:
            self._said[kind, source] += 1
            self._said_of_kind[kind] += 1
            log.log(level, text, *values)
            return
        key = (log, kind, source)
        self._unsaid[key if key in self._unsaid or len(self._unsaid) < _MOST_SOURCES else (log, kind, _OTHERS)] += 1

    def flush(self, *, is_last: bool = False) -> None:
        """Tell what was counted, once a period. To be called now and then, also when nothing happens."""
        now_s = self._now_s()
        if now_s - self._began_s < _PERIOD_S and not is_last:
            return
        for (log, kind, source), count in self._unsaid.items():
            log.warning("%d more %s from %s within %.0f s", count, kind, source, now_s - self._began_s)
        self._began_s = now_s
        self._said.clear()
        self._said_of_kind.clear()
        self._unsaid.clear()
